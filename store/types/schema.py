"""Schema of a table: its validated name, columns and primary key, and the conversion of data to it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, fields, replace
from dataclasses import field as dataclass_field
from typing import Any, TypeGuard

import msgpack
import pyarrow as pa

from epochlog.errors import InvalidInput, InvalidName, InvalidSchema, LimitExceeded, UnsupportedFormat

from .coerce import as_table, conform_table
from .column_types import is_key_type, refusal, stored_type
from .defaults import decoded_default

MAX_COLUMNS = 2_000
MAX_COLUMN_NAME_BYTES = 255

_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}", re.ASCII)
_FORMAT = 4
"""Newest format of a table's record that this version reads; the record of the schema within it names the format."""


def is_name(name: object) -> TypeGuard[str]:
    """Return True for a valid name of a table or a job."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def check_name(kind: str, name: object) -> str:
    """Return the name if it is valid for a table or a job (`kind`); else raise InvalidName."""
    if not is_name(name):
        raise InvalidName(
            f"{kind} name {name!r} cannot be used: use 1 to 63 of a-z, 0-9 and _, beginning with a letter"
        )
    return name


def check_new_columns(table: str, names: Iterable[str]) -> None:
    """Raise InvalidSchema for the name of a new column that Spark and DuckDB would cut at a NUL."""
    for name in names:
        if "\0" in name:
            raise InvalidSchema(f"table {table}, column {name!r}: a name cannot have a NUL; rename it")


@dataclass(frozen=True, slots=True)
class TableSchema:
    """Name, columns, primary key and sequence column of a table. Immutable, picklable, validated by the constructor.

    The stored schema may differ from the argument in three ways: the columns of the key and the sequence are not
    nullable; dictionary and view types are replaced by the plain type of their values, at any depth (a dictionary's
    index type would limit the values of later commits, and Arrow has no kernels for views); schema metadata is dropped.

    Raises InvalidName, InvalidSchema or LimitExceeded, naming table and column.
    """

    name: str
    schema: pa.Schema
    primary_key: tuple[str, ...]
    sequence_by: str | None = None
    ids: tuple[int, ...] = ()
    """Field id of each column, which it keeps when it is renamed; an id is never used for another column."""
    version: int = 0
    """Epoch of the `alter` that made this schema; 0 for the first one."""
    lineage: tuple[TableSchema, ...] = dataclass_field(default=(), compare=False, repr=False)
    """All versions of the table's schema, oldest first, by which readers find the columns of files; empty if the table
    was never altered.
    """
    defaults: tuple[tuple[int, bytes], ...] = ()
    """Field ids of added columns with the value (encoded) that they have in rows written without them."""
    evolved: bool = dataclass_field(default=False, compare=False)
    """True if an alter made what format 2 lacks: defaults, fields inside of structs, and types of another kind."""
    _hash: int = dataclass_field(default=0, init=False, compare=False, repr=False)
    """Hash of the compared fields, which takes long for many columns; 0 before its first use."""

    def __post_init__(self) -> None:
        check_name("table", self.name)
        if not isinstance(self.schema, pa.Schema):
            raise InvalidSchema(
                f"table {self.name}: the schema must be a pyarrow.Schema, not {_type_name(self.schema)}"
            )
        key = _validate_key(self.name, self.schema, self.primary_key)
        _check_columns(self.name, self.schema, key)
        required = key
        if self.sequence_by is not None:
            _check_sequence(self.name, self.schema, key, self.sequence_by)
            required = (*key, self.sequence_by)
        object.__setattr__(self, "primary_key", key)
        object.__setattr__(self, "schema", _stored_schema(self.schema, required))
        ids = tuple(self.ids) or tuple(range(1, len(self.schema) + 1))
        if len(ids) != len(self.schema) or len(set(ids)) != len(ids):
            raise InvalidSchema(f"table {self.name}: {len(self.schema)} columns have the field ids {ids}")
        object.__setattr__(self, "ids", ids)

    def __hash__(self) -> int:
        if not self._hash:
            compared = (self.name, self.schema, self.primary_key, self.sequence_by, self.ids, self.version)
            object.__setattr__(self, "_hash", hash((*compared, self.defaults)) or 1)
        return self._hash

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the columns as an IPC message: pyarrow's own pickles lose the nullability of vectors' items."""
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.init}
        return _unpickled, ({**values, "schema": self.schema.serialize().to_pybytes()},)

    def __copy__(self) -> TableSchema:
        return _new_schema({field.name: getattr(self, field.name) for field in fields(self)})

    @property
    def key_schema(self) -> pa.Schema:
        """Return the schema of the primary-key columns alone, in the key's order."""
        return pa.schema([self.schema.field(column) for column in self.primary_key])

    @property
    def delete_columns(self) -> tuple[str, ...]:
        """Return the columns of a delete: the key's, then the sequence."""
        return self.primary_key if self.sequence_by is None else (*self.primary_key, self.sequence_by)

    def default(self, name: str) -> pa.Array | None:
        """Return the value of a column in rows that were written without it, as an array of one; None for a null."""
        if not self.defaults:
            return None
        encoded = dict(self.defaults).get(self.ids[self.schema.get_field_index(name)])
        return None if encoded is None else decoded_default(encoded)

    def conform(self, data: object) -> pa.Table:
        """Convert Arrow-shaped `data` to a table of exactly this schema. Columns get its order, rows keep theirs.

        Values are cast only without loss. Float keys have 0.0 for -0.0, and one NaN. Chunks stay chunks.
        Raises SchemaMismatch naming table and column, LimitExceeded, or InvalidInput if `data` is not tabular.
        """
        return conform_table(self.name, data, self.schema, self.primary_key)

    def conform_keys(self, data: object) -> pa.Table:
        """Convert data with exactly the primary-key columns. The result has them in the key's order."""
        return conform_table(self.name, data, self.key_schema, self.primary_key, role="keys")

    def with_lineage(self, lineage: tuple[TableSchema, ...]) -> TableSchema:
        """Return this schema with the versions of its table."""
        schema = copy(self)
        object.__setattr__(schema, "lineage", lineage)
        return schema

    def at(self, epoch: int) -> TableSchema:
        """Return the version of the table's schema that is in force at an epoch."""
        if not self.lineage:
            return self
        chosen = [version for version in self.lineage if version.version <= epoch] or self.lineage[:1]
        return chosen[-1].with_lineage(self.lineage)

    def conform_deletes(self, data: object) -> pa.Table:
        """Convert keys to delete: exactly the columns of the key and, if the table has one, of the sequence."""
        target = pa.schema([self.schema.field(column) for column in self.delete_columns])
        return conform_table(self.name, data, target, self.primary_key, role="keys")

    def conform_update(self, data: object, *, ignore_nulls: bool = False) -> pa.Table:
        """Convert rows of an update: the key columns and some others, in the table's order. ignore_nulls: a null leaves
        a value as it is, so columns that are not null may have nulls.

        Raises InvalidInput for a table with a sequence.
        """
        if self.sequence_by is not None:
            raise InvalidInput(
                f"table {self.name}: a table with a sequence takes no updates of some columns, because a late one "
                "could not be told from one in time; upsert whole rows, or keep these columns in a table of their own"
            )
        target = self.schema
        if ignore_nulls:
            target = pa.schema([field.with_nullable(field.name not in self.primary_key) for field in target])
        rows = as_table(self.name, data, target)
        names = {*self.primary_key, *rows.column_names}
        fields = [field for field in target if field.name in names]
        return conform_table(self.name, rows, pa.schema(fields), self.primary_key)

    def of_update(self, columns: Sequence[str]) -> TableSchema:
        """Return the schema of a segment of updates: the key columns and these, nullable ones, with their field ids."""
        names = {*self.primary_key, *columns}
        fields = [
            field if field.name in self.primary_key else field.with_nullable(True)
            for field in self.schema
            if field.name in names
        ]
        ids = tuple(id_ for id_, name in zip(self.ids, self.schema.names, strict=True) if name in names)
        return replace(self, schema=pa.schema(fields), ids=ids)

    def to_bytes(self, format: int = 1) -> bytes:
        """Encode the schema for catalog records: msgpack of the name, the IPC schema message, key and sequence; of
        an altered table with field ids and the version. The lineage is not included.

        format: of the table's record; a sequence or an alter makes it 2, and an alter that made what format 2 lacks
        makes it 3; a pack or a chapter makes it 4. Versions that do not know it refuse the table with
        UnsupportedFormat.
        """
        record: dict[str, object] = {
            "format": format,
            "name": self.name,
            "schema": self.schema.serialize().to_pybytes(),
            "primary_key": list(self.primary_key),
        }
        if self.sequence_by is not None:  # a version that would not compare sequences must refuse the table
            record |= {"format": max(format, 2), "sequence_by": self.sequence_by}
        if self.version:  # a version that would not find columns by field id must refuse the table
            least = 3 if self.evolved else 2
            record |= {"format": max(format, least), "ids": list(self.ids), "version": self.version}
            if self.evolved and format > 3:  # format 3 alone says so, too
                record["evolved"] = True
        if self.defaults:
            record["defaults"] = dict(self.defaults)
        packed = msgpack.packb(record)
        assert isinstance(packed, bytes)
        return packed

    @classmethod
    def from_bytes(cls, data: bytes) -> TableSchema:
        record = msgpack.unpackb(data, strict_map_key=False)
        if record["format"] > _FORMAT:
            raise UnsupportedFormat(f"a table has format {record['format']}, newer than {_FORMAT}: upgrade epochlog")
        schema = pa.ipc.read_schema(pa.py_buffer(record["schema"]))
        ids, version = tuple(record.get("ids", ())), record.get("version", 0)
        return cls(
            record["name"],
            schema,
            tuple(record["primary_key"]),
            record.get("sequence_by"),
            ids,
            version,
            defaults=tuple(record.get("defaults", {}).items()),
            evolved=record.get("evolved", record["format"] == 3),
        )


