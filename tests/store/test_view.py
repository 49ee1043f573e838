"""Each rule of complete, valid, lag and of the reasons given, on graphs small enough to check by eye."""

from __future__ import annotations

import numpy as np
import pytest

from epochlog.errors import TableNotFound
from epochlog.store.epochs import view as lineage
from epochlog.store.epochs.table_epochs import TableEpochs
from epochlog.store.epochs.view import EpochView
from epochlog.store.types.epoch import EPOCH_ORIGIN_MS, from_unix_ms, show_epoch
from epochlog.store.types.epoch_set import coalesce, intersect, ints

pytestmark = pytest.mark.local_only


def root(table_id: int, name: str, changes: list[int], commits: list[int] | None = None, **more) -> TableEpochs:
    return TableEpochs(table_id, name, commits=ints(commits or changes), changes=ints(changes), **more)


def derived(
    table_id: int, name: str, upstreams: tuple[int, ...], commits: list[int], changes: list[int] | None = None, **more
) -> TableEpochs:
    own = ints(commits if changes is None else changes)
    return TableEpochs(table_id, name, derived=True, upstreams=upstreams, commits=ints(commits), changes=own, **more)


def view(last_epoch: int, *tables: TableEpochs, clock_ms: int = EPOCH_ORIGIN_MS) -> EpochView:
    return EpochView(last_epoch, clock_ms, {table.table_id: table for table in tables})


def valid(view: EpochView, name: str) -> list[tuple[int, int]]:
    starts, ends = view.valid_intervals(name)
    return list(zip(starts.tolist(), ends.tolist(), strict=True))


@pytest.mark.rule("2.3")
def test_a_root_is_complete_and_valid_through_the_newest_epoch_even_without_a_commit() -> None:
    v = view(40, root(1, "orders", []))
    assert v.complete_through("orders") == 40
    assert v.complete("orders", 40)
    assert not v.complete("orders", 41)
    assert valid(v, "orders") == [(0, 40)]
    assert v.largest_valid_at_most(["orders"]) == 40


@pytest.mark.rule("2.3")
def test_a_derived_table_without_a_commit_is_never_complete_nor_valid() -> None:
    v = view(40, root(1, "orders", []), derived(2, "revenue", (1,), [], state="creating"))
    assert v.complete_through("revenue") == 0
    assert not v.complete("revenue", 1)
    assert valid(v, "revenue") == []
    assert v.largest_valid_at_most(["revenue"]) is None
    assert v.why_not(["revenue"], 40) == ["revenue (creating) has no commit yet"]


@pytest.mark.rule("2.4")
def test_a_table_is_valid_nowhere_below_its_first_commit() -> None:
    v = view(40, root(1, "orders", []), derived(2, "revenue", (1,), [20]))
    assert valid(v, "revenue") == [(20, 40)]
    assert v.complete("revenue", 10)
    assert "begins with its first commit at 20" in v.why_not(["revenue"], 10)[0]


@pytest.mark.rule("2.4")
def test_validity_ends_before_the_next_change_of_an_upstream_and_comes_back_with_the_commit() -> None:
    v = view(100, root(1, "orders", [10, 30, 70]), derived(2, "revenue", (1,), [20, 40]))
    assert valid(v, "revenue") == [(20, 29), (40, 69)]
    assert v.complete_through("revenue") == 69


@pytest.mark.rule("2.1")
def test_b16_empty_entries_of_an_upstream_block_nothing() -> None:
    v = view(100, root(1, "orders", [10], commits=[10, 30, 70]), derived(2, "revenue", (1,), [20]))
    assert valid(v, "revenue") == [(20, 100)]
    assert v.lag_ms("revenue") == 0


def test_b16_an_empty_commit_of_a_job_reaches_as_far_as_any_other() -> None:
    v = view(100, root(1, "orders", [10, 30]), derived(2, "revenue", (1,), [20, 40], changes=[]))
    assert valid(v, "revenue") == [(20, 29), (40, 100)]
    v = view(100, root(1, "orders", []), derived(2, "empty", (1,), [20], changes=[]))
    assert valid(v, "empty") == [(20, 100)]


@pytest.mark.rule("2.3", "2.4")
def test_b15_between_merged_boundaries_a_job_is_complete_and_not_valid() -> None:
    v = view(100, root(1, "orders", [10, 30, 50]), derived(2, "revenue", (1,), [20, 80]))
    assert v.complete("revenue", 60)
    assert not v.valid("revenue", 60)
    assert valid(v, "revenue") == [(20, 29), (80, 100)]
    reason = v.why_not(["revenue"], 60)[0]
    assert f"from its commit at {show_epoch(20)} to {show_epoch(80)}" in reason
    assert "orders at 30" in reason


