"""Validation of untrusted input: sound data passes, other data raises a typed error and takes no memory."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epochlog.errors import BadMessage, EpochlogError, InvalidInput, LimitExceeded
from epochlog.exchange.transport import validation
from epochlog.exchange.transport.ipc_footer import WrongClaim, file_claims
from epochlog.exchange.transport.validation import BatchBounds, check_batch, check_file, check_schema, read_file

pytestmark = pytest.mark.local_only

CODECS = [None, "lz4", "zstd"]
WORDS = pa.array([None if i % 7 == 0 else f"a word longer than twelve {i}" for i in range(300)])
SOUND = pa.table(
    {
        "id": np.arange(300),
        "word": WORDS,
        "kind": pa.array([f"k{i % 10}" for i in range(300)]).dictionary_encode(),
        "list": [[i] * (i % 3) for i in range(300)],
        "deep": [{"a": i, "b": [str(i)]} for i in range(300)],
        "view": WORDS.cast(pa.string_view()),
        "pair": pa.array([[1, 2]] * 300, pa.list_(pa.int8(), 2)),
        "map": pa.array([[("k", 1)]] * 300, pa.map_(pa.string(), pa.int32())),
        "flag": [True, False, None] * 100,
        "none": pa.nulls(300),
    }
)


def as_file(table: pa.Table, codec: str | None = None, rows: int = 128) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_table(table, max_chunksize=rows)
    return sink.getvalue().to_pybytes()


FILES = {codec: as_file(SOUND, codec) for codec in CODECS}


@pytest.mark.parametrize("codec", CODECS)
def test_a_sound_file_is_read_whole_and_its_claims_are_true(codec: str | None) -> None:
    claims = check_file(FILES[codec])
    assert (claims.rows, claims.batches) == (300, 3)
    whole = pa.ipc.open_file(FILES[codec]).read_all()
    assert whole.get_total_buffer_size() <= claims.decoded < 1.1 * whole.get_total_buffer_size()
    assert read_file(FILES[codec]).equals(SOUND)
    assert read_file(pa.py_buffer(FILES[codec])).equals(SOUND)


def test_sound_batches_pass() -> None:
    check_schema(SOUND.schema)
    for batch in SOUND.to_batches():
        check_batch(batch)
        check_batch(batch.slice(10, 20))
        check_batch(batch.slice(0, 0))


# ---- too much ----------------------------------------------------------------------------------------------------


def zeros(codec: str | None) -> bytes:
    return as_file(pa.table({"a": np.zeros(1 << 20, np.int64)}), codec, 1 << 20)


@pytest.mark.parametrize("codec", CODECS)
def test_a_small_file_of_many_bytes_is_refused_undecoded(codec: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    data = zeros(codec)
    size = check_file(data, BatchBounds(bytes=8 << 20)).decoded
    assert size == 8 << 20
    with monkeypatch.context() as patch:
        patch.setattr(validation.pa.ipc, "open_file", None)  # whoever decodes fails
        for bounds in (BatchBounds(bytes=(8 << 20) - 1), BatchBounds(rows=(1 << 20) - 1)):
            with pytest.raises(LimitExceeded, match="smaller batches"):
                read_file(data, bounds)
    assert read_file(data, BatchBounds(rows=1 << 20, bytes=8 << 20)).num_rows == 1 << 20


def test_one_batch_named_twice_counts_twice() -> None:
    """The footer says where the batches lie; it may say so of the same bytes again and again."""
    table = pa.table({"a": np.zeros(1010, np.int64)})
    data = as_file(table, "zstd", 1000)
    (size,) = struct.unpack_from("<i", data, len(data) - 10)
    body, footer = data[: len(data) - 10 - size], data[len(data) - 10 - size :]
    starts = [place for place in range(16, len(body), 8) if body.startswith(b"\xff\xff\xff\xff", place)]
    first, second = (footer.index(struct.pack("<q", place)) for place in starts[:2])
    assert second == first + 24
    twice = body + footer[:second] + footer[first:second] + footer[second + 24 :]
    assert check_file(data).rows == 1010
    assert check_file(twice).rows == read_file(twice).num_rows == 2000
    assert check_file(twice).decoded == 16_000
    with pytest.raises(LimitExceeded):
        check_file(twice, BatchBounds(rows=1999))


WIDE = {
    "columns": (pa.schema([(f"c{i}", pa.int8()) for i in range(2_001)]), LimitExceeded),
    "name": (pa.schema([("é" * 128, pa.int8())]), LimitExceeded),
    "inner name": (pa.schema([("a", pa.struct([("x" * 256, pa.int8())]))]), LimitExceeded),
    "metadata": (pa.schema([("a", pa.int8())], {"k": "v" * (4 << 20)}), LimitExceeded),
    "fields": (pa.schema([("a", pa.struct([(f"f{i}", pa.int8()) for i in range(10_000)]))]), LimitExceeded),
    "run ends": (pa.schema([("a", pa.run_end_encoded(pa.int32(), pa.int8()))]), InvalidInput),
    "list view": (pa.schema([("a", pa.list_view(pa.int8()))]), InvalidInput),
    "inner list view": (pa.schema([("a", pa.map_(pa.string(), pa.large_list_view(pa.int8())))]), InvalidInput),
    "union": (pa.schema([("a", pa.sparse_union([pa.field("x", pa.int8())]))]), InvalidInput),
    "extension": (pa.schema([("a", pa.uuid())]), InvalidInput),
    "nested dictionary": (pa.schema([("a", pa.dictionary(pa.int8(), pa.list_(pa.int8())))]), InvalidInput),
}


@pytest.mark.parametrize("schema, error", WIDE.values(), ids=WIDE)
def test_a_schema_past_a_limit(schema: pa.Schema, error: type[EpochlogError]) -> None:
    with pytest.raises(error):
        check_schema(schema)


def deep(levels: int) -> pa.Schema:
    kind = pa.int8()
    for _ in range(levels - 1):
        kind = pa.list_(kind)
    return pa.schema([("a", kind)])


def test_the_deepest_and_widest_schemas() -> None:
    check_schema(deep(32))
    with pytest.raises(LimitExceeded, match="32 levels"):
        check_schema(deep(33))
    with pytest.raises(LimitExceeded):
        check_schema(deep(5_000))
    check_schema(pa.schema([("x" * 255, pa.int8()), *((f"c{i}", pa.int8()) for i in range(1_999))]))


def batch_of(array: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([array], ["a"])


def nulls(length: int) -> pa.Array:
    return pa.Array.from_buffers(pa.null(), length, [None])


def test_rows_and_bytes_at_their_bounds() -> None:
    batch = batch_of(pa.array(np.zeros(1000, np.int64)))
    check_batch(batch, BatchBounds(rows=1000, bytes=8000))
    for bounds in (BatchBounds(rows=999), BatchBounds(bytes=7999)):
        with pytest.raises(LimitExceeded, match="smaller batches"):
            check_batch(batch, bounds)


def seen_often(view: pa.Array, times: int) -> pa.Array:
    _, views, *rest = view.buffers()
    assert views is not None
    return pa.Array.from_buffers(view.type, times, [None, pa.py_buffer(views.to_pybytes()[:16] * times), *rest])


LONG = pa.array(["x" * (1 << 20)])
MANY = {
    "rows without bytes": nulls(1 << 40),
    "nulls in a list": pa.FixedSizeListArray.from_arrays(nulls((1 << 31) - 1), (1 << 31) - 1),
    "more values than an array has": pa.FixedSizeListArray.from_arrays(nulls(1 << 34), 1 << 30),
    "a long word by its number": pa.DictionaryArray.from_arrays(pa.array(np.zeros(1000, np.int8)), LONG),
    "a long word by its number, in a list": pa.ListArray.from_arrays(
        [0, 1000], pa.DictionaryArray.from_arrays(pa.array(np.zeros(1000, np.int8)), LONG)
    ),
    "a long view by its number": pa.DictionaryArray.from_arrays(
        pa.array(np.zeros(1000, np.int8)), LONG.cast(pa.string_view())
    ),
    "a long word seen often": seen_often(LONG.cast(pa.string_view()), 1000),
    "wide values by their number": pa.DictionaryArray.from_arrays(
        pa.array(np.zeros(1000, np.int8)), pa.array([bytes(1 << 20)], pa.binary(1 << 20))
    ),
}  # fmt: skip


@pytest.mark.parametrize("array", MANY.values(), ids=MANY)
def test_what_is_small_and_stands_for_much(array: pa.Array) -> None:
    assert array.get_total_buffer_size() < 4 << 20
    with pytest.raises(LimitExceeded):
        check_batch(batch_of(array))


# ---- unsound -----------------------------------------------------------------------------------------------------


INT = struct.Struct("<i").pack
TWO = pa.array(["abc", "def"])
LONG_VIEW = pa.array(["a view of text"], pa.string_view())
UNSOUND: dict[str, tuple[pa.Array, bytes, bytes]] = {
    "offset past the end": (TWO, INT(3) + INT(6), INT(3) + INT(1 << 30)),
    "falling offsets": (TWO, INT(3) + INT(6), INT(3) + INT(2)),
    "negative offset": (TWO, INT(0) + INT(3) + INT(6), INT(-5) + INT(3) + INT(6)),
    "no text": (TWO, b"abcdef", b"abc\xffef"),
    "more nulls than values": (TWO, struct.pack("<qq", 2, 0), struct.pack("<qq", 2, 5)),
    "more values than bytes": (TWO, struct.pack("<qq", 2, 0), struct.pack("<qq", 2_000, 0)),
    "index past the dictionary": (TWO.take([1, 0, 1]).dictionary_encode(), INT(0) + INT(1) + INT(0), INT(9) * 3),
    "list past its values": (pa.array([[1], [2, 3]]), INT(0) + INT(1) + INT(3), INT(0) + INT(1) + INT(99)),
    "view past its buffer": (LONG_VIEW, INT(14) + b"a vi" + INT(0) + INT(0), INT(14) + b"a vi" + INT(0) + INT(99)),
    "view of no buffer": (LONG_VIEW, INT(14) + b"a vi" + INT(0) + INT(0), INT(14) + b"a vi" + INT(7) + INT(0)),
    "view of negative length": (LONG_VIEW, INT(14) + b"a vi", INT(-14) + b"a vi"),
}


@pytest.mark.parametrize("array, old, new", UNSOUND.values(), ids=UNSOUND)
def test_an_unsound_batch_is_refused(array: pa.Array, old: bytes, new: bytes) -> None:
    """As it comes out of Arrow's reader, which looks into no values."""
    check_batch(batch_of(array))
    for data in at_each(as_file(pa.table({"a": array})), old, new):
        with pytest.raises(BadMessage), validation.decoding("a record batch"):
            check_batch(pa.ipc.open_file(data).get_batch(0))
        with pytest.raises(BadMessage):
            read_file(data)


