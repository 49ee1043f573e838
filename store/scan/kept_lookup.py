"""Files of kept deletes: writing them, and looking up keys in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from epochlog.store.env.files import Files
from epochlog.store.metadata.kept_deletes import DELETED_AT, KeptFile
from epochlog.store.sst.merge import Rows, lookup
from epochlog.store.sst.segment import Segment, write_segment
from epochlog.store.types.arrays import from_numpy, to_numpy
from epochlog.store.types.key_codec import KeyCodec
from epochlog.store.types.schema import TableSchema

from .point_lookup import PointReader


@dataclass(frozen=True, slots=True)
class FoundDeletes:
    """Kept deletes of some keys."""

    at: np.ndarray
    """Int64, ascending indices of these keys."""
    sequence: pa.Array
    """Their sequences as a column."""
    epochs: np.ndarray
    """Int64, when they were deleted."""


def kept_schema(table: TableSchema) -> TableSchema:
    """Return the schema of a table's kept deletes: the columns of the key and of the sequence, with their field ids and
    in all versions, by which they are found in files that were written under other names.
    """
    return _of_deletes(table).with_lineage(tuple(map(_of_deletes, table.lineage)))


def _of_deletes(table: TableSchema) -> TableSchema:
    places = [table.schema.get_field_index(name) for name in table.delete_columns]
    fields = pa.schema([table.schema.field(place) for place in places])
    return replace(table, schema=fields, ids=tuple(table.ids[place] for place in places))


def write_kept(
    files: Files, path: str, table_id: int, table: TableSchema, deletes: Rows, epochs: np.ndarray
) -> Segment:
    """Write deletes, in key order with the columns of `kept_schema`, as a new file, durable on return.

    epochs: int64, the epoch of each delete; 0: that of the commit that the file belongs to.
    """
    schema = kept_schema(table)
    codec = KeyCodec(schema.schema, schema.primary_key)
    data = deletes.data.select(schema.schema.names).append_column(DELETED_AT, pa.array(epochs, pa.int64()))
    return write_segment(files, path, table_id, schema, codec, Rows(deletes.keys, data), extra=(DELETED_AT,))


def find_kept(files: Files, table: TableSchema, kept: Sequence[KeptFile], keys: pa.Array) -> FoundDeletes:
    """Look up keys (sorted, each once) in files of kept deletes, oldest file first; the newest file that has a key
    decides.
    """
    schema = kept_schema(table)
    assert table.sequence_by is not None
    codec = KeyCodec(schema.schema, schema.primary_key)
    reader = PointReader(files, schema, codec, (table.sequence_by, DELETED_AT))
    missing = np.arange(len(keys))
    places: list[np.ndarray] = []
    columns: list[pa.Array] = []
    epochs: list[np.ndarray] = []
    for file in reversed(kept):
        if not len(missing):
            break
        needles = keys if len(missing) == len(keys) else keys.take(from_numpy(missing))
        rows = reader.find([[file.segment]], needles)
        if rows is None:
            continue
        (hits,) = (lookup(rows.keys, needles) >= 0).nonzero()
        places.append(missing[hits])
        columns += rows.data.column(table.sequence_by).chunks
        at = to_numpy(rows.data.column(DELETED_AT))
        epochs.append(np.where(at == 0, file.epoch, at))
        missing = np.delete(missing, hits)
    if not places:
        kind = schema.schema.field(table.sequence_by).type
        return FoundDeletes(np.empty(0, np.int64), pa.array([], kind), np.empty(0, np.int64))
    at = np.concatenate(places)
    order = np.argsort(at)
    sequence = pa.concat_arrays(columns).take(from_numpy(order))
    return FoundDeletes(at[order], sequence, np.concatenate(epochs)[order])
