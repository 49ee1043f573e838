"""Checks of one data file against its descriptor, block by block: checksum, order, bounds, counts and statistics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochlog.errors import Corrupt, SchemaChanged
from epochlog.store.env.files import Files
from epochlog.store.sst.data_file import Stats, key_stats, verified
from epochlog.store.sst.file_columns import file_schema
from epochlog.store.sst.merge import Rows, lookup
from epochlog.store.sst.parquet_options import flat_columns
from epochlog.store.sst.segment import Segment, SegmentReader
from epochlog.store.sst.sorted_run import EPOCH, UNTIL, RunFile, SortedRun, read_part
from epochlog.store.types.arrays import to_numpy
from epochlog.store.types.key_codec import Key, KeyCodec, contiguous, last_of_each, sort_indices
from epochlog.store.types.key_range import KeyRange
from epochlog.store.types.read_options import ReadOptions
from epochlog.store.types.schema import TableSchema


def check_segment(
    files: Files, table: TableSchema, segment: Segment, packed: np.ndarray | None = None
) -> Iterator[str]:
    """Yield the problems of a segment's file: a wrong checksum, or a difference from its descriptor.

    packed: of a pack the rows of each log epoch.
    """
    try:
        schema = file_schema(table, segment)
        codec = KeyCodec(schema.schema, schema.primary_key)
        reader = SegmentReader(files, segment, schema, codec)
        data = verified(files, segment.path, segment.bytes, segment.crc32, recheck=True)
        if packed is not None:
            yield from _check_pack(codec, segment, reader.read_part(None), packed)
            return
        walk = Walk(codec, _batch_starts(data))
        for key_range in _ranges(segment.blocks):
            yield from walk.take(reader.read(None, key_range))
        yield from walk.end(segment, repeats=False)
    except SchemaChanged:
        yield f"is of a version of the table's schema that has no record: {segment.schema_version}"
    except Corrupt as error:
        yield error.what


def _check_pack(codec: KeyCodec, segment: Segment, rows: Rows, packed: np.ndarray) -> Iterator[str]:
    """Yield the differences between the rows of a pack and the catalog. Each log epoch has each key once, in order."""
    deletes = 0 if rows.deleted is None else int(rows.deleted.sum())
    if (len(rows), deletes) != (segment.rows, segment.deletes):
        yield f"has {len(rows)} rows and {deletes} deletes, not {segment.rows} and {segment.deletes}"
        return
    keys = rows.keys
    falls = to_numpy(pc.less_equal(keys.slice(1), keys.slice(0, len(keys) - 1)))
    if np.setdiff1d(np.flatnonzero(falls) + 1, np.cumsum(packed)).size:
        yield "its keys are not in strictly rising order in each log epoch"
    order = sort_indices(keys)
    if (keys[int(order[0])].as_py(), keys[int(order[-1])].as_py()) != (segment.key_min, segment.key_max):
        yield "its least and greatest keys differ from those in the catalog"
    if codec.encode(rows.data) != keys:
        yield "its hidden keys differ from its key columns"
    if key_stats(codec, rows.data) != segment.stats:
        yield f"has values in {key_stats(codec, rows.data)}, not in {segment.stats}"


def check_part(files: Files, table: TableSchema, run: SortedRun, part: RunFile) -> Iterator[str]:
    """Yield the problems of a run file: a wrong checksum, or a difference from its descriptor."""
    hidden = [EPOCH, UNTIL] if part.history else [EPOCH]
    last_until = 0
    try:
        schema = file_schema(table, part)
        codec = KeyCodec(schema.schema, schema.primary_key)
        data = verified(files, part.path, part.bytes, part.crc32, recheck=True)
        walk = Walk(codec, _row_group_starts(data))
        for key_range in _ranges(part.blocks):
            rows = read_part(files, part, schema, codec, ReadOptions([*schema.schema.names, *hidden], None, key_range))
            yield from walk.take(rows)
            yield from _check_epochs(run, part, rows)
            if part.history and len(rows):
                last_until = max(last_until, pc.max(rows.data.column(UNTIL)).as_py())
        yield from walk.end(part, repeats=part.history)
        yield from _check_parquet_statistics(data)
    except SchemaChanged:
        yield f"is of a version of the table's schema that has no record: {part.schema_version}"
        return
    except Corrupt as error:
        yield error.what
        return
    if last_until != part.until:
        yield f"its rows end at {last_until}, not {part.until}"


def check_ends(files: Files, schema: TableSchema, codec: KeyCodec, run: SortedRun, past: RunFile) -> Iterator[str]:
    """Yield a problem for each run file with a row that begins before an older version of its key in `past` ends."""
    for within in _ranges(past.blocks):
        old = read_part(files, past, schema, codec, ReadOptions([UNTIL], None, within))
        for part in run.parts:
            if within.overlaps(part.key_min, part.key_max):
                live = read_part(files, part, schema, codec, ReadOptions([EPOCH], None, within))
                if _overlap(old, live):
                    yield f"holds history rows that end after newer rows of their keys in {part.path} begin"


def _overlap(old: Rows, live: Rows) -> bool:
    if not len(old) or not len(live):
        return False
    last = last_of_each(old.keys)
    positions = lookup(live.keys, old.keys.filter(pa.array(last)))
    matched = positions >= 0
    end_epochs, begin_epochs = (
        contiguous(rows.data.column(name)).to_numpy() for rows, name in ((old, UNTIL), (live, EPOCH))
    )
    return bool((begin_epochs[positions[matched]] < end_epochs[last][matched]).any())


def _ranges(blocks: Sequence[Key]) -> list[KeyRange]:
    """Return key ranges of about one block that tile a file; all versions of a key are in one range."""
    firsts: list[Key | None] = [None, *list(dict.fromkeys(blocks))[1:]]
    return [KeyRange(*bounds) for bounds in zip(firsts, [*firsts[1:], None], strict=True)]


def _batch_starts(data: pa.Buffer) -> list[int]:
    with pa.ipc.open_file(data) as reader:
        sizes = [reader.get_batch(at).num_rows for at in range(reader.num_record_batches)]
    return _starts(sizes)


def _row_group_starts(data: pa.Buffer) -> list[int]:
    import pyarrow.parquet as pq

    metadata = pq.ParquetFile(pa.BufferReader(data)).metadata
    return _starts([metadata.row_group(at).num_rows for at in range(metadata.num_row_groups)])


def _starts(sizes: Sequence[int]) -> list[int]:
    return [int(at) for at in np.cumsum([0, *sizes[:-1]])] if sizes else []


class Walk:
    """Pass over a file's rows in order that computes the facts of its descriptor.

    `starts`: the numbers of the rows at which its blocks begin.
    """

    def __init__(self, codec: KeyCodec, starts: Sequence[int]) -> None:
        self._codec = codec
        self._starts = starts
        self._rows = self._deletes = 0
        self._disorder = self._repeats = False
        self._blocks: list[Key] = []
        self._low: Key | None = None
        self._high: Key | None = None
        self._stats: list[Stats] = []

    def take(self, rows: Rows) -> Iterator[str]:
        """Add the next rows; yield a problem if their hidden keys do not match their key columns."""
        keys = rows.keys
        if not len(keys):
            return
        low, high = keys[0].as_py(), keys[len(keys) - 1].as_py()
        self._disorder |= self._high is not None and not self._high < low
        self._low, self._high = (low if self._low is None else self._low), high
        before, after = keys.slice(0, len(keys) - 1), keys.slice(1)
        self._disorder |= pc.all(pc.less_equal(before, after)).as_py() is False
        self._repeats |= pc.any(pc.equal(before, after)).as_py() is True
        inside = [at - self._rows for at in self._starts if self._rows <= at < self._rows + len(keys)]
        self._blocks += [keys[at].as_py() for at in inside]
        self._rows += len(keys)
        self._deletes += 0 if rows.deleted is None else int(rows.deleted.sum())
        self._stats.append(key_stats(self._codec, rows.data))
        if self._codec.encode(rows.data) != keys:
            yield "its hidden keys differ from its key columns"

    def end(self, descriptor: Segment | RunFile, *, repeats: bool) -> Iterator[str]:
        """Yield the differences between the rows and the file's descriptor in the catalog. Call it after
        the last rows.
        """
        if (self._rows, self._deletes) != (descriptor.rows, descriptor.deletes):
            yield f"has {self._rows} rows and {self._deletes} deletes, not {descriptor.rows} and {descriptor.deletes}"
        if self._disorder or (self._repeats and not repeats):
            yield "its keys are not in order" if repeats else "its keys are not in strictly rising order"
        if (self._low, self._high) != (descriptor.key_min, descriptor.key_max):
            yield "its least and greatest keys differ from those in the catalog"
        if self._blocks != list(descriptor.blocks):
            yield "its blocks do not begin with the keys in the catalog"
        stats = _combined(self._stats)
        for name in sorted(stats.keys() | descriptor.stats.keys()):
            if stats.get(name) != descriptor.stats.get(name):
                yield f"column {name!r} has values in {stats.get(name)}, not in {descriptor.stats.get(name)}"


def _combined(all_stats: Sequence[Stats]) -> Stats:
    """Return least and greatest values over all blocks, for the columns that have them in every block."""
    names = set.intersection(*(set(stats) for stats in all_stats)) if all_stats else set()
    bounds = {name: [stats[name] for stats in all_stats] for name in names}
    return {name: (min(low for low, _ in pairs), max(high for _, high in pairs)) for name, pairs in bounds.items()}


def _check_epochs(run: SortedRun, part: RunFile, rows: Rows) -> Iterator[str]:
    """Check the epochs of rows: within the run's; in history ending after they begin, before the next version."""
    if not len(rows):
        return
    begin_epochs = contiguous(rows.data.column(EPOCH)).to_numpy()
    if not run.lo < begin_epochs.min() <= begin_epochs.max() <= run.hi:
        yield f"holds rows from outside its run's epochs ({run.lo}, {run.hi}]"
    if not part.history:
        return
    end_epochs = contiguous(rows.data.column(UNTIL)).to_numpy()
    if (begin_epochs >= end_epochs).any():
        yield "holds rows that end before they begin"
    if begin_epochs.min() < part.since:
        yield f"holds rows from before epoch {part.since}, the lower bound in the catalog"
    kept = np.array(part.kept, np.int64)
    if len(kept) and (kept.searchsorted(begin_epochs) == kept.searchsorted(end_epochs)).any():
        yield "holds rows that none of its tags sees"
    if end_epochs.max() > run.hi:
        yield f"holds rows that end after its run, at {end_epochs.max()}"
    same = pc.equal(rows.keys.slice(0, len(rows) - 1), rows.keys.slice(1)).to_numpy(zero_copy_only=False)
    if (same & (end_epochs[:-1] > begin_epochs[1:])).any():
        yield "holds two rows of one key for the same epoch"


