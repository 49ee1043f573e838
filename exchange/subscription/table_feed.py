"""Feed of a table from any position on: its rows as of one epoch, then its log, then new commits, in bounded slices.

The log is the only source of changes, old ones and new ones alike, so nothing can fall between a replay and the live
changes. Every reader gets equal slices at any time: a feed that starts again in the middle of an epoch, or of the rows,
leaves out as many rows as were given before.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from epochlog.errors import EpochExpired, SnapshotExpired, TableDropped
from epochlog.store.catalog.keys import key_epoch, log_key
from epochlog.store.catalog.protocol import Txn, View
from epochlog.store.changelog.change_rows import each_epoch
from epochlog.store.changelog.footprint import Footprint, of_follow, of_scan
from epochlog.store.changelog.log_plan import LogPlan, plan_backfill, plan_changes
from epochlog.store.changelog.log_position import reach
from epochlog.store.changelog.tail_cache import follow
from epochlog.store.env.clock import monotonic_s
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.metadata.lookups import find_table, get_table, get_version
from epochlog.store.retention.holds import Hold, put_holds
from epochlog.store.retention.stale_reads import translate_stale_reads
from epochlog.store.session.handle import Handle
from epochlog.store.session.leases import LEASE_MS

from .messages import FeedPosition

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
    """News that all changes through this epoch were given out. snapshot: the epoch is that of the table's rows, which
    are complete; else of its log.
    """

    epoch: int
    snapshot: bool = False


@dataclass(frozen=True, slots=True)
class _FeedRound:
    """Plan of one round, from one state of the catalog. `ended`: the table's data ends with it."""

    plan: LogPlan
    place: FeedPosition
    until: int
    ended: bool


