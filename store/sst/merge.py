"""Merge of sorted rows: the newest row of a key wins. The keys of the small side are searched in the large side,
without a Python object per row.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochlog.store.env.parallel import parallel_map
from epochlog.store.types.arrays import from_numpy, to_numpy
from epochlog.store.types.key_codec import Key, last_of_each, search, sort_indices

SPLIT_ROWS = 1 << 16
"""Rows of the large side that are merged at a time: both copies of a column's split fit the processor's caches."""
_MIN_CHUNK_ROWS = 1 << 12
_FEW_NEEDLES = 4
"""Number of byte strings up to which a loop in Python is faster than a call of Arrow's kernels."""
_POSITIONS = np.arange(SPLIT_ROWS)


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a table in key order, each key once."""

    keys: pa.Array
    """Encoded, one contiguous array."""
    data: pa.Table
    """Projected user columns, of equal length, in any chunks."""
    deleted: np.ndarray | None = None
    """Bool[rows], true for tombstones (their columns other than the key are null); None without a tombstone."""

    def __post_init__(self) -> None:
        assert len(self.keys) == self.data.num_rows or not self.data.num_columns
        assert self.deleted is None or len(self.deleted) == len(self.keys)

    def __len__(self) -> int:
        return len(self.keys)


def sorted_unique(keys: pa.Array, data: pa.Table, deleted: np.ndarray | bool | None = None) -> Rows:
    """Sort rows by key; of equal keys the last row wins. `deleted` may be one bool for all rows."""
    marks = np.full(len(keys), deleted) if isinstance(deleted, bool) else deleted
    order = sort_indices(keys)
    indices = order[last_of_each(keys.take(from_numpy(order)))]
    if len(indices) == len(keys) and (indices[1:] > indices[:-1]).all():
        return Rows(keys, data, _marks(marks))
    return Rows(keys.take(from_numpy(indices)), _gather(data, indices), _marks(marks, indices))


def newest_wins(rows: Sequence[Rows]) -> Rows:
    """Merge sources, oldest first; of equal keys the last source's row wins, also if it is a tombstone.

    It sorts all rows, so use it for sources of similar size, and `merge` to put few rows on top of many.
    """
    rows = [source for source in rows if len(source)] or list(rows[:1])
    if len(rows) == 1:
        return rows[0]
    marks = None
    if any(source.deleted is not None for source in rows):
        marks = np.concatenate([_all_marks(source) for source in rows])
    keys = pa.concat_arrays([source.keys for source in rows])
    return sorted_unique(keys, _concat([source.data for source in rows]), marks)


def merged_values(sources: Sequence[Rows]) -> Rows:
    """Merge the rows of each key, in order of arrival: of each column the last value that is not null. The rows of the
    sources may be unsorted and repeat keys; there is no tombstone among them.
    """
    keys = pa.concat_arrays([rows.keys for rows in sources])
    data = pa.concat_tables([rows.data for rows in sources]).combine_chunks()
    order = sort_indices(keys)
    ordered = keys.take(from_numpy(order))
    last = last_of_each(ordered)
    if not len(order):
        return Rows(keys, data)
    starts = np.flatnonzero(np.append(True, last[:-1]))
    columns: list[pa.Array] = []
    for column in data.columns:
        if not column.null_count:
            columns.append(pc.take(column, from_numpy(order[last])))
            continue
        valid = to_numpy(column.is_valid())[order]
        newest = np.maximum.reduceat(np.where(valid, np.arange(len(order)), -1), starts)
        positions = from_numpy(order[np.maximum(newest, 0)], newest < 0)
        columns.append(pc.take(column, positions))
    return Rows(ordered.filter(from_numpy(last)), pa.Table.from_arrays(columns, schema=data.schema))


def merge_sources(sources: Sequence[Rows], *, keep_tombstones: bool = False) -> Rows:
    """Merge at least one source, oldest first; of equal keys the last source's row wins.

    The cost is a sort of all sources but the largest, a search of their keys in the largest, and a copy of the splits
    that change. Without `keep_tombstones`, drop tombstones and the rows that they delete.
    """
    filled = _levels(sources)
    if len(filled) == 1:
        return _without_tombstones(filled[0], keep_tombstones)
    keys, data, marks = _merge_splits(filled, keep_tombstones=keep_tombstones)
    assert keys is not None
    return Rows(keys, data, marks)


def merge_data(sources: Sequence[Rows]) -> pa.Table:
    """Return the columns of `merge_sources` without tombstones. It does not compute the keys."""
    filled = _levels(sources)
    if len(filled) == 1:
        return _without_tombstones(filled[0], False).data
    return _merge_splits(filled, keep_tombstones=False, want_keys=False)[1]


def _levels(sources: Sequence[Rows]) -> list[Rows]:
    """Return the sources with rows (at least one source), oldest first. Neighbours with disjoint key ranges are joined:
    append-only rows need no merge, also after many commits.
    """
    levels: list[list[tuple[Key, Key, Rows]]] = []
    for rows in [source for source in sources if len(source)]:
        low, high = rows.keys[0].as_py(), rows.keys[len(rows) - 1].as_py()
        level = levels[-1] if levels and levels[-1][0][2].keys.type == rows.keys.type else []
        position = bisect_left(level, low, key=lambda part: part[0])
        if (
            level
            and (position == 0 or level[position - 1][1] < low)
            and (position == len(level) or high < level[position][0])
        ):
            level.insert(position, (low, high, rows))
        else:
            levels.append([(low, high, rows)])
    return [_in_large_chunks(joined([rows for _, _, rows in level])) for level in levels] or list(sources[:1])


def lookup(sorted_keys: pa.Array, needles: pa.Array) -> np.ndarray:
    """Return for each needle (any order, repeats allowed) its int64 position in `sorted_keys`, which holds each key
    once; -1 for none.
    """
    if needles is sorted_keys:
        return np.arange(len(needles))
    positions = search(sorted_keys, needles)
    return np.where(_matches(sorted_keys, positions, needles), positions, -1)


def joined(parts: Sequence[Rows]) -> Rows:
    """Concatenate rows. Rows from files and computed rows may differ in the nullability of columns."""
    if len(parts) == 1:
        return parts[0]
    marks = None
    if any(rows.deleted is not None for rows in parts):
        marks = np.concatenate([_all_marks(rows) for rows in parts])
    data = pa.concat_tables([rows.data for rows in parts], promote_options="default")
    return Rows(pa.concat_arrays([rows.keys for rows in parts]), data, marks)


# ---- merging splits ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Split:
    """Key range of all sources: rows of the largest source, then rows of the others, oldest first."""

    large: Rows
    small: tuple[Rows, ...]
    older: int
    """Number of small rows that come from sources older than the largest."""

    def small_keys(self) -> list[pa.Array]:
        return [rows.keys.cast(self.large.keys.type) for rows in self.small]


def _merge_splits(
    sources: Sequence[Rows], *, keep_tombstones: bool, want_keys: bool = True
) -> tuple[pa.Array | None, pa.Table, np.ndarray | None]:
    """Merge all sources; later sources win. Return keys (None without `want_keys`), columns and tombstone marks."""
    largest = max(range(len(sources)), key=lambda index: len(sources[index]))
    splits = _cut_splits(_align_columns(sources, largest), largest)
    marked = any(source.deleted is not None for source in sources)

    def merge_split(split: _Split) -> tuple[list[list[pa.Array]], pa.Array | None, np.ndarray | None]:
        indices, keys_unchanged = _newest(split)
        deleted = None
        if marked:
            deleted = np.concatenate([_all_marks(rows) for rows in (split.large, *split.small)])
            deleted = deleted if indices is None else deleted[indices]
            if not keep_tombstones and deleted.any():
                indices = np.flatnonzero(~deleted) if indices is None else indices[~deleted]
                keys_unchanged = False
        keys = None
        if want_keys:
            keys = split.large.keys
            if not keys_unchanged:
                (keys,) = _take([keys, *split.small_keys()], indices)
        return _take_columns(split, indices), keys, deleted

    merged = parallel_map(merge_split, splits, sum(map(len, sources)))
    data = _assemble(sources[largest].data.schema, [columns for columns, _, _ in merged])
    keys = None
    if want_keys:
        unchanged = all(part is split.large.keys for split, (_, part, _) in zip(splits, merged, strict=True))
        keys = (
            sources[largest].keys
            if unchanged
            else pa.concat_arrays([part for _, part, _ in merged if part is not None])
        )
    marks = [part for _, _, part in merged if part is not None] if keep_tombstones else []
    return keys, data, _marks(np.concatenate(marks)) if marks else None


def _newest(split: _Split) -> tuple[np.ndarray | None, bool]:
    """Return each key's newest row as an index (None: all of `large`), and True if the keys equal `large`'s."""
    if not split.small:
        return None, True
    keys, count = split.large.keys, len(split.large)
    new_keys, winners = _newest_of_small(split)
    positions = search(keys, new_keys)
    hits = _matches(keys, positions, new_keys)
    winners = winners + count
    replacing = hits & (winners >= count + split.older) if split.older else hits
    indices = _allocate(count)
    indices[:] = _POSITIONS[:count]
    indices[positions[replacing]] = winners[replacing]
    if hits.all():
        return indices, True
    (fresh,) = (~hits).nonzero()
    return _insert(indices, positions[fresh], winners[fresh]), False


def _insert(values: np.ndarray, positions: np.ndarray, inserted: np.ndarray) -> np.ndarray:
    """Insert values at ascending positions, like `np.insert`."""
    inserted_at = positions + np.arange(len(positions))
    is_old = np.ones(len(values) + len(inserted), np.bool_)
    is_old[inserted_at] = False
    out = _allocate(len(is_old))
    out[is_old] = values
    out[inserted_at] = inserted
    return out


def _allocate(count: int) -> np.ndarray:
    """Allocate an int64 array in Arrow's memory pool, which reuses memory. numpy returns large arrays to the system."""
    return np.frombuffer(pa.allocate_buffer(8 * count), np.int64)


