"""Columns of data files by field id: the schema of a file, and a reader's columns in an older or newer file.

A file keeps the names and types of its columns for good. Its descriptor names the version of the table's schema with
which it was written, so a reader finds each of its columns by field id, under the name that it had then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochlog.errors import SchemaChanged
from epochlog.store.types.arrays import from_numpy
from epochlog.store.types.defaults import repeated
from epochlog.store.types.retyping import as_type, from_parquet
from epochlog.store.types.schema import TableSchema
from epochlog.store.types.widening import loses_dates, without_lost_dates

from .data_file import tombstones

Columns = TypeVar("Columns", pa.Table, pa.RecordBatch)

DROPPED = "_f%d"
"""Name, in run files, of a column that the schema of the file has no more: a read at an older epoch needs it."""


class Described(Protocol):
    """Protocol of the descriptor of a data file."""

    @property
    def schema_version(self) -> int: ...
    @property
    def dropped(self) -> tuple[int, ...]: ...
    @property
    def stats(self) -> Mapping[str, tuple[Any, Any]]: ...


@dataclass(frozen=True, slots=True)
class ColumnMap:
    """Columns of one file for a reader with another version of the table's schema."""

    schema: TableSchema
    sources: Mapping[str, pa.Field | None]
    """File's field of each column that the reader knows; None for a column that the file lacks, which has its default
    in all rows, or null.
    """

    def physical(self, names: Iterable[str]) -> set[str]:
        """Return the names in the file of these columns. Hidden columns have one name everywhere."""
        fields = (self.sources.get(name, name) for name in names)
        return {field if isinstance(field, str) else field.name for field in fields if field is not None}

    def read_as(self, data: Columns, names: Iterable[str], visible: np.ndarray | None = None) -> Columns:
        """Return data of the file with the names and types of the reader: these columns, and the hidden ones of `data`.

        visible: bool[rows], False for rows that the reader will not return: their values need not fit a type that was
        narrower at its epoch.
        """
        wanted = set(names)
        fields: list[pa.Field] = []
        columns: list[Any] = []
        for field in self.schema.schema:
            if field.name in wanted:
                column, nullable = self._column(data, field, visible)
                fields.append(field.with_nullable(field.nullable or nullable))
                columns.append(column)
        used = {source.name for source in self.sources.values() if source is not None}
        for field in data.schema:
            if field.name not in used and field.name.startswith("_"):
                fields.append(field)
                columns.append(data.column(field.name))
        return type(data).from_arrays(columns, schema=pa.schema(fields))

    def _column(self, data: pa.Table | pa.RecordBatch, field: pa.Field, visible: np.ndarray | None) -> tuple[Any, bool]:
        """Return a column in the reader's type, and True if it may hold nulls."""
        source = self.sources[field.name]
        if source is None:
            values = self._missing(data, field)
            return (pa.chunked_array([values]) if isinstance(data, pa.Table) else values), True
        column, nullable = data.column(source.name), data.schema.field(source.name).nullable
        if column.type.equals(field.type):
            return column, nullable
        # Parquet keeps some types as others, and a key, which is never widened, must not be null.
        widened = not source.type.equals(field.type)
        if widened and visible is not None and not visible.all():
            column, nullable = pc.if_else(from_numpy(visible), column, pa.scalar(None, column.type)), True
        if loses_dates(source.type, field.type):  # the newest rows have no such dates, and older ones no value for them
            column = without_lost_dates(column, field.type)
            nullable |= bool(column.null_count)
        return from_parquet(column, field.type), nullable

    def _missing(self, data: pa.Table | pa.RecordBatch, field: pa.Field) -> pa.Array:
        """Return a column that the file lacks: its default in rows, and null in deletes."""
        default = self.schema.default(field.name)
        if default is None:
            return pa.nulls(data.num_rows, field.type)
        values, deleted = as_type(repeated(default, data.num_rows), field.type), tombstones(data)
        return values if deleted is None else pc.if_else(from_numpy(deleted), pa.scalar(None, field.type), values)


