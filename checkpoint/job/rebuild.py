"""Rebuild of a job's outputs from the upstreams' rows at one epoch.

The commit of a rebuild is one log entry with the difference to the old rows. The old rows stay readable until then,
and downstream views take in only the difference.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from epochlog.errors import TableFinished
from epochlog.store.catalog.keys import job_key
from epochlog.store.catalog.protocol import Txn
from epochlog.store.commit.boundaries import force_within
from epochlog.store.env.log_events import JOB_REBUILD
from epochlog.store.metadata.definitions import Counters, JobRecord
from epochlog.store.metadata.lookups import get_job, get_table, get_version
from epochlog.store.metadata.staged_segments import discard_staged
from epochlog.store.types.epoch import show_epoch

if TYPE_CHECKING:
    from epochlog.store.session.handle import Handle


def request_rebuild(handle: Handle, job_id: int, name: str) -> None:
    """Record on the job that its next barrier rebuilds the outputs; its runner does that in its next step.

    Force a boundary for the rebuild, and drop the barrier in flight: its commit is refused. Raises TableFinished.
    """

    def body(tx: Txn) -> None:
        job = get_job(tx, job_id, name)
        last_read = Counters.read(tx).last_epoch  # readers may have read the outputs as complete through it
        boundary = force_within(tx, handle, above=last_read)
        tx.put(job_key(job.id), rebuilding(tx, handle, job, boundary).to_record())

    handle.catalog.transact(body)
    handle.log(JOB_REBUILD, job=name)


def rebuilding(tx: Txn, handle: Handle, job: JobRecord, boundary: int) -> JobRecord:
    """Return the job's record with a rebuild at or after `boundary`, and without its barrier in flight.

    Raises TableFinished. Call inside a transaction.
    """
    safe_epoch = _readable_from(tx, job)
    now_ms = handle.catalog.now_ms()
    discard_staged(tx, job.outputs, now_ms)
    job = job.without_rebuild()
    return replace(
        job,
        state="creating" if job.state == "parked" else job.state,
        barrier=None,
        cursor=None,
        rebuild=boundary,
        progress_ms=now_ms,
        lost=None,
        last_error=None,
        failed_ms=None,
        superseded=tuple(epoch for epoch in job.superseded if not epoch < job.position <= safe_epoch),
    )


def _readable_from(tx: Txn, job: JobRecord) -> int:
    """Return the lowest safe epoch of the outputs; raise TableFinished if the job has ended."""
    safe_epochs: list[int] = []
    for table_id in job.outputs:
        table = get_table(tx, table_id, f"output of {job.name}")
        version = get_version(tx, table_id, table.name)
        safe_epochs.append(version.safe_epoch)
        end = version.end_epoch
        if end is not None:
            raise TableFinished(
                f"job {job.name!r} is finished: the data of its output {table.name!r} ended at {show_epoch(end)}, so "
                "it takes no more commits; create another job with other outputs"
            )
    return min(safe_epochs)
