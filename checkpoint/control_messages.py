"""Messages of the control stream as typed values, and the codec that checks untrusted bytes.

A frame is a msgpack list of messages. A message is a list: the number of its kind, then its fields in order. The
decoder checks every field before it builds a message, and raises BadMessage alone. A worker sends Hello, Attach,
Reported, Declined, Ended, Progress, Detached and Ping. A coordinator sends Welcome, Refused, Started, Injected,
Committed, Aborted, Restarted, Stopped and Pong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import msgpack

from epochlog.errors import BadMessage, Corrupt, EpochlogError
from epochlog.exchange.transport.message_fields import (
    MAX_NUMBER,
    Flag,
    Number,
    Text,
    checks_of,
    exactly,
    from_msgpack,
    number,
    one_of,
)
from epochlog.store.catalog.records import Record
from epochlog.store.commit.loads import MAX_STATE, MOST_PARTS
from epochlog.store.env.paths import is_segment_path
from epochlog.store.metadata.state_tables import ViewState
from epochlog.store.sst.segment import Segment
from epochlog.store.types.schema import is_name

VERSION = 3
MAX_FRAME = 4_096
"""Most messages of a frame."""
MAX_SEGMENTS = 10_000
"""Most segments of one report."""
MAX_TABLES = 256
MAX_REQUEST = 1_024
"""Most bytes of an action's body."""

Kind = Literal["load", "job"]


class PartName(NamedTuple):
    """Name of one actor: its load or job, and the index of its part."""

    kind: Kind
    name: str
    number: int  # from 0


# ---- checks of one field -------------------------------------------------------------------------------------------


def _state(value: Any) -> bytes | None:
    if value is not None and (type(value) is not bytes or len(value) > MAX_STATE):
        raise BadMessage(f"a state is neither null nor at most {MAX_STATE} bytes")
    return value


def _name(value: Any) -> str:
    if not is_name(value):
        raise BadMessage("the operation or the engine of a refresh is no name")
    return value


def _view_state(value: Any) -> ViewState | None:
    """Decode the state of a view. Raises BadMessage for one that no step makes."""
    if value is None:
        return None
    if type(value) is not dict:
        raise BadMessage("a view's state is neither null nor a map")
    try:
        state = ViewState.from_record(value)
    except EpochlogError:
        raise BadMessage("a view's state lacks a field, or has one of another type") from None
    if len(state.segments) > MAX_SEGMENTS or len(state.tables) > MAX_TABLES:
        raise BadMessage(f"a view's state has more than {MAX_TABLES} tables or {MAX_SEGMENTS} segments")
    number(state.disagreements)
    for segment in state.segments:
        _require_segment(segment)
    return state


def _reported_state(value: Any) -> bytes | RefreshReport | None:
    return RefreshReport(**exactly(value, checks_of(RefreshReport))) if type(value) is dict else _state(value)


def _part(value: Any) -> PartName:
    kind, name, index = _list(value, 3)
    if kind not in ("load", "job") or not _is_table(name) or number(index) >= MOST_PARTS:
        raise BadMessage("a part is not [load or job, name, index]")
    return PartName(kind, name, index)


def _tables(value: Any) -> tuple[str, ...]:
    if type(value) is not list or len(value) > MAX_TABLES or not all(map(_is_table, value)):
        raise BadMessage(f"tables are not a list of at most {MAX_TABLES} table names")
    return tuple(value)


def _segments(value: Any) -> dict[str, tuple[Segment, ...]]:
    if type(value) is not dict or len(value) > MAX_TABLES or not all(map(_is_table, value)):
        raise BadMessage(f"segments are not a map with at most {MAX_TABLES} table names as keys")
    if not all(type(records) is list for records in value.values()) or sum(map(len, value.values())) > MAX_SEGMENTS:
        raise BadMessage(f"segments are not lists, or more than {MAX_SEGMENTS}")
    return {table: tuple(map(_segment, records)) for table, records in value.items()}


def _segment(record: Any) -> Segment:
    """Decode a segment record; its path must be one that a segment writer makes, inside a table's folder."""
    try:
        segment = Segment.from_record(record)
    except Corrupt:
        raise BadMessage("a segment lacks a field, or has an unknown one") from None
    _require_segment(segment)
    return segment


