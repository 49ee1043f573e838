"""Checkpoints after tasks finished, at the checkpoint manager: scenarios by their numbers, on virtual time."""

from __future__ import annotations

import pytest

from epochlog.checkpoint import Edge
from epochlog.checkpoint.manager.commands import (
    Abort,
    Announce,
    CommitBarrier,
    Decide,
    Drop,
    Failed,
    Finished,
    Inject,
    JobStopped,
    Resolve,
    Restart,
    Start,
)
from epochlog.errors import Fenced, SegmentUnknown, UpstreamIncomplete
from manager_driver import Desk

pytestmark = pytest.mark.local_only

A, B = ("v", 0), ("v", 1)


@pytest.fixture
def desk() -> Desk:
    return Desk()


def end(desk: Desk, job: str, actor: tuple[str, int]) -> None:
    desk.do(desk.manager.ended(job, actor, desk.incarnations[job, actor]))


def test_c6_nothing_is_pending_while_a_task_does_not_run(desk: Desk) -> None:
    desk.job("j", {"v": 2})
    desk.attaches = False
    desk.fail("j", A)
    before = len(desk.of(Inject, "j"))
    desk.to(10_000)
    status = desk.manager.status("j")
    assert (len(desk.of(Inject, "j")), status.barrier_id, status.failures) == (before, None, 0)
    desk.attach("j", A)
    desk.to(12_000)
    assert desk.current("j").waits == {A, B} and len(desk.of(Inject, "j")) > before


def test_c6_nothing_is_pending_while_finished_tasks_are_not_allowed(desk: Desk) -> None:
    desk.job("j", {"v": 2}, finished=[A], allow_finished=False)
    desk.job("k", {"v": 2}, finished=[A])
    desk.to(10_000)
    assert not desk.of(Inject, "j") and desk.manager.status("j").barrier_id is None
    assert desk.current("k").waits == {B}


@pytest.mark.rule("5.29")
def test_c8_a_task_that_finishes_while_being_triggered(desk: Desk) -> None:
    """That attempt fails at once, uncounted; the others get an abort notice; the next plan leaves the task out."""
    desk.job("j", {"v": 3}, tolerable_failures=0)
    desk.to(1_000)
    first = desk.current("j").barrier_id
    desk.report("j", B, "b1")
    desk.do(desk.manager.finished("j", A, desk.incarnations["j", A]))
    (abort,) = desk.of(Abort, "j")
    assert (abort.barrier_id, sorted(abort.actors)) == (first, [B, ("v", 2)])
    assert desk.manager.status("j").failures == 0
    again = desk.current("j")
    assert again.barrier_id != first and again.waits == {B, ("v", 2)}
    assert desk.now - desk.log[0][0] == 1_000  # at once
    desk.report("j", B, "b2")
    desk.report("j", ("v", 2))
    assert desk.rows("j") == ["b1", "b2"]
    assert desk.of(CommitBarrier, "j")[0].finished == {A}


def test_c8_the_last_task_goes_with_what_it_left_in_carry_over(desk: Desk) -> None:
    desk.job("j", timeout_ms=500)
    desk.to(1_000)
    desk.report("j", A, "a1", ended=True)
    desk.job("k", {"v": 2}, timeout_ms=500)
    desk.to(2_000)
    desk.report("k", A, "k1")
    desk.to(2_500)
    for actor in (A, B):
        desk.do(desk.manager.finished("k", actor, desk.incarnations["k", actor]))
    desk.to(3_000)
    assert desk.rows("k") == ["k1"]
    assert [commit.final for commit in desk.of(CommitBarrier, "k")] == [True]
    assert len(desk.of(Finished, "k")) == 1


@pytest.mark.rule("5.24")
def test_c10_a_report_again_and_a_decline(desk: Desk) -> None:
    """Aborted once; later declines change nothing; the next barrier has what was reported."""
    desk.job("j", {"v": 2})
    desk.to(1_000)
    first = desk.current("j").barrier_id
    desk.report("j", A, "a1")
    desk.report("j", A, "a1")
    desk.decline("j", B)
    assert desk.decline("j", B) == desk.decline("j", A, first) == []
    assert [abort.barrier_id for abort in desk.of(Abort, "j")] == [first]
    assert desk.manager.status("j").failures == 1
    desk.to(2_000)
    assert desk.decline("j", B, first) == []
    desk.report("j", A, "a2")
    desk.report("j", B, "b1")
    assert desk.rows("j") == ["a1", "a2", "b1"]


