"""Compaction by Spark tasks: each runs one subcompaction of a table, and the driver plans, records and commits.

No task opens the catalog. Every attempt of a task writes files under new names, and the driver takes those of the
attempt whose result Spark returns. The files of other attempts have a write intent that ends with the compaction, and
vacuum deletes them.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from epochlog.errors import InvalidInput
from epochlog.store.catalog.keys import compact_key
from epochlog.store.catalog.records import pack, unpack
from epochlog.store.compaction.claim import CLAIM_MS
from epochlog.store.compaction.subcompaction_rewriter import SubcompactionRewriter, rewrite_in_threads
from epochlog.store.compaction.task_record import Parts, parts_from_record, parts_to_record
from epochlog.store.env.paths import RUN_ENDING, file_name
from epochlog.store.maintenance.compact_request import compact_tables
from epochlog.store.session.handle import Handle
from epochlog.store.sst.data_file import FileMissing
from epochlog.store.sst.segment_writer import WriteTarget

from .errors import find_epochlog_error
from .live_session import is_session_lost, session_lost_error
from .worker_gc import freeze_loaded_objects

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SUBCOMPACTIONS_PER_CORE = 4
"""Subcompactions in one Spark job for each task that the session runs at a time. The driver records them when the job
ends, so a compaction that dies loses at most these.
"""
_RECORD = b"parts"
_RESULT = "number long, parts binary, missing string"
_RESULT_ARROW = pa.schema([("number", pa.int64()), ("parts", pa.binary()), ("missing", pa.string())])


def compact_by_tasks(handle: Handle, table: str | None, session: SparkSession, *, full: bool) -> None:
    """Compact the L0 of one table (None: of all) into its runs, with the subcompactions of large tables as tasks of a
    session.

    Raises InvalidInput for an invalid session, SparkLost, and the typed errors of tasks.
    """
    from pyspark.sql import SparkSession

    if not isinstance(session, SparkSession):
        raise InvalidInput(f"compact: spark must be a classic SparkSession, not {session!r}")
    compact_tables(handle, table, full=full, rewrite=partial(_rewrite_by_tasks, session))


def _rewrite_by_tasks(
    session: SparkSession, handle: Handle, rewriter: SubcompactionRewriter, numbers: Sequence[int]
) -> Generator[tuple[int, Parts], None, None]:
    """Run subcompactions as Spark tasks, some of them at a time; a single one in this process."""
    if len(numbers) == 1:
        yield from rewrite_in_threads(handle, rewriter, numbers)
        return
    owner, intent, left = rewriter.work.owner, handle.intents.register("spark"), numbers
    try:
        target = handle.write_target(rewriter.table, intent)
        handle.runners.keep(owner, [compact_key(rewriter.table.id)], CLAIM_MS, at_end="leave")  # tasks wait for cores
        while left:
            new_parts = _run_tasks(session, rewriter, target, left)
            yield from new_parts
            left = left[len(new_parts) :]
    finally:
        handle.runners.forget(owner)
        handle.intents.release(intent)


def _run_tasks(
    session: SparkSession, rewriter: SubcompactionRewriter, target: WriteTarget, left: Sequence[int]
) -> list[tuple[int, Parts]]:
    """Rewrite the first of the subcompactions that are left in one Spark job, of a task each. Raises the error of a
    task with its own type, and SparkLost.
    """
    try:
        numbers = left[: SUBCOMPACTIONS_PER_CORE * session.sparkContext.defaultParallelism]  # executors come and go
        places = session.range(0, len(numbers), 1, len(numbers))
        results = places.mapInArrow(partial(_rewrite_task, rewriter, target, numbers), _RESULT).collect()
    except Exception as error:
        typed_error = find_epochlog_error(error)
        if typed_error is None and is_session_lost(session):
            typed_error = session_lost_error(f"table {rewriter.table.name!r}", "its compaction", session)
        if typed_error is None:
            raise
        raise typed_error from error
    for row in results:
        if row.missing is not None:
            raise FileMissing(row.missing, "the file is gone")
    return [(row.number, parts_from_record(unpack(_RECORD, bytes(row.parts)))) for row in results]


def _rewrite_task(
    rewriter: SubcompactionRewriter, target: WriteTarget, numbers: Sequence[int], places: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    freeze_loaded_objects()
    new_path = partial(_new_path, target)
    for batch in places:
        for place in batch.column(0).to_pylist():
            parts, missing = None, None
            try:
                parts = pack(_RECORD, parts_to_record(rewriter.rewrite(numbers[place], new_path)))
            except FileMissing as error:  # only the driver can tell if the store is damaged
                missing = error.path
            columns = [pa.array([numbers[place]]), pa.array([parts], pa.binary()), pa.array([missing], pa.string())]
            yield pa.record_batch(columns, schema=_RESULT_ARROW)


def _new_path(target: WriteTarget) -> str:
    return f"{target.folder}/{file_name(target.intent, RUN_ENDING)}"
