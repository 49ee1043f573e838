"""Spark stream source: a table's log as micro-batches of whole epochs, in order, without a copy being made."""

# ruff: noqa: N802  # Spark calls these methods by its own names

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from epochlog.store.catalog.keys import after_prefix, consumer_key, log_key
from epochlog.store.catalog.protocol import View
from epochlog.store.changelog.change_rows import CHANGE_FIELDS
from epochlog.store.changelog.consumers import Consumer, open_consumer
from epochlog.store.changelog.log_plan import LogPlan, plan_backfill, plan_changes
from epochlog.store.changelog.log_position import SNAPSHOT, reach
from epochlog.store.metadata.consumer_record import check_consumer_name
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.metadata.lookups import get_table, get_version
from epochlog.store.metadata.version import LogEntry
from epochlog.store.session.handle import Handle
from epochlog.store.types.read_options import ReadOptions

from .options import Options, StoreLocation, Tasks, text, truth, whole
from .partitions import ReadPartition, cut
from .stream_offsets import LATEST, BatchLimits, LogEpoch, Offset, parse_start, plan_until
from .worker_gc import settle

_log = logging.getLogger("epochlog")
_CHANGE_NAMES = tuple(field.name for field in CHANGE_FIELDS)


@dataclass(frozen=True, slots=True)
class StreamRead:
    """Resolved options of one stream."""

    place: StoreLocation
    table_id: int
    start: str | int | None
    limits: BatchLimits
    consumer: str | None
    pre_images: bool
    fail_on_data_loss: bool
    tasks: Tasks

    @classmethod
    def from_options(cls, options: Options, place: StoreLocation, table_id: int) -> StreamRead:
        consumer = text(options, "consumerId")
        if consumer is not None:
            check_consumer_name(consumer)
        limits = BatchLimits(*(whole(options, f"max{what}PerTrigger", 1) for what in ("Epochs", "Rows", "Bytes")))
        return cls(
            place,
            table_id,
            parse_start(text(options, "startingVersion")),
            limits,
            consumer,
            truth(options, "preImages", False),
            truth(options, "failOnDataLoss", True),
            Tasks.from_options(options),
        )


