"""Writing segments: rows in, sorted and deduplicated Arrow IPC files out.

Durable when sealed, visible only when committed.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa

from epochlog.errors import WriteFailed
from epochlog.store.env.failpoints import hit
from epochlog.store.env.files import Files
from epochlog.store.env.paths import SEGMENT_ENDING, file_name
from epochlog.store.types.key_codec import KeyCodec
from epochlog.store.types.schema import TableSchema

from .merge import Rows, newest_wins, sorted_unique
from .segment import Segment, write_segment

FLUSH_ROWS = 1 << 20
FLUSH_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class WriteTarget:
    """Destination of a table's segments; all that a writer needs. Picklable: executors write without the catalog."""

    files: Files
    folder: str  # relative to the store's root
    table_id: int
    schema: TableSchema
    intent: str


class SegmentWriter:
    """Collects upserts and deletes of one table; of rows with the same key the later call, then the later row, wins.

    Memory is bounded: what is collected becomes a segment file at FLUSH_ROWS rows or FLUSH_BYTES bytes. After a write
    that failed it takes and gives nothing more until `discard`: what of the rows the disk has is not known.
    """

    def __init__(self, target: WriteTarget) -> None:
        self._target = target
        self._codec = KeyCodec(target.schema.schema, target.schema.primary_key)
        self._pending: list[Rows] = []
        self._rows = 0
        self._bytes = 0
        self._flushed: list[Segment] = []
        self._failed = False

    @property
    def empty(self) -> bool:
        """Return True if there is nothing to finish."""
        return not self._pending and not self._flushed

    def upsert(self, data: object) -> None:
        """Take rows (anything Arrow-shaped, all of the table's columns); SchemaMismatch names what does not fit."""
        self._take(self._target.schema.conform(data), deleted=False)

    def delete(self, keys: object) -> None:
        """Take keys to delete (exactly the primary-key columns); keys that are not there are fine."""
        found = self._target.schema.conform_keys(keys)
        columns = [
            found.column(field.name) if field.name in found.column_names else pa.nulls(found.num_rows, field.type)
            for field in self._target.schema.schema
        ]
        fields = [field.with_nullable(field.name not in found.column_names) for field in self._target.schema.schema]
        self._take(pa.table(columns, schema=pa.schema(fields)), deleted=True)

    def finish(self, label: int | None = None) -> list[Segment]:
        """Write out the pending rows; return all segments since the last `finish`, in the order in which later wins."""
        self._flush(label)
        segments, self._flushed = self._flushed, []
        return segments

    def discard(self) -> None:
        """Drop all unfinished rows, and delete the files already written for them."""
        remove_segments(self._target.files, self._flushed)
        self._pending, self._flushed, self._rows, self._bytes, self._failed = [], [], 0, 0, False

    def _take(self, table: pa.Table, *, deleted: bool) -> None:
        self._refuse_failed()
        if not table.num_rows:
            return
        self._pending.append(sorted_unique(self._codec.encode(table), table, deleted=deleted))
        self._rows += table.num_rows
        self._bytes += table.nbytes
        if self._rows >= FLUSH_ROWS or self._bytes >= FLUSH_BYTES:
            self._flush(None)

    def _refuse_failed(self) -> None:
        if self._failed:
            raise WriteFailed(
                f"an earlier write of this writer to {self._target.folder} failed, and its rows are in no file; "
                "write them again with another writer"
            )

    def _flush(self, label: int | None) -> None:
        self._refuse_failed()
        if self._pending:
            rows = self._pending[0] if len(self._pending) == 1 else newest_wins(self._pending)
            target = self._target
            path = f"{target.folder}/{file_name(target.intent, SEGMENT_ENDING)}"
            self._failed = True
            self._flushed.append(write_segment(target.files, path, target.table_id, target.schema, self._codec, rows))
            self._failed = False
            hit("segment:written")
            self._pending, self._rows, self._bytes = [], 0, 0
        if label is not None:
            self._flushed = [segment.labelled(label) for segment in self._flushed]


def remove_segments(files: Files, segments: Iterable[Segment]) -> None:
    """Remove the files of segments that no commit has taken and none will; what resists is left to vacuum."""
    for segment in segments:
        with suppress(WriteFailed):
            files.delete(segment.path)
