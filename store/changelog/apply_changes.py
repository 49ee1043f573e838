"""Writing of rows, or rows of a change feed, into a table's segment writer."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from epochlog.errors import InvalidInput, SchemaMismatch
from epochlog.store.sst.merge import sorted_unique
from epochlog.store.sst.segment_writer import SegmentWriter
from epochlog.store.types.key_codec import KeyCodec
from epochlog.store.types.schema import TableSchema

from .change_rows import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION, DELETE, INSERT, UPDATE_POST, UPDATE_PRE, UPSERT

_CHANGE_COLUMNS = (CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP)
Cast = Callable[[TableSchema, pa.Table], pa.Table]


def _without_cast(_: TableSchema, table: pa.Table) -> pa.Table:
    return table


def take_rows(
    writer: SegmentWriter, schema: TableSchema, table: pa.Table, *, deletes: bool = False, cast: Cast = _without_cast
) -> None:
    """Write rows, keys to delete (`deletes`), or rows of a change feed, which have a column `_change_type`.

    cast: converts the columns of foreign rows to those of the table. Raises InvalidInput, SchemaMismatch.
    """
    if deletes:
        writer.delete(cast(schema, table))
    elif CHANGE_TYPE in table.column_names:
        _write_changes(writer, schema, table, cast)
    else:
        writer.upsert(cast(schema, table))


def _write_changes(writer: SegmentWriter, schema: TableSchema, table: pa.Table, cast: Cast) -> None:
    """Write the last change of each key; skip pre-images."""
    kinds = table.column(CHANGE_TYPE)
    known = pc.is_in(kinds, pa.array([INSERT, UPSERT, UPDATE_POST, DELETE, UPDATE_PRE]))
    if not pc.all(known, min_count=0).as_py():
        bad = kinds.filter(pc.invert(known))[0].as_py()
        raise InvalidInput(
            f"table {schema.name}, column {CHANGE_TYPE!r}: {bad!r} is not a type of change; use insert, upsert, "
            "update_postimage, delete or update_preimage"
        )
    missing = [name for name in schema.delete_columns if name not in table.column_names]
    if missing:
        kind = "primary-key column" if missing[0] in schema.primary_key else "sequence column"
        raise SchemaMismatch(f"table {schema.name}: {kind} {missing[0]!r} is missing from the changes")
    table = table.filter(pc.not_equal(kinds, UPDATE_PRE))
    rows = cast(schema, table.drop_columns([name for name in _CHANGE_COLUMNS if name in table.column_names]))
    keys = schema.conform_keys(rows.select(schema.primary_key))
    typed_rows = rows.append_column(CHANGE_TYPE, table.column(CHANGE_TYPE))
    if schema.sequence_by is not None:  # the writer compares the sequences; deletes first, so that rows win no tie
        deleted = pc.equal(typed_rows.column(CHANGE_TYPE), DELETE)
        writer.delete(typed_rows.filter(deleted).select(schema.delete_columns))
        writer.upsert(typed_rows.filter(pc.invert(deleted)).drop_columns([CHANGE_TYPE]))
        return
    newest = sorted_unique(KeyCodec(schema.schema, schema.primary_key).encode(keys), typed_rows).data
    deleted = pc.equal(newest.column(CHANGE_TYPE), DELETE)
    writer.delete(newest.filter(deleted).select(schema.primary_key))
    writer.upsert(newest.filter(pc.invert(deleted)).drop_columns([CHANGE_TYPE]))