@pytest.mark.rule("2.3", "2.4")
def test_from_where_a_job_was_told_to_end_or_begin_anew_it_is_not_complete() -> None:
    v = view(100, root(1, "orders", [10]), derived(2, "r", (1,), [20], due=30), derived(3, "above", (2,), [20]))
    assert v.complete_through("r") == v.complete_through("above") == 29
    assert not v.complete("r", 30)
    assert valid(v, "r") == valid(v, "above") == [(20, 29)]


@pytest.mark.rule("2.4")
def test_a_superseded_replacement_ends_the_valid_epochs_of_the_commit_before_it() -> None:
    """`a` has committed the replacement at 30, `b` only the one at 60; both had the commit at 20."""
    orders = root(1, "orders", [10])
    v = view(90, orders, derived(2, "a", (1,), [20, 30, 60]), derived(3, "b", (1,), [20, 60], superseded=ints([30])))
    assert valid(v, "b") == [(20, 29), (60, 90)]
    assert [v.largest_valid_at_most(["a", "b"], epoch) for epoch in (90, 59, 30, 29, 19)] == [90, 29, 29, 29, None]
    [reason] = v.why_not(["a", "b"], 40)
    assert "b was replaced" in reason and show_epoch(30) in reason and show_epoch(60) in reason


@pytest.mark.rule("2.4")
def test_a_replaced_view_is_valid_by_the_tables_that_its_query_reads_at_the_epoch() -> None:
    """`top` read `old` below 50 and reads `new` from there on; `turn` read `top`, and `old` reads `turn` since 50."""
    v = view(
        90,
        root(1, "new", [10, 30, 70]),
        derived(2, "old", (4,), [20, 40, 55], [20, 40], former=((50, (1,)),), superseded=ints([50])),
        derived(3, "top", (1,), [25, 45, 52, 75], [25, 45, 75], former=((50, (2,)),), superseded=ints([50])),
        derived(4, "turn", (1,), [26, 46, 53, 76], [26], former=((50, (3,)),), superseded=ints([50])),
    )
    assert valid(v, "old") == [(20, 29), (40, 49), (55, 69), (76, 90)]
    assert valid(v, "top") == [(25, 29), (45, 49), (52, 69), (75, 90)]
    assert valid(v, "turn") == [(26, 29), (46, 49), (53, 69), (76, 90)]
    assert [v.largest_valid_at_most(["top", "old"], epoch) for epoch in (90, 75, 54, 44, 24)] == [90, 69, 49, 29, None]
    assert [v.valid("top", epoch) for epoch in (44, 45, 49, 50, 52, 70)] == [False, True, True, False, True, False]
    assert "old went from its commit" in v.why_not(["top"], 35)[0] and "new" in v.why_not(["top"], 71)[0]


@pytest.mark.rule("2.4")
def test_a_view_that_is_replaced_and_not_committed_yet_is_complete_and_valid_by_its_old_query() -> None:
    former = ((50, (1,)),)
    v = view(60, root(1, "a", [10]), root(2, "b", [45]), derived(3, "t", (2,), [20], due=50, former=former))
    assert valid(v, "t") == [(20, 49)] and v.complete_through("t") == 49
    w = view(60, root(1, "a", [10, 45]), root(2, "b", []), derived(3, "t", (2,), [20], due=50, former=former))
    assert valid(w, "t") == [(20, 44)] and w.complete_through("t") == 44 == w.largest_valid_at_most(["t"])


@pytest.mark.rule("2.4")
def test_epochs_of_a_query_over_a_table_that_was_dropped_are_not_valid() -> None:
    v = view(60, root(1, "a", [10]), derived(2, "t", (1,), [20, 30, 50], traced_from=30))
    assert valid(v, "t") == [(30, 60)] and not v.valid("t", 25)
    assert v.largest_valid_at_most(["t"], 29) is None
    assert "was dropped" in v.why_not(["t"], 25)[0]


def test_b15_two_jobs_that_merge_share_epochs_only_where_both_have_stopped() -> None:
    orders = root(1, "orders", list(range(5, 100, 10)))
    v = view(99, orders, derived(2, "a", (1,), [10, 40, 80]), derived(3, "b", (1,), [20, 40, 60, 80]))
    assert valid(v, "a") == [(10, 14), (40, 44), (80, 84)]
    assert [v.largest_valid_at_most(["a", "b"], epoch) for epoch in (99, 82, 79, 39)] == [84, 82, 44, None]


