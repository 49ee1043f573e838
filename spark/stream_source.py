"""Spark stream source: a table's log as micro-batches of complete epochs, in order, without a copy of the log."""

# ruff: noqa: N802  # Spark calls these methods by its own names

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from epochlog.errors import InvalidInput
from epochlog.store.catalog.keys import consumer_key
from epochlog.store.catalog.protocol import ReadTxn, Txn
from epochlog.store.changelog.change_rows import CHANGE_FIELDS, CHANGE_TYPE
from epochlog.store.changelog.consumer import Consumer
from epochlog.store.changelog.consumers import open_consumer
from epochlog.store.changelog.log_plan import Columns, LogPlan, plan_backfill, plan_changes, schema_changed
from epochlog.store.changelog.log_position import SNAPSHOT, reach
from epochlog.store.env.log_events import CHANGES_LOST
from epochlog.store.metadata.commit_log import entries_of_log_epochs
from epochlog.store.metadata.consumer_record import check_consumer_name
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.metadata.lookups import get_table, get_version
from epochlog.store.retention.holds import Hold, put_holds
from epochlog.store.session.handle import Handle
from epochlog.store.session.leases import LEASE_MS
from epochlog.store.types.read_options import ReadOptions
from epochlog.store.types.schema import TableSchema

from .options import OF_BATCHES, Options, StoreLocation, Tasks, bool_option, int_option, present_options, text_option
from .partitions import ReadPartition, cut
from .stream_offsets import LATEST, BatchLimits, LogEpoch, Offset, parse_start, plan_until
from .versions import STREAM_LIMITS, ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow, needs
from .worker_gc import freeze_loaded_objects

_CHANGE_NAMES = tuple(field.name for field in CHANGE_FIELDS)


def batch_limits(options: Options) -> BatchLimits:
    """Return the limits of a stream's batches. Raises InvalidInput for any, if this Spark has none."""
    limits = BatchLimits(*(int_option(options, f"max{unit}PerTrigger", 1) for unit in ("Epochs", "Rows", "Bytes")))
    if limits.any and not STREAM_LIMITS:
        raise needs("a limit of a micro-batch, max…PerTrigger,", "4.2")
    return limits


@dataclass(frozen=True, slots=True)
class StreamRead:
    """Resolved options of one stream."""

    location: StoreLocation
    table_id: int
    table: TableSchema
    """Columns that it has from its start on."""
    start: str | int | None
    limits: BatchLimits
    consumer: str | None
    pre_images: bool
    fail_on_data_loss: bool
    tasks: Tasks

    @classmethod
    def from_options(cls, options: Options, location: StoreLocation, table_id: int, table: TableSchema) -> StreamRead:
        of_batches = present_options(options, OF_BATCHES)
        if of_batches:
            raise InvalidInput(
                f"option {of_batches[0]} is for a batch read of changes: a stream reads every change from "
                "startingVersion on, and ends with those that are there under trigger(availableNow=True)"
            )
        consumer = text_option(options, "consumerId")
        if consumer is not None:
            check_consumer_name(consumer)
        return cls(
            location,
            table_id,
            table,
            parse_start(text_option(options, "startingVersion")),
            batch_limits(options),
            consumer,
            bool_option(options, "preImages", False),
            bool_option(options, "failOnDataLoss", True),
            Tasks.from_options(options),
        )


