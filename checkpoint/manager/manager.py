"""The checkpoint manager: events in, decisions out. It does nothing itself; an adapter carries its decisions out.

No threads, no I/O, no chance, and no clock but the one it is given: the same events at the same times give the same
decisions. Jobs are independent: an event of one job never gives a decision of another.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from epochlog.checkpoint.job.barrier import Barrier
from epochlog.errors import InvalidInput, JobExists, JobNotFound

from .checkpoint_plan import Edge
from .commands import Actor, CheckpointStatus, Decision, JobSettings, Report
from .job_state_machine import JobProtocol


class CheckpointManager:
    """Triggers, collects, commits and aborts the checkpoints of many jobs, each by itself.

    Not thread-safe: the adapter calls it from one thread, or under one lock, carries the decisions of each call out in
    order, and calls `tick` when `next_due` has come. Calls that name an unknown job raise JobNotFound; messages that
    come from a network (`collect`, `decline`, `reject`, `ended`, `finished`, `fail`) and answers to decisions
    (`decided`, `committed`, `refused`, `unknown`, `resolved`) never raise: what is stale, repeated, unknown or late
    does nothing.
    """

    def __init__(self, *, clock: Callable[[], int]) -> None:
        """clock: Unix time in ms. Should it go back, the time between stands still for the manager."""
        self._clock = clock
        self._jobs: dict[str, JobProtocol] = {}
        self._due: dict[str, int] = {}
        self._newest_ms = clock()
        self._behind_ms = 0  # what a clock that went back is behind by

    # ---- jobs ----------------------------------------------------------------------------------------------------

    def register(
        self,
        job: str,
        vertices: Mapping[str, int],
        edges: Sequence[Edge] = (),
        *,
        incarnation: int,
        settings: JobSettings | None = None,
        finished: Collection[Actor] = (),
        forced: bool = False,
    ) -> list[Decision]:
        """Take a job on, as the catalog has it.

        vertices: name -> how many subtasks. edges: `Edge`s between them. incarnation: claimed for this manager in the
        catalog before. finished: the actors recorded as finished; when that is all of them, the job is. forced: a
        checkpoint was asked for before and not served. Raises JobExists, InvalidInput.
        """
        if job in self._jobs:
            raise JobExists(f"job {job!r} is registered already; recover or unregister it")
        if not vertices or not all(isinstance(count, int) and count > 0 for count in vertices.values()):
            raise InvalidInput(f"job {job!r}: vertices is a dict {{name: number of subtasks >= 1}}, not {vertices!r}")
        now = self._now()
        made = JobProtocol(job, vertices, edges, settings or JobSettings(), now)
        out = made.begin(now, incarnation, finished)
        self._jobs[job] = made
        return self._after(job, [*out, *(made.force(now) if forced else [])])

    def unregister(self, job: str) -> list[Decision]:
        """Let go of a job."""
        out = self._job(job).end()
        del self._jobs[job]
        self._due.pop(job, None)
        return out

    def recover(self, job: str, *, incarnation: int, finished: Collection[Actor] = ()) -> list[Decision]:
        """Roll the job back to its last commit, from any state: all its actors are fenced and start anew.

        incarnation: newly claimed in the catalog, so that no commit of the earlier one can land any more. A forced
        checkpoint that was not served stays forced. Raises JobNotFound, InvalidInput.
        """
        return self._after(job, self._job(job).begin(self._now(), incarnation, finished))

    def stop(self, job: str, *, drain: bool) -> list[Decision]:
        """End the job. With drain its actors end their data, and the commit of that ends the job (`Finished`).

        Without, nothing more is committed but what is already at the catalog, then `Stopped`. Raises JobNotFound.
        """
        return self._after(job, self._job(job).stop(self._now(), drain))

    def inject(self, job: str) -> list[Decision]:
        """Force a checkpoint as soon as none is in flight; it is tried until one decided after this call commits."""
        return self._after(job, self._job(job).force(self._now()))

    def status(self, job: str) -> CheckpointStatus:
        """Return the job's status. Raises JobNotFound."""
        return self._job(job).status()

    def jobs(self) -> list[str]:
        """Return the names of all registered jobs, sorted."""
        return sorted(self._jobs)

    # ---- time ----------------------------------------------------------------------------------------------------

    def tick(self) -> list[Decision]:
        """Trigger what is due, abort what has timed out."""
        now = self._now()
        due = [job for job in self._jobs if self._due.get(job, now + 1) <= now]
        return [decision for job in due for decision in self._after(job, self._jobs[job].tick(now))]

    def next_due(self) -> int | None:
        """Return the time at which `tick` has work (Unix ms), or None if it has none before another event."""
        return min(self._due.values()) - self._behind_ms if self._due else None

    # ---- actors --------------------------------------------------------------------------------------------------

    def attach(self, job: str, actor: Actor) -> tuple[int, list[Decision]]:
        """Attach a new incarnation of the actor, which fences the one before; it begins with the decision `Start`.

        When the one before was at work, it and all actors connected to it by edges roll back (`Restart` for those).
        Raises JobNotFound, InvalidInput for an actor that the job does not have.
        """
        incarnation, out = self._job(job).attach(self._now(), actor)
        return incarnation, self._after(job, out)

    def collect(self, report: Report) -> list[Decision]:
        """Take an actor's report."""
        return self._told(report.job, lambda job, now: job.collect(now, report))

    def decline(self, job: str, barrier_id: int, actor: Actor, incarnation: int, reason: str) -> list[Decision]:
        """Abort the attempt, in which the actor cannot take part, and count it as failed."""
        return self._told(job, lambda to, now: to.decline(now, barrier_id, actor, incarnation, reason))

    def reject(self, job: str, barrier_id: int, actor: Actor, incarnation: int, reason: str) -> list[Decision]:
        """Roll back an actor whose report names segments that cannot be committed, and all connected to it."""
        return self._told(job, lambda to, now: to.reject(now, barrier_id, actor, incarnation, reason))

    def ended(self, job: str, actor: Actor, incarnation: int) -> list[Decision]:
        """Note that the actor's data has ended; it stays for the commit of its last report (TaskState.ENDING)."""
        return self._told(job, lambda to, now: to.ended(now, actor, incarnation))

    def finished(self, job: str, actor: Actor, incarnation: int) -> list[Decision]:
        """Note that the actor has gone, with nothing left to report; abort an attempt that waits for it, uncounted."""
        return self._told(job, lambda to, now: to.finished(now, actor, incarnation))

    def fail(self, job: str, actor: Actor, incarnation: int, reason: str) -> list[Decision]:
        """Roll back an actor that is lost, or whose worker is, and all connected to it, to the last commit."""
        return self._told(job, lambda to, now: to.fail(now, actor, incarnation, reason))

    # ---- answers -------------------------------------------------------------------------------------------------

    def decided(
        self, job: str, barrier_id: int, barrier: Barrier | None, *, settled: bool = False, last: bool = True
    ) -> list[Decision]:
        """Answers Decide: the next barrier (of a load: of its checkpoint numbers), or None: nothing to commit now.

        settled, with None: nothing at or below the newest boundary is left to commit, so a forced checkpoint is served.
        last: a drain ends with this barrier; False when it stops short of the end, so that others have to follow.
        """
        return self._told(job, lambda to, now: to.decided(now, barrier_id, barrier, settled, last))

    def pace(self, job: str, interval_ms: int | None) -> None:
        """Set the interval of the job's triggers (ms); they are multiples of it from now on."""
        self._told(job, lambda to, now: to.pace(now, interval_ms))

    def committed(self, job: str, barrier_id: int, epoch: int) -> list[Decision]:
        """Answers Commit: it has landed, at that epoch."""
        return self._told(job, lambda to, now: to.committed(now, barrier_id, epoch))

    def refused(self, job: str, barrier_id: int, error: BaseException) -> list[Decision]:
        """Answers Commit: it has not landed and never will.

        Fenced fails the job; SegmentUnknown rolls it back, for what is gone can never be committed; others count.
        """
        return self._told(job, lambda to, now: to.refused(now, barrier_id, error))

    def unknown(self, job: str, barrier_id: int) -> list[Decision]:
        """Answers Commit: whether it has landed is not known."""
        return self._told(job, lambda to, _: to.unknown(barrier_id))

    def resolved(self, job: str, barrier_id: int, epoch: int | None) -> list[Decision]:
        """Answers Resolve: the epoch at which it has landed; None: it has not, and never will."""
        return self._told(job, lambda to, now: to.resolved(now, barrier_id, epoch))

    # ---- within ------------------------------------------------------------------------------------------------------

    def _now(self) -> int:
        """Return the clock's time, or the newest time it has told if it went back."""
        raw = self._clock()
        self._behind_ms = max(self._behind_ms, self._newest_ms - raw)
        self._newest_ms = raw + self._behind_ms
        return self._newest_ms

    def _job(self, job: str) -> JobProtocol:
        found = self._jobs.get(job)
        if found is None:
            raise JobNotFound(f"there is no job {job!r} here; register it first. There are: {self.jobs()}")
        return found

    def _told(self, job: str, event: Callable[[JobProtocol, int], list[Decision]]) -> list[Decision]:
        """Pass a message to its job; ignore it if the job has gone."""
        found = self._jobs.get(job)
        return [] if found is None else self._after(job, event(found, self._now()))

    def _after(self, job: str, decisions: list[Decision]) -> list[Decision]:
        due = self._jobs[job].next_due()
        if due is None:
            self._due.pop(job, None)
        else:
            self._due[job] = due
        return decisions