def at_each(data: bytes, old: bytes, new: bytes) -> Iterator[bytes]:
    """The data with one place of `old` replaced, each in turn."""
    place = data.find(old)
    assert place >= 0
    while place >= 0:
        yield data[:place] + new + data[place + len(old) :]
        place = data.find(old, place + 1)


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
@pytest.mark.parametrize("claim", [0, 1, -1, -2, (8 << 20) - 8, (8 << 20) + 8, 1 << 40, 1 << 62, -(1 << 63)])
def test_a_false_size_before_a_compressed_buffer(codec: str, claim: int) -> None:
    magic = b"\x04\x22\x4d\x18" if codec == "lz4" else b"\x28\xb5\x2f\xfd"
    size = struct.pack("<q", 8 << 20)
    (spoilt,) = at_each(zeros(codec), size + magic, struct.pack("<q", claim) + magic)
    with pytest.raises((BadMessage, LimitExceeded)):
        read_file(spoilt)


@pytest.mark.parametrize("offset, length", [(-8, 16), (8, -16), (0, 1 << 40), (8, 16), (1 << 62, 1 << 62)])
def test_a_buffer_that_lies_elsewhere_is_refused_undecoded(offset: int, length: int) -> None:
    data = as_file(pa.table({"a": [1, 2]}))
    place = struct.pack("<qq", 0, 16)
    for spoilt in at_each(data, place, struct.pack("<qq", offset, length)):
        with pytest.raises(BadMessage, match="does not fit"):
            check_file(spoilt)


