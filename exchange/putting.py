"""Rows that a client puts into a table: nothing of them is visible before the stream has ended well, and once only.

pyarrow tells a server no difference between an end that the client meant and one by its writer being closed on the way
out of a failure; a client killed, cut off or cancelled is told apart. Who needs more announces how many rows will come.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from ..errors import InvalidInput, ServerUnavailable
from ..store.catalog import View
from ..store.commit import commit_own, refuse_unwritable
from ..store.definitions import TableDef, find_table
from ..store.edits import TableEdit
from ..store.handle import Handle
from ..store.outcomes import check_pair, landed
from ..store.segment import Segment
from ..store.writer import SegmentWriter, remove_segments, write_target
from .commands import Write
from .task_writer import take_rows
from .traffic import Passage
from .untrusted import check_batch, check_schema, decoding

GATHERED_BYTES = 64 << 20
"""Bytes of rows that a put keeps in memory at most, one batch more or less; then they become a file."""


def put(handle: Handle, write: Write, reader: Any, passage: Passage) -> int:
    """Commit what the reader gives, as one transaction; its epoch, or that of the same `txn` before.

    A column `_change_type`, if there, tells deletes. Raises what a commit raises, SchemaMismatch, BadMessage,
    LimitExceeded, InvalidInput (not as many rows as announced), ServerUnavailable, CallTimedOut; nothing is left then.
    """
    check_pair(write.txn)

    def find(view: View) -> TableDef:
        return find_table(view, write.table)

    table = handle.catalog.read(find)
    incoming = _Incoming(reader, passage)
    done = landed(handle, write.txn, [table.id])
    if done is not None:
        while incoming.next() is not None:  # a client that still sends would take an early answer for a failure
            pass
        return done
    handle.catalog.read(lambda view: refuse_unwritable(view, table))
    gathering = _Gathering(handle, table, write, passage)
    try:
        gathering.take(incoming.begin())
        while (batch := incoming.next()) is not None:
            gathering.take(batch)
        segments = gathering.finish()
        passage.check()  # the last moment at which a client that has gone can be noticed
    except BaseException:
        gathering.discard()
        raise
    edit = TableEdit(table.id, table.name, segments, operation=write.operation)
    return commit_own(handle, [edit], txn=write.txn)


class _Incoming:
    """Batches of a stranger, checked."""

    def __init__(self, reader: Any, passage: Passage) -> None:
        self._reader = reader
        self._passage = passage

    def begin(self) -> pa.RecordBatch:
        """The columns, as a batch without rows."""
        with self._passage.waiting(), decoding("the schema"):
            schema = self._reader.schema
        check_schema(schema)
        return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)

    def next(self) -> pa.RecordBatch | None:
        """The next batch; None when the client has ended its stream."""
        while True:
            self._passage.check()
            try:
                with self._passage.waiting(), decoding("a record batch"):
                    batch = self._reader.read_chunk().data
            except StopIteration:  # also when the client was killed, cut off or has cancelled
                if self._passage.call.cancelled():
                    raise ServerUnavailable(
                        "the client has gone in the middle of its rows; nothing was written"
                    ) from None
                return None
            if batch is not None:  # else a message alone, of which a put has none
                check_batch(batch)
                self._passage.moved(batch.nbytes)
                return batch


class _Gathering:
    """Batches on their way into segments."""

    def __init__(self, handle: Handle, table: TableDef, write: Write, passage: Passage) -> None:
        self._files = handle.files
        self._table = table
        self._write = write
        self._passage = passage
        self._writer = SegmentWriter(write_target(handle, table))
        self._segments: list[Segment] = []
        self._rows = 0
        self._bytes = 0

    def take(self, batch: pa.RecordBatch) -> None:
        self._rows += batch.num_rows
        if self._write.rows is not None and self._rows > self._write.rows:
            raise InvalidInput(f"{self._write.rows} rows were announced, and more came; nothing was written")
        size = batch.nbytes
        if self._bytes + size > GATHERED_BYTES or not self._passage.room(size, wait=False):
            self._flush()
            self._passage.room(size)
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
        self._passage.free()
        self._bytes = 0
