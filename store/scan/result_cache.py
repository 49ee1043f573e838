"""Result cache: the rows of whole tables that this process read last, on which a later read puts newer commits only.

A result is determined by the files that it was read from: sorted runs, and the L0 segments above them. A read whose
plan has the same runs, and these segments before all others, merges just the segments that follow. So the cache can be
cleared at any moment, and the only cost is the time to read the files again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from epochlog.errors import InvalidInput
from epochlog.store.env.lru_cache import CacheKey, LRUCache
from epochlog.store.env.memory import available_bytes
from epochlog.store.sst.file_columns import signature
from epochlog.store.sst.segment import Segment
from epochlog.store.sst.sorted_run import SortedRun
from epochlog.store.types.schema import TableSchema

LIMIT_BYTES = 256 << 20
RESERVE_BYTES = 512 << 20
"""Available memory of the process below which the cache is emptied and keeps nothing."""
SMALL_BYTES = 1 << 20
"""Bytes of a result below which the available memory is not looked up: that takes as long as the read of few rows."""


@dataclass(frozen=True, slots=True)
class Result:
    """Rows of a whole table, in key order, as of the newest of these segments.

    data: the primary key's columns and others. keys: encoded; None while no read has needed them.
    """

    segments: tuple[Segment, ...]
    data: pa.Table
    keys: pa.Array | None = None

    def covers(self, names: Sequence[str]) -> bool:
        """Return True if the result has all these columns."""
        return set(names) <= set(self.data.column_names)

    def is_below(self, segments: Sequence[Segment]) -> bool:
        """Return True if the segments begin with those of the result."""
        return len(self.segments) <= len(segments) and self.segments == tuple(segments[: len(self.segments)])


def _size_of(result: Result) -> int:
    return result.data.nbytes + (0 if result.keys is None else result.keys.nbytes)


results: LRUCache[Result] = LRUCache(LIMIT_BYTES, _size_of)


def result_key(
    place: str, table: TableSchema, epoch: int, runs: Sequence[SortedRun], segments: Sequence[Segment]
) -> CacheKey | None:
    """Return the cache key of a read of all rows; None if it reads rows that a run has replaced since, or no file.

    place: that of the store's files.
    """
    if any(run.past_epoch(epoch) is not None for run in runs):
        return None
    base = tuple((part.path, part.bytes, part.crc32) for run in runs for part in run.parts)
    if not base and not segments:
        return None
    first = () if base else (segments[0].path, segments[0].bytes, segments[0].crc32)
    return place, base, first, signature(table, table.schema.names)


def find_result(key: CacheKey, segments: Sequence[Segment], names: Sequence[str]) -> Result | None:
    """Return a result with these columns on which newer ones of the segments can be put."""
    result = results.get(key)
    return result if result is not None and result.covers(names) and result.is_below(segments) else None


def keep_result(key: CacheKey, result: Result) -> None:
    """Keep a result, unless a newer one with its columns is kept, or little memory is available."""
    available = available_bytes() if _size_of(result) >= SMALL_BYTES else None
    if available is not None and available < RESERVE_BYTES:
        results.clear()
        return
    kept = results.get(key)
    is_older = (
        kept is not None
        and len(result.segments) < len(kept.segments)
        and result.is_below(kept.segments)
        and kept.covers(result.data.column_names)
    )
    if not is_older:
        results.put(key, result)


def set_result_cache_bytes(limit_bytes: int) -> int:
    """Set the bound of this process's result cache in bytes, over all tables, and return the bound before.

    The cache has the rows of whole tables that were read last, so that the next read decodes newer commits only. With 0
    it keeps nothing; the default is 256 MiB. Raises InvalidInput for a negative or other value.
    """
    if not isinstance(limit_bytes, int) or isinstance(limit_bytes, bool) or limit_bytes < 0:
        raise InvalidInput(f"the bound of the result cache is a number of bytes, 0 or more, not {limit_bytes!r}")
    return results.resize(limit_bytes)