def column_map(schema: TableSchema, file: Described) -> ColumnMap | None:
    """Return the columns of a file for a reader with `schema`; None if all have the reader's names and types.

    Raises SchemaChanged if the file is of a version that the reader's schema does not know.
    """
    if not schema.lineage and not file.schema_version:
        return None
    written = file_schema(schema, file)
    fields = dict(zip(written.ids, written.schema, strict=True))
    sources = {field.name: fields.get(id_) for id_, field in zip(schema.ids, schema.schema, strict=True)}
    if all(source is not None and _equal(source, schema.schema.field(name)) for name, source in sources.items()):
        return None
    return ColumnMap(schema, sources)


def _equal(source: pa.Field, field: pa.Field) -> bool:
    return source.name == field.name and source.type.equals(field.type)


def file_schema(schema: TableSchema, file: Described) -> TableSchema:
    """Return the schema of a file of the table: its version's columns, and the dropped ones that it keeps."""
    if not schema.lineage and not file.schema_version:
        return schema
    for version in schema.lineage:
        if version.version == file.schema_version:
            return with_dropped(version.with_lineage(schema.lineage), file.dropped)
    raise SchemaChanged(
        f"table {schema.name!r} was altered at epoch {file.schema_version}, after its columns were read here; get the "
        "table again with store.table(name), and repeat the call"
    )


def with_dropped(schema: TableSchema, ids: Sequence[int]) -> TableSchema:
    """Return the schema of files that also keep these columns, which older versions of `schema` had; they are nullable.
    Such a schema is only for files: it has names that a table cannot have.
    """
    if not ids:
        return schema
    newest = {
        id_: field
        for version in schema.lineage
        if version.version < schema.version
        for id_, field in zip(version.ids, version.schema, strict=True)
    }
    fields = [pa.field(DROPPED % id_, newest[id_].type, nullable=True) for id_ in ids]  # the widest type that it had
    extended = schema.with_lineage(schema.lineage)
    object.__setattr__(extended, "schema", pa.schema([*schema.schema, *fields]))
    object.__setattr__(extended, "ids", (*schema.ids, *ids))
    return extended


def dropped_ids(schema: TableSchema) -> tuple[int, ...]:
    """Return the field ids of the columns that a schema of `with_dropped` has beyond its version's."""
    return tuple(id_ for id_, name in zip(schema.ids, schema.schema.names, strict=True) if name == DROPPED % id_)


def compaction_schema(schema: TableSchema, oldest_epoch: int) -> TableSchema:
    """Return the schema of new run files: the columns of each schema in force at or after the oldest
    readable epoch.
    """
    if not schema.lineage:
        return schema
    oldest = schema.at(oldest_epoch).version
    readable = (version for version in schema.lineage if oldest <= version.version < schema.version)
    kept = {id_ for version in readable for id_ in version.ids} - set(schema.ids)
    return with_dropped(schema, sorted(kept))


def stats_of(schema: TableSchema, file: Described) -> Mapping[str, tuple[Any, Any]]:
    """Return a file's statistics by the reader's names of its key columns."""
    columns = column_map(schema, file)
    if columns is None:
        return file.stats
    sources = ((name, columns.sources[name]) for name in schema.primary_key)
    return {
        name: file.stats[source.name] for name, source in sources if source is not None and source.name in file.stats
    }


def signature(schema: TableSchema, names: Iterable[str]) -> tuple[object, ...]:
    """Return a cache key of these columns, by which decoded rows of a file are found again: their ids and types too,
    since a name can move to another column.
    """
    if not schema.lineage:
        return ()
    places = (schema.schema.get_field_index(name) for name in names)
    visible = (at for at in places if at >= 0)  # hidden columns have one name everywhere
    return tuple((schema.ids[at], schema.schema.field(at).name, str(schema.schema.field(at).type)) for at in visible)
