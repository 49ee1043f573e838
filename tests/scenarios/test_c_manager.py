"""Checkpoints after tasks finished, at the checkpoint manager: scenarios by their numbers, on virtual time."""

from __future__ import annotations

import pytest

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
from manager_driver import ManagerDriver

pytestmark = pytest.mark.local_only

A, B = ("v", 0), ("v", 1)


@pytest.fixture
def driver() -> ManagerDriver:
    return ManagerDriver()


def end(driver: ManagerDriver, job: str, actor: tuple[str, int]) -> None:
    driver.do(driver.manager.ended(job, actor, driver.incarnations[job, actor]))


def test_c6_nothing_is_pending_while_a_task_does_not_run(driver: ManagerDriver) -> None:
    driver.job("j", {"v": 2})
    driver.attaches = False
    driver.fail("j", A)
    before = len(driver.of(Inject, "j"))
    driver.to(10_000)
    status = driver.manager.status("j")
    assert (len(driver.of(Inject, "j")), status.barrier_id, status.failures) == (before, None, 0)
    driver.attach("j", A)
    driver.to(12_000)
    assert driver.current("j").targets.keys() == {A, B} and len(driver.of(Inject, "j")) > before


def test_c6_nothing_is_pending_while_finished_tasks_are_not_allowed(driver: ManagerDriver) -> None:
    driver.job("j", {"v": 2}, finished=[A], allow_finished=False)
    driver.job("k", {"v": 2}, finished=[A])
    driver.to(10_000)
    driver.do(driver.manager.inject("j"))
    assert not driver.of(Inject, "j") and driver.manager.status("j").barrier_id is None
    assert driver.manager.status("j").reason == "v[0] has finished, and allow_finished is False"
    assert driver.current("k").targets.keys() == {B}


@pytest.mark.rule("5.23")
def test_c1_all_actors_are_asked_and_all_report(driver: ManagerDriver) -> None:
    """Of several vertices; a finished one takes no part (C4), and one that is ending does (C8)."""
    actors = driver.job("j", {"a": 3, "b": 4}, finished=[("a", 1)])
    asked = {actor: driver.incarnations["j", actor] for actor in actors if actor != ("a", 1)}
    end(driver, "j", ("a", 0))
    driver.to(1_000)
    inject = driver.current("j")
    assert inject.targets == asked and inject.taken == dict.fromkeys(asked, 0)
    for actor in asked:
        assert driver.of(CommitBarrier, "j") == []
        driver.report("j", actor, actor)
    assert driver.rows("j") == list(asked)
    assert driver.of(CommitBarrier, "j")[0].finished == {("a", 1)}


def test_c6_the_reason_names_three_actors_and_counts_the_others(driver: ManagerDriver) -> None:
    driver.do(driver.manager.register("j", {"v": 1_005}, incarnation=1))
    assert driver.do(driver.manager.inject("j")) == []
    reason = driver.manager.status("j").reason
    assert reason == "v[0], v[1], v[2] and 1,002 more does not run yet: a checkpoint needs every actor"


@pytest.mark.rule("5.24")
def test_c10_a_report_again_and_a_decline(driver: ManagerDriver) -> None:
    """Aborted once; later declines change nothing; the next barrier has what was reported."""
    driver.job("j", {"v": 2})
    driver.to(1_000)
    first = driver.current("j").barrier_id
    driver.report("j", A, "a1")
    driver.report("j", A, "a1")
    driver.decline("j", B)
    assert driver.decline("j", B) == driver.decline("j", A, first) == []
    assert [abort.barrier_id for abort in driver.of(Abort, "j")] == [first]
    assert driver.manager.status("j").failures == 1
    driver.to(2_000)
    assert driver.decline("j", B, first) == []
    driver.report("j", A, "a2")
    driver.report("j", B, "b1")
    assert driver.rows("j") == ["a1", "a2", "b1"]


