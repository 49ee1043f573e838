"""The messages of the control stream: what is sent is what arrives, and a stranger's bytes give BadMessage alone."""

from __future__ import annotations

import contextlib
from typing import Any

import msgpack
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epochlog.checkpoint import control_messages as wire
from epochlog.errors import BadMessage
from epochlog.store.metadata.state_tables import StateTable, ViewState
from epochlog.store.sst.segment import Segment
from epochlog.store.types.schema import TableSchema

PART = wire.PartName("load", "clicks_load", 3)
PATH = f"{'a' * 32}/t00000001/{'b' * 32}-{'c' * 32}.arrow"
SEGMENT = Segment(PATH, 1, 10, 2, 400, 7, b"a", b"z", {"id": (b"a", b"z")}, None, (b"a", b"m"))
GROUPS = TableSchema("groups", pa.schema([pa.field("g0", pa.int64(), False), ("n", pa.int64())]), ["g0"])
STATE = ViewState(0, "stamp", (StateTable(GROUPS, (SEGMENT,)), StateTable(GROUPS)), "", 1)
MESSAGES = [
    wire.Hello(wire.VERSION, "worker:1"),
    wire.Attach(PART, 4, ("clicks", "users"), True, 0, True),
    wire.Reported(PART, 1 << 40, 5, {"clicks": (SEGMENT, SEGMENT)}, b"state", False),
    wire.Reported(PART, 1, 5, {}, None, True),
    wire.Reported(PART, 1, 5, {"clicks": (SEGMENT,)}, wire.RefreshReport("recompute", "spark", STATE), False),
    wire.Reported(PART, 1, 5, {}, wire.RefreshReport("refresh", "part"), False),
    wire.Declined(PART, 1, 5, "cannot"),
    wire.Ended(PART, 1),
    wire.Progress(PART, 1),
    wire.Detached(PART, 1, "over"),
    wire.Ping(1),
    wire.Welcome(wire.VERSION, "run", 1000, 10_000),
    wire.Refused(PART, "InvalidInput", "no"),
    wire.Started(PART, 1, None, False),
    wire.Injected(PART, 1, 5, 0, 9, "initial", 4, False),
    wire.Committed(PART, 1, 5, 99, True),
    wire.Aborted(PART, 1, 5, "late"),
    wire.Restarted(PART, 1, True, "another"),
    wire.Stopped(PART, "stopped"),
    wire.Pong(1),
]


def test_every_message_arrives_as_it_was_sent() -> None:
    assert wire.decode(wire.encode(MESSAGES)) == MESSAGES
    assert {type(message) for message in MESSAGES} == set(wire._KINDS.values())


def reported(**changed: Any) -> bytes:
    record = {**SEGMENT.to_record(), **changed}
    return packed([3, list(PART), 1, 5, {"clicks": [record]}, None, False])


def packed(*messages: Any) -> bytes:
    message = msgpack.packb(list(messages))
    assert isinstance(message, bytes)
    return message


@pytest.mark.parametrize("changed", [
    {"path": f"../{PATH}"}, {"path": PATH.replace("t0000", "../0")}, {"path": PATH + "\n"}, {"path": "/etc/passwd"},
    {"path": PATH.replace(".arrow", ".parquet")}, {"path": None}, {"table_id": -1}, {"rows": 1.5}, {"rows": 1},
    {"bytes": True}, {"crc32": 1 << 63}, {"label": "x"}, {"key_min": None}, {"key_min": [1]}, {"key_max": 5},
    {"blocks": [1]}, {"blocks": None}, {"stats": []}, {"stats": {"id": 5}}, {"stats": {"id": [1]}}, {"more": 1},
])  # fmt: skip
def test_a_segment_that_no_writer_makes_is_refused(changed: dict[str, Any]) -> None:
    assert wire.decode(reported()) == [wire.Reported(PART, 1, 5, {"clicks": (SEGMENT,)}, None, False)]
    with pytest.raises(BadMessage):
        wire.decode(reported(**changed))


def reported_state(**changed: Any) -> bytes:
    report = {"operation": "refresh", "engine": "local", "state": {**STATE.to_record(), **changed}}
    return packed([3, list(PART), 1, 5, {}, report, False])


def table(**changed: Any) -> dict[str, Any]:
    return {**STATE.tables[0].to_record(), **changed}