def test_c11_one_report_then_the_timeout(desk: Desk) -> None:
    """No completion is ever announced for that barrier; its late report changes nothing; no row is lost."""
    desk.job("j", {"v": 2}, timeout_ms=5_000)
    desk.to(1_000)
    first = desk.current("j").barrier_id
    desk.report("j", A, "a1")
    desk.to(6_000)
    assert desk.report("j", B, "b1", barrier_id=first) == []
    desk.to(7_000)
    second = desk.current("j")
    assert second.taken == {A: first, B: 0}
    desk.report("j", A)
    desk.report("j", B, "b1")  # not taken, so it is named again
    assert desk.rows("j") == ["a1", "b1"]
    assert desk.announced("j") == [second.barrier_id]


@pytest.mark.rule("5.29")
@pytest.mark.parametrize("ended_by", ["report", "event"])
def test_c12_the_final_commit_is_any_at_or_after_the_end(desk: Desk, ended_by: str) -> None:
    """Three barriers after the end; only the third completes: the task ends on the third."""
    desk.job("j", {"v": 2})
    desk.to(1_000)
    for actor in (A, B):
        desk.report("j", actor, "before")
    if ended_by == "event":
        end(desk, "j", A)
    for second in (2, 3):
        desk.to(second * 1_000)
        desk.report("j", A, f"last {second}", ended=True)
        assert desk.manager.status("j").actors[A] == "ENDING"
        desk.decline("j", B)
    assert desk.manager.status("j").actors[A] == "ENDING"
    desk.to(4_000)
    assert A in desk.current("j").waits
    desk.report("j", A, ended=True)
    desk.report("j", B)
    assert desk.manager.status("j").actors[A] == "FINISHED"
    assert [announce.finished for announce in desk.of(Announce, "j")] == [frozenset(), {A}]
    assert desk.rows("j") == ["before", "before", "last 2", "last 3"]
    desk.to(5_000)
    assert desk.current("j").waits == {B}
    desk.report("j", B, ended=True)
    assert [commit.final for commit in desk.of(CommitBarrier, "j")] == [False, False, True]
    assert len(desk.of(Finished, "j")) == 1
    assert desk.manager.next_due() is None


@pytest.mark.rule("5.29")
def test_c12_an_end_that_was_not_reported_yet_is_not_taken_as_committed(desk: Desk) -> None:
    """The data ended after this barrier's report: the commit of that barrier does not finish the task."""
    desk.job("j")
    desk.to(1_000)
    desk.answers = False
    desk.report("j", A, "a1")
    end(desk, "j", A)
    desk.do(desk.manager.committed("j", desk.current("j").barrier_id, 7))
    assert desk.manager.status("j").actors[A] == "ENDING"


@pytest.mark.parametrize("in_flight", ["collecting", "committing"])
def test_c13_stop_with_drain_while_the_final_commit_is_pending_ends_with_it(desk: Desk, in_flight: str) -> None:
    desk.job("j", {"v": 2})
    desk.to(1_000)
    desk.report("j", A, "a1", ended=True)
    desk.answers = False
    if in_flight == "committing":
        desk.report("j", B, "b1", ended=True)
    desk.do(desk.manager.stop("j", drain=True))
    if in_flight == "collecting":
        desk.report("j", B, "b1", ended=True)
    desk.do(desk.manager.committed("j", desk.current("j").barrier_id, 9))
    assert len(desk.of(Inject, "j")) == len(desk.of(Finished, "j")) == 1
    assert desk.of(CommitBarrier, "j")[0].final


def test_c13_stop_with_drain_asks_the_actors_to_end(desk: Desk) -> None:
    desk.job("j", {"v": 2}, interval_ms=None)
    desk.do(desk.manager.stop("j", drain=True))
    assert desk.current("j").drain
    desk.report("j", A, ended=True)
    desk.decline("j", B)
    assert desk.manager.status("j").state == "running"
    desk.to(1_000)
    assert desk.current("j").drain
    desk.report("j", A, ended=True)
    desk.report("j", B, "b1", ended=True)
    assert desk.manager.status("j").state == "finished"
    assert desk.rows("j") == ["b1"]


