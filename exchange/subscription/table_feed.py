"""Feed of a table from any position: its rows at one epoch, then its log, then new commits, in bounded slices.

The log is the only source of changes, old and new, so no change is lost between replay and live changes. Slices are
deterministic: a feed that resumes in the middle of an epoch, or of the rows, skips the rows that were sent before.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from epochlog.errors import EpochExpired, SnapshotExpired, TableDropped
from epochlog.store.catalog.keys import key_epoch, log_key
from epochlog.store.catalog.protocol import ReadTxn, Txn
from epochlog.store.changelog.change_rows import each_epoch
from epochlog.store.changelog.footprint import Footprint, of_follow, of_scan
from epochlog.store.changelog.log_plan import (
    Columns,
    LogPlan,
    columns_after,
    plan_backfill,
    plan_changes,
    schema_changed,
)
from epochlog.store.changelog.log_position import reach
from epochlog.store.changelog.tail_cache import follow
from epochlog.store.env.clock import monotonic_s
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.metadata.lookups import find_table, get_table, get_version
from epochlog.store.retention.holds import Hold, put_holds
from epochlog.store.retention.stale_reads import translate_stale_reads
from epochlog.store.session.handle import Handle
from epochlog.store.session.leases import LEASE_MS
from epochlog.store.types.read_options import ReadOptions
from epochlog.store.types.schema import TableSchema

from .messages import FeedPosition

SLICE_ROWS = 1 << 16
SLICE_BYTES = 4 << 20
"""Size limit of a slice; a single row may be larger."""
SPLIT_BYTES = 16 << 20
"""Approximate bytes of a table's rows read at a time."""
ROUND_ENTRIES = 1_024
"""Largest number of commits in one round."""
MOVE_HOLD_S = 10.0
"""Interval at which the hold advances past the log that was sent."""


