"""Each rule of the next barrier: stop, pass over, take, merge, begin."""

from __future__ import annotations

from typing import Any

import pytest

from epochlog.checkpoint.job.next_barrier import Barrier, InputPosition, lag_in_boundaries, next_barrier
from epochlog.store.epochs.table_epochs import TableEpochs
from epochlog.store.epochs.view import EpochView
from epochlog.store.types.epoch import EPOCH_ORIGIN_MS, boundary, newest_index
from epochlog.store.types.epoch_set import ints

pytestmark = pytest.mark.local_only

SECOND = 1000
ORDERS, DAILY = 1, 2


def b(k: int) -> int:
    """Boundary k of a store with an interval of one second."""
    return boundary(k, SECOND)


def in_interval(k: int) -> int:
    """An epoch in the middle of interval k."""
    return b(k) - 2_000_000


def orders(changes: list[int], commits: list[int] | None = None, **more: Any) -> TableEpochs:
    return TableEpochs(ORDERS, "orders", commits=ints(commits or changes), changes=ints(changes), **more)


def daily(commits: list[int], changes: list[int] | None = None, **more: Any) -> TableEpochs:
    change_epochs = ints(commits if changes is None else changes)
    return TableEpochs(
        DAILY, "daily", derived=True, upstreams=(ORDERS,), commits=ints(commits), changes=change_epochs, **more
    )


def view(last_epoch: int, *tables: TableEpochs) -> EpochView:
    return EpochView(last_epoch, EPOCH_ORIGIN_MS, {table.table_id: table for table in tables})


def ask(v: EpochView, after: int, upstreams: tuple[int, ...] = (ORDERS,), **options: Any) -> Barrier | None:
    """Ask for the next barrier of a job at `after`. Options are those of `next_barrier` and of InputPosition."""
    limits = {name: options.pop(name) for name in ("forced", "logs_from", "reads_states") if name in options}
    position = InputPosition(upstreams, after, SECOND * options.pop("job_interval", 1), **limits)
    return next_barrier(v, position, **{"max_lag": 10, "first": after == 0, "snapshot": False, **options})


@pytest.mark.rule("5.1")
def test_the_first_boundary_past_a_change_is_taken() -> None:
    v = view(b(9), orders([in_interval(1), in_interval(4)]))
    assert ask(v, b(1)) == Barrier(b(1), b(4), "checkpoint")


def test_a_change_at_the_boundary_itself_belongs_to_it() -> None:
    v = view(b(9), orders([b(4)]))
    assert ask(v, b(1)) == Barrier(b(1), b(4), "checkpoint")
    assert ask(view(b(9), orders([b(4) + 1])), b(1)) == Barrier(b(1), b(5), "checkpoint")


@pytest.mark.rule("1.3")
def test_only_sealed_boundaries_count() -> None:
    assert ask(view(b(4) - 1, orders([in_interval(4)])), b(1)) is None
    assert ask(view(b(4), orders([in_interval(4)])), b(1)) is not None


@pytest.mark.rule("2.1")
def test_b16_empty_entries_wake_no_job() -> None:
    v = view(b(9), orders([in_interval(1)], commits=[in_interval(1), in_interval(4), in_interval(6)]))
    assert ask(v, b(1)) is None
    assert lag_in_boundaries(v, InputPosition([ORDERS], b(1), SECOND)) == 0


@pytest.mark.rule("5.1")
def test_it_stops_where_an_upstream_is_incomplete() -> None:
    v = view(b(9), orders([in_interval(1), in_interval(2), in_interval(4)]), daily([b(1), b(2)]))
    assert ask(v, b(1), (DAILY,)) == Barrier(b(1), b(2), "checkpoint")
    assert ask(v, b(2), (DAILY,)) is None
    assert ask(v, b(2), (ORDERS, DAILY)) is None


def test_an_idle_upstream_holds_nobody_back() -> None:
    """Its job has nothing to do, hence it is complete as far as its own upstreams are."""
    planes = TableEpochs(5, "planes", changes=ints([in_interval(1)]), commits=ints([in_interval(1)]))
    models = TableEpochs(6, "models", derived=True, upstreams=(5,), commits=ints([b(1)]), changes=ints([b(1)]))
    v = view(b(9), orders([in_interval(1), in_interval(8)]), planes, models)
    assert ask(v, b(1), (ORDERS, 6)) == Barrier(b(1), b(8), "checkpoint")


