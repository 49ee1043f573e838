"""Writing of rows, or rows of a change feed, into a table's segment writer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochlog.errors import InvalidInput, SchemaMismatch
from epochlog.store.sst.merge import lookup, sorted_unique
from epochlog.store.sst.segment_writer import SegmentWriter
from epochlog.store.types.key_codec import KeyCodec
from epochlog.store.types.schema import TableSchema

from .change_rows import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION, DELETE, INSERT, UPDATE_POST, UPDATE_PRE, UPSERT
from .event_shape import WHOLE_ROWS, EventShape

_CHANGE_COLUMNS = (CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP)
Cast = Callable[[TableSchema, pa.Table], pa.Table]


def _without_cast(_: TableSchema, table: pa.Table) -> pa.Table:
    return table


def take_rows(
    writer: SegmentWriter,
    schema: TableSchema,
    table: pa.Table,
    *,
    deletes: bool = False,
    cast: Cast = _without_cast,
    shape: EventShape = WHOLE_ROWS,
) -> None:
    """Write rows, keys to delete (`deletes`), or rows of a change feed, which have a column `_change_type`.

    cast: converts the columns of foreign rows to those of the table. shape: of rows, not of keys. Raises InvalidInput,
    SchemaMismatch.
    """
    if deletes:
        writer.delete(cast(schema, table))
        return
    if shape != WHOLE_ROWS:
        table = shape.apply(table)
    if CHANGE_TYPE in table.column_names:
        _write_changes(writer, schema, table, cast, shape)
    elif shape.updates:
        writer.update(cast(schema, table), ignore_nulls=shape.ignore_nulls)
    else:
        writer.upsert(cast(schema, table))


def _write_changes(writer: SegmentWriter, schema: TableSchema, table: pa.Table, cast: Cast, shape: EventShape) -> None:
    """Write the last change of each key; skip pre-images. Updates after the last delete of a key all count."""
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
    encoded = KeyCodec(schema.schema, schema.primary_key).encode(keys)
    if shape.updates:
        _write_updates(writer, schema, encoded, typed_rows, shape)
        return
    newest = sorted_unique(encoded, typed_rows).data
    deleted = pc.equal(newest.column(CHANGE_TYPE), DELETE)
    writer.delete(newest.filter(deleted).select(schema.primary_key))
    writer.upsert(newest.filter(pc.invert(deleted)).drop_columns([CHANGE_TYPE]))


def _write_updates(
    writer: SegmentWriter, schema: TableSchema, keys: pa.Array, typed_rows: pa.Table, shape: EventShape
) -> None:
    """Write the deletes of all keys that have one, then the updates that come after the last delete of their key."""
    deleted = pc.equal(typed_rows.column(CHANGE_TYPE), DELETE).to_numpy()
    places = pa.array(np.arange(len(keys)))
    last = sorted_unique(keys.filter(pa.array(deleted)), pa.table({"at": places.filter(pa.array(deleted))}))
    at = lookup(last.keys, keys)
    ends = np.append(last.data.column("at").to_numpy(), -1)[at]  # -1: no delete
    remaining = ~deleted & (np.arange(len(keys)) > ends)
    rows = typed_rows.drop_columns([CHANGE_TYPE])
    writer.delete(typed_rows.filter(pa.array(deleted)).select(schema.primary_key))
    writer.update(rows.filter(pa.array(remaining)), ignore_nulls=shape.ignore_nulls)
