"""Columns of CREATE TABLE as Arrow fields with comments. Types that a table would change are refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

import pyarrow as pa
from pyspark.sql import types as kinds

from epochlog.errors import InvalidSchema
from epochlog.spark import versions
from epochlog.spark.types import COMMENT, arrow_schema

_KEPT = (
    kinds.BooleanType,
    kinds.NumericType,
    kinds.BinaryType,
    kinds.DateType,
    kinds.TimestampType,
    kinds.TimestampNTZType,
    kinds.NullType,  # the table refuses it itself
)
_NESTED = (kinds.ArrayType, kinds.MapType, kinds.StructType)
_CHAR_OR_VARCHAR = "__CHAR_VARCHAR_TYPE_STRING"
"""Name in a column's metadata under which Spark keeps the CHAR or VARCHAR that it reads as a STRING."""


def stored_columns(table: str, schema: kinds.StructType) -> pa.Schema:
    """Return the Arrow schema of a table with these columns. Raises InvalidSchema, which names the column and the type
    to write instead, for a type or a comment that the table could not keep.
    """
    check_types(table, schema)
    for field in schema:
        _refuse_inner_comments(table, field.name, field.dataType)
        if _CHAR_OR_VARCHAR in field.metadata:
            _refuse(table, field.name, field.metadata[_CHAR_OR_VARCHAR], "STRING; a table checks no lengths")
    comments = {field.name: field.metadata.get("comment") for field in schema}

    def commented(field: pa.Field) -> pa.Field:
        comment = comments[field.name]
        return field.with_metadata({COMMENT: comment}) if comment else field.remove_metadata()

    return pa.schema([commented(field) for field in arrow_schema(schema)])


def check_types(table: str, schema: kinds.StructType) -> None:
    """Raise InvalidSchema, which names the column and the type to write instead, for a type that a table could not
    keep.
    """
    for field in schema:
        _check_type(table, field.name, field.dataType)


def _parts(column: str, kind: kinds.DataType) -> Iterator[tuple[str, kinds.DataType, kinds.StructField | None]]:
    """Yield the path and the type of each part inside a column, outer ones first, and its field if a struct has it."""
    inner: list[tuple[str, kinds.DataType, kinds.StructField | None]] = []
    match kind:
        case kinds.ArrayType():
            inner = [("element", kind.elementType, None)]
        case kinds.MapType():
            inner = [("key", kind.keyType, None), ("value", kind.valueType, None)]
        case kinds.StructType():
            inner = [(field.name, field.dataType, field) for field in kind]
    for name, part, field in inner:
        yield f"{column}.{name}", part, field
        yield from _parts(f"{column}.{name}", part)


def _check_type(table: str, column: str, kind: kinds.DataType) -> None:
    for path, part, _ in [(column, kind, None), *_parts(column, kind)]:
        advice = None if isinstance(part, _NESTED) else _instead(part)
        if advice is not None:
            _refuse(table, path, part.simpleString(), advice)


def _refuse_inner_comments(table: str, column: str, kind: kinds.DataType) -> None:
    for path, _, field in _parts(column, kind):
        if field is not None and "comment" in field.metadata:
            raise InvalidSchema(
                f"table {table}, column {path!r}: only columns have a comment, fields within them have none; "
                "leave out its COMMENT"
            )


def _instead(kind: kinds.DataType) -> str | None:
    """Return the type to write instead of one that no table keeps; None for a type that a table keeps."""
    match kind:
        case kinds.CharType() | kinds.VarcharType():
            return "STRING; a table checks no lengths"
        case kinds.StringType():
            compare = f"STRING, and compare with `… COLLATE {kind.collation}` in the query"
            return None if kind.isUTF8BinaryCollation() else compare
        case kinds.VariantType():
            return "STRING: to_json(…) writes it, and parse_json(…) reads it"
        case kinds.YearMonthIntervalType():
            return "INT, the number of months"
        case kinds.DayTimeIntervalType():
            full = (kind.startField, kind.endField) == (kind.DAY, kind.SECOND)
            return None if full else "INTERVAL DAY TO SECOND"
        case versions.TimeType():
            return None if kind.precision == versions.TimeType().precision else "TIME(6)"
        case versions.GeometryType() | versions.GeographyType():
            return "BINARY: st_asbinary(…) writes it, and st_geomfromwkb(…) or st_geogfromwkb(…) reads it"
        case _:
            return None if isinstance(kind, _KEPT) else "a type of numbers, texts, binaries or times, with a CAST"


def _refuse(table: str, column: str, kind: str, advice: str) -> NoReturn:
    raise InvalidSchema(f"table {table}, column {column!r}: type {kind} cannot be kept; write {advice}")
