"""Point lookups: newest source first, in each only the blocks that may hold the keys; decoded blocks are cached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from epochlog.store.env.files import Files
from epochlog.store.env.lru_cache import LRUCache
from epochlog.store.env.parallel import parallel_map
from epochlog.store.sst.merge import Rows, joined, lookup
from epochlog.store.sst.segment import BATCH_ROWS, Segment, SegmentReader
from epochlog.store.sst.sorted_run import RunFile, read_part
from epochlog.store.types.key_codec import KeyCodec, search
from epochlog.store.types.read_options import ReadOptions
from epochlog.store.types.schema import TableSchema

KEPT_BYTES = 256 << 20
DIRECT_KEYS = 16
"""With fewer keys to look for in a block, its keys are decoded before its other columns: it may hold none of them."""

Level = Sequence[Segment] | Sequence[RunFile] | Rows
"""Files of disjoint key ranges, in key order; or rows that are in memory already."""

_blocks: LRUCache[Rows] = LRUCache(KEPT_BYTES, lambda rows: rows.keys.nbytes + rows.data.nbytes)


@dataclass(frozen=True, slots=True)
class _Found:
    """Some of the keys asked for (`at`: which, ascending), with their rows; tombstones too."""

    at: np.ndarray
    rows: Rows


@dataclass(frozen=True, slots=True)
class PointReader:
    """Reader of single keys of one table, for one choice of columns."""

    files: Files
    table: TableSchema
    codec: KeyCodec
    columns: tuple[str, ...]

    def find(self, levels: Sequence[Level], needles: pa.Array) -> Rows | None:
        """Return the live rows of these keys (sorted, each once), in key order, or None; of several levels, oldest
        first, the last one that has a key decides.
        """
        left = np.arange(len(needles))
        found: list[_Found] = []
        for level in reversed(levels):
            here = self._in_level(level, needles if len(left) == len(needles) else needles.take(pa.array(left)))
            if here:
                found += [_Found(left[part.at], part.rows) for part in here]
                left = np.delete(left, np.concatenate([part.at for part in here]))
            if not len(left):
                break
        return _in_order(found)

    def known(self, levels: Sequence[Level], needles: pa.Array) -> np.ndarray:
        """Return bool[keys]: True where any of the levels has the key (sorted, each once), be it as a tombstone."""
        found = np.zeros(len(needles), np.bool_)
        for level in levels:
            for part in self._in_level(level, needles) if len(needles) else ():
                found[part.at] = True
        return found

    def _in_level(self, level: Level, needles: pa.Array) -> list[_Found]:
        if isinstance(level, Rows):
            return _hits(level, needles, 0)
        places = [(file, block) for file in level for block in range(len(file.blocks))]
        if len(places) == 1:
            return self._in_block(level[0], 0, needles, 0)
        starts = self.codec.array([start for file in level for start in file.blocks])
        slots = search(starts, needles, "right") - 1  # of all blocks the one that may hold the key, -1: none does
        edges = [0, *(np.flatnonzero(slots[1:] != slots[:-1]) + 1).tolist(), len(needles)]

        def look(span: tuple[int, int]) -> list[_Found]:
            first, end = span
            file, block = places[slots[first]]
            return self._in_block(file, block, needles.slice(first, end - first), first)

        spans = [span for span in pairwise(edges) if slots[span[0]] >= 0]
        return [part for parts in parallel_map(look, spans, len(spans) * BATCH_ROWS // 2) for part in parts]

    def _in_block(self, file: Segment | RunFile, block: int, needles: pa.Array, first: int) -> list[_Found]:
        if needles[0].as_py() > file.key_max:
            return []
        name = self.files.place, file.path, file.bytes, file.crc32  # what it held when it was verified, for good
        rows = _blocks.get((*name, block, self.columns))
        if rows is None and len(needles) < DIRECT_KEYS:
            bare = _blocks.get((*name, block, ())) or self._decoded(name, file, block, ())
            if not (lookup(bare.keys, needles) >= 0).any():
                return []
        return _hits(rows or self._decoded(name, file, block, self.columns), needles, first)

    def _decoded(self, name: tuple[object, ...], file: Segment | RunFile, block: int, columns: tuple[str, ...]) -> Rows:
        if isinstance(file, Segment):
            rows = SegmentReader(self.files, file, self.table, self.codec).read(columns, block=block)
        else:
            rows = read_part(self.files, file, self.table, self.codec, ReadOptions(columns), block=block)
        _blocks.put((*name, block, columns), rows)
        return rows


def _hits(rows: Rows, needles: pa.Array, first: int) -> list[_Found]:
    """Return the needles that are among the rows, with these rows; `first` is the index of the first needle.

    Both are sorted and hold each key once, so the fewer of them are looked up in the others.
    """
    if len(rows) < len(needles):
        at = lookup(needles, rows.keys)
        (positions,) = (at >= 0).nonzero()
        there = at[positions]
    else:
        at = lookup(rows.keys, needles)
        (there,) = (at >= 0).nonzero()
        positions = at[there]
    return [_Found(there + first, _taken(rows, positions))] if len(there) else []


def _in_order(found: Sequence[_Found]) -> Rows | None:
    """Join the rows found, in key order, without tombstones; None if nothing was found."""
    if not found:
        return None
    rows = joined([part.rows for part in found])
    if len(found) == 1 and rows.deleted is None:
        return rows
    order = np.argsort(np.concatenate([part.at for part in found]))
    if rows.deleted is not None:
        order = order[~rows.deleted[order]]
    live = _taken(rows, order)
    return Rows(live.keys, live.data)


def _taken(rows: Rows, positions: np.ndarray) -> Rows:
    take = pa.array(positions)
    deleted = rows.deleted[positions] if rows.deleted is not None else None
    data = rows.data.take(take) if rows.data.num_columns else rows.data
    return Rows(rows.keys.take(take), data, deleted)
