"""Arrow types of tables inside Spark, and lossless casts there and back.

Spark checks only the first batch of a Python source, and exactly; so every batch is cast to the one schema that Spark
expects (`wire_schema`). All columns but the key are declared nullable: a null in a column declared without would give
wrong answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from epochlog.errors import SchemaMismatch
from epochlog.store.types.coerce import cast_column
from epochlog.store.types.column_types import fits
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


def wire_type(kind: pa.DataType) -> pa.DataType:
    """Return the Arrow type that Spark exchanges for a column of type `kind`. Raises TypeError when Spark has none."""
    if kind in _WIDER:
        return _WIDER[kind]
    if _T.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if _T.is_time(kind):
        return pa.time64("ns")
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


def _wire_decimal(kind: Any) -> pa.DataType:
    if kind.precision > MAX_PRECISION:
        raise TypeError(f"Spark has no decimal of {kind.precision} digits")
    return pa.decimal128(kind.precision, kind.scale)


def wire_schema(table: str, schema: pa.Schema) -> pa.Schema:
    """Return the schema of batches of these columns as Spark gets them. Raises SchemaMismatch when Spark lacks
    a type.
    """

    def wired(field: pa.Field) -> pa.Field:
        try:
            return pa.field(field.name, wire_type(field.type), field.nullable)
        except TypeError as error:
            raise SchemaMismatch(
                f"table {table}, column {field.name!r}: {error}; leave it out with `columns`"
            ) from error

    return pa.schema([wired(field) for field in schema])


def spark_schema(table: str, schema: pa.Schema, key: tuple[str, ...] = ()) -> StructType:
    """Return Spark's schema of these columns. Only the columns of `key` are declared to hold no null."""
    from pyspark.sql.pandas.types import from_arrow_schema

    loose = pa.schema([field.with_nullable(field.name not in key) for field in schema])
    return from_arrow_schema(wire_schema(table, loose))


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the exact Arrow schema that Spark expects of batches declared with this schema."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def to_spark(table: str, data: pa.Table | pa.RecordBatch, wanted: pa.Schema) -> pa.Table:
    """Cast `data` to the columns of `wanted` (see `arrow_schema`), in its order and types. Raises SchemaMismatch when a
    value does not fit.
    """
    if not wanted.names:  # a table that is made of no columns has no rows; one of which none is taken keeps them
        return pa.table(data).select([]) if isinstance(data, pa.Table) else pa.Table.from_batches([data.select([])])
    return pa.Table.from_arrays([_cast_out(table, data.column(field.name), field) for field in wanted], schema=wanted)


def _cast_out(table: str, column: pa.Array | pa.ChunkedArray, field: pa.Field) -> pa.Array | pa.ChunkedArray:
    if column.type.equals(field.type):
        return column
    try:
        if _T.is_time(column.type):  # Spark's times stop at microseconds
            column = column.cast(pa.time64("us"), safe=True)
        return column.cast(field.type, safe=True)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaMismatch(
            f"table {table}, column {field.name!r}: {column.type} to Spark's {field.type}: {error}"
        ) from error


def from_spark(schema: TableSchema, data: pa.Table) -> pa.Table:
    """Cast the columns of `data`, which Spark gave, to the table's types; unknown columns are left for `conform` to
    refuse.

    Raises SchemaMismatch naming table and column when a type does not fit or a value is out of range.
    """
    known = set(schema.schema.names)
    columns = [
        _cast_in(schema.name, data.column(name), schema.schema.field(name)) if name in known else data.column(name)
        for name in data.column_names
    ]
    return pa.Table.from_arrays(columns, names=data.column_names)


def _cast_in(table: str, column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    if column.type.equals(field.type) or _T.is_null(column.type):
        return column
    where = f"table {table}, column {field.name!r}"
    if fits(column.type, field.type):
        return cast_column(table, column, field)
    if not accepts(column.type, field.type):
        raise SchemaMismatch(f"{where}: type {column.type} does not fit {field.type}; cast it first")
    try:
        return column.cast(field.type, safe=True)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaMismatch(f"{where}: type {column.type} does not fit {field.type}: {error}") from error


def accepts(given: pa.DataType, stored: pa.DataType) -> bool:
    """Return True if Spark's `given` may be written to a column of type `stored`; a type that was read from it always
    may.
    """
    try:
        return fits(given, stored) or fits(given, wire_type(stored))
    except TypeError:
        return False
