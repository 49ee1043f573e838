"""Conversion of Arrow values into JSON values, and into cells for people (pure).

Integers, booleans, strings and finite floats stay; NaN and the infinities become the strings "NaN", "Infinity" and
"-Infinity"; decimals become strings, binary base64, dates, times and timestamps ISO 8601 (those with a zone in UTC,
ending in Z), durations integers in the column's unit, structs objects, maps lists of {"key", "value"}.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from epochlog.store.types.casting import relabelled

_T = pa.types
_DAY = r"^(-?\d+-\d\d-\d\d) "
SLICE_ROWS = 4096
"""Rows that are converted at once."""


def plain_rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Yield the rows of a batch as JSON-able dicts, in order."""
    for start in range(0, batch.num_rows, SLICE_ROWS):
        slice_ = batch.slice(start, SLICE_ROWS)
        columns = [plain_values(column) for column in slice_.columns]
        for values in zip(*columns, strict=True):
            yield dict(zip(slice_.schema.names, values, strict=True))


def plain_values(array: pa.Array) -> list[Any]:
    """Convert a column, or one level of a nested column, into JSON-able values."""
    kind = array.type
    if _T.is_floating(kind):
        wide = array.cast(pa.float32()) if _T.is_float16(kind) else array
        return [_float_value(value) for value in wide.to_pylist()]
    if _T.is_timestamp(kind):
        at_utc = array.cast(pa.timestamp(kind.unit, "UTC")) if kind.tz else array
        return pc.replace_substring_regex(at_utc.cast(pa.string()), _DAY, r"\1T").to_pylist()
    if _T.is_decimal(kind) or _T.is_date(kind) or _T.is_time(kind):
        return array.cast(pa.string()).to_pylist()
    if _T.is_duration(kind):
        return array.cast(pa.int64()).to_pylist()
    if _T.is_binary(kind) or _T.is_large_binary(kind) or _T.is_fixed_size_binary(kind):
        return [None if value is None else base64.b64encode(value).decode() for value in array.to_pylist()]
    return _nested_values(array) if _T.is_nested(kind) else array.to_pylist()


def cell(value: Any) -> str:
    """Format one JSON-able value as text for people."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


def _float_value(value: float | None) -> float | str | None:
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _nested_values(array: pa.Array) -> list[Any]:
    if _T.is_struct(array.type):
        fields = [field.name for field in array.type]
        columns = [plain_values(child) for child in array.flatten()]
        rows = [dict(zip(fields, values, strict=True)) for values in zip(*columns, strict=True)]
        return [row if present else None for row, present in zip(rows, array.is_valid().to_pylist(), strict=True)]
    if _T.is_map(array.type):
        key, value = array.type.key_field.with_name("key"), array.type.item_field.with_name("value")
        array = relabelled(array, pa.list_(pa.struct([key, value])))
    flat = iter(plain_values(array.flatten()))
    lengths = pc.list_value_length(array).to_pylist()
    return [None if length is None else list(islice(flat, length)) for length in lengths]
