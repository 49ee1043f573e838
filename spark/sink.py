"""Spark sinks of `format("epochlog")`: batch writes, and exactly-once stream writes."""

# ruff: noqa: N803  # Spark calls these methods by its own names

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructField, StructType

from epochlog.errors import CheckpointMismatch, EpochlogError, InvalidInput, SchemaChanged, TxnOutcomeForgotten
from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.changelog.change_rows import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION
from epochlog.store.changelog.event_shape import WHOLE_ROWS, EventShape
from epochlog.store.commit.change import TableChange
from epochlog.store.commit.idempotency import (
    CommitTxn,
    check_pair,
    resolve_outcome,
)
from epochlog.store.commit.root_commit import RootCommit, refuse_unwritable
from epochlog.store.commit.stream_batches import NO_BATCH, StreamBatch
from epochlog.store.commit.table_ddl import alter_schema
from epochlog.store.commit.transaction import commit_changes
from epochlog.store.env.log_events import INTENT_LEFT
from epochlog.store.env.redact import redact_url
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.metadata.lookups import find_table
from epochlog.store.metadata.schema_change import SchemaChange, extended
from epochlog.store.metadata.table_settings import Settings
from epochlog.store.session.handle import Handle
from epochlog.store.session.write_intents import SEALED_MS
from epochlog.store.sst.segment import Segment
from epochlog.store.sst.segment_writer import WriteTarget
from epochlog.store.types.epoch import MAX_EPOCH
from epochlog.store.types.schema import TableSchema
from epochlog.store.types.widening import with_fields_of

from .catalog.sql_columns import check_types
from .event_options import check_event_options, parse_event_shape
from .frames import check_frame
from .micro_batch import BATCH_ID, QUERY_ID, MicroBatch, read_planned_ms
from .options import (
    READ,
    SAVE_OPTIONS,
    Options,
    StoreLocation,
    bool_option,
    int_option,
    parse_store_location,
    present_options,
    text_option,
)
from .overwrite import commit_overwrite
from .task_writer import write_batches
from .types import arrow_schema
from .versions import DataSourceStreamArrowWriter
from .worker_gc import freeze_loaded_objects


@dataclass(frozen=True, slots=True)
class Save:
    """Resolved options of one write, on the driver: the table and the transaction."""

    location: StoreLocation
    table: TableDef
    overwrite: bool
    app_id: str | None
    version: int | None
    new_checkpoint: bool = False
    """See `StreamBatch.new_checkpoint`."""
    is_committed: bool = False
    """True if the transaction was committed before, so that nothing is written."""
    shape: EventShape = WHOLE_ROWS
    merge: bool = False
    """True if missing nullable columns are filled with nulls."""
    checkpoint: str | None = None
    """Checkpoint location of a stream; None for a batch write."""
    within: MicroBatch | None = None
    """Micro-batch in whose foreachBatch the write was made, if the driver knew it."""

    def batch_txn(self, within: MicroBatch | None) -> StreamBatch | None:
        """Return the transaction of a batch write with a number; None if it has none. within: its micro-batch."""
        if self.app_id is None or self.version is None:
            return None
        if within is None:
            return StreamBatch(self.app_id, self.version, None, batch=NO_BATCH)
        chosen = None if within.batch == self.version else within.batch
        return StreamBatch(
            self.app_id, self.version, within.query, within.planned_ms, self.new_checkpoint, batch=chosen
        )

    def target(self) -> WriteTarget:
        """Return the target of the tasks, under a new write intent. The intent has a long lease, since no store stays
        open to renew it.
        """
        with closing(self.location.open()) as handle:
            return handle.write_target(self.table, handle.intents.register("spark", SEALED_MS))


