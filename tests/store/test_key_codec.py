"""Encoded keys sort as the keys do, are equal when the keys are, and bound ranges of them."""

from __future__ import annotations

import bisect
import datetime as dt
import math
import pickle
import random
from decimal import Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from epochlog.errors import InvalidInput
from epochlog.store.types import key_codec
from epochlog.store.types.key_codec import KeyCodec

pytestmark = pytest.mark.local_only

BYTES = st.binary(max_size=6) | st.lists(st.sampled_from([b"\0", b"\xff", b"\1", b"a"]), max_size=6).map(b"".join)
TEXT = st.text(max_size=5) | st.lists(
    st.sampled_from(["\0", "\x01", "a", "é", "\U0010ffff", "\uffff"]), max_size=5
).map("".join)


def ints(kind: pa.DataType) -> st.SearchStrategy[int]:
    limits = np.iinfo(kind.to_pandas_dtype())
    return st.integers(int(limits.min), int(limits.max)) | st.sampled_from([int(limits.min), int(limits.max), 0, 1])


def decimals(precision: int) -> st.SearchStrategy[Decimal]:
    top = 10**precision - 1
    return st.integers(-top, top).map(lambda units: Decimal(units).scaleb(-2, Context(prec=80)))


KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    **{
        str(kind): (kind, ints(kind))
        for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
    },
    "float16": (pa.float16(), st.floats(width=16).map(np.float16)),
    "float32": (pa.float32(), st.floats(width=32)),
    "float64": (pa.float64(), st.floats() | st.sampled_from([0.0, -0.0, math.nan, math.inf, -math.inf, 5e-324])),
    "bool": (pa.bool_(), st.booleans()),
    "string": (pa.string(), TEXT),
    "large_string": (pa.large_string(), TEXT),
    "binary": (pa.binary(), BYTES),
    "large_binary": (pa.large_binary(), BYTES),
    "fixed": (pa.binary(2), st.binary(min_size=2, max_size=2)),
    "date32": (pa.date32(), st.dates()),
    "date64": (pa.date64(), st.dates()),
    "time": (pa.time64("us"), st.times()),
    "time32": (pa.time32("s"), st.times().map(lambda t: t.replace(microsecond=0))),
    "timestamp": (pa.timestamp("us"), st.datetimes()),
    "utc": (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(dt.UTC))),
    "duration": (pa.duration("us"), st.timedeltas(dt.timedelta(-99999), dt.timedelta(99999))),
    "decimal128": (pa.decimal128(30, 2), decimals(30)),
    "decimal256": (pa.decimal256(60, 2), decimals(60)),
}


def rank(value: Any) -> Any:
    """A Python value whose `<` and `==` are the documented key order."""
    if isinstance(value, (float, np.floating)):
        return (1, 0.0) if math.isnan(value) else (0, float(value))
    return value.encode() if isinstance(value, str) else value


def table_of(kinds: list[pa.DataType], rows: list[tuple[Any, ...]]) -> tuple[KeyCodec, pa.Table]:
    names = [f"k{i}" for i in range(len(kinds))]
    columns = [pa.array([row[i] for row in rows], kind) for i, kind in enumerate(kinds)]
    table = pa.table(dict(zip(names, columns, strict=True)))
    return KeyCodec(table.schema, tuple(names)), table


@st.composite
def keyed_rows(draw: st.DrawFn) -> tuple[list[pa.DataType], list[tuple[Any, ...]]]:
    names = draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=4))
    rows = draw(st.lists(st.tuples(*(KINDS[name][1] for name in names)), max_size=12))
    return [KINDS[name][0] for name in names], rows


@given(keyed_rows())
def test_encoding_keeps_order_and_identity(drawn: tuple[list[pa.DataType], list[tuple[Any, ...]]]) -> None:
    kinds, rows = drawn
    codec, table = table_of(kinds, rows)
    encoded = codec.encode(table)
    encoded.validate(full=True)
    assert encoded.type == codec.key_type
    assert encoded.null_count == 0
    assert len(encoded) == len(rows)
    ranks = [tuple(rank(value) for value in row) for row in rows]
    values = encoded.to_pylist()
    for i, a in enumerate(values):
        for j, b in enumerate(values):
            assert (a < b) == (ranks[i] < ranks[j]), (rows[i], rows[j])
            assert (a == b) == (ranks[i] == ranks[j]), (rows[i], rows[j])
    order = key_codec.sort_indices(encoded)
    assert order.tolist() == sorted(range(len(rows)), key=lambda i: values[i])
    ordered = encoded.take(pa.array(order))
    assert key_codec.is_sorted_unique(ordered) == (len(set(values)) == len(values))
    mask = key_codec.last_of_each(ordered)
    assert [v for v, last in zip(ordered.to_pylist(), mask, strict=True) if last] == sorted(set(values))


