"""Ending a job's data: a boundary is recorded through which it takes its inputs in, and its commit there is its last.

Whoever runs the job does it, as it would any barrier: `drain` waits for a query of this process, or goes on itself with
the refresh that this runner was last given; without either it leaves the job to its next runner. A refresh that asks
for its own job's end gets it with this commit or with the next one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

from epochlog.errors import DrainPending, JobParked, JobRunning
from epochlog.store.catalog.keys import job_key
from epochlog.store.catalog.protocol import Txn, View
from epochlog.store.commit.boundaries import force_within
from epochlog.store.commit.job_commit import check_incarnation
from epochlog.store.env.clock import Deadline
from epochlog.store.metadata.definitions import Counters, JobRecord
from epochlog.store.metadata.lookups import get_job
from epochlog.store.types.epoch import show_epoch

from .claims import inputs_of
from .runner import JobRunner
from .running_queries import live

LOOK_S = 0.02


def drain(runner: JobRunner, timeout: float | timedelta | None) -> None:
    """End the job's data; returns once it is finished, or once the end is recorded and nobody here runs the job.

    Raises DrainPending after `timeout` (seconds or a timedelta; None: never), JobParked, Fenced, and what the refresh
    raises.
    """
    deadline = None if timeout is None else Deadline.after(timeout)
    record_drain(runner)
    pause, looked, ran_here = threading.Event(), False, False
    while not _finished(runner):
        if looked and deadline is not None and deadline.passed:
            raise _pending(runner)
        looked = True
        if threading.get_ident() in runner.refreshing.values():  # asked by its own refresh, which has to return first
            return
        if live.running(runner):
            ran_here = True
            pause.wait(LOOK_S)
        elif runner.refreshing:  # another thread is at a barrier
            pause.wait(LOOK_S)
        elif runner.again is not None:
            if _again(runner.again) is None:
                pause.wait(LOOK_S)
        elif ran_here:  # the query has failed, and this runner has no refresh to go on with
            raise _pending(runner)
        else:
            return
    live.stop(runner)


def _again(step: Callable[[], int | None]) -> int | None:
    """Step once more; return None also while somebody else runs the job, who will do it."""
    try:
        return step()
    except JobRunning:
        return None


def record_drain(runner: JobRunner) -> int | None:
    """Force a boundary and record it as the job's last, unless that has been done; returns it. A finished job stays as
    it is.
    """

    def body(tx: Txn) -> int | None:
        job = get_job(tx, runner.job_id, runner.name)
        if runner.incarnation is not None:
            check_incarnation(job, runner.incarnation)
        if job.state == "parked":
            raise JobParked(
                f"job {job.name!r} cannot be drained: it was parked at epoch {show_epoch(job.position)}, and the logs "
                "of what came "
                "after that are gone. Rebuild it and then drain it, or drop it"
            )
        if job.state == "finished" or job.drain is not None:
            return job.drain
        # its outputs may have been read as complete through the newest epoch
        at = force_within(tx, runner.handle, above=Counters.read(tx).last_epoch if job.position else 0)
        tx.put(job_key(job.id), replace(job, drain=at).to_record())
        return at

    return runner.handle.catalog.transact(body)


def _finished(runner: JobRunner) -> bool:
    return runner.record().state == "finished"


def _pending(runner: JobRunner) -> DrainPending:
    job, waits = runner.handle.catalog.read(lambda view: _awaited(view, runner))
    why = f"; it waits for {', '.join(map(repr, waits))}, which must get there first" if waits else ""
    why += f"; its newest attempt failed with {job.last_error}" if job.last_error else ""
    return DrainPending(
        f"job {job.name!r} stands at epoch {show_epoch(job.position)} and has not taken in everything through "
        f"{show_epoch(job.drain)} yet"
        f"{why}. Its end is recorded: whoever runs the job ends it, or call stop(drain=True) again"
    )


def _awaited(view: View, runner: JobRunner) -> tuple[JobRecord, list[str]]:
    """Return the job, and those of its upstreams that are not complete through its end."""
    job, handle = get_job(view, runner.job_id, runner.name), runner.handle
    epochs = inputs_of(view, handle, job)
    return job, [epochs.table(up).name for up in job.upstreams if not epochs.complete(up, job.drain or 0)]