def test_c13_barriers_short_of_the_end_do_not_end_the_data(desk: Desk) -> None:
    """The next stop of a job that is drained may lie below the end: what is past it is still its input."""
    desk.answers = False
    actors = desk.job("j", {"a": 1})
    desk.do(desk.manager.stop("j", drain=True))
    first = desk.of(Decide, "j")[-1]
    desk.do(desk.manager.decided("j", first.barrier_id, desk.barrier("j"), last=False))
    assert first.drain and not desk.current("j").drain
    desk.report("j", actors[0])
    desk.do(desk.manager.committed("j", first.barrier_id, 1))
    second = desk.of(Decide, "j")[-1]
    assert second.drain and second.barrier_id > first.barrier_id
    desk.do(desk.manager.decided("j", second.barrier_id, desk.barrier("j"), last=True))
    assert desk.current("j").drain


@pytest.mark.parametrize("state", ["failed", "stopped"])
def test_c13_a_job_that_does_not_run_drains_once_it_has_recovered(desk: Desk, state: str) -> None:
    """Found by the simulation, seeds 1757 and 2662: it was forgotten, and the job went on without an end."""
    desk.job("j", tolerable_failures=0)
    desk.to(1_000)
    if state == "failed":
        desk.decline("j", A)
    else:
        desk.do(desk.manager.stop("j", drain=False))
    assert desk.manager.status("j").state == state
    assert desk.do(desk.manager.stop("j", drain=True)) == []
    desk.do(desk.manager.recover("j", incarnation=2))
    assert desk.current("j").drain
    desk.report("j", A, ended=True)
    assert desk.manager.status("j").state == "finished"


def test_c13_stop_without_drain_writes_no_end(desk: Desk) -> None:
    desk.job("j", {"v": 2})
    desk.to(1_000)
    desk.report("j", A, "a1", ended=True)
    desk.do(desk.manager.stop("j", drain=False))
    assert desk.report("j", B, "b1", ended=True) == []
    assert [drop.segments for drop in desk.of(Drop, "j")] == [{"t": ("a1",)}]
    assert (len(desk.of(JobStopped, "j")), desk.of(CommitBarrier, "j"), desk.of(Finished, "j")) == (1, [], [])
    desk.to(60_000)
    assert len(desk.of(Inject, "j")) == 1


@pytest.mark.parametrize("outcome", ["lands", "is refused", "unknown and lands", "unknown and does not"])
def test_c13_stop_without_drain_waits_for_what_is_at_the_catalog(desk: Desk, outcome: str) -> None:
    desk.job("j")
    desk.to(1_000)
    desk.answers = False
    desk.report("j", A, "a1")
    assert desk.do(desk.manager.stop("j", drain=False)) == []
    number = desk.current("j").barrier_id
    if outcome.startswith("unknown"):
        desk.do(desk.manager.unknown("j", number))
        desk.do(desk.manager.resolved("j", number, 5 if outcome.endswith("lands") else None))
    elif outcome == "lands":
        desk.do(desk.manager.committed("j", number, 5))
    else:
        desk.do(desk.manager.refused("j", number, UpstreamIncomplete("not yet")))
    landed = outcome.endswith("lands")
    assert len(desk.of(JobStopped, "j")) == 1
    assert (len(desk.of(Announce, "j")), len(desk.of(Drop, "j"))) == ((1, 0) if landed else (0, 1))


