"""The source executor: the logs of one or several tables as chunks of changes with barriers between them.

The log is the only truth: barriers are made from it as they pass, so a reader that was away replays exactly the
barriers it missed, and one that keeps up reads the newest entries the same way. Nothing is handed over from a replay
to a live feed, so nothing can be doubled or lost between the two. Rules: docs/SEMANTICS.md, 5.16 to 5.21.

It is in this package, above `exchange`, because a barrier is decided here; how far a log can be followed is shared with
the Spark stream source.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from heapq import merge
from types import TracebackType
from typing import Protocol, Self

import pyarrow as pa

from epochlog.checkpoint.job.barrier import Barrier
from epochlog.errors import InvalidInput
from epochlog.store.catalog.protocol import Txn, View
from epochlog.store.changelog.change_rows import each_epoch
from epochlog.store.changelog.consumers import KEEP, open_consumer
from epochlog.store.changelog.log_plan import LogPlan, plan_backfill, plan_changes
from epochlog.store.changelog.log_position import SNAPSHOT, reach, require_states
from epochlog.store.changelog.tail_cache import follow
from epochlog.store.commit.boundaries import seal
from epochlog.store.env.backoff import Backoff
from epochlog.store.env.clock import Deadline
from epochlog.store.env.process_local import OneProcess
from epochlog.store.metadata.definitions import JobRecord, TableDef
from epochlog.store.metadata.lookups import find_job, find_table, get_table
from epochlog.store.retention.holds import Hold, put_holds
from epochlog.store.retention.stale_reads import translate_stale_reads
from epochlog.store.session.handle import HasHandle
from epochlog.store.session.leases import LEASE_MS
from epochlog.store.types.epoch import as_epoch, show_epoch
from epochlog.store.types.epoch_set import FAR
from epochlog.store.types.read_options import ReadOptions

from .log_barriers import EndOfData, Stand, barrier_of_job, barrier_of_log, ended

CHUNK_ROWS = 1 << 16
"""Rows of one chunk at most."""
MOVE_HOLD_EVERY = 64
"""Barriers of a replay after which the log behind them is let go of; a reader that has caught up does so at once."""
_BACKOFF = Backoff(first_s=0.005, limit_s=0.1)


class HasName(Protocol):
    """A job, as far as it is asked here."""

    @property
    def name(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Chunk:
    """Changes of one table at one log epoch, in key order: its columns, then `_change_type` (upsert, delete; insert for
    the rows of a snapshot), `_commit_version` and `_commit_timestamp`. A large epoch comes in several chunks.
    """

    table: str
    epoch: int
    data: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class _Round:
    """Plan of the log reads up to one barrier, made from one state of the catalog."""

    barrier: Barrier
    plans: tuple[LogPlan, ...]


class UpstreamLog(OneProcess):
    """Iterates `Chunk`s and `Barrier`s of these tables, and at last one `EndOfData`; waits where nothing is new yet.

    Barrier(prev, curr, kind) says: all changes of all these tables in (prev, curr] came since Barrier(…, prev), and
    nothing later. A consumer that has made its state durable at a barrier resumes with after=curr. Chunks between two
    barriers come by epoch, tables of one epoch in the given order.

    after: the epoch of the last barrier that is done with, 0 for the beginning of the logs; or "snapshot", which begins
    with the tables' rows at the newest sealed boundary S, as inserts, then Barrier(0, S, "initial"), then the logs.
    Default: 0, or what the consumer says.
    job: None makes a barrier of every sealed boundary by which a table has changed; the name of a job (or the job)
    repeats that job's barriers, past ones and the one decided now, over upstreams of it. It only follows the job:
    whoever runs it decides the next one. A job that reads a snapshot first gives it here too.
    consumer: the name of a durable cursor (`store.consumers()`). Reading goes on past what was last acknowledged with
    `ack`; one that has acknowledged nothing begins at `after`, by default with the snapshot. Opening it fences whoever
    had it open. keep, too_old: how long (seconds or a timedelta; None: for good) it holds the logs while it is away,
    and whether one that was away for too long gets LogTruncated ("error") or begins anew ("snapshot").
    columns: {table: columns} of the tables that are not wanted whole. pre_images: as in `table.changes`: inserts, both
    sides of updates, deletes with the old row, instead of upserts and deletes by key; a large epoch may come in chunks
    that part the two sides.

    While it is open it holds what it has yet to read, by a lease; a consumer is held for longer. Memory is bounded by
    some hundred thousand changes a table, whatever lies between two barriers. Close it, or use it in a `with` block;
    `close` may come from another thread, and ends the iteration.

    Raises TableNotFound, JobNotFound, InvalidInput, LogTruncated, TableDropped and EpochExpired (for old rows that are
    gone) at once; LogTruncated, TableDropped, JobParked, Fenced, ConsumerNotFound and StoreClosed while iterating.
    """

    _instead = "send store.root and the epoch of the last barrier, and make an UpstreamLog there with after=epoch"

    def __init__(
        self,
        store: HasHandle,
        tables: Sequence[str],
        job: str | HasName | None = None,
        after: int | str | None = None,
        *,
        consumer: str | None = None,
        too_old: str = "error",
        keep: float | timedelta | None = KEEP,
        columns: Mapping[str, Sequence[str]] | None = None,
        pre_images: bool = False,
    ) -> None:
        handle = store._handle
        found = handle.catalog.read(lambda view: _tables(view, tables))
        record = None if job is None else handle.catalog.read(lambda view: _job(view, job, found))
        begin = after if after is None or after == SNAPSHOT else as_epoch("after", after)
        self._handle = handle
        self._tables = [(table.id, table.name) for table in found]
        self._columns = _columns(found, columns)
        self._pre_images = pre_images
        self._job = None if record is None else (record.id, record.name)
        self._holder = handle.new_holder("upstream")
        self._lock = threading.Lock()  # of the lease: nothing is held again once it is closed
        self._closed = threading.Event()
        self._round: Iterator[Chunk | Barrier] | None = None
        self._held: int | None = None
        self._unmoved = 0
        self._broken = False
        self._consumer = None
        if consumer is not None:
            self._consumer = open_consumer(handle, consumer, tables, too_old=too_old, keep=keep, states=pre_images)
            begin = begin if self._consumer.position is None else self._consumer.position
            begin = SNAPSHOT if begin is None else begin
        self._position = begin if isinstance(begin, int) else 0
        # whether the first round reads the tables' rows, not their logs
        self._snapshot = begin == SNAPSHOT if record is None else record.backfill == "snapshot" and not self._position
        try:
            if not self._snapshot:
                self._hold(self._position)
            if self._consumer is not None and begin == self._position != self._consumer.position:
                self._consumer.ack(self._position)  # so that it is held from now on
        except BaseException:
            self.close()
            raise

    @property
    def position(self) -> int:
        """Return the epoch of the newest barrier given out; before the first one, `after`."""
        return self._position

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Chunk | Barrier | EndOfData:
        item = self.poll(None)
        if item is None:
            raise StopIteration
        return item

    def poll(self, timeout: float | timedelta | None = 0) -> Chunk | Barrier | EndOfData | None:
        """Return the next item; None when none has come in time, or after EndOfData or `close`.

        timeout: seconds or a timedelta; None waits for as long as it takes.
        """
        deadline = None if timeout is None else Deadline.after(timeout)
        looks = 0
        while not self._closed.is_set():
            item = self._next()
            if item is not None:
                return item
            if deadline is not None and deadline.passed:
                return None
            # the catalog has no way to call back: ask again, less and less often
            looks += 1
            wait_s = _BACKOFF.delay_s(looks)
            self._closed.wait(wait_s if deadline is None else min(wait_s, deadline.left_s))
        return None

    def ack(self, barrier: Barrier | int | None = None) -> None:
        """Acknowledge that all through this barrier (or its epoch; None: the newest one given out) is durable.

        From then on a reader of that name begins there, whatever happens; durable when it returns. An earlier barrier
        than the acknowledged one changes nothing. Raises Fenced, ConsumerNotFound, TableDropped, and InvalidInput
        without a consumer, after `close`, or for what was not given out yet.
        """
        if self._consumer is None:
            raise InvalidInput("there is no consumer to acknowledge for; name one: UpstreamLog(…, consumer=name)")
        epoch = barrier.curr if isinstance(barrier, Barrier) else self._position if barrier is None else barrier
        if as_epoch("barrier", epoch) > self._position:
            raise InvalidInput(
                f"epoch {show_epoch(epoch)} was not given out yet; the newest barrier is at "
                f"{show_epoch(self._position)}"
            )
        if self._position:
            self._consumer.ack(epoch)

    def close(self) -> None:
        """End the iteration, in whatever thread it waits, and let go of what is held; a second call does nothing."""
        self._end()
        if self._consumer is not None:
            self._consumer.close()

    def _end(self) -> None:
        with self._lock:
            first, _ = not self._closed.is_set(), self._closed.set()
        if first:
            self._handle.leases.release(self._holder)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed.is_set() else "open"
        return f"<epochlog.UpstreamLog {state}, {', '.join(name for _, name in self._tables)} after {self._position}>"

    # ---- rounds --------------------------------------------------------------------------------------------------

    def _next(self) -> Chunk | Barrier | EndOfData | None:
        """Return the next item if it is there already."""
        if self._broken:
            raise InvalidInput(f"an error ended this reading; open another one with after={self._position}")
        if self._round is None:
            found = self._begin()
            if not isinstance(found, _Round):
                if found is not None:
                    self._end()  # the consumer stays open: it may still have to acknowledge the last barrier
                return found
            self._round = self._items(found)
        try:
            item = next(self._round)
        except BaseException:  # part of the round is out: to go on here would leave a gap or repeat it
            self._broken = True
            raise
        if isinstance(item, Barrier):
            self._round, self._position, self._snapshot = None, item.curr, False
            self._unmoved += 1
        return item

    def _begin(self) -> _Round | EndOfData | None:
        """Return the next round; None while there is none."""
        if self._consumer is not None:
            self._consumer.check()
        if self._job is None and not self._seal():
            found = self._handle.catalog.read(lambda view: ended(view, self._stand()))
        elif self._snapshot:
            found = self._pinned()
        else:
            found = self._handle.catalog.read(self._plan)
        moved = self._held is not None and self._held < self._position
        if moved and (found is None or self._unmoved >= MOVE_HOLD_EVERY):
            self._hold(self._position)
        return found

    def _items(self, found: _Round) -> Iterator[Chunk | Barrier]:
        chunks = [
            self._chunks(place, name, plan)
            for place, ((_, name), plan) in enumerate(zip(self._tables, found.plans, strict=True))
        ]
        for _, _, chunk in merge(*chunks, key=lambda given: given[:2]):
            yield chunk
        yield found.barrier

    def _chunks(self, place: int, name: str, plan: LogPlan) -> Iterator[tuple[int, int, Chunk]]:
        """Yield (epoch, place, chunk) of one table, by epoch."""
        columns, files = self._columns.get(name), self._handle.files
        if plan.backfill or self._pre_images:
            batches = plan.batches(files, pre_images=not plan.backfill, options=ReadOptions(columns))
        else:
            batches = follow(plan, files, columns)
        for batch in translate_stale_reads(self._handle, batches):
            for epoch, rows in each_epoch(batch):
                for at in range(0, rows.num_rows, CHUNK_ROWS):
                    yield epoch, place, Chunk(name, epoch, rows.slice(at, CHUNK_ROWS))

    # ---- what the catalog says -----------------------------------------------------------------------------------

    def _seal(self) -> bool:
        """Seal what the clock has passed if there is anything new to read; whether there is."""

        def news(view: View) -> bool:
            epochs = self._stand().epochs(view)
            first = min(epochs.table(table_id).first_change(self._position) for table_id, _ in self._tables)
            return self._snapshot or first < FAR

        found = self._handle.catalog.read(news)
        if found:
            seal(self._handle)
        return found

    def _stand(self) -> Stand:
        return Stand(self._handle, self._tables, self._position, self._snapshot)

    def _plan(self, view: View) -> _Round | EndOfData | None:
        """Return the next round as of this state of the catalog."""
        stand = self._stand()
        barrier = barrier_of_log(view, stand) if self._job is None else barrier_of_job(view, stand, *self._job)
        if not isinstance(barrier, Barrier):
            return barrier
        plans: list[LogPlan] = []
        for table in (get_table(view, table_id, name) for table_id, name in self._tables):
            if self._snapshot:
                plans.append(plan_backfill(view, table, barrier.curr))
            else:
                after = min(_reachable(view, table, self._position), barrier.curr)
                plans.append(plan_changes(view, table, after, barrier.curr, by_commit=True))
        return _Round(barrier, tuple(plans))

    # ---- holding -------------------------------------------------------------------------------------------------

    def _pinned(self) -> _Round | EndOfData | None:
        """Return the next round, with the files of the states it reads held in the same transaction."""

        def body(tx: Txn) -> tuple[_Round | EndOfData | None, list[bytes]]:
            found = self._plan(tx)
            if not isinstance(found, _Round):
                return found, []
            return found, self._put(tx, found.barrier.curr)

        looked = self._handle.catalog.read(self._plan)
        if not isinstance(looked, _Round):
            return looked
        with self._lock:
            if self._closed.is_set():
                return None
            found, keys = self._handle.catalog.transact(body)
            if keys:
                self._handle.leases.keep(self._holder, keys)
                self._held = 0
        return found

    def _hold(self, after: int) -> None:
        """Hold the logs after an epoch, and the states that old rows are looked up in; LogTruncated or EpochExpired
        when they do not reach back to it.
        """

        def body(tx: Txn) -> list[bytes]:
            for table_id, name in self._tables:
                table = get_table(tx, table_id, name)
                _reachable(tx, table, after)
                if self._looks_up(table, after):
                    require_states(tx, table_id, name, after, 'after="snapshot"')
            return self._put(tx, after)

        with self._lock:
            if not self._closed.is_set():
                self._handle.leases.keep(self._holder, self._handle.catalog.transact(body))
                self._held, self._unmoved = after, 0

    def _put(self, tx: Txn, after: int) -> list[bytes]:
        """Lease the logs after an epoch, and the files that can be reached now; return the keys of the holds."""
        now_ms = self._handle.catalog.now_ms()
        tables = [get_table(tx, table_id, name) for table_id, name in self._tables]
        states = [after if self._looks_up(table, after) else None for table in tables]
        holds = [
            Hold(self._holder, table.id, after, state, now_ms, now_ms + LEASE_MS)
            for table, state in zip(tables, states, strict=True)
        ]
        return put_holds(tx, holds)

    def _looks_up(self, table: TableDef, after: int) -> bool:
        """Return True if old rows of changes past that epoch are looked up in the table's states."""
        return self._pre_images and not table.stores_images_after(after)


