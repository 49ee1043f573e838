"""Barriers and partial recovery at the checkpoint manager: scenarios by their numbers, on virtual time."""

from __future__ import annotations

import pytest

from epochlog.checkpoint import Edge, Report
from epochlog.checkpoint.manager.commands import Abort, CommitBarrier, Drop, Failed, Inject, Restart
from manager_driver import START_MS, Desk

pytestmark = pytest.mark.local_only

A, B = ("v", 0), ("v", 1)


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.mark.rule("5.22")
def test_b1_a_worker_that_dies_before_reporting_holds_back_its_job_alone(desk: Desk) -> None:
    desk.job("hurt", {"v": 2})
    desk.job("well")
    desk.works("well")
    desk.attaches = False
    desk.to(1_000)
    desk.report("hurt", A, "a1")
    desk.fail("hurt", B)
    desk.to(5_999)
    assert desk.of(CommitBarrier, "hurt") == []
    assert len(desk.of(CommitBarrier, "well")) == 5
    desk.attach("hurt", B)
    desk.report("hurt", A, "a2")
    desk.report("hurt", B, "b1")
    assert desk.rows("hurt") == ["a1", "a2", "b1"]


@pytest.mark.rule("5.25")
def test_b1_only_the_killed_one_of_four_writers_restarts(desk: Desk) -> None:
    desk.job("load", {"v": 4})
    desk.to(1_000)
    desk.fail("load", ("v", 2))
    assert [tuple(restart.actors) for restart in desk.of(Restart, "load")] == [(("v", 2),)]


@pytest.mark.rule("5.25")
def test_b1_connected_actors_roll_back_together_and_start_together(desk: Desk) -> None:
    """s0 → w0, s1 → w1: each pair rolls back and starts by itself; what the pair left in carry-over is dropped."""
    desk.attaches = False
    desk.job("load", {"s": 2, "w": 2}, [Edge("s", "w", "pointwise")])
    desk.to(1_000)
    for index in (0, 1):
        desk.report("load", ("w", index), f"w{index}")
    desk.decline("load", ("s", 0))
    desk.fail("load", ("s", 1))
    assert [tuple(restart.actors) for restart in desk.of(Restart, "load")] == [(("s", 1), ("w", 1))]
    assert [drop.segments for drop in desk.of(Drop, "load")] == [{"t": ("w1",)}]
    before = len(desk.started("load"))
    desk.attach("load", ("s", 1))
    assert len(desk.started("load")) == before
    desk.attach("load", ("w", 1))
    assert desk.started("load")[before:] == [("s", 1), ("w", 1)]


@pytest.mark.rule("5.23", "5.28")
def test_b3_a_forced_checkpoint_of_two_jobs_at_once(desk: Desk) -> None:
    """One has a barrier in flight, the other is idle; neither loses its forced one, also across a recovery."""
    for name in ("one", "two"):
        desk.job(name, interval_ms=None, timeout_ms=10_000)
    desk.do(desk.manager.inject("one"))
    first = desk.current("one").barrier_id
    for name in ("one", "two"):
        desk.do(desk.manager.inject(name))
    assert desk.current("one").barrier_id == first  # one in flight
    desk.report("one", A, "1")
    assert desk.current("one").barrier_id != first
    for name in ("one", "two"):
        desk.do(desk.manager.recover(name, incarnation=2))
    desk.to(5_000)
    for name in ("one", "two"):
        assert desk.manager.status(name).forced
        desk.report(name, A, name)
        assert not desk.manager.status(name).forced
    assert desk.rows("one") == ["1", "one"]
    assert desk.rows("two") == ["two"]


@pytest.mark.rule("5.28")
def test_b3_a_forced_checkpoint_outlives_the_coordinator(desk: Desk) -> None:
    desk.job("one", interval_ms=None, forced=True)
    desk.report("one", A, "1")
    assert desk.rows("one") == ["1"]
    desk.to(60_000)
    assert len(desk.of(Inject, "one")) == 1


@pytest.mark.rule("5.28")
def test_b3_a_forced_checkpoint_that_fails_is_tried_again(desk: Desk) -> None:
    desk.job("one", interval_ms=None)
    desk.do(desk.manager.inject("one"))
    desk.decline("one", A)
    assert len(desk.of(Inject, "one")) == 1  # not at once: whoever declined would decline again
    desk.to(1_000)
    assert len(desk.of(Inject, "one")) == 2