def test_c11_one_report_then_the_timeout(driver: ManagerDriver) -> None:
    """No completion is ever announced for that barrier; its late report changes nothing; no row is lost."""
    driver.job("j", {"v": 2}, timeout_ms=5_000)
    driver.to(1_000)
    first = driver.current("j").barrier_id
    driver.report("j", A, "a1")
    driver.to(6_000)
    assert driver.report("j", B, "b1", barrier_id=first) == []
    driver.to(7_000)
    second = driver.current("j")
    assert second.taken == {A: first, B: 0}
    driver.report("j", A)
    driver.report("j", B, "b1")  # not taken, so it is named again
    assert driver.rows("j") == ["a1", "b1"]
    assert driver.announced("j") == [second.barrier_id]


@pytest.mark.rule("5.29")
@pytest.mark.parametrize("ended_by", ["report", "event"])
def test_c12_the_final_commit_is_any_at_or_after_the_end(driver: ManagerDriver, ended_by: str) -> None:
    """Three barriers after the end; only the third completes: the task ends on the third."""
    driver.job("j", {"v": 2})
    driver.to(1_000)
    for actor in (A, B):
        driver.report("j", actor, "before")
    if ended_by == "event":
        end(driver, "j", A)
    for second in (2, 3):
        driver.to(second * 1_000)
        driver.report("j", A, f"last {second}", ended=True)
        assert driver.manager.status("j").actors[A] == "ENDING"
        driver.decline("j", B)
    assert driver.manager.status("j").actors[A] == "ENDING"
    driver.to(4_000)
    assert A in driver.current("j").targets
    driver.report("j", A, ended=True)
    driver.report("j", B)
    assert driver.manager.status("j").actors[A] == "FINISHED"
    assert [announce.finished for announce in driver.of(Announce, "j")] == [frozenset(), {A}]
    assert driver.rows("j") == ["before", "before", "last 2", "last 3"]
    driver.to(5_000)
    assert driver.current("j").targets.keys() == {B}
    driver.report("j", B, ended=True)
    assert [commit.final for commit in driver.of(CommitBarrier, "j")] == [False, False, True]
    assert len(driver.of(Finished, "j")) == 1
    assert driver.manager.next_due() is None


@pytest.mark.rule("5.29")
def test_c12_an_end_that_was_not_reported_yet_is_not_taken_as_committed(driver: ManagerDriver) -> None:
    """The data ended after this barrier's report: the commit of that barrier does not finish the task."""
    driver.job("j")
    driver.to(1_000)
    driver.answers = False
    driver.report("j", A, "a1")
    end(driver, "j", A)
    driver.do(driver.manager.committed("j", driver.current("j").barrier_id, 7))
    assert driver.manager.status("j").actors[A] == "ENDING"


@pytest.mark.parametrize("in_flight", ["collecting", "committing"])
def test_c13_stop_with_drain_while_the_final_commit_is_pending_ends_with_it(
    driver: ManagerDriver, in_flight: str
) -> None:
    driver.job("j", {"v": 2})
    driver.to(1_000)
    driver.report("j", A, "a1", ended=True)
    driver.answers = False
    if in_flight == "committing":
        driver.report("j", B, "b1", ended=True)
    driver.do(driver.manager.stop("j", drain=True))
    if in_flight == "collecting":
        driver.report("j", B, "b1", ended=True)
    driver.do(driver.manager.committed("j", driver.current("j").barrier_id, 9))
    assert len(driver.of(Inject, "j")) == len(driver.of(Finished, "j")) == 1
    assert driver.of(CommitBarrier, "j")[0].final


def test_c13_stop_with_drain_asks_the_actors_to_end(driver: ManagerDriver) -> None:
    driver.job("j", {"v": 2}, interval_ms=None)
    driver.do(driver.manager.stop("j", drain=True))
    assert driver.current("j").drain
    driver.report("j", A, ended=True)
    driver.decline("j", B)
    assert driver.manager.status("j").state == "running"
    driver.to(1_000)
    assert driver.current("j").drain
    driver.report("j", A, ended=True)
    driver.report("j", B, "b1", ended=True)
    assert driver.manager.status("j").state == "finished"
    assert driver.rows("j") == ["b1"]


