"""Point lookups: newest level first, only the blocks that may hold the keys; decoded blocks are in an LRU cache."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa

from epochlog.store.env.files import Files
from epochlog.store.env.lru_cache import LRUCache
from epochlog.store.sst.data_file import block_groups
from epochlog.store.sst.merge import Rows, joined, lookup, merge_sources, newest_wins
from epochlog.store.sst.segment import Segment, SegmentReader
from epochlog.store.sst.sorted_run import RunFile, read_blocks
from epochlog.store.types.arrays import from_numpy, to_numpy
from epochlog.store.types.key_codec import Key, KeyCodec, search
from epochlog.store.types.key_range import KeyRange
from epochlog.store.types.key_sieve import Sieve, hashed
from epochlog.store.types.schema import TableSchema

CACHE_BYTES, SIEVE_BYTES = 256 << 20, 32 << 20
DIRECT_KEYS, DIRECT_COLUMNS = 16, 8
"""Bounds of two-step lookups: one of fewer than 16 keys in more than 8 columns decodes the keys of a block first, and
its other columns only if it has one of the keys.
"""

TOGETHER_ROWS = 1 << 19
"""Rows of the blocks of a file that are decoded together, to have few in memory beside the cache."""
UNCACHED_BYTES = CACHE_BYTES // 4
"""Bytes of a file's blocks, by 8 for each value, above which a read of key ranges leaves the cache alone: it would take
the place of all else.
"""

WIDE_ROWS, WIDE_TOUCHED = 1 << 18, 8
"""Rows of neighbouring blocks that are decoded, cached and searched as one, if the needles lie in at least so many
blocks of a file, and in most of them.
"""
SHARED_COLUMNS = 64
"""Columns of a lookup, at most, for which a decoded block is shared with lookups of other columns."""
BUNDLED, BUNDLED_ROWS, BUNDLED_COLUMNS = 8, 1 << 14, 64
"""Neighbouring segments of few rows that are merged once and looked up as one level, the most rows of all of them, and
the most columns. Each segment takes longer to ask than so few rows take to search.
"""
SIEVED_NEEDLES = 1 << 10
"""Needles, at least, for which a segment's sieve is made and asked before its rows are searched."""

Level = Sequence[Segment] | Sequence[RunFile] | Rows
"""Files with disjoint key ranges, in key order; or rows in memory."""


@dataclass(frozen=True, slots=True)
class _Block:
    """Decoded rows of a block, with each column that a lookup has asked for."""

    rows: Rows
    choices: Mapping[tuple[str, ...], Rows]
    """The same rows with the columns of each kind of lookup, which share their values."""

    def lacking(self, columns: tuple[str, ...]) -> tuple[str, ...]:
        """Return those of the columns that the block lacks."""
        held = self.rows.data.column_names
        return tuple(column for column in columns if column not in held)

    def with_choice(self, columns: tuple[str, ...]) -> _Block:
        """Return the block with one more choice of its columns."""
        rows = replace(self.rows, data=self.rows.data.select(columns))
        return _Block(self.rows, {**self.choices, columns: rows})

    def with_columns(self, others: Rows) -> _Block:
        """Return the block with further columns of its rows."""
        if not self.rows.data.num_columns:
            return _Block(others, self.choices)
        fields = [*self.rows.data.schema, *others.data.schema]
        data = pa.table([*self.rows.data.columns, *others.data.columns], schema=pa.schema(fields))
        return _Block(replace(self.rows, data=data), self.choices)


def _size_of(block: _Block) -> int:
    """Return about the bytes that a block takes of the process: a column of few rows takes 1 KB beside its values."""
    data = block.rows.data
    columns = 1 + data.num_columns + sum(1 + len(choice) for choice in block.choices)
    return block.rows.keys.nbytes + data.nbytes + 1024 * columns


_blocks: LRUCache[_Block] = LRUCache(CACHE_BYTES, _size_of, name="blocks")
_sieves: LRUCache[Sieve] = LRUCache(SIEVE_BYTES, lambda sieve: 512 + sieve.marked.nbytes, name="sieves")


@dataclass(frozen=True, slots=True)
class _Hits:
    """Rows of some needles, tombstones too."""

    at: np.ndarray
    """Int64, ascending indices of these needles."""
    data: pa.Table
    deleted: np.ndarray | None
    """Tombstones among the rows; None if there are none."""