@given(keyed_rows())
def test_keys_tell_their_first_column(drawn: tuple[list[pa.DataType], list[tuple[Any, ...]]]) -> None:
    kinds, rows = drawn
    codec, table = table_of(kinds, rows)
    column = codec.leading(codec.encode(table).to_pylist())
    if pa.types.is_decimal(kinds[0]) or pa.types.is_float16(kinds[0]):
        assert column is None
        return
    assert column is not None and column.type == kinds[0]
    column.validate(full=True)
    alone = KeyCodec(table.schema, ("k0",))
    assert alone.encode(pa.table({"k0": column})).equals(alone.encode(table))


@pytest.mark.medium
@settings(max_examples=50, deadline=None, print_blob=True)
@given(keyed_rows(), st.integers(0, 3), st.integers(0, 5))
def test_slices_and_chunks_encode_alike(
    drawn: tuple[list[pa.DataType], list[tuple[Any, ...]]], start: int, cut: int
) -> None:
    kinds, rows = drawn
    codec, table = table_of(kinds, rows)
    whole = codec.encode(table)
    assert codec.encode(table.slice(start)).equals(whole.slice(start))
    chunked = pa.concat_tables([table.slice(0, cut), table.slice(cut)])
    assert codec.encode(chunked).equals(whole)
    for batch in table.slice(start).to_batches():
        assert codec.encode(batch).equals(whole.slice(start))


@pytest.mark.medium
@settings(max_examples=50, deadline=None, print_blob=True)
@given(keyed_rows(), st.integers(1, 4))
def test_prefix_bounds_hold_exactly_the_keys_that_begin_so(
    drawn: tuple[list[pa.DataType], list[tuple[Any, ...]]], width: int
) -> None:
    kinds, rows = drawn
    codec, table = table_of(kinds, rows)
    encoded: list[Any] = codec.encode(table).to_pylist()
    ranks = [tuple(rank(value) for value in row) for row in rows]
    width = min(width, len(kinds))
    for row, ranked in zip(rows, ranks, strict=True):
        lo: Any = codec.prefix(row[:width])
        hi: Any = codec.after(row[:width])
        note(f"{row[:width]!r}: [{lo!r}, {hi!r})")
        for key, other in zip(encoded, ranks, strict=True):
            assert (lo <= key and (hi is None or key < hi)) == (other[:width] == ranked[:width])
    if width < len(kinds):
        for part in (table, table.slice(1), table.slice(0, 0)):
            lows, highs = codec.spans(part.select(range(width)))
            for row, lo, hi in zip(ranks[len(ranks) - len(part) :], lows.to_pylist(), highs.to_pylist(), strict=True):
                note(f"{row[:width]!r}: [{lo!r}, {hi!r})")
                for key, other in zip(encoded, ranks, strict=True):
                    assert (lo <= key and (hi is None or key < hi)) == (other[:width] == row[:width])


@settings(max_examples=50, deadline=None, print_blob=True)
@given(keyed_rows(), keyed_rows())
@pytest.mark.medium
def test_search(drawn: tuple[list[pa.DataType], list[tuple[Any, ...]]], more: Any) -> None:
    kinds, rows = drawn
    codec, table = table_of(kinds, rows)
    encoded = codec.encode(table)
    ordered = encoded.take(pa.array(key_codec.sort_indices(encoded)))
    values: list[Any] = ordered.to_pylist()
    assert key_codec.search(ordered, encoded).tolist() == [sum(v < k for v in values) for k in encoded.to_pylist()]
    assert key_codec.search(ordered, encoded, "right").tolist() == [
        sum(v <= k for v in values) for k in encoded.to_pylist()
    ]
    assert key_codec.search(ordered.slice(1), encoded).tolist() == [
        sum(v < k for v in values[1:]) for k in encoded.to_pylist()
    ]


@pytest.mark.parametrize("search", [key_codec._search_by_halves, key_codec._search_binary])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 8, 9, 500])
def test_binary_keys_are_found_with_each_version_of_pyarrow(search: Any, count: int) -> None:
    """Versions before 26 have no kernel for it."""
    rng = random.Random(count)
    keys = sorted(bytes(rng.choices(b"\0\1a\xff", k=rng.randrange(5))) for _ in range(count))
    needles = [*keys, *(key + b"\0" for key in keys), b"", b"\xff" * 9]
    rng.shuffle(needles)
    ordered = pa.array([b"~", *keys, b""], pa.binary()).slice(1, count)
    for side, place in (("left", bisect.bisect_left), ("right", bisect.bisect_right)):
        positions = search(ordered, pa.array(needles, pa.binary()), side)
        assert positions.dtype == np.int64 and positions.tolist() == [place(keys, needle) for needle in needles]
        single = [search(ordered, pa.array([needle], pa.binary()), side) for needle in needles]
        assert (
            all(array.dtype == np.int64 for array in single) and np.concatenate(single).tolist() == positions.tolist()
        )
    assert not len(search(ordered, pa.array([], pa.binary()), "left"))


