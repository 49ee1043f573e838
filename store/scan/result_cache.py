"""Result cache: the rows of whole tables that this process read last, on which a later read puts newer commits only.

A result is determined by the files that it was read from: sorted runs, each as of an epoch, and the L0 segments above
them. A read whose plan has equal runs, and these segments before all others, merges just the segments that follow. So
the cache can be cleared at any moment, and the only cost is the time to read the files again. Reads of a past epoch of
a run are kept too, in the room that the others leave.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from epochlog.errors import InvalidInput
from epochlog.store.env.lru_cache import LRUCache
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
    """Rows of a whole table, in key order, as of the newest of these segments."""

    segments: tuple[Segment, ...]
    data: pa.Table
    """Primary key's columns and others."""
    keys: pa.Array | None = None
    """Encoded; None while no read has needed them."""

    def covers(self, names: Sequence[str]) -> bool:
        """Return True if the result has all these columns."""
        return set(names) <= set(self.data.column_names)

    def is_below(self, segments: Sequence[Segment]) -> bool:
        """Return True if the segments begin with those of the result."""
        return len(self.segments) <= len(segments) and self.segments == tuple(segments[: len(self.segments)])


FileId = tuple[str | int, ...]
"""Path, bytes and CRC-32 of a file."""


class RunRows(NamedTuple):
    """Identity of the rows of a run as of an epoch."""

    past: int | None
    """Epoch; None for all live rows."""
    files: tuple[FileId, ...]
    """Live parts, and the history files that the epoch sees: a table and its clone may share all live parts and differ
    in their history.
    """


class ResultKey(NamedTuple):
    """Key of a result: all that determines its rows, but for its segments and the choice of columns."""

    place: str
    """Place of the store's files, a folder or bucket."""
    table: str
    """Name of the table, so that tables which share files have a result each."""
    runs: tuple[RunRows, ...]
    first: FileId | None
    """First segment, if the runs have no file."""
    columns: tuple[object, ...]
    """Signature of the reader's schema."""
    spare: bool
    """True for a read of the table's past, below the newest epoch of a run, or below the epoch at which the run was cut
    for a clone.
    """


def _size_of(result: Result) -> int:
    return result.data.nbytes + (0 if result.keys is None else result.keys.nbytes)


results: LRUCache[Result] = LRUCache(LIMIT_BYTES, _size_of, name="results")


def result_key(
    place: str, table: TableSchema, epoch: int, runs: Sequence[SortedRun], segments: Sequence[Segment]
) -> ResultKey | None:
    """Return the key of a read of all rows; None if it reads no file. place: that of the store's files."""
    rows = tuple(_rows_of(run, epoch) for run in runs)
    has_files = any(run.files for run in rows)
    if not has_files and not segments:
        return None
    first = None if has_files else segments[0].content
    spare = any(run.past_epoch(epoch) not in (None, run.at) for run in runs)
    return ResultKey(place, table.name, rows, first, signature(table, table.schema.names), spare)


def _rows_of(run: SortedRun, epoch: int) -> RunRows:
    """Return the identity of a run's rows that a read at the epoch sees."""
    return RunRows(run.past_epoch(epoch), tuple(file.content for file in run.files_at(epoch)))


def find_result(key: ResultKey, segments: Sequence[Segment], names: Sequence[str]) -> Result | None:
    """Return a result with these columns on which newer ones of the segments can be put."""
    result = results.get(key)
    return result if result is not None and result.covers(names) and result.is_below(segments) else None


def keep_result(key: ResultKey, result: Result) -> None:
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
        results.put(key, result, spare=key.spare)


def set_result_cache_bytes(limit_bytes: int) -> int:
    """Set the bound of this process's result cache in bytes, over all tables, and return the bound before.

    The cache has the rows of whole tables that were read last, so that the next read decodes newer commits only; rows
    that no read uses for 15 minutes are dropped. Reads of all rows by `to_arrow`, `to_pandas` and `to_polars`, and
    those of jobs and views, use it, and fill it if they read all columns of the key; reads with a filter and all other
    reads do not. When the bound is reached, rows of epochs that a compaction has passed are dropped first.
    With 0 it keeps nothing; the default is 256 MiB. Raises InvalidInput for a negative or other value.
    """
    if not isinstance(limit_bytes, int) or isinstance(limit_bytes, bool) or limit_bytes < 0:
        raise InvalidInput(f"the bound of the result cache is a number of bytes, 0 or more, not {limit_bytes!r}")
    return results.resize(limit_bytes)
