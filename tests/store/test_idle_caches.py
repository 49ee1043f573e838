"""Caches drop what nothing has used for vacuum's grace, so a process does not keep the rows of files that are gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from epochlog.store.env import lru_cache
from epochlog.store.env.lru_cache import SWEEP_S, LRUCache, drop_idle, process_caches
from epochlog.store.maintenance.scheduler import Maintenance
from epochlog.store.maintenance.vacuum import GRACE
from lab import Lab

ROUND_S = 60.0


class Seconds:
    """The monotonic clock of the caches, which a test turns on."""

    def __init__(self) -> None:
        self.now_s = 1e6

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> Seconds:
    made = Seconds()
    monkeypatch.setattr(lru_cache, "monotonic_s", made)
    monkeypatch.setattr(lru_cache, "_sweeps", lru_cache._Sweeps())
    monkeypatch.setattr(lru_cache, "_caches", dict(lru_cache._caches))
    return made


def total_bytes() -> int:
    return sum(cache.bytes for _, cache in process_caches())


def test_the_grace_is_that_of_vacuum() -> None:
    assert GRACE.total_seconds() == 2 * SWEEP_S


def test_what_is_used_stays_and_what_is_idle_goes(seconds: Seconds) -> None:
    """An entry goes between half of the grace and the whole after its last use; a get is a use."""
    cache: LRUCache[str] = LRUCache(1000, len, name="tried")
    for turn in range(100):
        seconds.now_s += ROUND_S
        cache.put(("new", turn), "12345")
        cache.put(("past", turn), "123", spare=True)
        assert cache.get(("new", 0)) == "12345" and cache.get(("past", 0)) == "123"
        for name in ("new", "past"):
            known = [turn for turn in range(1, turn + 1) if (name, turn) in {**cache._entries, **cache._spare}]
            assert known == list(range(known[0] if known else 1, turn + 1))
            oldest = min(known, default=turn)
            assert (turn - oldest) * ROUND_S <= GRACE.total_seconds()
            assert oldest in (0, 1) or (turn - oldest + 1) * ROUND_S >= SWEEP_S
        assert cache.bytes == sum(size for _, size in (*cache._entries.values(), *cache._spare.values()))
        assert len(cache) * 4 == cache.bytes


def test_the_bound_holds_with_marks_of_sweeps(seconds: Seconds) -> None:
    cache: LRUCache[str] = LRUCache(10, len, name="tried")
    for turn in range(40):
        seconds.now_s += SWEEP_S / 3
        cache.put((turn,), "123456", spare=turn % 3 == 0)
        assert cache.bytes <= 10 and len(cache) <= 1
    cache.clear()
    assert (cache.bytes, len(cache)) == (0, 0)
    cache.sweep()
    assert (cache.bytes, len(cache)) == (0, 0)


def test_one_cache_in_use_sweeps_the_others_and_so_does_maintenance(seconds: Seconds, tmp_path: Path) -> None:
    left: LRUCache[str] = LRUCache(1000, len, name="left")
    busy: LRUCache[str] = LRUCache(1000, len, name="busy")
    left.put(("a",), "1")
    for _ in range(3):
        seconds.now_s += SWEEP_S
        busy.put(("b",), "1")
    assert (len(left), len(busy)) == (0, 1)
    left.put(("a",), "1")
    lab = Lab(tmp_path / "s")
    try:
        for _ in range(2):
            seconds.now_s += SWEEP_S
            Maintenance(lab.store._handle).run_once()
        assert len(left) == 0
    finally:
        lab.store.close()


def test_two_threads_do_not_sweep_one_after_the_other(seconds: Seconds) -> None:
    """Both find that a sweep is due: the second would drop all that was not used since the first."""
    cache: LRUCache[str] = LRUCache(1000, len, name="tried")
    cache.put(("a",), "1")
    seconds.now_s += SWEEP_S
    drop_idle()
    drop_idle()
    assert len(cache) == 1


def run_views(root: Path, seconds: Seconds, rounds: int) -> list[int]:
    """Run three views for some rounds of a minute over little data; return the bytes of all caches after each."""
    for _, cache in process_caches():
        cache.clear()
    lab, sizes = Lab(root), list[int]()
    try:
        lab.root_table()
        lab.put({key: (key % 10, key) for key in range(200)})
        texts = (
            "SELECT k, g, v FROM r WHERE v > 50",
            "SELECT g, SUM(v) AS v, COUNT(*) AS n FROM r WHERE g IS NOT NULL GROUP BY g",
            "SELECT g, MAX(v) AS v FROM r WHERE g IS NOT NULL GROUP BY g",
        )
        views = [
            lab.store.create_view(f"v{place}", text, primary_key=["k" if place == 0 else "g"])
            for place, text in enumerate(texts)
        ]
        for number in range(rounds):
            lab.put({(17 * number + key) % 200: (key, number) for key in range(5)})
            lab.tick()
            lab.store.checkpoint()
            seconds.now_s += ROUND_S
            assert all(view.step() is not None for view in views)
            if number % 5 == 0:
                lab.store.compact()
            sizes.append(total_bytes())
        return sizes
    finally:
        lab.store.close()


def check_flat(sizes: list[int]) -> None:
    """Check that the caches have about as much in the last third of the rounds as in the first, which is longer than
    the grace. Caches that drop nothing have three times as much.
    """
    third = len(sizes) // 3
    assert third * ROUND_S > GRACE.total_seconds()
    assert max(sizes[-third:]) <= 1.5 * max(sizes[:third]), sizes


@pytest.mark.slow
@pytest.mark.local_only
def test_the_caches_of_a_runner_do_not_grow(seconds: Seconds, tmp_path: Path) -> None:
    check_flat(run_views(tmp_path / "s", seconds, 60))


@pytest.mark.slow
@pytest.mark.local_only
@pytest.mark.planted
def test_caches_that_drop_nothing_are_found(seconds: Seconds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plant a bug: the caches drop nothing below their bounds."""
    monkeypatch.setattr(LRUCache, "sweep", lambda self: None)
    with pytest.raises(AssertionError):
        check_flat(run_views(tmp_path / "s", seconds, 60))
