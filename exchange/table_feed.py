"""A table given out from any place on: its rows as of one epoch, then its log, then what is new, in bounded slices.

The log is the only source of changes, old ones and new ones alike, so nothing can fall between a replay and what is
live. Slices are the same whoever asks and whenever: a feed that starts again in the middle of an epoch, or of the
rows, leaves out as many rows as were given before.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from ..errors import EpochExpired, SnapshotExpired, TableDropped
from ..store.catalog import Txn, View
from ..store.changes import each_epoch
from ..store.clock import monotonic_s
from ..store.definitions import TableDef, find_table, get_table, get_version
from ..store.expiry import told_each
from ..store.follow import reach
from ..store.footprint import Footprint, of_follow, of_scan
from ..store.handle import Handle
from ..store.holds import Hold, put_holds
from ..store.leases import LEASE_MS
from ..store.log import LogPlan, plan_backfill, plan_changes
from ..store.records import key_epoch, log_key
from ..store.tail import follow
from .subscription_messages import Place

SLICE_ROWS = 1 << 16
SLICE_BYTES = 4 << 20
"""What one slice has at most; a single row may be larger."""
PIECE_BYTES = 16 << 20
"""What is read at a time of the table's rows, about."""
ROUND_ENTRIES = 1_024
"""Commits that one look at the catalog plans."""
MOVE_HOLD_S = 10.0
"""How often the log that was given out is let go of."""


