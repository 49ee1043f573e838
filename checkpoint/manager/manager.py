"""Checkpoint manager: a pure state machine from events to decisions. An adapter executes the decisions.

It has no threads, no I/O, no randomness, and reads only the clock that it is given, so equal events at equal times give
equal decisions. Jobs are independent: an event of one job never causes a decision about another.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from epochlog.checkpoint.job.next_barrier import Barrier
from epochlog.errors import InvalidInput, JobExists, JobNotFound

from .commands import Actor, CheckpointStatus, Decision, JobSettings, Report
from .job_state_machine import JobProtocol
from .task_registry import TaskRegistry


class CheckpointManager:
    """Manager that triggers, collects, commits and aborts the checkpoints of many independent jobs.

    Not thread-safe: the adapter calls it from one thread, or under one lock, executes the decisions of each call in
    order, and calls `tick` at `next_due`. Calls that name an unknown job raise JobNotFound. Messages from a network
    (`collect`, `decline`, `reject`, `ended`, `fail`) and answers to decisions (`decided`, `committed`,
    `refused`, `unknown`, `resolved`) never raise: a stale, repeated, unknown or late one has no effect.
    """

    def __init__(self, *, clock: Callable[[], int]) -> None:
        """Create a manager without jobs. clock: Unix time in ms; if it goes back, the manager's time stands still."""
        self._clock = clock
        self._jobs: dict[str, JobProtocol] = {}
        self._due: dict[str, int] = {}
        self._newest_ms = clock()
        self._behind_ms = 0  # how far the clock has gone back

    # ---- jobs ----------------------------------------------------------------------------------------------------

    def register(
        self,
        job: str,
        vertices: Mapping[str, int],
        *,
        incarnation: int,
        settings: JobSettings | None = None,
        finished: Collection[Actor] = (),
    ) -> list[Decision]:
        """Register a job with its state in the catalog.

        vertices: name -> number of subtasks. incarnation: the one that the caller has claimed in the catalog. finished:
        the actors recorded as finished; if they are all actors, the job has finished. To continue a failed or stopped
        job, unregister it and claim a new incarnation first. Raises JobExists, InvalidInput.
        """
        if job in self._jobs:
            raise JobExists(f"job {job!r} is registered already; unregister it first")
        if not vertices or not all(isinstance(count, int) and count > 0 for count in vertices.values()):
            raise InvalidInput(f"job {job!r}: vertices is a dict {{name: number of subtasks >= 1}}, not {vertices!r}")
        machine = JobProtocol(
            TaskRegistry(job, vertices, incarnation, finished), settings or JobSettings(), self._now()
        )
        self._jobs[job] = machine
        return self._reschedule(job, machine.begin())

    def unregister(self, job: str) -> list[Decision]:
        """Unregister a job and drop its uncommitted segments. Raises JobNotFound."""
        decisions = self._require_job(job).end()
        del self._jobs[job]
        self._due.pop(job, None)
        return decisions

    def stop(self, job: str, *, drain: bool) -> list[Decision]:
        """Stop the job. drain: its actors end their data, and the commit of that ends the job (`Finished`).

        Without drain, only a commit that is already at the catalog may still land; then the job is stopped
        (`JobStopped`). Raises JobNotFound.
        """
        return self._reschedule(job, self._require_job(job).stop(self._now(), drain))

    def inject(self, job: str) -> list[Decision]:
        """Force a checkpoint: repeat attempts until one that was decided after this call commits."""
        return self._reschedule(job, self._require_job(job).force(self._now()))

    def idle(self, job: str) -> bool:
        """Return True if the job waits for its next trigger, or for `inject`. Raises JobNotFound."""
        return self._require_job(job).idle

    def status(self, job: str) -> CheckpointStatus:
        """Return the job's status. Raises JobNotFound."""
        return self._require_job(job).status()

    def jobs(self) -> list[str]:
        """Return the names of all registered jobs, sorted."""
        return sorted(self._jobs)

    # ---- time ----------------------------------------------------------------------------------------------------

    def tick(self) -> list[Decision]:
        """Trigger the checkpoints that are due, and abort the attempts that have timed out."""
        now = self._now()
        due = [job for job in self._jobs if self._due.get(job, now + 1) <= now]
        return [decision for job in due for decision in self._reschedule(job, self._jobs[job].tick(now))]

    def next_due(self) -> int | None:
        """Return the time at which `tick` has work (Unix ms), or None if it has none before another event."""
        return min(self._due.values()) - self._behind_ms if self._due else None

    # ---- actors --------------------------------------------------------------------------------------------------

    def attach(self, job: str, actor: Actor) -> tuple[int, list[Decision]]:
        """Attach a new incarnation of the actor, which fences the one before; it begins with the decision `Start`.

        Raises JobNotFound, InvalidInput for an actor that the job does not have.
        """
        incarnation, decisions = self._require_job(job).attach(self._now(), actor)
        return incarnation, self._reschedule(job, decisions)

    def collect(self, report: Report) -> list[Decision]:
        """Accept an actor's report."""
        return self._dispatch(report.job, lambda job, now: job.collect(now, report))

    def decline(self, job: str, barrier_id: int, actor: Actor, incarnation: int, reason: str) -> list[Decision]:
        """Abort the attempt, because the actor cannot take part, and count a failure."""
        return self._dispatch(job, lambda machine, now: machine.decline(now, barrier_id, actor, incarnation, reason))

    def reject(self, job: str, barrier_id: int, actor: Actor, incarnation: int, reason: str) -> list[Decision]:
        """Roll back an actor whose report names invalid segments."""
        return self._dispatch(job, lambda machine, now: machine.reject(now, barrier_id, actor, incarnation, reason))

    def ended(self, job: str, actor: Actor, incarnation: int) -> list[Decision]:
        """Note that the actor's data has ended; it still reports for the next commit (TaskState.ENDING)."""
        return self._dispatch(job, lambda machine, now: machine.ended(now, actor, incarnation))

    def fail(self, job: str, actor: Actor, incarnation: int, reason: str) -> list[Decision]:
        """Roll back a lost actor to the last commit."""
        return self._dispatch(job, lambda machine, now: machine.fail(now, actor, incarnation, reason))

    # ---- answers -------------------------------------------------------------------------------------------------

    def decided(
        self,
        job: str,
        barrier_id: int,
        barrier: Barrier | None,
        *,
        settled: bool = False,
        last: bool = True,
        renewed: bool = False,
    ) -> list[Decision]:
        """Answer Decide with the next barrier (a load's has checkpoint numbers), or None: nothing to commit now.

        settled, with None: nothing at or below the newest boundary is left to commit, so a forced checkpoint is served.
        last: a drain ends with this barrier; False if more barriers follow before the end. renewed: it takes the place
        of the barrier of earlier attempts, so the segments that are carried over from them are dropped.
        """
        return self._dispatch(
            job, lambda machine, now: machine.decided(now, barrier_id, barrier, settled, last, renewed=renewed)
        )

    def committed(self, job: str, barrier_id: int, epoch: int) -> list[Decision]:
        """Answer CommitBarrier: the commit has landed at that epoch."""
        return self._dispatch(job, lambda machine, now: machine.committed(now, barrier_id, epoch))

    def refused(self, job: str, barrier_id: int, error: BaseException) -> list[Decision]:
        """Answer CommitBarrier: the commit has not landed and never will.

        Fenced fails the job. SegmentUnknown and SchemaChanged roll it back, because a deleted segment, or one with a
        column that was dropped, can never be committed. Other errors count as a failure.
        """
        return self._dispatch(job, lambda machine, now: machine.refused(now, barrier_id, error))

    def overtaken(self, job: str, barrier_id: int) -> list[Decision]:
        """Abort the attempt, uncounted, because another barrier takes the place of its barrier, which cannot land."""
        return self._dispatch(job, lambda machine, now: machine.overtaken(now, barrier_id))

    def unknown(self, job: str, barrier_id: int) -> list[Decision]:
        """Answer CommitBarrier: the outcome of the commit is unknown."""
        return self._dispatch(job, lambda machine, _: machine.unknown(barrier_id))

    def resolved(self, job: str, barrier_id: int, epoch: int | None) -> list[Decision]:
        """Answer Resolve with the epoch of the commit; None: it has not landed and never will."""
        return self._dispatch(job, lambda machine, now: machine.resolved(now, barrier_id, epoch))

    # ---- within ------------------------------------------------------------------------------------------------------

    def _now(self) -> int:
        """Return the clock's time in ms; if the clock went back, the newest time that it has returned."""
        raw = self._clock()
        self._behind_ms = max(self._behind_ms, self._newest_ms - raw)
        self._newest_ms = raw + self._behind_ms
        return self._newest_ms

    def _require_job(self, job: str) -> JobProtocol:
        machine = self._jobs.get(job)
        if machine is None:
            raise JobNotFound(f"job {job!r} is not registered; register it first. Registered jobs: {self.jobs()}")
        return machine

    def _dispatch(self, job: str, event: Callable[[JobProtocol, int], list[Decision]]) -> list[Decision]:
        """Pass an event to its job; ignore it if the job is not registered."""
        machine = self._jobs.get(job)
        return [] if machine is None else self._reschedule(job, event(machine, self._now()))

    def _reschedule(self, job: str, decisions: list[Decision]) -> list[Decision]:
        due = self._jobs[job].next_due()
        if due is None:
            self._due.pop(job, None)
        else:
            self._due[job] = due
        return decisions
