"""Change rows, made from the rows of log epochs: which row each change replaces, and both sides of it by each other.

Pure: no file is read here. Positions are int64 places in a Pool; -1 stands for no row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochlog.store.sst.merge import Rows, lookup
from epochlog.store.types.epoch import SEQUENCE_BITS, to_unix_ms
from epochlog.store.types.key_codec import last_of_each, sort_indices
from epochlog.store.types.null_safe_equal import same_values

CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP = "_change_type", "_commit_version", "_commit_timestamp"
CHANGE_FIELDS = (
    pa.field(CHANGE_TYPE, pa.string(), nullable=False),
    pa.field(COMMIT_VERSION, pa.int64(), nullable=False),
    pa.field(COMMIT_TIMESTAMP, pa.timestamp("us", tz="UTC"), nullable=False),
)
INSERT, UPDATE_PRE, UPDATE_POST, UPSERT, DELETE = "insert", "update_preimage", "update_postimage", "upsert", "delete"
_TYPES = pa.array([INSERT, UPDATE_PRE, UPDATE_POST, DELETE, UPSERT])
_INSERT, _UPDATE_PRE, _UPDATE_POST, _DELETE, _UPSERT = range(5)
_SMALL_BATCH_ROWS = 1 << 12


@dataclass(frozen=True, slots=True)
class Touches:
    """Changes of several log epochs end to end, oldest first, each in key order. labels: int64, the log epoch of each
    row.
    """

    keys: pa.Array
    data: pa.Table
    deleted: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.keys)


@dataclass(frozen=True, slots=True)
class ByKey:
    """Touches sorted by key, then epoch: `order` are their places; `first` and `last` tell those of each key."""

    order: np.ndarray
    first: np.ndarray
    last: np.ndarray

    @property
    def oldest(self) -> np.ndarray:
        """Return the position of each key's first touch, in key order."""
        return self.order[self.first]

    @property
    def newest(self) -> np.ndarray:
        """Return the position of each key's last touch, in key order."""
        return self.order[self.last]