def resolve_save(options: Options, schema: StructType, overwrite: bool, *, streaming: bool = False) -> Save:
    """Resolve the options of a write. Raises typed errors, before any task runs, if the options or the frame's columns
    are invalid, or the transaction can no longer be committed.
    """
    freeze_loaded_objects()
    _refuse_options(options)
    app_id, version = text_option(options, "txnAppId"), int_option(options, "txnVersion")
    check_pair(None if app_id is None else (app_id, version or 0))
    new_checkpoint = bool_option(options, "newCheckpoint", False)
    # A batch that began with a new checkpoint is decided at its commit. A pair that has landed from another query too,
    # since only the commit is certain to know its query.
    txn = None if app_id is None or version is None or new_checkpoint else (app_id, version)
    checkpoint, within = text_option(options, "checkpointLocation"), MicroBatch.parse(options.get("microBatch"))
    location = parse_store_location(options, SAVE_OPTIONS)
    shape = parse_event_shape(options, overwrite=overwrite)

    def resolve(view: ReadTxn) -> tuple[TableDef, bool]:
        table = find_table(view, location.table)
        is_committed = resolve_outcome(view, txn, [table.id]) is not None
        if not is_committed:
            refuse_unwritable(view, table)
        return table, is_committed

    merge = bool_option(options, "mergeSchema", False)
    with closing(location.open()) as handle:
        table, is_committed = handle.catalog.read(resolve)
        columns = _columns_at_start(table, int_option(options, "schemaVersion"), streaming=streaming)
        check_event_options(options, columns, shape)
        if merge and not is_committed:
            table, columns = _add_columns(handle, table, columns, schema, shape)
    check_frame(columns, schema, shape=shape, filled=merge)
    table = replace(table, schema=columns)
    return Save(
        *(location, table, overwrite, app_id, version, new_checkpoint, is_committed, shape, merge, checkpoint, within)
    )


def _columns_at_start(table: TableDef, version: int | None, *, streaming: bool) -> TableSchema:
    """Return the table's columns in the version that it had when the write or stream began. Spark resolves the sink of
    a stream again for each micro-batch, and by then a name may belong to another column; the commit finds columns by
    id.
    """
    if version is not None:
        return table.schema.at(version)
    if streaming and table.schema.version:
        raise SchemaChanged(
            f"table {table.name!r} was altered at epoch {table.schema.version}, and this stream does not say with "
            "which columns it began: start it in a process that can open the store, after epochlog.register(spark)"
        )
    return table.schema


def _add_columns(
    handle: Handle, table: TableDef, columns: TableSchema, schema: StructType, shape: EventShape
) -> tuple[TableDef, TableSchema]:
    """Add the columns that the frame writes and the table lacks, before any row is written; return the table, and the
    columns to write. Raises InvalidInput, before the table is altered, if the other columns cannot be written. The
    caller checks the frame with the columns to write: another alter, such as a rename, may have come in between.
    """
    known = {*columns.schema.names, CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP}
    written = set(shape.written(schema.names))
    new_columns = StructType([field for field in schema if field.name in written and field.name not in known])
    check_types(table.name, new_columns)
    added = [field.with_nullable(True) for field in arrow_schema(new_columns)]
    by_lower_case = {name.lower(): name for name in known}
    for field in added:
        if field.name.lower() in by_lower_case:
            raise InvalidInput(
                f"table {table.name!r} has a column {by_lower_case[field.name.lower()]!r}, and the frame "
                f"{field.name!r}, which is the same name for Spark: rename it in the frame, so that mergeSchema does "
                "not add it"
            )
    after, widened = table, _with_more_fields(columns, [field for field in schema if field.name in written])
    if added or widened:
        changed = {*widened, *(field.name for field in added)}
        kept = StructType([field for field in schema if field.name not in changed])
        check_frame(columns, kept, shape=shape, filled=True)
        after = alter_schema(handle, table, SchemaChange.of(table.name, added, None, None, widened), Settings())
    return after, extended(after.schema, columns.version, MAX_EPOCH, widened=True)


def _with_more_fields(columns: TableSchema, fields: Sequence[StructField]) -> dict[str, pa.DataType]:
    """Return the types of the columns whose structs have more fields in the frame, with these fields."""
    widened: dict[str, pa.DataType] = {}
    for field in arrow_schema(StructType([field for field in fields if field.name in columns.schema.names])):
        if pa.types.is_nested(field.type):
            kind = columns.schema.field(field.name).type
            if (wider := with_fields_of(kind, field.type)) != kind:
                check_types(columns.name, StructType([each for each in fields if each.name == field.name]))
                widened[field.name] = wider
    return widened