def test_c13_barriers_short_of_the_end_do_not_end_the_data(driver: ManagerDriver) -> None:
    """The next stop of a job that is drained may lie below the end: what is past it is still its input."""
    driver.answers = False
    actors = driver.job("j", {"a": 1})
    driver.do(driver.manager.stop("j", drain=True))
    first = driver.of(Decide, "j")[-1]
    driver.do(driver.manager.decided("j", first.barrier_id, driver.barrier("j"), last=False))
    assert first.drain and not driver.current("j").drain
    driver.report("j", actors[0])
    driver.do(driver.manager.committed("j", first.barrier_id, 1))
    second = driver.of(Decide, "j")[-1]
    assert second.drain and second.barrier_id > first.barrier_id
    driver.do(driver.manager.decided("j", second.barrier_id, driver.barrier("j"), last=True))
    assert driver.current("j").drain


@pytest.mark.parametrize("state", ["failed", "stopped"])
def test_c13_a_job_that_does_not_run_drains_once_it_is_registered_again(driver: ManagerDriver, state: str) -> None:
    """A drain of the job that has ended does nothing, and nothing of it is left at the new registration."""
    driver.job("j", tolerable_failures=0)
    driver.to(1_000)
    if state == "failed":
        driver.decline("j", A)
    else:
        driver.do(driver.manager.stop("j", drain=False))
    assert driver.manager.status("j").state == state
    assert driver.do(driver.manager.stop("j", drain=True)) == []
    driver.again("j")
    assert not driver.manager.status("j").draining
    driver.do(driver.manager.stop("j", drain=True))
    assert driver.current("j").drain
    driver.report("j", A, ended=True)
    assert driver.manager.status("j").state == "finished"


def test_c13_stop_without_drain_writes_no_end(driver: ManagerDriver) -> None:
    driver.job("j", {"v": 2})
    driver.to(1_000)
    driver.report("j", A, "a1", ended=True)
    driver.do(driver.manager.stop("j", drain=False))
    assert driver.report("j", B, "b1", ended=True) == []
    assert [drop.segments for drop in driver.of(Drop, "j")] == [{"t": ("a1",)}]
    assert (len(driver.of(JobStopped, "j")), driver.of(CommitBarrier, "j"), driver.of(Finished, "j")) == (1, [], [])
    driver.to(60_000)
    assert len(driver.of(Inject, "j")) == 1


@pytest.mark.parametrize("outcome", ["lands", "is refused", "unknown and lands", "unknown and does not"])
def test_c13_stop_without_drain_waits_for_what_is_at_the_catalog(driver: ManagerDriver, outcome: str) -> None:
    driver.job("j")
    driver.to(1_000)
    driver.answers = False
    driver.report("j", A, "a1")
    assert driver.do(driver.manager.stop("j", drain=False)) == []
    number = driver.current("j").barrier_id
    if outcome.startswith("unknown"):
        driver.do(driver.manager.unknown("j", number))
        driver.do(driver.manager.resolved("j", number, 5 if outcome.endswith("lands") else None))
    elif outcome == "lands":
        driver.do(driver.manager.committed("j", number, 5))
    else:
        driver.do(driver.manager.refused("j", number, UpstreamIncomplete("not yet")))
    landed = outcome.endswith("lands")
    assert len(driver.of(JobStopped, "j")) == 1
    assert (len(driver.of(Announce, "j")), len(driver.of(Drop, "j"))) == ((1, 0) if landed else (0, 1))