# ---- Parquet's own statistics --------------------------------------------------------------------------------------


def _check_parquet_statistics(data: pa.Buffer) -> Iterator[str]:
    """Check the statistics by which readers prune row groups."""
    import pyarrow.parquet as pq

    file = pq.ParquetFile(pa.BufferReader(data))
    places = flat_columns(file.schema_arrow)
    for group in range(file.metadata.num_row_groups):
        metadata, rows = file.metadata.row_group(group), file.read_row_group(group, columns=list(places))
        for name, column in zip(rows.column_names, rows.columns, strict=True):
            statistics = metadata.column(places[name]).statistics if name in places else None
            if statistics is None:
                continue
            bounds = (statistics.min, statistics.max) if statistics.has_min_max else None
            if statistics.has_null_count and statistics.null_count != column.null_count:
                yield f"row group {group} has {column.null_count} nulls in {name!r}, its statistics say otherwise"
            if bounds is not None and not _within(column, bounds):
                yield f"row group {group} has values of {name!r} outside its statistics"


def _within(column: pa.ChunkedArray, bounds: tuple[Any, Any]) -> bool:
    """Return True if all values lie within the bounds, or cannot be compared with them."""
    try:
        low, high = (pa.scalar(bound, column.type) for bound in bounds)
        inside = pc.and_(pc.greater_equal(column, low), pc.less_equal(column, high))
    except (pa.ArrowException, TypeError):
        return True
    return pc.all(inside, skip_nulls=True).as_py() is not False