def _unpickled(values: dict[str, Any]) -> TableSchema:
    return _new_schema({**values, "schema": pa.ipc.read_schema(pa.py_buffer(values["schema"]))})


def _new_schema(values: dict[str, Any]) -> TableSchema:
    """Return a schema of these attributes, which are valid."""
    schema = object.__new__(TableSchema)
    object.__setattr__(schema, "_hash", 0)
    for name, value in values.items():
        object.__setattr__(schema, name, value)
    return schema


def _type_name(value: object) -> str:
    return type(value).__name__


def _validate_key(table: str, schema: pa.Schema, primary_key: object) -> tuple[str, ...]:
    if isinstance(primary_key, str):
        raise InvalidSchema(f"table {table}: primary_key is a list of column names: write [{primary_key!r}]")
    if not isinstance(primary_key, (list, tuple)) or not all(isinstance(column, str) for column in primary_key):
        raise InvalidSchema(f"table {table}: primary_key must be a list of column names, not {primary_key!r}")
    if not primary_key:
        raise InvalidSchema(f"table {table}: the primary key is empty; name at least one column")
    for column in primary_key:
        if column not in schema.names:
            raise InvalidSchema(f"table {table}: primary-key column {column!r} is not in the schema")
        if primary_key.count(column) > 1:
            raise InvalidSchema(f"table {table}: primary-key column {column!r} is named twice")
    return tuple(primary_key)


