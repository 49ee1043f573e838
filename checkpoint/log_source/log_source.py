"""Log source: the logs of one or several tables as chunks of changes with barriers between them.

Barriers are derived from the log, so a reader that was away replays exactly the barriers that it missed. A replay and a
live read use one code path, without a hand-over that could duplicate or lose changes. Rules: docs/SEMANTICS.md, 5.16 to
5.21. The module lies in this package, above `exchange`, because it decides barriers. `store/changelog/log_reader.py`
plans, reads and holds the changes between them.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

import pyarrow as pa

from epochlog.checkpoint.job.next_barrier import Barrier
from epochlog.errors import EpochlogError, InvalidInput, SnapshotExpired
from epochlog.store.catalog.protocol import ReadTxn, Txn
from epochlog.store.changelog.consumers import KEEP, open_consumer
from epochlog.store.changelog.log_plan import Columns, LogPlan, columns_after, plan_backfill
from epochlog.store.changelog.log_position import SNAPSHOT
from epochlog.store.changelog.log_reader import LogHold, plan_unread, read_slices
from epochlog.store.commit.boundaries import seal
from epochlog.store.env.backoff import Backoff
from epochlog.store.env.clock import Deadline
from epochlog.store.env.closeable import PollIterator
from epochlog.store.env.process_local import OneProcess
from epochlog.store.metadata.definitions import JobRecord, TableDef
from epochlog.store.metadata.job_columns import job_columns
from epochlog.store.metadata.lookups import find_job, find_table, get_table
from epochlog.store.session.handle import HasHandle
from epochlog.store.types.epoch import as_epoch, show_epoch
from epochlog.store.types.schema import TableSchema

from .log_barriers import EndOfData, ReaderPosition, Unsealed, barriers_of_job, barriers_of_log
from .log_round import LogRound, cut_round, rows_round

ADVICE = 'Read a snapshot and continue from it: after="snapshot"'
LOOK_BARRIERS = 64
"""Largest number of barriers that are planned after one look at the catalog."""
_BACKOFF = Backoff(first_s=0.005, limit_s=0.1)


class HasName(Protocol):
    """Interface of a job: its name."""

    @property
    def name(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Chunk:
    """Changes of one table at one log epoch, in key order. A large epoch comes in several chunks.

    data has the table's columns, then `_change_type` (upsert, delete; insert for the rows of a snapshot),
    `_commit_version` and `_commit_timestamp`.
    """

    table: str
    epoch: int
    data: pa.RecordBatch


class UpstreamLog(OneProcess, PollIterator[Chunk | Barrier | EndOfData]):
    """Iterator of the `Chunk`s and `Barrier`s of these tables, with one `EndOfData` at the end. It waits for changes.

    Barrier(prev, curr, kind) follows exactly the changes of all these tables in (prev, curr]. A reader that has made
    its state durable at a barrier resumes with after=curr. Chunks between two barriers are ordered by epoch, and within
    an epoch by the given order of the tables.

    after: the epoch of the last processed barrier, 0 for the beginning of the logs; or "snapshot" for the tables' rows
    at the newest sealed boundary S, as inserts, then Barrier(0, S, "initial"), then the logs. The default is 0, or the
    consumer's position.
    job: None derives a barrier from every sealed boundary by which a table has changed. The name of a job (or the job)
    repeats that job's past and recorded barriers, for tables that are upstreams of it. The log source only follows the
    job; the job's runner decides the next barrier. A job that backfills from a snapshot begins with it here too.
    consumer: the name of a durable cursor (`store.consumers()`). Reading resumes past the position of its last `ack`;
    without one it begins at `after`, by default "snapshot". Opening a consumer fences its earlier reader. keep: the
    time (seconds or a timedelta; None: no limit) for which it holds the logs while it is closed. too_old: the reaction
    to a longer absence: raise LogTruncated ("error") or begin again ("snapshot").
    columns: {table: columns} to read some columns only. pre_images: as in `table.changes`, return inserts, both sides
    of updates, and deletes with the old row, instead of upserts and deletes by key. A large epoch may split the two
    sides of an update into different chunks.

    While it is open, a lease holds the logs that it has yet to read; a consumer's hold lasts longer. Memory is bounded
    by some hundred thousand changes for each table, independent of the size of a barrier. Close it, or use it in a
    `with` block; `close` may be called from another thread, and ends the iteration.

    Raises TableNotFound, JobNotFound, InvalidInput, LogTruncated, TableDropped and EpochExpired (old rows are deleted)
    at once; LogTruncated, TableDropped, JobParked, Fenced, ConsumerNotFound and StoreClosed while iterating, and
    SchemaChanged before the first change after an alter that drops, renames or widens a column: open another
    UpstreamLog after the last barrier. Columns that were added are left out until then.
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
        table_defs = handle.catalog.read(lambda view: _find_tables(view, tables))
        record = None if job is None else handle.catalog.read(lambda view: _find_job(view, job, table_defs))
        start = after if after is None or after == SNAPSHOT else as_epoch("after", after)
        self._handle = handle
        self._tables = [(table.id, table.name) for table in table_defs]
        self._columns = _checked_names(table_defs, columns)
        self._pre_images = pre_images
        self._job = None if record is None else (record.id, record.name)
        self._hold = LogHold(handle, "upstream", self._tables, ADVICE, pre_images=pre_images)
        self._closed = threading.Event()
        self._round: LogRound | None = None
        self._items_left: Iterator[Chunk | Barrier] = iter(())
        self._most = LOOK_BARRIERS  # barriers of the next round, at most
        self._returned = Counter[str]()  # rows of each table past the newest returned barrier
        self._failed = False
        self._consumer = None
        if consumer is not None:
            self._consumer = open_consumer(handle, consumer, tables, too_old=too_old, keep=keep, states=pre_images)
            start = start if self._consumer.position is None else self._consumer.position
            start = SNAPSHOT if start is None else start
        self._position = start if isinstance(start, int) else 0
        # The columns of each table: those of the job, else from the first round on.
        self._fixed: dict[int, TableSchema] = (
            {} if record is None else {table.id: job_columns(record, table) for table in table_defs}
        )
        # True if the first round reads the tables' rows, not their logs.
        self._snapshot = start == SNAPSHOT if record is None else record.backfill == "snapshot" and not self._position
        try:
            handle.catalog.read(self._check_columns)
            if not self._snapshot:
                self._hold.take(lambda _: (None, self._position))
            if self._consumer is not None and start == self._position != self._consumer.position:
                self._consumer.ack(self._position)  # so that the consumer holds the logs from now on
        except BaseException:
            self.close()
            raise

    @property
    def position(self) -> int:
        """Return the epoch of the newest returned barrier; before the first one, `after`."""
        return self._position

    def poll(self, timeout: float | timedelta | None = 0) -> Chunk | Barrier | EndOfData | None:
        """Return the next item; None after the timeout, EndOfData or `close`.

        timeout: seconds or a timedelta; None waits without limit.
        """
        deadline = None if timeout is None else Deadline.after(timeout)
        looks = 0
        while not self._closed.is_set():
            item = self._next()
            if item is not None:
                return item
            if deadline is not None and deadline.passed:
                return None
            # The catalog has no notifications, so poll it with backoff.
            looks += 1
            wait_s = _BACKOFF.delay_s(looks)
            self._closed.wait(wait_s if deadline is None else min(wait_s, deadline.remaining_s))
        return None

    def ack(self, barrier: Barrier | int | None = None) -> None:
        """Acknowledge all changes through this barrier (or its epoch; None: the newest returned barrier).

        The acknowledgement is durable on return; a later reader of the consumer begins there. A barrier before the
        acknowledged one has no effect. Raises Fenced, ConsumerNotFound, TableDropped, and InvalidInput without a
        consumer, after `close`, or for a barrier that was not returned yet.
        """
        if self._consumer is None:
            raise InvalidInput("this UpstreamLog has no consumer to acknowledge for; open it with consumer=name")
        epoch = barrier.curr if isinstance(barrier, Barrier) else self._position if barrier is None else barrier
        if as_epoch("barrier", epoch) > self._position:
            raise InvalidInput(
                f"epoch {show_epoch(epoch)} was not returned yet; the newest returned barrier is at "
                f"{show_epoch(self._position)}"
            )
        if self._position:
            self._consumer.ack(epoch)

    def close(self) -> None:
        """End the iteration, also in another thread, and release the holds. A second call does nothing."""
        self._stop()
        if self._consumer is not None:
            self._consumer.close()

    def _stop(self) -> None:
        self._closed.set()
        self._hold.release()

    def __repr__(self) -> str:
        state = "closed" if self._closed.is_set() else "open"
        return f"<epochlog.UpstreamLog {state}, {', '.join(name for _, name in self._tables)} after {self._position}>"

    # ---- rounds --------------------------------------------------------------------------------------------------

    def _next(self) -> Chunk | Barrier | EndOfData | None:
        """Return the next item without waiting, or None."""
        if self._failed:
            raise InvalidInput(
                f"an error ended this UpstreamLog; open another one with after={self._position} to continue"
            )
        if not self._returned and self._consumer is not None:
            self._consumer.check()
        while True:
            if self._round is None:
                next_round = self._next_round()
                if not isinstance(next_round, LogRound):
                    if next_round is not None:
                        self._stop()  # the consumer stays open for the acknowledgement of the last barrier
                    return next_round
                self._round, self._items_left = next_round, self._iterate(next_round)
            try:
                return self._returning(next(self._items_left), self._round)
            except BaseException as error:
                if not self._may_plan_anew(error, self._round):
                    self._failed = True  # part of a barrier may be returned: continuing would skip or repeat changes
                    raise
                self._round, self._most = None, 1

    def _returning(self, item: Chunk | Barrier, log_round: LogRound) -> Chunk | Barrier:
        """Move the position past an item, and return it."""
        if isinstance(item, Chunk):
            self._returned[item.table] += item.data.num_rows
            return item
        self._position, self._snapshot = item.curr, False
        self._returned.clear()
        if item is log_round.barriers[-1] or self._hold.is_due(item.curr):
            self._round = None
        return item

    def _may_plan_anew(self, error: BaseException, log_round: LogRound) -> bool:
        """Return True if a plan up to the next barrier only may get further: the error may be in what was read ahead,
        or other files have the changes that this reader could not hold.
        """
        if isinstance(error, SnapshotExpired) and self._handle.read_only:
            return not self._snapshot  # else it would be another one
        return isinstance(error, EpochlogError) and len(log_round.barriers) > 1

    def _next_round(self) -> LogRound | EndOfData | None:
        """Return the next round, EndOfData, or None if there is no barrier yet."""
        self._hold.move(self._position)  # before the plan, so that it pins the files of the plan
        if self._snapshot and self._job is None:
            seal(self._handle)
        planned = self._handle.catalog.read(self._plan)
        if isinstance(planned, Unsealed):
            seal(self._handle)
            planned = self._handle.catalog.read(self._plan)
        next_round = None if isinstance(planned, Unsealed) else planned
        if self._snapshot and isinstance(next_round, LogRound):  # hold the files of its rows as it is planned
            next_round = self._hold.take(self._plan_held, rows=True)
        if next_round is None:
            self._hold.move(self._position, idle=True)
        return next_round

    def _iterate(self, log_round: LogRound) -> Iterator[Chunk | Barrier]:
        self._fixed = {table_id: plan.table for (table_id, _), plan in zip(self._tables, log_round.plans, strict=True)}
        self._most = min(2 * len(log_round.barriers), LOOK_BARRIERS)
        return log_round.ordered([self._chunks(*table) for table in zip(self._tables, log_round.plans, strict=True)])

    def _chunks(self, table: tuple[int, str], plan: LogPlan) -> Iterator[tuple[int, Chunk]]:
        """Yield the chunks of one table with their epochs, but for rows that an earlier plan has returned."""
        name = table[1]
        skip = self._returned[name]
        for epoch, rows in read_slices(self._handle, plan, self._columns.get(name), pre_images=self._pre_images):
            if skip < rows.num_rows:
                yield epoch, Chunk(name, epoch, rows.slice(skip) if skip else rows)
            skip = max(skip - rows.num_rows, 0)

    # ---- catalog reads -------------------------------------------------------------------------------------------

    def _reader_position(self) -> ReaderPosition:
        return ReaderPosition(self._handle, self._tables, self._position, self._snapshot)

    def _plan(self, view: ReadTxn) -> LogRound | EndOfData | Unsealed | None:
        """Plan the next round from this state of the catalog."""
        reader, most = self._reader_position(), 1 if self._snapshot else self._most
        epochs = reader.epochs(view)
        if self._job is None:
            barriers = barriers_of_log(view, reader, epochs, most)
        else:
            barriers = barriers_of_job(view, reader, most, *self._job)
        if not isinstance(barriers, list):
            return barriers
        tables = [get_table(view, table_id, name) for table_id, name in self._tables]
        plans = [self._plan_table(view, table, barriers[-1].curr) for table in tables]
        if self._snapshot:
            return rows_round(barriers[0], plans)
        return cut_round(barriers, plans, [epochs.table(table_id).changes for table_id in reader.ids])

    def _plan_table(self, view: ReadTxn, table: TableDef, until: int) -> LogPlan:
        """Plan the changes of one table up to a barrier. A reader that has begun keeps its columns, and gets the
        changes before an alter that takes one of them away.
        """
        fixed = self._fixed.get(table.id)
        if self._snapshot:
            return plan_backfill(view, table, until, fixed)
        columns = Columns(fixed, whole=self._job is not None, cut=True)  # a job keeps its columns at every epoch
        return plan_unread(
            view, table, self._position, until, ADVICE, columns, by_commit=True, pre_images=self._pre_images
        )

    def _plan_held(self, tx: Txn) -> tuple[LogRound | None, int | None]:
        """Plan the round of the tables' rows; return it with the epoch after which its hold keeps the logs."""
        planned = self._plan(tx)
        return (planned, planned.barriers[0].curr) if isinstance(planned, LogRound) else (None, None)

    def _check_columns(self, view: ReadTxn) -> None:
        """Raise InvalidInput for a column that the first changes to read do not have."""
        for table in (get_table(view, table_id, name) for table_id, name in self._tables if name in self._columns):
            first = table.schema if self._snapshot else columns_after(view, table, self._position)
            LogPlan(self._fixed.get(table.id, first), None).schema(self._columns[table.name])