def _require_segment(segment: Segment) -> None:
    """Raise BadMessage for a segment with a value that no writer makes."""
    numbers = (segment.table_id, segment.rows, segment.deletes, segment.bytes, segment.crc32)
    if type(segment.path) is not str or not is_segment_path(segment.path):
        raise BadMessage("a segment's path is not one that a segment writer makes")
    if not all(type(number) is int and 0 <= number <= MAX_NUMBER for number in numbers):
        raise BadMessage(f"a segment has a number that is not an integer from 0 to {MAX_NUMBER}")
    if segment.deletes > segment.rows:
        raise BadMessage("a segment has more deletes than rows")
    if segment.label is not None and type(segment.label) is not int:
        raise BadMessage("a segment's label is not an integer")
    keys = (segment.key_min, segment.key_max, *segment.blocks)
    key_type = type(segment.key_min)
    if key_type not in (int, bytes) or not all(type(key) is key_type for key in keys):
        raise BadMessage("a segment's keys are neither all integers nor all bytes")
    if not all(type(name) is str and len(bounds) == 2 for name, bounds in segment.stats.items()):
        raise BadMessage("a segment's statistics are not pairs of bounds by column")


def _is_table(value: Any) -> bool:
    return type(value) is str and is_name(value)


def _list(value: Any, length: int) -> list[Any]:
    if type(value) is not list or len(value) != length:
        raise BadMessage("a message lacks a field, or has too many")
    return value


@dataclass(frozen=True, slots=True)
class RefreshReport:
    """Report of a refresh by the part of a job, for the commit that a coordinator makes of it."""

    operation: Annotated[str, _name]
    """Name of the commit in the history of the job's outputs."""
    engine: Annotated[str, _name]
    state: Annotated[ViewState | None, _view_state] = None
    """State of a view after the refresh, of its only part; None if it keeps none."""

    def to_record(self) -> Record:
        state = None if self.state is None else self.state.to_record()
        return {"operation": self.operation, "engine": self.engine, "state": state}


State = Annotated[bytes | None, _state]
ReportedState = Annotated[bytes | RefreshReport | None, _reported_state]

# ---- messages ------------------------------------------------------------------------------------------------------

_KINDS: dict[int, type] = {}
_TAGS: dict[type, int] = {}
FIELD_NAMES: dict[type, tuple[str, ...]] = {}
"""The fields of each message class, in wire order."""
M = TypeVar("M", bound=type)


def _message(tag: int) -> Callable[[M], M]:
    """Register a message class under its number on the wire. Inherited fields come first."""

    def register(cls: M) -> M:
        _KINDS[tag], _TAGS[cls], FIELD_NAMES[cls] = cls, tag, tuple(checks_of(cls))
        return cls

    return register


@dataclass(frozen=True, slots=True)
class PartMessage:
    """Base of the messages about one part."""

    part: Annotated[PartName, _part]


@dataclass(frozen=True, slots=True)
class IncarnationMessage(PartMessage):
    """Base of the messages about one incarnation of a part."""

    incarnation: Number


@dataclass(frozen=True, slots=True)
class AttemptMessage(IncarnationMessage):
    """Base of the messages about one attempt, in which the part takes part."""

    barrier_id: Number


@_message(1)
@dataclass(frozen=True, slots=True)
class Hello:
    """First message of a worker on a new connection."""

    version: Number
    worker: Text
    """Name that the worker keeps for its lifetime."""


@_message(2)
@dataclass(frozen=True, slots=True)
class Attach(PartMessage):
    """Request to own a part, one of `parts`.

    tables and finish_tables declare a load; a job has none.
    """

    parts: Number
    tables: Annotated[tuple[str, ...], _tables]
    finish_tables: Flag
    incarnation: Number
    """Incarnation to resume; 0 for a new one."""
    take_over: Flag
    """True to fence the part's owner; else the request is refused with JobRunning while the part belongs to another
    worker.
    """


@_message(3)
@dataclass(frozen=True, slots=True)
class Reported(AttemptMessage):
    """Report of a part for one barrier: its sealed segments by table, and its state.

    The state of a load's part is bytes (None: unchanged), that of a job's part the report of its refresh.
    """

    segments: Annotated[Mapping[str, tuple[Segment, ...]], _segments]
    state: ReportedState
    ended: Flag


@_message(4)
@dataclass(frozen=True, slots=True)
class Declined(AttemptMessage):
    """Refusal of a part to report for one barrier."""

    reason: Text


@_message(5)
@dataclass(frozen=True, slots=True)
class Ended(IncarnationMessage):
    """Notice that the part's data has ended."""


@_message(6)
@dataclass(frozen=True, slots=True)
class Progress(IncarnationMessage):
    """Notice that the part has something to commit, for the first time since its last report."""


@_message(7)
@dataclass(frozen=True, slots=True)
class Detached(IncarnationMessage):
    """Notice that the part has left, and has dropped the work that it did not report."""

    reason: Text


@_message(8)
@dataclass(frozen=True, slots=True)
class Ping:
    """Heartbeat of a worker, answered with a Pong of its number."""

    number: Number


@_message(21)
@dataclass(frozen=True, slots=True)
class Welcome:
    """Answer to Hello. Times in ms."""

    version: Number
    run: Text
    """Name of the coordinator process; a restarted coordinator has another."""
    heartbeat_ms: Number
    timeout_ms: Number


