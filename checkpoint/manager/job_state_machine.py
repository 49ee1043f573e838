"""State machine of one job's checkpoints, from a trigger to a commit or an abort.

An attempt goes deciding -> collecting -> committing (-> resolving); a job has one at a time. A report counts once, and
only from the incarnation that the barrier was sent to. Segments of a failed attempt are carried over into the next
commit, until the incarnation that made them ends. A commit counts when its outcome is known, and no actor starts from
the catalog while a commit is in flight. Rules: docs/SEMANTICS.md, 5.22 to 5.29.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from epochlog.checkpoint.job.next_barrier import Barrier
from epochlog.errors import Fenced, SchemaChanged, SegmentUnknown

from .attempt import Attempt, merge_segments, next_multiple
from .commands import (
    Abort,
    Actor,
    Announce,
    CheckpointStatus,
    CommitBarrier,
    Decide,
    Decision,
    Drop,
    Failed,
    Finished,
    Inject,
    JobSettings,
    JobState,
    JobStopped,
    Report,
    Resolve,
    Restart,
)
from .task_registry import TaskRegistry, TaskState

RETRY_MS = 1_000
"""Longest time until a forced checkpoint is tried again after a failure, or after a Decide without a barrier."""
NEVER = 1 << 62


class JobProtocol:
    """State machine of one registered job. Each event returns decisions about this job, in order of execution."""

    def __init__(self, registry: TaskRegistry, settings: JobSettings, now: int) -> None:
        self.job = registry.job
        self.settings = settings
        self._registry = registry
        self._state: JobState = "running"
        self._attempt: Attempt | None = None
        self._attempts = 0
        self._carried: list[Report] = []
        self._forced_requests = self._forced_served = 0  # numbers of forced checkpoints
        self._draining = self._stopping = False
        self._due_ms = self._trigger_after(now)
        self._not_before_ms = now
        self._failures = self._commits = self._aborts = self._ignored = self._epoch = 0
        self._reason: str | None = None

    # ---- the life of the job -------------------------------------------------------------------------------------

    def begin(self) -> list[Decision]:
        """Begin the job from the catalog: one whose actors have all finished has finished."""
        return self._finish_if_over()

    def end(self) -> list[Decision]:
        """Drop the job's uncommitted work, because the job is unregistered."""
        return self._discard_uncommitted("the job is unregistered")

    def stop(self, now: int, drain: bool) -> list[Decision]:
        if self._state in ("finished", "stopped"):
            return []
        self._draining = drain
        if drain:
            return self._advance(now)
        self._stopping = self._attempt is not None and self._attempt.at_catalog
        return [] if self._stopping else self._stop_job()

    def force(self, now: int) -> list[Decision]:
        self._forced_requests += 1
        return self._advance(now)

    def tick(self, now: int) -> list[Decision]:
        attempt = self._attempt
        if attempt is not None and not attempt.at_catalog and now >= attempt.deadline_ms:
            missing = ", ".join(f"{vertex}[{index}]" for vertex, index in sorted(attempt.missing))
            problem = f"no report from {missing}" if missing else "the next barrier was not decided"
            return self._fail_attempt(now, attempt, f"{problem} for {self.settings.timeout_ms} ms")
        return self._advance(now)

    def next_due(self) -> int | None:
        attempt = self._attempt
        if attempt is not None:
            return None if attempt.at_catalog else attempt.deadline_ms
        if self._state != "running" or self._rejection_reason() is not None:
            return None
        if self._forced:
            return self._not_before_ms
        return None if self._due_ms == NEVER else max(self._due_ms, self._not_before_ms)

    # ---- actors --------------------------------------------------------------------------------------------------

    def attach(self, now: int, actor: Actor) -> tuple[int, list[Decision]]:
        self._registry.require(actor)
        decisions = self._roll_back(now, [actor], "another attached in its place", except_actor=actor)
        incarnation = self._registry.attach(actor)
        return incarnation, [*decisions, *self._list_starts(), *self._advance(now)]

    def collect(self, now: int, report: Report) -> list[Decision]:
        attempt = self._attempt
        if attempt is None or not attempt.owes(report.barrier_id, report.actor, report.incarnation):
            return self._ignore()
        task = self._registry.tasks[report.actor]
        attempt.reports[report.actor] = report
        task.taken = report.barrier_id
        if report.ended and task.state is TaskState.RUNNING:
            task.state = TaskState.ENDING
        return [] if attempt.missing else [self._commit(attempt)]

    def decline(self, now: int, barrier_id: int, actor: Actor, incarnation: int, reason: str) -> list[Decision]:
        attempt = self._attempt
        if attempt is None or not attempt.owes(barrier_id, actor, incarnation):
            return self._ignore()
        return self._fail_attempt(now, attempt, f"{actor[0]}[{actor[1]}] declined: {reason}")

    def reject(self, now: int, barrier_id: int, actor: Actor, incarnation: int, reason: str) -> list[Decision]:
        attempt = self._attempt
        if attempt is None or not attempt.owes(barrier_id, actor, incarnation):
            return self._ignore()  # a repeated report that was accepted the first time
        return self._roll_back(now, [actor], reason)

    def ended(self, now: int, actor: Actor, incarnation: int) -> list[Decision]:
        task = self._registry.current(actor, incarnation)
        if task is None or task.state is not TaskState.RUNNING:
            return self._ignore()
        task.state = TaskState.ENDING
        return self.force(now) if self.settings.interval_ms is None else []

    def fail(self, now: int, actor: Actor, incarnation: int, reason: str) -> list[Decision]:
        task = self._registry.current(actor, incarnation)
        if task is None or task.state is TaskState.FINISHED:
            return self._ignore()
        return self._roll_back(now, [actor], reason)

    # ---- answers -------------------------------------------------------------------------------------------------

    def decided(
        self,
        now: int,
        barrier_id: int,
        barrier: Barrier | None,
        settled: bool,
        last: bool,
        *,
        renewed: bool = False,
    ) -> list[Decision]:
        attempt = self._attempt
        if attempt is None or attempt.barrier_id != barrier_id or attempt.phase != "deciding":
            return self._ignore()
        if barrier is None:
            self._attempt = None
            self._forced_served = attempt.serves if settled else self._forced_served
            self._not_before_ms = next_multiple(now, self._retry_ms)
            return []
        dropped = self._drop_carried("their barrier was replaced") if renewed else []
        attempt.drain = attempt.drain and last
        self._reason = self._rejection_reason()
        if self._reason is not None:
            self._attempt = None
            self._restore_trigger(now)
            return dropped
        tasks, attempt.finished_before = self._registry.tasks, self._registry.in_state(TaskState.FINISHED)
        attempt.phase, attempt.barrier, attempt.deadline_ms = "collecting", barrier, now + self.settings.timeout_ms
        attempt.waits = {actor: tasks[actor].incarnation for actor in sorted(tasks.keys() - attempt.finished_before)}
        taken = {actor: tasks[actor].taken for actor in attempt.waits}
        return [*dropped, Inject(self.job, barrier_id, barrier, attempt.waits, taken, attempt.drain)]

    def committed(self, now: int, barrier_id: int, epoch: int) -> list[Decision]:
        attempt = self._at_catalog(barrier_id)
        if attempt is None:
            return self._ignore()
        self._attempt, self._carried, self._failures, self._reason = None, [], 0, None
        self._commits, self._epoch, self._forced_served = self._commits + 1, epoch, attempt.serves
        self._not_before_ms = now + self.settings.min_pause_ms
        if attempt.drain:  # an actor may not have ended its data: drain again later
            self._not_before_ms = max(self._not_before_ms, next_multiple(now, self._retry_ms))
        newly_finished = self._registry.mark_finished(attempt.finished)
        live_waits = self._registry.live_incarnations(attempt.waits)
        decisions: list[Decision] = []
        if live_waits:
            decisions.append(Announce(self.job, barrier_id, epoch, live_waits, newly_finished & live_waits.keys()))
        decisions += self._finish_if_over()
        if self._stopping:
            return [*decisions, *self._stop_job()]
        return [*decisions, *self._list_starts(), *self._advance(now)]

    def refused(self, now: int, barrier_id: int, error: BaseException) -> list[Decision]:
        attempt = self._at_catalog(barrier_id)
        if attempt is None:
            return self._ignore()
        reason = f"the commit was refused: {type(error).__name__}: {error}"
        if isinstance(error, Fenced):
            return self._fail_job(reason)
        if isinstance(error, SegmentUnknown | SchemaChanged):
            decisions = self._abort(now, attempt, reason)
            self._carried = []  # without a Drop: another commit may own some of these segments
            decisions += self._roll_back(now, self._registry.tasks, reason)
            return [*decisions, *self._count_failure(now, reason)]
        return self._fail_attempt(now, attempt, reason)

    def overtaken(self, now: int, barrier_id: int) -> list[Decision]:
        attempt = self._attempt
        if attempt is None or attempt.barrier_id != barrier_id or attempt.phase not in ("collecting", "committing"):
            return self._ignore()
        decisions = self._abort(now, attempt, "another barrier takes the place of this one", due_at_once=True)
        if self._stopping:
            return [*decisions, *self._stop_job()]
        return [*decisions, *self._drop_stale("its actor has ended"), *self._list_starts(), *self._advance(now)]

    def unknown(self, barrier_id: int) -> list[Decision]:
        attempt = self._at_catalog(barrier_id)
        if attempt is None or attempt.phase == "resolving":
            return self._ignore()
        attempt.phase = "resolving"
        return [Resolve(self.job, barrier_id)]

    def resolved(self, now: int, barrier_id: int, epoch: int | None) -> list[Decision]:
        attempt = self._at_catalog(barrier_id)
        if attempt is None or attempt.phase != "resolving":
            return self._ignore()
        if epoch is not None:
            return self.committed(now, barrier_id, epoch)
        return self._fail_attempt(now, attempt, "the commit did not land")

    # ---- attempts ------------------------------------------------------------------------------------------------

    def _advance(self, now: int) -> list[Decision]:
        """Start a new attempt, if one is due and possible."""
        if self._state != "running" or self._attempt is not None or now < self._not_before_ms:
            return []
        if not self._forced and now < self._due_ms:
            return []
        rejection_reason = self._rejection_reason()
        if rejection_reason is not None:
            self._reason = rejection_reason
            return []
        self._attempts += 1
        deadline_ms = now + self.settings.timeout_ms
        self._attempt = Attempt(
            self._registry.unique_number(self._attempts), now, self._forced_requests, self._draining, deadline_ms
        )
        self._due_ms = self._trigger_after(now)
        return [Decide(self.job, self._attempt.barrier_id, self._draining)]

    def _commit(self, attempt: Attempt) -> CommitBarrier:
        """Commit the attempt: the carried-over segments, then those of its reports."""
        assert attempt.barrier is not None and not attempt.missing
        attempt.phase = "committing"
        reports = [*self._carried, *attempt.reports.values()]
        return CommitBarrier(
            self.job,
            self._registry.incarnation,
            attempt.barrier_id,
            attempt.barrier,
            merge_segments(reports),
            {report.actor: report.state for report in reports},
            attempt.finished,
            final=len(attempt.finished) == len(self._registry.tasks),
        )

    def _abort(self, now: int, attempt: Attempt, reason: str, *, due_at_once: bool = False) -> list[Decision]:
        """Abort the attempt and carry its reports over. due_at_once: the next attempt is due at once."""
        self._attempt = None
        self._aborts += 1
        self._not_before_ms = now + self.settings.min_pause_ms
        if due_at_once:
            self._restore_trigger(now)
        self._carried += [report for report in attempt.reports.values() if any(report.segments.values())]
        return [Abort(self.job, attempt.barrier_id, reason, self._registry.live_incarnations(attempt.waits))]

    def _fail_attempt(self, now: int, attempt: Attempt, reason: str) -> list[Decision]:
        """Abort the attempt and count a failure."""
        return [*self._abort(now, attempt, reason), *self._drop_stale(reason), *self._count_failure(now, reason)]

    def _count_failure(self, now: int, reason: str) -> list[Decision]:
        """Count a failure in a row; fail the job past the limit, else start the actors that waited for the outcome."""
        self._failures += 1
        self._reason = reason
        if self._stopping:
            return self._stop_job()
        tolerable = self.settings.tolerable_failures
        if tolerable is not None and self._failures > tolerable:
            return self._fail_job(f"{self._failures} checkpoints in a row failed; the last: {reason}")
        self._not_before_ms = max(self._not_before_ms, next_multiple(now, self._retry_ms))
        return [*self._list_starts(), *self._advance(now)]

    def _restore_trigger(self, now: int) -> None:
        """Make the attempt's trigger due again, because no checkpoint has used it."""
        self._due_ms = NEVER if self._due_ms == NEVER else min(self._due_ms, now)

    # ---- rolling back and ending ---------------------------------------------------------------------------------

    def _roll_back(
        self, now: int, lost: Iterable[Actor], reason: str, *, except_actor: Actor | None = None
    ) -> list[Decision]:
        """Fence those of these actors that are attached and have not finished; send no Restart to `except_actor`.

        Abort an attempt that waits for one of them, without counting a failure. Keep an attempt at the catalog: it has
        all its reports.
        """
        ended = self._registry.fence(lost)
        decisions: list[Decision] = []
        attempt = self._attempt
        if attempt is not None and attempt.phase == "collecting" and not attempt.waits.keys().isdisjoint(ended):
            decisions += self._abort(now, attempt, reason, due_at_once=True)
        decisions += self._drop_stale(reason)
        actors = {actor: number for actor, number in ended.items() if actor != except_actor}
        return [*decisions, Restart(self.job, actors, reason)] if actors else decisions

    def _list_starts(self) -> Sequence[Decision]:
        """List a Start for each attached actor that may start; none while a commit is in flight."""
        waiting = self._attempt is not None and self._attempt.at_catalog
        return [] if waiting or self._state in ("failed", "stopped") else self._registry.list_starts()

    def _drop_stale(self, reason: str) -> list[Decision]:
        """Drop the carried segments whose incarnation has ended, unless an attempt at the catalog commits them."""
        if self._attempt is not None and self._attempt.at_catalog:
            return []
        live: list[Report] = []
        stale: list[Report] = []
        for report in self._carried:
            (live if self._registry.current(report.actor, report.incarnation) else stale).append(report)
        self._carried = live
        return [Drop(self.job, merge_segments(stale), reason)] if stale else []

    def _drop_carried(self, reason: str) -> list[Decision]:
        """Drop the carried segments."""
        segments, self._carried = merge_segments(self._carried), []
        return [Drop(self.job, segments, reason)] if segments else []

    def _discard_uncommitted(self, reason: str) -> list[Decision]:
        """End the attempt and drop its and all carried segments. Keep them if the attempt is at the catalog.

        A commit at the catalog may land, or have landed.
        """
        attempt, self._attempt = self._attempt, None
        reports, self._carried = self._carried, []
        if attempt is not None:
            self._aborts += 1
            reports = [] if attempt.at_catalog else [*reports, *attempt.reports.values()]
        segments = merge_segments(reports)
        return [Drop(self.job, segments, reason)] if segments else []

    def _fail_job(self, reason: str) -> list[Decision]:
        decisions = self._discard_uncommitted(reason)
        self._close("failed", TaskState.FAILED, reason)
        return [*decisions, Failed(self.job, reason)]

    def _stop_job(self) -> list[Decision]:
        if self._state == "finished":
            return []
        reason = "the job was stopped"
        decisions = self._discard_uncommitted(reason)
        self._close("stopped", TaskState.CANCELED, reason)
        return [*decisions, JobStopped(self.job)]

    def _close(self, state: JobState, tasks: TaskState, reason: str) -> None:
        self._state, self._reason, self._stopping = state, reason, False
        self._registry.close(tasks)

    def _finish_if_over(self) -> list[Decision]:
        if not self._registry.all_finished:
            return []
        self._state, self._draining = "finished", False
        return [*self._list_starts(), Finished(self.job)]

    # ---- predicates and status -----------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Return True if a forced checkpoint could begin: the job runs, and none is in flight or waits."""
        free = self._state == "running" and self._attempt is None and not self._forced
        return free and self._rejection_reason() is None

    def _rejection_reason(self) -> str | None:
        return self._registry.rejection_reason(allow_finished=self.settings.allow_finished)

    @property
    def _forced(self) -> bool:
        return self._forced_requests > self._forced_served or self._draining

    @property
    def _retry_ms(self) -> int:
        return min(self.settings.interval_ms or RETRY_MS, RETRY_MS)

    def _trigger_after(self, now: int) -> int:
        """Return the next periodic trigger past `now`."""
        return NEVER if self.settings.interval_ms is None else next_multiple(now, self.settings.interval_ms)

    def _at_catalog(self, barrier_id: int) -> Attempt | None:
        attempt = self._attempt
        return attempt if attempt is not None and attempt.at_catalog and attempt.barrier_id == barrier_id else None

    def _ignore(self) -> list[Decision]:
        self._ignored += 1
        return []

    def status(self) -> CheckpointStatus:
        attempt, registry = self._attempt, self._registry
        absent = registry.in_state(TaskState.INITIALIZING, TaskState.FAILED, TaskState.CANCELED)
        return CheckpointStatus(
            job=self.job,
            state=self._state,
            phase="idle" if attempt is None else attempt.phase,
            incarnation=registry.incarnation,
            actors={actor: task.state.name for actor, task in registry.tasks.items()},
            waiting_for=absent if attempt is None else attempt.missing,
            barrier_id=attempt and attempt.barrier_id,
            barrier=attempt and attempt.barrier,
            since_ms=attempt and attempt.since_ms,
            carried=sum(len(segments) for report in self._carried for segments in report.segments.values()),
            forced=self._forced_requests > self._forced_served,
            draining=self._draining,
            failures=self._failures,
            commits=self._commits,
            aborts=self._aborts,
            ignored=self._ignored,
            epoch=self._epoch,
            reason=self._reason,
        )
