"""Column types for tools that lack some of Arrow's types (pure)."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from epochlog.store.types.column_types import map_inner_types
from epochlog.store.types.time_zones import in_common_zones

MOST_DIGITS = 38
"""Most digits of a decimal in DuckDB and polars."""


def in_polars(kind: pa.DataType) -> pa.DataType:
    """Return the type with decimals of more than 38 digits as text, other 256-bit decimals as 128-bit ones, and UTC for
    time zones that polars lacks, at any depth.
    """
    if pa.types.is_timestamp(kind):
        return in_common_zones(kind)
    if pa.types.is_decimal256(kind):
        return pa.decimal128(kind.precision, kind.scale) if kind.precision <= MOST_DIGITS else pa.string()
    return map_inner_types(kind, in_polars)


def in_duckdb(kind: pa.DataType) -> pa.DataType:
    """Return the type with decimals of more than 38 digits as text and half floats as float32, at any depth."""
    return pa.float32() if pa.types.is_float16(kind) else in_polars(map_inner_types(kind, in_duckdb))


def compatible_schema(schema: pa.Schema, change: Callable[[pa.DataType], pa.DataType]) -> pa.Schema:
    """Return the schema with each type changed to one that the tool has."""
    return pa.schema([field.with_type(change(field.type)) for field in schema])