@_message(22)
@dataclass(frozen=True, slots=True)
class Refused(PartMessage):
    """Refusal to attach the part."""

    error: Text
    """Name of a public error."""
    reason: Text


@_message(23)
@dataclass(frozen=True, slots=True)
class Started(IncarnationMessage):
    """Permission for the part to begin."""

    state: State
    """State of the last commit of the part; None if it has none."""
    finished: Flag


@_message(24)
@dataclass(frozen=True, slots=True)
class Injected(AttemptMessage):
    """Request to report for the barrier (prev, curr]."""

    prev: Number
    curr: Number
    kind: Annotated[str, one_of("initial", "checkpoint")]
    taken: Number
    """Newest barrier id whose report was accepted."""
    drain: Flag


@_message(25)
@dataclass(frozen=True, slots=True)
class Committed(AttemptMessage):
    """Notice that the attempt is committed."""

    epoch: Number
    finished: Flag
    """True if this commit finishes the part."""


@_message(26)
@dataclass(frozen=True, slots=True)
class Aborted(AttemptMessage):
    """Notice that the attempt is aborted."""

    reason: Text


@_message(27)
@dataclass(frozen=True, slots=True)
class Restarted(IncarnationMessage):
    """Notice that this incarnation has ended."""

    fenced: Flag
    """True if another worker owns the part; else it rolls back."""
    reason: Text


@_message(28)
@dataclass(frozen=True, slots=True)
class Stopped(PartMessage):
    """Notice that the load or job was stopped, or has failed."""

    reason: Text


@_message(29)
@dataclass(frozen=True, slots=True)
class Pong:
    """Answer to a Ping, with its number."""

    number: Number


DOWN = (Welcome, Refused, Started, Injected, Committed, Aborted, Restarted, Stopped, Pong)
Up = Hello | Attach | Reported | Declined | Ended | Progress | Detached | Ping
Down = Welcome | Refused | Started | Injected | Committed | Aborted | Restarted | Stopped | Pong
Message = Up | Down

# ---- frames --------------------------------------------------------------------------------------------------------


def encode(messages: Iterable[Message]) -> bytes:
    """Encode the messages as one frame."""
    frame = msgpack.packb([_plain(message) for message in messages], use_bin_type=True)
    assert isinstance(frame, bytes)
    return frame


def _plain(message: Message) -> list[Any]:
    """Return the message as the list that goes over the wire."""
    values = [getattr(message, name) for name in FIELD_NAMES[type(message)]]
    if isinstance(message, Reported):
        records = {table: [segment.to_record() for segment in segments] for table, segments in message.segments.items()}
        values[FIELD_NAMES[Reported].index("segments")] = records
        if isinstance(message.state, RefreshReport):
            values[FIELD_NAMES[Reported].index("state")] = message.state.to_record()
    return [_TAGS[type(message)], *values]


def decode(frame: bytes) -> list[Message]:
    """Decode a frame; its caller has limited its size. Raises BadMessage, and no other error."""
    messages = from_msgpack(frame, max_array_len=MAX_SEGMENTS, max_map_len=MAX_SEGMENTS)
    if type(messages) is not list or len(messages) > MAX_FRAME:
        raise BadMessage(f"a frame is not a list of at most {MAX_FRAME} messages")
    return [_decode_message(plain) for plain in messages]


def _decode_message(plain: Any) -> Message:
    if type(plain) is not list or not plain or type(plain[0]) is not int or plain[0] not in _KINDS:
        raise BadMessage(f"a message is of a kind that version {VERSION} does not know; use one version everywhere")
    message_type = _KINDS[plain[0]]
    names = FIELD_NAMES[message_type]
    values = _list(plain, len(names) + 1)[1:]
    return message_type(**exactly(dict(zip(names, values, strict=True)), checks_of(message_type)))


# ---- requests to a coordinator in one call -------------------------------------------------------------------------


def encode_request(kind: Kind, name: str, *, drain: bool = False) -> bytes:
    """Encode the body of the actions `checkpoint` and `stop`."""
    body = msgpack.packb([kind, name, drain])
    assert isinstance(body, bytes)
    return body


def decode_request(body: bytes) -> tuple[Kind, str, bool]:
    """Return kind, name and drain of an untrusted body. Raises BadMessage, and no other error."""
    if len(body) <= MAX_REQUEST:
        try:
            request = from_msgpack(body)
        except BadMessage:
            request = None
        if type(request) is list and list(map(type, request)) == [str, str, bool] and request[0] in ("load", "job"):
            return request[0], request[1], request[2]
    raise BadMessage("the action takes a msgpack list [kind, name, drain]")
