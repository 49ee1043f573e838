"""Descriptors, and messages of subscriptions and staged exchanges, with one thing spoilt: what their codecs let
through has the declared types, and all else is one typed error.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

import msgpack
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochlog.errors import BadMessage, InvalidInput
from epochlog.exchange.flight import descriptors
from epochlog.exchange.staged import messages
from epochlog.exchange.subscription import messages as live
from message_mutations import places, replaced

pytestmark = pytest.mark.local_only

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 65), 1 << 65)
    | st.floats()
    | st.sampled_from(["", "x", "..", "é\0"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["", "table", "x"]), inner, max_size=3),
    max_leaves=4,
)  # fmt: skip


def has_type(value: Any, kind: Any) -> bool:
    if isinstance(kind, UnionType):
        return any(has_type(value, each) for each in get_args(kind))
    if get_origin(kind) is tuple:
        return type(value) is tuple and all(has_type(each, get_args(kind)[0]) for each in value)
    if is_dataclass(kind):
        return type(value) is kind and not wrong_fields(value)
    return type(value) in {NoneType: {NoneType}, None: {NoneType}, float: {int, float}}.get(kind, {kind})


def wrong_fields(message: Any) -> list[str]:
    hints = get_type_hints(type(message))
    return [field.name for field in fields(message) if not has_type(getattr(message, field.name), hints[field.name])]


# ---- subscriptions -----------------------------------------------------------------------------------------------

PLACE = live.FeedPosition(7, 5, 3)
LIVE: list[tuple[Any, Callable[[bytes], Any], type[Exception]]] = [
    (live.Request("orders"), live.decode_request, InvalidInput),
    (live.Request("orders", "dash", None, ("id", "v"), "snapshot"), live.decode_request, InvalidInput),
    (live.Request("orders", after=5), live.decode_request, InvalidInput),
    (live.Request("orders", resume=live.Resume("s", 1, PLACE, (2, 3), 4, 5)), live.decode_request, InvalidInput),
    (live.Request("orders", after=5, together=True), live.decode_request, InvalidInput),
    (live.Answer("took", 5), live.decode_answer, BadMessage),
    (live.SubscriptionWelcome("s", 1, PLACE, 2.0, 60.0, 3, 4), live.decode_server_message, BadMessage),
    (live.Mark("rows", live.CHANGES, 3, 4, last=True, size=5), live.decode_server_message, BadMessage),
    (live.Mark("epochs", live.CHANGES, 3, 9, last=True, size=5), live.decode_server_message, BadMessage),
    (live.Notice("acked", 5), live.decode_server_message, BadMessage),
]


def test_what_is_sent_arrives() -> None:
    for message, decode, _ in LIVE:
        assert decode(live.encode(message)) == message


def test_every_message_of_a_subscription_is_spoilt_here() -> None:
    own = {kind for kind in vars(live).values() if is_dataclass(kind)}
    assert own - {live.FeedPosition, live.Resume} == {type(message) for message, _, _ in LIVE}


@given(st.sampled_from(LIVE), st.data())
def test_a_field_of_a_subscription_spoilt(case: Any, data: st.DataObject) -> None:
    message, decode, error = case
    plain = json.loads(live.encode(message))
    spoilt = replaced(plain, data.draw(st.sampled_from(places(plain))), data.draw(PLAIN))
    try:
        decoded = decode(json.dumps(spoilt).encode())
    except error:
        return
    assert not wrong_fields(decoded), decoded


@given(st.sampled_from(LIVE), st.integers(0, 1 << 30), st.binary(max_size=6))
def test_bytes_of_a_subscription_spoilt(case: Any, place: int, new: bytes) -> None:
    message, decode, error = case
    data = live.encode(message)
    place %= len(data)
    with contextlib.suppress(error):
        assert not wrong_fields(decode(data[:place] + new + data[place + len(new) :]))


@given(st.binary(max_size=100))
def test_random_bytes_for_a_subscription(data: bytes) -> None:
    for _, decode, error in LIVE:
        with contextlib.suppress(error):
            decode(data)


# ---- descriptors -------------------------------------------------------------------------------------------------

COMMANDS: list[tuple[dict[str, Any], Callable[[list[bytes], bytes], Any], Any]] = [
    (
        {"read": "orders", "columns": ["id"], "consistency": "exact", "options": {"epochs_or_token": "x"}},
        descriptors.parse_reading,
        descriptors.Read,
    ),
    ({"read": "orders", "epoch": 5}, descriptors.parse_reading, descriptors.Read),
    (
        {"changes": "orders", "after": 5, "until": 7, "mode": "net", "pre_images": True, "columns": ["id", "v"]},
        descriptors.parse_reading,
        descriptors.ChangesCommand,
    ),
    (
        {"write": "orders", "txn": ["app", 42], "operation": "delete", "rows": 5},
        descriptors.parse_writing,
        descriptors.Write,
    ),
]


def sound_command(command: Any) -> bool:
    """Check that a command has only plain values of the declared types. Return True if its column names are strings."""
    hints = get_type_hints(type(command))
    values = {field.name: getattr(command, field.name) for field in fields(command)}
    numbers = [value for name, value in values.items() if name in ("epoch", "after", "until", "rows")]
    assert all(value is None or (type(value) is int and value >= 0) for value in numbers), command
    assert all(type(values[name]) is kind for name, kind in hints.items() if kind in (str, bool)), command
    return all(type(name) is str for name in values.get("columns") or ())


@given(st.sampled_from(COMMANDS), st.data())
def test_a_field_of_a_descriptor_spoilt(case: Any, data: st.DataObject) -> None:
    plain, parse, kind = case
    assert sound_command(parse([], json.dumps(plain).encode()))
    spoilt = replaced(plain, data.draw(st.sampled_from(places(plain))), data.draw(PLAIN))
    with contextlib.suppress(InvalidInput):
        command = parse([], json.dumps(spoilt).encode())
        assert isinstance(command, kind)
        assert sound_command(command)


@given(st.sampled_from(COMMANDS), st.integers(0, 1 << 30), st.binary(max_size=6))
def test_bytes_of_a_descriptor_spoilt(case: Any, place: int, new: bytes) -> None:
    plain, parse, _ = case
    data = json.dumps(plain).encode()
    place %= len(data)
    with contextlib.suppress(InvalidInput):
        assert sound_command(parse([], data[:place] + new + data[place + len(new) :]))


@given(st.lists(st.binary(max_size=30), max_size=3), st.binary(max_size=60))
def test_random_descriptors(path: list[bytes], command: bytes) -> None:
    for parse in (descriptors.parse_reading, descriptors.parse_writing):
        with contextlib.suppress(InvalidInput):
            assert sound_command(parse(path, command))


# ---- staged exchanges --------------------------------------------------------------------------------------------

VALUES: dict[str, Any] = {
    "query": "q",
    "consumer": "c",
    "consumers": ["c", "d"],
    "claimant": "a",
    "incarnations": {"c": 2},
    "channel": "build",
    "stages": [[-1, ["build"]], [0, ["probe"]]],
    "lease_ms": 5,
    "budget": None,
    "last": -1,
    "attempt": 0,
    "rows": 5,
    "incarnation": 2,
    "cursor": {"build": 3},
    "stage": -1,
    "id": 1,
    "seq": 0,
    "crc32": 5,
    "channels": [["build", -1, 3, None], ["probe", 0, 2, 1]],
    "wait_ms": 1000,
    "error": "Fenced",
    "final": True,
    "text": "t",
    "window": 1 << 20,
    "mail": "m",
    "line": 1,
    "bytes": 5,
    "kind": "item",
    "path": "x/y",
    "what": "gone",
    "pad": b"\0\0",
}
STAGED = {
    name: checks
    for name, checks in vars(messages).items()
    if name.isupper() and isinstance(checks, Mapping) and checks and name != "READER_MESSAGES"
}
"""What each message may hold, by name: whatever the codec knows."""


def message_of(checks: Mapping[str, Any]) -> dict[str, Any]:
    return {field: VALUES[field] for field in checks}


def test_every_message_of_a_staged_exchange_is_spoilt_here() -> None:
    assert len(STAGED) >= 14
    assert all(checks in STAGED.values() for checks in messages.READER_MESSAGES.values())
    for checks in STAGED.values():
        assert messages.unpack(messages.pack(**message_of(checks)), checks).keys() == checks.keys()


def sound(field: str, value: Any) -> bool:
    """Return True if a checked field has its declared type."""
    if field == "final":
        return type(value) is bool
    kinds: dict[str, Any] = {"stages": dict, "channels": dict, "cursor": dict | None, "pad": bytes}
    kinds |= {"consumers": tuple, "incarnations": dict}
    texts = {"claimant", "query", "consumer", "channel", "kind", "path", "what", "mail"}
    kind = kinds.get(field, str if field in texts else (str | None) if field in ("error", "text") else (int | None))
    return isinstance(value, kind) and not isinstance(value, bool)


@given(st.sampled_from(sorted(STAGED)), st.data())
def test_a_field_of_a_staged_exchange_spoilt(name: str, data: st.DataObject) -> None:
    checks = STAGED[name]
    plain = message_of(checks)
    spoilt = replaced(plain, data.draw(st.sampled_from(places(plain))), data.draw(PLAIN))
    try:
        packed = msgpack.packb(spoilt)
    except OverflowError:  # no msgpack
        return
    for decode in (lambda: messages.unpack(packed, checks), lambda: messages.decode_reader_message(packed)):
        with contextlib.suppress(BadMessage):
            message = decode()
            assert all(sound(field, value) for field, value in message.items()), message


@given(st.sampled_from(sorted(STAGED)), st.integers(0, 1 << 30), st.binary(max_size=6))
def test_bytes_of_a_staged_exchange_spoilt(name: str, place: int, new: bytes) -> None:
    data = messages.pack(**message_of(STAGED[name]))
    place %= len(data)
    with contextlib.suppress(BadMessage):
        message = messages.unpack(data[:place] + new + data[place + len(new) :], STAGED[name])
        assert all(sound(field, value) for field, value in message.items()), message


# ---- files ---------------------------------------------------------------------------------------------------------


@given(st.binary(max_size=200))
def test_a_file_travels_as_rows(data: bytes) -> None:
    assert messages.file_from_rows(messages.rows_from_file(pa.py_buffer(data))).to_pybytes() == data


NULLS = pa.RecordBatch.from_arrays([pa.array([1, None], pa.uint8())], schema=messages.FILE_SCHEMA)


def claiming_more() -> pa.RecordBatch:
    """A thousand rows, as a stranger says, in a buffer of 61 bytes."""
    data = bytearray(messages.rows_from_file(pa.py_buffer(bytes(61))).serialize())
    length, more = (61).to_bytes(8, "little"), (1_000).to_bytes(8, "little")
    for place in (
        data.index(length),
        data.rindex(length),
    ):  # of the batch and of its column; the buffer's stands between
        data[place : place + 8] = more
    return pa.ipc.read_record_batch(pa.py_buffer(bytes(data)), messages.FILE_SCHEMA)


@pytest.mark.parametrize("rows", [
    None, pa.record_batch({}), pa.record_batch({"file": [b"x"]}), pa.record_batch({"file": pa.array([1], pa.uint8())}),
    pa.record_batch({"file": pa.array([1], pa.int64()), "more": [1]}), NULLS, claiming_more(),
    messages.rows_from_file(pa.py_buffer(b"abc")).slice(1),
    messages.rows_from_file(pa.py_buffer(bytes(messages.MAX_BATCH + 1))),
])  # fmt: skip
def test_rows_that_are_no_file(rows: pa.RecordBatch | None) -> None:
    with pytest.raises(BadMessage):
        messages.file_from_rows(rows)


def test_the_largest_file_travels() -> None:
    assert (
        messages.file_from_rows(messages.rows_from_file(pa.py_buffer(bytes(messages.MAX_BATCH)))).size
        == messages.MAX_BATCH
    )


@pytest.mark.parametrize("size", [1, 8, 100, 5_000, 20_000, 1 << 20, messages.MAX_BATCH])
@pytest.mark.parametrize("name", [1, 20, 60, 100, 120, 200])
def test_padding_puts_the_file_at_a_multiple_of_eight(size: int, name: int) -> None:
    """In a message as Flight lays it out: the head of the rows, ours, then the rows themselves."""
    fields = {**message_of(messages.ITEM), "path": "p" * name}
    del fields["pad"]
    message = messages.pack_aligned(size, **fields)
    assert messages.decode_reader_message(message)["path"] == fields["path"]
    body = -(-size // 8) * 8
    assert (len(_field(messages._ROWS_HEAD)) + len(_field(len(message))) + 1 + len(_field(body)) - body) % 8 == 0


def _field(size: int) -> bytes:
    """A field of that many bytes, with a tag of one, in protobuf."""
    length = bytearray()
    left = size
    while left > 127:
        length.append(left & 127 | 128)
        left >>= 7
    length.append(left)
    return b"t" + bytes(length) + bytes(size)
