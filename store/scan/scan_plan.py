"""Plan of a read of one table at one epoch: the files, chosen in the catalog, and the reads of them.

A plan is picklable and knows no catalog, so Spark tasks read by it. The newest version of a key wins: L0 segments over
newer runs over older ones. `level_reader.py` decodes the files.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochlog.errors import EpochNotCommitted, InvalidInput
from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.env.files import Files
from epochlog.store.epochs.epoch_errors import distance, expired
from epochlog.store.metadata.commit_log import get_entries
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.metadata.lookups import get_runs, get_version, require_runs
from epochlog.store.metadata.version import LogEntry, Runs, TableVersion
from epochlog.store.sst.merge import Rows, lookup, merge_data, merge_sources
from epochlog.store.sst.segment import Borders, Segment
from epochlog.store.sst.sorted_run import RunFile, SortedRun
from epochlog.store.types.arrays import empty_table, from_numpy
from epochlog.store.types.epoch import as_epoch, show_epoch
from epochlog.store.types.key_codec import Key, KeyCodec, last_of_each, sort_indices
from epochlog.store.types.key_range import ALL_KEYS, KeyRange
from epochlog.store.types.read_options import ALL_ROWS, ReadOptions
from epochlog.store.types.retyping import as_schema
from epochlog.store.types.schema import TableSchema

from .key_ranges import split_by_weight
from .level_reader import LevelReader
from .point_lookup import Spans
from .pruning import filter_columns, key_ranges, passed
from .result_cache import Result, find_result, keep_result, result_key
from .size_splits import estimate_sizes

BATCH_ROWS = 1 << 20
READ_BYTES = 128 << 20
"""About the most bytes merged at a time; merging ten times as much would take twice the memory from the system."""


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """Plan of a read of one table at one epoch: sorted runs, then L0 segments oldest first."""

    table: TableSchema
    epoch: int
    runs: tuple[SortedRun, ...] = ()
    segments: tuple[Segment, ...] = ()

    @property
    def codec(self) -> KeyCodec:
        return KeyCodec(self.table.schema, self.table.primary_key)

    @property
    def files(self) -> list[RunFile | Segment]:
        """List the files to read: those with the rows, and those with newer versions or tombstones of some."""
        return [*(part for run in self.runs for part in run.files_at(self.epoch)), *self.segments]

    @property
    def rows_at_most(self) -> int:
        """Return an upper bound of the rows: all rows of the files, with tombstones and replaced rows."""
        return sum(part.rows for run in self.runs for part in run.parts) + sum(s.rows for s in self.segments)

    @property
    def bytes(self) -> int:
        """Return the bytes of all files to read."""
        return sum(part.bytes for run in self.runs for part in run.parts) + sum(s.bytes for s in self.segments)

    def schema(self, columns: Sequence[str] | None = None) -> pa.Schema:
        """Return the result's schema; InvalidInput for a column that the table does not have, or that is repeated."""
        if columns is None:
            return self.table.schema
        if isinstance(columns, str):
            raise InvalidInput(f"columns is a list of column names: write [{columns!r}]")
        if not isinstance(columns, Sequence):
            raise InvalidInput(f"columns is a list of column names, not {columns!r}")
        known = set(self.table.schema.names)
        unknown = [name for name in columns if not isinstance(name, str) or name not in known]
        if unknown:
            raise InvalidInput(
                f"table {self.table.name!r} has no column {unknown[0]!r}; it has {self.table.schema.names}"
            )
        if len(set(columns)) < len(columns):
            twice, _ = Counter(columns).most_common(1)[0]
            raise InvalidInput(f"table {self.table.name!r}: column {twice!r} is listed twice; list it once")
        return pa.schema([self.table.schema.field(name) for name in columns])

    def read(self, files: Files, options: ReadOptions = ALL_ROWS) -> pa.Table:
        """Read all rows of the key range that pass the filter, in key order."""
        schema, key_range = self.schema(options.columns), options.key_range
        wanted = self._wanted(schema, options.filter)
        key = None
        if options.filter is None and key_range == ALL_KEYS:
            key = result_key(files.place, self.table, self.epoch, self.runs, self.segments)
        if key is not None and (kept := find_result(key, self.segments, wanted)) is not None:
            result = self._brought_up_to_date(files, kept)
            if result is not kept:
                keep_result(key, result)
            return _projected(result.data, schema)
        # one run alone needs no merge, and nothing of it lies in memory twice; tables of no columns cannot be joined
        count = 1 if self.is_lone_run or not schema.names else self._bytes_of(wanted) // READ_BYTES
        parts = self._parts(count, self.passing(options.filter, key_range), key_range)
        reader, borders = self._reader(files), Borders()
        tables = [
            self._merged(
                reader.levels(wanted, options.filter, part, borders, keyed=self._needs_keys(part)),
                schema, wanted, options.filter,
            )
            for part in parts
        ]  # fmt: skip
        table = pa.concat_tables(tables) if len(tables) > 1 else tables[0]
        if key is not None and set(self.table.primary_key) <= set(schema.names):
            keep_result(key, Result(self.segments, table))
        return table

    def _brought_up_to_date(self, files: Files, result: Result) -> Result:
        """Return the result of this plan: its newer segments on the rows of an older result."""
        newer = self.segments[len(result.segments) :]
        if not newer:
            return result
        keys = self.codec.encode(result.data) if result.keys is None else result.keys
        names = result.data.column_names
        levels = replace(self._reader(files), runs=(), segments=newer).levels(names, None, [ALL_KEYS])
        rows = merge_sources([Rows(keys, result.data), *levels])
        return Result(self.segments, rows.data.select(names), rows.keys)

    def batches(
        self, files: Files, options: ReadOptions = ALL_ROWS, *, applied: bool = True, split_bytes: int = READ_BYTES
    ) -> Iterator[pa.RecordBatch]:
        """Read the rows of the key range that pass the filter as batches, in key order, a bounded number at a time.

        split_bytes: about the most bytes to read at a time (whole blocks of files are read). applied: False uses the
        filter for pruning only, so that the result may hold rows that fail it, and older versions of such rows. Wrong
        arguments raise at once, damaged files raise in the iterator.
        """
        schema, key_range = self.schema(options.columns), options.key_range
        wanted = self._wanted(schema, options.filter if applied else None)
        count = max(self.rows_at_most // BATCH_ROWS, self._bytes_of(wanted) // split_bytes)
        parts = self._parts(count, self.passing(options.filter, key_range), key_range)
        reader, borders = self._reader(files), Borders()

        def read(part: list[KeyRange]) -> pa.Table:
            levels = reader.levels(wanted, options.filter, part, borders, keyed=self._needs_keys(part))
            return self._merged(levels, schema, wanted, options.filter if applied else None)

        return _batches_of(read, parts)

    def _parts(self, count: int, passing: list[KeyRange], within: KeyRange) -> list[list[KeyRange]]:
        """Cut the passing ranges into at most `count` parts; there is at least one, which may be empty."""
        if count < 2:
            return [passing]
        splits = self.splits(count, within)
        parts = [[both for keys in passing if (both := keys.intersection(split)) is not None] for split in splits]
        return [part for part in parts if part] or [[]]

    def _bytes_of(self, columns: Sequence[str]) -> int:
        """Estimate the bytes in memory of these columns of all files."""
        return round(sum(span.bytes for span in estimate_sizes(self.table, self.files, columns)))

    def passing(self, filter: pc.Expression | None, within: KeyRange = ALL_KEYS) -> list[KeyRange]:
        """Return the key ranges to read, ascending. By the filter on the first key column no row outside passes."""
        files = [*(part for run in self.runs for part in (*run.parts, *run.history)), *self.segments]
        if filter is None or not files:
            return [within]
        starts = sorted({key for file in files for key in file.blocks})
        return key_ranges(self.table, filter, starts, max(file.key_max for file in files), within)

    def _wanted(self, schema: pa.Schema, filter: pc.Expression | None) -> list[str]:
        """Return the columns to read; the first key column if there are none, for the rows must still be counted."""
        return filter_columns(self.table, schema.names, filter) or list(self.table.primary_key[:1])

    def _needs_keys(self, passing: list[KeyRange]) -> bool:
        """Return False if a read of the ranges neither merges rows nor cuts them by key."""
        return not self.is_lone_run or passing != [ALL_KEYS]

    def _merged(
        self, levels: Sequence[Rows], schema: pa.Schema, wanted: Sequence[str], filter: pc.Expression | None
    ) -> pa.Table:
        """Return the newest rows of the levels that pass the filter."""
        data = merge_data(levels) if levels else self._no_rows(wanted)
        return _projected(passed(self.table.name, data, filter), schema)

    def _no_rows(self, columns: Sequence[str]) -> pa.Table:
        return empty_table(pa.schema([self.table.schema.field(name) for name in columns]))

    def _reader(self, files: Files) -> LevelReader:
        return LevelReader(files, self.table, self.codec, self.epoch, self.runs, self.segments)

    @property
    def is_lone_run(self) -> bool:
        """Return True if the plan reads one run alone, without its history: there is nothing to merge."""
        return not self.segments and len(self.runs) == 1 and self.runs[0].past_epoch(self.epoch) is None

    @property
    def rows_known(self) -> int | None:
        """Return the number of rows if the catalog has it; None if rows must be read to be counted."""
        if self.is_lone_run:
            return sum(part.rows for part in self.runs[0].parts)
        return None if self.segments or self.runs else 0

    def count(self, files: Files) -> int:
        """Count the rows. It reads keys alone, or nothing if the number is known."""
        known = self.rows_known
        return len(self.rows(files, ReadOptions(())).keys) if known is None else known

    def rows(self, files: Files, options: ReadOptions = ALL_ROWS) -> Rows:
        """Read keys and columns at the epoch, without tombstones.

        The filter only prunes: rows that fail it may be among them.
        """
        reader, columns = self._reader(files), self.schema(options.columns).names
        levels = reader.levels(columns, options.filter, [options.key_range])
        return merge_sources(levels) if levels else reader.no_rows(columns)

    def lookup(self, files: Files, keys: pa.Table, columns: Sequence[str] | None = None) -> pa.Table:
        """Return one row for each existing key, in the order of `keys`, which has the primary-key columns."""
        schema = self.schema(columns)
        needles = self.codec.encode(self.table.conform_keys(keys))
        positions, rows = self.find(files, needles, schema.names or self.table.primary_key[:1])
        existing = positions[positions >= 0]
        in_order = len(existing) == len(rows) and (existing[1:] > existing[:-1]).all()
        data = rows.data if in_order else rows.data.take(from_numpy(existing))
        data = data.select(schema.names)
        return as_schema(data, schema)

    def find(self, files: Files, needles: pa.Array, columns: Sequence[str]) -> tuple[np.ndarray, Rows]:
        """Return for each encoded key (in any order, repeats allowed) its position in the returned rows, or -1.

        Reads only the blocks that may hold one of them.
        """
        ordered = needles.take(from_numpy(sort_indices(needles)))
        rows = self.rows_of(files, ordered.filter(from_numpy(last_of_each(ordered))), columns)
        return lookup(rows.keys, needles), rows

    def rows_of(self, files: Files, keys: pa.Array, columns: Sequence[str]) -> Rows:
        """Return the existing rows of these encoded keys (sorted, each once), in key order.

        Reads only the blocks that may hold one of them.
        """
        return self._reader(files).find(keys, columns)

    def rows_among(self, files: Files, values: pa.Table, columns: Sequence[str]) -> pa.Table:
        """Return these columns of the rows whose first key columns have one of these values, in key order.

        values: without nulls, of the first columns of a key of several, in their order and types. Reads only the
        blocks that may hold one of the rows.
        """
        schema = self.schema(columns)
        lows, highs = self.codec.spans(values)
        order = sort_indices(lows)
        order = order[last_of_each(lows.take(from_numpy(order)))]
        spans = Spans(lows.take(from_numpy(order)), highs.take(from_numpy(order)))
        return _projected(self._reader(files).rows_in(spans, schema.names or self.table.primary_key[:1]).data, schema)

    def splits(self, count: int, within: KeyRange = ALL_KEYS) -> list[KeyRange]:
        """Return at most `count` key ranges that tile `within`, balanced by the rows that statistics know of."""
        return split_by_weight(_marks(self), count, within)

    def extended(self, segments: Sequence[Segment]) -> ScanPlan:
        """Return this plan with newer segments on top."""
        return replace(self, segments=(*self.segments, *segments))


@dataclass(frozen=True, slots=True)
class ScanFiles:
    """Files of a table in one state of the catalog, through one epoch: what plans at several epochs have in common."""

    version: TableVersion
    runs: Runs
    entries: tuple[LogEntry, ...]
    """The entries above the runs, oldest first, so their segments are L0."""

    def plan(self, table: TableDef, epoch: int | None, schema: TableSchema | None = None) -> ScanPlan:
        """Plan a read at an epoch, as `plan_scan` does, that is not above the one through which the files were read."""
        version = self.version
        at = version.max_committed_epoch if epoch is None else as_epoch("epoch", epoch)
        if not version.keeps(at):
            raise expired(table.name, at, version.safe_epoch)
        segments = tuple(segment for entry in self.entries if entry.epoch <= at for segment in entry.segments)
        runs = tuple(run for run in self.runs if run.lo < at)
        return ScanPlan(table.schema.at(at) if schema is None else schema, at, runs, segments)


def read_files(
    view: ReadTxn, table: TableDef, until: int | None = None, known: tuple[TableVersion, Runs] | None = None
) -> ScanFiles:
    """Read the files of a table through an epoch; None: through its newest commit. known: see `plan_scan`."""
    version = known[0] if known else get_version(view, table.id, table.name)
    until = version.max_committed_epoch if until is None else as_epoch("epoch", until)
    # every entry of a table lies above all runs or is in one; a run newer than the epoch is read with its history
    after = version.compacted_epoch
    entries = get_entries(view, table.id, after, until) if until > after else []
    runs = known[1] if known else get_runs(view, table.id) if version.runs else ()
    require_runs(table.name, version, runs)
    return ScanFiles(version, runs, tuple(entries))


def plan_scan(
    view: ReadTxn,
    table: TableDef,
    epoch: int | None,
    schema: TableSchema | None = None,
    known: tuple[TableVersion, Runs] | None = None,
) -> ScanPlan:
    """Plan the read of a table at an epoch; None is its newest commit. Raises EpochExpired below its safe epoch.

    The read returns the state as of the newest commit at or below the epoch. Callers check completeness (EpochView).
    schema: the columns of the result, found by field id and null where the epoch lacks them; None: those in force at
    the epoch. known: the table's version and runs in this view, if the caller has read them.
    """
    return read_files(view, table, epoch, known).plan(table, epoch, schema)


def require_complete(name: str, epoch: int | None, complete_through: int) -> None:
    """Raise EpochNotCommitted if a commit may still land in the table at or below the epoch."""
    if epoch is not None and epoch > complete_through:
        short = f"complete only through {show_epoch(complete_through)}, {distance(complete_through, epoch)} short"
        raise EpochNotCommitted(
            f"table {name!r} at {show_epoch(epoch)}: it {f'is {short}' if complete_through else 'has no commit yet'}. "
            f"{'Read an earlier epoch, or take' if complete_through else 'Take'} a snapshot that waits: "
            "consistency=epochlog.AtLeast(epoch, timeout=...)"
        )


def _projected(data: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the columns of the schema, in its types."""
    return as_schema(data.select(schema.names), schema)


def _batches_of(
    read: Callable[[list[KeyRange]], pa.Table], parts: Sequence[list[KeyRange]]
) -> Iterator[pa.RecordBatch]:
    """Yield the batches of one part after another; keep no reference to a yielded batch."""
    for part in parts:
        batches = read(part).to_batches(max_chunksize=BATCH_ROWS)[::-1]
        while batches:
            yield batches.pop()


def _marks(plan: ScanPlan) -> Iterator[tuple[Key, float]]:
    """Yield the first keys of blocks with the blocks' rows.

    A block that overlaps several blocks of the level with the most blocks is spread over these, because small commits
    all begin near the first key.
    """
    levels: list[Sequence[RunFile] | Sequence[Segment]] = [run.parts for run in plan.runs]
    levels += [(segment,) for segment in plan.segments]
    finest = max(levels, key=lambda level: sum(len(file.blocks) for file in level), default=())
    starts = [start for file in finest for start in file.blocks]
    changes = [0.0] * (len(starts) + 1)
    for file in (file for level in levels for file in level):
        rows = file.rows / max(1, len(file.blocks))
        for low, end in pairwise([*file.blocks, file.key_max]):
            first, last = bisect_left(starts, low), bisect_left(starts, end)
            if last - first < 2:
                yield low, rows
            else:
                changes[first] += rows / (last - first)
                changes[last] -= rows / (last - first)
    yield from zip(starts, accumulate(changes), strict=False)