def _checked_names(
    tables: Sequence[TableDef], columns: Mapping[str, Sequence[str]] | None
) -> Mapping[str, Sequence[str]]:
    by_name = {table.name: table for table in tables}
    if not isinstance(columns or {}, Mapping):
        raise InvalidInput(f"columns is a dict {{table: columns}}, not {columns!r}")
    for name in columns or {}:
        if name not in by_name:
            raise InvalidInput(f"columns names table {name!r}, which is not read here: {', '.join(by_name)}")
    return dict(columns or {})


def _find_tables(view: ReadTxn, names: Sequence[str]) -> list[TableDef]:
    if isinstance(names, str) or not isinstance(names, Sequence) or not names:
        raise InvalidInput(f"tables is a list of at least one table name, not {names!r}")
    tables = [find_table(view, name) for name in names]
    if len({table.id for table in tables}) < len(tables):
        raise InvalidInput(f"tables names a table twice: {', '.join(names)}")
    return tables


def _find_job(view: ReadTxn, job: str | HasName, tables: Sequence[TableDef]) -> JobRecord:
    record = find_job(view, job if isinstance(job, str) else job.name)
    for table in tables:
        if table.id not in record.upstreams:
            raise InvalidInput(
                f"job {record.name!r} does not read table {table.name!r}, so it has no barriers for it; name its "
                "upstreams, or leave out job="
            )
    return record
