"""Rows with the extreme values of each type that Spark reads from Parquet, and filters of them."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

EXTREMES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "flag": (pa.bool_(), [True, False]),
    "i8": (pa.int8(), [-128, 127]),
    "i16": (pa.int16(), [-32768, 32767]),
    "i32": (pa.int32(), [-(2**31), 2**31 - 1]),
    "i64": (pa.int64(), [-(2**63), 2**63 - 1]),
    "f32": (pa.float32(), [float("nan"), -0.0, 0.0, float("inf"), 1e-45]),
    "f64": (pa.float64(), [float("nan"), -0.0, 0.0, float("-inf"), 5e-324]),
    "text": (pa.string(), ["", "ß\0x", "ZZZ", "a'b\"c", "\U0001f600"]),
    "long text": (pa.large_string(), ["long", ""]),
    "by.tes": (pa.binary(), [b"", b"\0\xff"]),
    "day": (pa.date32(), [dt.date(1, 1, 1), dt.date(1582, 10, 10), dt.date(9999, 12, 31)]),
    "dec": (pa.decimal128(10, 2), [Decimal("-12345678.90"), Decimal("0.00")]),
    "dec38": (pa.decimal128(38, 18), [Decimal("12345678901234567890.123456789012345678")]),
    "local": (
        pa.timestamp("us"),
        [dt.datetime(1, 1, 1), dt.datetime(1500, 2, 28, 23, 59), dt.datetime(2024, 3, 31, 2)],
    ),
    "instant": (pa.timestamp("us", "UTC"), [dt.datetime(1500, 3, 1), dt.datetime(2024, 10, 27, 1, 30)]),
    "tokyo": (pa.timestamp("us", "Asia/Tokyo"), [dt.datetime(1969, 12, 31, 23, 59, 59)]),
}
FILTERS = [
    "id BETWEEN 40 AND 77",
    "f64 > 1",
    "NOT f64 > 1",
    "f64 = 0.0",
    "f32 IS NULL OR f32 = f32",
    "text >= 'ZZZ'",
    "text LIKE 'a%'",
    "day < DATE'1582-10-15'",
    "instant < TIMESTAMP'1600-01-01 00:00:00Z'",
    "local IN (TIMESTAMP_NTZ'0001-01-01 00:00:00', TIMESTAMP_NTZ'2024-03-31 02:00:00')",
    "dec <=> 0",
    "i64 = 9223372036854775807",
    "flag",
    "`by.tes` = X'00FF'",
]


def bits(frame: DataFrame) -> list[str]:
    """Return the rows as sorted texts, in which every float keeps its bits."""
    return sorted(
        repr([np.float64(value).tobytes() if isinstance(value, float) and value == value else value for value in row])
        for row in frame.collect()
    )


def extremes(kinds: dict[str, tuple[pa.DataType, list[Any]]], seed: int, rows: int = 300) -> pa.Table:
    chance = np.random.default_rng(seed)
    fields = [pa.field("id", pa.int64(), nullable=False), *(pa.field(name, kind) for name, (kind, _) in kinds.items())]
    columns = [pa.array(range(rows))]
    for kind, values in kinds.values():
        picked = chance.integers(0, len(values) + 1, rows)  # one in so many is null
        columns.append(pa.array([values[at] if at < len(values) else None for at in picked], kind))
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))
