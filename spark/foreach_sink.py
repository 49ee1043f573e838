"""`el.sink`: a function for foreachBatch that writes each micro-batch to several tables in one transaction."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from epochlog.errors import Cancelled, InvalidInput
from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.changelog.event_shape import EventShape
from epochlog.store.commit.change import TableChange
from epochlog.store.commit.idempotency import TxnPair, check_pair, find_committed_epoch, resolve_outcome
from epochlog.store.commit.root_commit import RootCommit, refuse_unwritable
from epochlog.store.commit.stream_batches import StreamBatch
from epochlog.store.commit.transaction import commit_changes
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.metadata.lookups import find_table
from epochlog.store.session.handle import Handle, open_handle

from .bounded_sources import refuse_unbounded, unbounded_error
from .event_options import check_event_options
from .frames import FrameWriter
from .micro_batch import find_micro_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

Shape = Callable[["DataFrame"], "DataFrame"]


@dataclass(frozen=True)
class Sink:
    """Function for `writeStream.foreachBatch` that writes micro-batches into tables; `el.sink` makes it."""

    app_id: str
    _open_store: Callable[[], Handle]
    _tables: Sequence[tuple[TableDef, Shape | None]]
    _events: EventShape
    _new_checkpoint: bool

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Write a micro-batch."""
        with closing(self._open_store()) as handle:
            within = find_micro_batch(frame.sparkSession, batch_id)
            query, planned_ms = (None, None) if within is None else (within.query, within.planned_ms)
            batch = StreamBatch(self.app_id, batch_id, query, planned_ms, self._new_checkpoint)
            _write_batch(handle, frame, batch, self._tables, self._events)

    def __repr__(self) -> str:
        return f"<epochlog.Sink of stream {self.app_id!r} into {', '.join(table.name for table, _ in self._tables)}>"

    def load(self, writer: DataStreamWriter) -> int:
        """Run a bounded stream until all that its sources have at the start is written, then finish the tables; return
        their last epoch.

        writer: `frame.writeStream` with its options; its function and trigger (availableNow) are set here. What comes
        to a source during the load is not taken in. The tables are finished in one commit after Spark has ended the
        query. A call after that commit returns its epoch, and starts no query. After a failure, or the death of the
        driver, call again with the same checkpoint: the stream goes on where it ended. Raises InvalidInput, before it
        writes a row, if a source has no end (`rate`, `rate-micro-batch`, `socket`, each one that does not support
        availableNow) or the writer is one of Spark Connect; Cancelled if the query was stopped meanwhile; Spark's
        StreamingQueryException if it failed or the stop interrupted a micro-batch; TableFinished if a table was
        finished otherwise; TxnMismatch if a load of this `app_id` has finished other tables. Nothing is finished then.
        """
        session = _session_of(writer)
        definitions = [table for table, _ in self._tables]
        ids, txn = [table.id for table in definitions], _end_of(self.app_id)
        check_pair(txn)
        with closing(self._open_store()) as handle:
            earlier = find_committed_epoch(handle, txn, ids)
        if earlier is not None:
            return earlier
        refused: list[InvalidInput] = []

        def write(frame: DataFrame, batch_id: int) -> None:
            try:
                refuse_unbounded(frame.sparkSession)
            except InvalidInput as error:
                refused.append(error)
                raise
            self(frame, batch_id)

        query: Any = writer.foreachBatch(write).trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        except Exception:
            if refused:
                raise refused[0] from None
            raise
        finally:
            query.stop()
        execution = query._jsq.streamingQuery()
        if not _has_ended(execution):
            raise Cancelled(
                f"stream {self.app_id!r}: its query was stopped before its source had ended, so no table is finished. "
                "Load again with the same checkpoint: the stream goes on where it was stopped"
            )
        refuse_unbounded(session, execution)  # no micro-batch has asked if there were no rows
        with closing(self._open_store()) as handle:
            changes = [TableChange(table, operation="finish", end=True) for table in definitions]
            return commit_changes(handle, changes, RootCommit(txn=txn)).epoch