@pytest.mark.parametrize("stopped", [False, True])
def test_c15_actors_of_20_and_100_rows_without_periodic_checkpoints(driver: ManagerDriver, stopped: bool) -> None:
    """Ends with exactly 20 and 100; also when stopped after the first has finished, and restored."""
    driver.job("j", {"v": 2}, interval_ms=None)
    end(driver, "j", A)
    (inject,) = driver.of(Inject, "j")
    assert inject.targets.keys() == {A, B}
    driver.report("j", A, *[("a", n) for n in range(20)], ended=True)
    driver.report("j", B, *[("b", n) for n in range(40)], state=b"40")
    commit = driver.of(CommitBarrier, "j")[-1]
    assert commit.finished == {A} and commit.states[B] == b"40"
    if stopped:
        driver.do(driver.manager.stop("j", drain=False))
        driver.again("j", {"v": 2}, interval_ms=None, finished=commit.finished)
        assert {start.actor: start.finished for start in driver.of(Start, "j")[-2:]} == {A: True, B: False}
    driver.to(3_000)
    end(driver, "j", B)
    assert driver.current("j").targets.keys() == {B}
    driver.report("j", B, *[("b", n) for n in range(40, 100)], ended=True)
    assert driver.rows("j") == [("a", n) for n in range(20)] + [("b", n) for n in range(100)]
    assert driver.manager.status("j").state == "finished"


def test_c15_a_finished_actor_that_comes_back_disturbs_nobody(driver: ManagerDriver) -> None:
    """Found by the simulation, seed 71: the others rolled back."""
    driver.job("j", {"v": 2})
    driver.to(1_000)
    driver.report("j", A, ended=True)
    driver.report("j", B)
    driver.attach("j", A)
    assert driver.of(Restart, "j") == []
    assert driver.of(Start, "j")[-1].finished
    assert driver.fail("j", A) == []


@pytest.mark.rule("5.27")
def test_c16_tolerable_failures(driver: ManagerDriver) -> None:
    """2 are tolerated: declines of barriers 1 and 2, a loss is uncounted, 4 fails the job, once; an id counts once."""
    driver.job("j", {"v": 3}, tolerable_failures=2)
    for second in (1, 2):
        driver.to(second * 1_000)
        driver.decline("j", A)
        driver.decline("j", A)
        driver.decline("j", B)
    driver.to(3_000)
    driver.fail("j", ("v", 2))
    assert driver.manager.status("j").failures == 2
    assert driver.of(Failed, "j") == []
    driver.report("j", A, "a")
    driver.decline("j", B)
    assert len(driver.of(Failed, "j")) == 1
    assert [drop.segments for drop in driver.of(Drop, "j")] == [{"t": ("a",)}]
    driver.decline("j", B)
    driver.to(60_000)
    assert len(driver.of(Failed, "j")) == 1
    assert driver.manager.status("j").state == "failed"


@pytest.mark.rule("5.27")
def test_c16_a_success_between_resets(driver: ManagerDriver) -> None:
    driver.job("j", tolerable_failures=2)
    for second, fails in enumerate([True, True, False, True, True, False, True, True, True], start=1):
        assert driver.of(Failed, "j") == []
        driver.to(second * 1_000)
        driver.decline("j", A) if fails else driver.report("j", A)
    assert len(driver.of(Failed, "j")) == 1


@pytest.mark.rule("5.29")
def test_c17_the_last_commit_is_an_ordinary_one_and_the_end_may_come_twice(driver: ManagerDriver) -> None:
    """The end of input was reported, its commit did not land, and after the restore it comes again."""
    driver.job("j")
    driver.to(1_000)
    driver.answers = False
    driver.report("j", A, "a1", ended=True)
    number = driver.current("j").barrier_id
    driver.do(driver.manager.unknown("j", number))
    driver.again("j")
    assert driver.of(Drop, "j") == []  # it might have landed: whoever claims finds out, not this manager
    assert driver.do(driver.manager.resolved("j", number, 5)) == []
    driver.answers = True
    driver.to(2_000)
    assert driver.current("j").barrier_id > number
    driver.report("j", A, "a1", ended=True)
    last = driver.of(CommitBarrier, "j")[-1]
    assert (last.final, last.barrier) == (True, driver.current("j").barrier)
    assert len(driver.of(Finished, "j")) == 1


@pytest.mark.rule("5.29")
def test_c17_a_job_restored_as_finished_is_never_started(driver: ManagerDriver) -> None:
    driver.job("j", {"v": 2}, finished=[A, B])
    assert [start.finished for start in driver.of(Start, "j")] == [True, True]
    driver.do(driver.manager.inject("j"))
    driver.to(10_000)
    assert (driver.of(Inject, "j"), len(driver.of(Finished, "j"))) == ([], 1)


