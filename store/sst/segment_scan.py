"""Scan of many segments of one table: their rows end to end, in one table.

A log has a file for each commit, most of them with a few rows. What such files share is made once for all of them: the
choice of columns, casts to the reader's types, and the keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochlog.store.env.files import SMALL_BYTES, Files
from epochlog.store.env.os_refusals import undecodable
from epochlog.store.env.parallel import parallel_map, parallel_requests
from epochlog.store.types.arrays import from_numpy, to_numpy
from epochlog.store.types.key_codec import KeyCodec
from epochlog.store.types.key_range import ALL_KEYS, KeyRange
from epochlog.store.types.schema import TableSchema

from .data_file import OP, key_columns, keys_of, replaced_of, tombstones, verified
from .file_columns import ColumnMap, column_map
from .segment import Segment, SegmentReader


@dataclass(frozen=True, slots=True)
class Scanned:
    """Rows of several segments in their order, those of each in key order."""

    keys: pa.Array
    data: pa.Table
    deleted: np.ndarray
    """Bool[rows], True for tombstones."""
    labels: np.ndarray
    """Int64[rows], the log epoch of each."""
    replaced: Sequence[np.ndarray | None]
    """Of each segment the bits of REPLACED, all those of a pack; None for one without, or that has other columns than
    the reader.
    """


@dataclass(frozen=True, slots=True)
class LogFile:
    """Segment of a log, with the log epochs of its rows."""

    segment: Segment
    label: int
    epochs: np.ndarray | None = None
    """Of a part of a pack: int64, its log epochs, rising."""
    rows: np.ndarray | None = None
    """Rows of each of them, int64."""

    def labels(self, count: int) -> np.ndarray:
        """Return int64[count], the log epoch of each row."""
        if self.epochs is None or self.rows is None:
            return np.full(count, self.label)
        return np.repeat(self.epochs, self.rows)


def is_small(segment: Segment) -> bool:
    """Return True for a segment that is read as a whole."""
    return segment.bytes <= SMALL_BYTES and len(segment.blocks) == 1 and segment.file_rows is None


def scan_segments(
    files: Files,
    table: TableSchema,
    log_files: Sequence[LogFile],
    columns: Sequence[str],
    key_range: KeyRange = ALL_KEYS,
    *,
    threads: bool = True,
) -> Scanned:
    """Read the rows of at least one file that are in the key range. threads: decode large files in several threads.

    Raises Corrupt for a damaged file.
    """
    codec = KeyCodec(table.schema, table.primary_key)
    scanned: list[Scanned] = []
    for small, neighbours in groupby(log_files, lambda file: is_small(file.segment)):
        some = list(neighbours)
        if small:
            scanned += _SmallFiles(files, table, codec, columns, key_range).scan(some)
        else:
            scanned += _scan_large(files, table, codec, some, columns, key_range, threads=threads)
    return scanned[0] if len(scanned) == 1 else _end_to_end(scanned)


def _scan_large(
    files: Files,
    table: TableSchema,
    codec: KeyCodec,
    log_files: Sequence[LogFile],
    columns: Sequence[str],
    key_range: KeyRange,
    *,
    threads: bool,
) -> list[Scanned]:
    def scan(file: LogFile) -> Scanned:
        reader = SegmentReader(files, file.segment, table, codec)
        packed = file.segment.file_rows is not None
        rows = reader.read_part(columns) if packed else reader.read(columns, key_range)
        deleted = np.zeros(len(rows), np.bool_) if rows.deleted is None else rows.deleted
        bits = _bits(file.segment.path, rows.data.schema)
        data = rows.data.replace_schema_metadata()
        scanned = Scanned(rows.keys, data, deleted, file.labels(len(rows)), [bits])
        return _in_range(scanned, key_range) if packed else scanned

    return parallel_map(scan, log_files, sum(file.segment.rows for file in log_files) if threads else 0)


def _end_to_end(parts: Sequence[Scanned]) -> Scanned:
    """Concatenate scans. Files of several versions of the table may differ in the nullability of columns."""
    return Scanned(
        pa.concat_arrays([part.keys for part in parts]),
        pa.concat_tables([part.data for part in parts], promote_options="default"),
        np.concatenate([part.deleted for part in parts]),
        np.concatenate([part.labels for part in parts]),
        [bits for part in parts for bits in part.replaced],
    )


@dataclass(frozen=True, slots=True)
class _SmallFiles:
    """Reader of small segments."""

    files: Files
    table: TableSchema
    codec: KeyCodec
    columns: Sequence[str]
    key_range: KeyRange

    def scan(self, log_files: Sequence[LogFile]) -> Iterator[Scanned]:
        """Yield the rows of neighbouring files with equal columns as one scan."""
        waiting = iter(self._contents([file.segment for file in log_files]))
        for _, neighbours in groupby(log_files, lambda file: _layout(file.segment)):
            some = list(neighbours)
            yield from self._scan_equal(some, [next(waiting) for _ in some])

    def _contents(self, segments: Sequence[Segment]) -> list[pa.Buffer]:
        """Return the bytes of the files. Requests to a remote file system are sent ahead."""

        def content(segment: Segment) -> pa.Buffer:
            return verified(self.files, segment.path, segment.bytes, segment.crc32)

        return parallel_requests(content, segments) if self.files.remote else list(map(content, segments))

    def _scan_equal(self, log_files: Sequence[LogFile], contents: Sequence[pa.Buffer]) -> Iterator[Scanned]:
        """Yield the rows of files of one layout, which differ in their columns only if releases wrote them
        differently.
        """
        needed, mapped = {*self.columns, *key_columns(self.codec)}, column_map(self.table, log_files[0].segment)
        physical = needed if mapped is None else mapped.physical(needed)
        if log_files[0].segment.deletes:
            physical |= {OP}
        batches: list[pa.RecordBatch] = []
        labels: list[int] = []
        options: pa.ipc.IpcReadOptions | None = None
        for file, data in zip(log_files, contents, strict=True):
            try:
                reader = pa.ipc.open_file(data, options=options)
                if not batches or not reader.schema.equals(batches[0].schema):
                    options = _options_of(pa.ipc.open_file(data).schema, physical)
                    reader = pa.ipc.open_file(data, options=options)
                if reader.num_record_batches != 1:
                    raise pa.ArrowInvalid(f"{reader.num_record_batches} record batches, not 1")
                batch = reader.get_batch(0)
            except (pa.ArrowException, OSError, MemoryError, KeyError) as error:
                raise undecodable(file.segment.path, error) from error
            if batches and not batch.schema.equals(batches[0].schema):
                yield self._scanned(file.segment.path, batches, labels, mapped)
                batches, labels = [], []
            batches.append(batch)
            labels.append(file.label)
        yield self._scanned(log_files[-1].segment.path, batches, labels, mapped)

    def _scanned(
        self, path: str, batches: Sequence[pa.RecordBatch], labels: Sequence[int], mapped: ColumnMap | None
    ) -> Scanned:
        """Return the rows of batches of equal columns, copied from the bytes of the files. path: the last file's."""
        counts = [batch.num_rows for batch in batches]
        replaced = [_bits(path, batch.schema) for batch in batches]
        rows = pa.Table.from_batches(batches).combine_chunks().replace_schema_metadata()
        if mapped is not None:
            try:
                rows = mapped.read_as(rows, {*self.columns, *key_columns(self.codec)})
            except (pa.ArrowException, OSError, MemoryError) as error:
                raise undecodable(f"{path}, or one of the {len(batches)} files up to it", error) from error
        keys, marked = keys_of(self.codec, rows), tombstones(rows)
        deleted = np.zeros(len(keys), np.bool_) if marked is None else marked
        scanned = Scanned(keys, rows.select(self.columns), deleted, np.repeat(labels, counts), replaced)
        return _in_range(scanned, self.key_range)