def _newest_of_small(split: _Split) -> tuple[pa.Array, np.ndarray]:
    """Return the distinct keys of the small sources, sorted, and the index of the newest row of each key in the
    concatenated small sources.
    """
    keys = split.small_keys()
    if len(keys) == 1:
        return keys[0], np.arange(len(keys[0]))
    joined = pa.concat_arrays(keys)
    order = sort_indices(joined)
    ordered = joined.take(from_numpy(order))
    last = last_of_each(ordered)
    return (ordered, order) if last.all() else (ordered.filter(from_numpy(last)), order[last])


def _take_columns(split: _Split, indices: np.ndarray | None) -> list[list[pa.Array]]:
    """Return the chunks of each column of the split's rows at `indices`."""
    parts = [rows.data for rows in (split.large, *split.small)]
    columns = [
        [chunk for part in parts for chunk in part.column(index).chunks] for index in range(parts[0].num_columns)
    ]
    return [_take(chunks, indices) for chunks in columns]


def _take(parts: list[pa.Array], indices: np.ndarray | None) -> list[pa.Array]:
    """Return the values of the concatenated parts at `indices`, as one array; the parts themselves for None."""
    if indices is None:
        return parts
    array = parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
    return [pc.take(array, from_numpy(indices), boundscheck=False)]