@pytest.mark.rule("2.4")
def test_validity_needs_the_upstreams_of_the_upstreams() -> None:
    v = view(100, root(1, "orders", [10, 50]), derived(2, "daily", (1,), [20]), derived(3, "worst", (2,), [20]))
    assert valid(v, "worst") == [(20, 49)]
    assert not v.complete("worst", 50)
    reasons = v.why_not(["worst"], 60)
    assert len(reasons) == 1
    assert reasons[0].startswith(f"daily is committed through {show_epoch(20)}, less than 1 ms behind")


def test_a_slow_job_holds_back_only_those_who_read_it() -> None:
    orders, fast = root(1, "orders", [10, 50]), derived(2, "fast", (1,), [20, 60])
    v = view(100, orders, fast, derived(3, "slow", (1,), [20]))
    assert v.largest_valid_at_most(["orders", "fast"]) == 100
    assert v.largest_valid_at_most(["orders", "fast", "slow"]) == 49


def test_a_diamond_is_valid_where_both_sides_are() -> None:
    a, b = derived(2, "a", (1,), [20, 60]), derived(3, "b", (1,), [20, 40])
    v = view(70, root(1, "orders", [10, 30, 50]), a, b, derived(4, "top", (2, 3), [20, 60], changes=[20]))
    assert valid(v, "a") == [(20, 29), (60, 70)]
    assert valid(v, "b") == [(20, 29), (40, 49)]
    assert valid(v, "top") == [(20, 29)]
    assert v.complete_through("top") == 60


@pytest.mark.rule("2.2")
def test_forgotten_changes_make_older_commits_invalid_and_newer_ones_not() -> None:
    v = view(100, root(1, "orders", [50], commits=[10, 50], known_from=30), derived(2, "r", (1,), [20, 40, 60]))
    assert valid(v, "r") == [(40, 49), (60, 100)]
    assert not v.valid("r", 20)
    assert v.valid("r", 40)
    exactly = view(100, root(1, "orders", [50], known_from=40), derived(2, "r", (1,), [20, 40]))
    assert [exactly.valid("r", epoch) for epoch in (20, 39, 40, 49, 50)] == [False, False, True, True, False]
    assert exactly.complete_through("r") == 49
    assert "remembered only past 30" in v.why_not(["r"], 20)[0]
    stuck = view(100, root(1, "orders", [], known_from=30), derived(2, "r", (1,), [20], state="parked"))
    assert stuck.complete_through("r") == 20
    assert valid(stuck, "r") == []
    assert "r (parked) was committed at 20" in stuck.why_not(["r"], 20)[0]


def test_the_safe_epoch_bounds_what_is_read_and_not_what_is_behind_it() -> None:
    orders = root(1, "orders", [10, 30], safe_epoch=30)
    v = view(100, orders, derived(2, "revenue", (1,), [20]))
    assert v.largest_valid_at_most(["revenue"]) == 29
    assert v.largest_valid_at_most(["revenue", "orders"]) is None
    assert v.largest_valid_at_most(["revenue", "orders"], read=["revenue"]) == 29
    assert f"retention has removed the history of orders below epoch {show_epoch(30)}" in v.why_not(["orders"], 29)[0]


@pytest.mark.rule("2.1")
def test_the_end_of_data_is_a_change_until_the_job_has_taken_it() -> None:
    orders = root(1, "orders", [10, 30], state="finished")
    assert valid(view(100, orders, derived(2, "r", (1,), [20])), "r") == [(20, 29)]
    done = view(100, orders, derived(2, "r", (1,), [20, 40], state="finished"))
    assert valid(done, "r") == [(20, 29), (40, 100)]


def test_a_finished_table_takes_part_in_no_minimum() -> None:
    planes, flights = root(1, "planes", [10], state="finished"), root(2, "flights", [20, 60])
    joined, busy = derived(3, "models", (1,), [15], state="finished"), derived(4, "busy", (2, 3), [30, 70])
    v = view(100, planes, flights, joined, busy)
    assert v.complete_through("models") == 100
    assert v.largest_valid_at_most(v.tables) == 100


def test_tables_are_found_by_id_and_by_name() -> None:
    v = view(10, root(7, "orders", [5]))
    assert v.valid(7, 5) == v.valid("orders", 5) is True
    for unknown in ("order", 8):
        with pytest.raises(TableNotFound, match="orders"):
            v.valid(unknown, 5)