def _in_range(scanned: Scanned, key_range: KeyRange) -> Scanned:
    """Return the rows in a key range. The keys need no order."""
    if key_range == ALL_KEYS:
        return scanned
    inside = _inside(scanned.keys, key_range)
    chosen = from_numpy(inside)
    return Scanned(
        scanned.keys.filter(chosen),
        scanned.data.filter(chosen),
        scanned.deleted[inside],
        scanned.labels[inside],
        scanned.replaced,
    )


def _bits(path: str, schema: pa.Schema) -> np.ndarray | None:
    if schema.metadata is None:
        return None
    try:
        return replaced_of(schema)
    except ValueError as error:
        raise undecodable(path, error) from error


def _layout(segment: Segment) -> tuple[int, bool]:
    """Return what decides the columns of a file: its version of the table's schema, and if it has deletes."""
    return segment.schema_version, segment.deletes > 0


def _options_of(schema: pa.Schema, physical: set[str]) -> pa.ipc.IpcReadOptions:
    """Return the options to decode these columns of a file. Raise KeyError for a missing column."""
    missing = physical - set(schema.names)
    if missing:
        raise KeyError(f"column {min(missing)!r} is missing")
    chosen = [index for index, name in enumerate(schema.names) if name in physical]
    return pa.ipc.IpcReadOptions(included_fields=chosen if len(chosen) < len(schema.names) else None, use_threads=False)


def _inside(keys: pa.Array, key_range: KeyRange) -> np.ndarray:
    """Return bool[keys]: True for those in the range. The keys need no order."""
    low, high = key_range
    inside = np.ones(len(keys), np.bool_)
    if low is not None:
        inside &= to_numpy(pc.greater_equal(keys, pa.scalar(low, keys.type)))
    if high is not None:
        inside &= to_numpy(pc.less(keys, pa.scalar(high, keys.type)))
    return inside