def _cut_splits(sources: Sequence[Rows], largest: int) -> list[_Split]:
    """Cut all sources into consecutive key ranges, at the splits of the largest source, sources[largest]."""
    large = sources[largest]
    edges = _edges(large)
    inner = large.keys.take(from_numpy(np.array(edges[1:-1], np.int64)))
    cuts = [
        [0, *search(source.keys, inner.cast(source.keys.type)).tolist(), len(source)] if index != largest else edges
        for index, source in enumerate(sources)
    ]
    splits = []
    for split in range(len(edges) - 1):
        spans = [(source, cut[split], cut[split + 1]) for source, cut in zip(sources, cuts, strict=True)]
        older = sum(end - low for _, low, end in spans[:largest])
        small = tuple(_slice(*span) for index, span in enumerate(spans) if index != largest and span[2] > span[1])
        splits.append(_Split(_slice(*spans[largest]), small, older))
    return splits


def _edges(large: Rows) -> list[int]:
    """Return the row offsets between the large source's splits. They follow its chunks unless these are tiny: small
    chunks share a split, and a large one has several.
    """
    chunks = [len(chunk) for chunk in large.data.column(0).chunks] if large.data.num_columns else []
    if not chunks or len(large) < _MIN_CHUNK_ROWS * len(chunks):
        chunks = [len(large)]
    sizes: list[int] = []
    for rows in chunks:
        if sizes and sizes[-1] + rows <= SPLIT_ROWS:
            sizes[-1] += rows
        else:
            sizes.append(rows)
    ends = np.cumsum([0, *sizes]).tolist()
    return [low for start, end in pairwise(ends) for low in _even_cuts(start, end)] + [ends[-1]]


