"""The Spark sinks: batch and stream writes, each micro-batch exactly once, and `sink` for update mode and several
tables.
"""

# ruff: noqa: N803  # Spark calls these methods by its own names

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from ..errors import InvalidInput
from ..exchange.frames import FrameWriter, check_frame
from ..exchange.spark_options import READ, Options, Place, given, place_of, text, truth, whole
from ..exchange.task_writer import write_batches
from ..exchange.worker import settle
from ..store.catalog import View
from ..store.commit import TableEdit, commit_root, refuse_unwritable
from ..store.definitions import TableDef, find_table
from ..store.handle import Handle, open_handle
from ..store.intents import SEALED_MS
from ..store.outcomes import TxnPair, check_pair, landed
from ..store.segment import Segment
from ..store.writer import WriteTarget, write_target
from .overwrite import commit_overwrite

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class Save:
    """What a write means, found out once on the driver: the table, where its segments go, and the transaction it is."""

    place: Place
    target: WriteTarget
    overwrite: bool
    app_id: str | None
    version: int | None

    def edit(self, segments: Sequence[Segment]) -> TableEdit:
        return TableEdit(self.target.table_id, self.target.schema.name, tuple(segments), operation="upsert")


def resolve_save(options: Options, schema: StructType, overwrite: bool) -> Save:
    """Raises typed errors, before any task runs, when the options or the frame's columns cannot be written."""
    settle()
    reading = given(options, READ)
    if reading:
        raise InvalidInput(
            f"option {reading[0]} is for reading; a write through a view made with it would not do what it "
            "says. Write to a path and table "
            "without read options"
        )
    if truth(options, "asyncProgressTrackingEnabled", False):
        raise InvalidInput(
            "asyncProgressTrackingEnabled skips commits of micro-batches, so nothing would be exactly once; "
            "leave it out"
        )
    app_id, version = text(options, "txnAppId"), whole(options, "txnVersion")
    place = place_of(options)
    handle = place.open()
    try:
        table = handle.catalog.read(lambda view: _writable(view, place.table))
        target = write_target(handle, table, handle.intents.register("spark", SEALED_MS))
    finally:
        handle.close()
    check_frame(table.schema, schema)
    return Save(place, target, overwrite, app_id, version)


def _writable(view: View, name: str) -> TableDef:
    table = find_table(view, name)
    refuse_unwritable(view, table)
    return table


@dataclass
class Written(WriterCommitMessage):
    """What one task wrote, in the order in which later wins; and which stream's batch it was, as the task saw it."""

    segments: tuple[Segment, ...]
    query_id: str | None = None


def _segments(messages: Sequence[WriterCommitMessage | None]) -> list[Segment]:
    """In the order of the tasks' partitions. A task without a message has failed, and Spark does not commit then."""
    return [segment for message in messages if isinstance(message, Written) for segment in message.segments]


