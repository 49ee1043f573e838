"""The feed hands out whole days in order and counts them."""

from __future__ import annotations

from pathlib import Path

import pytest

from epochlog.demo import data
from epochlog.demo.feed import DayFeed
from epochlog.demo.stage import DemoPlan


@pytest.fixture
def feed(tmp_path: Path) -> DayFeed:
    return DayFeed(tmp_path / "feed", data.arrivals(data.read("flights"), data.read("weather"), days=20, delay_days=4))


@pytest.mark.medium
def test_days_are_released_in_order_and_once(feed: DayFeed) -> None:
    assert not list(feed.inboxes["flights"].iterdir())
    feed.release(3)
    feed.release(2)
    assert feed.released == 3
    feed.release(99)
    assert feed.released == 20
    for folder in feed.inboxes.values():
        files = sorted(folder.iterdir())
        assert len(files) == 20
        ages_ms = [path.stat().st_mtime_ns // 1_000_000 for path in files]
        assert ages_ms == sorted(set(ages_ms))


@pytest.mark.medium
def test_rows_tell_the_day(feed: DayFeed) -> None:
    first, second = feed.rows["flights"][:2]
    rows = [0, first - 1, first, second, feed.rows["flights"][-1]]
    assert [feed.days_in("flights", count) for count in rows] == [0, 0, 1, 2, 20]


@pytest.mark.parametrize("days, moments", [(365, 10), (40, 4), (14, 10)])
def test_the_feed_waits_for_streams_and_moments(days: int, moments: int) -> None:
    plan = DemoPlan(days=days, moments=moments, files_per_batch=2, interval_ms=3000, slow_extra_s=5.0, ahead_days=6)
    assert plan.allowed_days(0, days_in=0) == min(6, plan.allowed_days(0, days))
    due = [plan.due_day(number) for number in range(moments)]
    assert due == sorted(due)
    assert 0 < due[0] <= due[-1] < days
    free = [plan.allowed_days(taken, days_in=days) for taken in range(moments + 1)]
    assert free == sorted(set(free)), "each moment taken frees days, so that there is something new for the next"
    assert all(now >= then for now, then in zip(free, due, strict=False)), "every moment can become due"
    assert free[-1] == days
