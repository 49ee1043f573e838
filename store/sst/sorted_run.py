"""Sorted runs: a table's rows merged over an interval of epochs, as Parquet files, and their descriptors."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochlog.store.catalog.records import as_record, checked
from epochlog.store.env.files import Files, inside_root, write_failed
from epochlog.store.env.lru_cache import LRUCache
from epochlog.store.env.os_refusals import undecodable
from epochlog.store.env.parallel import parallel_map
from epochlog.store.types.arrays import from_numpy, to_numpy
from epochlog.store.types.column_types import parquet_type, same_layout
from epochlog.store.types.key_codec import Key, KeyCodec
from epochlog.store.types.key_range import KeyRange
from epochlog.store.types.read_options import ALL_ROWS, ReadOptions
from epochlog.store.types.retyping import as_schema, from_parquet
from epochlog.store.types.row_size import Sizes, block_sizes
from epochlog.store.types.schema import TableSchema

from .data_file import (
    EPOCH,
    OP,
    UNTIL,
    Stats,
    block_fields,
    block_groups,
    blocks_of,
    compression,
    file_table,
    key_columns,
    key_stats,
    keys_of,
    row_span,
    tombstones,
    verified,
    without,
)
from .file_columns import ColumnMap, column_map, dropped_ids
from .guarantees import passing_guarantees
from .merge import Rows
from .parquet_options import column_options, flat_columns, is_text

if TYPE_CHECKING:
    import pyarrow.parquet as pq

ROW_GROUP_ROWS = 8_192
"""Rows of a row group of a narrow table: the unit that a point lookup decodes."""
ROW_GROUP_COLUMNS = 8
"""Most columns of a narrow table. Row groups of wider tables have more rows (`row_group_rows`), because a file's footer
lists each column of each row group, and parsing it takes time."""
MOST_ROW_GROUP_ROWS = SCAN_ROWS = 65_536
"""Most rows of a row group; and about the rows of all row groups that a thread decodes at a time."""

_FOOTER_BYTES = 128 << 20
_T = pa.types


@dataclass(frozen=True, slots=True)
class RunFile:
    """Descriptor of one Parquet file of a run, with the fields of Segment."""

    path: str
    rows: int
    bytes: int
    crc32: int
    key_min: Key
    key_max: Key
    stats: Stats = field(default_factory=dict)
    history: bool = False
    """True for older versions of rows (columns `_epoch`, `_until`; a key may repeat), False for live rows (`_epoch`).
    """
    blocks: tuple[Key, ...] = ()
    """First key of each row group."""
    deletes: int = 0
    """Number of tombstones. A run has some only if another run lies below it."""
    until: int = 0
    """Greatest `_until`; reads at or above it do not need the file."""
    sizes: Sizes = field(default_factory=dict)
    since: int = 0
    """Lower bound of `_epoch`; reads below it do not need the file."""
    kept: tuple[int, ...] = ()
    """Tagged epochs that see a row of a history file, if only tags keep its rows; () if other reads may need it.
    Example: (10, 25) while epochs 11 to 24 have been released.
    """
    schema_version: int = 0
    """Version of the table's schema whose columns the file has; 0: the first."""
    dropped: tuple[int, ...] = ()
    """Field ids of columns that this version has no more."""

    @property
    def content(self) -> tuple[str | int, ...]:
        """Return what identifies the rows, in keys of caches."""
        return self.path, self.bytes, self.crc32

    def seen_at(self, epoch: int) -> bool:
        """Return True if a read of a history file at the epoch may find a row in it."""
        return self.since <= epoch < self.until

    def needed_at(self, safe_epoch: int, kept: Collection[int]) -> bool:
        """Return True if an epoch at or above the safe epoch, or one of those kept below it, may see a row of the
        history file.
        """
        if self.until > safe_epoch:
            return True
        return any(epoch in kept for epoch in self.kept) if self.kept else any(map(self.seen_at, kept))

    def to_record(self) -> dict[str, Any]:
        """Return plain values for msgpack; only files of a table with tags have `since` and `kept`, only those of a
        later schema than the first its version, and `dropped`.
        """
        record = as_record(self)
        if not self.schema_version:
            record = without(record, "schema_version", "dropped")
        return without(record, *(name for name in ("since", "kept") if not record[name]))

    @classmethod
    @checked
    def from_record(cls, record: dict[str, Any]) -> RunFile:
        kept = tuple(record.get("kept", ()))
        return cls(**{**record, "path": inside_root(record["path"]), **block_fields(record), "kept": kept})


