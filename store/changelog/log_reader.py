"""Parts of all log readers that keep a position: the plan of the next changes, their rows in slices, and the hold.

The log source, the subscriptions and `tail` decide how far a plan goes, and what follows its rows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

import pyarrow as pa

from epochlog.store.catalog.protocol import ReadTxn, Txn
from epochlog.store.env.clock import monotonic_s
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.metadata.lookups import get_table
from epochlog.store.retention.holds import Hold, put_holds
from epochlog.store.retention.stale_reads import translate_stale_reads
from epochlog.store.session.handle import Handle
from epochlog.store.session.leases import LEASE_MS
from epochlog.store.types.read_options import ReadOptions
from epochlog.store.types.row_size import bounded_slices

from .change_rows import each_epoch
from .footprint import Footprint, of_feed, of_follow, of_scan
from .log_plan import Columns, LogPlan, columns_after, plan_changes
from .log_position import reach, require_states
from .tail_cache import follow

SLICE_ROWS = 1 << 16
SLICE_BYTES = 4 << 20
"""Size limit of a slice; a single row may be larger."""
SPLIT_BYTES = 16 << 20
"""Approximate bytes of a table's rows read at a time."""
MOVE_HOLD_S = 10.0
"""Interval at which a hold moves past the log that was read."""

T = TypeVar("T")
Meter = Callable[[Iterator[pa.RecordBatch], Footprint], Iterator[pa.RecordBatch]]


def readable_after(view: ReadTxn, table: TableDef, after: int, advice: str) -> int:
    """Return the epoch from which the log is read by a reader that has all changes through `after`. Raises LogTruncated
    if changes past it are deleted; `advice` is the last sentence of the error.
    """
    log_reach = reach(view, table, after)
    if log_reach.lost:
        raise log_reach.truncated(advice)
    return log_reach.after


def plan_unread(
    view: ReadTxn,
    table: TableDef,
    after: int,
    until: int,
    advice: str,
    columns: Columns,
    *,
    by_commit: bool = False,
    pre_images: bool = False,
) -> LogPlan:
    """Plan the changes of (after, until] that the log still has, in the columns of a reader that keeps them: those of
    `columns`, else those of its first change (`columns_after`). Raises LogTruncated as `readable_after` does.
    """
    after = readable_after(view, table, after, advice)
    columns = replace(columns, schema=columns.schema or columns_after(view, table, after))
    until = max(after, until)
    return plan_changes(view, table, after, until, by_commit=by_commit, columns=columns, pre_images=pre_images)


def read_slices(
    handle: Handle,
    plan: LogPlan,
    columns: Sequence[str] | None = None,
    *,
    pre_images: bool = False,
    meter: Meter | None = None,
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of a plan as (epoch, rows), in slices of one epoch and bounded size. meter: as in
    `read_batches`.
    """
    for batch in read_batches(handle, plan, columns, pre_images=pre_images, meter=meter):
        for epoch, rows in each_epoch(batch):
            for data in bounded_slices(rows, SLICE_ROWS, SLICE_BYTES):
                yield epoch, data


def read_batches(
    handle: Handle,
    plan: LogPlan,
    columns: Sequence[str] | None = None,
    *,
    pre_images: bool = False,
    meter: Meter | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a plan in the order of their epochs. meter: takes an iterator of batches and its memory
    footprint, and yields the batches as memory becomes available.
    """
    options = ReadOptions(columns)
    if plan.backfill:
        batches = plan.batches(handle.files, options=options, split_bytes=SPLIT_BYTES)
    elif pre_images:
        batches = plan.batches(handle.files, pre_images=True, options=options)
    else:
        batches = follow(plan, handle.files, columns)
    if meter is not None:
        batches = meter(batches, _footprint(plan, columns, pre_images=pre_images))
    return translate_stale_reads(handle, batches)


def _footprint(plan: LogPlan, columns: Sequence[str] | None, *, pre_images: bool) -> Footprint:
    if plan.backfill:
        assert plan.before is not None
        return of_scan(plan.before, columns, SPLIT_BYTES)
    return of_feed(plan, columns, images=True) if pre_images else of_follow(plan, columns)


class LogHold:
    """Leased hold of one reader on the logs of its tables that it has yet to read, and on the rows that it needs there.

    Thread-safe: a hold that was released is not taken again.
    """

    def __init__(
        self, handle: Handle, kind: str, tables: Sequence[tuple[int, str]], advice: str, *, pre_images: bool = False
    ) -> None:
        """Take nothing yet. tables: id and name each. advice: as in `readable_after`. pre_images: the reader looks up
        the rows before the changes of a table that does not store them.
        """
        self._handle = handle
        self._tables = tables
        self._advice = advice
        self._pre_images = pre_images
        self._holder = handle.new_holder(kind)
        self._lock = threading.Lock()
        self._released = False
        self._past: int | None = None  # a hold at a later epoch frees something; None: there is no hold
        self._moved_s = 0.0

    def take(self, plan: Callable[[Txn], tuple[T, int | None]], *, rows: bool = False) -> T | None:
        """Plan a read, and hold the logs after the epoch that `plan` returns with its result (None: hold nothing), in
        one transaction. rows: hold all rows at the epoch too. Return the result; None after `release`.

        Raises TableDropped, and LogTruncated or EpochExpired if retention has deleted what the reader needs.
        """

        def plan_and_hold(tx: Txn) -> tuple[T, int | None, list[bytes]]:
            result, after = plan(tx)
            return result, after, [] if after is None else self._put(tx, after, rows=rows)

        with self._lock:
            if self._released:
                return None
            result, after, keys = self._handle.pin(plan_and_hold)
            if after is not None:
                self._handle.leases.keep(self._holder, keys)
                self._past, self._moved_s = after - rows, monotonic_s()
            return result

    def move(self, after: int, *, idle: bool = False) -> None:
        """Hold only the logs after a later epoch. Each move is a transaction, so a reader that is not idle moves its
        hold at most every MOVE_HOLD_S.
        """
        if self.is_due(after, idle=idle):
            self.take(lambda _: (None, after))

    def is_due(self, after: int, *, idle: bool = False) -> bool:
        """Return True if `move` would move the hold now."""
        return self._past is not None and after > self._past and (idle or monotonic_s() - self._moved_s >= MOVE_HOLD_S)

    def release(self) -> None:
        """End the hold; a second call does nothing."""
        with self._lock:
            released, self._released = self._released, True
        if not released:
            self._handle.leases.release(self._holder)

    def _put(self, tx: Txn, after: int, *, rows: bool) -> list[bytes]:
        now_ms, holds = self._handle.catalog.now_ms(), list[Hold]()
        for table_id, name in self._tables:
            table = get_table(tx, table_id, name)
            readable_after(tx, table, after, self._advice)
            looks_up = self._pre_images and not table.stores_images_after(after)
            if looks_up:
                require_states(tx, table_id, name, after, 'after="snapshot"')
            state = after if rows or looks_up else None
            holds.append(Hold(self._holder, table_id, after, state, now_ms, now_ms + LEASE_MS))
        return put_holds(tx, holds)
