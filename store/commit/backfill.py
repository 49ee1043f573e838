"""Recording of backfill chunks: the staged segments of a chunk, and the cursor at which the next chunk begins, in one
transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from epochlog.errors import BarrierChanged, CatalogUnavailable, EpochlogError, StoreClosed
from epochlog.store.catalog.keys import job_key, unreachable_key
from epochlog.store.catalog.protocol import ReadTxn, Txn
from epochlog.store.env.failpoints import hit
from epochlog.store.metadata.counters import move_counters
from epochlog.store.metadata.definitions import Counters, Cursor, JobRecord
from epochlog.store.metadata.lookups import get_job
from epochlog.store.metadata.reachable_files import files_of
from epochlog.store.metadata.staged_segments import discard_staged, stage_segments
from epochlog.store.sst.segment import Segment
from epochlog.store.sst.segment_writer import remove_segments

from .change import TableChange, check_segments
from .failures import DEFINITE_JOB_FAILURES
from .job_commit import check_incarnation, check_runner
from .prepared import Prepared
from .transaction import use_up

if TYPE_CHECKING:
    from epochlog.store.session.handle import Handle


@dataclass(frozen=True, slots=True)
class BackfillChunk:
    """Backfill chunk of a job, and the records that it requires in the catalog: the runner's incarnation, the
    barrier, and the cursor at which the chunk began (None: the first chunk).
    """

    job_id: int
    name: str
    incarnation: int
    prev: int
    curr: int
    began: Cursor | None
    ended: Cursor


def record_chunk(handle: Handle, chunk: BackfillChunk, changes: Sequence[TableChange]) -> None:
    """Record a backfill chunk; recording it twice is a no-op.

    Raises Fenced, JobParked, JobNotFound, BarrierChanged, SegmentUnknown.
    """
    for change in changes:
        check_segments(handle, change)

    def body(tx: Txn) -> None:
        job = get_job(tx, chunk.job_id, chunk.name)
        check_runner(job, chunk.incarnation, chunk.prev, chunk.curr)
        if job.cursor == chunk.ended:
            return
        if job.cursor != chunk.began:
            raise BarrierChanged(
                f"the backfill of job {job.name!r} is at {job.cursor}, not at {chunk.began}; step the job again"
            )
        counters = Counters.read(tx)
        for change in changes:
            use_up(tx, Prepared.of(change))
            if change.segments:
                stage_segments(tx, change.table_id, chunk.ended.pieces, change.segments)
        after = replace(
            job,
            cursor=chunk.ended,
            planned_version=counters.version,  # the next chunk plans with the files of this version
            progress_ms=handle.catalog.now_ms(),
            last_error=None,
            failed_ms=None,
            runner=job.runner_after_step,
        )
        tx.put(job_key(job.id), after.to_record())
        move_counters(tx, counters)

    with handle.intents.required():
        handle.catalog.transact(body)
    hit("piece:recorded")


def discard_chunks(handle: Handle, job: JobRecord, incarnation: int) -> JobRecord:
    """Discard the staged segments of a job; return the job at the beginning of its barrier. Raises Fenced."""

    def body(tx: Txn) -> JobRecord:
        current = get_job(tx, job.id, job.name)
        check_incarnation(current, incarnation)
        discard_staged(tx, current.outputs, handle.catalog.now_ms())
        after = replace(current, cursor=None)
        tx.put(job_key(job.id), after.to_record())
        move_counters(tx, Counters.read(tx))
        return after

    return handle.catalog.transact(body)


def discard_refused(
    handle: Handle, error: EpochlogError, changes: Sequence[TableChange], state: Sequence[Segment] = ()
) -> None:
    """Delete the files of a failed commit or backfill chunk, except files that the catalog knows. state: segments of
    a view's state.
    """
    if not isinstance(error, DEFINITE_JOB_FAILURES):
        return

    def unknown(view: ReadTxn, change: TableChange) -> list[Segment]:
        known = files_of(view, change.table_id)
        return [
            segment
            for segment in (*change.segments, *state)
            if segment.path not in known and view.get(unreachable_key(change.table_id, segment.path)) is None
        ]

    with suppress(CatalogUnavailable, StoreClosed):
        for change in changes:
            if change.segments or state:
                remove_segments(handle.files, handle.catalog.read(lambda view, change=change: unknown(view, change)))
