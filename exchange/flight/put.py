"""Put of rows into a table: nothing of them is visible before the stream has ended well, and then in one commit.

pyarrow tells a server no difference between an end that the client meant and one by its writer being closed on the way
out of a failure; a client killed, cut off or cancelled is told apart. A client that needs more announces the number of
rows.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from epochlog.errors import InvalidInput, ServerUnavailable
from epochlog.exchange.transport.admission import CallSlot
from epochlog.exchange.transport.validation import check_batch, check_schema, decoding
from epochlog.store.catalog.protocol import View
from epochlog.store.changelog.apply_changes import take_rows
from epochlog.store.commit.edits import TableEdit
from epochlog.store.commit.idempotency import check_pair, find_committed_epoch
from epochlog.store.commit.root_commit import commit_or_delete, refuse_unwritable
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.metadata.lookups import find_table
from epochlog.store.session.handle import Handle
from epochlog.store.sst.segment import Segment
from epochlog.store.sst.segment_writer import SegmentWriter, remove_segments

from .descriptors import Write

GATHERED_BYTES = 64 << 20
"""Bytes of rows that a put keeps in memory at most, one batch more or less; then they become a file."""


def put(handle: Handle, write: Write, reader: Any, slot: CallSlot) -> int:
    """Commit all rows of the reader as one transaction; return its epoch, or that of an earlier commit with this `txn`.

    A column `_change_type`, if there, tells deletes. Raises what a commit raises, SchemaMismatch, BadMessage,
    LimitExceeded, InvalidInput (not as many rows as announced), ServerUnavailable, CallTimedOut; nothing is left then.
    """
    check_pair(write.txn)

    def find(view: View) -> TableDef:
        return find_table(view, write.table)

    table = handle.catalog.read(find)
    incoming = _Incoming(reader, slot)
    done = find_committed_epoch(handle, write.txn, [table.id])
    if done is not None:
        while incoming.next() is not None:  # a client that still sends would take an early answer for a failure
            pass
        return done
    handle.catalog.read(lambda view: refuse_unwritable(view, table))
    gathering = _Gathering(handle, table, write, slot)
    try:
        gathering.take(incoming.begin())
        while (batch := incoming.next()) is not None:
            gathering.take(batch)
        segments = gathering.finish()
        slot.check()  # the last moment at which a client that has gone can be noticed
    except BaseException:
        gathering.discard()
        raise
    edit = TableEdit(table.id, table.name, segments, operation=write.operation)
    return commit_or_delete(handle, [edit], txn=write.txn)


class _Incoming:
    """Checked batches of a client's put."""

    def __init__(self, reader: Any, slot: CallSlot) -> None:
        self._reader = reader
        self._slot = slot

    def begin(self) -> pa.RecordBatch:
        """Read and check the columns; return them as a batch without rows."""
        with self._slot.waiting_for_client(), decoding("the schema"):
            schema = self._reader.schema
        check_schema(schema)
        return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)

    def next(self) -> pa.RecordBatch | None:
        """Return the next batch; None when the client has ended its stream. Raises ServerUnavailable when the client
        has gone.
        """
        while True:
            self._slot.check()
            try:
                with self._slot.waiting_for_client(), decoding("a record batch"):
                    batch = self._reader.read_chunk().data
            except StopIteration:  # also when the client was killed, cut off or has cancelled
                if self._slot.call.cancelled():
                    raise ServerUnavailable(
                        "the client has gone in the middle of its rows; nothing was written"
                    ) from None
                return None
            if batch is not None:  # else a message alone, of which a put has none
                check_batch(batch)
                self._slot.record_transfer(batch.nbytes)
                return batch


class _Gathering:
    """Batches of a put on their way into segments."""

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
            raise InvalidInput(f"{self._write.rows} rows were announced, and more came; nothing was written")
        size = batch.nbytes
        if self._bytes + size > GATHERED_BYTES or not self._slot.acquire(size, wait=False):
            self._flush()
            self._slot.acquire(size)
        self._bytes += size
        deletes = self._write.operation == "delete"
        take_rows(self._writer, self._table.schema, pa.Table.from_batches([batch]), deletes=deletes)

    def finish(self) -> tuple[Segment, ...]:
        if self._write.rows is not None and self._rows != self._write.rows:
            raise InvalidInput(f"{self._write.rows} rows were announced, and {self._rows} came; nothing was written")
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
