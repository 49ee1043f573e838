"""Rows of one state table of a view: lookups by key, and writes of a step, which merge small segments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochlog.store.env.files import Files
from epochlog.store.env.paths import SEGMENT_ENDING, file_name
from epochlog.store.metadata.state_tables import StateTable
from epochlog.store.scan.scan_plan import ScanPlan
from epochlog.store.sst.merge import merge_sources
from epochlog.store.sst.segment import Segment, SegmentReader, write_segment
from epochlog.store.sst.segment_writer import SegmentWriter, WriteTarget
from epochlog.store.types.arrays import from_numpy
from epochlog.store.types.key_codec import KeyCodec, contiguous
from epochlog.store.types.retyping import as_schema

MOST_SEGMENTS = 8
"""Segments of a state table beyond which a step merges some. There are more of a table whose rows need it: about the
logarithm of their number.
"""
_GROWTH = 2
"""A segment is merged with the newer ones once these have this share of its rows: 1 / _GROWTH."""


class StateRows:
    """Rows of a state table in one step, with the segments that the step has written."""

    def __init__(self, files: Files, target: WriteTarget, table: StateTable) -> None:
        self.table = table
        self.written: list[Segment] = []
        """Segments of new files, also of those that a merge has replaced since."""
        self._files = files
        self._target = replace(target, schema=table.schema)

    @property
    def _scan(self) -> ScanPlan:
        return ScanPlan(self.table.schema, 0, (), self.table.segments)

    def find(self, keys: pa.Array, columns: Sequence[str]) -> dict[str, pa.Array]:
        """Return columns of the rows with these encoded keys, in their order; NULL where there is no row."""
        schema = self.table.schema.schema
        positions, rows = self._scan.find(self._files, keys, columns)
        places = from_numpy(np.maximum(positions, 0), positions < 0)
        if not len(rows):
            return {name: pa.nulls(len(keys), schema.field(name).type) for name in columns}
        return {name: contiguous(rows.data.column(name)).take(places) for name in columns}

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows, a bounded number at a time."""
        return self._scan.batches(self._files)

    def among(self, keys: pa.Table) -> pa.Table:
        """Return the rows whose first key columns have one of these values."""
        schema = self.table.schema
        names = schema.primary_key[: keys.num_columns]
        fields = [schema.schema.field(name) for name in names]
        values = keys.rename_columns(list(names)).cast(pa.schema(fields))
        return self._scan.rows_among(self._files, values, schema.schema.names)

    def write(self, rows: pa.Table, leaves: pa.ChunkedArray | None = None) -> None:
        """Put rows. leaves: true for rows to delete; None for none."""
        schema = self.table.schema
        writer = SegmentWriter(self._target)
        writer.upsert(as_schema(rows if leaves is None else rows.filter(pc.invert(leaves)), schema.schema))
        if leaves is not None:
            writer.delete(rows.filter(leaves).select(list(schema.primary_key)))
        segments = writer.finish()
        self.written += segments
        self.table = replace(self.table, segments=(*self.table.segments, *segments))
        first = first_to_merge([segment.rows for segment in self.table.segments])
        if first is not None:
            self._merge(first)

    def _merge(self, first: int) -> None:
        """Merge the segments from this one on into one."""
        kept, merged = self.table.segments[:first], self.table.segments[first:]
        schema = self.table.schema
        codec = KeyCodec(schema.schema, schema.primary_key)
        sources = [SegmentReader(self._files, segment, schema, codec).read() for segment in merged]
        rows = merge_sources(sources, keep_tombstones=bool(kept))
        segments = kept
        if len(rows):
            path = f"{self._target.folder}/{file_name(self._target.intent, SEGMENT_ENDING)}"
            segment = write_segment(self._files, path, self._target.table_id, schema, codec, rows)
            self.written.append(segment)
            segments = (*kept, segment)
        self.table = replace(self.table, segments=segments)


def first_to_merge(sizes: Sequence[int]) -> int | None:
    """Return the index of the first segment to merge with all newer ones; None while they are few. sizes: rows of each
    segment, oldest first. Each row is merged a number of times that grows with the logarithm of the rows.

    It is the oldest segment that is not large beside all newer ones: a merge makes it larger by a factor.
    """
    if len(sizes) <= MOST_SEGMENTS:
        return None
    newer = sum(sizes)
    for place, size in enumerate(sizes[:-1]):
        newer -= size
        if size <= _GROWTH * newer:
            return place
    return None
