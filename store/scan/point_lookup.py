"""Point lookups: newest level first, only the blocks that may hold the keys; decoded blocks are in an LRU cache."""

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

CACHE_BYTES = 256 << 20
DIRECT_KEYS = 16
"""For fewer needles, a block's keys are decoded before its other columns, for it may hold none of them."""

Level = Sequence[Segment] | Sequence[RunFile] | Rows
"""Files with disjoint key ranges, in key order; or rows in memory."""

_blocks: LRUCache[Rows] = LRUCache(CACHE_BYTES, lambda rows: rows.keys.nbytes + rows.data.nbytes)


@dataclass(frozen=True, slots=True)
class _Hits:
    """Rows of some needles, tombstones too. at: int64, ascending indices of these needles."""

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
        """Return the live rows of these keys (sorted, each once), in key order; None without any. levels: oldest first;
        the newest level that has a key decides.
        """
        missing = np.arange(len(needles))
        hits: list[_Hits] = []
        for level in reversed(levels):
            in_level = self._in_level(
                level, needles if len(missing) == len(needles) else needles.take(pa.array(missing))
            )
            if in_level:
                hits += [_Hits(missing[part.at], part.rows) for part in in_level]
                missing = np.delete(missing, np.concatenate([part.at for part in in_level]))
            if not len(missing):
                break
        return _in_order(hits)

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
        places = [(file, block) for file in level for block in range(len(file.blocks))]
        if len(places) == 1:
            return self._in_block(level[0], 0, needles, 0)
        starts = self.codec.array([start for file in level for start in file.blocks])
        slots = search(starts, needles, "right") - 1  # the one block that may hold the key; -1: none
        edges = [0, *(np.flatnonzero(slots[1:] != slots[:-1]) + 1).tolist(), len(needles)]

        def look(span: tuple[int, int]) -> list[_Hits]:
            first, end = span
            file, block = places[slots[first]]
            return self._in_block(file, block, needles.slice(first, end - first), first)

        spans = [span for span in pairwise(edges) if slots[span[0]] >= 0]
        return [part for parts in parallel_map(look, spans, len(spans) * BATCH_ROWS // 2) for part in parts]

    def _in_block(self, file: Segment | RunFile, block: int, needles: pa.Array, first: int) -> list[_Hits]:
        if needles[0].as_py() > file.key_max:
            return []
        name = self.files.place, file.path, file.bytes, file.crc32  # identifies the verified content
        rows = _blocks.get((*name, block, self.columns))
        if rows is None and len(needles) < DIRECT_KEYS:
            bare = _blocks.get((*name, block, ())) or self._decoded(name, file, block, ())
            if not (lookup(bare.keys, needles) >= 0).any():
                return []
        return _find_hits(rows or self._decoded(name, file, block, self.columns), needles, first)

    def _decoded(self, name: tuple[object, ...], file: Segment | RunFile, block: int, columns: tuple[str, ...]) -> Rows:
        if isinstance(file, Segment):
            rows = SegmentReader(self.files, file, self.table, self.codec).read(columns, block=block)
        else:
            rows = read_part(self.files, file, self.table, self.codec, ReadOptions(columns), block=block)
        _blocks.put((*name, block, columns), rows)
        return rows


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
    return [_Hits(hit_needles + first, _taken(rows, positions))] if len(hit_needles) else []


def _in_order(hits: Sequence[_Hits]) -> Rows | None:
    """Join the rows in key order, without tombstones; None without any."""
    if not hits:
        return None
    rows = joined([part.rows for part in hits])
    if len(hits) == 1 and rows.deleted is None:
        return rows
    order = np.argsort(np.concatenate([part.at for part in hits]))
    if rows.deleted is not None:
        order = order[~rows.deleted[order]]
    live = _taken(rows, order)
    return Rows(live.keys, live.data)


def _taken(rows: Rows, positions: np.ndarray) -> Rows:
    take = pa.array(positions)
    deleted = rows.deleted[positions] if rows.deleted is not None else None
    data = rows.data.take(take) if rows.data.num_columns else rows.data
    return Rows(rows.keys.take(take), data, deleted)
