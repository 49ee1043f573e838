"""Time zones of timestamps: names that Arrow cannot read, and names that other tools lack (pure)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from zoneinfo import ZoneInfo

import pyarrow as pa

from .column_types import children, map_inner_types
from .retyping import as_schema

_OFFSET = re.compile(r"[+-]([01]\d|2[0-3]):[0-5]\d")
_WHOLE_HOURS = re.compile(r"[+](0\d|1[0-4]):00|-(0\d|1[0-2]):00")
"""Offsets that polars has, as Etc/GMT."""

_NO_PLACES = ("localtime", "posixrules", "posix", "right", "Factory")
"""Files and folders of a machine that are no zones of the database."""


def unknown_zone(kind: pa.DataType) -> str | None:
    """Return a time zone of the type, or of a type inside it, that Arrow cannot read; None if it reads all."""
    if pa.types.is_timestamp(kind) and kind.tz and not _is_known(kind.tz):
        return kind.tz
    return next((zone for field in children(kind) if (zone := unknown_zone(field.type)) is not None), None)


def in_known_zones(kind: pa.DataType) -> pa.DataType:
    """Return the type with UTC for time zones that pandas or Arrow cannot read, at any depth. The instants stay."""
    if pa.types.is_timestamp(kind):
        return pa.timestamp(kind.unit, "UTC") if kind.tz and not _is_known(kind.tz) else kind
    return map_inner_types(kind, in_known_zones)


def in_common_zones(kind: pa.DataType) -> pa.DataType:
    """Return the type with UTC for time zones that polars cannot read, at any depth. The instants stay.

    polars has the zones of the time zone database, and offsets of whole hours.
    """
    if pa.types.is_timestamp(kind):
        return pa.timestamp(kind.unit, "UTC") if kind.tz and not _is_common(kind.tz) else kind
    return map_inner_types(kind, in_common_zones)


def schema_in_common_zones(schema: pa.Schema) -> pa.Schema:
    """Return the columns in the types that all tools read; `schema` itself if these are its own."""
    common = pa.schema([field.with_type(in_common_zones(field.type)) for field in schema], schema.metadata)
    return schema if common == schema else common


def batch_in_common_zones(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows in the types that all tools read."""
    common = schema_in_common_zones(batch.schema)
    return batch if common is batch.schema else as_schema(batch, common)


def reader_in_common_zones(schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatchReader:
    """Return a reader of the batches, in the types that all tools read."""
    common = schema_in_common_zones(schema)
    if common is not schema:
        batches = (as_schema(batch, common) for batch in batches)
    return pa.RecordBatchReader.from_batches(common, batches)


@lru_cache(1024)
def _is_known(zone: str) -> bool:
    try:
        return _OFFSET.fullmatch(zone) is not None or pa.lib.string_to_tzinfo(zone) is not None
    except (ValueError, KeyError, OSError):  # those of pytz and zoneinfo are KeyErrors
        return False


@lru_cache(1024)
def _is_common(zone: str) -> bool:
    if zone.split("/", maxsplit=1)[0] in _NO_PLACES:
        return False
    try:
        return _WHOLE_HOURS.fullmatch(zone) is not None or ZoneInfo(zone) is not None
    except (ValueError, KeyError, OSError):
        return False