@pytest.mark.parametrize("claim", [-2, -(1 << 63)])
def test_a_negative_size_before_a_compressed_buffer_is_refused_undecoded(claim: int) -> None:
    for spoilt in at_each(zeros("zstd"), struct.pack("<q", 8 << 20) + b"\x28", struct.pack("<q", claim) + b"\x28"):
        with pytest.raises(BadMessage, match="after decompression"):
            check_file(spoilt)


@pytest.mark.parametrize("data", [
    b"", b"ARROW1", b"ARROW1\0\0" * 5, FILES[None][:-1], FILES[None][1:], FILES[None][:-6] + b"ARROW2",
    FILES[None][:-10] + struct.pack("<i", -1) + b"ARROW1", FILES[None][:-10] + struct.pack("<i", 1 << 30) + b"ARROW1",
    FILES[None][:-10] + struct.pack("<i", 0) + b"ARROW1", b"ARROW1\0\0" + FILES[None][-200:],
])  # fmt: skip
def test_what_is_no_file(data: bytes) -> None:
    with pytest.raises(BadMessage, match="not an Arrow IPC file"):
        check_file(data)


def test_cut_anywhere() -> None:
    data = FILES["lz4"]
    for end in range(0, len(data), 7):
        with pytest.raises(BadMessage):
            read_file(data[:end])