def present_version(options: Options) -> int:
    """Return the version of the table's columns now, for a stream that begins."""
    location = parse_store_location(options, SAVE_OPTIONS)
    with closing(location.open()) as handle:
        return handle.catalog.read(lambda view: find_table(view, location.table)).schema.version


def _refuse_options(options: Options) -> None:
    """Raise InvalidInput for options that this sink does not implement."""
    read_options = present_options(options, READ)
    if read_options:
        raise InvalidInput(
            f"option {read_options[0]} is for reading and has no effect on writes; write to a path and table without "
            "read options"
        )
    if bool_option(options, "asyncProgressTrackingEnabled", False):
        raise InvalidInput(
            "asyncProgressTrackingEnabled skips commits of micro-batches, so no write would be exactly once; leave it "
            "out"
        )
    if (
        text_option(options, "replaceWhere")
        or (text_option(options, "partitionOverwriteMode") or "").lower() == "dynamic"
    ):
        raise InvalidInput(
            "overwrite replaces all rows of the table, so it takes neither replaceWhere nor dynamic "
            "partitionOverwriteMode; append the new rows, and the rows to delete with _change_type 'delete'"
        )


@dataclass
class Written(WriterCommitMessage):
    """Result of one task: its segments, oldest first, their write intent, and query and number of the micro-batch in
    which the task ran.
    """

    segments: tuple[Segment, ...]
    intent: str | None = None
    query_id: str | None = None
    batch_id: str | None = None


Messages = list[WriterCommitMessage | None]


class _Sink:
    """Base of both sinks. Spark pickles the planning sink for its tasks, and pickling registers their write intent. The
    committing process unpickles that sink for a batch, and creates a new one for a micro-batch.
    """

    def __init__(self, save: Save) -> None:
        self._save = save
        self._target: WriteTarget | None = None

    def __getstate__(self) -> dict[str, Any]:
        if self._target is None and not self._save.is_committed:
            self._target = self._save.target()
        return dict(self.__dict__)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        query_id, batch_id = _micro_batch()
        if self._target is None:  # The transaction was committed before.
            for _ in iterator:  # Spark kills a worker that does not read all rows.
                pass
            return Written((), None, query_id, batch_id)
        segments = write_batches(self._target, iterator, shape=self._save.shape, fill=self._save.merge)
        return Written(tuple(segments), self._target.intent, query_id, batch_id)

    def _commit(self, messages: Sequence[Written], txn: CommitTxn | None) -> None:
        """Commit the segments of the tasks, if there are any, and end their intents."""
        if self._save.is_committed:  # The earlier outcome stands, even if its record has expired.
            if isinstance(txn, StreamBatch):
                self._require_landed(txn)
            return
        segments = tuple(segment for message in messages for segment in message.segments)
        change, ending = TableChange(self._save.table, segments), self._intents(messages)
        with closing(self._save.location.open()) as handle:
            if self._save.overwrite:
                commit_overwrite(handle, change, txn=txn, ending=ending)
            elif segments or txn is not None:
                commit_changes(handle, [change], RootCommit(txn=txn, ending=ending))
            else:
                handle.intents.end(ending)

    def _require_landed(self, batch: StreamBatch) -> None:
        """Raise CheckpointMismatch if another batch of this number has landed: then the tasks left the rows out."""
        try:
            with closing(self._save.location.open()) as handle:
                landed = handle.catalog.read(lambda view: resolve_outcome(view, batch, [self._save.table.id]))
        except TxnOutcomeForgotten:
            if batch.batch == NO_BATCH:  # a pair outside of any micro-batch: what has landed is its own
                return
            raise
        if landed is None:
            raise CheckpointMismatch(
                f"stream {batch.app!r}: batch {batch.number} of an earlier checkpoint has landed, so the rows of this "
                "one were not written. Set .option('newCheckpoint', 'true'), as when the stream was started anew"
            )

    def _abort(self, messages: Messages) -> None:
        """End the intents, so that vacuum deletes their files and no commit takes them. Delete no file here, since an
        attempt of a task may still write. An intent that cannot be ended now expires.
        """
        freeze_loaded_objects()
        try:
            with closing(self._save.location.open()) as handle:
                handle.intents.end(self._intents(_task_results(messages)))
        except EpochlogError as error:
            INTENT_LEFT.log(store=redact_url(self._save.location.path), table=self._save.table.name, error=error)

    def _intents(self, messages: Sequence[Written]) -> set[str]:
        planned = () if self._target is None else (self._target.intent,)
        return {*planned, *(message.intent for message in messages if message.intent is not None)}