class BatchSink(DataSourceArrowWriter):
    """`df.write`: append upserts, overwrite replaces the table's content, both in one commit."""

    def __init__(self, save: Save) -> None:
        if (save.app_id is None) != (save.version is None):
            raise InvalidInput("txnAppId and txnVersion go together: the application, and its number for this write")
        self._save = save
        check_pair(self._txn)

    @property
    def _txn(self) -> TxnPair | None:
        app_id, version = self._save.app_id, self._save.version
        return None if app_id is None or version is None else (app_id, version)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return Written(tuple(write_batches(self._save.target, iterator)))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        settle()
        handle = self._save.place.open()
        try:
            edit = self._save.edit(_segments(messages))
            if self._save.overwrite:
                commit_overwrite(handle, self._save.target, edit, self._txn)
            elif edit.segments or self._txn is not None:
                commit_root(handle, [edit], txn=self._txn, ending=self._save.target.intent)
        finally:
            handle.close()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing to undo: nothing points to what was written. A retry may write still, so only vacuum deletes."""


class StreamSink(DataSourceStreamArrowWriter):
    """`df.writeStream`: each micro-batch is one commit under (query id, batch id), so a replay finds it done.

    The query id lives in the checkpoint's `metadata`. A checkpoint is deleted whole or not at all: with its offsets
    gone and its metadata kept, Spark counts batches from 0 again under the same id, and new rows would pass for
    replayed ones.
    """

    def __init__(self, save: Save) -> None:
        if save.version is not None:
            raise InvalidInput("txnVersion is for batch writes; a stream numbers its own batches")
        self._save = save

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        from pyspark import TaskContext

        context = TaskContext.get()
        query_id = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
        return Written(tuple(write_batches(self._save.target, iterator)), query_id)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        settle()
        edit = self._save.edit(_segments(messages))
        queries = {message.query_id for message in messages if isinstance(message, Written) and message.query_id}
        app_id = self._save.app_id or next(iter(queries), None)
        if not edit.segments and not self._save.overwrite:
            return  # an empty micro-batch leaves no trace; replayed, it is empty again
        if app_id is None:
            raise InvalidInput("Spark did not say which query this micro-batch belongs to; set .option('txnAppId', …)")
        handle = self._save.place.open()
        try:
            if self._save.overwrite:  # output mode complete: the whole answer anew
                commit_overwrite(handle, self._save.target, edit, (app_id, batchId))
            else:
                commit_root(handle, [edit], txn=(app_id, batchId), ending=self._save.target.intent)
        finally:
            handle.close()

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing to undo: nothing points to what was written. A retry may write still, so only vacuum deletes."""


# ---- foreachBatch --------------------------------------------------------------------------------------------------

Shape = Callable[["DataFrame"], "DataFrame"]


def sink(
    tables: Mapping[str, Shape | None], *, app_id: str, path: str, catalog: str | None = None, volatile: bool = False
) -> Callable[[DataFrame, int], None]:
    """A function for `writeStream.foreachBatch`: each micro-batch goes to several tables in one transaction, exactly
    once.

    tables: {table: function from the micro-batch to the rows of that table, or None for the micro-batch as it is}; a
    column `_change_type` tells deletes. app_id: a name of this stream that outlives restarts; with the batch id it
    identifies the transaction. Works in every output mode, update mode too. A replayed batch is drained, so that
    stateful operators keep their state, and written nowhere. Raises TableNotFound, NotWritable, InvalidInput at once.
    """
    if not isinstance(tables, Mapping) or not tables:
        raise InvalidInput("sink takes a dict {table: function} with at least one table")
    check_pair((app_id, 0))
    handle = open_handle(path, catalog, create=False, volatile=volatile)
    try:
        found = {name: handle.catalog.read(lambda view, name=name: _writable(view, name)) for name in tables}
    finally:
        handle.close()

    def write(frame: DataFrame, batch_id: int) -> None:
        opened = open_handle(path, catalog, create=False, volatile=volatile)
        try:
            _write_batch(opened, frame, (app_id, batch_id), [(found[name], shape) for name, shape in tables.items()])
        finally:
            opened.close()

    return write


def _write_batch(
    handle: Handle, frame: DataFrame, txn: TxnPair, tables: Sequence[tuple[TableDef, Shape | None]]
) -> None:
    if landed(handle, txn, [table.id for table, _ in tables]) is not None:
        frame.write.format("noop").mode("overwrite").save()
        return
    shared = len(tables) > 1
    if shared:
        frame.persist()
    try:
        edits = []
        for table, shape in tables:
            writer = FrameWriter(write_target(handle, table))
            writer.write(frame if shape is None else shape(frame))
            edits.append(TableEdit(table.id, table.name, tuple(writer.finish()), operation="upsert"))
        if any(edit.segments for edit in edits):
            commit_root(handle, edits, txn=txn)
    finally:
        if shared:
            frame.unpersist()