class SplitPartition(InputPartition):
    """Spark's partition object around a ReadPartition."""

    def __init__(self, read_partition: ReadPartition) -> None:
        super().__init__(None)
        self.read_partition = read_partition


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stream reader in one long-lived process for each query. Spark creates it twice and pickles it, so it opens the
    store at first use and never pickles it.
    """

    def __init__(self, read: StreamRead, schema: pa.Schema, keys: pc.Expression | None = None) -> None:
        if read.pre_images and CHANGE_TYPE not in schema.names:
            raise InvalidInput(
                f"table {read.location.table}: preImages adds the rows before each update, which only {CHANGE_TYPE} "
                f"tells from the new ones: read it too, as in spark.readStream.table(…).select('*', '{CHANGE_TYPE}'), "
                "or leave out preImages"
            )
        self._read = read
        self._keys = keys  # filter on key columns
        self._schema = schema
        self._columns = tuple(name for name in schema.names if name not in _CHANGE_NAMES)
        self._target: int | None = None
        self._seen: dict[str, Any] | None = None
        """End of the query's last planned batch. Spark before 4.2 does not give it to `latestOffset`, but asks for the
        partitions from it to itself when a query starts again.
        """
        self._open_handle: Handle | None = None
        self._claimed_consumer: Consumer | None = None
        self._leases: dict[tuple[Offset, int], tuple[str, int]] = {}
        """Holder of the lease of each planned batch, by its begin and end; and the epoch after which it reads the log.
        """

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open_handle": None, "_claimed_consumer": None, "_leases": {}}

    # ---- offsets -------------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        freeze_loaded_objects()
        return self._handle().catalog.read(self._initial_offset).to_json()

    def _initial_offset(self, view: ReadTxn) -> Offset:
        start = self._read.start
        if isinstance(start, int):  # As in Delta, startingVersion is included.
            return Offset(self._read.table_id, max(start - 1, 0))
        if start == "earliest":
            table = self._table(view)
            return Offset(table.id, get_version(view, table.id, table.name).log_start)
        consumer_record = view.get(consumer_key(self._read.consumer)) if self._read.consumer and start is None else None
        # A new query of a known consumer resumes at the consumer's position.
        if consumer_record is not None and consumer_record["position"] is not None:
            return Offset(self._read.table_id, consumer_record["position"])
        return Offset(self._read.table_id, start=start or SNAPSHOT)

    def latestOffset(self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None) -> dict[str, Any]:
        freeze_loaded_objects()
        start = start or self._seen
        begin = self._offset(start or self.initialOffset())
        self._end_leases(begin.epoch)  # also of a query that waits: Spark commits a batch when it begins the next one
        limits = BatchLimits() if isinstance(limit, ReadAllAvailable) else self._read.limits

        def find_end(view: ReadTxn) -> Offset:
            table = self._table(view)
            if begin.start is not None:
                newest = get_version(view, table.id, table.name).max_committed_epoch
                return Offset(table.id, newest if self._target is None else min(newest, self._target))
            after = self._require_log(view, table, begin.epoch)
            until = plan_until(_log_epochs(view, table, after), after, limits, self._target)
            may_end = until > after and bool(table.schema.lineage)
            altered = self._plan(view, table, after, until, cut=True).altered if may_end else None
            if altered is not None:  # no batch spans an alter; the stream ends with the batch before it
                until = altered - 1
                if until <= after or next(_log_epochs(view, table, after)).epoch >= altered:
                    raise schema_changed(table.name, altered)
            return begin if until <= after else Offset(table.id, until)

        end = self._handle().catalog.read(find_end)
        if start is not None and end == begin:
            return start
        self._hold_log(begin, end)
        return end.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return a limit on rows if any limit is set; `latestOffset` applies the limits on epochs and bytes too."""
        return ReadMaxRows(self._read.limits.rows or 1 << 62) if self._read.limits.any else ReadAllAvailable()

    def reportLatestOffset(self) -> dict[str, Any]:
        return Offset(self._read.table_id, self._handle().catalog.read(self._newest)).to_json()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._handle().catalog.read(self._newest)

    def _newest(self, view: ReadTxn) -> int:
        table = self._table(view)
        return get_version(view, table.id, table.name).max_committed_epoch

    # ---- rows ----------------------------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        freeze_loaded_objects()
        begin, until = self._offset(start), self._offset(end).epoch
        self._seen = end
        self._consumer()
        if start == end or begin.start == LATEST:
            return []

        plan = self._plan_leased(begin, until)
        if CHANGE_TYPE not in self._schema.names:
            _refuse_deletes(plan)
        pre_images = self._read.pre_images
        partition = ReadPartition(
            self._handle().files, plan, self._schema, ReadOptions(self._columns, self._keys), pre_images=pre_images
        )
        return [SplitPartition(partition) for partition in cut(partition, self._read.tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SplitPartition)
        return partition.read_partition.read()

    def commit(self, end: dict[str, Any]) -> None:
        freeze_loaded_objects()
        offset, consumer = self._offset(end), self._consumer()
        if consumer is not None and offset.start is None:
            consumer.ack(offset.epoch)
        self._end_leases(offset.epoch)

    def stop(self) -> None:
        if self._claimed_consumer is not None:
            self._claimed_consumer.close()
            self._claimed_consumer = None
        if self._open_handle is not None:
            self._open_handle.close()
            self._open_handle, self._leases = None, {}

    def _plan_leased(self, begin: Offset, until: int) -> LogPlan:
        """Plan a batch whose files are held from before its first plan until its end. Its tasks may start late, and
        Spark may plan it again while tasks of an earlier plan run.
        """
        if (begin, until) not in self._leases:
            self._leases[begin, until] = self._lease(begin, until)
        _, after = self._leases[begin, until]

        def make_plan(view: ReadTxn) -> LogPlan:
            table = self._table(view)
            if begin.start == SNAPSHOT:
                return plan_backfill(view, table, until, self._read.table)
            return self._plan(view, table, after, max(after, until))

        return self._handle().catalog.read(make_plan)

    def _lease(self, begin: Offset, until: int) -> tuple[str, int]:
        """Hold the files that a batch reads, and its rows; return the holder, and the epoch after which it reads a log.

        The log is not held: Spark may end its reader without notice, and a truncation would wait for the lease's end.
        """
        handle, read = self._handle(), self._read
        holder = handle.new_holder("stream")

        def hold(tx: Txn) -> tuple[int, list[bytes]]:
            table, now_ms = self._table(tx), handle.catalog.now_ms()
            rows = begin.start == SNAPSHOT
            after = until if rows else self._require_log(tx, table, begin.epoch)
            looks_up = read.pre_images and not table.stores_images_after(after)
            held = after if rows or (looks_up and get_version(tx, table.id, table.name).keeps(after)) else None
            return after, put_holds(tx, [Hold(holder, table.id, None, held, now_ms, now_ms + LEASE_MS)])

        after, keys = handle.pin(hold)
        handle.leases.keep(holder, keys)
        return holder, after

    def _end_leases(self, epoch: int) -> None:
        """End the leases of the batches that end at or below an epoch: their tasks are done."""
        done = [batch for batch in self._leases if batch[1] <= epoch]
        if done:
            self._handle().leases.release_all([self._leases.pop(batch)[0] for batch in done])

    def _plan(self, view: ReadTxn, table: TableDef, after: int, until: int, *, cut: bool = False) -> LogPlan:
        """Plan changes in the columns of the stream's start. Raises SchemaChanged if a later alter takes one away."""
        columns = Columns(self._read.table, cut=cut)
        return plan_changes(view, table, after, until, columns=columns, pre_images=self._read.pre_images)

    # ---- the store -----------------------------------------------------------------------------------------------

    def _handle(self) -> Handle:
        if self._open_handle is None:
            self._open_handle = self._read.location.open()
        return self._open_handle

    def _table(self, view: ReadTxn) -> TableDef:
        return get_table(view, self._read.table_id, self._read.location.table)

    def _offset(self, offset: dict[str, Any]) -> Offset:
        return Offset.from_json(offset, self._read.table_id, self._read.location.table)

    def _require_log(self, view: ReadTxn, table: TableDef, after: int) -> int:
        """Return `after`, or the log's truncation mark above it if no change lies between or failOnDataLoss is false.
        Raises LogTruncated.
        """
        log_reach = reach(view, table, after)
        if log_reach.lost and self._read.fail_on_data_loss:
            hold = "set consumerId to hold the log in future"
            if self._handle().read_only:
                hold = "to keep the log longer, set TableOptions(log_retention=…) where the store may be written"
            raise log_reach.truncated(
                "Start again with startingVersion=snapshot and a new checkpoint, or set failOnDataLoss=false to skip "
                f"them; {hold}"
            )
        if log_reach.lost:
            self._handle().log(CHANGES_LOST, table=table.name, commits=log_reach.lost, after=after)
        return log_reach.after

    def _hold_log(self, begin: Offset, end: Offset) -> None:
        """Move the consumer's hold back to `begin`, so that it covers the log that the query has yet to read. Never
        move it forward here: `commit` releases the log.
        """
        consumer = self._consumer()
        if consumer is None:
            return
        consumer.check()
        if begin.start == SNAPSHOT:
            consumer.begin(end.epoch, snapshot=True)
            return
        hold_epoch = end.epoch if begin.start is not None else begin.epoch
        if consumer.position is None or consumer.position > hold_epoch:
            consumer.begin(hold_epoch)

    def _consumer(self) -> Consumer | None:
        """Return the query's consumer; claim it at first use, which fences an earlier run of the query. The position
        comes from the query's checkpoint; the consumer's record only holds the log.
        """
        name, read = self._read.consumer, self._read
        if self._claimed_consumer is None and name is not None:
            too_old = "error" if read.fail_on_data_loss else "snapshot"
            tables = [read.location.table]
            self._claimed_consumer = open_consumer(
                self._handle(), name, tables, too_old=too_old, states=read.pre_images
            )
        return self._claimed_consumer


def _refuse_deletes(plan: LogPlan) -> None:
    """Raise InvalidInput for changes with deletes, which look like rows with nulls without their change type."""
    deletes = sum(segment.deletes for group in plan.groups for segment in group.segments)
    if deletes:
        raise InvalidInput(
            f"table {plan.table.name}: the next changes of the stream have deletes ({deletes:,}), and the stream does "
            f"not read {CHANGE_TYPE}, which tells them from upserts: select it too, as in "
            f"spark.readStream.table(…).select('*', '{CHANGE_TYPE}'), and start with a new checkpoint"
        )


def _log_epochs(view: ReadTxn, table: TableDef, after: int) -> Iterator[LogEpoch]:
    """Yield the log epochs with rows past `after`, oldest first; read one log entry at a time."""
    for entry in entries_of_log_epochs(view, table.id, after):
        if entry.packed is not None:
            packed = entry.packed
            yield from (
                LogEpoch(epoch, rows, size)
                for epoch, rows, size in zip(
                    packed.epochs.tolist(), packed.committed_rows.tolist(), packed.bytes.tolist(), strict=True
                )
                if rows
            )
            continue
        for group in entry.groups:
            rows = sum(segment.rows for segment in group.segments)
            if rows and group.label > after:
                yield LogEpoch(group.label, rows, sum(segment.bytes for segment in group.segments))