def _check_sequence(table: str, schema: pa.Schema, key: tuple[str, ...], column: object) -> None:
    if not isinstance(column, str) or column not in schema.names:
        raise InvalidSchema(f"table {table}: sequence_by must name one column of the schema, not {column!r}")
    if column in key:
        raise InvalidSchema(
            f"table {table}, column {column!r}: the sequence orders the changes of a key and is no part of it"
        )
    if not is_key_type(stored_type(schema.field(column).type)):
        raise InvalidSchema(
            f"table {table}, column {column!r}: type {schema.field(column).type} has no order; a sequence has a type "
            "that a primary key may have"
        )


def _check_columns(table: str, schema: pa.Schema, key: tuple[str, ...]) -> None:
    if len(schema.names) > MAX_COLUMNS:
        raise LimitExceeded(f"table {table}: {len(schema.names)} columns are more than {MAX_COLUMNS}")
    names: set[str] = set()
    for field in schema:
        column_label = f"table {table}, column {field.name!r}"
        if not field.name:
            raise InvalidSchema(f"{column_label}: a column needs a name")
        if field.name.startswith("_"):
            raise InvalidSchema(f"{column_label}: names that begin with _ are reserved for hidden columns; rename it")
        if len(field.name.encode()) > MAX_COLUMN_NAME_BYTES:
            raise LimitExceeded(f"{column_label}: the name is longer than {MAX_COLUMN_NAME_BYTES} bytes")
        if field.name in names:
            raise InvalidSchema(f"{column_label}: the name occurs twice; rename one of the columns")
        names.add(field.name)
        reason = refusal(field.type)
        if reason:
            raise InvalidSchema(f"{column_label}: type {field.type} cannot be stored: {reason}")
    for column in key:
        if not is_key_type(stored_type(schema.field(column).type)):
            raise InvalidSchema(
                f"table {table}, column {column!r}: type {schema.field(column).type} cannot be part of a primary key; "
                "keys are integers, floats, strings, binary, dates, times, timestamps, durations, booleans or decimals"
            )


def _stored_schema(schema: pa.Schema, required: tuple[str, ...]) -> pa.Schema:
    def stored(field: pa.Field) -> pa.Field:
        field = field.with_type(stored_type(field.type))
        return field.with_nullable(False) if field.name in required else field

    return pa.schema([stored(field) for field in schema])
