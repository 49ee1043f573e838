"""Spark sinks: batch and stream writes, each micro-batch exactly once, and `sink` for update mode and several
tables.
"""

# ruff: noqa: N803  # Spark calls these methods by its own names

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from epochlog.errors import EpochlogError, InvalidInput
from epochlog.store.catalog.protocol import View
from epochlog.store.commit.edits import TableEdit
from epochlog.store.commit.idempotency import TxnPair, check_pair, find_committed_epoch, resolve_outcome
from epochlog.store.commit.root_commit import commit_or_delete, commit_root, refuse_unwritable
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.metadata.lookups import find_table
from epochlog.store.session.handle import Handle, open_handle
from epochlog.store.session.write_intents import SEALED_MS
from epochlog.store.sst.segment import Segment
from epochlog.store.sst.segment_writer import WriteTarget

from .frames import FrameWriter, check_frame
from .options import READ, Options, StoreLocation, given, place_of, text, truth, whole
from .overwrite import commit_overwrite
from .task_writer import write_batches
from .worker_gc import settle

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_log = logging.getLogger("epochlog")


@dataclass(frozen=True, slots=True)
class Save:
    """Resolved options of one write, on the driver: the table, and the transaction. is_committed: that transaction has
    been committed before, so there is nothing left to write.
    """

    place: StoreLocation
    table: TableDef
    overwrite: bool
    app_id: str | None
    version: int | None
    is_committed: bool = False

    def target(self) -> WriteTarget:
        """Return the target of the tasks, under an intent of their own: no store stays open that could keep the intent
        alive.
        """
        with closing(self.place.open()) as handle:
            return handle.write_target(self.table, handle.intents.register("spark", SEALED_MS))


def resolve_save(options: Options, schema: StructType, overwrite: bool) -> Save:
    """Resolve the options of a write. Raises typed errors, before any task runs, when the options or the frame's
    columns cannot be written, or the transaction can land no more.
    """
    settle()
    _refuse_options(options)
    app_id, version = text(options, "txnAppId"), whole(options, "txnVersion")
    check_pair(None if app_id is None else (app_id, version or 0))
    txn = None if app_id is None or version is None else (app_id, version)
    place = place_of(options)

    def look(view: View) -> tuple[TableDef, bool]:
        table = find_table(view, place.table)
        is_committed = resolve_outcome(view, txn, [table.id]) is not None
        if not is_committed:
            refuse_unwritable(view, table)
        return table, is_committed

    with closing(place.open()) as handle:
        table, is_committed = handle.catalog.read(look)
    check_frame(table.schema, schema)
    return Save(place, table, overwrite, app_id, version, is_committed)


def _refuse_options(options: Options) -> None:
    """Raise InvalidInput for options that this sink would not honour."""
    reading = given(options, READ)
    if reading:
        raise InvalidInput(
            f"option {reading[0]} is for reading; a write through a view made with it would not do what it says. Write "
            "to a path and table without read options"
        )
    if truth(options, "asyncProgressTrackingEnabled", False):
        raise InvalidInput(
            "asyncProgressTrackingEnabled skips commits of micro-batches, so nothing would be exactly once; "
            "leave it out"
        )
    if text(options, "replaceWhere") or (text(options, "partitionOverwriteMode") or "").lower() == "dynamic":
        raise InvalidInput(
            "overwrite replaces all that the table holds, never a part of it, so replaceWhere and dynamic "
            "partitionOverwriteMode are refused; append the new rows, with a column _change_type that is 'delete' for "
            "those to go"
        )


@dataclass
class Written(WriterCommitMessage):
    """Result of one task: its segments in the order in which later wins, their intent, and the id of its stream's
    query.
    """

    segments: tuple[Segment, ...]
    intent: str | None = None
    query_id: str | None = None


Messages = list[WriterCommitMessage | None]


class _Sink:
    """Base of both sinks. Spark pickles the one that plans, for its tasks, and pickling registers the intent under
    which they write. The committing process unpickles it for a batch, and makes one of its own for a micro-batch.
    """

    def __init__(self, save: Save) -> None:
        self._save = save
        self._target: WriteTarget | None = None

    def __getstate__(self) -> dict[str, Any]:
        if self._target is None and not self._save.is_committed:
            self._target = self._save.target()
        return dict(self.__dict__)

    def _write(self, batches: Iterator[pa.RecordBatch], query_id: str | None = None) -> Written:
        if self._target is None:  # landed before
            for _ in batches:  # Spark gives up a worker that has not taken all
                pass
            return Written(())
        return Written(tuple(write_batches(self._target, batches)), self._target.intent, query_id)

    def _commit(self, messages: Sequence[Written], txn: TxnPair | None) -> None:
        """Commit the segments of the tasks, if there are any; their intents have ended either way."""
        if self._save.is_committed:
            return  # that outcome stands, whether or not it is still known
        segments = tuple(segment for message in messages for segment in message.segments)
        edit, ending = TableEdit(self._save.table.id, self._save.table.name, segments), self._intents(messages)
        with closing(self._save.place.open()) as handle:
            if self._save.overwrite:
                commit_overwrite(handle, self._save.table, edit, txn=txn, ending=ending)
            elif segments or txn is not None:
                commit_root(handle, [edit], txn=txn, ending=ending)
            else:
                handle.intents.end(ending)

    def _abort(self, messages: Messages) -> None:
        """End the intents: their files can be committed no more, and vacuum deletes them. No file is deleted here, for
        an attempt of a task may write still. An intent that cannot be ended now runs out.
        """
        settle()
        try:
            with closing(self._save.place.open()) as handle:
                handle.intents.end(self._intents(_known(messages)))
        except EpochlogError as error:
            _log.warning("what a given up write has left is kept until its intent runs out: %s", error)

    def _intents(self, messages: Sequence[Written]) -> set[str]:
        own = () if self._target is None else (self._target.intent,)
        return {*own, *(message.intent for message in messages if message.intent is not None)}


