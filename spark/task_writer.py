"""Writes one Spark task's rows into segments: durable when it returns, visible only when the driver commits them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from epochlog.store.changelog.apply_changes import take_rows
from epochlog.store.sst.segment import Segment
from epochlog.store.sst.segment_writer import SegmentWriter, WriteTarget

from .types import from_spark
from .worker_gc import settle

GATHER_ROWS = 1 << 18
GATHER_BYTES = 64 << 20


def write_batches(target: WriteTarget, batches: Iterable[pa.RecordBatch], *, deletes: bool = False) -> list[Segment]:
    """Segments of these rows, in the order in which later wins. A column `_change_type`, if there, tells deletes.

    With `deletes` the rows are keys to delete. Raises SchemaMismatch naming table and column.
    """
    settle()
    writer = SegmentWriter(target)
    for table in gathered(batches):
        take_rows(writer, target.schema, table, deletes=deletes, cast=from_spark)
    return writer.finish()


def gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Spark's batches joined into fewer of bounded size."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        held.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= GATHER_ROWS or size >= GATHER_BYTES:
            yield pa.Table.from_batches(held)
            held, rows, size = [], 0, 0
    if held:
        yield pa.Table.from_batches(held)
