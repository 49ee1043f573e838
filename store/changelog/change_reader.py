"""Reader of the changes in a range of log epochs: tables of change rows, from a bounded number of rows at a time.

Rows that are read together form a unit: some neighbouring epochs, or a key range of one large epoch (mode "epochs"); or
a key range of all epochs (mode "net").
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeGuard

import numpy as np
import pyarrow as pa

from epochlog.store.env.files import Files
from epochlog.store.env.parallel import parallel_map
from epochlog.store.metadata.version import LabelGroup
from epochlog.store.scan.key_ranges import cost, key_splits
from epochlog.store.scan.pruning import key_prunes
from epochlog.store.scan.scan_plan import ScanPlan
from epochlog.store.sst.merge import Rows, lookup, merge_sources
from epochlog.store.sst.segment import Segment, SegmentReader
from epochlog.store.types.arrays import from_numpy
from epochlog.store.types.key_codec import KeyCodec
from epochlog.store.types.key_range import KeyRange
from epochlog.store.types.read_options import ReadOptions
from epochlog.store.types.schema import TableSchema

from .change_rows import Pool, Touches, by_key, cheap_rows, end_to_end, image_rows, replaced
from .pre_images import read_epoch

UNIT_ROWS = 1 << 16
"""Changes of neighbouring small epochs that one thread reads at a time."""
SPLIT_ROWS = 1 << 19
"""Changes that are in memory at a time; a larger epoch or range is read by key ranges."""


@dataclass(frozen=True, slots=True)
class _Unit:
    """groups[first:end] of a feed, within a key range."""

    first: int
    end: int
    keys: KeyRange
    cost: int
    alone: bool = True
    """No other unit is read at the same time."""


@dataclass(frozen=True, slots=True)
class _Old:
    """Positions, in `pool`, of the rows that the touches replace; the touches themselves begin at `touches_at`."""

    places: np.ndarray
    pool: Pool
    touches_at: int


@dataclass(frozen=True, slots=True)
class ChangeReader:
    """Reader of the changes in a range of log epochs."""

    files: Files
    table: TableSchema
    groups: Sequence[LabelGroup]
    options: ReadOptions
    """Columns in the order of the result; a filter that only prunes; a range of keys."""
    images: bool = False
    """Return pre-images too. They are read from the log if `stored`, else looked up in `before`, the state before the
    range.
    """
    stored: bool = False
    before: ScanPlan | None = None

    def epochs(self) -> Iterator[pa.Table]:
        """Yield each epoch's changes in key order, oldest epoch first."""
        lookups = self.images and not self.stored  # lookups cost much even for few rows: read large units one by one
        wave: list[_Unit] = []
        for unit in self._units(SPLIT_ROWS if lookups else UNIT_ROWS):
            if wave and (lookups or sum(wave_unit.cost for wave_unit in wave) + unit.cost > SPLIT_ROWS):
                yield from self._read_wave(wave)
                wave = []
            wave.append(unit)
        yield from self._read_wave(wave)

    def net(self) -> Iterator[pa.Table]:
        """Yield one change for each key over the whole range, in key order."""
        tables = (
            self._read_changes(_Unit(0, len(self.groups), keys, 0), net=True) for keys in self._splits(self.groups)
        )
        yield from filter(_is_table, tables)

    def _units(self, limit: int) -> Iterator[_Unit]:
        """Yield units of at most `limit` rows, of whole epochs; cut epochs above SPLIT_ROWS by key ranges."""
        first, gathered = 0, 0
        for place, group in enumerate(self.groups):
            size = cost(group.segments)
            if size > SPLIT_ROWS or gathered + size > max(limit, size):
                if gathered:
                    yield _Unit(first, place, self.options.key_range, gathered)
                first, gathered = place, 0
            if size > SPLIT_ROWS:
                yield from (_Unit(place, place + 1, keys, SPLIT_ROWS) for keys in self._splits([group]))
                first = place + 1
            else:
                gathered += size
        if gathered:
            yield _Unit(first, len(self.groups), self.options.key_range, gathered)

    def _splits(self, groups: Sequence[LabelGroup]) -> list[KeyRange]:
        segments = [segment for group in groups for segment in group.segments]
        count = -(-cost(segments) // SPLIT_ROWS)
        return key_splits(self.files, self.table, segments, count, self.options.key_range)

    def _read_wave(self, wave: Sequence[_Unit]) -> Iterator[pa.Table]:
        wave = [_Unit(unit.first, unit.end, unit.keys, unit.cost, len(wave) == 1) for unit in wave]
        done = parallel_map(lambda unit: self._read_changes(unit, net=False), wave, sum(unit.cost for unit in wave))
        done.reverse()
        return filter(_is_table, (done.pop() for _ in range(len(done))))  # keeps no reference to a yielded table

    def _read_changes(self, unit: _Unit, *, net: bool) -> pa.Table | None:
        """Return the change rows of a unit; None if there are none."""
        columns = self.options.column_names(self.table)
        names = self.table.schema.names if self.images else columns
        epochs = self._read(unit, names)
        if not epochs:
            return None
        touches = end_to_end([(self.groups[place].label, rows) for place, rows in epochs])
        if not self.images:
            return cheap_rows(touches, columns, by_key(touches).newest if net else None)
        old = self._stored_images(unit, epochs, touches) if self.stored else self._look_up_images(unit, touches)
        key, first, last = self.table.primary_key, old.places, np.arange(len(touches))
        if net:
            order = by_key(touches)
            first, last = old.places[order.oldest], order.newest
        deleted, labels = touches.deleted[last], touches.labels[last]
        return image_rows(old.pool, key, columns, first, last + old.touches_at, deleted, labels)

    def _read(self, unit: _Unit, names: Sequence[str]) -> list[tuple[int, Rows]]:
        """Read the newest changes of each log epoch of the unit, by its index in the feed."""
        excluded = key_prunes(self.table, self.options.filter)

        def read(place: int) -> Rows | None:
            segments = [segment for segment in self.groups[place].segments if not excluded(segment)]
            return read_epoch(self.files, self.table, segments, names, unit.keys)

        places = range(unit.first, unit.end)
        cost_rows = self._parallel_rows(unit, [segment for group in self._groups(unit) for segment in group.segments])
        epochs = parallel_map(read, places, cost_rows)
        return [(place, rows) for place, rows in zip(places, epochs, strict=True) if rows is not None]

    def _stored_images(self, unit: _Unit, epochs: Sequence[tuple[int, Rows]], touches: Touches) -> _Old:
        codec, names = KeyCodec(self.table.schema, self.table.primary_key), self.table.schema.names

        def read(epoch: tuple[int, Rows]) -> tuple[np.ndarray, pa.Table | None]:
            place, rows = epoch
            files = [SegmentReader(self.files, file, self.table, codec) for file in self.groups[place].images]
            images = [image for image in (file.read(names, unit.keys) for file in files) if len(image)]
            if not images:
                return np.full(len(rows), -1), None
            old = merge_sources(images)
            return lookup(old.keys, rows.keys), old.data

        done = parallel_map(
            read, epochs, self._parallel_rows(unit, [file for group in self._groups(unit) for file in group.images])
        )
        places, start = [], 0
        for positions, data in done:
            places.append(np.where(positions >= 0, positions + start, -1))
            start += 0 if data is None else data.num_rows
        pool = Pool([*(data for _, data in done if data is not None), touches.data])
        return _Old(np.concatenate(places), pool, start)

    def _look_up_images(self, unit: _Unit, touches: Touches) -> _Old:
        assert self.before is not None
        before = self.before.extended([segment for group in self.groups[: unit.first] for segment in group.segments])
        order = by_key(touches)
        keys = touches.keys.take(from_numpy(order.oldest))
        state = before.rows_of(self.files, keys, self.table.schema.names)
        return _Old(replaced(touches, order, state), Pool([state.data, touches.data]), len(state))

    def _groups(self, unit: _Unit) -> Sequence[LabelGroup]:
        return self.groups[unit.first : unit.end]

    @staticmethod
    def _parallel_rows(unit: _Unit, files: Sequence[Segment]) -> int:
        """Return the rows of the files, by which `parallel_map` uses threads; 0 while threads read other units."""
        return sum(file.rows for file in files) if unit.alone else 0


def _is_table(table: pa.Table | None) -> TypeGuard[pa.Table]:
    return table is not None
