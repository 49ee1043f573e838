"""The simulation again on a core with a mutant: it must find each, and soon."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from epochlog.checkpoint.manager.attempt import Attempt
from epochlog.checkpoint.manager.commands import Inject
from epochlog.checkpoint.manager.job_state_machine import JobProtocol
from epochlog.checkpoint.manager.manager import CheckpointManager
from epochlog.checkpoint.manager.task_registry import TaskRegistry, TaskState
from epochlog.checkpoint.manager.unacked_reports import Outbox
from epochlog.errors import Fenced, SegmentUnknown
from simulator.runs import SeedFailed, check, check_apart
from simulator.shapes import KINDS, Violation
from simulator.world import World

pytestmark = [pytest.mark.local_only, pytest.mark.slow]

SEEDS = 200
FIRST_SEED = {
    "drops_what_is_at_the_catalog": 33,  # it takes an actor that dies while a commit is on its way
    "starts_while_a_commit_is_on_its_way": 33,
    "forced_checkpoint_forgotten": 82,  # it takes a load that has no other checkpoint after the abort
    "forced_by_what_was_decided_before": 122,  # it takes an ask while the very last barrier is in flight
}
Mutant = Callable[[pytest.MonkeyPatch], None]


def carry_over_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    abort = JobProtocol._abort

    def forgets(job: Any, *args: Any, **options: Any) -> Any:
        carried = list(job._carried)
        out = abort(job, *args, **options)
        job._carried = carried
        return out

    monkeypatch.setattr(JobProtocol, "_abort", forgets)


def timeout_drops_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    tick = JobProtocol.tick

    def drops(job: Any, now: int) -> Any:
        if job._attempt is not None and not job._attempt.at_catalog and now >= job._attempt.deadline_ms:
            job._attempt.reports.clear()
        return tick(job, now)

    monkeypatch.setattr(JobProtocol, "tick", drops)


def carried_again_after_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    committed = JobProtocol.committed

    def keeps(job: Any, *args: Any) -> Any:
        carried = list(job._carried)
        out = committed(job, *args)
        job._carried = carried
        return out

    monkeypatch.setattr(JobProtocol, "committed", keeps)


def stale_incarnation_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    def owes(attempt: Any, barrier_id: int, actor: Any, _: int) -> bool:
        asked = attempt.phase == "collecting" and attempt.barrier_id == barrier_id
        return asked and actor in attempt.waits and actor not in attempt.reports

    monkeypatch.setattr(Attempt, "owes", owes)


def stale_messages_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that say of an actor that it is lost, or has ended."""
    monkeypatch.setattr(TaskRegistry, "current", lambda registry, actor, _: registry.tasks.get(actor))


