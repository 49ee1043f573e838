"""Merge of sorted rows, in which the newest row of a key wins. It searches the small side in the large one, without a
Python object per row.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochlog.store.env.parallel import parallel_map
from epochlog.store.types.key_codec import Key, last_of_each, search, sort_indices

PIECE_ROWS = 1 << 16
"""The large side is merged this many rows at a time: both copies of a column's piece fit the processor's caches."""
_MIN_CHUNK_ROWS = 1 << 12
_FEW_NEEDLES = 4
"""So many byte strings are compared one by one sooner than Arrow's kernels are called."""
_COUNTED = np.arange(PIECE_ROWS)


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a table in key order, each key once.

    keys: encoded, one contiguous array. data: the projected user columns, as many rows, in any chunks. deleted: a bool
    for each row, true for tombstones (whose columns other than the key are null), or None when there are none.
    """

    keys: pa.Array
    data: pa.Table
    deleted: np.ndarray | None = None

    def __post_init__(self) -> None:
        assert len(self.keys) == self.data.num_rows or not self.data.num_columns
        assert self.deleted is None or len(self.deleted) == len(self.keys)

    def __len__(self) -> int:
        return len(self.keys)


def sorted_unique(keys: pa.Array, data: pa.Table, deleted: np.ndarray | bool | None = None) -> Rows:
    """Sort rows by key; of equal keys the last row stays. `deleted` may be one bool for all."""
    marks = np.full(len(keys), deleted) if isinstance(deleted, bool) else deleted
    order = sort_indices(keys)
    indices = order[last_of_each(keys.take(pa.array(order)))]
    if len(indices) == len(keys) and (indices[1:] > indices[:-1]).all():
        return Rows(keys, data, _marks(marks))
    return Rows(keys.take(pa.array(indices)), _gather(data, indices), _marks(marks, indices))


def newest_wins(rows: Sequence[Rows]) -> Rows:
    """Merge sources, oldest first; of equal keys the last source's row stays, tombstones too.

    Sorts everything, so it is meant for sources of like size; to put few rows on top of many take `merge`.
    """
    rows = [source for source in rows if len(source)] or list(rows[:1])
    if len(rows) == 1:
        return rows[0]
    marks = None
    if any(source.deleted is not None for source in rows):
        marks = np.concatenate([_all_marks(source) for source in rows])
    keys = pa.concat_arrays([source.keys for source in rows])
    return sorted_unique(keys, _concat([source.data for source in rows]), marks)


def merge(base: Rows, delta: Rows, keep_tombstones: bool = False) -> Rows:
    """Put `delta` on top of `base`: its rows win. Without `keep_tombstones`, tombstones and the rows they delete are
    dropped.
    """
    return fold((base, delta), keep_tombstones=keep_tombstones)


def fold(sources: Sequence[Rows], *, keep_tombstones: bool = False) -> Rows:
    """Merge at least one source, oldest first; of equal keys the last source's row stays.

    Costs a sort of all but the largest source, their search in that one, and a copy of those of its pieces that they
    touch. Without `keep_tombstones` tombstones and what they delete go.
    """
    filled = _levels(sources)
    if len(filled) == 1:
        return _without_tombstones(filled[0], keep_tombstones)
    keys, data, marks = _woven(filled, keep_tombstones=keep_tombstones)
    assert keys is not None
    return Rows(keys, data, marks)


def fold_data(sources: Sequence[Rows]) -> pa.Table:
    """Return the columns of `fold` without tombstones, and without the cost of its keys."""
    filled = _levels(sources)
    if len(filled) == 1:
        return _without_tombstones(filled[0], False).data
    return _woven(filled, keep_tombstones=False, want_keys=False)[1]


def _levels(sources: Sequence[Rows]) -> list[Rows]:
    """Return the sources that have rows (at least one source), oldest first. Neighbours in age with disjoint key ranges
    become one: rows that are only ever appended need no merge, however many commits brought them.
    """
    levels: list[list[tuple[Key, Key, Rows]]] = []
    for rows in [source for source in sources if len(source)]:
        low, high = rows.keys[0].as_py(), rows.keys[len(rows) - 1].as_py()
        level = levels[-1] if levels and levels[-1][0][2].keys.type == rows.keys.type else []
        at = bisect_left(level, low, key=lambda part: part[0])
        if level and (at == 0 or level[at - 1][1] < low) and (at == len(level) or high < level[at][0]):
            level.insert(at, (low, high, rows))
        else:
            levels.append([(low, high, rows)])
    return [_in_large_chunks(joined([rows for _, _, rows in level])) for level in levels] or list(sources[:1])


def lookup(sorted_keys: pa.Array, needles: pa.Array) -> np.ndarray:
    """Return for each needle (any order, repeats allowed) its int64 position in `sorted_keys`, or -1."""
    positions = search(sorted_keys, needles)
    return np.where(_hits(sorted_keys, positions, needles), positions, -1)


def joined(parts: Sequence[Rows]) -> Rows:
    """Concatenate rows. Rows of files and computed ones may differ in the nullability of their columns."""
    if len(parts) == 1:
        return parts[0]
    marks = None
    if any(rows.deleted is not None for rows in parts):
        marks = np.concatenate([_all_marks(rows) for rows in parts])
    data = pa.concat_tables([rows.data for rows in parts], promote_options="default")
    return Rows(pa.concat_arrays([rows.keys for rows in parts]), data, marks)


# ---- weaving -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Piece:
    """One key range of all sources: the largest one's rows, then those of the others, oldest first, end to end.

    `older` of the small rows come from sources older than the largest.
    """

    large: Rows
    small: tuple[Rows, ...]
    older: int

    def small_keys(self) -> list[pa.Array]:
        return [rows.keys.cast(self.large.keys.type) for rows in self.small]


def _woven(
    sources: Sequence[Rows], *, keep_tombstones: bool, want_keys: bool = True
) -> tuple[pa.Array | None, pa.Table, np.ndarray | None]:
    """Merge all sources, later ones winning, into keys (None if not wanted), columns and tombstone marks."""
    at = max(range(len(sources)), key=lambda place: len(sources[place]))
    pieces = _cut(_evened(sources, at), at)
    marked = any(source.deleted is not None for source in sources)

    def woven(piece: _Piece) -> tuple[list[pa.Array], pa.Array | None, np.ndarray | None]:
        indices, same_keys = _newest(piece)
        deleted = None
        if marked:
            deleted = np.concatenate([_all_marks(rows) for rows in (piece.large, *piece.small)])
            deleted = deleted if indices is None else deleted[indices]
            if not keep_tombstones and deleted.any():
                indices = np.flatnonzero(~deleted) if indices is None else indices[~deleted]
                same_keys = False
        keys = None
        if want_keys:
            keys = piece.large.keys if same_keys else _picked([piece.large.keys, *piece.small_keys()], indices)
        return _taken(piece, indices), keys, deleted

    done = parallel_map(woven, pieces, sum(map(len, sources)))
    data = _assembled(sources[at].data.schema, [columns for columns, _, _ in done])
    keys = None
    if want_keys:
        same = all(part is piece.large.keys for piece, (_, part, _) in zip(pieces, done, strict=True))
        keys = sources[at].keys if same else pa.concat_arrays([part for _, part, _ in done if part is not None])
    marks = [part for _, _, part in done if part is not None] if keep_tombstones else []
    return keys, data, _marks(np.concatenate(marks)) if marks else None


def _newest(piece: _Piece) -> tuple[np.ndarray | None, bool]:
    """Return the indices of the newest row of each key of the piece, in key order (None: the rows of `large` as they
    are), and True if the resulting keys are those of `large`.
    """
    if not piece.small:
        return None, True
    keys, count = piece.large.keys, len(piece.large)
    new_keys, winners = _newest_of_small(piece)
    places = search(keys, new_keys)
    hits = _hits(keys, places, new_keys)
    winners = winners + count
    replacing = hits & (winners >= count + piece.older) if piece.older else hits
    indices = _room(count)
    indices[:] = _COUNTED[:count]
    indices[places[replacing]] = winners[replacing]
    if hits.all():
        return indices, True
    (fresh,) = (~hits).nonzero()
    return _inserted(indices, places[fresh], winners[fresh]), False


def _inserted(values: np.ndarray, places: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Insert values at ascending places, as `np.insert` does."""
    at = places + np.arange(len(places))
    old = np.ones(len(values) + len(new), np.bool_)
    old[at] = False
    found = _room(len(old))
    found[old] = values
    found[at] = new
    return found


