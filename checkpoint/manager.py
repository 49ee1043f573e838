"""The checkpoint manager: events in, decisions out. It does nothing itself; an adapter carries its decisions out.

No threads, no I/O, no chance, and no clock but the one it is given: the same events at the same times give the same
decisions. Jobs are independent: an event of one job never gives a decision of another.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from .barrier import Barrier
from .decisions import Actor, Decision, JobSettings, JobStatus, Report


class CheckpointManager:
    """Triggers, collects, commits and aborts the checkpoints of many jobs, each by itself.

    Not thread-safe: the adapter calls it from one thread, or under one lock, carries the decisions of each call out in
    order, and calls `tick` when `next_due` has come. Calls that name an unknown job raise JobNotFound; messages that
    come from a network (`collect`, `decline`, `ended`, `finished`, `fail`) and answers to decisions (`decided`,
    `committed`, `refused`, `unknown`, `resolved`) never raise: what is stale, repeated, unknown or late does nothing.
    """

    def __init__(self, *, clock: Callable[[], int]) -> None:
        """clock: Unix time in ms. Should it go back, the time between stands still for the manager."""
        raise NotImplementedError

    # ---- jobs ----------------------------------------------------------------------------------------------------

    def register(
        self,
        job: str,
        vertices: Mapping[str, int],
        edges: Sequence[object] = (),
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
        raise NotImplementedError

    def unregister(self, job: str) -> list[Decision]:
        """Let go of a job."""
        raise NotImplementedError

    def recover(self, job: str, *, incarnation: int, finished: Collection[Actor] = ()) -> list[Decision]:
        """Roll the job back to its last commit, from any state: all its actors are fenced and start anew.

        incarnation: newly claimed in the catalog, so that no commit of the earlier one can land any more. A forced
        checkpoint that was not served stays forced. Raises JobNotFound, InvalidInput.
        """
        raise NotImplementedError

    def stop(self, job: str, *, drain: bool) -> list[Decision]:
        """End the job. With drain its actors end their data, and the commit of that ends the job (`Finished`).

        Without, nothing more is committed but what is already at the catalog, then `Stopped`. Raises JobNotFound.
        """
        raise NotImplementedError

    def inject(self, job: str) -> list[Decision]:
        """Force a checkpoint as soon as none is in flight; it is tried until one decided after this call commits."""
        raise NotImplementedError

    def status(self, job: str) -> JobStatus:
        """The job as of now. Raises JobNotFound."""
        raise NotImplementedError

    def jobs(self) -> list[str]:
        """The names of all registered jobs, sorted."""
        raise NotImplementedError

    # ---- time ----------------------------------------------------------------------------------------------------

    def tick(self) -> list[Decision]:
        """Trigger what is due, abort what has timed out."""
        raise NotImplementedError

    def next_due(self) -> int | None:
        """When `tick` has something to do, in Unix ms; None: not before another event."""
        raise NotImplementedError

    # ---- actors --------------------------------------------------------------------------------------------------

    def attach(self, job: str, actor: Actor) -> tuple[int, list[Decision]]:
        """A new incarnation of the actor, which fences the one before; it begins with the decision `Start`.

        When the one before was at work, it and all actors connected to it by edges roll back (`Restart` for those).
        Raises JobNotFound, InvalidInput for an actor that the job does not have.
        """
        raise NotImplementedError

    def collect(self, report: Report) -> list[Decision]:
        """An actor's report."""
        raise NotImplementedError

    def decline(self, job: str, barrier_id: int, actor: Actor, incarnation: int, reason: str) -> list[Decision]:
        """The actor cannot take part in this attempt: it is aborted and counted as failed."""
        raise NotImplementedError

    def ended(self, job: str, actor: Actor, incarnation: int) -> list[Decision]:
        """The actor's data has ended; it stays for the commit that takes in its last report (TaskState.ENDING)."""
        raise NotImplementedError

    def finished(self, job: str, actor: Actor, incarnation: int) -> list[Decision]:
        """The actor has gone, with nothing left to report: an attempt that waits for it is aborted, uncounted."""
        raise NotImplementedError

    def fail(self, job: str, actor: Actor, incarnation: int, reason: str) -> list[Decision]:
        """The actor, or the worker that ran it, is lost: it and all connected to it roll back to the last commit."""
        raise NotImplementedError

    # ---- answers -------------------------------------------------------------------------------------------------

    def decided(self, job: str, barrier_id: int, barrier: Barrier | None, *, settled: bool = False) -> list[Decision]:
        """Answers Decide: the next barrier (of a load: of its checkpoint numbers), or None: nothing to commit now.

        settled, with None: nothing at or below the newest boundary is left to commit, so a forced checkpoint is served.
        """
        raise NotImplementedError

    def committed(self, job: str, barrier_id: int, epoch: int) -> list[Decision]:
        """Answers Commit: it has landed, at that epoch."""
        raise NotImplementedError

    def refused(self, job: str, barrier_id: int, error: BaseException) -> list[Decision]:
        """Answers Commit: it has not landed and never will.

        Fenced fails the job; SegmentUnknown rolls it back, for what is gone can never be committed; others count.
        """
        raise NotImplementedError

    def unknown(self, job: str, barrier_id: int) -> list[Decision]:
        """Answers Commit: whether it has landed is not known."""
        raise NotImplementedError

    def resolved(self, job: str, barrier_id: int, epoch: int | None) -> list[Decision]:
        """Answers Resolve: the epoch at which it has landed; None: it has not, and never will."""
        raise NotImplementedError