def test_an_epoch_not_yet_issued_is_a_reason_of_its_own() -> None:
    assert view(10, root(1, "orders", [5])).why_not(["orders"], 4106) == [
        f"epoch {show_epoch(4106)} is not sealed yet; the newest is 10 (2025-01-01T00:00:00.000Z), 1 ms short"
    ]


def test_lag_is_the_age_of_the_oldest_change_not_reflected() -> None:
    at = [from_unix_ms(EPOCH_ORIGIN_MS + ms) for ms in (1000, 2000, 3000, 4000)]
    now, orders = EPOCH_ORIGIN_MS + 9000, root(1, "orders", [at[0], at[2]])
    behind = view(at[3], orders, derived(2, "r", (1,), [at[1]]), clock_ms=now)
    assert [behind.lag_ms(name) for name in ("orders", "r")] == [0, 6000]
    assert behind.lag_ms("r", at[3]) == 6000
    assert behind.lag_ms("orders", at[1]) == 6000
    assert behind.lag_ms("orders", at[2]) == 0
    assert view(at[3], orders, derived(2, "r", (1,), [at[3]]), clock_ms=now).lag_ms("r") == 0


def test_lag_of_a_view_on_a_view_counts_from_the_root_change() -> None:
    at = [from_unix_ms(EPOCH_ORIGIN_MS + ms) for ms in (0, 1000, 2000, 3000, 4000)]
    now, orders = EPOCH_ORIGIN_MS + 9000, root(1, "orders", [at[0] + 1, at[2]])
    waiting = view(at[4], orders, derived(2, "d", (1,), [at[1]]), derived(3, "w", (2,), [at[1]]), clock_ms=now)
    assert [waiting.lag_ms(name) for name in ("d", "w")] == [7000, 7000]
    passed_on = view(at[4], orders, derived(2, "d", (1,), [at[1], at[3]]), derived(3, "w", (2,), [at[1]]), clock_ms=now)
    assert [passed_on.lag_ms(name) for name in ("d", "w")] == [0, 7000]


def test_a_clock_behind_the_epochs_gives_no_negative_lag() -> None:
    v = view(from_unix_ms(EPOCH_ORIGIN_MS + 9000), root(1, "o", [1 << 20]), derived(2, "r", (1,), [1]))
    assert v.lag_ms("r") == 0


def test_badly_interleaved_jobs_are_searched_by_windows_of_arrays() -> None:
    """Each of 5,000 commits of either job is spoilt by the other's; only the very first stop is common."""
    orders = root(1, "orders", list(range(1, 60_000, 2)))
    a = derived(2, "a", (1,), [10, *range(22, 60_000, 20)])
    b = derived(3, "b", (1,), [10, *range(32, 60_000, 20)])
    v = view(60_000, orders, a, b)
    assert v.largest_valid_at_most(["a", "b"]) == 10
    assert v.largest_valid_at_most(["a", "b"], 9) is None


def test_search_by_windows_finds_what_search_by_steps_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the answer lies within a window, at its first epoch and at its last."""
    v = view(600, root(1, "orders", [*range(1, 600, 7)]), derived(2, "r", (1,), [*range(2, 600, 49)]))
    expected = [v.largest_valid_at_most(["r"], epoch) for epoch in range(600)]
    assert len(set(expected)) > 50
    monkeypatch.setattr(lineage, "SWEEPS", 0)
    assert [v.largest_valid_at_most(["r"], epoch) for epoch in range(600)] == expected


def test_a_deep_chain_needs_no_recursion() -> None:
    chain = [derived(i, f"v{i}", (i - 1,), [20]) for i in range(2, 3000)]
    v = view(50, root(1, "orders", [10, 40]), *reversed(chain))
    assert v.complete_through(2999) == v.largest_valid_at_most([2999]) == 39
    assert v.lag_ms(2999) == 0


def test_intervals_meet_and_touching_ones_become_one() -> None:
    left, right = (ints([0, 10, 20]), ints([5, 15, 25])), (ints([3, 16, 22]), ints([12, 17, 30]))
    starts, ends = intersect(left, right)
    assert (starts.tolist(), ends.tolist()) == ([3, 10, 22], [5, 12, 25])
    starts, ends = coalesce((ints([1, 3, 8]), ints([2, 5, 9])))
    assert (starts.tolist(), ends.tolist()) == ([1, 8], [5, 9])


def test_arrays_are_int64_whatever_they_were_made_from() -> None:
    table = TableEpochs(1, "t", commits=[1, 2], changes=())  # pyright: ignore[reportArgumentType]
    assert table.commits.dtype == table.changes.dtype == np.int64
    assert table.position == 2