@dataclass(frozen=True, slots=True)
class SortedRun:
    """Sorted run: the rows that the epochs (lo, hi] left behind, as Parquet files."""

    lo: int
    hi: int
    parts: tuple[RunFile, ...]
    """Run files with the newest row of each key at hi, with disjoint key ranges in key order."""
    history: tuple[RunFile, ...] = ()
    """Run files with the rows that were replaced or deleted within the run; their key ranges may overlap. A read at E
    >= hi needs parts only. A read below hi needs the rows of parts with _epoch <= E, and the rows of history with
    _epoch <= E < _until.
    """
    at: int | None = None
    """Epoch of the clone, in a run that a clone took over from its source and whose files have later rows of the source
    too: no read sees these. None: all rows are the table's. Example: a clone at 60 of a table with the run (0, 90] has
    this run with `at` 60; each read of the clone at or above 60 sees it as of 60.
    """

    def past_epoch(self, epoch: int) -> int | None:
        """Return the epoch as of which a read at `epoch` needs the run's rows; None if these are the rows of the parts.

        Example: for the run (0, 90] None at 95, and 40 at 40; with `at` 60, 60 at 95.
        """
        seen = epoch if self.at is None else min(epoch, self.at)
        return seen if seen < self.hi else None

    def files_at(self, epoch: int) -> list[RunFile]:
        """Return the files that a read at the epoch needs."""
        past = self.past_epoch(epoch)
        return [*self.parts, *(part for part in self.history if past is not None and part.seen_at(past))]

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in (*self.parts, *self.history))

    @property
    def live_bytes(self) -> int:
        return sum(part.bytes for part in self.parts)

    def to_record(self) -> dict[str, Any]:
        """Return plain values for msgpack; only a run that was cut at an epoch has `at`."""
        parts, history = ([part.to_record() for part in group] for group in (self.parts, self.history))
        record = {"lo": self.lo, "hi": self.hi, "parts": parts, "history": history}
        return record if self.at is None else {**record, "at": self.at}

    @classmethod
    @checked
    def from_record(cls, record: dict[str, Any]) -> SortedRun:
        parts, history = (tuple(RunFile.from_record(part) for part in record[name]) for name in ("parts", "history"))
        return cls(record["lo"], record["hi"], parts, history, record.get("at"))


# ---- writing -------------------------------------------------------------------------------------------------------


def write_part(
    files: Files,
    path: str,
    schema: TableSchema,
    codec: KeyCodec,
    rows: Rows,
    *,
    history: bool = False,
    since: int = 0,
    kept: tuple[int, ...] = (),
) -> RunFile:
    """Write rows (at least one) as a new Parquet file, durable on return.

    rows.data has all of the table's columns, `_epoch`, and with `history` also `_until`; only then may a key repeat.
    since, kept: of the descriptor.
    Raises WriteFailed, or FileExistsError if the path exists.
    """
    import pyarrow.parquet as pq

    assert len(rows), "a run file must have rows"
    table = file_table(schema, codec, rows, (EPOCH, UNTIL) if history else (EPOCH,))
    group_rows = row_group_rows(len(schema.schema))
    sink, codec_name = pa.BufferOutputStream(), compression(files, seldom_read=history)
    options = column_options(table, codec, codec_name)
    try:
        pq.write_table(
            _in_parquet_types(table),
            sink,
            row_group_size=group_rows,
            version="2.6",
            write_page_checksum=True,
            **options,
        )
    except (pa.ArrowException, OSError) as error:
        raise write_failed(path, error) from error
    data = sink.getvalue()
    starts = np.arange(0, len(rows), group_rows)
    part = RunFile(
        path=path,
        rows=len(rows),
        bytes=data.size,
        crc32=zlib.crc32(data),
        key_min=rows.keys[0].as_py(),
        key_max=rows.keys[len(rows) - 1].as_py(),
        stats=key_stats(codec, table),
        history=history,
        blocks=tuple(rows.keys.take(from_numpy(starts)).to_pylist()),
        deletes=0 if rows.deleted is None else int(rows.deleted.sum()),
        until=pc.max(rows.data.column(UNTIL)).as_py() if history else 0,
        sizes=block_sizes(table, starts.tolist()),
        since=since,
        kept=kept,
        schema_version=schema.version,
        dropped=dropped_ids(schema),
    )
    files.write(path, data)
    return part


def _in_parquet_types(table: pa.Table) -> pa.Table:
    return as_schema(table, pa.schema([field.with_type(parquet_type(field.type)) for field in table.schema]))