def _reachable(view: View, table: TableDef, after: int) -> int:
    """Return the epoch from which the table's log is read; raise LogTruncated if changes past `after` are gone."""
    found = reach(view, table, after)
    if found.lost:
        raise found.truncated('Read a snapshot and go on from there: after="snapshot"')
    return found.after


def _columns(tables: Sequence[TableDef], wanted: Mapping[str, Sequence[str]] | None) -> Mapping[str, Sequence[str]]:
    known = {table.name: table for table in tables}
    if not isinstance(wanted or {}, Mapping):
        raise InvalidInput(f"columns is a dict {{table: columns}}, not {wanted!r}")
    for name, columns in (wanted or {}).items():
        if name not in known:
            raise InvalidInput(f"columns names table {name!r}, which is not read here: {', '.join(known)}")
        LogPlan(known[name].schema, None).schema(columns)
    return dict(wanted or {})


def _tables(view: View, names: Sequence[str]) -> list[TableDef]:
    if isinstance(names, str) or not isinstance(names, Sequence) or not names:
        raise InvalidInput(f"tables is a list of at least one table name, not {names!r}")
    found = [find_table(view, name) for name in names]
    if len({table.id for table in found}) < len(found):
        raise InvalidInput(f"a table is there twice: {', '.join(names)}")
    return found


def _job(view: View, job: str | HasName, tables: Sequence[TableDef]) -> JobRecord:
    record = find_job(view, job if isinstance(job, str) else job.name)
    for table in tables:
        if table.id not in record.upstreams:
            raise InvalidInput(
                f"job {record.name!r} does not read table {table.name!r}: its barriers say nothing of it"
            )
    return record