def late_reports_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the attempt in flight, whichever they were made for."""
    owes = Attempt.owes
    monkeypatch.setattr(
        Attempt, "owes", lambda attempt, _, actor, number: owes(attempt, attempt.barrier_id, actor, number)
    )


def duplicate_report_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    collect = JobProtocol.collect

    def counts(job: Any, now: int, report: Any) -> Any:
        attempt = job._attempt
        if attempt is not None and attempt.reports.get(report.actor) == report:
            job._carried.append(report)
        return collect(job, now, report)

    monkeypatch.setattr(JobProtocol, "collect", counts)


def commit_with_a_missing_report(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = Attempt.missing.fget
    assert missing is not None

    def all_but_one(attempt: Any) -> frozenset[Any]:
        return frozenset(sorted(missing(attempt))[1:]) if attempt.reports else missing(attempt)

    monkeypatch.setattr(Attempt, "missing", property(all_but_one))


def unknown_is_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(job: Any, barrier_id: int) -> Any:
        attempt = job._at_catalog(barrier_id)
        return [] if attempt is None else job._fail_attempt(attempt.since_ms, attempt, "unknown")

    monkeypatch.setattr(JobProtocol, "unknown", unknown)


def unknown_is_success(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JobProtocol, "unknown", lambda job, number: job.committed(job._not_before_ms, number, 1))


def drops_what_is_at_the_catalog(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        JobProtocol, "_discard_uncommitted", with_nothing_at_the_catalog(JobProtocol._discard_uncommitted)
    )
    monkeypatch.setattr(JobProtocol, "_drop_stale", with_nothing_at_the_catalog(JobProtocol._drop_stale))


def starts_while_a_commit_is_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JobProtocol, "_list_starts", with_nothing_at_the_catalog(JobProtocol._list_starts))


def with_nothing_at_the_catalog(method: Any) -> Any:
    def mutant(job: Any, *args: Any) -> Any:
        attempt: Any = job._attempt
        if attempt is None:
            return method(job, *args)
        phase = attempt.phase
        attempt.phase = "collecting" if attempt.at_catalog else phase
        out = method(job, *args)
        attempt.phase = phase
        return out

    return mutant


def refused_as_by_a_full_disk(error: type[Exception]) -> Mutant:
    """This refusal is taken for one that may pass."""
    refused = JobProtocol.refused

    def mutant(job: Any, now: int, number: int, given: BaseException) -> Any:
        return refused(job, now, number, OSError("full") if isinstance(given, error) else given)

    return lambda monkeypatch: monkeypatch.setattr(JobProtocol, "refused", mutant)


def a_fenced_one_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    refused_as_by_a_full_disk(Fenced)(monkeypatch)


def what_is_gone_is_carried_over(monkeypatch: pytest.MonkeyPatch) -> None:
    refused_as_by_a_full_disk(SegmentUnknown)(monkeypatch)


def an_answer_is_waited_for_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    tick = JobProtocol.tick

    def patient(job: Any, now: int) -> Any:
        deciding = job._attempt is not None and job._attempt.phase == "deciding"
        return [] if deciding else tick(job, now)

    monkeypatch.setattr(JobProtocol, "tick", patient)


def forced_checkpoint_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Served by the attempt, whatever becomes of it."""
    abort = JobProtocol._abort

    def served(job: Any, now: int, attempt: Any, *args: Any, **options: Any) -> Any:
        job._forced_served = attempt.serves
        return abort(job, now, attempt, *args, **options)

    monkeypatch.setattr(JobProtocol, "_abort", served)


def forced_by_what_was_decided_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit serves also those that were asked for after its barrier was decided."""
    committed = JobProtocol.committed

    def serves_all(job: Any, *args: Any) -> Any:
        if job._attempt is not None:
            job._attempt.serves = job._forced_requests
        return committed(job, *args)

    monkeypatch.setattr(JobProtocol, "committed", serves_all)


def failures_never_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    committed = JobProtocol.committed

    def keeps(job: Any, *args: Any) -> Any:
        failures = job._failures
        out = committed(job, *args)
        job._failures = failures
        return out

    monkeypatch.setattr(JobProtocol, "committed", keeps)


def failures_never_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = JobProtocol._count_failure

    def count_failure(job: Any, *args: Any) -> Any:
        job._failures = 0
        return counted(job, *args)

    monkeypatch.setattr(JobProtocol, "_count_failure", count_failure)


def ending_is_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    collect = JobProtocol.collect

    def hasty(job: Any, now: int, report: Any) -> Any:
        out = collect(job, now, report)
        task = job._registry.tasks[report.actor]
        if task.state is TaskState.ENDING:
            task.state = TaskState.FINISHED
        return out

    monkeypatch.setattr(JobProtocol, "collect", hasty)


def ended_means_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end was said after the report of the barrier that is committed now."""
    flag = TaskRegistry.mark_finished

    def all_ended(registry: Any, actors: Any) -> Any:
        return flag(registry, {*actors, *registry.in_state(TaskState.ENDING)})

    monkeypatch.setattr(TaskRegistry, "mark_finished", all_ended)


def finished_flags_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Attempt, "finished", property(lambda attempt: attempt.finished_before))


def two_barriers_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    advance = JobProtocol._advance

    def hasty(job: Any, now: int) -> Any:
        if job._attempt is not None and job._attempt.phase == "collecting":
            job._carried += job._attempt.reports.values()
            job._attempt = None
        return advance(job, now)

    monkeypatch.setattr(JobProtocol, "_advance", hasty)


