"""`el.sink`: a function for foreachBatch that writes each micro-batch to several tables in one transaction."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from epochlog.errors import InvalidInput
from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.changelog.event_shape import EventShape
from epochlog.store.commit.change import TableChange
from epochlog.store.commit.idempotency import check_pair, find_committed_epoch
from epochlog.store.commit.root_commit import RootCommit, refuse_unwritable
from epochlog.store.commit.stream_batches import StreamBatch
from epochlog.store.commit.transaction import commit_changes
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.metadata.lookups import find_table
from epochlog.store.session.handle import Handle, open_handle

from .event_options import check_event_options
from .frames import FrameWriter
from .micro_batch import find_micro_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Shape = Callable[["DataFrame"], "DataFrame"]


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
) -> Callable[[DataFrame, int], None]:
    """Make a function for `writeStream.foreachBatch` that writes each micro-batch to several tables in one transaction,
    exactly once.

    tables: {table: function from the micro-batch to the rows of that table, or None for the micro-batch itself}; a
    column `_change_type` marks deletes. app_id: a name of this stream that survives restarts; with the batch id it
    identifies the transaction. The function works in every output mode, including update mode. It reads a replayed
    batch to its end, so that stateful operators keep their state, and does not write it. partial: rows may lack columns
    of the table, which keep their values. ignore_null_updates: a null leaves a value as it is. new_checkpoint: the
    stream was started anew on purpose, with another checkpoint, so that its batches are counted from 0 again; without
    it such a batch raises CheckpointMismatch. Raises TableNotFound, NotWritable, InvalidInput at once.
    """
    if not isinstance(tables, Mapping) or not tables:
        raise InvalidInput("sink takes a dict {table: function} with at least one table")
    check_pair((app_id, 0))
    open_store = functools.partial(open_handle, path, catalog, create=False, volatile=volatile)
    with closing(open_store()) as handle:
        definitions = {name: handle.catalog.read(lambda view, name=name: _writable(view, name)) for name in tables}
    events = EventShape(partial=partial, ignore_nulls=ignore_null_updates)
    for definition in definitions.values():
        check_event_options({}, definition.schema, events)

    def write(frame: DataFrame, batch_id: int) -> None:
        with closing(open_store()) as handle:
            shapes = [(definitions[name], shape) for name, shape in tables.items()]
            within = find_micro_batch(frame.sparkSession, batch_id)
            query, planned_ms = (None, None) if within is None else (within.query, within.planned_ms)
            batch = StreamBatch(app_id, batch_id, query, planned_ms, new_checkpoint)
            _write_batch(handle, frame, batch, shapes, events)

    return write


def _writable(view: ReadTxn, name: str) -> TableDef:
    table = find_table(view, name)
    refuse_unwritable(view, table)
    return table


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