def sink(
    tables: Mapping[str, Shape | None],
    *,
    app_id: str,
    path: str,
    catalog: str | None = None,
    volatile: bool = False,
    partial: bool = False,
    ignore_null_updates: bool = False,
    new_checkpoint: bool = False,
) -> Sink:
    """Make a function for `writeStream.foreachBatch` that writes each micro-batch to several tables in one transaction,
    exactly once. Its `load` runs a bounded stream to its end and finishes the tables.

    tables: {table: function from the micro-batch to the rows of that table, or None for the micro-batch itself}; a
    column `_change_type` marks deletes. app_id: a name of this stream that survives restarts; with the batch id it
    identifies the transaction. The function works in every output mode, including update mode. It reads a replayed
    batch to its end, so that stateful operators keep their state, and does not write it. partial: rows may lack columns
    of the table, which keep their values. ignore_null_updates: a null leaves a value as it is. new_checkpoint: the
    stream was started anew on purpose, with another checkpoint, so that its batches are counted from 0 again; without
    it such a batch raises CheckpointMismatch. Raises TableNotFound, NotWritable, InvalidInput at once, and
    TableFinished unless a load of this `app_id` has finished the tables.
    """
    if not isinstance(tables, Mapping) or not tables:
        raise InvalidInput("sink takes a dict {table: function} with at least one table")
    check_pair((app_id, 0))
    open_store = functools.partial(open_handle, path, catalog, create=False, volatile=volatile)

    def read_tables(view: ReadTxn) -> dict[str, TableDef]:
        definitions = {name: find_table(view, name) for name in tables}
        if resolve_outcome(view, _end_of(app_id), sorted(table.id for table in definitions.values())) is None:
            for table in definitions.values():
                refuse_unwritable(view, table)
        return definitions

    with closing(open_store()) as handle:
        definitions = handle.catalog.read(read_tables)
    events = EventShape(partial=partial, ignore_nulls=ignore_null_updates)
    for definition in definitions.values():
        check_event_options({}, definition.schema, events)
    shapes = [(definitions[name], shape) for name, shape in tables.items()]
    return Sink(app_id, open_store, shapes, events, new_checkpoint)


def _session_of(writer: DataStreamWriter) -> SparkSession:
    """Return the session of a writer. Raises InvalidInput for anything but a classic `frame.writeStream`."""
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    if type(writer).__module__.startswith("pyspark.sql.connect."):
        raise unbounded_error("Spark Connect does not tell which sources a stream has")
    if not isinstance(writer, DataStreamWriter):
        raise InvalidInput(f"load takes a stream's writer, `frame.writeStream` with its options, not {writer!r}")
    inner: Any = writer
    return inner._df.sparkSession


def _has_ended(execution: Any) -> bool:
    """Say whether a query of the JVM, which is not active, found nothing more in its sources; else it was stopped."""
    return bool(execution.noNewData())


def _end_of(app_id: str) -> TxnPair:
    """Return the transaction with which a load of the stream finishes its tables."""
    return f"{app_id}#end", 0


def _write_batch(
    handle: Handle,
    frame: DataFrame,
    txn: StreamBatch,
    tables: Sequence[tuple[TableDef, Shape | None]],
    events: EventShape,
) -> None:
    if find_committed_epoch(handle, txn, [table.id for table, _ in tables]) is not None:
        frame.write.format("noop").mode("overwrite").save()
        return
    shared = len(tables) > 1
    if shared:
        frame.persist()
    writers = [FrameWriter(handle.write_target(table), events) for table, _ in tables]
    try:
        for writer, (_, shape) in zip(writers, tables, strict=True):
            writer.write(frame if shape is None else shape(frame))
        changes = [
            TableChange(table, tuple(writer.finish())) for writer, (table, _) in zip(writers, tables, strict=True)
        ]
    except BaseException:
        for writer in writers:
            writer.discard()
        raise
    finally:
        if shared:
            frame.unpersist()
    if any(change.segments for change in changes):
        commit_changes(handle, changes, RootCommit(txn=txn), delete_refused=True)
