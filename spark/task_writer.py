"""Writer of one Spark task's rows into segments, which are durable at once and visible after the driver's commit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from epochlog.store.changelog.apply_changes import take_rows
from epochlog.store.changelog.event_shape import WHOLE_ROWS, EventShape
from epochlog.store.sst.segment import Segment
from epochlog.store.sst.segment_writer import SegmentWriter, WriteTarget

from .types import filled_from_spark, from_spark
from .worker_gc import freeze_loaded_objects

GATHER_ROWS = 1 << 18
GATHER_BYTES = 64 << 20


def write_batches(
    target: WriteTarget,
    batches: Iterable[pa.RecordBatch],
    *,
    deletes: bool = False,
    shape: EventShape = WHOLE_ROWS,
    fill: bool = False,
) -> list[Segment]:
    """Write the rows into segments; return these, oldest first: of two rows with one key the later wins.

    An optional column `_change_type` marks deletes. With `deletes` all rows are keys to delete. fill: True adds missing
    nullable columns with nulls. Raises SchemaMismatch, which names table and column.
    """
    freeze_loaded_objects()
    writer = SegmentWriter(target)
    for table in gather_batches(batches):
        cast = filled_from_spark if fill else from_spark
        take_rows(writer, target.schema, table, deletes=deletes, cast=cast, shape=shape)
    return writer.finish()


def gather_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield tables of bounded size, each joined from several of Spark's batches."""
    pending: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        pending.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= GATHER_ROWS or size >= GATHER_BYTES:
            yield pa.Table.from_batches(pending)
            pending, rows, size = [], 0, 0
    if pending:
        yield pa.Table.from_batches(pending)
