"""Reader of the levels of a scan: sorted runs below, L0 segments above."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import call

import pyarrow as pa
import pyarrow.compute as pc

from epochlog.store.env.files import Files
from epochlog.store.env.parallel import parallel_map
from epochlog.store.sst.merge import Rows, joined, newest_wins
from epochlog.store.sst.segment import Borders, Segment, SegmentReader
from epochlog.store.sst.sorted_run import SortedRun, read_part
from epochlog.store.types.arrays import empty_table
from epochlog.store.types.key_codec import KeyCodec
from epochlog.store.types.key_range import KeyRange
from epochlog.store.types.read_options import ReadOptions
from epochlog.store.types.schema import TableSchema

from .point_lookup import Level, PointReader, Spans
from .pruning import key_prunes


@dataclass(frozen=True, slots=True)
class _LevelFiles:
    """Files of one level: functions that read them."""

    files: Sequence[Callable[[], Rows]]
    rows: Sequence[int]
    """Rows of each file, at most."""
    merge: Callable[[Sequence[Rows]], Rows] = joined


@dataclass(frozen=True, slots=True)
class LevelReader:
    """Reader of one table's runs and L0 segments, oldest first, as of one epoch."""

    files: Files
    table: TableSchema
    codec: KeyCodec
    epoch: int
    runs: Sequence[SortedRun]
    segments: Sequence[Segment]

    def levels(
        self,
        columns: Sequence[str],
        filter: pc.Expression | None,
        passing: Sequence[KeyRange],
        borders: Borders | None = None,
        *,
        keyed: bool = True,
        of_run: SortedRun | None = None,
    ) -> list[Rows]:
        """Read the rows of each run and segment, oldest first; levels without rows are left out. Without `keyed` nulls
        stand for the keys of a run. of_run: read that run alone.

        The filter only prunes. With several ranges, the result may hold other rows of their blocks too, and of those
        not always the newest version.
        """
        if not passing:
            return []
        options = ReadOptions(columns, filter, KeyRange(passing[0].low, passing[-1].high))
        read = [
            level
            for place, run in enumerate(self.runs)
            if of_run is None or of_run is run
            for level in self._run_levels(run, options, passing, oldest=place == 0, keyed=keyed)
        ]
        if of_run is None:
            read += self._segment_levels(options, passing, borders)
        files = [file for level in read for file in level.files]
        counts = [count for level in read for count in level.rows]
        beside_largest = sum(counts) - max(counts, default=0)  # small files beside one large are worth no thread
        rows = iter(parallel_map(call, files, min(sum(counts), 2 * beside_largest)))
        merged = [level.merge([next(rows) for _ in level.files]) for level in read]
        return [level for level in merged if len(level.keys)]

    def find(self, keys: pa.Array, columns: Sequence[str]) -> Rows:
        """Return the existing rows of these encoded keys (sorted, each once), in key order.

        Reads only the blocks that may hold one of them.
        """
        if not len(keys):
            return self.no_rows(columns)
        within = KeyRange(keys[0].as_py(), self.codec.above(keys[len(keys) - 1].as_py()))
        reader, levels = self._point_reader(columns, within, len(keys))
        return reader.find(levels, keys) or self.no_rows(columns)

    def rows_in(self, spans: Spans, columns: Sequence[str]) -> Rows:
        """Return the existing rows of key ranges, in key order. Reads only the blocks that may hold one of them."""
        if not len(spans.lows):
            return self.no_rows(columns)
        within = KeyRange(spans.lows[0].as_py(), spans.highs[len(spans.highs) - 1].as_py())
        reader, levels = self._point_reader(columns, within, len(spans.lows))
        return reader.rows_in(levels, spans) or self.no_rows(columns)

    def _point_reader(self, columns: Sequence[str], within: KeyRange, lookups: int) -> tuple[PointReader, list[Level]]:
        """Return a reader of single keys, and the levels that may have keys of the range, oldest first."""
        reader = PointReader(self.files, self.table, self.codec, tuple(columns))
        levels: list[Level] = []
        for run in self.runs:
            if run.past_epoch(self.epoch) is None:
                levels.append(run.parts)
            else:
                levels += self.levels(columns, None, [within], of_run=run)
        levels += reader.segment_levels(self.segments, within, lookups)
        return reader, levels

    def no_rows(self, columns: Sequence[str]) -> Rows:
        """Return zero rows of these columns."""
        schema = pa.schema([self.table.schema.field(name) for name in columns])
        return Rows(pa.nulls(0, self.codec.key_type), empty_table(schema), None)

    def _segment_levels(
        self, options: ReadOptions, passing: Sequence[KeyRange], borders: Borders | None
    ) -> Iterator[_LevelFiles]:
        excluded = key_prunes(self.table, options.filter)
        for segment in self.segments:
            if not excluded(segment) and options.key_range.overlaps(segment.key_min, segment.key_max):
                read = SegmentReader(self.files, segment, self.table, self.codec).read
                file = partial(read, options.columns, options.key_range, passing=passing, borders=borders)
                yield _LevelFiles([file], [segment.rows])

    def _run_levels(
        self, run: SortedRun, options: ReadOptions, passing: Sequence[KeyRange], *, oldest: bool, keyed: bool
    ) -> Iterator[_LevelFiles]:
        """Yield the files of a run as of the epoch: its live parts, and below its newest epoch also the rows replaced
        since; no key is in both.

        oldest: no run lies below, so the filter may prune. Live rows newer than the epoch are then marked as deleted
        and go in the merge, which saves one copy of the table; over an older run they would hide its rows.
        """
        options = options if oldest else ReadOptions(options.columns, None, options.key_range)
        epoch = run.past_epoch(self.epoch)
        past = () if epoch is None else [part for part in run.history if part.seen_at(epoch)]
        for parts, merge, marked in ((run.parts, joined, oldest and epoch is not None), (past, newest_wins, False)):
            chosen = [part for part in parts if options.key_range.overlaps(part.key_min, part.key_max)]
            files = [
                partial(
                    read_part, self.files, part, self.table, self.codec, options, at=epoch, marked=marked,
                    passing=passing, keyed=keyed,
                )
                for part in chosen
            ]  # fmt: skip
            if files:
                yield _LevelFiles(files, [part.rows for part in chosen], merge)