@dataclass(frozen=True, slots=True)
class Spans:
    """Key ranges [low, high) in ascending order, of which no two overlap."""

    lows: pa.Array
    highs: pa.Array
    """Null for a range without an upper bound, the last one."""

    def slice(self, first: int, end: int) -> Spans:
        return Spans(self.lows.slice(first, end - first), self.highs.slice(first, end - first))

    def ends(self, keys: pa.Array) -> np.ndarray:
        """Return the number of the sorted keys that lie below the end of each range."""
        ends = search(keys, self.highs.fill_null(b""))
        if self.highs.null_count:
            ends[-1] = len(keys)
        return ends


@dataclass(frozen=True, slots=True)
class PointReader:
    """Reader of single keys, and of short key ranges, of one table, for one choice of columns."""

    files: Files
    table: TableSchema
    codec: KeyCodec
    columns: tuple[str, ...]

    def find(self, levels: Sequence[Level], needles: pa.Array) -> Rows | None:
        """Return the live rows of these keys (sorted, each once), in key order; None without any. levels: oldest first;
        the newest level that has a key decides.
        """
        if len(needles) == 1:
            return self._find_one(levels, needles[0].as_py())
        missing = np.arange(len(needles))
        is_missing = np.ones(len(needles), np.bool_)
        hashes = hashed(needles) if len(needles) >= SIEVED_NEEDLES else None
        hits: list[_Hits] = []
        for level in reversed(levels):
            asked = missing
            if hashes is not None and (sieve := self._sieve(level, len(missing))) is not None:
                asked = missing[sieve.may_hold(hashes[missing])]
            if not len(asked):
                continue
            sought = needles if len(asked) == len(needles) else needles.take(from_numpy(asked))
            for part in self._in_level(level, sought):
                hits.append(replace(part, at=asked[part.at]))
                is_missing[hits[-1].at] = False
            (missing,) = is_missing.nonzero()
            if not len(missing):
                break
        return _in_order(hits, needles)

    def rows_in(self, levels: Sequence[Level], spans: Spans) -> Rows | None:
        """Return the live rows of key ranges (at least one), in key order; None without any. levels: oldest first; the
        newest level that has a key decides.
        """
        parts = [rows for level in levels if (rows := self._of_level(level, spans)) is not None]
        if not parts:
            return None
        if sum(map(len, parts)) > TOGETHER_ROWS:
            return merge_sources(parts)
        rows = newest_wins(parts)  # of few rows, in less time
        if rows.deleted is None:
            return rows
        live = from_numpy(~rows.deleted)
        return Rows(rows.keys.filter(live), rows.data.filter(live))

    def _of_level(self, level: Level, spans: Spans) -> Rows | None:
        """Return the rows of a level in key ranges, tombstones too; None without any."""
        if isinstance(level, Rows):
            return _rows_within(level, spans)
        read = [rows for file in level for rows in self._of_file(file, spans)]
        return joined(read) if read else None

    def _of_file(self, file: Segment | RunFile, spans: Spans) -> Iterator[Rows]:
        """Yield rows of a file in key ranges, in key order."""
        first = int(np.searchsorted(spans.ends(self.codec.array([file.key_min])), 1))
        end = int(search(spans.lows, self.codec.array([file.key_max]), "right")[0])
        if first >= end:
            return
        spans, starts = spans.slice(first, end), self.codec.array(file.blocks)
        lowest = np.maximum(search(starts, spans.lows, "right") - 1, 0)
        highest = spans.ends(starts) - 1
        touched = np.zeros(len(file.blocks) + 1, np.int64)
        np.add.at(touched, lowest, 1)
        np.add.at(touched, highest + 1, -1)
        blocks = np.flatnonzero(np.cumsum(touched[:-1]))
        is_large = 8 * len(self.columns) * file.rows * len(blocks) // len(file.blocks) > UNCACHED_BYTES
        wide = 1 if is_large else self._width(file, len(blocks))
        numbers = np.unique(blocks // wide).tolist()
        for group in block_groups(numbers, -(-len(file.blocks) // wide), file.rows, TOGETHER_ROWS):
            read = zip(group, self._read(file, group, self.columns, wide), strict=True) if is_large else None
            for block, rows in read or sorted(self._decoded(file, group, self.columns, wide).items()):
                low = int(np.searchsorted(highest // wide, block))
                high = int(np.searchsorted(lowest // wide, block, "right"))
                part = _rows_within(rows, spans.slice(low, high))
                if part is not None:
                    yield part

    def segment_levels(self, segments: Sequence[Segment], within: KeyRange, needles: int) -> Iterator[Level]:
        """Yield levels of the segments of L0 that may have keys of a range, oldest first. needles: number of keys.

        Segments are bundled by their places in L0, so that the bundles of one lookup are those of the next one.
        """
        bundles = len(self.columns) <= DIRECT_COLUMNS or (
            needles >= DIRECT_KEYS and len(self.columns) <= BUNDLED_COLUMNS
        )
        for place in range(0, len(segments), BUNDLED):
            group = segments[place : place + BUNDLED]
            chosen = [segment for segment in group if within.overlaps(segment.key_min, segment.key_max)]
            is_small = len(chosen) == BUNDLED and sum(segment.rows for segment in chosen) <= BUNDLED_ROWS
            bundle = self._bundle(chosen) if bundles and is_small else None
            if bundle is not None:
                yield bundle
            else:
                yield from ([segment] for segment in chosen)

    def _bundle(self, segments: Sequence[Segment]) -> Rows | None:
        """Return the newest row or tombstone of each key of some segments, merged now or earlier; None if not all of
        their blocks are decoded: a lookup that ends at the newest segment reads no others.
        """
        contents = tuple(segment.content for segment in segments)
        name = self.files.place, contents, self.table.version, self.columns
        bundle = _blocks.get(name)
        if bundle is None:
            blocks = [
                _blocks.get((*self._name(segment, self.columns, 1), block))
                for segment in segments
                for block in range(len(segment.blocks))
            ]
            parts = [block.choices.get(self.columns) for block in blocks if block is not None]
            decoded = [part for part in parts if part is not None]
            if len(decoded) < len(blocks):
                return None
            bundle = _Block(_contiguous(newest_wins(decoded)), {})
            _blocks.put(name, bundle)
        return bundle.rows

    def _find_one(self, levels: Sequence[Level], key: Key) -> Rows | None:
        """Return the live row of one key, like `find`. It bisects in Python: each call of an Arrow kernel takes longer
        than that.
        """
        for level in reversed(levels):
            rows = level if isinstance(level, Rows) else self._rows_near(level, key)
            position = _position(rows.keys, key) if rows is not None else None
            if rows is None or position is None:
                continue
            if rows.deleted is not None and rows.deleted[position]:
                return None
            return Rows(rows.keys.slice(position, 1), _taken(rows.data, np.array([position])))
        return None

    def _rows_near(self, level: Sequence[Segment] | Sequence[RunFile], key: Key) -> Rows | None:
        """Return the rows of the one block of the level that may hold the key; None if there is none."""
        place = bisect_right(level, key, key=lambda file: file.key_min) - 1
        if place < 0 or key > level[place].key_max:
            return None
        file = level[place]
        block = bisect_right(file.blocks, key) - 1
        if len(self.columns) > DIRECT_COLUMNS and _position(self._decoded(file, [block], ())[block].keys, key) is None:
            return None
        return self._decoded(file, [block], self.columns)[block]

    def known(self, levels: Sequence[Level], needles: pa.Array) -> np.ndarray:
        """Return bool[keys]: True where a level has the key (sorted, each once), as a row or a tombstone."""
        is_known = np.zeros(len(needles), np.bool_)
        for level in levels:
            for part in self._in_level(level, needles) if len(needles) else ():
                is_known[part.at] = True
        return is_known

    def _in_level(self, level: Level, needles: pa.Array) -> list[_Hits]:
        if isinstance(level, Rows):
            return _find_hits(level, needles, 0)
        starts = self.codec.array([file.key_min for file in level])
        places = search(starts, needles, "right") - 1  # the one file that may hold the key; -1: none
        return [
            part
            for first, end in _equal_spans(places)
            if places[first] >= 0
            for part in self._in_file(level[places[first]], needles.slice(first, end - first), first)
        ]

    def _sieve(self, level: Level, needles: int) -> Sieve | None:
        """Return the sieve of a level that is one segment; None for other levels, and for so few needles that making
        it costs more than it saves.
        """
        if isinstance(level, Rows) or len(level) != 1 or not isinstance(level[0], Segment):
            return None
        (segment,) = level
        if len(segment.blocks) * SIEVED_NEEDLES > needles:
            return None
        name = self.files.place, *segment.content, self.table.version
        sieve = _sieves.get(name)
        if sieve is None:
            columns = self.columns if len(self.columns) <= DIRECT_COLUMNS else ()
            rows = self._decoded(segment, range(len(segment.blocks)), columns)
            sieve = Sieve.of([part.keys for part in rows.values()])
            _sieves.put(name, sieve)
        return sieve

    def _in_file(self, file: Segment | RunFile, needles: pa.Array, first: int) -> list[_Hits]:
        """Return the needles that are in the file, with their rows. first: the index of the first needle."""
        below = int(search(needles, self.codec.array([file.key_max]), "right")[0])
        if not below:
            return []
        needles = needles.slice(0, below)
        wide = 1
        if len(file.blocks) > 1:
            slots = search(self.codec.array(file.blocks), needles, "right") - 1  # the one block that may hold the key
            spans = {int(slots[low]): (low, high) for low, high in _equal_spans(slots)}
            wide = self._width(file, len(spans))
            if wide > 1:
                slots = slots // wide
                spans = {int(slots[low]): (low, high) for low, high in _equal_spans(slots)}
        else:
            spans = {0: (0, below)}
        parts = {block: needles.slice(low, high - low) for block, (low, high) in spans.items()}
        return [
            hits
            for group in block_groups(list(parts), -(-len(file.blocks) // wide), file.rows, TOGETHER_ROWS)
            for block, rows in self._rows_of(file, {block: parts[block] for block in group}, wide).items()
            for hits in _find_hits(rows, parts[block], first + spans[block][0])
        ]

    def _width(self, file: Segment | RunFile, touched: int) -> int:
        """Return the number of neighbouring blocks to search as one, if the needles lie in `touched` blocks."""
        many = touched >= WIDE_TOUCHED and 2 * touched >= len(file.blocks)
        return max(1, WIDE_ROWS * len(file.blocks) // file.rows) if many and len(self.columns) <= DIRECT_COLUMNS else 1

    def _rows_of(self, file: Segment | RunFile, parts: Mapping[int, pa.Array], wide: int) -> dict[int, Rows]:
        """Return the rows of the blocks that hold one of their needles, or may hold one.

        parts: the needles by block. wide: a block of `parts` is so many neighbouring blocks of the file: with 4, its
        block 1 is blocks 4 to 7.
        """
        if len(self.columns) <= DIRECT_COLUMNS:
            return self._decoded(file, parts, self.columns, wide)
        bare = self._decoded(file, [block for block, part in parts.items() if len(part) < DIRECT_KEYS], ())
        absent = {block for block, rows in bare.items() if not (lookup(rows.keys, parts[block]) >= 0).any()}
        return self._decoded(file, [block for block in parts if block not in absent], self.columns)

    def _decoded(
        self, file: Segment | RunFile, blocks: Collection[int], columns: tuple[str, ...], wide: int = 1
    ) -> dict[int, Rows]:
        """Return the rows of these blocks, decoded now or earlier. Readers of other columns share what is decoded."""
        name = self._name(file, columns, wide)
        rows: dict[int, Rows] = {}
        missing: dict[tuple[str, ...], list[tuple[int, _Block | None]]] = {}
        for block in blocks:
            known = _blocks.get((*name, block))
            if known is not None and columns not in known.choices and not known.lacking(columns):
                known = known.with_choice(columns)
                _blocks.put((*name, block), known)
            if known is not None and columns in known.choices:
                rows[block] = known.choices[columns]
            else:
                missing.setdefault(columns if known is None else known.lacking(columns), []).append((block, known))
        for lacking, places in missing.items():
            read = self._read(file, [block for block, _ in places], lacking, wide)
            for (block, known), decoded in zip(places, read, strict=True):
                chosen = (_Block(decoded, {}) if known is None else known.with_columns(decoded)).with_choice(columns)
                _blocks.put((*name, block), chosen)
                rows[block] = chosen.choices[columns]
        return rows

    def _name(self, file: Segment | RunFile, columns: tuple[str, ...], wide: int) -> tuple[object, ...]:
        """Return the first part of the names of a file's decoded blocks: the verified content, and what it was decoded
        for. Readers of many columns share theirs with no others.
        """
        shared = () if len(columns) <= SHARED_COLUMNS else columns
        return self.files.place, *file.content, self.table.version, wide, shared

    def _read(self, file: Segment | RunFile, blocks: Sequence[int], columns: Sequence[str], wide: int) -> list[Rows]:
        if wide > 1:
            spans = [range(block * wide, min((block + 1) * wide, len(file.blocks))) for block in blocks]
            rows = iter(self._read(file, [block for span in spans for block in span], columns, 1))
            return [_contiguous(joined([next(rows) for _ in span])) for span in spans]
        if isinstance(file, Segment):
            return SegmentReader(self.files, file, self.table, self.codec).read_blocks(columns, blocks)
        return read_blocks(self.files, file, self.table, self.codec, columns, blocks)


def _position(keys: pa.Array, key: Key) -> int | None:
    """Return the position of a key among sorted keys; None if it is not among them."""
    if pa.types.is_binary(keys.type):
        position = bisect_left(range(len(keys)), key, key=lambda index: keys[index].as_py())
    else:
        values = to_numpy(keys)
        position = int(values.searchsorted(values.dtype.type(key)))  # of the same type, else numpy converts all values
    return position if position < len(keys) and keys[position].as_py() == key else None


def _contiguous(rows: Rows) -> Rows:
    return Rows(rows.keys, rows.data.combine_chunks() if rows.data.num_columns else rows.data, rows.deleted)


def _rows_within(rows: Rows, spans: Spans) -> Rows | None:
    """Return the rows with keys of the ranges; None without any."""
    starts, ends = search(rows.keys, spans.lows), spans.ends(rows.keys)
    counts = ends - starts
    total = int(counts.sum())
    if not total:
        return None
    low, high = int(starts[counts > 0][0]), int(ends[counts > 0][-1])
    if high - low == total:
        deleted = None if rows.deleted is None else rows.deleted[low:high]
        return Rows(rows.keys.slice(low, total), rows.data.slice(low, total), deleted)
    positions = np.repeat(starts - np.cumsum(counts) + counts, counts) + np.arange(total)
    deleted = None if rows.deleted is None else rows.deleted[positions]
    return Rows(rows.keys.take(from_numpy(positions)), _taken(rows.data, positions), deleted)


def _equal_spans(values: np.ndarray) -> list[tuple[int, int]]:
    """Return the spans [first, end) of equal neighbours."""
    return list(pairwise([0, *(np.flatnonzero(values[1:] != values[:-1]) + 1).tolist(), len(values)]))


def _find_hits(rows: Rows, needles: pa.Array, first: int) -> list[_Hits]:
    """Return the needles that are among the rows, with their rows. first: the index of the first needle.

    Both are sorted and hold each key once, so the fewer of them are looked up in the others.
    """
    if len(rows) < len(needles):
        at = lookup(needles, rows.keys)
        (positions,) = (at >= 0).nonzero()
        hit_needles = at[positions]
    else:
        at = lookup(rows.keys, needles)
        (hit_needles,) = (at >= 0).nonzero()
        positions = at[hit_needles]
    if not len(hit_needles):
        return []
    deleted = rows.deleted[positions] if rows.deleted is not None else None
    return [_Hits(hit_needles + first, _taken(rows.data, positions), deleted)]


def _in_order(hits: Sequence[_Hits], needles: pa.Array) -> Rows | None:
    """Join the rows in key order, without tombstones; None without any. needles: the keys that were looked up."""
    if not hits:
        return None
    at, data = np.concatenate([part.at for part in hits]), hits[0].data
    if len(hits) > 1:
        data = pa.concat_tables([part.data for part in hits], promote_options="default")
    live = np.concatenate([np.ones(len(part.at), np.bool_) if part.deleted is None else ~part.deleted for part in hits])
    row_of = np.full(len(needles), -1)
    row_of[at[live]] = live.nonzero()[0]
    (live_at,) = (row_of >= 0).nonzero()
    return Rows(needles.take(from_numpy(live_at)), _taken(data, row_of[live_at]))


def _taken(data: pa.Table, positions: np.ndarray) -> pa.Table:
    return data.take(from_numpy(positions)) if data.num_columns else data