def each_epoch(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Cut a batch of changes at each new log epoch; yield (epoch, its rows) in their order."""
    epochs = batch.column(COMMIT_VERSION).to_numpy()
    cuts = [0, *(np.flatnonzero(np.diff(epochs)) + 1).tolist(), len(epochs)] if len(epochs) else []
    for start, stop in pairwise(cuts):
        yield int(epochs[start]), batch.slice(start, stop - start)


def end_to_end(epochs: Sequence[tuple[int, Rows]]) -> Touches:
    """Join log epochs (at least one), each with the newest change of every key that it touches, end to end."""
    found = [rows for _, rows in epochs]
    counts = [len(rows) for rows in found]
    marks = [np.zeros(len(rows), np.bool_) if rows.deleted is None else rows.deleted for rows in found]
    keys = found[0].keys if len(found) == 1 else pa.concat_arrays([rows.keys for rows in found])
    data = stacked([rows.data for rows in found])
    return Touches(keys, data, np.concatenate(marks), np.repeat([label for label, _ in epochs], counts))


def stacked(tables: Sequence[pa.Table]) -> pa.Table:
    """Join tables of equal columns end to end; all columns become nullable."""
    schema = pa.schema([field.with_nullable(True) for field in tables[0].schema])
    return pa.concat_tables([pa.Table.from_arrays(table.columns, schema=schema) for table in tables])


def by_key(touches: Touches) -> ByKey:
    order = sort_indices(touches.keys)
    last = last_of_each(touches.keys.take(pa.array(order)))
    return ByKey(order, np.insert(last[:-1], 0, True) if len(last) else last, last)


def replaced(touches: Touches, sorted_: ByKey, state: Rows) -> np.ndarray:
    """Return int64 positions of the rows that the touches replace, in a Pool of `state` (the rows before all of them),
    then `touches`; -1 for none.
    """
    order, first = sorted_.order, sorted_.first
    places = np.empty(len(order), np.int64)
    places[sorted_.oldest] = lookup(state.keys, touches.keys.take(pa.array(sorted_.oldest)))
    if not first.all():
        again = np.flatnonzero(~first)
        earlier = order[again - 1]
        places[order[again]] = np.where(touches.deleted[earlier], -1, earlier + len(state))
    return places


class Pool:
    """Rows of several tables of the same columns, end to end; a column is laid out when it is first asked for."""

    def __init__(self, tables: Sequence[pa.Table]) -> None:
        self._tables = [table for table in tables if table.num_rows] or list(tables[:1])
        self._columns: dict[str, pa.Array] = {}

    def taken(self, name: str, places: np.ndarray) -> pa.Array:
        if name not in self._columns:
            chunks = [chunk for table in self._tables for chunk in table.column(name).chunks]
            self._columns[name] = (
                chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks) if chunks else self._nothing(name)
            )
        return pc.take(self._columns[name], pa.array(places), boundscheck=False)

    def schema(self, names: Sequence[str]) -> pa.Schema:
        fields = [self._tables[0].schema.field(name).with_nullable(True) for name in names]
        return pa.schema([*fields, *CHANGE_FIELDS])

    def differing(self, left: np.ndarray, right: np.ndarray, key: Sequence[str]) -> np.ndarray:
        """Return bool[len]: True where two rows of one key differ in any column; narrow columns are compared first."""
        fields = [field for field in self._tables[0].schema if field.name not in key]
        alike = np.arange(len(left))
        for field in sorted(fields, key=lambda field: _width(field.type)):
            if not len(alike):
                break
            same = same_values(self.taken(field.name, left[alike]), self.taken(field.name, right[alike]))
            alike = alike[same]
        differ = np.ones(len(left), np.bool_)
        differ[alike] = False
        return differ

    def _nothing(self, name: str) -> pa.Array:
        return pa.array([], self._tables[0].schema.field(name).type)


def _width(kind: pa.DataType) -> int:
    try:
        return kind.bit_width
    except ValueError:
        return 1 << 16


def cheap_rows(touches: Touches, names: Sequence[str], places: np.ndarray | None = None) -> pa.Table:
    """Change rows without old images, of these touches (None: all): upsert, or delete with its key columns alone."""
    data, deleted, labels = touches.data.select(names), touches.deleted, touches.labels
    if places is not None:
        data, deleted, labels = data.combine_chunks().take(pa.array(places)), deleted[places], labels[places]
    elif data.num_columns and data.num_rows < _SMALL_BATCH_ROWS * data.column(0).num_chunks:
        data = data.combine_chunks()  # one batch rather than one for each small epoch
    kinds = np.where(deleted, _DELETE, _UPSERT) if deleted.any() else UPSERT
    schema = pa.schema([*(field.with_nullable(True) for field in data.schema), *CHANGE_FIELDS])
    return pa.Table.from_arrays([*data.columns, *change_columns(kinds, labels)], schema=schema)


def image_rows(
    pool: Pool,
    key: Sequence[str],
    names: Sequence[str],
    old: np.ndarray,
    new: np.ndarray,
    deleted: np.ndarray,
    labels: np.ndarray,
) -> pa.Table:
    """Change rows with images: insert, both sides of an update, delete; nothing where nothing changed.

    Change i replaces row old[i] of the pool by new[i], or deletes it (then new[i] is its tombstone). `key`: the columns
    that both have alike.
    """
    known, kept = old >= 0, ~deleted
    both = np.flatnonzero(known & kept)
    same = both[~pool.differing(old[both], new[both], key)]
    known[same] = kept[same] = False
    # each change has room for its old row, then for its new one
    rooms, kinds = np.empty((len(old), 2), np.int64), np.empty((len(old), 2), np.int8)
    rooms[:, 0], rooms[:, 1] = old, new
    kinds[:, 0] = np.where(kept, _UPDATE_PRE, _DELETE)
    kinds[:, 1] = np.where(known, _UPDATE_POST, _INSERT)
    taken = np.flatnonzero(np.stack((known, kept), axis=1).ravel())
    # a key is the same on both sides; and the new row is there, or its tombstone, which has it too
    places, keys = rooms.ravel().take(taken), new.take(taken >> 1)
    columns = [pool.taken(name, keys if name in key else places) for name in names]
    change = change_columns(kinds.ravel().take(taken), labels.take(taken >> 1))
    return pa.Table.from_arrays([*columns, *change], schema=pool.schema(names))


def change_columns(kinds: np.ndarray | str, labels: np.ndarray) -> list[pa.Array]:
    """Return the columns of CHANGE_FIELDS for rows of these types (indices in _TYPES; or all of one type) and log
    epochs.
    """
    if isinstance(kinds, str):
        types = pa.repeat(pa.scalar(kinds, pa.string()), len(labels))
    else:
        types = _types(kinds)
    times = pa.array(((labels >> SEQUENCE_BITS) + to_unix_ms(0)) * 1000)
    return [types, pa.array(labels), times.view(CHANGE_FIELDS[2].type)]


def change_kinds(deleted: np.ndarray) -> pa.Array:
    """Return the column CHANGE_TYPE of changes without old images: upsert, or delete where marked."""
    return _types(np.where(deleted, _DELETE, _UPSERT))


def _types(kinds: np.ndarray) -> pa.Array:
    return pc.take(_TYPES, pa.array(kinds), boundscheck=False)
