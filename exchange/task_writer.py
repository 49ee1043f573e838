"""Writes one Spark task's rows into segments: durable when it returns, visible only when the driver commits them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from ..errors import InvalidInput, SchemaMismatch
from ..store.changes import (
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    DELETE,
    INSERT,
    UPDATE_POST,
    UPDATE_PRE,
    UPSERT,
)
from ..store.keys import KeyCodec
from ..store.merge import sorted_unique
from ..store.schema import TableSchema
from ..store.segment import Segment
from ..store.writer import SegmentWriter, WriteTarget
from .spark_types import from_spark
from .worker import settle

GATHER_ROWS = 1 << 18
GATHER_BYTES = 64 << 20
_CHANGE_COLUMNS = (CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP)


def write_batches(target: WriteTarget, batches: Iterable[pa.RecordBatch], *, deletes: bool = False) -> list[Segment]:
    """Segments of these rows, in the order in which later wins. A column `_change_type`, if there, tells deletes.

    With `deletes` the rows are keys to delete. Raises SchemaMismatch naming table and column.
    """
    settle()
    writer = SegmentWriter(target)
    for table in gathered(batches):
        take_rows(writer, target.schema, table, deletes=deletes)
    return writer.finish()


def take_rows(writer: SegmentWriter, schema: TableSchema, table: pa.Table, *, deletes: bool = False) -> None:
    """Hand rows with Spark's types to a writer of the table `schema`."""
    if deletes:
        writer.delete(from_spark(schema, table))
    elif CHANGE_TYPE in table.column_names:
        _take_changes(writer, schema, table)
    else:
        writer.upsert(from_spark(schema, table))


def _take_changes(writer: SegmentWriter, schema: TableSchema, table: pa.Table) -> None:
    """Rows of a change feed: of each key the last change counts. Old images are passed over."""
    kinds = table.column(CHANGE_TYPE)
    known = pc.is_in(kinds, pa.array([INSERT, UPSERT, UPDATE_POST, DELETE, UPDATE_PRE]))
    if not pc.all(known, min_count=0).as_py():
        bad = kinds.filter(pc.invert(known))[0].as_py()
        raise InvalidInput(
            f"table {schema.name}, column {CHANGE_TYPE!r}: {bad!r} is no change; it takes insert, upsert, "
            "update_postimage, "
            "delete and update_preimage"
        )
    missing = [name for name in schema.primary_key if name not in table.column_names]
    if missing:
        raise SchemaMismatch(f"table {schema.name}: primary-key column {missing[0]!r} is missing from the changes")
    table = table.filter(pc.not_equal(kinds, UPDATE_PRE))
    rows = from_spark(schema, table.drop_columns([name for name in _CHANGE_COLUMNS if name in table.column_names]))
    keys = schema.conform_keys(rows.select(schema.primary_key))
    marked = rows.append_column(CHANGE_TYPE, table.column(CHANGE_TYPE))
    newest = sorted_unique(KeyCodec(schema.schema, schema.primary_key).encode(keys), marked).data
    gone = pc.equal(newest.column(CHANGE_TYPE), DELETE)
    writer.delete(newest.filter(gone).select(schema.primary_key))
    writer.upsert(newest.filter(pc.invert(gone)).drop_columns([CHANGE_TYPE]))


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
