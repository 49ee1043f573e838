"""Segments: immutable sorted Arrow IPC files with the changes of one table, and their descriptors."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from epochlog.store.catalog.records import as_record, checked
from epochlog.store.env.files import Files, inside_root
from epochlog.store.env.os_refusals import undecodable
from epochlog.store.env.parallel import parallel_map
from epochlog.store.types.arrays import from_numpy
from epochlog.store.types.key_codec import Key, KeyCodec
from epochlog.store.types.key_range import ALL_KEYS, KeyRange
from epochlog.store.types.row_size import Sizes, block_sizes
from epochlog.store.types.schema import TableSchema

from .data_file import (
    OP,
    Stats,
    block_fields,
    block_groups,
    blocks_of,
    compression,
    file_table,
    key_columns,
    key_stats,
    keys_of,
    replaced_entry,
    row_span,
    tombstones,
    verified,
    without,
)
from .file_columns import ColumnMap, column_map
from .merge import Rows, sorted_unique

BATCH_ROWS = 65_536
"""Largest number of rows of a record batch, the unit that a key range or a point lookup decodes; and of the batches
that a thread decodes at a time."""
LARGE_ROWS, LARGE_BATCH_ROWS = 1 << 22, 8_192
"""A segment of more than LARGE_ROWS rows has record batches of LARGE_BATCH_ROWS. It is a bulk load, in which keys are
looked up until it is compacted. A lookup decodes a whole batch, mostly for one key."""

_SAMPLE_ROWS = 8_192
_WORTH_DECODING = 0.8
"""Share of a sample's bytes that compression must leave at most, for the segment to be compressed. Otherwise reads
would gain little for decoding it, which takes ten times as long as a copy."""
_WORTH_THREADS = 1 << 20
"""Bytes of batches from which on threads encode their columns; for fewer, waking threads costs more than they save."""

Borders = dict[str, tuple[int, pa.RecordBatch]]
"""Last record batch that the read of a key range decoded, with its number, by file path. In a series of ascending key
ranges the next one often begins in that batch, and takes it from here. Example: of batches with the keys 1 to 10 and 11
to 20, the reads of [1, 15) and [15, 20) both need the second."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Descriptor of one segment file. The file itself has no epoch. Keys are encoded."""

    path: str
    """Relative to the store's root."""
    table_id: int
    rows: int
    """Number of rows, with tombstones (deletes)."""
    deletes: int
    bytes: int
    """Size of the whole file."""
    crc32: int
    """Checksum of the whole file."""
    key_min: Key
    key_max: Key
    stats: Stats = field(default_factory=dict)
    label: int | None = None
    """Epoch at which a root writer sealed it, or None."""
    blocks: tuple[Key, ...] = ()
    """First key of each record batch."""
    sizes: Sizes = field(default_factory=dict)
    """Bytes of each block in memory, in the columns of varying width."""
    updates: tuple[str, ...] | None = None
    """Columns beside the key in a segment of updates, which is merged with the rows of the table before its commit: no
    committed segment has updates. None: a segment of whole rows.
    """
    ignore_nulls: bool = False
    """True if a null in an update leaves the value as it is."""
    schema_version: int = 0
    """Version of the table's schema whose columns the file has; 0: the first."""
    first_row: int = 0
    """First row of a part of a pack."""
    file_rows: int | None = None
    """Rows of the whole file, of which a part of a pack has `rows`; None: a segment of its own. A pack has the changes
    of several log epochs, each in key order, in one record batch. `rows`, `deletes` and `sizes` are those of the part.
    """

    @property
    def dropped(self) -> tuple[int, ...]:
        """Return the dropped columns that the file keeps: none, for it was written in one version."""
        return ()

    @property
    def content(self) -> tuple[str | int, ...]:
        """Return what identifies the rows, also those of a part of a pack, in keys of caches."""
        return self.path, self.bytes, self.crc32, self.first_row, self.rows

    def labelled(self, label: int | None) -> Segment:
        return replace(self, label=label)

    def part(self, first: int, rows: int, deletes: int) -> Segment:
        """Return the part of a pack with these rows."""
        whole = self.file_rows or self.rows
        sizes = {name: (-(-self.sizes[name][0] * rows // max(1, self.rows)),) for name in self.sizes}
        return replace(self, rows=rows, deletes=deletes, sizes=sizes, first_row=self.first_row + first, file_rows=whole)

    def to_record(self) -> dict[str, Any]:
        """Return plain values for msgpack, without the version of the first schema; only a segment of updates, which no
        commit has, has the two fields of updates. No record has a part of a pack.
        """
        record = without(as_record(self), "first_row", "file_rows")
        if self.updates is None:
            record = without(record, "updates", "ignore_nulls")
        return record if self.schema_version else without(record, "schema_version")

    @classmethod
    @checked
    def from_record(cls, record: dict[str, Any]) -> Segment:
        updates = tuple(record["updates"]) if record.get("updates") is not None else None
        return cls(**{**record, "path": inside_root(record["path"]), **block_fields(record), "updates": updates})


def write_segment(
    files: Files,
    path: str,
    table_id: int,
    schema: TableSchema,
    codec: KeyCodec,
    rows: Rows,
    label: int | None = None,
    extra: Sequence[str] = (),
    replaced: np.ndarray | None = None,
    one_batch: bool = False,
) -> Segment:
    """Write rows (at least one, with all of the table's columns) as a new file, durable on return.

    extra: int64 columns of the rows beside the table's. replaced: of pre-images, bool[changes], see REPLACED.
    one_batch: of a pack, whose rows are in the order of their log epochs. Raises WriteFailed, or FileExistsError if the
    path exists.
    """
    assert len(rows), "a segment must have rows"
    table = file_table(schema, codec, rows, extra)
    if replaced is not None:
        table = table.replace_schema_metadata(replaced_entry(replaced))
    if table.nbytes < 1 << 31:  # else a column may not fit in one array
        table = table.combine_chunks()
    most = len(rows) if one_batch else LARGE_BATCH_ROWS if len(rows) > LARGE_ROWS else BATCH_ROWS
    batches = table.to_batches(max_chunksize=most)
    data = _encode(files, table, batches)
    starts = np.cumsum([0, *(batch.num_rows for batch in batches[:-1])])
    segment = Segment(
        path=path,
        table_id=table_id,
        rows=len(rows),
        deletes=0 if rows.deleted is None else int(rows.deleted.sum()),
        bytes=data.size,
        crc32=zlib.crc32(data),
        key_min=rows.keys[0].as_py(),
        key_max=rows.keys[len(rows) - 1].as_py(),
        stats=key_stats(codec, table),
        label=label,
        blocks=tuple(rows.keys.take(from_numpy(starts)).to_pylist()),
        sizes=block_sizes(table, starts.tolist()),
        schema_version=schema.version,
    )
    files.write(path, data)
    return segment


def _encode_file(schema: pa.Schema, batches: Sequence[pa.RecordBatch], compression: str | None) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    use_threads = sum(batch.nbytes for batch in batches) >= _WORTH_THREADS
    options = pa.ipc.IpcWriteOptions(compression=compression, use_threads=use_threads)
    with pa.ipc.new_file(sink, schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue()


def _encode(files: Files, table: pa.Table, batches: Sequence[pa.RecordBatch]) -> pa.Buffer:
    """Encode a segment, compressed unless a sample of it shrinks too little. Remote files are always compressed."""
    codec = compression(files)
    if files.remote:
        return _encode_file(table.schema, batches, codec)
    is_small = table.num_rows <= _SAMPLE_ROWS
    sample = batches if is_small else table.slice(table.num_rows // 2, _SAMPLE_ROWS).to_batches()
    plain, packed = (_encode_file(table.schema, sample, candidate) for candidate in (None, codec))
    is_worth_decoding = packed.size < _WORTH_DECODING * plain.size
    if is_small:
        return packed if is_worth_decoding else plain
    return _encode_file(table.schema, batches, codec if is_worth_decoding else None)


@dataclass(frozen=True, slots=True)
class SegmentReader:
    """Reader of one segment file. It decodes only the requested record batches and columns."""

    files: Files
    segment: Segment
    schema: TableSchema
    codec: KeyCodec

    def read(
        self,
        columns: Sequence[str] | None = None,
        key_range: KeyRange = ALL_KEYS,
        *,
        passing: Sequence[KeyRange] | None = None,
        borders: Borders | None = None,
    ) -> Rows:
        """Read the rows with keys in [low, high), in key order, with these columns of the table (None: all).

        passing: leave out blocks without a key of these ranges. borders: cache of batches for consecutive reads of
        ascending ranges with equal columns. Raises Corrupt for a damaged file.
        """
        names = self.schema.schema.names if columns is None else list(columns)
        data = verified(self.files, self.segment.path, self.segment.bytes, self.segment.crc32)
        if self.segment.file_rows is not None:
            return within(self.codec, self._newest_of_part(data, names), key_range)
        batches, schema = self._decode(data, names, blocks_of(self.segment.blocks, key_range, passing), borders)
        table = pa.Table.from_batches(batches, schema)
        return within(self.codec, self._rows(keys_of(self.codec, table), table, names), key_range)

    def read_blocks(self, columns: Sequence[str], blocks: Sequence[int]) -> list[Rows]:
        """Read the rows of each of these blocks, with these columns of the table. Raises Corrupt for a damaged file."""
        data = verified(self.files, self.segment.path, self.segment.bytes, self.segment.crc32)
        if self.segment.file_rows is not None:
            return [self._newest_of_part(data, columns) for _ in blocks]
        batches, _ = self._decode(data, columns, blocks)
        tables = [pa.Table.from_batches([batch]) for batch in batches]
        return [self._rows(keys_of(self.codec, table), table, columns) for table in tables]

    def read_part(self, columns: Sequence[str] | None) -> Rows:
        """Read a part of a pack in the order of its file: by log epoch, then by key. Raises Corrupt for a damaged
        file.
        """
        data = verified(self.files, self.segment.path, self.segment.bytes, self.segment.crc32)
        return self._part(data, self.schema.schema.names if columns is None else columns)

    def _part(self, data: pa.Buffer, columns: Sequence[str]) -> Rows:
        (batch,), _ = self._decode(data, columns, [0])
        table = pa.Table.from_batches([batch.slice(self.segment.first_row, self.segment.rows)])
        return self._rows(keys_of(self.codec, table), table, columns)

    def _newest_of_part(self, data: pa.Buffer, columns: Sequence[str]) -> Rows:
        """Return the newest row of each key in a part of a pack, in key order."""
        rows = self._part(data, columns)
        return sorted_unique(rows.keys, rows.data, rows.deleted)

    @staticmethod
    def _rows(keys: pa.Array, table: pa.Table, names: Sequence[str]) -> Rows:
        return Rows(keys, table.select(names), tombstones(table))

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the file's record batches in order, with these columns of the table in the file's order, and `_op` if
        there are deletes. Arrow's threads decode the columns. Raises Corrupt.
        """
        data = verified(self.files, self.segment.path, self.segment.bytes, self.segment.crc32)
        mapped = column_map(self.schema, self.segment)
        physical = set(columns) if mapped is None else mapped.physical(columns)
        try:
            reader, _ = self._open_reader(data, {*physical, *self._op_columns}, use_threads=True)
            for index in range(reader.num_record_batches):
                batch = _copy_if_mapped(reader.get_batch(index), data)
                yield batch if mapped is None else mapped.read_as(batch, columns)
        except (pa.ArrowException, OSError, MemoryError, KeyError) as error:
            raise undecodable(self.segment.path, error) from error

    @property
    def _op_columns(self) -> list[str]:
        return [OP] if self.segment.deletes else []

    def _decode(
        self, data: pa.Buffer, names: Sequence[str], blocks: Sequence[int], borders: Borders | None = None
    ) -> tuple[list[pa.RecordBatch], pa.Schema]:
        """Decode these blocks of the file, with these columns, those of the keys, and `_op` if there are deletes."""
        needed = {*names, *key_columns(self.codec)}
        mapped = column_map(self.schema, self.segment)
        try:
            return self._decode_from(data, needed, mapped, blocks, borders)
        except (pa.ArrowException, OSError, MemoryError, KeyError) as error:
            raise undecodable(self.segment.path, error) from error

    def _decode_from(
        self,
        data: pa.Buffer,
        needed: set[str],
        mapped: ColumnMap | None,
        blocks: Sequence[int],
        borders: Borders | None,
    ) -> tuple[list[pa.RecordBatch], pa.Schema]:
        physical = needed if mapped is None else mapped.physical(needed)
        first, options = self._open_reader(data, {*physical, *self._op_columns}, use_threads=False)

        def decoded(batch: pa.RecordBatch) -> pa.RecordBatch:
            return batch if mapped is None else mapped.read_as(batch, needed)

        path = self.segment.path
        border = borders.get(path) if borders else None

        def read(indices: Sequence[int]) -> list[pa.RecordBatch]:
            """Read some record batches with a reader of their own: a reader is not thread-safe."""
            reader = first if len(indices) == len(blocks) else pa.ipc.open_file(data, options=options)
            return [
                border[1]
                if border is not None and border[0] == index
                else decoded(_copy_if_mapped(reader.get_batch(index), data))
                for index in indices
            ]

        segment, count = self.segment, len(self.segment.blocks)
        groups = block_groups(blocks, count, segment.rows, BATCH_ROWS)
        read_groups = parallel_map(read, groups, segment.rows * len(blocks) // count)
        batches = [batch for group in read_groups for batch in group]
        if borders is not None and batches:
            borders[path] = blocks[-1], batches[-1]
        return batches, first.schema if mapped is None else decoded(_no_rows(first.schema)).schema

    def _open_reader(
        self, data: pa.Buffer, needed: set[str], *, use_threads: bool
    ) -> tuple[pa.ipc.RecordBatchFileReader, pa.ipc.IpcReadOptions]:
        """Open a reader of these columns, in the file's order. Return it with its options, for further readers. Raise
        KeyError for a missing column.
        """
        options = pa.ipc.IpcReadOptions(use_threads=use_threads)
        reader = pa.ipc.open_file(data, options=options)
        names = reader.schema.names
        if not needed <= set(names):
            raise KeyError(f"column {min(needed - set(names))!r} is missing")
        if len(needed) < len(names):
            indices = [index for index, name in enumerate(names) if name in needed]
            options = pa.ipc.IpcReadOptions(included_fields=indices, use_threads=use_threads)
            reader = pa.ipc.open_file(data, options=options)
        if reader.num_record_batches != len(self.segment.blocks):
            raise pa.ArrowInvalid(f"{reader.num_record_batches} record batches, not {len(self.segment.blocks)}")
        return reader, options


def within(codec: KeyCodec, rows: Rows, key_range: KeyRange) -> Rows:
    """Return the rows in a key range, of rows in key order."""
    first, end = row_span(codec, rows.keys, key_range)
    if end - first == len(rows):
        return rows
    marks = None if rows.deleted is None else rows.deleted[first:end]
    deleted = None if marks is None or not marks.any() else marks
    return Rows(rows.keys.slice(first, end - first), rows.data.slice(first, end - first), deleted)


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0, kind) for kind in schema.types], schema=schema)


def _copy_if_mapped(batch: pa.RecordBatch, data: pa.Buffer) -> pa.RecordBatch:
    """Copy the batch if it lies in the mapped file: a long-lived batch must not depend on the file's pages."""
    buffers = (buffer for column in batch.columns for buffer in column.buffers() if buffer is not None and buffer.size)
    first = next(buffers, None)
    if first is None or not data.address <= first.address < data.address + data.size:
        return batch
    return pa.ipc.read_record_batch(batch.serialize(), batch.schema)