def row_group_rows(columns: int) -> int:
    """Return the rows of a row group in files of a table with that many columns.

    Example: 8,192 for 8 columns, 16,384 for 16, 32,768 for 32, and 65,536 for more.
    """
    factor = 1 << max(0, -(-columns // ROW_GROUP_COLUMNS) - 1).bit_length()
    return min(factor * ROW_GROUP_ROWS, MOST_ROW_GROUP_ROWS)


# ---- reading -------------------------------------------------------------------------------------------------------


def read_part(
    files: Files,
    part: RunFile,
    schema: TableSchema,
    codec: KeyCodec,
    options: ReadOptions = ALL_ROWS,
    *,
    at: int | None = None,
    marked: bool = False,
    passing: Sequence[KeyRange] | None = None,
    keyed: bool = True,
) -> Rows:
    """Read the rows of a key range, by key: columns of the table, `_epoch` and `_until`.

    options.filter: prunes row groups only, so the result may have rows that fail it. passing: leave out row groups
    without a key of these ranges. at: return only the rows visible at this epoch; with `marked` return the others as
    tombstones. keyed: False, for an open key range, does not read keys and returns nulls for them. Raises Corrupt for a
    damaged file.
    """
    names = options.column_names(schema)
    groups = blocks_of(part.blocks, options.key_range, passing, repeated=part.history)
    needed = {*names, *(key_columns(codec) if keyed else ())}
    if_present = {OP} if at is None else {OP, EPOCH, UNTIL}
    data = verified(files, part.path, part.bytes, part.crc32)
    tables = _decode(files, data, part, schema, needed, if_present, groups, options.filter, together=SCAN_ROWS, at=at)
    table = pa.concat_tables(tables)
    keys = keys_of(codec, table) if keyed else pa.nulls(table.num_rows)
    first, end = row_span(codec, keys, options.key_range)
    keys, table = keys.slice(first, end - first), table.slice(first, end - first)
    visible = None if at is None else _visible_at(table, at)
    if visible is not None and not marked:
        keys, table = keys.filter(from_numpy(visible)), table.filter(from_numpy(visible))
    deleted = tombstones(table)
    if visible is not None and marked and not visible.all():
        deleted = ~visible if deleted is None else deleted | ~visible
    return Rows(keys, table.select(names), deleted)


def read_blocks(
    files: Files, part: RunFile, schema: TableSchema, codec: KeyCodec, names: Sequence[str], groups: Sequence[int]
) -> list[Rows]:
    """Read the rows of each of these row groups, with these columns. Raises Corrupt for a damaged file."""
    data, needed = verified(files, part.path, part.bytes, part.crc32), {*names, *key_columns(codec)}
    tables = _decode(files, data, part, schema, needed, {OP}, groups, None, together=1)
    return [Rows(keys_of(codec, table), table.select(names), tombstones(table)) for table in tables]


@dataclass(frozen=True, slots=True)
class Footer:
    """Parsed footer of a Parquet file, the names of its columns in the file's order, and the number of the Parquet
    column of each that is not nested.
    """

    metadata: pq.FileMetaData
    names: list[str]
    places: dict[str, int]

    def read(self, data: pa.Buffer, groups: Sequence[int], names: list[str]) -> pa.Table:
        """Read these columns of these row groups, with a reader of its own: a reader is not thread-safe."""
        import pyarrow.parquet as pq

        file = pq.ParquetFile(pa.BufferReader(data), metadata=self.metadata)
        return file.read_row_groups(list(groups), columns=names, use_threads=False)


_footers: LRUCache[Footer] = LRUCache(
    _FOOTER_BYTES, lambda footer: 10 * footer.metadata.serialized_size, name="footers"
)
"""Parsed footers; each takes about ten times the bytes that it has in its file."""


def _footer(files: Files, part: RunFile, data: pa.Buffer) -> Footer:
    """Return the footer of a verified file, from a cache: parsing it takes as long as decoding several row groups."""
    import pyarrow.parquet as pq

    name = files.place, *part.content
    footer = _footers.get(name)
    if footer is None:
        schema = (file := pq.ParquetFile(pa.BufferReader(data))).schema_arrow
        sound = all(same_layout(kind, parquet_type(kind)) for kind in schema.types)
        metadata = file.metadata if sound else _metadata_without_arrow_types(data)
        footer = Footer(metadata, schema.names, flat_columns(schema))
        _footers.put(name, footer)
    return footer


def _metadata_without_arrow_types(data: pa.Buffer) -> pq.FileMetaData:
    """Return the footer of a file of version 0.2 or earlier without Arrow's types, by which it cannot be decoded: lists
    are then of any size.
    """
    import pyarrow.parquet as pq

    size = int.from_bytes(data[-8:-4].to_pybytes(), "little")
    footer = data[-8 - size :].to_pybytes().replace(b"ARROW:schema", b"ARROW:unused")
    return pq.read_metadata(pa.BufferReader(b"PAR1" + footer))


def _decode(
    files: Files,
    data: pa.Buffer,
    part: RunFile,
    schema: TableSchema,
    needed: set[str],
    if_present: set[str],
    groups: Sequence[int],
    filter: pc.Expression | None,
    *,
    together: int,
    at: int | None = None,
) -> list[pa.Table]:
    """Decode these columns, in the file's order, of the row groups that the filter does not exclude: tables of about
    `together` rows, each of at least one row group; one table without rows if there is none.

    data: the file. at: the epoch of the read, if the file may have rows that are not visible then.
    """
    mapped = column_map(schema, part)
    physical = needed if mapped is None else mapped.physical(needed)
    try:
        footer = _footer(files, part, data)
        missing = physical - set(footer.names)
        if missing:
            raise KeyError(f"column {min(missing)!r} is missing")
        if footer.metadata.num_row_groups != len(part.blocks):
            raise pa.ArrowInvalid(f"{footer.metadata.num_row_groups} row groups, not {len(part.blocks)}")
        if filter is not None and groups:
            passing = (
                _passing_row_groups(data, filter, schema)
                if mapped is None
                else _passing_of_mapped(footer, groups, filter, mapped, needed)
            )
            groups = [group for group in groups if group in passing]
        names = [name for name in footer.names if name in physical | if_present]
        together_groups = block_groups(groups, len(part.blocks), part.rows, together) or [[]]
        rows = part.rows * len(groups) // len(part.blocks)
        tables = parallel_map(lambda some: footer.read(data, some, names), together_groups, rows)
        tables = [table.select(names) for table in tables]
        if mapped is None:
            return [_cast_to_schema(table, schema) for table in tables]
        return [mapped.read_as(table, needed, None if at is None else _visible_at(table, at)) for table in tables]
    except (pa.ArrowException, OSError, MemoryError, KeyError) as error:
        raise undecodable(part.path, error) from error


def _passing_row_groups(data: pa.Buffer, filter: pc.Expression, schema: TableSchema) -> set[int]:
    """Return the row groups that may pass the filter, by their statistics. Arrow uses these if there is no null."""
    import pyarrow.dataset as ds  # it imports pandas

    fragment = ds.ParquetFileFormat().make_fragment(pa.BufferReader(data))
    try:
        fragments = fragment.split_by_row_group(filter, schema=schema.schema)
    except pa.ArrowInvalid:  # a value of the filter is not comparable with the statistics
        fragments = [fragment]
    return {group.id for passing in fragments for group in passing.row_groups}


def _passing_of_mapped(
    footer: Footer, groups: Sequence[int], filter: pc.Expression, mapped: ColumnMap, names: set[str]
) -> set[int]:
    """Return those of the row groups of a file with other names or types that may pass the filter. The file's
    statistics are cast to the reader's types, and found by the columns' ids.
    """
    text, schema = str(filter), mapped.schema.schema
    sources = {name: mapped.sources.get(name) for name in names if name in text}
    known = footer.places
    places = {name: known[source.name] for name, source in sources.items() if source and source.name in known}
    guarantees = []
    for group in groups:
        row_group, guarantee = footer.metadata.row_group(group), pc.scalar(True)
        for name, place in places.items():
            bounds = _bounds(row_group.column(place).statistics, schema.field(name).type)
            if bounds is not None:
                guarantee = guarantee & (pc.field(name) >= bounds[0]) & (pc.field(name) <= bounds[1])
        guarantees.append(guarantee)
    return {groups[place] for place in passing_guarantees(schema, filter, guarantees)}


def _bounds(statistics: pq.Statistics | None, kind: pa.DataType) -> tuple[pa.Scalar, pa.Scalar] | None:
    """Return the least and greatest value of a row group as scalars of this type; None if they are not known, or if it
    has nulls, for which they say nothing.
    """
    plain = _T.is_integer(kind) or _T.is_decimal(kind) or is_text(kind) or _T.is_date32(kind)
    if not plain or statistics is None or not statistics.has_min_max or not statistics.has_null_count:
        return None
    if statistics.null_count:
        return None
    try:
        return pa.scalar(statistics.min, kind), pa.scalar(statistics.max, kind)
    except (pa.ArrowException, TypeError, ValueError):
        return None


def _visible_at(table: pa.Table, at: int) -> np.ndarray:
    """Return bool[rows]: True for rows that are visible at the epoch `at`: written by then, and not yet replaced."""
    visible = to_numpy(table.column(EPOCH)) <= at
    return visible & (to_numpy(table.column(UNTIL)) > at) if UNTIL in table.column_names else visible


def _cast_to_schema(table: pa.Table, schema: TableSchema) -> pa.Table:
    """Cast columns back to the table's types: Parquet stores seconds as milliseconds, and some types as others."""
    known = dict(zip(schema.schema.names, schema.schema.types, strict=True))
    kinds = [known.get(field.name, field.type) for field in table.schema]
    if table.schema.types == kinds:
        return table
    fields = [field.with_type(kind) for field, kind in zip(table.schema, kinds, strict=True)]
    columns = [from_parquet(column, kind) for column, kind in zip(table.columns, kinds, strict=True)]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))