# ---- outcomes ----------------------------------------------------------------------------------------------------


@pytest.mark.rule("5.26")
def test_nothing_happens_before_an_unknown_outcome_is_resolved(driver: ManagerDriver) -> None:
    driver.job("j", {"v": 2}, timeout_ms=2_000)
    driver.to(1_000)
    driver.answers = driver.attaches = False
    driver.report("j", A, "a1")
    driver.report("j", B, "b1")
    number = driver.current("j").barrier_id
    assert driver.do(driver.manager.unknown("j", number)) == [Resolve("j", number)]
    assert driver.do(driver.manager.unknown("j", number)) == []
    driver.do(driver.manager.inject("j"))
    driver.fail("j", B)
    assert tuple(driver.of(Restart, "j")[-1].actors) == (B,)
    driver.attach("j", B)  # and must not start from a state that the commit may still replace
    driver.to(30_000)
    assert len(driver.of(Inject, "j")) == 1 and driver.of(Drop, "j") == [] and len(driver.of(Start, "j")) == 2
    driver.answers = True
    driver.do(driver.manager.resolved("j", number, None))
    assert [drop.segments for drop in driver.of(Drop, "j")] == [{"t": ("b1",)}]  # b1's incarnation has ended since
    assert driver.of(Start, "j")[-1].actor == B
    driver.to(31_000)
    driver.report("j", A, "a2")
    driver.report("j", B, "b1 again")
    assert driver.rows("j") == ["a1", "b1", "a1", "a2", "b1 again"]  # the first two did not land


@pytest.mark.rule("5.26")
def test_a_late_answer_settles_an_unknown_outcome_too(driver: ManagerDriver) -> None:
    driver.job("j")
    driver.to(1_000)
    driver.answers = False
    driver.report("j", A, "a1")
    number = driver.current("j").barrier_id
    driver.do(driver.manager.unknown("j", number))
    driver.do(driver.manager.committed("j", number, 5))
    assert driver.announced("j") == [number]
    assert driver.do(driver.manager.resolved("j", number, 5)) == []


def test_a_fenced_commit_fails_the_job_and_drops_nothing(driver: ManagerDriver) -> None:
    driver.job("j")
    driver.to(1_000)
    driver.answers = False
    driver.report("j", A, "a1")
    driver.do(driver.manager.refused("j", driver.current("j").barrier_id, Fenced("another took over")))
    assert len(driver.of(Failed, "j")) == 1 and driver.of(Drop, "j") == []


def test_segments_that_are_gone_roll_the_job_back(driver: ManagerDriver) -> None:
    """Carried over they would be refused for ever."""
    driver.job("j", {"v": 2})
    driver.to(1_000)
    driver.answers = False
    for actor in (A, B):
        driver.report("j", actor, "x")
    driver.do(driver.manager.refused("j", driver.current("j").barrier_id, SegmentUnknown("vacuumed")))
    assert tuple(driver.of(Restart, "j")[-1].actors) == (A, B)
    assert driver.manager.status("j").carried == 0
    assert driver.of(Drop, "j") == []


def test_a_finished_actor_stays_so_when_the_job_rolls_back(driver: ManagerDriver) -> None:
    """Found by the simulation, seed 22662: it came back while the commit was on its way, and was to be run again."""
    driver.job("j", {"v": 2})
    driver.to(1_000)
    driver.report("j", A, ended=True)
    driver.report("j", B)
    driver.to(2_000)
    driver.answers = False
    driver.report("j", B, "b1")
    driver.attach("j", A)
    driver.do(driver.manager.refused("j", driver.current("j").barrier_id, SegmentUnknown("vacuumed")))
    assert tuple(driver.of(Restart, "j")[-1].actors) == (B,)
    assert driver.manager.status("j").actors[A] == "FINISHED"
    assert [start.finished for start in driver.of(Start, "j") if start.actor == A] == [False, True]
