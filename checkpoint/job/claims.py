"""Claims of jobs: the runner lease and the incarnation under which a handle runs a job.

A handle acquires a *runner lease*, which the job's record names as its runner, and releases it. A claim fences a live
runner only with take_over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

from epochlog.errors import EpochlogError
from epochlog.store.catalog.keys import job_key
from epochlog.store.catalog.protocol import ReadTxn, Txn
from epochlog.store.commit.boundaries import force_within
from epochlog.store.commit.job_commit import check_incarnation, require_unparked
from epochlog.store.env.log_events import JOB_REBUILD, RUNNER_CLAIMED
from epochlog.store.epochs.view import EpochView
from epochlog.store.epochs.view_reader import read_epoch_view
from epochlog.store.metadata.definitions import DERIVATION, Counters, JobRecord
from epochlog.store.metadata.lookups import get_job
from epochlog.store.session.handle import Handle
from epochlog.store.session.job_runners import describe_runner, live_runner, new_runner, require_free
from epochlog.store.verify.job_state import require_consistent_job

from .rebuild import rebuilding

Kind = Literal["step", "query", "pipeline", "coordinator"]


@dataclass(slots=True, eq=False)
class RunnerLease:
    """Lease under which one runner runs a job: for a single step, or for a query, pipeline or coordinator from start to
    end.

    holder: its name on the job's record while it is held. incarnation: the claim that it commits under; None before
    the claim. alive: returns True while the runner runs; each renewal calls it.
    """

    kind: Kind
    holder: str
    incarnation: int | None = None
    alive: Callable[[], bool] = lambda: True


class JobClaims:
    """Claims of one job by one handle."""

    def __init__(self, handle: Handle, job_id: int, name: str) -> None:
        self.handle = handle
        self.job_id = job_id
        self.name = name
        self.incarnation: int | None = None
        """The newest incarnation that this handle claimed; the next lease continues under it."""

    def record(self) -> JobRecord:
        """Read the job's record; raise JobNotFound if it was dropped."""
        return self.handle.catalog.read(lambda view: get_job(view, self.job_id, self.name))

    def new_lease(self, kind: Kind) -> RunnerLease:
        """Build a lease of this handle, which is not acquired yet."""
        return RunnerLease(kind, self.handle.new_holder(kind), self.incarnation)

    def acquire(self, lease: RunnerLease, *, take_over: bool = False) -> JobRecord:
        """Record the lease as the job's runner until its release; return the job after that.

        Raises JobRunning if another runner is alive, Fenced if another handle has claimed the job since this one did,
        and RestoreRejected if the job's catalog records contradict each other. take_over: claim the job and fence its
        live runner.
        """
        runners = self.handle.runners
        job = self.handle.catalog.read(self._read_consistent_job)
        if job.runner is not None:
            runners.has_died(job.runner.holder)
        runners.share(lease.holder, [job_key(self.job_id)], at_end="vacate", alive=lease.alive)
        try:
            before, after = self.handle.catalog.transact(lambda tx: self._claim(tx, lease, take_over=take_over))
        except BaseException:
            runners.forget(lease.holder)
            raise
        self.incarnation = lease.incarnation = after.incarnation
        if before.view != after.view:
            self.handle.log(JOB_REBUILD, job=self.name)
        if after.incarnation != before.incarnation:
            self._log_claim(before, after)
            if before.runner is None and job.runner is not None and self.handle.run_listener is not None:
                self.handle.run_listener.killed(job, job.runner.holder)
        return after

    def holds(self, lease: RunnerLease) -> bool:
        """Return True if the lease was acquired and not released."""
        return self.handle.runners.holds(lease.holder)

    def release(self, lease: RunnerLease) -> None:
        """Release the lease. If the catalog is unavailable, the next renewal of leases releases it."""
        with suppress(EpochlogError):
            self.handle.runners.release(lease.holder)

    def give_back(self, lease: RunnerLease) -> None:
        """Release the lease to a runner that will claim the job; this handle then counts as having claimed nothing."""
        self.release(lease)
        self.incarnation = lease.incarnation = None

    def require_lease(self, job: JobRecord, lease: RunnerLease) -> None:
        """Raise Fenced or JobParked if the lease may not continue, JobRunning if another lease of its handle runs the
        job.
        """
        assert lease.incarnation is not None
        check_incarnation(job, lease.incarnation)
        require_unparked(job)
        other = job.runner
        if other is not None and other.holder != lease.holder and not self.handle.runners.has_died(other.holder):
            self.handle.catalog.read(lambda view: require_free(view, self.handle, job, lease.holder))

    def _read_consistent_job(self, view: ReadTxn) -> JobRecord:
        job = get_job(view, self.job_id, self.name)
        require_consistent_job(view, job, inputs_of(view, self.handle, job))
        return job

    def _claim(self, tx: Txn, lease: RunnerLease, *, take_over: bool) -> tuple[JobRecord, JobRecord]:
        """Acquire the lease, in a transaction; return the job before, with its live runner, and the job after."""
        job = get_job(tx, self.job_id, self.name)
        if not take_over:
            if lease.incarnation is not None:
                check_incarnation(job, lease.incarnation)
            require_free(tx, self.handle, job, lease.holder)
        other = live_runner(tx, self.handle, job)
        is_current = lease.incarnation == job.incarnation and (other is None or other.holder == lease.holder)
        runner = new_runner(tx, self.handle, lease.holder, lease.kind)
        after = replace(job, incarnation=job.incarnation + (not is_current), runner=runner)
        after = self._with_present_reading(tx, after)
        tx.put(job_key(job.id), after.to_record())
        return replace(job, runner=other), after

    def _with_present_reading(self, tx: Txn, job: JobRecord) -> JobRecord:
        """Return the job, with a rebuild if it is a view whose text was read by the rules of an earlier DERIVATION: the
        present rules may give its query another meaning.
        """
        if job.view is None or not job.is_outdated:
            return job
        boundary = force_within(tx, self.handle, above=Counters.read(tx).last_epoch)
        job = replace(job, view=replace(job.view, derivation=DERIVATION))
        return rebuilding(tx, self.handle, job, boundary)

    def _log_claim(self, before: JobRecord, after: JobRecord) -> None:
        assert after.runner is not None
        now_ms = self.handle.catalog.now_ms()
        self.handle.log(
            RUNNER_CLAIMED,
            job=self.name,
            runner=describe_runner(after.runner, now_ms),
            incarnation=after.incarnation,
            epoch=after.position,
            predecessor="" if before.runner is None else describe_runner(before.runner, now_ms),
        )


def release_all(handle: Handle, leases: Iterable[RunnerLease]) -> None:
    """Release leases of one open store in one transaction, as `JobClaims.release` does for one of them."""
    with suppress(EpochlogError):
        handle.runners.release_all([lease.holder for lease in leases])


def inputs_of(view: ReadTxn, handle: Handle, job: JobRecord) -> EpochView:
    """Read the epochs of the tables that the job reads, of those that its newest commit was computed from, and of their
    ancestors.
    """
    return read_epoch_view(view, handle.memory, handle.catalog.now_ms(), above={*job.upstreams, *job.rows_from})