def spoilt(data: bytes, rng: random.Random) -> bytes:
    """A few places changed: bytes, bits, numbers of four and eight bytes, a piece of it put elsewhere."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        place, way = rng.randrange(len(changed) - 16), rng.random()
        if way < 0.3:
            changed[place] = rng.randrange(256)
        elif way < 0.5:
            changed[place] ^= 1 << rng.randrange(8)
        elif way < 0.9:
            width = rng.choice((4, 8))
            place -= place % width
            number = rng.choice((0, 1, -1, 1 << 20, 1 << 31, -(1 << 31), 1 << 40, (1 << 63) - 1, 1 << 63))
            changed[place : place + width] = (number & ((1 << 8 * width) - 1)).to_bytes(width, "little")
        else:
            source = rng.randrange(len(changed) - 16)
            changed[place : place + 16] = changed[source : source + 16]
    return bytes(changed)


def used(table: pa.Table) -> Any:
    """Everything that computes something of the values."""
    return table.nbytes, table.to_pylist(), [column.cast(column.type) for column in table.columns]


@given(st.sampled_from(CODECS), st.integers(0, 1 << 62))
@settings(max_examples=150)
def test_spoilt_files(codec: str | None, seed: int) -> None:
    """Each is refused with a typed error, or is a table all of which can be used."""
    try:
        batch = read_file(spoilt(FILES[codec], random.Random(seed)), BatchBounds(rows=10_000, bytes=1 << 20))
    except (BadMessage, InvalidInput):
        return
    assert batch.num_rows <= 10_000
    used(batch)


@given(st.binary(max_size=200), st.sampled_from([b"", b"ARROW1\0\0"]), st.sampled_from([b"", b"\x40\0\0\0ARROW1"]))
def test_random_bytes(data: bytes, head: bytes, tail: bytes) -> None:
    with pytest.raises((BadMessage, InvalidInput)):
        read_file(head + data + tail)


def test_claims_and_decoder_agree() -> None:
    """The claims of a spoilt file that decodes bound the batches, rows and memory of its decoding."""
    rng, decoded = random.Random(5), 0
    for _ in range(300):
        data = spoilt(FILES["zstd"], rng)
        try:
            claims = file_claims(memoryview(data))
            reader = pa.ipc.open_file(data)
            batches = [reader.get_batch(place) for place in range(reader.num_record_batches)]
        except (WrongClaim, pa.ArrowException, OSError, UnicodeError):
            continue
        decoded += 1
        assert claims.batches == len(batches)
        assert claims.rows == sum(batch.num_rows for batch in batches)
        assert pa.Table.from_batches(batches).get_total_buffer_size() <= claims.decoded
    assert decoded > 30
