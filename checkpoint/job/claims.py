"""Claiming a job: who may run it, under which incarnation, and for how long it counts as run.

A handle's *tenure* enters, which names it on the job's record as the runner, and leaves again. A live runner is never
fenced unless its successor was told to take over.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

from epochlog.errors import EpochlogError
from epochlog.store.catalog.keys import job_key
from epochlog.store.catalog.protocol import Txn, View
from epochlog.store.check.job_state import require_consistent_job
from epochlog.store.commit.job_commit import check_incarnation, require_unparked
from epochlog.store.epochs.view import EpochView
from epochlog.store.epochs.view_reader import read_epoch_view
from epochlog.store.metadata.definitions import JobRecord
from epochlog.store.metadata.lookups import get_job
from epochlog.store.session.handle import Handle
from epochlog.store.session.job_runners import describe_runner, live_runner, new_runner, require_free
from epochlog.store.types.epoch import show_epoch

Kind = Literal["step", "query", "pipeline", "coordinator"]
_log = logging.getLogger("epochlog")


@dataclass(slots=True, eq=False)
class Tenure:
    """One stretch for which a job is run: a single step, or a query, pipeline or coordinator from its start to its end.

    holder: what the job's record calls it while it is at work. incarnation: the claim that it commits under; None
    before. alive: whether it still goes on, asked by whoever renews its lease.
    """

    kind: Kind
    holder: str
    incarnation: int | None = None
    alive: Callable[[], bool] = lambda: True


class JobClaims:
    """One handle's claims of one job."""

    def __init__(self, handle: Handle, job_id: int, name: str) -> None:
        self.handle = handle
        self.job_id = job_id
        self.name = name
        self.incarnation: int | None = None
        """What this handle claimed last; the next tenure goes on under it."""

    def record(self) -> JobRecord:
        """Read the job's record; raise JobNotFound if it was dropped."""
        return self.handle.catalog.read(lambda view: get_job(view, self.job_id, self.name))

    def tenure(self, kind: Kind) -> Tenure:
        """Return a new tenure of this handle, which has not entered yet."""
        return Tenure(kind, self.handle.new_holder(kind), self.incarnation)

    def enter(self, tenure: Tenure, *, take_over: bool = False) -> JobRecord:
        """Have the job's record name the tenure as its runner until it leaves; the job as it is then.

        Raises JobRunning when another runner is alive, Fenced when another has claimed the job since this handle did,
        and RestoreRejected when the catalog contradicts itself. take_over: claim the job all the same, and
        fence whoever runs it.
        """
        runners = self.handle.runners
        seen = self.handle.catalog.read(self._standing)
        if seen.runner is not None:
            runners.gone(seen.runner.holder)
        runners.share(tenure.holder, [job_key(self.job_id)], at_end="vacate", alive=tenure.alive)
        try:
            before, after = self.handle.catalog.transact(lambda tx: self._claim(tx, tenure, take_over=take_over))
        except BaseException:
            runners.forget(tenure.holder)
            raise
        self.incarnation = tenure.incarnation = after.incarnation
        if after.incarnation != before.incarnation:
            self._log_claim(before, after)
        return after

    def entered(self, tenure: Tenure) -> bool:
        """Return True if the job's record names the tenure, which has not left since."""
        return self.handle.runners.keeps(tenure.holder)

    def leave(self, tenure: Tenure) -> None:
        """End the tenure. If the catalog cannot be told now, the next renewal of leases does it."""
        with suppress(EpochlogError):
            self.handle.runners.release(tenure.holder)

    def check(self, job: JobRecord, tenure: Tenure) -> None:
        """Raises Fenced or JobParked when the tenure may not go on, JobRunning when another of its handle runs the
        job.
        """
        assert tenure.incarnation is not None
        check_incarnation(job, tenure.incarnation)
        require_unparked(job)
        other = job.runner
        if other is not None and other.holder != tenure.holder and not self.handle.runners.gone(other.holder):
            self.handle.catalog.read(lambda view: require_free(view, self.handle, job, tenure.holder))

    def _standing(self, view: View) -> JobRecord:
        job = get_job(view, self.job_id, self.name)
        require_consistent_job(view, job, inputs_of(view, self.handle, job))
        return job

    def _claim(self, tx: Txn, tenure: Tenure, *, take_over: bool) -> tuple[JobRecord, JobRecord]:
        """Enter the tenure, in a transaction; return the job before (with the runner that was alive) and after."""
        job = get_job(tx, self.job_id, self.name)
        if not take_over:
            if tenure.incarnation is not None:
                check_incarnation(job, tenure.incarnation)
            require_free(tx, self.handle, job, tenure.holder)
        other = live_runner(tx, self.handle, job)
        mine = tenure.incarnation == job.incarnation and (other is None or other.holder == tenure.holder)
        runner = new_runner(tx, self.handle, tenure.holder, tenure.kind)
        after = replace(job, incarnation=job.incarnation + (not mine), runner=runner)
        tx.put(job_key(job.id), after.to_record())
        return replace(job, runner=other), after

    def _log_claim(self, before: JobRecord, after: JobRecord) -> None:
        assert after.runner is not None
        now_ms = self.handle.catalog.now_ms()
        taken = f", taken over from {describe_runner(before.runner, now_ms)}" if before.runner is not None else ""
        how, at = describe_runner(after.runner, now_ms), show_epoch(after.position)
        _log.info("job %r: run by %s, incarnation %d, from epoch %s on%s", self.name, how, after.incarnation, at, taken)


def inputs_of(view: View, handle: Handle, job: JobRecord) -> EpochView:
    """Read the epochs of the tables that the job reads, and of their ancestors; of no other table."""
    return read_epoch_view(view, handle.memory, handle.catalog.now_ms(), above=job.upstreams)
