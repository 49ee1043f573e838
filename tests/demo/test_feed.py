"""The feed hands out whole days in order and counts them."""

from __future__ import annotations

from pathlib import Path

import pytest

from epochlog.demo import data
from epochlog.demo.feed import Feed
from epochlog.demo.stage import Plan


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    return Feed(tmp_path / "feed", data.arrivals(data.read("flights"), data.read("weather"), days=20, delay_days=4))


def test_days_are_released_in_order_and_once(feed: Feed) -> None:
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


def test_rows_tell_the_day(feed: Feed) -> None:
    first, second = feed.rows["flights"][:2]
    rows = [0, first - 1, first, second, feed.rows["flights"][-1]]
    assert [feed.days_in("flights", count) for count in rows] == [0, 0, 1, 2, 20]


def test_the_feed_waits_for_streams_and_moments() -> None:
    plan = Plan(days=365, moments=10, files_per_batch=2, interval_ms=3000, slow_extra_s=5.0, ahead_days=6)
    assert plan.allowed_days(moments_taken=0, days_in=0) == 6
    due = [plan.due_day(number) for number in range(10)]
    assert due == sorted(set(due))
    assert 0 < due[0] < due[-1] < 365
    for taken in range(10):
        free = plan.allowed_days(taken, days_in=365)
        assert due[taken] < free < 365, "the next moment can come, and data is left to move after it"
    assert plan.allowed_days(moments_taken=10, days_in=365) == 365
