"""One job's checkpoints, from a trigger to a commit or an abort.

An attempt goes deciding -> collecting -> committing (-> resolving); there is one at a time. What is known for sure
rules: a report counts once and for the incarnation that was asked; segments of an attempt that failed are carried over
into the next commit, until the incarnation that made them ends; a commit is believed when its outcome is known, and
nobody starts from the catalog while it might still change. Rules: docs/SEMANTICS.md, 5.22 to 5.29.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from epochlog.checkpoint.job.barrier import Barrier
from epochlog.errors import Fenced, SegmentUnknown

from .attempt import Attempt, joined, next_multiple
from .checkpoint_plan import Edge, TaskState
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
from .task_registry import TaskRegistry

RETRY_MS = 1_000
"""A forced checkpoint waits so long after a failure or after "nothing yet", where the interval is not shorter."""
NEVER = 1 << 62


class JobProtocol:
    """One registered job. Each event returns decisions about this job, in the order in which they are to be done."""

    def __init__(
        self, job: str, vertices: Mapping[str, int], edges: Sequence[Edge], settings: JobSettings, now: int
    ) -> None:
        self.job = job
        self.settings = settings
        self._roster = TaskRegistry(job, vertices, edges, allow_finished=settings.allow_finished)
        self._state: JobState = "running"
        self._attempt: Attempt | None = None
        self._attempts = 0  # in this incarnation
        self._carried: list[Report] = []
        self._asked = self._served = 0  # forced checkpoints
        self._draining = self._stopping = False
        self._due_ms = self._trigger_after(now)
        self._not_before_ms = now
        self._failures = self._commits = self._aborts = self._ignored = self._epoch = 0
        self._reason: str | None = None

    # ---- the life of the job -------------------------------------------------------------------------------------

    def begin(self, now: int, incarnation: int, finished: Collection[Actor]) -> list[Decision]:
        """Begin or recover the job: everything but the forced checkpoints starts from the catalog."""
        reason = "the job recovers"
        fenced = self._roster.renew(incarnation, finished)
        out = self._let_go(reason)
        self._state, self._attempts, self._failures, self._stopping, self._reason = "running", 0, 0, False, None
        self._not_before_ms = now
        return [*out, *self._restart(fenced, reason), *self._finish_if_over()]

    def end(self) -> list[Decision]:
        """Take the job off this manager."""
        return self._let_go("the job is taken off")

    def stop(self, now: int, drain: bool) -> list[Decision]:
        if self._state == "finished":
            return []
        self._draining = drain
        if drain or self._state == "stopped":  # one that does not run drains once it has recovered
            return self._advance(now)
        self._stopping = self._attempt is not None and self._attempt.at_catalog
        return [] if self._stopping else self._stopped()

    def force(self, now: int) -> list[Decision]:
        self._asked += 1
        return self._advance(now)

    def tick(self, now: int) -> list[Decision]:
        attempt = self._attempt
        if attempt is not None and not attempt.at_catalog and now >= attempt.deadline_ms:
            missing = ", ".join(f"{vertex}[{index}]" for vertex, index in sorted(attempt.missing))
            what = f"no report from {missing}" if missing else "the next barrier was not decided"
            return self._attempt_failed(now, attempt, f"{what} for {self.settings.timeout_ms} ms")
        return self._advance(now)

    def next_due(self) -> int | None:
        attempt = self._attempt
        if attempt is not None:
            return None if attempt.at_catalog else attempt.deadline_ms
        if self._state != "running" or self._roster.hindrance() is not None:
            return None
        if self._forced:
            return self._not_before_ms
        return None if self._due_ms == NEVER else max(self._due_ms, self._not_before_ms)

    # ---- actors --------------------------------------------------------------------------------------------------

    def attach(self, now: int, actor: Actor) -> tuple[int, list[Decision]]:
        task = self._roster.require(actor)
        out = self._roll_back(now, {actor}, "another attached in its place", but=actor) if task.at_work else []
        incarnation = self._roster.attach(actor)
        return incarnation, [*out, *self._starts(), *self._advance(now)]

    def collect(self, now: int, report: Report) -> list[Decision]:
        attempt = self._attempt
        if attempt is None or not attempt.owes(report.barrier_id, report.actor, report.incarnation):
            return self._ignore()
        task = self._roster.tasks[report.actor]
        attempt.reports[report.actor] = report
        task.taken = report.barrier_id
        if report.ended and task.state is TaskState.RUNNING:
            task.state = TaskState.ENDING
        return [] if attempt.missing else [self._commit(attempt)]

    def decline(self, now: int, barrier_id: int, actor: Actor, incarnation: int, reason: str) -> list[Decision]:
        attempt = self._attempt
        if attempt is None or not attempt.owes(barrier_id, actor, incarnation):
            return self._ignore()
        return self._attempt_failed(now, attempt, f"{actor[0]}[{actor[1]}] declined: {reason}")

    def reject(self, now: int, barrier_id: int, actor: Actor, incarnation: int, reason: str) -> list[Decision]:
        attempt = self._attempt
        if attempt is None or not attempt.owes(barrier_id, actor, incarnation):
            return self._ignore()  # it was taken already, when it came for the first time
        return self._roll_back(now, {actor}, reason)

    def ended(self, now: int, actor: Actor, incarnation: int) -> list[Decision]:
        task = self._roster.current(actor, incarnation)
        if task is None or task.state is not TaskState.RUNNING:
            return self._ignore()
        task.state = TaskState.ENDING
        return self.force(now) if self.settings.interval_ms is None else []

    def finished(self, now: int, actor: Actor, incarnation: int) -> list[Decision]:
        task = self._roster.current(actor, incarnation)
        if task is None or task.state not in (TaskState.RUNNING, TaskState.ENDING):
            return self._ignore()
        task.state = TaskState.FINISHED
        attempt, out = self._attempt, []
        if attempt is not None and actor in attempt.missing:
            out = self._abort(now, attempt, f"{actor[0]}[{actor[1]}] has finished", again=True)
        self._asked += self.settings.interval_ms is None
        return [*out, *self._advance(now)]

    def fail(self, now: int, actor: Actor, incarnation: int, reason: str) -> list[Decision]:
        task = self._roster.current(actor, incarnation)
        if task is None or task.flagged:
            return self._ignore()
        return self._roll_back(now, {actor}, reason)

    # ---- answers -------------------------------------------------------------------------------------------------

    def pace(self, now: int, interval_ms: int | None) -> list[Decision]:
        if interval_ms != self.settings.interval_ms:
            self.settings = replace(self.settings, interval_ms=interval_ms)
            self._due_ms = self._trigger_after(now)
        return []

    def decided(self, now: int, barrier_id: int, barrier: Barrier | None, settled: bool, last: bool) -> list[Decision]:
        attempt = self._attempt
        if attempt is None or attempt.barrier_id != barrier_id or attempt.phase != "deciding":
            return self._ignore()
        if barrier is None:
            self._attempt = None
            self._served = attempt.serves if settled else self._served
            self._not_before_ms = next_multiple(now, self._retry_ms)
            return []
        attempt.drain = attempt.drain and last
        self._reason = self._roster.hindrance()
        if self._reason is not None:
            self._attempt = None
            self._due_again(now)
            return []
        trigger, waits = self._roster.plan()
        tasks = self._roster.tasks
        attempt.phase, attempt.barrier, attempt.deadline_ms = "collecting", barrier, now + self.settings.timeout_ms
        attempt.waits = {actor: tasks[actor].incarnation for actor in sorted(waits)}
        attempt.gone = self._roster.in_state(TaskState.FINISHED)
        if not waits:
            return [self._commit(attempt)]
        targets = {actor: tasks[actor].incarnation for actor in sorted(trigger)}
        taken = {actor: tasks[actor].taken for actor in attempt.waits}
        return [Inject(self.job, barrier_id, barrier, targets, frozenset(waits), taken, attempt.drain)]

    def committed(self, now: int, barrier_id: int, epoch: int) -> list[Decision]:
        attempt = self._at_catalog(barrier_id)
        if attempt is None:
            return self._ignore()
        self._attempt, self._carried, self._failures, self._reason = None, [], 0, None
        self._commits, self._epoch, self._served = self._commits + 1, epoch, attempt.serves
        self._not_before_ms = now + self.settings.min_pause_ms
        if attempt.drain:  # should somebody not have ended its data
            self._not_before_ms = max(self._not_before_ms, next_multiple(now, self._retry_ms))
        newly = self._roster.flag(attempt.finished)
        there = self._roster.still(attempt.waits)
        out: list[Decision] = []
        if there:
            out.append(Announce(self.job, barrier_id, epoch, there, newly & there.keys()))
        out += self._finish_if_over()
        if self._stopping:
            return [*out, *self._stopped()]
        return [*out, *self._starts(), *self._advance(now)]

    def refused(self, now: int, barrier_id: int, error: BaseException) -> list[Decision]:
        attempt = self._at_catalog(barrier_id)
        if attempt is None:
            return self._ignore()
        reason = f"the commit was refused: {type(error).__name__}: {error}"
        if isinstance(error, Fenced):
            return self._failed(reason)
        if isinstance(error, SegmentUnknown):
            out = self._abort(now, attempt, reason)
            self._carried = []  # and not dropped: of those that are there, some may be another's
            out += self._roll_back(now, self._roster.tasks, reason)
            return [*out, *self._counted(now, reason)]
        return self._attempt_failed(now, attempt, reason)

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
        return self._attempt_failed(now, attempt, "the commit did not land")

    # ---- attempts ------------------------------------------------------------------------------------------------

    def _advance(self, now: int) -> list[Decision]:
        """Start a new attempt, if one is due and possible."""
        if self._state != "running" or self._attempt is not None or now < self._not_before_ms:
            return []
        if not self._forced and now < self._due_ms:
            return []
        hindrance = self._roster.hindrance()
        if hindrance is not None:
            self._reason = hindrance
            return []
        self._attempts += 1
        deadline_ms = now + self.settings.timeout_ms
        self._attempt = Attempt(self._roster.fresh(self._attempts), now, self._asked, self._draining, deadline_ms)
        self._due_ms = self._trigger_after(now)
        return [Decide(self.job, self._attempt.barrier_id, self._draining)]

    def _commit(self, attempt: Attempt) -> CommitBarrier:
        """Commit the attempt: all its reports, behind the segments that earlier attempts left."""
        assert attempt.barrier is not None and not attempt.missing
        attempt.phase = "committing"
        reports = [*self._carried, *attempt.reports.values()]
        return CommitBarrier(
            self.job,
            self._roster.incarnation,
            attempt.barrier_id,
            attempt.barrier,
            joined(reports),
            {report.actor: report.state for report in reports},
            attempt.finished,
            self._roster.whole_vertices(attempt.finished),
            final=len(attempt.finished) == len(self._roster.tasks),
        )

    def _abort(self, now: int, attempt: Attempt, reason: str, *, again: bool = False) -> list[Decision]:
        """Gives the attempt up; what was reported stays for the next one. again: that one is due at once."""
        self._attempt = None
        self._aborts += 1
        self._not_before_ms = now + self.settings.min_pause_ms
        if again:
            self._due_again(now)
        self._carried += [report for report in attempt.reports.values() if any(report.segments.values())]
        gone = self._roster.in_state(TaskState.FINISHED)
        told = {actor: number for actor, number in self._roster.still(attempt.waits).items() if actor not in gone}
        return [Abort(self.job, attempt.barrier_id, reason, told)]

    def _attempt_failed(self, now: int, attempt: Attempt, reason: str) -> list[Decision]:
        """Gives the attempt up and counts it."""
        return [*self._abort(now, attempt, reason), *self._drop_stale(reason), *self._counted(now, reason)]

    def _counted(self, now: int, reason: str) -> list[Decision]:
        """Count one more failure in a row; then the actors that waited for the outcome go on."""
        self._failures += 1
        self._reason = reason
        if self._stopping:
            return self._stopped()
        most = self.settings.tolerable_failures
        if most is not None and self._failures > most:
            return self._failed(f"{self._failures} checkpoints in a row failed; the last: {reason}")
        self._not_before_ms = max(self._not_before_ms, next_multiple(now, self._retry_ms))
        return [*self._starts(), *self._advance(now)]

    def _due_again(self, now: int) -> None:
        """Make the attempt's trigger due again: it was not used up."""
        self._due_ms = NEVER if self._due_ms == NEVER else min(self._due_ms, now)

    # ---- rolling back and ending ---------------------------------------------------------------------------------

    def _roll_back(self, now: int, lost: Collection[Actor], reason: str, *, but: Actor | None = None) -> list[Decision]:
        """Fences these actors and all at work that are connected to them; `but` is not told, it knows.

        An attempt that waits for one of them is aborted, uncounted. One at the catalog stands: it has all it needs.
        """
        hit = self._roster.fence(lost)
        out: list[Decision] = []
        attempt = self._attempt
        if attempt is not None and attempt.phase == "collecting" and not attempt.waits.keys().isdisjoint(hit):
            out += self._abort(now, attempt, reason, again=True)
        out += self._drop_stale(reason)
        return [*out, *self._restart({actor: number for actor, number in hit.items() if actor != but}, reason)]

    def _restart(self, actors: Mapping[Actor, int], reason: str) -> list[Decision]:
        return [Restart(self.job, actors, reason)] if actors else []

    def _starts(self) -> Sequence[Decision]:
        """List a Start for each attached actor that may start; none while a commit is under way."""
        waiting = self._attempt is not None and self._attempt.at_catalog
        return [] if waiting or self._state in ("failed", "stopped") else self._roster.starts()

    def _drop_stale(self, reason: str) -> list[Decision]:
        """Drops the carried segments whose incarnation has ended, unless they are at the catalog."""
        if self._attempt is not None and self._attempt.at_catalog:
            return []
        kept: list[Report] = []
        stale: list[Report] = []
        for report in self._carried:
            (kept if self._roster.current(report.actor, report.incarnation) else stale).append(report)
        self._carried = kept
        return [Drop(self.job, joined(stale), reason)] if stale else []

    def _let_go(self, reason: str) -> list[Decision]:
        """Ends the attempt and drops what is carried; not what is at the catalog: it may land, or have landed."""
        attempt, self._attempt = self._attempt, None
        reports, self._carried = self._carried, []
        if attempt is not None:
            self._aborts += 1
            reports = [] if attempt.at_catalog else [*reports, *attempt.reports.values()]
        segments = joined(reports)
        return [Drop(self.job, segments, reason)] if segments else []

    def _failed(self, reason: str) -> list[Decision]:
        out = self._let_go(reason)
        self._close("failed", TaskState.FAILED, reason)
        return [*out, Failed(self.job, reason)]

    def _stopped(self) -> list[Decision]:
        if self._state == "finished":
            return []
        reason = "the job was stopped"
        out = self._let_go(reason)
        self._close("stopped", TaskState.CANCELED, reason)
        return [*out, JobStopped(self.job)]

    def _close(self, state: JobState, tasks: TaskState, reason: str) -> None:
        self._state, self._reason, self._stopping = state, reason, False
        self._roster.close(tasks)

    def _finish_if_over(self) -> list[Decision]:
        if not self._roster.over:
            return []
        self._state, self._draining = "finished", False
        return [*self._starts(), Finished(self.job)]

    # ---- small questions -----------------------------------------------------------------------------------------

    @property
    def _forced(self) -> bool:
        return self._asked > self._served or self._draining

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
        attempt, roster = self._attempt, self._roster
        absent = roster.in_state(TaskState.INITIALIZING, TaskState.FAILED, TaskState.CANCELED)
        return CheckpointStatus(
            job=self.job,
            state=self._state,
            phase="idle" if attempt is None else attempt.phase,
            incarnation=roster.incarnation,
            actors={actor: task.state.name for actor, task in roster.tasks.items()},
            waiting_for=absent if attempt is None else attempt.missing,
            barrier_id=attempt and attempt.barrier_id,
            barrier=attempt and attempt.barrier,
            since_ms=attempt and attempt.since_ms,
            carried=sum(len(found) for report in self._carried for found in report.segments.values()),
            forced=self._asked > self._served,
            draining=self._draining,
            failures=self._failures,
            commits=self._commits,
            aborts=self._aborts,
            ignored=self._ignored,
            epoch=self._epoch,
            reason=self._reason,
        )