Meter = Callable[[Iterator[pa.RecordBatch], Footprint], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows of one epoch, in key order."""

    data: pa.RecordBatch
    epoch: int
    last: bool
    """No more rows of the epoch follow."""
    snapshot: bool
    """They are the table's rows, not changes."""


@dataclass(frozen=True, slots=True)
class Passed:
    """Notice that the feed is complete through an epoch."""

    epoch: int
    snapshot: bool = False
    """The table's rows at that epoch are complete; else its log."""


@dataclass(frozen=True, slots=True)
class _FeedRound:
    """Plan of one round, from one state of the catalog."""

    plan: LogPlan
    position: FeedPosition
    until: int
    ended: bool
    """True if the table's data ends with this round."""


class TableFeed:
    """Feed of one table for one reader. A lease holds the unread rows and log until `close`."""

    def __init__(
        self,
        handle: Handle,
        table: TableDef,
        columns: tuple[str, ...] | None,
        position: FeedPosition | None,
        advice: str,
        meter: Meter | None = None,
        version: int | None = None,
    ) -> None:
        """Plan the first round and hold its epochs. position: None begins with the rows of the newest commit. advice:
        the last sentence of LogTruncated. meter: takes an iterator of batches and its memory footprint, and yields the
        batches as memory becomes available. version: the version of the table's schema whose columns the reader has;
        None: it takes those of the position.

        Raises InvalidInput for columns, LogTruncated, SnapshotExpired.
        """
        self._meter = meter or (lambda batches, _: batches)
        self._handle = handle
        self._id, self._name = table.id, table.name
        self._columns = columns
        self._advice = advice
        self._holder = handle.new_holder("subscription")
        self._hold_moved_s = monotonic_s()
        self._version, self._fixed = version, table.schema
        self._position, self.ended = position, False
        self._first_round: _FeedRound | None = handle.pin(self._plan_and_hold)
        self._position = self._first_round.position
        self._version = self._fixed.version
        self.schema = self._first_round.plan.schema(columns)
        handle.leases.keep(self._holder, self._keys)

    def close(self) -> None:
        """Release the feed's hold; a second call does nothing."""
        self._handle.leases.release(self._holder)

    def read_new(self) -> Generator[Slice | Passed]:
        """Yield all slices past the position, through the newest commit. If the generator is closed early, the next one
        resumes at the position reached.

        Raises TableDropped, LogTruncated, SnapshotExpired.
        """
        while not self.ended:
            planned, self._first_round = self._first_round, None
            feed_round = planned or self._handle.catalog.read(self._plan_round)
            position = feed_round.position
            if position.snapshot is None and feed_round.until <= position.after and not feed_round.ended:
                if planned is not None:  # at the opening: commits since then may have notified the caller already
                    continue
                return
            yield from self._read_round(feed_round)
            self.ended = feed_round.ended
            self._move_hold()

    @property
    def version(self) -> int:
        """Return the version of the table's schema whose columns the feed has."""
        return self._fixed.version

    @property
    def snapshot_rows(self) -> int | None:
        """Return an upper bound of the table's rows; None if the feed does not begin with them, or has read them."""
        first_round = self._first_round
        if first_round is None or first_round.position.snapshot is None:
            return None
        before = first_round.plan.before
        return None if before is None else before.rows_at_most

    @property
    def position(self) -> FeedPosition:
        """Return the position up to which the feed was yielded."""
        assert self._position is not None
        return self._position

    # ---- reading -------------------------------------------------------------------------------------------------

    def _read_round(self, feed_round: _FeedRound) -> Iterator[Slice | Passed]:
        start, snapshot = feed_round.position, feed_round.position.snapshot is not None
        sent_epoch = start.after
        plan, files = feed_round.plan, self._handle.files
        if snapshot:
            assert plan.before is not None
            batches = plan.batches(files, options=ReadOptions(self._columns), split_bytes=SPLIT_BYTES)
            footprint = of_scan(plan.before, self._columns, SPLIT_BYTES)
        else:
            batches, footprint = follow(plan, files, self._columns), of_follow(plan, self._columns)
        slices = _slices(translate_stale_reads(self._handle, self._meter(batches, footprint)))
        for epoch, data, last in _skip_rows(slices, start.rows):
            self._position = replace(self.position, rows=self.position.rows + data.num_rows)
            if last and not snapshot:
                sent_epoch = epoch
                self._position = FeedPosition(after=epoch)
            yield Slice(data, epoch, last, snapshot)
        until = feed_round.until if plan.altered is None else max(start.after, plan.altered - 1)
        self._position = FeedPosition(after=until)
        if snapshot or sent_epoch < until:
            yield Passed(until, snapshot)
        if plan.altered is not None:
            raise schema_changed(self._name, plan.altered)

    # ---- planning and holds --------------------------------------------------------------------------------------

    def _plan_round(self, view: ReadTxn) -> _FeedRound:
        table = get_table(view, self._id, self._name)
        version = get_version(view, table.id, table.name)
        position = self._position
        if position is None:
            position = FeedPosition(snapshot=version.max_committed_epoch)
        if position.snapshot is not None:
            self._fixed = self._columns_of(table, partial(table.schema.at, position.snapshot))
            try:
                plan = plan_backfill(view, table, position.snapshot, self._fixed)
            except EpochExpired as error:
                raise SnapshotExpired(
                    f"the rows of {table.name!r} at epoch {position.snapshot} expired while the subscription was "
                    "reading them; subscribe anew"
                ) from error
            return _FeedRound(plan, position, position.snapshot, ended=False)
        log_reach = reach(view, table, position.after)
        if log_reach.lost:
            raise log_reach.truncated(self._advice)
        after = log_reach.after
        newest = max(version.max_committed_epoch, after)
        until = _round_end(view, table, after, newest)
        ended = version.end_epoch is not None and until >= version.end_epoch
        self._fixed = self._columns_of(table, partial(columns_after, view, table, after))
        plan = plan_changes(view, table, after, until, columns=Columns(self._fixed, cut=True))
        return _FeedRound(plan, position, until, ended)

    def _columns_of(self, table: TableDef, first: Callable[[], TableSchema]) -> TableSchema:
        """Return the table's columns in the version that the reader has; `first()` in the first round of a new
        reader.
        """
        return first() if self._version is None else table.schema.at(self._version)

    def _plan_and_hold(self, tx: Txn) -> _FeedRound:
        """Plan the first round and hold its epochs, in one transaction. Raises InvalidInput for unknown columns."""
        feed_round = self._plan_round(tx)
        feed_round.plan.schema(self._columns)
        now_ms, position = self._handle.catalog.now_ms(), feed_round.position
        log = position.after if position.snapshot is None else position.snapshot
        hold = Hold(self._holder, self._id, log, position.snapshot, now_ms, now_ms + LEASE_MS)
        self._keys = put_holds(tx, [hold])
        return feed_round

    def _move_hold(self) -> None:
        """Advance the hold past the log that was sent, at most every MOVE_HOLD_S: each advance is a transaction."""
        if monotonic_s() - self._hold_moved_s < MOVE_HOLD_S:
            return

        def advance_hold(tx: Txn) -> None:
            get_table(tx, self._id, self._name)
            now_ms = self._handle.catalog.now_ms()
            put_holds(tx, [Hold(self._holder, self._id, self.position.after, None, now_ms, now_ms + LEASE_MS)])

        self._handle.pin(advance_hold)
        self._hold_moved_s = monotonic_s()


def find_subscribed_table(view: ReadTxn, name: str, table_id: int | None) -> TableDef:
    """Find the table of that name. Raises TableDropped if its id is not `table_id`; None accepts any id."""
    if table_id is None:
        return find_table(view, name)
    table = get_table(view, table_id, name)
    if table.name != name:
        raise TableDropped(f"table {name!r} was dropped or renamed after this subscription began; subscribe anew")
    return table


def _round_end(view: ReadTxn, table: TableDef, after: int, newest: int) -> int:
    """Return the epoch of the ROUND_ENTRIES-th commit past `after`; `newest` if there are fewer commits."""
    commits = view.scan(log_key(table.id, after + 1), log_key(table.id, newest + 1))
    for count, (key, _) in enumerate(commits, start=1):
        if count == ROUND_ENTRIES:
            return key_epoch(key)
    return newest


def _slices(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch, bool]]:
    """Yield bounded slices as (epoch, rows, last); last marks the final slice of its epoch."""
    pending: tuple[int, pa.RecordBatch] | None = None
    for batch in batches:
        for epoch, rows in each_epoch(batch):
            for data in _bounded_slices(rows):
                if pending is not None:
                    yield *pending, pending[0] != epoch
                pending = epoch, data
    if pending is not None:
        yield *pending, True


def _bounded_slices(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Halve the rows until each slice has at most SLICE_ROWS rows and SLICE_BYTES bytes."""
    if rows.num_rows <= 1 or (rows.num_rows <= SLICE_ROWS and rows.nbytes <= SLICE_BYTES):
        yield rows
        return
    half = rows.num_rows // 2
    yield from _bounded_slices(rows.slice(0, half))
    yield from _bounded_slices(rows.slice(half))


def _skip_rows(
    slices: Iterator[tuple[int, pa.RecordBatch, bool]], rows: int
) -> Iterator[tuple[int, pa.RecordBatch, bool]]:
    """Yield the slices without their first `rows` rows."""
    for epoch, data, last in slices:
        if rows >= data.num_rows:
            rows -= data.num_rows
            continue
        yield epoch, data.slice(rows), last
        rows = 0
