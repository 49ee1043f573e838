"""Change rows made from the rows of log epochs: each change with the row that it replaces.

Pure: reads no files. Positions are int64 row numbers in a Pool; -1 stands for no row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochlog.store.sst.merge import Rows, lookup
from epochlog.store.types.arrays import from_bytes, from_numpy, to_numpy
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
_TYPES = from_bytes([kind.encode() for kind in (INSERT, UPDATE_PRE, UPDATE_POST, DELETE, UPSERT)], pa.string())
_INSERT, _UPDATE_PRE, _UPDATE_POST, _DELETE, _UPSERT = range(5)
_SMALL_BATCH_ROWS = 1 << 12
_LARGE_EPOCH_ROWS = 1 << 9
"""Rows of a log epoch from which on its keys are searched by themselves, rather than with those of its neighbours."""


@dataclass(frozen=True, slots=True)
class Touches:
    """Changes of several log epochs, concatenated: oldest epoch first, each in key order."""

    keys: pa.Array
    data: pa.Table
    deleted: np.ndarray
    labels: np.ndarray
    """Int64, the log epoch of each row."""

    def __len__(self) -> int:
        return len(self.keys)


@dataclass(frozen=True, slots=True)
class ByKey:
    """Touches sorted by key, then epoch. first, last: bool masks of each key's first and last touch."""

    order: np.ndarray
    """Their int64 positions."""
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
    """Cut a batch of changes at each new log epoch; yield (epoch, rows) in order."""
    epochs = to_numpy(batch.column(COMMIT_VERSION))
    cuts = [0, *(np.flatnonzero(np.diff(epochs)) + 1).tolist(), len(epochs)] if len(epochs) else []
    for start, stop in pairwise(cuts):
        yield int(epochs[start]), batch.slice(start, stop - start)


def newest_of_each_epoch(touches: Touches) -> Touches:
    """Return the last change of each key in each log epoch, by log epoch and key. An epoch's changes may come in any
    order of keys.
    """
    order = sort_indices(touches.keys)
    if touches.labels[0] != touches.labels[-1]:
        order = order[np.argsort(touches.labels[order], kind="stable")]
    labels, last = touches.labels[order], last_of_each(touches.keys.take(from_numpy(order)))
    last[:-1] |= labels[1:] != labels[:-1]
    chosen = order[last]
    at = from_numpy(chosen)
    data = touches.data.combine_chunks().take(at) if touches.data.num_columns else touches.data
    return Touches(touches.keys.take(at), data, touches.deleted[chosen], touches.labels[chosen])


def positions_in(old: Touches, touches: Touches) -> np.ndarray:
    """Return for each touch the int64 position in `old` of the row of its log epoch and key; -1 for none.

    Both have each key once in a log epoch.
    """
    if not len(old):
        return np.full(len(touches), -1)
    labels, starts = np.unique(touches.labels, return_index=True)
    if len(touches) >= _LARGE_EPOCH_ROWS * len(labels):
        ends = [*starts[1:].tolist(), len(touches)]
        lows, highs = (np.searchsorted(old.labels, labels, side) for side in ("left", "right"))
        spans = zip(starts.tolist(), ends, lows.tolist(), highs.tolist(), strict=True)
        return np.concatenate(
            [
                _moved(lookup(old.keys.slice(low, high - low), touches.keys.slice(start, end - start)), low)
                for start, end, low, high in spans
            ]
        )
    keys = pa.concat_arrays([old.keys, touches.keys]).dictionary_encode()
    _, epochs = np.unique(np.concatenate([old.labels, touches.labels]), return_inverse=True)
    pairs = epochs * len(keys.dictionary) + to_numpy(keys.indices)
    known, wanted = pairs[: len(old)], pairs[len(old) :]
    order = np.argsort(known)
    places = known.searchsorted(wanted, sorter=order)
    nearest = order.take(places, mode="clip")
    return np.where(known[nearest] == wanted, nearest, -1)


def _moved(positions: np.ndarray, by: int) -> np.ndarray:
    return np.where(positions >= 0, positions + by, -1)


def end_to_end(epochs: Sequence[tuple[int, Rows]]) -> Touches:
    """Concatenate log epochs (at least one), each given by the newest change of every key that it touches."""
    parts = [rows for _, rows in epochs]
    counts = [len(rows) for rows in parts]
    marks = [np.zeros(len(rows), np.bool_) if rows.deleted is None else rows.deleted for rows in parts]
    keys = parts[0].keys if len(parts) == 1 else pa.concat_arrays([rows.keys for rows in parts])
    data = concat_nullable([rows.data for rows in parts])
    return Touches(keys, data, np.concatenate(marks), np.repeat([label for label, _ in epochs], counts))


def concat_nullable(tables: Sequence[pa.Table]) -> pa.Table:
    """Concatenate tables of equal columns; all columns become nullable."""
    return pa.concat_tables([nullable(table) for table in tables])


def nullable(table: pa.Table) -> pa.Table:
    """Return a table with all columns nullable."""
    schema = pa.schema([field.with_nullable(True) for field in table.schema])
    return pa.Table.from_arrays(table.columns, schema=schema)


def by_key(touches: Touches) -> ByKey:
    """Sort the touches by key, then epoch."""
    order = sort_indices(touches.keys)
    last = last_of_each(touches.keys.take(from_numpy(order)))
    return ByKey(order, np.insert(last[:-1], 0, True) if len(last) else last, last)


