"""Making a job's outputs anew: from the upstreams' rows at one epoch, with one entry that is the difference to before.

Until that commit the old rows stay readable, and downstream views take in no more than what differs.
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
from epochlog.store.scan.scan_plan import BATCH_ROWS, KeyRange, ScanPlan
from epochlog.store.sst.merge import lookup
from epochlog.store.sst.segment import Segment
from epochlog.store.sst.segment_writer import SegmentWriter, WriteTarget
from epochlog.store.types.epoch import show_epoch
from epochlog.store.types.null_safe_equal import same_rows

if TYPE_CHECKING:
    from epochlog.store.session.handle import Handle


def ask_for_rebuild(handle: Handle, job_id: int, name: str) -> None:
    """Note that the job's next barrier makes its outputs anew; whoever runs the job does that with its next step.

    A boundary is forced for it. Whatever was under way is dropped: its commit is refused. Raises TableFinished.
    """

    def body(tx: Txn) -> None:
        job = get_job(tx, job_id, name)
        _refuse_ended(tx, job)
        discard_staged(tx, job.outputs, handle.catalog.now_ms())
        read = Counters.read(tx).last_epoch  # through which somebody may have read the outputs as complete
        at = force_within(tx, handle, above=read)
        after = replace(
            job,
            state="creating" if job.state == "parked" else job.state,
            barrier=None,
            cursor=None,
            rebuild=at,
            progress_ms=handle.catalog.now_ms(),
            lost=None,
            last_error=None,
            failed_ms=None,
        )
        tx.put(job_key(job.id), after.to_record())

    handle.catalog.transact(body)


def _refuse_ended(tx: Txn, job: JobRecord) -> None:
    for table_id in job.outputs:
        table = get_table(tx, table_id, f"output of {job.name}")
        end = get_version(tx, table_id, table.name).end_epoch
        if end is not None:
            raise TableFinished(
                f"job {job.name!r} is finished: the data of its output {table.name!r} ended at {show_epoch(end)}, and "
                "nothing can "
                "land in it any more; make another job with other outputs"
            )


# ---- the difference ------------------------------------------------------------------------------------------------


def difference(target: WriteTarget, old: ScanPlan, new: ScanPlan) -> list[Segment]:
    """Write segments that turn the rows of `old` into those of `new`: deletes, new rows, rows with another value.

    A bounded number of rows is in memory at a time. An error discards the segments.
    """
    writer = SegmentWriter(target)
    both = old.extended(new.segments)
    try:
        for part in both.splits(max(1, both.rows_at_most // BATCH_ROWS)):
            _differ(writer, target, old, new, part)
        return writer.finish()
    except BaseException:
        writer.discard()
        raise


def _differ(writer: SegmentWriter, target: WriteTarget, old: ScanPlan, new: ScanPlan, part: KeyRange) -> None:
    names, files = target.schema.schema.names, target.files
    before, after = old.rows(files, names, key_range=part), new.rows(files, names, key_range=part)
    gone = lookup(after.keys, before.keys) < 0
    writer.delete(before.data.filter(pa.array(gone)).select(list(target.schema.primary_key)))
    at = lookup(before.keys, after.keys)
    known = np.flatnonzero(at >= 0)
    fresh = np.ones(len(after), np.bool_)
    left = before.data.take(pa.array(at[known])).select(names).combine_chunks()
    right = after.data.take(pa.array(known)).select(names).combine_chunks()
    fresh[known] = ~same_rows(left, right)
    writer.upsert(after.data.filter(pa.array(fresh)).select(names))
