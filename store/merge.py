"""Merges sorted rows, newest wins: searches of the small side in the large one, never a Python object per row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .keys import last_of_each, search, sort_indices

PIECE_ROWS = 1 << 16
"""The large side is merged this many rows at a time: both copies of a column's piece fit the processor's caches."""
_THREADS_FROM_ROWS = 1 << 18
_MIN_CHUNK_ROWS = 1 << 12


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
    """Rows in any order, keys repeated, as Rows: of equal keys the last stays. `deleted` may be one bool for all."""
    marks = np.full(len(keys), deleted) if isinstance(deleted, bool) else deleted
    order = sort_indices(keys)
    indices = order[last_of_each(keys.take(pa.array(order)))]
    if len(indices) == len(keys) and (indices[1:] > indices[:-1]).all():
        return Rows(keys, data, _marks(marks))
    return Rows(keys.take(pa.array(indices)), _gather(data, indices), _marks(marks, indices))


def newest_wins(rows: Sequence[Rows]) -> Rows:
    """All rows, oldest source first; of equal keys the last source's row stays, tombstones too.

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
    """`delta` put on top of `base`: its rows win. Without `keep_tombstones` tombstones and what they delete go.

    Costs a search of the smaller side in the larger, and a copy of those pieces of the larger that the smaller touches.
    """
    if not len(delta) or not len(base):
        return _without_tombstones(delta if len(delta) else base, keep_tombstones)
    keys, data, marks = _weave(base, delta, keep_tombstones=keep_tombstones)
    assert keys is not None
    return Rows(keys, data, marks)


def merged_data(base: Rows, delta: Rows) -> pa.Table:
    """The columns of `merge` without tombstones, and without the cost of its keys."""
    if not len(delta) or not len(base):
        return _without_tombstones(delta if len(delta) else base, False).data
    return _weave(base, delta, keep_tombstones=False, want_keys=False)[1]


def lookup(rows: Rows, keys: pa.Array) -> np.ndarray:
    """For each of `keys` (any order, repeats allowed) its int64 position in `rows`, or -1."""
    positions = search(rows.keys, keys)
    return np.where(_hits(rows.keys, positions, keys), positions, -1)


def joined(parts: Sequence[Rows]) -> Rows:
    """Rows end to end; what came from a file and what was computed may differ in what they say of nulls."""
    if len(parts) == 1:
        return parts[0]
    marks = None
    if any(rows.deleted is not None for rows in parts):
        marks = np.concatenate([_all_marks(rows) for rows in parts])
    data = pa.concat_tables([rows.data for rows in parts], promote_options="default")
    return Rows(pa.concat_arrays([rows.keys for rows in parts]), data, marks)


# ---- weaving -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Sides:
    """A large and a small side, with the places of the small one's rows in the large one."""

    large: Rows
    small: Rows
    places: np.ndarray  # before which row of `large` each row of `small` goes
    hits: np.ndarray  # whether that row has the same key
    drop_large: np.ndarray | None  # rows that do not appear in the result, whatever the other side holds
    drop_small: np.ndarray | None
    small_wins: bool


def _weave(
    base: Rows, delta: Rows, *, keep_tombstones: bool, want_keys: bool = True
) -> tuple[pa.Array | None, pa.Table, np.ndarray | None]:
    """Keys (None if not wanted), columns and tombstone marks of both sides, `delta` winning."""
    small_wins = len(delta) <= len(base)
    large, small = (base, delta) if small_wins else (delta, base)
    places = search(large.keys, small.keys)
    hits = _hits(large.keys, places, small.keys)
    drop_small = None if keep_tombstones else small.deleted
    drop_large = None if keep_tombstones else large.deleted
    if not small_wins:
        drop_small = hits if drop_small is None else drop_small | hits
    sides = _Sides(large, small, places, hits, drop_large, drop_small, small_wins)
    in_place = small_wins and drop_small is None and drop_large is None and bool(hits.all())
    pieces = _pieces(large.data, len(large))
    cuts = np.searchsorted(places, [low for low, _ in pieces])
    cuts[0] = 0  # rows that go before the first row of a piece belong to it; those after the last row to the last piece
    spans = [(*piece, *span) for piece, span in zip(pieces, pairwise([*cuts.tolist(), len(small)]), strict=True)]
    tables = _all_of(large.data, small.data)
    keys = pa.table({"k": large.keys}), pa.table({"k": small.keys.cast(large.keys.type)})

    def woven(span: tuple[int, int, int, int]) -> tuple[list[pa.Array], pa.Array | None, np.ndarray | None]:
        indices = _piece_indices(sides, span, in_place)
        columns = _taken(tables, span, indices)
        new_keys = _taken(keys, span, indices)[0] if want_keys and not in_place else None
        marks = None
        if keep_tombstones and (large.deleted is not None or small.deleted is not None):
            low, high, first, last = span
            marks = np.concatenate([_all_marks(large, low, high), _all_marks(small, first, last)])
            marks = marks if indices is None else marks[indices]
        return columns, new_keys, marks

    done = _mapped(woven, spans, len(large))
    data = _assembled(large.data.schema, [columns for columns, _, _ in done])
    new_keys = [part for _, part, _ in done if part is not None]
    merged_keys = pa.concat_arrays(new_keys) if new_keys else large.keys if in_place else None
    marks = [part for _, _, part in done if part is not None]
    return merged_keys, data, _marks(np.concatenate(marks)) if marks else None