@pytest.mark.rule("5.24")
def test_b4_a_stuck_barrier_is_timed_out_and_its_segments_are_in_the_next(desk: Desk) -> None:
    desk.job("stuck", {"v": 2}, timeout_ms=3_000)
    desk.job("other")
    desk.works("other")
    desk.to(1_000)
    desk.report("stuck", A, "a1", "a2")
    desk.to(3_999)
    assert desk.of(Abort, "stuck") == []
    desk.to(4_999)
    assert [sorted(abort.actors) for abort in desk.of(Abort, "stuck")] == [[A, B]]
    assert "v[1]" in desk.of(Abort, "stuck")[0].reason
    assert len(desk.of(CommitBarrier, "other")) == 4
    desk.to(5_000)
    again = desk.current("stuck")
    assert again.taken == {A: desk.of(Inject, "stuck")[0].barrier_id, B: 0}
    desk.report("stuck", A, "a3")
    desk.report("stuck", B, "b1")
    assert desk.rows("stuck") == ["a1", "a2", "a3", "b1"]
    desk.works("stuck")
    desk.to(6_000)
    assert len(desk.rows("stuck")) == 6  # nothing twice


@pytest.mark.rule("5.22")
def test_b13_one_jobs_flood_leaves_the_others_latency(desk: Desk) -> None:
    """400,000 changed rows for one job: its report takes half a minute, and 400 segments."""
    plain, flooded = Desk(), desk
    for each in (plain, flooded):
        each.job("flood", timeout_ms=60_000)
        for name in ("a", "b"):
            each.job(name)
            each.works(name)
    plain.works("flood")
    plain.to(40_000)
    flooded.to(31_000)
    flooded.report("flood", A, *range(400))
    flooded.works("flood")
    flooded.to(40_000)
    assert flooded.ticks("flood") != plain.ticks("flood")
    for name in ("a", "b"):
        assert flooded.ticks(name) == plain.ticks(name)
    assert flooded.rows("flood")[:400] == list(range(400))


@pytest.mark.rule("5.23", "5.31")
def test_b14_stale_repeated_unknown_and_late_reports_change_nothing(desk: Desk) -> None:
    desk.job("j", {"v": 2}, timeout_ms=3_000)
    old = desk.incarnations["j", B]
    desk.to(1_000)
    desk.attach("j", B)  # fences the first one; the barrier is injected anew
    first = desk.current("j").barrier_id
    desk.report("j", A, "a1")
    nothing = [
        desk.report("j", A, "again"),
        desk.report("j", A, "another incarnation", incarnation=desk.incarnations["j", A] + 1),
        desk.report("j", B, "fenced", incarnation=old),
        desk.report("j", B, "unknown", barrier_id=first + 1),
        desk.report("j", B, "unknown", barrier_id=-1),
        desk.report("j", ("v", 2), "no such actor", incarnation=1),
        desk.do(desk.manager.collect(Report("elsewhere", first, A, 1))),
    ]
    desk.to(4_000)
    nothing.append(desk.report("j", B, "late", barrier_id=first))
    assert nothing == [[]] * len(nothing)
    assert desk.manager.status("j").ignored == 7
    assert desk.of(CommitBarrier, "j") == []
    desk.to(5_000)
    desk.report("j", A, "a2")
    desk.report("j", B, "late", "b2")  # named again, since it was not taken
    assert desk.rows("j") == ["a1", "a2", "late", "b2"]


@pytest.mark.rule("5.22")
@pytest.mark.parametrize("trouble", ["fails", "is stuck", "dies", "is recovered"])
def test_g16_one_jobs_trouble_changes_no_tick_of_the_others(trouble: str) -> None:
    """100 times; the others' decisions come at the same ms as without it (B12 at the manager)."""
    desks = {"calm": Desk(), "trouble": Desk()}
    for name, desk in desks.items():
        desk.job("bad", timeout_ms=700, tolerable_failures=5)
        for interval, other in ((1_000, "a"), (700, "b"), (3_100, "c")):
            desk.job(other, interval_ms=interval, min_pause_ms=50)
            desk.works(other)
        if name == "calm":
            desk.works("bad")
    calm, desk = desks.values()
    calm.to(130_000)
    if trouble == "fails":
        desk.on_inject["bad"] = lambda inject: desk.decline("bad", A, inject.barrier_id)
    for number in range(100):
        desk.to(1_250 * (number + 1))
        if trouble == "dies":
            desk.fail("bad", A)
        if trouble == "is recovered" or desk.manager.status("bad").state == "failed":
            desk.do(desk.manager.recover("bad", incarnation=number + 2))
    desk.to(130_000)
    assert desk.of(CommitBarrier, "bad") == []
    assert len(desk.of(Failed, "bad")) >= (15 if trouble in ("fails", "is stuck") else 0)
    for other in ("a", "b", "c"):
        assert len(desk.of(CommitBarrier, other)) > 40
        assert desk.ticks(other) == calm.ticks(other)


def test_time_that_goes_back_stops_no_job(desk: Desk) -> None:
    desk.job("j", timeout_ms=2_000)
    desk.to(1_500)
    desk.now = START_MS - 3_600_000
    desk.do(desk.manager.tick())
    due = desk.manager.next_due()
    assert due is not None and due - desk.now == 2_000
    desk.now = due
    desk.do(desk.manager.tick())
    assert len(desk.of(Abort, "j")) == 1