@pytest.mark.rule("5.1")
def test_it_passes_over_boundaries_that_an_upstream_merged_away() -> None:
    v = view(b(9), orders([in_interval(k) for k in range(1, 9)]), daily([b(1), b(4), b(8)]))
    assert ask(v, b(1), (ORDERS, DAILY)) == Barrier(b(1), b(4), "checkpoint")
    assert ask(v, b(4), (ORDERS, DAILY)) == Barrier(b(4), b(8), "checkpoint")


@pytest.mark.rule("5.1")
def test_b15_a_job_40_boundaries_behind_merges_to_shared_stops() -> None:
    v = view(b(140), orders([in_interval(k) for k in range(1, 141)]))
    assert ask(v, b(99), max_lag=10) == Barrier(b(99), b(128), "checkpoint")  # lag 40: multiples of 32
    assert ask(v, b(95), max_lag=10) == Barrier(b(95), b(128), "checkpoint")  # lag 44: the same stop
    assert ask(v, b(99), max_lag=40) == Barrier(b(99), b(100), "checkpoint")
    assert ask(v, b(128), max_lag=10) == Barrier(b(128), b(136), "checkpoint")  # lag 11: multiples of 8
    assert lag_in_boundaries(v, InputPosition([ORDERS], b(99), SECOND)) == 40


@pytest.mark.rule("5.1")
def test_the_lag_is_counted_from_the_first_usable_boundary_not_from_the_position() -> None:
    v = view(b(500), orders([in_interval(1), in_interval(498)]))
    assert ask(v, b(1), max_lag=3) == Barrier(b(1), b(498), "checkpoint")


@pytest.mark.rule("5.1")
def test_merging_goes_only_where_all_upstreams_are_valid() -> None:
    v = view(b(50), orders([in_interval(k) for k in range(1, 51)]), daily([b(1), b(3), b(20), b(24), b(31)]))
    assert ask(v, b(1), (DAILY,), max_lag=3) == Barrier(b(1), b(3), "checkpoint")  # lag 47: no multiple of 32 is valid
    assert ask(v, b(3), (DAILY,), max_lag=3) == Barrier(b(3), b(20), "checkpoint")  # lag 30: 16 is not valid
    v = view(b(27), orders([in_interval(k) for k in range(1, 28)]), daily([b(1), b(20), b(24), b(26)]))
    assert ask(v, b(1), (DAILY,), max_lag=3) == Barrier(b(1), b(24), "checkpoint")  # lag 7: multiples of 4


@pytest.mark.parametrize("n, expected", [(1, 7), (2, 8), (5, 10)])
def test_b2_a_job_with_its_own_interval_keeps_to_its_boundaries(n: int, expected: int) -> None:
    v = view(b(15), orders([in_interval(7)]))
    assert ask(v, b(5), job_interval=n) == Barrier(b(5), b(expected), "checkpoint")
    assert ask(v, b(expected), job_interval=n) is None


def test_merging_counts_in_the_jobs_own_interval() -> None:
    v = view(b(103), orders([in_interval(k) for k in range(1, 104)]))
    assert ask(v, b(50), job_interval=5, max_lag=10) == Barrier(b(50), b(55), "checkpoint")  # lag 9
    assert ask(v, b(50), job_interval=5, max_lag=8) == Barrier(b(50), b(80), "checkpoint")  # the 16th of its own
    assert lag_in_boundaries(v, InputPosition([ORDERS], b(50), 5 * SECOND)) == 9


@pytest.mark.rule("1.3")
def test_b3_a_forced_boundary_is_a_stop_for_every_job() -> None:
    forced = in_interval(7) + 5
    v = view(b(15), orders([in_interval(7)]))
    for n in (1, 5):
        assert ask(v, b(5), job_interval=n, forced=[b(2) + 9, forced]) == Barrier(b(5), forced, "checkpoint")
    assert ask(v, forced, forced=[forced]) is None


def test_a_forced_boundary_is_none_to_merge_to() -> None:
    v = view(b(42) + 100, orders([in_interval(k) for k in range(1, 43)]))
    forced = [b(32) + 50, b(42) + 50]
    assert ask(v, b(1), forced=forced) == Barrier(b(1), b(32), "checkpoint")
    assert ask(v, b(32), forced=forced) == Barrier(b(32), b(33), "checkpoint")