def _room(count: int) -> np.ndarray:
    """Allocate an int64 array in Arrow's memory pool, which reuses it; numpy's memory goes back to the system each
    time.
    """
    return np.frombuffer(pa.allocate_buffer(8 * count), np.int64)


def _newest_of_small(piece: _Piece) -> tuple[pa.Array, np.ndarray]:
    """Return the distinct keys of the small sources, sorted, and for each the index of its newest row among their rows
    end to end.
    """
    keys = piece.small_keys()
    if len(keys) == 1:
        return keys[0], np.arange(len(keys[0]))
    joined = pa.concat_arrays(keys)
    order = sort_indices(joined)
    ordered = joined.take(pa.array(order))
    last = last_of_each(ordered)
    return (ordered, order) if last.all() else (ordered.filter(pa.array(last)), order[last])


def _taken(piece: _Piece, indices: np.ndarray | None) -> list[pa.Array]:
    parts = [rows.data for rows in (piece.large, *piece.small)]
    columns = [[chunk for part in parts for chunk in part.column(at).chunks] for at in range(parts[0].num_columns)]
    return [_picked(chunks, indices) for chunks in columns]


def _picked(parts: Sequence[pa.Array], indices: np.ndarray | None) -> pa.Array:
    whole = parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
    return whole if indices is None else pc.take(whole, pa.array(indices), boundscheck=False)


