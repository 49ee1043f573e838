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

from epochlog.errors import Corrupt
from epochlog.store.env.files import Files
from epochlog.store.env.parallel import parallel_map
from epochlog.store.metadata.version import LabelGroup, describe_group
from epochlog.store.scan.key_ranges import cost, key_splits
from epochlog.store.scan.pruning import key_prunes
from epochlog.store.scan.scan_plan import ScanPlan
from epochlog.store.sst.segment_scan import LogFile, Scanned, is_small, scan_segments
from epochlog.store.types.arrays import from_numpy
from epochlog.store.types.key_range import ALL_KEYS, KeyRange
from epochlog.store.types.read_options import ReadOptions
from epochlog.store.types.schema import TableSchema

from .change_rows import (
    Pool,
    Touches,
    by_key,
    cheap_rows,
    image_rows,
    newest_of_each_epoch,
    nullable,
    positions_in,
    replaced,
)

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
class OldRows:
    """Positions, in `pool`, of the rows that the touches replace; the touches themselves begin at `touches_at`."""

    places: np.ndarray
    """-1 for a change that replaces none."""
    pool: Pool
    touches_at: int

    def __len__(self) -> int:
        return int(np.count_nonzero(self.places >= 0))

    def rows(self, table: TableSchema) -> pa.Table:
        """Return the replaced rows, in the order of the changes."""
        places = self.places[self.places >= 0]
        return pa.table({name: self.pool.taken(name, places) for name in table.schema.names})


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

    def read_all(self) -> tuple[Touches, OldRows | None]:
        """Read all changes at once, by log epoch and key, each key once in a log epoch; and the rows that they replace,
        None without `images`. There must be a change.
        """
        unit = _Unit(0, len(self.groups), self.options.key_range, 0)
        touches = self._touches(unit, self.options.column_names(self.table))
        assert touches is not None
        return touches, self._old_rows(unit, touches) if self.images else None

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
        done = parallel_map(lambda unit: self._read_changes(unit, net=False), wave, self._rows_for_threads(wave))
        done.reverse()
        return filter(_is_table, (done.pop() for _ in range(len(done))))  # keeps no reference to a yielded table

    def _rows_for_threads(self, wave: Sequence[_Unit]) -> int:
        """Return the cost of the large files. Small ones are read in one thread: that takes Python's time most of all,
        and requests to a remote file system have threads of their own.
        """
        groups = (group for unit in wave for group in self._groups(unit))
        return cost(segment for group in groups for segment in group.segments if not is_small(segment))

    def _read_changes(self, unit: _Unit, *, net: bool) -> pa.Table | None:
        """Return the change rows of a unit; None if there are none."""
        columns = self.options.column_names(self.table)
        names = self.table.schema.names if self.images else columns
        touches = self._touches(unit, names)
        if touches is None:
            return None
        if not self.images:
            return cheap_rows(touches, columns, by_key(touches).newest if net else None)
        old = self._old_rows(unit, touches)
        key, first, last = self.table.primary_key, old.places, np.arange(len(touches))
        if net:
            order = by_key(touches)
            first, last = old.places[order.oldest], order.newest
        deleted, labels = touches.deleted[last], touches.labels[last]
        return image_rows(old.pool, key, columns, first, last + old.touches_at, deleted, labels)

    def _touches(self, unit: _Unit, names: Sequence[str]) -> Touches | None:
        """Read the newest changes of each log epoch of the unit; None if there are none."""
        excluded = key_prunes(self.table, self.options.filter)
        groups = self._groups(unit)
        files = [[file for file in change_files(group) if not excluded(file.segment)] for group in groups]
        scanned = self._scan(unit, files, names)
        return None if scanned is None else _by_epoch(files, scanned)

    def _scan(self, unit: _Unit, files: Sequence[Sequence[LogFile]], names: Sequence[str]) -> Scanned | None:
        """Read the files of each group of the unit; None if they have no rows."""
        log_files = [file for some in files for file in some]
        if not log_files:
            return None
        try:
            scanned = scan_segments(self.files, self.table, log_files, names, unit.keys, threads=unit.alone)
        except Corrupt as error:
            raise self._located(unit, error) from error
        return scanned if len(scanned.keys) else None

    def _located(self, unit: _Unit, error: Corrupt) -> Corrupt:
        """Return the error of a damaged file, with the changes that the file has."""
        for group in self._groups(unit):
            if any(file.path == error.path for file in (*group.segments, *group.images)):
                return type(error)(error.path, f"{error.what}; it has {describe_group(group)}")
        return error

    def _old_rows(self, unit: _Unit, touches: Touches) -> OldRows:
        return self._stored_images(unit, touches) if self.stored else self._look_up_images(unit, touches)

    def _stored_images(self, unit: _Unit, touches: Touches) -> OldRows:
        files = [image_files(group) for group in self._groups(unit)]
        scanned = self._scan(unit, files, self.table.schema.names)
        if scanned is None:
            return OldRows(np.full(len(touches), -1), Pool([touches.data]), 0)
        replaces = self._replaces(unit, touches, scanned)
        if replaces is not None:
            places = np.where(replaces, np.cumsum(replaces) - 1, -1)
            return OldRows(places, Pool([nullable(scanned.data), touches.data]), len(scanned.keys))
        old = _by_epoch(files, scanned)
        places = positions_in(old, touches)
        places[old.deleted[places] & (places >= 0)] = -1  # a tombstone of `old`: the key had no row
        return OldRows(places, Pool([old.data, touches.data]), len(old))

    def _replaces(self, unit: _Unit, touches: Touches, images: Scanned) -> np.ndarray | None:
        """Return bool[touches], True for the changes that replace a row: one row of `images` each, in their order. None
        if the files do not say so for exactly these changes, as after a commit that looked up some of them again.
        """
        if unit.keys != ALL_KEYS:
            return None
        groups, replaced = self._groups(unit), iter(images.replaced)
        counts = np.searchsorted(touches.labels, [group.label for group in groups], "right")
        counts = counts - np.searchsorted(touches.labels, [group.first for group in groups])
        parts: list[np.ndarray] = []
        for group, count in zip(groups, counts.tolist(), strict=True):
            bits = [some for _ in group.images if (some := next(replaced)) is not None]
            if group.packed is not None:  # the bits of a pack are those of all its changes
                bits = [some[file.first_row : file.first_row + file.rows] for some in bits for file in group.segments]
            if len(bits) < len(group.images) or (bits and sum(map(len, bits)) != count):
                return None
            parts += bits or [np.zeros(count, np.bool_)]
        replaces = np.concatenate(parts)
        return replaces if np.count_nonzero(replaces) == len(images.keys) else None

    def _look_up_images(self, unit: _Unit, touches: Touches) -> OldRows:
        assert self.before is not None
        before = self.before.extended([segment for group in self.groups[: unit.first] for segment in group.segments])
        order = by_key(touches)
        keys = touches.keys.take(from_numpy(order.oldest))
        state = before.rows_of(self.files, keys, self.table.schema.names)
        return OldRows(replaced(touches, order, state), Pool([state.data, touches.data]), len(state))

    def _groups(self, unit: _Unit) -> Sequence[LabelGroup]:
        return self.groups[unit.first : unit.end]


def change_files(group: LabelGroup) -> list[LogFile]:
    """Return the files with the changes of a group."""
    packed = group.packed
    if packed is None:
        return [LogFile(segment, group.label) for segment in group.segments]
    return [LogFile(segment, group.label, packed.epochs, packed.rows) for segment in group.segments]


def image_files(group: LabelGroup) -> list[LogFile]:
    """Return the files with the pre-images of a group."""
    packed = group.packed
    if packed is None:
        return [LogFile(segment, group.label) for segment in group.images]
    return [LogFile(segment, group.label, packed.epochs, packed.images) for segment in group.images]


def _by_epoch(files: Sequence[Sequence[LogFile]], scanned: Scanned) -> Touches:
    """Return the rows of the files of each log epoch, each key once in an epoch: its row of the last file."""
    touches = Touches(scanned.keys, nullable(scanned.data), scanned.deleted, scanned.labels)
    return touches if all(len(some) < 2 for some in files) else newest_of_each_epoch(touches)


def _is_table(table: pa.Table | None) -> TypeGuard[pa.Table]:
    return table is not None