def _even_cuts(start: int, end: int) -> Iterator[int]:
    """Yield the offsets of splits of nearly equal size, so that a chunk that has grown a little has no tiny split."""
    count = -(-(end - start) // SPLIT_ROWS)
    return (start + (end - start) * place // count for place in range(count))


def _slice(rows: Rows, low: int, high: int) -> Rows:
    deleted = None if rows.deleted is None else rows.deleted[low:high]
    return Rows(rows.keys.slice(low, high - low), rows.data.slice(low, high - low), deleted)


def _align_columns(sources: Sequence[Rows], largest: int) -> list[Rows]:
    """Return the sources with the columns and the column order of sources[largest], and without tiny chunks."""
    names = sources[largest].data.column_names
    return [_in_large_chunks(Rows(rows.keys, rows.data.select(names), rows.deleted)) for rows in sources]


def _in_large_chunks(rows: Rows) -> Rows:
    if not rows.data.num_columns or len(rows) >= _MIN_CHUNK_ROWS * rows.data.column(0).num_chunks:
        return rows
    return Rows(rows.keys, rows.data.combine_chunks(), rows.deleted)


# ---- helpers -------------------------------------------------------------------------------------------------------


def _matches(keys: pa.Array, positions: np.ndarray, needles: pa.Array) -> np.ndarray:
    """Return bool[needles]: True where the key at the position that `search` returned equals the needle."""
    if not len(keys):
        return np.zeros(len(needles), np.bool_)
    if not pa.types.is_binary(keys.type):
        # a position past the end is clipped to the last key, which is then smaller than the needle
        return to_numpy(keys).take(positions, mode="clip") == to_numpy(needles)
    if len(needles) <= _FEW_NEEDLES:
        pairs = zip(positions.tolist(), needles.to_pylist(), strict=True)
        return np.array([position < len(keys) and keys[position].as_py() == key for position, key in pairs], np.bool_)
    in_bounds = positions < len(keys)
    clipped = np.where(in_bounds, positions, 0)
    return in_bounds & to_numpy(pc.equal(keys.take(from_numpy(clipped)), needles))


def _without_tombstones(rows: Rows, keep_tombstones: bool) -> Rows:
    if keep_tombstones or rows.deleted is None:
        return rows
    is_live = from_numpy(~rows.deleted)
    data = rows.data.filter(is_live) if rows.data.num_columns else rows.data
    return Rows(rows.keys.filter(is_live), data)


def _marks(marks: np.ndarray | None, indices: np.ndarray | None = None) -> np.ndarray | None:
    """Return the tombstone marks of the chosen rows; None without a tombstone."""
    if marks is None:
        return None
    chosen = marks if indices is None else marks[indices]
    return chosen if chosen.any() else None


def _all_marks(rows: Rows) -> np.ndarray:
    return np.zeros(len(rows), np.bool_) if rows.deleted is None else rows.deleted


def _concat(tables: Sequence[pa.Table]) -> pa.Table:
    """Concatenate tables. A column that is nullable in one of them is nullable in the result."""
    return (
        pa.concat_tables(tables)
        if all(table.schema == tables[0].schema for table in tables)
        else _concat_permissive(tables)
    )


def _concat_permissive(tables: Sequence[pa.Table]) -> pa.Table:
    return pa.concat_tables(tables, promote_options="permissive")


def _gather(data: pa.Table, indices: np.ndarray) -> pa.Table:
    return data.combine_chunks().take(from_numpy(indices)) if data.num_columns else data


def _assemble(schema: pa.Schema, splits: list[list[list[pa.Array]]]) -> pa.Table:
    columns = [
        pa.chunked_array([chunk for split in splits for chunk in split[i]], schema.field(i).type)
        for i in range(len(schema))
    ]
    fields = [
        field.with_nullable(field.nullable or column.null_count > 0)
        for field, column in zip(schema, columns, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields)) if columns else schema.empty_table()