@pytest.mark.planted
@pytest.mark.parametrize("bug", ["less_equal", "less"])
def test_a_search_on_the_wrong_side_of_equal_keys_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_codec.pc, "less_equal" if bug == "less" else "less", getattr(key_codec.pc, bug))
    with pytest.raises(AssertionError):
        test_binary_keys_are_found_with_each_version_of_pyarrow(key_codec._search_by_halves, 7)


@pytest.mark.parametrize("name", sorted(set(KINDS) - {"decimal128", "decimal256"}))
def test_single_keys_decode(name: str) -> None:
    kind, strategy = KINDS[name]

    @settings(max_examples=20, deadline=None, print_blob=True)
    @given(st.lists(strategy, max_size=5))
    def check(values: list[Any]) -> None:
        codec, table = table_of([kind], [(value,) for value in values])
        decoded = codec.decode(codec.encode(table))
        assert decoded.type == kind
        assert codec.encode(pa.table({"k0": decoded})).equals(codec.encode(table))
        assert [rank(v) for v in decoded.to_pylist()] == [rank(v) for v in table["k0"].to_pylist()]

    check()


@pytest.mark.parametrize(
    "kind, key_type",
    [
        (pa.int64(), pa.int64()),
        (pa.uint8(), pa.uint8()),
        (pa.float64(), pa.int64()),
        (pa.float32(), pa.int32()),
        (pa.date32(), pa.int32()),
        (pa.timestamp("us"), pa.int64()),
        (pa.bool_(), pa.uint8()),
        (pa.string(), pa.binary()),
        (pa.binary(4), pa.binary()),
        (pa.decimal128(9, 2), pa.binary()),
    ],
    ids=str,
)
def test_key_types(kind: pa.DataType, key_type: pa.DataType) -> None:
    codec = KeyCodec(pa.schema([("k", kind)]), ("k",))
    assert codec.key_type == key_type
    assert not codec.hidden
    composite = KeyCodec(pa.schema([("k", kind), ("l", kind)]), ("l", "k"))
    assert composite.key_type == pa.binary()
    assert composite.hidden
    assert composite.binary
    assert pickle.loads(pickle.dumps(composite)) == composite


def test_integer_keys_are_not_copied() -> None:
    codec, table = table_of([pa.int64()], [(3,), (1,)])
    assert codec.encode(table).buffers()[1].address == table["k0"].chunk(0).buffers()[1].address


def test_the_written_form_of_a_composite_key() -> None:
    codec, table = table_of([pa.int16(), pa.string(), pa.bool_()], [(-1, "a\0b", True)])
    assert codec.encode(table).to_pylist() == [b"\x7f\xff" + b"a\x00\xffb\x00\x00" + b"\x01"]


def test_ends_of_ranges() -> None:
    codec = KeyCodec(pa.schema([("k", pa.int8())]), ("k",))
    assert codec.after([127]) is None
    assert codec.after([126]) == 127
    pair = KeyCodec(pa.schema([("a", pa.uint8()), ("b", pa.uint8())]), ("a", "b"))
    assert pair.after([255]) is None
    assert pair.after([255, 255]) is None
    assert pair.after([1, 255]) == b"\x02"
    assert pair.above(b"\xff\xff") == b"\xff\xff\0"


@pytest.mark.parametrize(
    "value",
    ["x", "1", None, 300, 1.5, True, pa.scalar("1"), pa.scalar(None, pa.int8()), pa.scalar(300), pa.scalar(0.5)],
)
def test_bounds_of_the_wrong_type_are_refused(value: object) -> None:
    with pytest.raises(InvalidInput):
        KeyCodec(pa.schema([("k", pa.int8())]), ("k",)).prefix([value])


def test_bounds_take_arrow_scalars() -> None:
    codec = KeyCodec(pa.schema([("k", pa.timestamp("us"))]), ("k",))
    nanos = pa.scalar(5_000, pa.timestamp("ns"))
    assert codec.prefix([nanos]) == 5
    with pytest.raises(InvalidInput):
        codec.prefix([pa.scalar(5_001, pa.timestamp("ns"))])
    with pytest.raises(InvalidInput):
        codec.prefix([])


def test_bounds_are_never_rounded() -> None:
    single = KeyCodec(pa.schema([("k", pa.float32())]), ("k",))
    assert single.prefix([0.5]) == single.prefix([np.float32(0.5)])
    assert isinstance(single.prefix([math.nan]), int)
    with pytest.raises(InvalidInput, match="exactly"):
        single.prefix([0.1])
    day = KeyCodec(pa.schema([("k", pa.date32())]), ("k",))
    assert day.prefix([dt.date(1970, 1, 3)]) == 2
    with pytest.raises(InvalidInput):
        day.prefix([dt.datetime.fromisoformat("1970-01-03T05:00:00")])
    with pytest.raises(InvalidInput):
        KeyCodec(pa.schema([("k", pa.float64())]), ("k",)).prefix([2**53 + 1])
