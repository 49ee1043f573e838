"""Writer of segments: it turns rows into sorted and deduplicated Arrow IPC files.

A segment is durable when it is sealed, and visible when it is committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import pyarrow as pa

from epochlog.errors import WriteFailed
from epochlog.store.env.failpoints import hit
from epochlog.store.env.files import Files
from epochlog.store.env.paths import SEGMENT_ENDING, file_name
from epochlog.store.types.key_codec import KeyCodec
from epochlog.store.types.schema import TableSchema

from .merge import Rows, merged_values, newest_wins, sorted_unique
from .segment import Segment, write_segment
from .sequence import greatest_wins

FLUSH_ROWS = 1 << 20
FLUSH_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class WriteTarget:
    """Destination of a table's segments. Picklable: Spark's executors write with it, without the catalog."""

    files: Files
    folder: str  # relative to the store's root
    table_id: int
    schema: TableSchema
    intent: str


@dataclass(frozen=True, slots=True)
class _Update:
    """Kind of updates: the columns beside the key, and True for `ignore_nulls` if a null leaves the value as it is."""

    columns: tuple[str, ...]
    ignore_nulls: bool


class SegmentWriter:
    """Collector of upserts and deletes of one table. Of rows with equal keys the later call, then the later row, wins;
    in a table with a sequence the greatest sequence does, at a tie a delete, then the later row.

    Memory is bounded: the pending rows become a segment file at FLUSH_ROWS rows or FLUSH_BYTES bytes. As a context
    manager it discards the rows when its block raises. After a failed
    write every call but `discard` raises WriteFailed, because the pending rows may be in no file.
    """

    def __init__(self, target: WriteTarget) -> None:
        self._target = target
        self._codec = KeyCodec(target.schema.schema, target.schema.primary_key)
        self._pending: list[Rows] = []
        self._rows = 0
        self._bytes = 0
        self._flushed: list[Segment] = []
        self._failed = False
        self._update: _Update | None = None  # the kind of all pending rows

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is not None:
            self.discard()

    @property
    def empty(self) -> bool:
        """Return True if there are no rows to finish."""
        return not self._pending and not self._flushed

    def upsert(self, data: object) -> None:
        """Add rows (anything Arrow-shaped, with all of the table's columns). SchemaMismatch names a misfit."""
        self._add(self._target.schema.conform(data), deleted=False)

    def delete(self, keys: object) -> None:
        """Add keys to delete: exactly the primary-key columns, and the sequence if the table has one. Keys without a
        row are accepted.
        """
        key_table = self._target.schema.conform_deletes(keys)
        schema, given = self._target.schema.schema, dict(zip(key_table.column_names, key_table.columns, strict=True))
        columns = [
            given[field.name] if field.name in given else pa.nulls(key_table.num_rows, field.type) for field in schema
        ]
        fields = [field.with_nullable(field.name not in given) for field in schema]
        self._add(pa.table(columns, schema=pa.schema(fields)), deleted=True)

    def update(self, data: object, *, ignore_nulls: bool = False) -> None:
        """Add updates: rows with the key columns and some others, which the commit merges with the table's rows.

        ignore_nulls: a null leaves the value as it is. SchemaMismatch names a misfit; InvalidInput for a table with a
        sequence.
        """
        table = self._target.schema.conform_update(data, ignore_nulls=ignore_nulls)
        columns = tuple(name for name in table.column_names if name not in self._target.schema.primary_key)
        self._add(table, deleted=False, update=_Update(columns, ignore_nulls))

    def finish(self, label: int | None = None) -> list[Segment]:
        """Write the pending rows and return all segments since the last `finish`, oldest first: later segments win."""
        self._require_usable()
        segments = self._flushed
        if self._pending:
            rows = self._pending[0] if len(self._pending) == 1 else self._merged(self._pending)
            target, update = self._target, self._update
            schema = target.schema if update is None else target.schema.of_update(update.columns)
            path = f"{target.folder}/{file_name(target.intent, SEGMENT_ENDING)}"
            self._failed = True
            segment = write_segment(target.files, path, target.table_id, schema, self._codec, rows)
            if update is not None:
                segment = replace(segment, updates=update.columns, ignore_nulls=update.ignore_nulls)
            segments.append(segment)
            self._failed = False
            hit("segment:written")
        self._pending, self._rows, self._bytes, self._flushed = [], 0, 0, []
        return segments if label is None else [segment.labelled(label) for segment in segments]

    def discard(self) -> None:
        """Drop all rows since the last `finish`, and delete the files that were written for them."""
        remove_segments(self._target.files, self._flushed)
        self._pending, self._flushed, self._rows, self._bytes, self._failed = [], [], 0, 0, False

    def _add(self, table: pa.Table, *, deleted: bool, update: _Update | None = None) -> None:
        self._require_usable()
        if not table.num_rows:
            return
        if (
            self._pending and update != self._update
        ):  # rows of one kind make a segment; the commit merges in their order
            self._flushed = self.finish()
        self._update = update
        keys = self._codec.encode(table)
        if update is not None and update.ignore_nulls:
            rows = merged_values([Rows(keys, table)])
        elif self._sequenced:
            rows = self._merged([Rows(keys, table, np.ones(len(keys), np.bool_) if deleted else None)])
        else:
            rows = sorted_unique(keys, table, deleted=deleted)
        self._pending.append(rows)
        self._rows += table.num_rows
        self._bytes += table.nbytes
        if self._rows >= FLUSH_ROWS or self._bytes >= FLUSH_BYTES:
            self._flushed = self.finish()

    @property
    def _sequenced(self) -> bool:
        return self._target.schema.sequence_by is not None

    def _merged(self, pending: Sequence[Rows]) -> Rows:
        if self._update is not None and self._update.ignore_nulls:
            return merged_values(pending)
        return greatest_wins(pending, self._target.schema) if self._sequenced else newest_wins(pending)

    def _require_usable(self) -> None:
        if self._failed:
            raise WriteFailed(
                f"an earlier write of this writer to {self._target.folder} failed, so its rows are not stored; "
                "write them again with a new writer"
            )


def remove_segments(files: Files, segments: Iterable[Segment]) -> None:
    """Delete the files of segments that will never be committed. Vacuum retries failed deletions."""
    for segment in segments:
        with suppress(WriteFailed):
            files.delete(segment.path)