def _known(messages: Messages) -> list[Written]:
    """Return the tasks' messages in the order of their partitions. A task without a message has failed, and Spark does
    not commit then.
    """
    return [message for message in messages if isinstance(message, Written)]


class BatchSink(_Sink, DataSourceArrowWriter):
    """Sink of `df.write`: append upserts, overwrite replaces the table's content, both in one commit."""

    def __init__(self, save: Save) -> None:
        if (save.app_id is None) != (save.version is None):
            raise InvalidInput("txnAppId and txnVersion go together: the application, and its number for this write")
        super().__init__(save)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return self._write(iterator)

    def commit(self, messages: Messages) -> None:
        settle()
        app_id, version = self._save.app_id, self._save.version
        self._commit(_known(messages), None if app_id is None or version is None else (app_id, version))

    def abort(self, messages: Messages) -> None:
        self._abort(messages)


class StreamSink(_Sink, DataSourceStreamArrowWriter):
    """Sink of `df.writeStream`: each micro-batch is one commit under (query id, batch id), so a replay finds it done.

    The query id lives in the checkpoint's `metadata`. A checkpoint is deleted whole or not at all: with its offsets
    gone and its metadata kept, Spark counts batches from 0 again under the same id, and new rows would pass for
    replayed ones.
    """

    def __init__(self, save: Save) -> None:
        if save.version is not None:
            raise InvalidInput("txnVersion is for batch writes; a stream numbers its own batches")
        super().__init__(save)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        from pyspark import TaskContext

        context = TaskContext.get()
        query_id = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
        return self._write(iterator, query_id)

    def commit(self, messages: Messages, batchId: int) -> None:
        settle()
        known = _known(messages)
        if not self._save.overwrite and not any(message.segments for message in known):
            self._commit(known, None)  # an empty micro-batch leaves no trace; replayed, it is empty again
            return
        app_id = self._save.app_id or next((message.query_id for message in known if message.query_id), None)
        if app_id is None:
            raise InvalidInput("Spark did not say which query this micro-batch belongs to; set .option('txnAppId', …)")
        self._commit(known, (app_id, batchId))

    def abort(self, messages: Messages, batchId: int) -> None:
        self._abort(messages)


# ---- foreachBatch --------------------------------------------------------------------------------------------------

Shape = Callable[["DataFrame"], "DataFrame"]


def sink(
    tables: Mapping[str, Shape | None], *, app_id: str, path: str, catalog: str | None = None, volatile: bool = False
) -> Callable[[DataFrame, int], None]:
    """Make a function for `writeStream.foreachBatch`: each micro-batch goes to several tables in one transaction,
    exactly once.

    tables: {table: function from the micro-batch to the rows of that table, or None for the micro-batch as it is}; a
    column `_change_type` tells deletes. app_id: a name of this stream that outlives restarts; with the batch id it
    identifies the transaction. Works in every output mode, update mode too. A replayed batch is drained, so that
    stateful operators keep their state, and written nowhere. Raises TableNotFound, NotWritable, InvalidInput at once.
    """
    if not isinstance(tables, Mapping) or not tables:
        raise InvalidInput("sink takes a dict {table: function} with at least one table")
    check_pair((app_id, 0))
    place = partial(open_handle, path, catalog, create=False, volatile=volatile)
    with closing(place()) as handle:
        found = {name: handle.catalog.read(lambda view, name=name: _writable(view, name)) for name in tables}

    def write(frame: DataFrame, batch_id: int) -> None:
        with closing(place()) as handle:
            _write_batch(handle, frame, (app_id, batch_id), [(found[name], shape) for name, shape in tables.items()])

    return write


def _writable(view: View, name: str) -> TableDef:
    table = find_table(view, name)
    refuse_unwritable(view, table)
    return table


def _write_batch(
    handle: Handle, frame: DataFrame, txn: TxnPair, tables: Sequence[tuple[TableDef, Shape | None]]
) -> None:
    if find_committed_epoch(handle, txn, [table.id for table, _ in tables]) is not None:
        frame.write.format("noop").mode("overwrite").save()
        return
    shared = len(tables) > 1
    if shared:
        frame.persist()
    writers = [FrameWriter(handle.write_target(table)) for table, _ in tables]
    try:
        for writer, (_, shape) in zip(writers, tables, strict=True):
            writer.write(frame if shape is None else shape(frame))
        edits = [
            TableEdit(table.id, table.name, tuple(writer.finish()))
            for writer, (table, _) in zip(writers, tables, strict=True)
        ]
    except BaseException:
        for writer in writers:
            writer.discard()
        raise
    finally:
        if shared:
            frame.unpersist()
    if any(edit.segments for edit in edits):
        commit_or_delete(handle, edits, txn=txn)