def _cut(sources: Sequence[Rows], at: int) -> list[_Piece]:
    """Cut all sources by the pieces of the largest one, sources[at], into key ranges that tile them."""
    large = sources[at]
    edges = _edges(large)
    inner = large.keys.take(pa.array(edges[1:-1], pa.int64()))
    cuts = [
        [0, *search(source.keys, inner.cast(source.keys.type)).tolist(), len(source)] if place != at else edges
        for place, source in enumerate(sources)
    ]
    pieces = []
    for piece in range(len(edges) - 1):
        spans = [(source, cut[piece], cut[piece + 1]) for source, cut in zip(sources, cuts, strict=True)]
        older = sum(end - low for _, low, end in spans[:at])
        small = tuple(_slice(*span) for place, span in enumerate(spans) if place != at and span[2] > span[1])
        pieces.append(_Piece(_slice(*spans[at]), small, older))
    return pieces


def _edges(large: Rows) -> list[int]:
    """Return the row offsets that bound the large source's pieces. They follow its chunks unless these are tiny."""
    chunks = [len(chunk) for chunk in large.data.column(0).chunks] if large.data.num_columns else []
    if not chunks or len(large) < _MIN_CHUNK_ROWS * len(chunks):
        chunks = [len(large)]
    ends = np.cumsum([0, *chunks]).tolist()
    return [low for start, end in pairwise(ends) for low in range(start, end, PIECE_ROWS)] + [ends[-1]]


def _slice(rows: Rows, low: int, high: int) -> Rows:
    deleted = None if rows.deleted is None else rows.deleted[low:high]
    return Rows(rows.keys.slice(low, high - low), rows.data.slice(low, high - low), deleted)


def _evened(sources: Sequence[Rows], at: int) -> list[Rows]:
    """Return the sources with the columns of the largest, sources[at], in its order, and without tiny chunks."""
    names = sources[at].data.column_names
    return [_in_large_chunks(Rows(rows.keys, rows.data.select(names), rows.deleted)) for rows in sources]


def _in_large_chunks(rows: Rows) -> Rows:
    if not rows.data.num_columns or len(rows) >= _MIN_CHUNK_ROWS * rows.data.column(0).num_chunks:
        return rows
    return Rows(rows.keys, rows.data.combine_chunks(), rows.deleted)


# ---- small pieces --------------------------------------------------------------------------------------------------


def _hits(keys: pa.Array, positions: np.ndarray, needles: pa.Array) -> np.ndarray:
    """Return bool[needles]: True where the key at the position, as `search` found it, equals the needle."""
    if not len(keys):
        return np.zeros(len(needles), np.bool_)
    if not pa.types.is_binary(keys.type):
        # a position past the end is clipped to the last key, which is smaller than the needle then
        return keys.to_numpy().take(positions, mode="clip") == needles.to_numpy()
    if len(needles) <= _FEW_NEEDLES:
        asked = zip(positions.tolist(), needles.to_pylist(), strict=True)
        return np.array([place < len(keys) and keys[place].as_py() == key for place, key in asked], np.bool_)
    inside = positions < len(keys)
    at = np.where(inside, positions, 0)
    return inside & pc.equal(keys.take(pa.array(at)), needles).to_numpy(zero_copy_only=False)


def _without_tombstones(rows: Rows, keep_tombstones: bool) -> Rows:
    if keep_tombstones or rows.deleted is None:
        return rows
    live = pa.array(~rows.deleted)
    data = rows.data.filter(live) if rows.data.num_columns else rows.data
    return Rows(rows.keys.filter(live), data)


def _marks(marks: np.ndarray | None, indices: np.ndarray | None = None) -> np.ndarray | None:
    """Return the tombstone marks of the chosen rows; None if there is none among them."""
    if marks is None:
        return None
    chosen = marks if indices is None else marks[indices]
    return chosen if chosen.any() else None


def _all_marks(rows: Rows) -> np.ndarray:
    return np.zeros(len(rows), np.bool_) if rows.deleted is None else rows.deleted


def _concat(tables: Sequence[pa.Table]) -> pa.Table:
    """Concatenate tables; a column that is nullable in one of them may be null in the result."""
    return pa.concat_tables(tables) if all(t.schema == tables[0].schema for t in tables) else _permissive(tables)


def _permissive(tables: Sequence[pa.Table]) -> pa.Table:
    return pa.concat_tables(tables, promote_options="permissive")


def _gather(data: pa.Table, indices: np.ndarray) -> pa.Table:
    return data.combine_chunks().take(pa.array(indices)) if data.num_columns else data


def _assembled(schema: pa.Schema, pieces: list[list[pa.Array]]) -> pa.Table:
    columns = [pa.chunked_array([piece[i] for piece in pieces], schema.field(i).type) for i in range(len(schema))]
    fields = [
        field.with_nullable(field.nullable or column.null_count > 0)
        for field, column in zip(schema, columns, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields)) if columns else schema.empty_table()
