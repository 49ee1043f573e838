"""Rebuild of a job's outputs from the upstreams' rows at one epoch.

The commit of a rebuild is one log entry with the difference to the old rows. The old rows stay readable until then,
and downstream views take in only the difference.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from epochlog.errors import TableFinished
from epochlog.store.catalog.keys import job_key
from epochlog.store.catalog.protocol import Txn
from epochlog.store.commit.boundaries import force_within
from epochlog.store.metadata.definitions import Counters, JobRecord
from epochlog.store.metadata.lookups import get_job, get_table, get_version
from epochlog.store.metadata.staged_segments import discard_staged
from epochlog.store.scan.scan_plan import BATCH_ROWS, ScanPlan
from epochlog.store.sst.merge import lookup
from epochlog.store.sst.segment import Segment
from epochlog.store.sst.segment_writer import SegmentWriter, WriteTarget
from epochlog.store.types.epoch import show_epoch
from epochlog.store.types.key_range import KeyRange
from epochlog.store.types.null_safe_equal import same_rows
from epochlog.store.types.read_options import ReadOptions

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


# ---- the difference ------------------------------------------------------------------------------------------------


def difference(target: WriteTarget, old: ScanPlan, new: ScanPlan) -> list[Segment]:
    """Write segments that turn the rows of `old` into those of `new`: deletes, inserts and updates.

    Hold a bounded number of rows in memory. Discard the segments on an error.
    """
    writer = SegmentWriter(target)
    merged = old.extended(new.segments)
    try:
        for key_range in merged.splits(max(1, merged.rows_at_most // BATCH_ROWS)):
            _write_difference(writer, target, old, new, key_range)
        return writer.finish()
    except BaseException:
        writer.discard()
        raise


def _write_difference(
    writer: SegmentWriter, target: WriteTarget, old: ScanPlan, new: ScanPlan, key_range: KeyRange
) -> None:
    names, files = target.schema.schema.names, target.files
    options = ReadOptions(names, None, key_range)
    before, after = old.rows(files, options), new.rows(files, options)
    deleted = lookup(after.keys, before.keys) < 0
    writer.delete(before.data.filter(pa.array(deleted)).select(list(target.schema.primary_key)))
    positions = lookup(before.keys, after.keys)
    common = np.flatnonzero(positions >= 0)
    changed = np.ones(len(after), np.bool_)
    old_rows = before.data.take(pa.array(positions[common])).select(names).combine_chunks()
    new_rows = after.data.take(pa.array(common)).select(names).combine_chunks()
    changed[common] = ~same_rows(old_rows, new_rows)
    writer.upsert(after.data.filter(pa.array(changed)).select(names))