Meter = Callable[[Iterator[pa.RecordBatch], Footprint], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows of one epoch, in key order; `last` when no more of that epoch follows. snapshot: the table's rows, not
    changes.
    """

    data: pa.RecordBatch
    epoch: int
    last: bool
    snapshot: bool


@dataclass(frozen=True, slots=True)
class Passed:
    """All through this epoch was given; `rows`: it was the last of the table's rows, else of its log."""

    epoch: int
    snapshot: bool = False


@dataclass(frozen=True, slots=True)
class _Round:
    """What one look at the catalog found to give out; `ended`: with it the table's data ends."""

    plan: LogPlan
    place: Place
    until: int
    ended: bool


class TableFeed:
    """What a table gives to one reader. It holds what is yet to be read by a lease, until `close`."""

    def __init__(
        self,
        handle: Handle,
        table: TableDef,
        columns: tuple[str, ...] | None,
        place: Place | None,
        advice: str,
        meter: Meter | None = None,
    ) -> None:
        """place: None begins with the rows of the newest commit. advice: what to do when the log is gone. meter: is
        given what is about to be read, with what that takes in memory, and gives it on as there is room.

        Raises InvalidInput for columns, LogTruncated, SnapshotExpired.
        """
        self._meter = meter or (lambda batches, _: batches)
        self._handle = handle
        self._id, self._name = table.id, table.name
        self._columns = columns
        self._advice = advice
        self._holder = handle.new_holder("subscription")
        self._moved_s = monotonic_s()
        self.schema = LogPlan(table.schema, None).schema(columns)
        self.place, self.ended = place, False
        self._first: _Round | None = handle.catalog.transact(self._held)
        self.place = self._first.place
        handle.leases.keep(self._holder, self._keys)

    def close(self) -> None:
        """Let go of what is held; a second call does nothing."""
        self._handle.leases.release(self._holder)

    def new(self) -> Generator[Slice | Passed]:
        """All that there is now past the place; ends when there is no more, until it is asked again. Who closes it in
        between goes on where it was with the next.

        Raises TableDropped, LogTruncated, SnapshotExpired.
        """
        while not self.ended:
            found, self._first = self._first or self._handle.catalog.read(self._look), None
            if found.place.snapshot is None and found.until <= found.place.after and not found.ended:
                return
            yield from self._given(found)
            self.ended = found.ended
            self._move_hold()

    @property
    def snapshot_rows(self) -> int | None:
        """The most rows that the table's rows can be; None when it does not begin with them, or has given them out."""
        before = self._first.plan.before if self._first is not None and self._first.place.snapshot is not None else None
        return None if before is None else before.rows_at_most

    @property
    def at(self) -> Place:
        assert self.place is not None
        return self.place

    # ---- giving out ----------------------------------------------------------------------------------------------

    def _given(self, found: _Round) -> Iterator[Slice | Passed]:
        place, snapshot = found.place, found.place.snapshot is not None
        behind = place.after
        plan, files = found.plan, self._handle.files
        if snapshot:
            assert plan.before is not None
            batches = plan.batches(files, columns=self._columns, piece_bytes=PIECE_BYTES)
            footprint = of_scan(plan.before, self._columns, PIECE_BYTES)
        else:
            batches, footprint = follow(plan, files, self._columns), of_follow(plan, self._columns)
        slices = _slices(told_each(self._handle, self._meter(batches, footprint)))
        for epoch, data, last in _without(slices, place.rows):
            self.place = replace(self.at, rows=self.at.rows + data.num_rows)
            if last and not snapshot:
                behind = epoch
                self.place = Place(after=epoch)
            yield Slice(data, epoch, last, snapshot)
        self.place = Place(after=found.until)
        if snapshot or behind < found.until:
            yield Passed(found.until, snapshot)

    # ---- what the catalog says -----------------------------------------------------------------------------------

    def _look(self, view: View) -> _Round:
        table = get_table(view, self._id, self._name)
        version = get_version(view, table.id, table.name)
        place = self.place
        if place is None:
            place = Place(snapshot=version.max_committed_epoch)
        if place.snapshot is not None:
            try:
                plan = plan_backfill(view, table, place.snapshot)
            except EpochExpired as error:
                raise SnapshotExpired(
                    f"the rows of {table.name!r} at epoch {place.snapshot} were given out in part, and the rest has "
                    "been let go meanwhile; subscribe anew"
                ) from error
            return _Round(plan, place, place.snapshot, ended=False)
        found = reach(view, table, place.after)
        if found.lost:
            raise found.truncated(self._advice)
        after = found.after
        newest = max(version.max_committed_epoch, after)
        until = _bounded(view, table, after, newest)
        ended = version.end_epoch is not None and until >= version.end_epoch
        return _Round(plan_changes(view, table, after, until), place, until, ended)

    def _held(self, tx: Txn) -> _Round:
        """The first look, with what it reads held in the same transaction."""
        found = self._look(tx)
        now_ms, place = self._handle.catalog.now_ms(), found.place
        log = place.after if place.snapshot is None else place.snapshot
        hold = Hold(self._holder, self._id, log, place.snapshot, now_ms, now_ms + LEASE_MS)
        self._keys = put_holds(tx, [hold])
        return found

    def _move_hold(self) -> None:
        """Let go of what was given out, now and then: each move is a transaction."""
        if monotonic_s() - self._moved_s < MOVE_HOLD_S:
            return

        def body(tx: Txn) -> None:
            get_table(tx, self._id, self._name)
            now_ms = self._handle.catalog.now_ms()
            put_holds(tx, [Hold(self._holder, self._id, self.at.after, None, now_ms, now_ms + LEASE_MS)])

        self._handle.catalog.transact(body)
        self._moved_s = monotonic_s()


def table_of(view: View, name: str, known: int | None) -> TableDef:
    """The table of that name; TableDropped when it is not the `known` one any more."""
    if known is None:
        return find_table(view, name)
    found = get_table(view, known, name)
    if found.name != name:
        raise TableDropped(f"table {name!r} is not the one that this subscription began with; subscribe anew")
    return found


def _bounded(view: View, table: TableDef, after: int, newest: int) -> int:
    """The newest epoch, or that of a commit before it when a great many lie between."""
    commits = view.scan(log_key(table.id, after + 1), log_key(table.id, newest + 1))
    for count, (key, _) in enumerate(commits, start=1):
        if count == ROUND_ENTRIES:
            return key_epoch(key)
    return newest


def _slices(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch, bool]]:
    """(epoch, rows, whether they are its last)."""
    waiting: tuple[int, pa.RecordBatch] | None = None
    for batch in batches:
        for epoch, rows in each_epoch(batch):
            for data in _bounded_slices(rows):
                if waiting is not None:
                    yield *waiting, waiting[0] != epoch
                waiting = epoch, data
    if waiting is not None:
        yield *waiting, True


def _bounded_slices(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Halved until each is small."""
    if rows.num_rows <= 1 or (rows.num_rows <= SLICE_ROWS and rows.nbytes <= SLICE_BYTES):
        yield rows
        return
    half = rows.num_rows // 2
    yield from _bounded_slices(rows.slice(0, half))
    yield from _bounded_slices(rows.slice(half))


def _without(
    slices: Iterator[tuple[int, pa.RecordBatch, bool]], rows: int
) -> Iterator[tuple[int, pa.RecordBatch, bool]]:
    """Without the first `rows` rows."""
    for epoch, data, last in slices:
        if rows >= data.num_rows:
            rows -= data.num_rows
            continue
        yield epoch, data.slice(rows), last
        rows = 0