class TableFeed:
    """Feed of one table for one reader. A lease holds the part that is yet to be read, until `close`."""

    def __init__(
        self,
        handle: Handle,
        table: TableDef,
        columns: tuple[str, ...] | None,
        place: FeedPosition | None,
        advice: str,
        meter: Meter | None = None,
    ) -> None:
        """Plan the first round and hold its epochs. place: None begins with the rows of the newest commit. advice: told
        in the error when the log is gone. meter: gets an iterator of batches and its footprint in memory, and yields
        the batches as there is room.

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
        self._first: _FeedRound | None = handle.catalog.transact(self._held)
        self.place = self._first.place
        handle.leases.keep(self._holder, self._keys)

    def close(self) -> None:
        """Release the feed's hold; a second call does nothing."""
        self._handle.leases.release(self._holder)

    def new(self) -> Generator[Slice | Passed]:
        """Yield all slices past the position reached; end when there is no more, until the next call. A generator that
        is closed early leaves the position for the next one.

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
        """Return an upper bound of the table's rows; None when the feed does not begin with them, or has given them
        out.
        """
        before = self._first.plan.before if self._first is not None and self._first.place.snapshot is not None else None
        return None if before is None else before.rows_at_most

    @property
    def at(self) -> FeedPosition:
        assert self.place is not None
        return self.place

    # ---- giving out ----------------------------------------------------------------------------------------------

    def _given(self, found: _FeedRound) -> Iterator[Slice | Passed]:
        place, snapshot = found.place, found.place.snapshot is not None
        behind = place.after
        plan, files = found.plan, self._handle.files
        if snapshot:
            assert plan.before is not None
            batches = plan.batches(files, columns=self._columns, piece_bytes=PIECE_BYTES)
            footprint = of_scan(plan.before, self._columns, PIECE_BYTES)
        else:
            batches, footprint = follow(plan, files, self._columns), of_follow(plan, self._columns)
        slices = _slices(translate_stale_reads(self._handle, self._meter(batches, footprint)))
        for epoch, data, last in _without(slices, place.rows):
            self.place = replace(self.at, rows=self.at.rows + data.num_rows)
            if last and not snapshot:
                behind = epoch
                self.place = FeedPosition(after=epoch)
            yield Slice(data, epoch, last, snapshot)
        self.place = FeedPosition(after=found.until)
        if snapshot or behind < found.until:
            yield Passed(found.until, snapshot)

    # ---- what the catalog says -----------------------------------------------------------------------------------

    def _look(self, view: View) -> _FeedRound:
        table = get_table(view, self._id, self._name)
        version = get_version(view, table.id, table.name)
        place = self.place
        if place is None:
            place = FeedPosition(snapshot=version.max_committed_epoch)
        if place.snapshot is not None:
            try:
                plan = plan_backfill(view, table, place.snapshot)
            except EpochExpired as error:
                raise SnapshotExpired(
                    f"the rows of {table.name!r} at epoch {place.snapshot} were given out in part, and the rest has "
                    "been let go meanwhile; subscribe anew"
                ) from error
            return _FeedRound(plan, place, place.snapshot, ended=False)
        found = reach(view, table, place.after)
        if found.lost:
            raise found.truncated(self._advice)
        after = found.after
        newest = max(version.max_committed_epoch, after)
        until = _bounded(view, table, after, newest)
        ended = version.end_epoch is not None and until >= version.end_epoch
        return _FeedRound(plan_changes(view, table, after, until), place, until, ended)

    def _held(self, tx: Txn) -> _FeedRound:
        """Plan the first round and hold its epochs in one transaction."""
        found = self._look(tx)
        now_ms, place = self._handle.catalog.now_ms(), found.place
        log = place.after if place.snapshot is None else place.snapshot
        hold = Hold(self._holder, self._id, log, place.snapshot, now_ms, now_ms + LEASE_MS)
        self._keys = put_holds(tx, [hold])
        return found

    def _move_hold(self) -> None:
        """Advance the hold past the log that was given out, every MOVE_HOLD_S at most: each move is a transaction."""
        if monotonic_s() - self._moved_s < MOVE_HOLD_S:
            return

        def body(tx: Txn) -> None:
            get_table(tx, self._id, self._name)
            now_ms = self._handle.catalog.now_ms()
            put_holds(tx, [Hold(self._holder, self._id, self.at.after, None, now_ms, now_ms + LEASE_MS)])

        self._handle.catalog.transact(body)
        self._moved_s = monotonic_s()


def table_of(view: View, name: str, known: int | None) -> TableDef:
    """Find the table of that name. Raises TableDropped when it is not the `known` one any more."""
    if known is None:
        return find_table(view, name)
    found = get_table(view, known, name)
    if found.name != name:
        raise TableDropped(f"table {name!r} is not the one that this subscription began with; subscribe anew")
    return found


def _bounded(view: View, table: TableDef, after: int, newest: int) -> int:
    """Return the newest epoch, or that of the ROUND_ENTRIES-th commit after `after` if there are so many."""
    commits = view.scan(log_key(table.id, after + 1), log_key(table.id, newest + 1))
    for count, (key, _) in enumerate(commits, start=1):
        if count == ROUND_ENTRIES:
            return key_epoch(key)
    return newest


def _slices(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch, bool]]:
    """Yield (epoch, rows, True if they are the epoch's last)."""
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
    """Halve the rows until each slice is within SLICE_ROWS and SLICE_BYTES."""
    if rows.num_rows <= 1 or (rows.num_rows <= SLICE_ROWS and rows.nbytes <= SLICE_BYTES):
        yield rows
        return
    half = rows.num_rows // 2
    yield from _bounded_slices(rows.slice(0, half))
    yield from _bounded_slices(rows.slice(half))


def _without(
    slices: Iterator[tuple[int, pa.RecordBatch, bool]], rows: int
) -> Iterator[tuple[int, pa.RecordBatch, bool]]:
    """Yield the slices without their first `rows` rows."""
    for epoch, data, last in slices:
        if rows >= data.num_rows:
            rows -= data.num_rows
            continue
        yield epoch, data.slice(rows), last
        rows = 0
