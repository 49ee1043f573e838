"""Equal values encode to equal bytes, regardless of bytes beneath nulls or around a slice, and decode unchanged."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from epochlog.exchange.staged.batch_file import decode_batch, encode_batch
from epochlog.exchange.staged.ipc_canonical import canonical

_T = pa.types
FLAT = [
    *(pa.int8(), pa.uint64(), pa.float16(), pa.float64(), pa.bool_(), pa.string(), pa.large_string(), pa.binary()),
    *(pa.large_binary(), pa.binary(3), pa.decimal32(5, 3), pa.decimal64(12, 3), pa.decimal128(38, 38)),
    *(pa.decimal256(60, 2), pa.date32(), pa.date64(), pa.time32("s"), pa.time64("us"), pa.timestamp("us", "UTC")),
    *(pa.duration("ms"), pa.month_day_nano_interval(), pa.string_view(), pa.binary_view()),
]
NESTED = [
    *(pa.list_(pa.int32()), pa.large_list(pa.string()), pa.list_(pa.int8(), 2), pa.map_(pa.string(), pa.int64())),
    pa.list_(pa.field("item", pa.decimal32(4, 1), nullable=False)),
    pa.struct([("a", pa.int32()), pa.field("b", pa.string(), nullable=False)]),
    pa.struct([pa.field("x", pa.list_(pa.bool_(), 2), nullable=False)]),
    pa.list_(pa.struct([("x", pa.list_(pa.decimal64(9, 1)))])),
    pa.struct([("m", pa.map_(pa.int8(), pa.list_(pa.bool_(), 3)))]),
]


def value(kind: pa.DataType, chance: random.Random, *, nullable: bool = True) -> Any:
    if nullable and chance.random() < 0.3:
        return None
    number = chance.randrange(1, 10)
    if _T.is_struct(kind):
        return {field.name: value(field.type, chance, nullable=field.nullable) for field in kind}
    if _T.is_map(kind):
        return [
            (value(kind.key_type, chance, nullable=False), value(kind.item_type, chance)) for _ in range(number % 4)
        ]
    if kind.num_fields:
        size = kind.list_size if _T.is_fixed_size_list(kind) else number % 4
        return [value(kind.value_type, chance, nullable=kind.value_field.nullable) for _ in range(size)]
    if _T.is_decimal(kind):
        return Decimal(number).scaleb(-kind.scale)
    return {
        pa.float16(): np.float16(number),
        pa.bool_(): number % 2 == 0,
        pa.binary(3): bytes([number] * 3),
        pa.date32(): dt.date(2025, 1, number),
        pa.date64(): dt.date(2025, 1, number),
        pa.time32("s"): dt.time(number),
        pa.time64("us"): dt.time(number),
        pa.timestamp("us", "UTC"): dt.datetime(2025, 1, number, tzinfo=dt.UTC),
        pa.duration("ms"): dt.timedelta(milliseconds=number),
        pa.month_day_nano_interval(): pa.MonthDayNano([number, 2, 3]),
        **dict.fromkeys((pa.string(), pa.large_string(), pa.string_view()), "x" * 3 * number),
        **dict.fromkeys((pa.binary(), pa.large_binary(), pa.binary_view()), b"y" * 3 * number),
    }.get(kind, number)


def littered(values: list[Any], kind: pa.DataType, chance: random.Random) -> pa.Array:
    """Build an array of these values with random bytes beneath the nulls."""
    nulls = np.array([item is None for item in values], bool)
    full = pa.array([value(kind, chance, nullable=False) if item is None else item for item in values], kind)
    inside, own = [], len(full.buffers())
    if _T.is_struct(kind):
        inside, own = [full.field(place) for place in range(kind.num_fields)], 1
    elif _T.is_map(kind):
        fields = [kind.key_field, kind.item_field]
        inside, own = [pa.StructArray.from_arrays([full.keys, full.items], fields=fields)], 2
    elif kind.num_fields:
        inside, own = [full.values], 1 if _T.is_fixed_size_list(kind) else 2
    buffers = [pa.py_buffer(np.packbits(~nulls, bitorder="little")), *full.buffers()[1:own]]
    count = int(nulls.sum())
    return pa.Array.from_buffers(kind, len(full), buffers, null_count=count, children=inside or None)


def batch(array: pa.Array) -> pa.RecordBatch:
    return pa.record_batch([array], names=["c"])


@pytest.mark.rule("6.6")
@pytest.mark.parametrize("kind", [*FLAT, *NESTED], ids=str)
def test_the_same_values_give_the_same_bytes(kind: pa.DataType) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for size in (0, 1, 2, 3, 9, 9, 9, 70):
        values = [value(kind, chance) for _ in range(size)]
        plain = pa.array(values, kind)
        round_it = [value(kind, chance, nullable=False) for _ in range(3)]
        sliced = pa.array([*round_it, *values, *round_it], kind).slice(3, size)
        wanted = encode_batch(batch(plain))
        for other in (sliced, littered(values, kind, chance), littered([*round_it, *values], kind, chance).slice(3)):
            assert other.to_pylist() == plain.to_pylist()
            canonical(batch(other)).validate(full=True)
            assert encode_batch(batch(other)).equals(wanted), (size, values)
        assert decode_batch(wanted).equals(batch(plain))


@pytest.mark.rule("6.6")
def test_other_values_give_other_bytes() -> None:
    first, other = (
        encode_batch(batch(pa.array([None, number], pa.decimal64(12, 3)))) for number in (Decimal(1), Decimal(2))
    )
    assert not first.equals(other)
    assert not encode_batch(batch(pa.array([0, None]))).equals(encode_batch(batch(pa.array([None, 0]))))


def test_small_decimals_with_nulls_come_back_as_they_were() -> None:
    """Zeros of another width stood beneath the nulls once, and every value behind them was another."""
    for kind in (pa.decimal32(5, 3), pa.decimal64(12, 3), pa.decimal128(5, 3), pa.decimal128(38, 38)):
        decimals = pa.array([None, Decimal("0.1"), Decimal("0.7")], kind)
        assert decode_batch(encode_batch(batch(decimals))).column(0).to_pylist() == decimals.to_pylist()


def test_dictionaries_are_sound_and_zero_beneath_nulls() -> None:
    indices = pa.Array.from_buffers(pa.int8(), 3, [pa.py_buffer(b"\x05"), pa.py_buffer(b"\x01\x63\x00")], null_count=1)
    words = pa.array(["a", "b"])
    dictionary = pa.DictionaryArray.from_arrays(indices, words, safe=False)
    clean = pa.DictionaryArray.from_arrays(pa.array([1, None, 0], pa.int8()), words)
    assert encode_batch(batch(dictionary)).equals(encode_batch(batch(clean)))
    assert decode_batch(encode_batch(batch(dictionary))).column(0).to_pylist() == ["b", None, "a"]


def test_what_says_nothing_else_is_not_copied() -> None:
    record_batch = pa.record_batch({"a": np.arange(5), "b": ["x"] * 5})
    assert canonical(record_batch) is record_batch
