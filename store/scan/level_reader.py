"""Reader of the levels of a scan: sorted runs below, L0 segments above."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from epochlog.store.env.files import Files
from epochlog.store.env.parallel import parallel_map
from epochlog.store.sst.merge import Rows, joined, newest_wins
from epochlog.store.sst.segment import Borders, Segment, SegmentReader
from epochlog.store.sst.sorted_run import RunFile, SortedRun, read_part
from epochlog.store.types.key_codec import KeyCodec
from epochlog.store.types.key_range import KeyRange
from epochlog.store.types.read_options import ReadOptions
from epochlog.store.types.schema import TableSchema

from .point_lookup import Level, PointReader
from .pruning import key_prunes


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
    ) -> list[Rows]:
        """Read the rows of each run and segment, oldest first; levels without rows are left out. Without `keyed` nulls
        stand for the keys of a run.

        The filter only prunes. With several ranges, the result may hold other rows of their blocks too, and of those
        not always the newest version.
        """
        if not passing:
            return []
        options = ReadOptions(columns, filter, KeyRange(passing[0].low, passing[-1].high))
        base = [
            rows
            for place, run in enumerate(self.runs)
            for rows in self._run_rows(run, options, passing, oldest=place == 0, keyed=keyed)
        ]
        return [rows for rows in (*base, *self._segment_rows(options, passing, borders)) if len(rows.keys)]

    def find(self, keys: pa.Array, columns: Sequence[str]) -> Rows:
        """Return the existing rows of these encoded keys (sorted, each once), in key order.

        Reads only the blocks that may hold one of them.
        """
        if not len(keys):
            return self.no_rows(columns)
        reader = PointReader(self.files, self.table, self.codec, tuple(columns))
        within = KeyRange(keys[0].as_py(), self.codec.above(keys[len(keys) - 1].as_py()))
        levels: list[Level] = []
        for place, run in enumerate(self.runs):
            if run.past_epoch(self.epoch) is None:
                levels.append(run.parts)
            else:
                levels += self._run_rows(run, ReadOptions(columns, None, within), [within], oldest=place == 0)
        rows = reader.find([*levels, *([segment] for segment in self.segments)], keys)
        return rows or self.no_rows(columns)

    def no_rows(self, columns: Sequence[str]) -> Rows:
        """Return zero rows of these columns."""
        schema = pa.schema([self.table.schema.field(name) for name in columns])
        return Rows(pa.array([], self.codec.key_type), schema.empty_table(), None)

    def _segment_rows(
        self, options: ReadOptions, passing: Sequence[KeyRange], borders: Borders | None
    ) -> Sequence[Rows]:
        excluded = key_prunes(self.table, options.filter)
        segments = [
            segment
            for segment in self.segments
            if not excluded(segment) and options.key_range.overlaps(segment.key_min, segment.key_max)
        ]
        return parallel_map(
            lambda segment: SegmentReader(self.files, segment, self.table, self.codec).read(
                options.columns, options.key_range, passing=passing, borders=borders
            ),
            segments,
            sum(segment.rows for segment in segments),
        )

    def _run_rows(
        self,
        run: SortedRun,
        options: ReadOptions,
        passing: Sequence[KeyRange],
        *,
        oldest: bool,
        keyed: bool = True,
    ) -> list[Rows]:
        """Read a run's rows as of the epoch: its live parts, and below its newest epoch also the rows replaced since;
        no key is in both.

        oldest: no run lies below, so the filter may prune. Live rows newer than the epoch are then marked as deleted
        and go in the merge, which saves one copy of the table; over an older run they would hide its rows.
        """
        options = options if oldest else ReadOptions(options.columns, None, options.key_range)

        def read_parts(
            parts: Sequence[RunFile],
            at: int | None,
            *,
            marked: bool = False,
            merge: Callable[[Sequence[Rows]], Rows] = joined,
        ) -> Rows:
            read = partial(
                read_part, self.files, schema=self.table, codec=self.codec, options=options, at=at, marked=marked,
                passing=passing, keyed=keyed,
            )  # fmt: skip
            chosen = [part for part in parts if options.key_range.overlaps(part.key_min, part.key_max)]
            tables = parallel_map(lambda part: read(part=part), chosen, sum(part.rows for part in chosen))
            return merge(tables) if tables else self.no_rows(options.columns or ())

        epoch = run.past_epoch(self.epoch)
        if epoch is None:
            return [read_parts(run.parts, None)]
        past = [part for part in run.history if part.seen_at(epoch)]
        return [
            read_parts(run.parts, epoch, marked=oldest),
            read_parts(past, epoch, merge=newest_wins),
        ]
