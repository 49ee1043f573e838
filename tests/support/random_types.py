"""Random column types, nested to a few levels with a nullability at each, and random values of them."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

_T = pa.types
_DAY = dt.datetime(2024, 2, 29, 23, 59, 58)

LEAVES: dict[pa.DataType, Sequence[Any]] = {
    pa.bool_(): [True, False],
    pa.int8(): [-128, 0, 127],
    pa.uint64(): [0, 2**64 - 1],
    pa.float16(): [1.5, 0.0],
    pa.float32(): [0.25, float("inf")],
    pa.float64(): [-0.5, 1e300],
    pa.string(): ["", "ß", "a longer text"],
    pa.large_string(): ["", "x"],
    pa.string_view(): ["", "seen through a view of it"],
    pa.dictionary(pa.int8(), pa.string()): ["red", "green"],
    pa.dictionary(pa.int8(), pa.int16()): [1, 2],
    pa.binary(): [b"", b"\0\xff"],
    pa.large_binary(): [b"x"],
    pa.binary_view(): [b"", b"y" * 20],
    pa.binary(3): [b"abc"],
    pa.binary(0): [b""],
    pa.decimal32(5, 2): [Decimal("1.25")],
    pa.decimal64(12, 2): [Decimal("-1.25")],
    pa.decimal128(10, 2): [Decimal("1.25"), Decimal("-9.00")],
    pa.decimal256(50, 3): [Decimal("1.125")],
    pa.date32(): [_DAY.date()],
    pa.date64(): [_DAY.date()],
    pa.time32("s"): [dt.time(1, 2, 3)],
    pa.time32("ms"): [dt.time(1, 2, 3)],
    pa.time64("us"): [dt.time(1, 2, 3, 4)],
    pa.time64("ns"): [dt.time(1, 2, 3, 4)],
    pa.timestamp("s"): [_DAY],
    pa.timestamp("ms", "UTC"): [_DAY],
    pa.timestamp("us", "Asia/Tokyo"): [_DAY],
    pa.timestamp("us", "+05:30"): [_DAY],
    pa.timestamp("ns"): [_DAY],
    pa.duration("s"): [dt.timedelta(days=1)],
    pa.duration("us"): [dt.timedelta(microseconds=7)],
    pa.duration("ns"): [dt.timedelta(microseconds=7)],
}
NESTED: dict[str, Callable[[random.Random, pa.Field], pa.DataType]] = {
    "list": lambda rng, field: pa.list_(field),
    "large list": lambda rng, field: pa.large_list(field),
    "vector": lambda rng, field: pa.list_(field, rng.choice([0, 1, 2, 3])),
    "map": lambda rng, field: pa.map_(rng.choice([pa.string(), pa.int8()]), field),
    "struct": lambda rng, field: pa.struct([field, pa.field("n", pa.int8())][: rng.choice([1, 2])]),
    "struct of two": lambda rng, field: pa.struct([field, random_type_field(rng, "other", 1)]),
}


def random_type(rng: random.Random, depth: int) -> pa.DataType:
    """A leaf, or a nested type of at most `depth` levels above its leaves."""
    if not depth or rng.random() < 0.1:
        return rng.choice(list(LEAVES))
    return NESTED[rng.choice(list(NESTED))](rng, random_type_field(rng, rng.choice(["item", "x"]), depth - 1))


def random_type_field(rng: random.Random, name: str, depth: int) -> pa.Field:
    return pa.field(name, random_type(rng, depth), nullable=rng.random() < 0.5)


def random_value(
    rng: random.Random,
    kind: pa.DataType,
    nullable: bool = True,
    leaves: Callable[[pa.DataType], Sequence[Any]] = LEAVES.__getitem__,
) -> Any:
    """A value of the type; None now and then, where the type allows it. leaves: returns the values of a leaf."""
    if nullable and rng.random() < 0.3:
        return None
    if kind in LEAVES:
        return rng.choice(leaves(kind))

    def inside(field: pa.Field) -> Any:
        return random_value(rng, field.type, field.nullable, leaves)

    if _T.is_struct(kind):
        return {field.name: inside(field) for field in kind}
    if _T.is_map(kind):
        keys = rng.sample(["a", "b", "c"] if _T.is_string(kind.key_type) else [1, 2, 3], rng.choice([0, 1, 2]))
        return [(key, inside(kind.item_field)) for key in keys]
    size = kind.list_size if _T.is_fixed_size_list(kind) else rng.choice([0, 0, 1, 3])
    return [inside(kind.value_field) for _ in range(size)]