def replaced(touches: Touches, sorted_: ByKey, state: Rows) -> np.ndarray:
    """Return int64 positions of the rows that the touches replace, in a Pool of `state` (the rows before all of them),
    then `touches`; -1 for none.
    """
    order, first = sorted_.order, sorted_.first
    positions = np.empty(len(order), np.int64)
    positions[sorted_.oldest] = lookup(state.keys, touches.keys.take(from_numpy(sorted_.oldest)))
    if not first.all():
        repeated = np.flatnonzero(~first)
        earlier = order[repeated - 1]
        positions[order[repeated]] = np.where(touches.deleted[earlier], -1, earlier + len(state))
    return positions


class Pool:
    """Rows of several tables of equal columns, concatenated; each column is concatenated at its first use."""

    def __init__(self, tables: Sequence[pa.Table]) -> None:
        self._tables = [table for table in tables if table.num_rows] or list(tables[:1])
        self._columns: dict[str, pa.Array] = {}

    def taken(self, name: str, positions: np.ndarray | pa.Array) -> pa.Array:
        """Return a column's values at the positions; null at null."""
        if name not in self._columns:
            chunks = [chunk for table in self._tables for chunk in table.column(name).chunks]
            self._columns[name] = (
                chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks) if chunks else self._empty_column(name)
            )
        at = positions if isinstance(positions, pa.Array) else from_numpy(positions)
        return pc.take(self._columns[name], at, boundscheck=False)

    def schema(self, names: Sequence[str]) -> pa.Schema:
        """Return the schema of change rows with these columns, all nullable."""
        fields = [self._tables[0].schema.field(name).with_nullable(True) for name in names]
        return pa.schema([*fields, *CHANGE_FIELDS])

    def differing(self, left: np.ndarray, right: np.ndarray, key: Sequence[str]) -> np.ndarray:
        """Return bool[len]: True where two rows of one key differ in any column. Narrow columns are compared first."""
        fields = [field for field in self._tables[0].schema if field.name not in key]
        undecided = np.arange(len(left))
        for field in sorted(fields, key=lambda field: _width(field.type)):
            if not len(undecided):
                break
            same = same_values(self.taken(field.name, left[undecided]), self.taken(field.name, right[undecided]))
            undecided = undecided[same]
        differ = np.ones(len(left), np.bool_)
        differ[undecided] = False
        return differ

    def _empty_column(self, name: str) -> pa.Array:
        return pa.nulls(0, self._tables[0].schema.field(name).type)


def _width(kind: pa.DataType) -> int:
    try:
        return kind.bit_width
    except ValueError:
        return 1 << 16


def cheap_rows(touches: Touches, names: Sequence[str], positions: np.ndarray | None = None) -> pa.Table:
    """Return change rows without pre-images of the touches at `positions` (None: all): upserts, and deletes, of which
    only the key columns are set.
    """
    data, deleted, labels = touches.data.select(names), touches.deleted, touches.labels
    if positions is not None:
        data = data.combine_chunks().take(from_numpy(positions))
        deleted, labels = deleted[positions], labels[positions]
    elif data.num_columns and data.num_rows < _SMALL_BATCH_ROWS * data.column(0).num_chunks:
        data = data.combine_chunks()  # one batch in place of one for each small epoch
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
    """Return change rows with pre-images: insert, both sides of an update, delete. Unchanged rows give none.

    Change i replaces row old[i] of the pool by new[i], or deletes it (then new[i] is its tombstone). key: the columns
    in which the old and the new row are equal.
    """
    has_old, has_new = old >= 0, ~deleted
    updates = np.flatnonzero(has_old & has_new)
    unchanged = updates[~pool.differing(old[updates], new[updates], key)]
    has_old[unchanged] = has_new[unchanged] = False
    # two slots for each change: its old row, then its new one
    slots, kinds = np.empty((len(old), 2), np.int64), np.empty((len(old), 2), np.int8)
    slots[:, 0], slots[:, 1] = old, new
    kinds[:, 0] = np.where(has_new, _UPDATE_PRE, _DELETE)
    kinds[:, 1] = np.where(has_old, _UPDATE_POST, _INSERT)
    used = np.flatnonzero(np.stack((has_old, has_new), axis=1).ravel())
    # Key columns come from the new row or its tombstone: every change has one of them.
    positions, keys = slots.ravel().take(used), new.take(used >> 1)
    columns = [pool.taken(name, keys if name in key else positions) for name in names]
    change = change_columns(kinds.ravel().take(used), labels.take(used >> 1))
    return pa.Table.from_arrays([*columns, *change], schema=pool.schema(names))


def change_columns(kinds: np.ndarray | str, labels: np.ndarray) -> list[pa.Array]:
    """Return the columns of CHANGE_FIELDS for rows of these types (indices in _TYPES; or all of one type) and log
    epochs.
    """
    if isinstance(kinds, str):
        types = pa.repeat(*from_bytes([kinds.encode()], pa.string()), len(labels))
    else:
        types = _types(kinds)
    times = from_numpy(((labels >> SEQUENCE_BITS) + to_unix_ms(0)) * 1000)
    return [types, from_numpy(labels), times.view(CHANGE_FIELDS[2].type)]


def change_kinds(deleted: np.ndarray) -> pa.Array:
    """Return the column CHANGE_TYPE of changes without pre-images: delete where `deleted` is True, else upsert."""
    return _types(np.where(deleted, _DELETE, _UPSERT))


def _types(kinds: np.ndarray) -> pa.Array:
    return pc.take(_TYPES, from_numpy(kinds), boundscheck=False)