def the_others_roll_back_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if all actors of a job were connected."""
    fence = TaskRegistry.fence
    monkeypatch.setattr(TaskRegistry, "fence", lambda registry, _: fence(registry, registry.tasks))


def segments_outlive_their_incarnation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JobProtocol, "_drop_stale", lambda job, reason: [])


def everything_dropped_in_a_rollback(monkeypatch: pytest.MonkeyPatch) -> None:
    roll_back = JobProtocol._roll_back

    def all_of_it(job: Any, *args: Any, **options: Any) -> Any:
        out = roll_back(job, *args, **options)
        job._carried = []
        return out

    monkeypatch.setattr(JobProtocol, "_roll_back", all_of_it)


def numbers_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TaskRegistry, "unique_number", lambda registry, count: count)


def timeouts_never(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JobProtocol, "tick", JobProtocol._advance)


def injected_without_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    decided = JobProtocol.decided

    def without_taken(job: Any, *args: Any, **options: Any) -> Any:
        decisions = decided(job, *args, **options)
        return [replace(d, taken=dict.fromkeys(d.taken, 0)) if isinstance(d, Inject) else d for d in decisions]

    monkeypatch.setattr(JobProtocol, "decided", without_taken)


def outbox_forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    report = Outbox.report
    monkeypatch.setattr(Outbox, "report", lambda box, number, taken, sealed: report(box, number, 1 << 60, sealed))


def one_stuck_job_holds_up_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with barriers of the whole graph."""
    tick = CheckpointManager.tick

    def whole(manager: Any) -> Any:
        jobs = manager._jobs.values()
        stuck = [job for job in jobs if job._attempt is not None and manager._newest_ms - job._attempt.since_ms > 500]
        if stuck:
            for name, due in manager._due.items():
                manager._due[name] = due + 100 if manager._jobs[name]._attempt is None else due
        return tick(manager)

    monkeypatch.setattr(CheckpointManager, "tick", whole)


MUTANTS: list[Mutant] = [
    carry_over_forgotten,
    timeout_drops_segments,
    carried_again_after_the_commit,
    stale_incarnation_accepted,
    stale_messages_accepted,
    late_reports_accepted,
    duplicate_report_counted_twice,
    commit_with_a_missing_report,
    unknown_is_failure,
    unknown_is_success,
    drops_what_is_at_the_catalog,
    starts_while_a_commit_is_on_its_way,
    a_fenced_one_goes_on,
    what_is_gone_is_carried_over,
    an_answer_is_waited_for_forever,
    forced_checkpoint_forgotten,
    forced_by_what_was_decided_before,
    failures_never_reset,
    failures_never_counted,
    ending_is_finished,
    ended_means_committed,
    finished_flags_forgotten,
    two_barriers_in_flight,
    the_others_roll_back_too,
    segments_outlive_their_incarnation,
    everything_dropped_in_a_rollback,
    numbers_begin_anew,
    timeouts_never,
    injected_without_taken,
    outbox_forgets,
    one_stuck_job_holds_up_all,
]


@pytest.mark.planted
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_mutants_are_found(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    first = FIRST_SEED.get(mutant.__name__, 0)
    for seed in range(first, first + SEEDS):
        try:
            check_apart(seed, World(seed).run())
        except Violation as violation:
            print(f"seed {seed}: {violation}")
            return
    raise AssertionError(f"{SEEDS} seeds do not find it")


@pytest.mark.planted
def test_a_failure_is_told_with_its_seed_and_what_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    duplicate_report_counted_twice(monkeypatch)
    with pytest.raises(SeedFailed) as error:
        check(1)
    message = str(error.value)
    assert re.match(r"seed 1: Violation: \w+: piece \d+ is committed twice", message)
    kinds = re.search(r"again: World\(1, kinds=(.*)\).run\(\)", message)
    assert kinds is not None and "'repeats'" in kinds[1] and kinds[1].count("'") < len(KINDS)
    assert 5 < message.count("\n  (") <= 40


@pytest.mark.planted
def test_a_disturbed_job_of_another_component_is_named_with_both(monkeypatch: pytest.MonkeyPatch) -> None:
    one_stuck_job_holds_up_all(monkeypatch)
    messages = []
    for seed in range(20):
        try:
            check_apart(seed, World(seed).run())
        except Violation as violation:
            messages.append(str(violation))
    assert any(re.match(r"\w+, of another component than \['.*'\], does .* with the faults", text) for text in messages)