class PiecePartition(InputPartition):
    """Piece of a read as Spark hands it to a task."""

    def __init__(self, piece: ReadPartition) -> None:
        super().__init__(None)
        self.piece = piece


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stream reader that lives in one long process per query. Spark makes it twice and pickles it: the store is opened
    at first use and never pickled.
    """

    def __init__(self, read: StreamRead, wanted: pa.Schema, keys: pc.Expression | None = None) -> None:
        self._read = read
        self._keys = keys  # a filter of key columns
        self._wanted = wanted
        self._columns = tuple(name for name in wanted.names if name not in _CHANGE_NAMES)
        self._target: int | None = None
        self._opened: Handle | None = None
        self._claimed: Consumer | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None, "_claimed": None}

    # ---- offsets -------------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        settle()
        return self._handle().catalog.read(self._initial).to_json()

    def _initial(self, view: View) -> Offset:
        start = self._read.start
        if isinstance(start, int):  # named as in Delta: the first version to read, itself included
            return Offset(self._read.table_id, max(start - 1, 0))
        if start == "earliest":
            table = self._table(view)
            return Offset(table.id, get_version(view, table.id, table.name).log_start)
        known = view.get(consumer_key(self._read.consumer)) if self._read.consumer and start is None else None
        if known is not None and known["position"] is not None:  # a new query under an old name goes on
            return Offset(self._read.table_id, known["position"])
        return Offset(self._read.table_id, start=start or SNAPSHOT)

    def latestOffset(self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None) -> dict[str, Any]:
        settle()
        begin = self._offset(start or self.initialOffset())
        limits = BatchLimits() if isinstance(limit, ReadAllAvailable) else self._read.limits

        def body(view: View) -> Offset:
            table = self._table(view)
            if begin.start is not None:
                newest = get_version(view, table.id, table.name).max_committed_epoch
                return Offset(table.id, newest if self._target is None else min(newest, self._target))
            after = self._reachable(view, table, begin.epoch)
            until = plan_until(_log_epochs(view, table, after), after, limits, self._target)
            return begin if until <= after else Offset(table.id, until)

        end = self._handle().catalog.read(body)
        if start is not None and end == begin:
            return start
        self._hold(begin, end)
        return end.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Tell Spark only that there is a limit; latestOffset applies them all, and knows epochs and bytes too."""
        return ReadMaxRows(self._read.limits.rows or 1 << 62) if self._read.limits.any else ReadAllAvailable()

    def reportLatestOffset(self) -> dict[str, Any]:
        return Offset(self._read.table_id, self._handle().catalog.read(self._newest)).to_json()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._handle().catalog.read(self._newest)

    def _newest(self, view: View) -> int:
        table = self._table(view)
        return get_version(view, table.id, table.name).max_committed_epoch

    # ---- rows ----------------------------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        settle()
        begin, until = self._offset(start), self._offset(end).epoch
        self._consumer()
        if start == end or begin.start == LATEST:
            return []

        def body(view: View) -> LogPlan:
            table = self._table(view)
            if begin.start == SNAPSHOT:
                return plan_backfill(view, table, until)
            after = self._reachable(view, table, begin.epoch)
            return plan_changes(view, table, after, max(after, until))

        plan = self._handle().catalog.read(body)
        pre_images = self._read.pre_images
        piece = ReadPartition(
            self._handle().files, plan, self._wanted, ReadOptions(self._columns, self._keys), pre_images=pre_images
        )
        return [PiecePartition(piece) for piece in cut(piece, self._read.tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, PiecePartition)
        return partition.piece.read()

    def commit(self, end: dict[str, Any]) -> None:
        settle()
        offset, consumer = self._offset(end), self._consumer()
        if consumer is not None and offset.start is None:
            consumer.ack(offset.epoch)

    def stop(self) -> None:
        if self._claimed is not None:
            self._claimed.close()
            self._claimed = None
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    # ---- the store -----------------------------------------------------------------------------------------------

    def _handle(self) -> Handle:
        if self._opened is None:
            self._opened = self._read.place.open()
        return self._opened

    def _table(self, view: View) -> TableDef:
        return get_table(view, self._read.table_id, self._read.place.table)

    def _offset(self, offset: dict[str, Any]) -> Offset:
        return Offset.from_json(offset, self._read.table_id, self._read.place.table)

    def _reachable(self, view: View, table: TableDef, after: int) -> int:
        """Return `after`, or the log's truncation mark above it if no change lies between (or failOnDataLoss is false).
        Raises LogTruncated.
        """
        found = reach(view, table, after)
        if found.lost and self._read.fail_on_data_loss:
            raise found.truncated(
                "Start anew with startingVersion=snapshot and a new checkpoint, or set failOnDataLoss=false to go on "
                "without them; a consumerId would have held them"
            )
        if found.lost:
            _log.warning("table %s: %d commits or more after %d were truncated unread", table.name, found.lost, after)
        return found.after

    def _hold(self, begin: Offset, end: Offset) -> None:
        """Hold for the named consumer the log that a query going on from `begin` has yet to read; a consumer whose
        position is at or below that keeps it, for no log may be released before it is committed.
        """
        consumer = self._consumer()
        if consumer is None:
            return
        consumer.check()
        if begin.start == SNAPSHOT:
            consumer.begin(end.epoch, snapshot=True)
            return
        at = end.epoch if begin.start is not None else begin.epoch
        if consumer.position is None or consumer.position > at:
            consumer.begin(at)

    def _consumer(self) -> Consumer | None:
        """Return the consumer that the query was given, claimed when this process first needs it: an earlier run of the
        query that still goes on somewhere is fenced. The query's own checkpoint has its position; the record holds the
        log.
        """
        name, read = self._read.consumer, self._read
        if self._claimed is None and name is not None:
            too_old = "error" if read.fail_on_data_loss else "snapshot"
            tables = [read.place.table]
            self._claimed = open_consumer(self._handle(), name, tables, too_old=too_old, states=read.pre_images)
        return self._claimed


def _log_epochs(view: View, table: TableDef, after: int) -> Iterator[LogEpoch]:
    """Yield the log epochs with rows past `after`, oldest first, read one entry at a time."""
    prefix = b"log/%08x/" % table.id
    for _, record in view.scan(log_key(table.id, after + 1), after_prefix(prefix)):
        for group in LogEntry.from_record(record).groups:
            rows = sum(segment.rows for segment in group.segments)
            if rows and group.label > after:
                yield LogEpoch(group.label, rows, sum(segment.bytes for segment in group.segments))