@pytest.mark.parametrize("stopped", [False, True])
def test_c15_two_chains_of_20_and_100_rows_without_periodic_checkpoints(desk: Desk, stopped: bool) -> None:
    """Ends with exactly 20 and 100; also when stopped after the first has finished, and restored."""
    edges = [Edge("short", "w20", "pointwise"), Edge("long", "w100", "pointwise")]
    shape = {"short": 1, "w20": 1, "long": 1, "w100": 1}
    desk.job("j", shape, edges, interval_ms=None)
    for actor in (("short", 0), ("w20", 0)):
        end(desk, "j", actor)
    (inject,) = desk.of(Inject, "j")
    assert set(inject.targets) == {("short", 0), ("long", 0)}
    desk.report("j", ("short", 0), ended=True)
    desk.report("j", ("w20", 0), *[("w20", n) for n in range(20)], ended=True)
    desk.report("j", ("long", 0), state=b"40")
    desk.report("j", ("w100", 0), *[("w100", n) for n in range(40)])
    commit = desk.of(CommitBarrier, "j")[-1]
    assert commit.finished == {("short", 0), ("w20", 0)}
    assert commit.finished_vertices == {"short", "w20"}
    if stopped:
        desk.do(desk.manager.stop("j", drain=False))
        desk.do(desk.manager.unregister("j"))
        desk.job("j", shape, edges, interval_ms=None, finished=commit.finished)
        restored = desk.of(Start, "j")[-4:]
        assert {start.actor for start in restored if start.finished} == commit.finished
    desk.to(3_000)
    for actor in (("long", 0), ("w100", 0)):
        end(desk, "j", actor)
    assert desk.current("j").waits == {("long", 0), ("w100", 0)}
    desk.report("j", ("long", 0), ended=True)
    desk.report("j", ("w100", 0), *[("w100", n) for n in range(40, 100)], ended=True)
    rows = desk.rows("j")
    assert rows == [("w20", n) for n in range(20)] + [("w100", n) for n in range(100)]
    assert desk.manager.status("j").state == "finished"


def test_c15_a_finished_actor_that_comes_back_disturbs_nobody(desk: Desk) -> None:
    """Found by the simulation, seed 71: all that it had been connected to rolled back."""
    desk.job("j", {"s": 1, "w": 1}, [Edge("s", "w", "all")])
    desk.to(1_000)
    desk.report("j", ("s", 0), ended=True)
    desk.report("j", ("w", 0))
    desk.attach("j", ("s", 0))
    assert desk.of(Restart, "j") == []
    assert desk.of(Start, "j")[-1].finished
    assert desk.fail("j", ("s", 0)) == []


@pytest.mark.rule("5.27")
def test_c16_tolerable_failures(desk: Desk) -> None:
    """2 are tolerated: declines of barriers 1 and 2, 3 uncounted, 4 fails the job, once; the same id counts once."""
    desk.job("j", {"v": 3}, tolerable_failures=2)
    for second in (1, 2):
        desk.to(second * 1_000)
        desk.decline("j", A)
        desk.decline("j", A)
        desk.decline("j", B)
    desk.to(3_000)
    desk.do(desk.manager.finished("j", ("v", 2), desk.incarnations["j", ("v", 2)]))
    assert desk.manager.status("j").failures == 2
    assert desk.of(Failed, "j") == []
    desk.report("j", A, "a")
    desk.decline("j", B)
    assert len(desk.of(Failed, "j")) == 1
    assert [drop.segments for drop in desk.of(Drop, "j")] == [{"t": ("a",)}]
    desk.decline("j", B)
    desk.to(60_000)
    assert len(desk.of(Failed, "j")) == 1
    assert desk.manager.status("j").state == "failed"


@pytest.mark.rule("5.27")
def test_c16_a_success_between_resets(desk: Desk) -> None:
    desk.job("j", tolerable_failures=2)
    for second, fails in enumerate([True, True, False, True, True, False, True, True, True], start=1):
        assert desk.of(Failed, "j") == []
        desk.to(second * 1_000)
        desk.decline("j", A) if fails else desk.report("j", A)
    assert len(desk.of(Failed, "j")) == 1


@pytest.mark.rule("5.29")
def test_c17_the_last_commit_is_an_ordinary_one_and_the_end_may_come_twice(desk: Desk) -> None:
    """The end of input was reported, its commit did not land, and after the restore it comes again."""
    desk.job("j")
    desk.to(1_000)
    desk.answers = False
    desk.report("j", A, "a1", ended=True)
    number = desk.current("j").barrier_id
    desk.do(desk.manager.unknown("j", number))
    desk.do(desk.manager.recover("j", incarnation=2, finished=()))
    assert desk.of(Drop, "j") == []  # it might have landed: whoever claims finds out, not this manager
    assert desk.do(desk.manager.resolved("j", number, 5)) == []
    desk.answers = True
    desk.to(2_000)
    assert desk.current("j").barrier_id > number
    desk.report("j", A, "a1", ended=True)
    last = desk.of(CommitBarrier, "j")[-1]
    assert (last.final, last.barrier) == (True, desk.current("j").barrier)
    assert len(desk.of(Finished, "j")) == 1


