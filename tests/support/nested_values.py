"""Nested types whose values Arrow's casts, or its Parquet, lose; each with three values for the ids 0 to 2."""

from __future__ import annotations

from typing import Any

import pyarrow as pa


def required(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


VECTOR = pa.list_(pa.field("item", pa.float32()), 2)
LITERAL: dict[str, tuple[pa.DataType, list[Any]]] = {
    "a required vector in a null struct": (
        pa.struct([required("p", VECTOR), ("d", pa.duration("us"))]),
        [{"p": [1, 2], "d": None}, None, {"p": [3, None], "d": None}],
    ),
    "a vector of required items, and a null": (
        pa.list_(required("item", pa.float32()), 2),
        [[1, 2], None, [3, 4]],
    ),
    "a required field": (pa.struct([required("carrier", pa.string())]), [{"carrier": "x"}, None, {"carrier": ""}]),
    "a required field of a required struct": (
        pa.struct([required("s", pa.struct([required("c", pa.int32())]))]),
        [{"s": {"c": 1}}, None, {"s": {"c": 2}}],
    ),
    "vectors of required items in a list": (
        pa.list_(pa.list_(required("item", pa.int32()), 2)),
        [[[1, 2], None], [], None],
    ),
    "a vector of structs": (
        pa.list_(pa.struct([required("c", pa.int32())]), 1),
        [[{"c": 1}], None, [None]],
    ),
    "required vectors in a map": (
        pa.map_(pa.string(), required("value", pa.struct([required("v", VECTOR)]))),
        [[("a", {"v": [1, 2]})], None, []],
    ),
}
SIZE_ZERO: dict[str, tuple[pa.DataType, list[Any]]] = {
    "a vector of length 0": (pa.list_(pa.float32(), 0), [[], None, []]),
    "a vector of no texts": (pa.list_(pa.string(), 0), [[], None, []]),
    "bytes of width 0": (pa.binary(0), [b"", None, b""]),
}
"""Types that no new table takes, and tables of version 0.2 may have."""
