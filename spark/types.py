"""Arrow types of tables inside Spark, and lossless casts in both directions.

Spark compares only the first batch of a Python source with the schema, and exactly. So every batch is cast to the
schema that Spark expects (`wire_schema`). All columns but the key are declared nullable, since Spark gives wrong
answers for a null in a column declared NOT NULL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from epochlog.errors import SchemaMismatch
from epochlog.store.types.coerce import cast_column
from epochlog.store.types.column_types import fits
from epochlog.store.types.defaults import repeated
from epochlog.store.types.schema import TableSchema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_T = pa.types
_WIDER = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
}
MAX_PRECISION = 38
TIME = "a column of TIME"
COMMENT = b"comment"
"""Name in an Arrow field's metadata of the column's comment in SQL."""


def wire_type(kind: pa.DataType) -> pa.DataType:
    """Return the Arrow type that Spark exchanges for a column of type `kind`. Raises TypeError if Spark has none."""
    if kind in _WIDER:
        return _WIDER[kind]
    if _T.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if _T.is_time(kind):
        return _wire_time()
    if _T.is_duration(kind):
        return pa.duration("us")
    if _T.is_fixed_size_binary(kind) or _T.is_large_binary(kind):
        return pa.binary()
    if _T.is_large_string(kind):
        return pa.string()
    if _T.is_decimal(kind):
        return _wire_decimal(kind)
    if _T.is_map(kind):
        return pa.map_(wire_type(kind.key_type), wire_type(kind.item_type))
    if _T.is_struct(kind):
        return pa.struct([pa.field(field.name, wire_type(field.type)) for field in kind.fields])
    if _T.is_list(kind) or _T.is_large_list(kind) or _T.is_fixed_size_list(kind):
        return pa.list_(pa.field("element", wire_type(kind.value_type)))
    return kind


def _wire_time() -> pa.DataType:
    from .versions import HAS_TIME, needed

    if not HAS_TIME:
        raise TypeError(needed(TIME, "4.1"))
    return pa.time64("ns")


def _wire_decimal(kind: Any) -> pa.DataType:
    if kind.precision > MAX_PRECISION:
        raise TypeError(f"Spark has no decimal type of {kind.precision} digits")
    return pa.decimal128(kind.precision, kind.scale)


def wire_schema(table: str, schema: pa.Schema) -> pa.Schema:
    """Return the schema in which Spark gets batches of these columns. Raises SchemaMismatch if Spark lacks a type."""

    def wire_field(field: pa.Field) -> pa.Field:
        try:
            return pa.field(field.name, wire_type(field.type), field.nullable)
        except TypeError as error:
            raise SchemaMismatch(
                f"table {table}, column {field.name!r}: {error}; leave it out with format('epochlog') and `columns`"
            ) from error

    return pa.schema([wire_field(field) for field in schema])


def spark_schema(table: str, schema: pa.Schema, key: tuple[str, ...] = ()) -> StructType:
    """Return Spark's schema of these columns, with their comments. Only the columns of `key` are declared NOT NULL."""
    from .versions import from_arrow

    nullable_schema = pa.schema([field.with_nullable(field.name not in key) for field in schema])
    columns = from_arrow(wire_schema(table, nullable_schema))
    for column, field in zip(columns, schema, strict=True):  # Spark before 4.2 drops the metadata of Arrow's fields
        comment = (field.metadata or {}).get(COMMENT)
        if comment is not None:
            column.metadata = {"comment": comment.decode(errors="replace")}
    return columns


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark expects of batches declared with this schema."""
    from .versions import to_arrow

    return to_arrow(schema)


def to_spark(table: str, data: pa.Table | pa.RecordBatch, schema: pa.Schema) -> pa.Table:
    """Select and cast the columns of `data` to `schema` (see `arrow_schema`). Raises SchemaMismatch if a value does not
    fit.
    """
    if not schema.names:  # `select([])` keeps the number of rows; a table built from no arrays has none.
        return pa.table(data).select([]) if isinstance(data, pa.Table) else pa.Table.from_batches([data.select([])])
    return pa.Table.from_arrays([_cast_out(table, data.column(field.name), field) for field in schema], schema=schema)


def _cast_out(table: str, column: pa.Array | pa.ChunkedArray, field: pa.Field) -> pa.Array | pa.ChunkedArray:
    if column.type.equals(field.type):
        return column
    try:
        if _T.is_time(column.type):  # Spark's times have microseconds only.
            column = column.cast(pa.time64("us"), safe=True)
        return column.cast(field.type, safe=True)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaMismatch(
            f"table {table}, column {field.name!r}: {column.type} to Spark's {field.type}: {error}"
        ) from error


def filled_from_spark(schema: TableSchema, data: pa.Table) -> pa.Table:
    """Run `from_spark`, and add the table's nullable columns that `data` lacks, with their defaults, or null."""
    rows = from_spark(schema, data)
    given = set(rows.column_names)
    added = [field for field in schema.schema if field.nullable and field.name not in given]
    columns = [*rows.columns, *(_filled(schema, field, rows.num_rows) for field in added)]
    return pa.Table.from_arrays(columns, schema=pa.schema([*rows.schema, *added]))


def _filled(schema: TableSchema, field: pa.Field, rows: int) -> pa.Array:
    default = schema.default(field.name)
    return pa.nulls(rows, field.type) if default is None else repeated(default, rows)


def from_spark(schema: TableSchema, data: pa.Table) -> pa.Table:
    """Cast the columns of Spark's `data` to the table's types; keep unknown columns, which `conform` refuses later.

    Raises SchemaMismatch, which names table and column, if a type does not fit or a value is out of range.
    """
    fields = {field.name: field for field in schema.schema}
    columns = [
        _cast_in(schema.name, column, fields[name]) if name in fields else column
        for name, column in zip(data.column_names, data.columns, strict=True)
    ]
    return pa.Table.from_arrays(columns, names=data.column_names)


def _cast_in(table: str, column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    if column.type.equals(field.type) or _T.is_null(column.type):
        return column
    column_label = f"table {table}, column {field.name!r}"
    if fits(column.type, field.type):
        return cast_column(table, column, field)
    if not accepts(column.type, field.type):
        raise SchemaMismatch(f"{column_label}: type {column.type} does not fit {field.type}; cast it first")
    try:
        return column.cast(field.type, safe=True)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaMismatch(f"{column_label}: type {column.type} does not fit {field.type}: {error}") from error


def accepts(source: pa.DataType, target: pa.DataType) -> bool:
    """Return True if a Spark column of type `source` can be written to a table's column of type `target`. The type that
    Spark reads from the column always can.
    """
    try:
        return fits(source, target) or fits(source, wire_type(target))
    except TypeError:
        return False