@pytest.mark.rule("5.29")
def test_c17_a_job_restored_as_finished_is_never_started(desk: Desk) -> None:
    desk.job("j", {"v": 2}, finished=[A, B], forced=True)
    assert [start.finished for start in desk.of(Start, "j")] == [True, True]
    desk.do(desk.manager.inject("j"))
    desk.to(10_000)
    assert (desk.of(Inject, "j"), len(desk.of(Finished, "j"))) == ([], 1)


# ---- outcomes ----------------------------------------------------------------------------------------------------


@pytest.mark.rule("5.26")
def test_nothing_happens_before_an_unknown_outcome_is_resolved(desk: Desk) -> None:
    desk.job("j", {"v": 2}, timeout_ms=2_000)
    desk.to(1_000)
    desk.answers = desk.attaches = False
    desk.report("j", A, "a1")
    desk.report("j", B, "b1")
    number = desk.current("j").barrier_id
    assert desk.do(desk.manager.unknown("j", number)) == [Resolve("j", number)]
    assert desk.do(desk.manager.unknown("j", number)) == []
    desk.do(desk.manager.inject("j"))
    desk.fail("j", B)
    assert tuple(desk.of(Restart, "j")[-1].actors) == (B,)
    desk.attach("j", B)  # and must not start from a state that the commit may still replace
    desk.to(30_000)
    assert len(desk.of(Inject, "j")) == 1 and desk.of(Drop, "j") == [] and len(desk.of(Start, "j")) == 2
    desk.answers = True
    desk.do(desk.manager.resolved("j", number, None))
    assert [drop.segments for drop in desk.of(Drop, "j")] == [{"t": ("b1",)}]  # b1's incarnation has ended since
    assert desk.of(Start, "j")[-1].actor == B
    desk.to(31_000)
    desk.report("j", A, "a2")
    desk.report("j", B, "b1 again")
    assert desk.rows("j") == ["a1", "b1", "a1", "a2", "b1 again"]  # the first two did not land


@pytest.mark.rule("5.26")
def test_a_late_answer_settles_an_unknown_outcome_too(desk: Desk) -> None:
    desk.job("j")
    desk.to(1_000)
    desk.answers = False
    desk.report("j", A, "a1")
    number = desk.current("j").barrier_id
    desk.do(desk.manager.unknown("j", number))
    desk.do(desk.manager.committed("j", number, 5))
    assert desk.announced("j") == [number]
    assert desk.do(desk.manager.resolved("j", number, 5)) == []


def test_a_fenced_commit_fails_the_job_and_drops_nothing(desk: Desk) -> None:
    desk.job("j")
    desk.to(1_000)
    desk.answers = False
    desk.report("j", A, "a1")
    desk.do(desk.manager.refused("j", desk.current("j").barrier_id, Fenced("another took over")))
    assert len(desk.of(Failed, "j")) == 1 and desk.of(Drop, "j") == []


def test_segments_that_are_gone_roll_the_job_back(desk: Desk) -> None:
    """Carried over they would be refused for ever."""
    desk.job("j", {"v": 2})
    desk.to(1_000)
    desk.answers = False
    for actor in (A, B):
        desk.report("j", actor, "x")
    desk.do(desk.manager.refused("j", desk.current("j").barrier_id, SegmentUnknown("vacuumed")))
    assert tuple(desk.of(Restart, "j")[-1].actors) == (A, B)
    assert desk.manager.status("j").carried == 0
    assert desk.of(Drop, "j") == []


def test_a_finished_actor_stays_so_when_the_job_rolls_back(desk: Desk) -> None:
    """Found by the simulation, seed 22662: it came back while the commit was on its way, and was to be run again."""
    desk.job("j", {"v": 2})
    desk.to(1_000)
    desk.report("j", A, ended=True)
    desk.report("j", B)
    desk.to(2_000)
    desk.answers = False
    desk.report("j", B, "b1")
    desk.attach("j", A)
    desk.do(desk.manager.refused("j", desk.current("j").barrier_id, SegmentUnknown("vacuumed")))
    assert tuple(desk.of(Restart, "j")[-1].actors) == (B,)
    assert desk.manager.status("j").actors[A] == "FINISHED"
    assert [start.finished for start in desk.of(Start, "j") if start.actor == A] == [False, True]
