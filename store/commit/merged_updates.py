"""Merge of updates of some columns with the table's rows before a commit: the commit then has whole rows only.

The segments of a log epoch apply in their order, each to the result of those before it. If another commit lands
meanwhile, only the keys that it touched are merged again, into newer segments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from epochlog.errors import SchemaMismatch
from epochlog.store.changelog.change_rows import Pool
from epochlog.store.env.files import Files
from epochlog.store.scan.key_ranges import cost, key_splits
from epochlog.store.scan.scan_plan import ScanPlan
from epochlog.store.sst.merge import Rows, lookup
from epochlog.store.sst.segment import Segment, SegmentReader, write_segment
from epochlog.store.sst.segment_writer import remove_segments
from epochlog.store.types.key_codec import KeyCodec
from epochlog.store.types.key_range import ALL_KEYS, KeyRange
from epochlog.store.types.schema import TableSchema

from .verdict import SegmentPart, distinct_keys

SPLIT_ROWS = 1 << 18
"""Written rows that are merged, and held in memory, at a time."""


@dataclass(frozen=True, slots=True)
class UpdateMerge:
    """Merge of the segments of a commit with the rows of a table before it."""

    files: Files
    table_id: int
    before: ScanPlan
    new_path: Callable[[], str]
    """Returns a path of a new file."""

    def merge(self, epochs: Sequence[Sequence[Segment]], touched: pa.Array | None = None) -> list[list[Segment]]:
        """Return, for each log epoch with updates, segments of whole rows with its net changes; none for the others.

        touched: merge only these keys (encoded and sorted). A failure leaves no new files behind.
        """
        segments = [segment for epoch in epochs for segment in epoch]
        merged: list[list[Segment]] = [[] for _ in epochs]
        try:
            for key_range in key_splits(
                self.files, self.before.table, segments, cost(segments) // SPLIT_ROWS, ALL_KEYS
            ):
                for number, rows in self._read(epochs, key_range, touched).merged():
                    merged[number].append(self._write(rows))
        except BaseException:
            remove_segments(self.files, [segment for epoch in merged for segment in epoch])
            raise
        return merged

    def _write(self, rows: Rows) -> Segment:
        table = self.before.table
        codec = KeyCodec(table.schema, table.primary_key)
        return write_segment(self.files, self.new_path(), self.table_id, table, codec, rows)

    def _read(self, epochs: Sequence[Sequence[Segment]], key_range: KeyRange, touched: pa.Array | None) -> _Split:
        table = self.before.table
        codec = KeyCodec(table.schema, table.primary_key)
        parts: list[SegmentPart] = []
        for number, epoch in enumerate(epochs):
            for segment in epoch:
                schema = table if segment.updates is None else table.of_update(segment.updates)
                rows = SegmentReader(self.files, segment, schema, codec).read(None, key_range)
                parts.append(SegmentPart(number, segment, rows))
        keys = distinct_keys([part.rows.keys for part in parts], codec)
        if touched is not None:
            keys = keys.filter(pa.array(lookup(touched, keys) >= 0))
        state = self.before.rows_of(self.files, keys, table.schema.names)
        return _Split(table, keys, parts, state)


class _Split:
    """Rows of one key range: for each column of each key the position of its value among all rows read, or of its
    default, which comes last; -1: null.
    """

    def __init__(self, table: TableSchema, keys: pa.Array, parts: Sequence[SegmentPart], state: Rows) -> None:
        self._table = table
        self._keys = keys
        self._parts = parts
        read = [_padded(table, rows.data) for rows in (state, *(part.rows for part in parts))]
        defaults = {name: value for name in table.schema.names if (value := table.default(name)) is not None}
        read += [_padded(table, pa.table(defaults))] if defaults else []
        self._pool = Pool(read)
        at = lookup(state.keys, keys)
        self._present = at >= 0
        self._places = {name: at.copy() for name in table.schema.names}
        self._begins = np.cumsum([len(state), *(len(part.rows) for part in parts)])
        self._unwritten = dict.fromkeys(table.schema.names, -1) | dict.fromkeys(defaults, int(self._begins[-1]))

    def merged(self) -> list[tuple[int, Rows]]:
        """Return the whole rows of each log epoch with updates that touches keys, and its number."""
        changes: list[tuple[int, Rows]] = []
        for number in sorted({part.number for part in self._parts}):
            touched = np.zeros(len(self._keys), np.bool_)
            has_updates = False
            for place, part in enumerate(self._parts):
                if part.number == number:
                    touched[self._apply(part, int(self._begins[place]))] = True
                    has_updates |= part.segment.updates is not None
            if has_updates and touched.any():
                changes.append((number, self._rows(np.flatnonzero(touched))))
        return changes

    def _apply(self, part: SegmentPart, begin: int) -> np.ndarray:
        """Apply a segment to the state of its keys; return their positions."""
        at = lookup(self._keys, part.rows.keys)
        (rows,) = (at >= 0).nonzero()
        at, positions = at[rows], rows + begin
        updates = None if part.segment.updates is None else set(part.segment.updates)
        deleted = np.zeros(len(at), np.bool_) if part.rows.deleted is None else part.rows.deleted[rows]
        replaced = ~self._present[at] if updates is not None else np.ones(len(at), np.bool_)
        for name, places in self._places.items():
            if name in self._table.primary_key or updates is None:
                places[at] = positions
            else:
                places[at[replaced]] = self._unwritten[name]
                if name in updates:
                    taken = np.ones(len(at), np.bool_)
                    if part.segment.ignore_nulls:
                        taken = part.rows.data.column(name).is_valid().to_numpy()[rows]
                    places[at[taken]] = positions[taken]
        self._present[at] = ~deleted
        return at

    def _rows(self, at: np.ndarray) -> Rows:
        """Return the state of these keys as rows and tombstones. Raise SchemaMismatch for a null where none may be."""
        deleted = ~self._present[at]
        columns: list[pa.Array] = []
        for field in self._table.schema:
            places = self._places[field.name][at]
            missing = (places < 0) | (deleted if field.name not in self._table.primary_key else False)
            column = self._pool.taken(field.name, pa.array(np.maximum(places, 0), mask=missing))
            columns.append(column)
            if not field.nullable and (column.null_count - int(deleted.sum())) > 0:
                nulls = column.is_null().to_numpy(zero_copy_only=False) & ~deleted
                self._refuse_null(field.name, int(at[np.flatnonzero(nulls)[0]]))
        fields = [
            field.with_nullable(field.nullable or (bool(deleted.any()) and field.name not in self._table.primary_key))
            for field in self._table.schema
        ]
        data = pa.Table.from_arrays(columns, schema=pa.schema(fields))
        return Rows(self._keys.take(pa.array(at)), data, deleted if deleted.any() else None)

    def _refuse_null(self, column: str, at: int) -> None:
        key = [
            self._pool.taken(name, pa.array([self._places[name][at]]))[0].as_py() for name in self._table.primary_key
        ]
        raise SchemaMismatch(
            f"table {self._table.name}, non-nullable column {column!r}: an update inserts the key "
            f"{key[0] if len(key) == 1 else tuple(key)!r} without a value for it; upsert the whole row first"
        )


def _padded(table: TableSchema, data: pa.Table) -> pa.Table:
    """Return the data with all columns of the table, all nullable; those that it lacks are null."""
    schema = pa.schema([field.with_nullable(True) for field in table.schema])
    given = dict(zip(data.column_names, data.columns, strict=True))
    columns = [given[field.name] if field.name in given else pa.nulls(data.num_rows, field.type) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)