@pytest.mark.parametrize("changed", [
    {"stamp": None}, {"stamp": 5}, {"without": b""}, {"disagreements": -1}, {"disagreements": True}, {"tables": None},
    {"tables": [5]}, {"tables": [{}]}, {"tables": [table()] * (wire.MAX_TABLES + 1)}, {"tables": [table(schema=b"")]},
    {"tables": [table(schema=GROUPS.to_bytes()[:-9])]}, {"tables": [table(schema=msgpack.packb({"format": 99}))]},
    {"tables": [table(schema=GROUPS.to_bytes().replace(b"\x40\x00\x00\x00", b"\x04\x00\x00\x00"))]},
    {"tables": [table(segments=[{**SEGMENT.to_record(), "path": "/etc/passwd"}])]}, {"tables": [table(segments=5)]},
])  # fmt: skip
def test_a_state_that_no_step_makes_is_refused(changed: dict[str, Any]) -> None:
    report = wire.RefreshReport("refresh", "local", STATE)
    assert wire.decode(reported_state()) == [wire.Reported(PART, 1, 5, {}, report, False)]
    with pytest.raises(BadMessage):
        wire.decode(reported_state(**changed))


@given(st.data())
@settings(max_examples=40)
def test_a_state_with_spoilt_columns(data: st.DataObject) -> None:
    """Either it is refused, or what comes of it can be sent again."""
    schema = bytearray(GROUPS.to_bytes())
    for place in data.draw(st.lists(st.integers(0, len(schema) - 1), min_size=1, max_size=3)):
        schema[place] = data.draw(st.integers(0, 255))
    frame = reported_state(tables=[table(schema=bytes(schema))])
    try:
        decoded = wire.decode(frame)
    except BadMessage:
        return
    assert wire.decode(wire.encode(decoded)) == decoded


@pytest.mark.parametrize("frame", [
    b"", b"\xc1", b"\x91", packed(5), packed([]), packed([True]), packed([99]), packed([6, list(PART)]),
    packed([6, ["load", "Bad Name", 0], 1]), packed([6, ["table", "x", 0], 1]), packed([6, ["load", "x", 1024], 1]),
    packed([6, ["load", "x", 0], -1]), packed([6, ["load", "x", 0], 1, 1]), packed([8, 1 << 63]),
    packed([1, 1, "x" * 4001]),
    packed([3, list(PART), 1, 5, {}, bytes((64 << 10) + 1), False]),
    packed([3, list(PART), 1, 5, {"../x": []}, None, False]),
    packed([3, list(PART), 1, 5, {}, {}, False]),
    packed([3, list(PART), 1, 5, {}, {"operation": "refresh", "engine": "a:b", "state": None}, False]),
    packed([3, list(PART), 1, 5, {}, {"operation": 5, "engine": "local", "state": None}, False]),
    packed([3, list(PART), 1, 5, {"clicks": [1]}, None, False]), packed([2, list(PART), 4, ["a"] * 257, False, 0]),
    packed(*[[8, 1]] * (wire.MAX_FRAME + 1)), b"\x91" * 5000, msgpack.packb(msgpack.ExtType(1, b"x")),
    msgpack.packb({"a": 1}), b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff",
])  # fmt: skip
def test_what_is_no_frame_is_refused(frame: bytes) -> None:
    with pytest.raises(BadMessage):
        wire.decode(frame)


@given(st.binary(max_size=400))
def test_random_bytes(frame: bytes) -> None:
    with contextlib.suppress(BadMessage):
        wire.decode(frame)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | st.sampled_from(["", "x", b""]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["", "x", 1]), inner, max_size=3),
    max_leaves=5,
)
MESSAGE = st.tuples(st.integers(0, 30), st.lists(PLAIN, max_size=8)).map(lambda fields: [fields[0], *fields[1]])


@given(st.lists(MESSAGE, max_size=3))
@settings(max_examples=40)
def test_random_messages(messages: list[Any]) -> None:
    with contextlib.suppress(BadMessage):
        wire.decode(packed(*messages))


@given(st.sampled_from(MESSAGES), st.data())
def test_sound_messages_with_one_field_spoilt(message: Any, data: st.DataObject) -> None:
    """Either it is refused, or what comes of it can be sent again."""
    plain = wire._plain(message)
    plain[data.draw(st.integers(0, len(plain) - 1))] = data.draw(PLAIN)
    try:
        decoded = wire.decode(packed(plain))
    except BadMessage:
        return
    assert wire.decode(wire.encode(decoded)) == decoded or "nan" in repr(decoded)