def _micro_batch() -> tuple[str | None, str | None]:
    """Return the query id and the number of the micro-batch in which this task runs; None for each in a batch."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        return None, None
    return context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)


def _task_results(messages: Messages) -> list[Written]:
    """Return the results of the tasks in the order of their partitions. A failed task has none, and Spark does not
    commit then.
    """
    return [message for message in messages if isinstance(message, Written)]


class BatchSink(_Sink, DataSourceArrowWriter):
    """Sink of `df.write`: append upserts, overwrite replaces all rows of the table, both in one commit."""

    def __init__(self, save: Save) -> None:
        if (save.app_id is None) != (save.version is None):
            raise InvalidInput(
                "txnAppId and txnVersion go together: set the application, and its number for this write"
            )
        super().__init__(save)

    def commit(self, messages: Messages) -> None:
        freeze_loaded_objects()
        results = _task_results(messages)
        self._commit(results, self._txn(results))

    def _txn(self, results: Sequence[Written]) -> CommitTxn | None:
        """Return the transaction of this write. In foreachBatch it is of that micro-batch, which the driver knew, or
        else the tasks.
        """
        ran_in = (MicroBatch(r.query_id, int(r.batch_id)) for r in results if r.query_id and r.batch_id)
        within = self._save.within or next(ran_in, None)
        if self._save.new_checkpoint and (within is None or self._save.version is None):
            raise InvalidInput(
                "newCheckpoint is for streams: for writeStream, and in foreachBatch for a write with txnAppId and "
                "txnVersion (in Spark Connect, Spark does not tell the query of such a write); leave it out"
            )
        return self._save.batch_txn(within)

    def abort(self, messages: Messages) -> None:
        self._abort(messages)


class StreamSink(_Sink, DataSourceStreamArrowWriter):
    """Sink of `df.writeStream`: each micro-batch is one commit with the txn (query id, batch id), so a replay repeats
    no write.

    The query id is in the checkpoint's `metadata`. If the checkpoint goes back under its old id, as a restored or
    partly deleted one does, its next batch raises CheckpointMismatch, unless it has the number of the newest one and
    the checkpoint lies in no local folder, so that the time of its plan is unknown.
    """

    def __init__(self, save: Save) -> None:
        if save.version is not None:
            raise InvalidInput("txnVersion is for batch writes; leave it out, since a stream numbers its own batches")
        super().__init__(save)

    def commit(self, messages: Messages, batchId: int) -> None:
        freeze_loaded_objects()
        results = _task_results(messages)
        if not self._save.overwrite and not any(message.segments for message in results):
            self._commit(results, None)  # An empty micro-batch needs no txn: its replay is empty too.
            return
        query_id = next((message.query_id for message in results if message.query_id), None)
        app_id = self._save.app_id or query_id
        if app_id is None:
            raise InvalidInput("Spark passed no query id for this micro-batch; set .option('txnAppId', …)")
        planned_ms = read_planned_ms(self._save.checkpoint, batchId)
        self._commit(results, StreamBatch(app_id, batchId, query_id, planned_ms, self._save.new_checkpoint))

    def abort(self, messages: Messages, batchId: int) -> None:
        self._abort(messages)
