"""Put of rows into a table: all rows become visible in one commit after the stream has ended.

pyarrow cannot tell the server if a client ended its stream on purpose or closed its writer after a failure. The server
does detect a client that was killed, disconnected or cancelled. A client that needs more announces its number of rows.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from epochlog.errors import InvalidInput, ServerUnavailable
from epochlog.exchange.transport.admission import CallSlot
from epochlog.exchange.transport.validation import check_batch, check_schema, decoding
from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.changelog.apply_changes import take_rows
from epochlog.store.commit.change import TableChange
from epochlog.store.commit.idempotency import check_pair, find_committed_epoch
from epochlog.store.commit.root_commit import RootCommit, refuse_unwritable
from epochlog.store.commit.transaction import commit_changes
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.metadata.lookups import find_table
from epochlog.store.session.handle import Handle
from epochlog.store.sst.segment import Segment
from epochlog.store.sst.segment_writer import SegmentWriter, remove_segments

from .descriptors import Write

GATHERED_BYTES = 64 << 20
"""Bytes of rows, give or take one batch, that a put gathers in memory before it writes a segment."""


def put(handle: Handle, write: Write, reader: Any, slot: CallSlot) -> int:
    """Commit all rows of the reader as one transaction; return its epoch, or the epoch of an earlier commit with this
    `txn`.

    An optional column `_change_type` marks deletes. Raises the errors of a commit, SchemaMismatch, BadMessage,
    LimitExceeded, InvalidInput (not as many rows as announced), ServerUnavailable, CallTimedOut, and then leaves no
    rows and no files behind.
    """
    check_pair(write.txn)

    def find(view: ReadTxn) -> TableDef:
        return find_table(view, write.table)

    table = handle.catalog.read(find)
    batches = _BatchReader(reader, slot)
    committed = find_committed_epoch(handle, write.txn, [table.id])
    if committed is not None:
        while batches.next() is not None:  # A client that is still sending would take an early answer for a failure.
            pass
        return committed
    handle.catalog.read(lambda view: refuse_unwritable(view, table))
    row_writer = _RowWriter(handle, table, write, slot)
    try:
        row_writer.take(batches.begin())
        while (batch := batches.next()) is not None:
            row_writer.take(batch)
        segments = row_writer.finish()
        slot.check()  # The last moment to detect a disconnected client.
    except BaseException:
        row_writer.discard()
        raise
    change = TableChange(table, segments, write.operation)
    return commit_changes(handle, [change], RootCommit(txn=write.txn), delete_refused=True).epoch


class _BatchReader:
    """Reader of the record batches that a client puts; it checks each of them."""

    def __init__(self, reader: Any, slot: CallSlot) -> None:
        self._reader = reader
        self._slot = slot

    def begin(self) -> pa.RecordBatch:
        """Read and check the schema; return it as a batch without rows."""
        with self._slot.waiting_for_client(), decoding("the schema"):
            schema = self._reader.schema
        check_schema(schema)
        return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)

    def next(self) -> pa.RecordBatch | None:
        """Return the next batch; None at the end. Raises ServerUnavailable when the client has disconnected."""
        while True:
            self._slot.check()
            try:
                with self._slot.waiting_for_client(), decoding("a record batch"):
                    batch = self._reader.read_chunk().data
            except StopIteration:  # also for a client that was killed, disconnected or cancelled
                if self._slot.call.cancelled():
                    raise ServerUnavailable(
                        "the client disconnected before its stream had ended; no rows were written"
                    ) from None
                return None
            if batch is not None:  # None: a message without rows, which a put ignores
                check_batch(batch)
                self._slot.record_transfer(batch.nbytes)
                return batch


class _RowWriter:
    """Writer of a put's batches into segments."""

    def __init__(self, handle: Handle, table: TableDef, write: Write, slot: CallSlot) -> None:
        self._files = handle.files
        self._table = table
        self._write = write
        self._slot = slot
        self._writer = SegmentWriter(handle.write_target(table))
        self._segments: list[Segment] = []
        self._rows = 0
        self._bytes = 0

    def take(self, batch: pa.RecordBatch) -> None:
        self._rows += batch.num_rows
        if self._write.rows is not None and self._rows > self._write.rows:
            raise InvalidInput(f"{self._write.rows} rows were announced, and more came; no rows were written")
        size = batch.nbytes
        if self._bytes + size > GATHERED_BYTES or not self._slot.acquire(size, wait=False):
            self._flush()
            self._slot.acquire(size)
        self._bytes += size
        deletes = self._write.operation == "delete"
        take_rows(self._writer, self._table.schema, pa.Table.from_batches([batch]), deletes=deletes)

    def finish(self) -> tuple[Segment, ...]:
        if self._write.rows is not None and self._rows != self._write.rows:
            raise InvalidInput(f"{self._write.rows} rows were announced, and {self._rows} came; no rows were written")
        self._flush()
        segments, self._segments = self._segments, []
        return tuple(segments)

    def discard(self) -> None:
        self._writer.discard()
        remove_segments(self._files, self._segments)

    def _flush(self) -> None:
        self._segments += self._writer.finish()
        self._slot.release()
        self._bytes = 0