def test_a_forced_boundary_that_is_a_regular_one_can_be_merged_to() -> None:
    v = view(b(42), orders([in_interval(k) for k in range(1, 43)]))
    assert ask(v, b(1), forced=[b(32)]) == Barrier(b(1), b(32), "checkpoint")


@pytest.mark.rule("5.2")
def test_the_first_barrier_is_the_first_with_a_change() -> None:
    v = view(b(9), orders([in_interval(4), in_interval(6)]))
    assert ask(v, 0) == Barrier(0, b(4), "initial")


@pytest.mark.rule("5.2")
def test_b16_without_a_change_the_first_barrier_is_the_newest_sealed() -> None:
    v = view(b(9) + 5, orders([]))
    assert ask(v, 0) == Barrier(0, b(9), "initial")
    assert ask(v, 0, forced=[b(9) + 3]) == Barrier(0, b(9) + 3, "initial")
    assert ask(view(b(1) - 1, orders([])), 0) is None
    assert ask(v, b(9), first=False) is None


@pytest.mark.rule("5.2")
def test_a_snapshot_begins_at_the_newest_sealed_boundary() -> None:
    v = view(b(900), orders([in_interval(4), in_interval(6)]))
    assert ask(v, 0, snapshot=True, max_lag=3) == Barrier(0, b(900), "initial")
    assert ask(v, 0, snapshot=True, job_interval=7) == Barrier(0, b(896), "initial")


def test_b10_a_snapshot_never_begins_below_an_upstreams_first_commit() -> None:
    load = orders([in_interval(k) for k in range(1, 9)])
    assert ask(view(b(9), load, daily([], state="creating")), 0, (DAILY,), snapshot=True) is None
    v = view(b(9), load, daily([b(5)], state="creating"))
    assert ask(v, 0, (DAILY,), snapshot=True) == Barrier(0, b(5), "initial")
    assert ask(v, 0, (ORDERS, DAILY), snapshot=False) == Barrier(0, b(5), "initial")


def test_no_stop_lies_below_an_upstreams_safe_epoch() -> None:
    v = view(b(9), orders([in_interval(2), in_interval(6)], safe_epoch=in_interval(6)))
    assert ask(v, 0, snapshot=True) == Barrier(0, b(9), "initial")
    assert ask(v, 0) == Barrier(0, b(6), "initial")
    late = view(b(9), orders([in_interval(k) for k in range(1, 9)], safe_epoch=in_interval(8)), daily([b(5)]))
    assert ask(late, 0, (ORDERS, DAILY), snapshot=True) is None


@pytest.mark.rule("2.1")
def test_the_end_of_data_is_a_change() -> None:
    v = view(b(9), orders([in_interval(2), in_interval(7)], state="finished"))
    assert ask(v, b(2)) == Barrier(b(2), b(7), "checkpoint")


def test_after_the_end_of_an_upstream_only_the_others_count() -> None:
    ended = TableEpochs(7, "ended", state="finished", commits=ints([in_interval(2)]), changes=ints([in_interval(2)]))
    v = view(b(9), orders([in_interval(2), in_interval(6)]), ended)
    assert ask(v, b(2), (ORDERS, 7)) == Barrier(b(2), b(6), "checkpoint")
    assert ask(v, b(6), (ORDERS, 7)) is None


@pytest.mark.rule("2.2")
def test_forgotten_changes_count_as_changes() -> None:
    """The job then finds its log truncated, instead of taking silence for an unchanged upstream."""
    v = view(b(9), orders([], commits=[b(1)], known_from=b(4)))
    assert ask(v, b(2)) == Barrier(b(2), b(3), "checkpoint")


def test_an_idle_week_is_not_walked() -> None:
    """1,000 weeks of one-second boundaries: this ends at once or not at all."""
    week = 7 * 86_400
    last = 1_000 * week
    v = view(b(last), orders([in_interval(1), in_interval(last)]))
    assert ask(v, b(1)) == Barrier(b(1), b(last), "checkpoint")
    v = view(b(last), orders([in_interval(1), in_interval(2)]))
    assert lag_in_boundaries(v, InputPosition([ORDERS], b(1), SECOND)) == last - 2
    merged = ask(v, b(1))
    assert merged is not None
    assert newest_index(merged.curr, SECOND) == last // (1 << 29) * (1 << 29)
    assert ask(v, b(2)) is None
