"""Drain: take in all upstream changes through a recorded boundary, and end the job's data with that commit.

The job's runner reaches that boundary as it reaches any other. `drain` waits for a query of this process, or steps the
job with the refresh of this runner's newest step. Without either it leaves the drain to the job's next runner. A
refresh that drains its own job ends it with the commit in flight or the next one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

from epochlog.errors import DrainPending, Fenced, JobNotFound, JobParked, JobRunning
from epochlog.store.catalog.keys import job_key
from epochlog.store.catalog.protocol import ReadTxn, Txn
from epochlog.store.commit.boundaries import force_within
from epochlog.store.commit.job_commit import check_incarnation
from epochlog.store.env.clock import Deadline
from epochlog.store.metadata.definitions import Counters, JobRecord
from epochlog.store.metadata.lookups import get_job
from epochlog.store.session.handle import Handle
from epochlog.store.types.epoch import show_epoch

from .claims import inputs_of
from .runner import JobRunner
from .running_queries import live

LOOK_S = 0.02


def drain(runner: JobRunner, timeout: float | timedelta | None) -> None:
    """Drain the job; return when it has finished, or when the end is recorded and no runner of this process is left.

    Raises DrainPending after `timeout` (seconds or a timedelta; None: never), JobParked, Fenced, and the errors of the
    refresh.
    """
    deadline = None if timeout is None else Deadline.after(timeout)
    record_drain(runner)
    pause, checked, ran_here = threading.Event(), False, False
    while not _finished(runner):
        if checked and deadline is not None and deadline.passed:
            raise _pending_error(runner)
        checked = True
        if (
            threading.get_ident() in runner.refreshing.values()
        ):  # called by the job's own refresh, which must return first
            return
        if live.running(runner):
            ran_here = True
            pause.wait(LOOK_S)
        elif runner.refreshing:  # another thread runs a step
            pause.wait(LOOK_S)
        elif runner.repeat_step is not None:
            if _step_again(runner.repeat_step) is None:
                pause.wait(LOOK_S)
        elif ran_here:
            if not _finished(runner):  # the query has failed, and this runner has no refresh of its own
                raise _pending_error(runner)
        else:
            return
    live.stop(runner)


def wait_for_end(runner: JobRunner, timeout: float | timedelta) -> None:
    """Wait until the job has finished, whichever process runs it. Raises DrainPending after `timeout` (seconds or a
    timedelta), JobNotFound.
    """
    deadline, pause = Deadline.after(timeout), threading.Event()
    while not _finished(runner):
        if deadline.passed:
            raise _pending_error(runner)
        pause.wait(LOOK_S)


def _step_again(step: Callable[[], int | None]) -> int | None:
    """Step once more; return None also while another runner runs the job: that runner drains it."""
    try:
        return step()
    except JobRunning:
        return None


def record_drain(runner: JobRunner) -> int | None:
    """Force a boundary, record it as the job's last one and return it. Return an already recorded one.

    Leave a finished job unchanged.
    """

    def body(tx: Txn) -> int | None:
        job = _claimed_job(tx, runner)
        if job.state == "parked":
            raise JobParked(
                f"job {job.name!r} cannot be drained: it was parked at epoch {show_epoch(job.position)}, and the logs "
                "after that epoch are deleted. Rebuild the job and then drain it, or drop it"
            )
        if job.state == "finished" or job.drain is not None:
            return job.drain
        # Readers may have read the outputs as complete through the newest epoch.
        boundary = force_within(tx, runner.handle, above=Counters.read(tx).last_epoch if job.position else 0)
        tx.put(job_key(job.id), replace(job, drain=boundary).to_record())
        return boundary

    return runner.handle.catalog.transact(body)


def record_drains(handle: Handle, runners: Collection[JobRunner]) -> int | None:
    """Force one boundary and record it as the end of all these jobs, in one transaction. Return the last end of any.

    Return None if no job is to end. Leave jobs unchanged that are finished, dropped, parked or taken over by another
    runner, or whose end is recorded.
    """

    def body(tx: Txn) -> int | None:
        boundary: int | None = None
        ends: list[int] = []
        for runner in runners:
            with suppress(JobNotFound, Fenced):
                job = _claimed_job(tx, runner)
                if job.state in ("parked", "finished"):
                    continue
                if job.drain is None:
                    # Readers may have read the outputs as complete through the newest epoch.
                    boundary = boundary or force_within(tx, handle, above=Counters.read(tx).last_epoch)
                    job = replace(job, drain=boundary)
                    tx.put(job_key(job.id), job.to_record())
                ends.append(job.drain or 0)
        return max(ends, default=None)

    return handle.catalog.transact(body)


def _claimed_job(tx: Txn, runner: JobRunner) -> JobRecord:
    """Return the runner's job. Raises JobNotFound, and Fenced if another runner has claimed it since."""
    job = get_job(tx, runner.job_id, runner.name)
    if runner.incarnation is not None:
        check_incarnation(job, runner.incarnation)
    return job


def _finished(runner: JobRunner) -> bool:
    return runner.record().state == "finished"


def _pending_error(runner: JobRunner) -> DrainPending:
    job, waits = runner.handle.catalog.read(lambda view: _read_incomplete_upstreams(view, runner))
    details = f"; it waits for {', '.join(map(repr, waits))} to reach that epoch" if waits else ""
    details += f"; its newest attempt failed with {job.last_error}" if job.last_error else ""
    return DrainPending(
        f"job {job.name!r} is at epoch {show_epoch(job.position)} and ends when it has processed all changes through "
        f"{show_epoch(job.drain)}{details}. The end is recorded, and the job's runner ends it: wait for it by "
        f"job.stop(drain=True), or `epochlog stop STORE {job.name} --drain --wait SECONDS`"
    )


def _read_incomplete_upstreams(view: ReadTxn, runner: JobRunner) -> tuple[JobRecord, list[str]]:
    """Return the job, and the names of its upstreams that are not complete through the drain's end."""
    job, handle = get_job(view, runner.job_id, runner.name), runner.handle
    epochs = inputs_of(view, handle, job)
    return job, [epochs.table(up).name for up in job.upstreams if not epochs.complete(up, job.drain or 0)]