def _piece_indices(sides: _Sides, span: tuple[int, int, int, int], in_place: bool) -> np.ndarray | None:
    """For rows low:high of the large and first:last of the small side, laid end to end: which to take, in order.

    None when that is the large side's rows as they are.
    """
    low, high, first, last = span
    count = high - low
    if first == last and sides.drop_large is None:
        return None
    places = sides.places[first:last] - low
    hits = sides.hits[first:last]
    if in_place:
        indices = np.arange(count)
        indices[places] = np.arange(count, count + last - first)
        return indices
    keep = np.ones(count, np.bool_)
    if sides.small_wins:
        keep[places[hits]] = False
    if sides.drop_large is not None:
        keep &= ~sides.drop_large[low:high]
    fresh = np.arange(count, count + last - first)
    if sides.drop_small is not None:
        wanted = ~sides.drop_small[first:last]
        fresh, places = fresh[wanted], places[wanted]
    before = np.concatenate([[0], np.cumsum(keep)])  # rows kept before each place
    return np.insert(np.flatnonzero(keep), before[places], fresh)


def _taken(
    tables: tuple[pa.Table, pa.Table], span: tuple[int, int, int, int], indices: np.ndarray | None
) -> list[pa.Array]:
    low, high, first, last = span
    columns = []
    picks = None if indices is None else pa.array(indices)
    for large, small in zip(tables[0].columns, tables[1].columns, strict=True):
        parts = [
            *large.slice(low, high - low).chunks,
            *(small.slice(first, last - first).chunks if last > first else ()),
        ]
        whole = parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
        columns.append(whole if picks is None else pc.take(whole, picks, boundscheck=False))
    return columns


def _pieces(data: pa.Table, rows: int) -> list[tuple[int, int]]:
    """Row ranges that tile the large side; they follow its first column's chunks unless those are tiny."""
    chunks = [len(chunk) for chunk in data.column(0).chunks] if data.num_columns else []
    if not chunks or rows < _MIN_CHUNK_ROWS * len(chunks):
        chunks = [rows]
    edges = np.cumsum([0, *chunks]).tolist()
    return [
        (low, min(low + PIECE_ROWS, end)) for start, end in pairwise(edges) for low in range(start, end, PIECE_ROWS)
    ]


def _mapped(work: Callable, spans: list, rows: int) -> list:
    """`work` of each span. Arrow's kernels let go of the GIL: many rows are worth threads (new ones, for forks)."""
    threads = min(pa.cpu_count(), 8, len(spans))
    if rows < _THREADS_FROM_ROWS or threads < 2:
        return [work(span) for span in spans]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, spans))


# ---- small pieces --------------------------------------------------------------------------------------------------


def _hits(keys: pa.Array, positions: np.ndarray, needles: pa.Array) -> np.ndarray:
    """Whether the key at each position (as `search` found it) is the needle."""
    if not len(keys):
        return np.zeros(len(needles), np.bool_)
    inside = positions < len(keys)
    at = np.where(inside, positions, 0)
    if pa.types.is_binary(keys.type):
        equal = pc.equal(keys.take(pa.array(at)), needles).to_numpy(zero_copy_only=False)
    else:
        equal = keys.to_numpy()[at] == needles.to_numpy()
    return inside & equal


def _without_tombstones(rows: Rows, keep_tombstones: bool) -> Rows:
    if keep_tombstones or rows.deleted is None:
        return rows
    live = pa.array(~rows.deleted)
    data = rows.data.filter(live) if rows.data.num_columns else rows.data
    return Rows(rows.keys.filter(live), data)


def _marks(marks: np.ndarray | None, indices: np.ndarray | None = None) -> np.ndarray | None:
    """Tombstone marks of the chosen rows, None if there is none among them."""
    if marks is None:
        return None
    chosen = marks if indices is None else marks[indices]
    return chosen if chosen.any() else None


def _all_marks(rows: Rows, low: int = 0, high: int | None = None) -> np.ndarray:
    high = len(rows) if high is None else high
    return np.zeros(high - low, np.bool_) if rows.deleted is None else rows.deleted[low:high]


def _concat(tables: Sequence[pa.Table]) -> pa.Table:
    """Tables one after another; a column that one of them lets be null may be null in the result."""
    return pa.concat_tables(tables) if all(t.schema == tables[0].schema for t in tables) else _permissive(tables)


def _permissive(tables: Sequence[pa.Table]) -> pa.Table:
    return pa.concat_tables(tables, promote_options="permissive")


def _all_of(large: pa.Table, small: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Both tables with contiguous small columns; large ones too if their chunks are tiny."""
    if large.num_columns and large.num_rows < _MIN_CHUNK_ROWS * large.column(0).num_chunks:
        large = large.combine_chunks()
    return large, small.select(large.column_names).combine_chunks()


def _gather(data: pa.Table, indices: np.ndarray) -> pa.Table:
    return data.combine_chunks().take(pa.array(indices)) if data.num_columns else data


def _assembled(schema: pa.Schema, pieces: list[list[pa.Array]]) -> pa.Table:
    columns = [pa.chunked_array([piece[i] for piece in pieces], schema.field(i).type) for i in range(len(schema))]
    fields = [
        field.with_nullable(field.nullable or column.null_count > 0)
        for field, column in zip(schema, columns, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields)) if columns else schema.empty_table()
