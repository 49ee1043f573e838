"""The messages of the control stream as typed values, and the codec between them and bytes from a stranger.

A frame is a msgpack list of messages, each a list: a number for its kind, then its fields in order. Every field is
checked before a value is made of it; what does not fit raises BadMessage, and nothing else does. Up go Hello, Attach,
Report, Decline, Ended, Progress, Detach and Ping; down go Welcome, Refused, Started, Injected, Committed, Aborted,
Restarted, Stopped and Pong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple, TypeVar

import msgpack

from epochlog.errors import BadMessage, Corrupt
from epochlog.store.commit.loads import MAX_STATE, MOST_PARTS
from epochlog.store.env.paths import is_segment_path
from epochlog.store.sst.segment import Segment
from epochlog.store.types.schema import is_name

VERSION = 1
MAX_TEXT = 4_000
MAX_FRAME = 4_096
"""Messages of a frame."""
MAX_SEGMENTS = 10_000
"""Segments of one report."""
MAX_TABLES = 256
MAX_REQUEST = 1_024
"""Bytes of an action's body."""
MAX_NUMBER = (1 << 63) - 1

Kind = Literal["load", "job"]
Check = Callable[[Any], Any]


class PartName(NamedTuple):
    """One actor: of which load or job, and which of its parts."""

    kind: Kind
    name: str
    number: int  # from 0


# ---- checks of one field -------------------------------------------------------------------------------------------


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MAX_NUMBER:
        raise BadMessage("a number is no whole number from 0")
    return value


def _text(value: Any) -> str:
    if type(value) is not str or len(value) > MAX_TEXT:
        raise BadMessage("a text is none, or too long")
    return value


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise BadMessage("a flag is neither true nor false")
    return value


def _state(value: Any) -> bytes:
    if type(value) is not bytes or len(value) > MAX_STATE:
        raise BadMessage(f"a state is no bytes, or more than {MAX_STATE}")
    return value


def _maybe_state(value: Any) -> bytes | None:
    return None if value is None else _state(value)


def _part(value: Any) -> PartName:
    kind, name, index = _list(value, 3)
    if kind not in ("load", "job") or not _is_table(name) or _number(index) >= MOST_PARTS:
        raise BadMessage("a part is none of a load or job")
    return PartName(kind, name, index)


def _barrier_kind(value: Any) -> str:
    if value not in ("initial", "checkpoint"):
        raise BadMessage("a barrier is of no kind")
    return value


def _tables(value: Any) -> tuple[str, ...]:
    if type(value) is not list or len(value) > MAX_TABLES or not all(map(_is_table, value)):
        raise BadMessage("tables are no names")
    return tuple(value)


def _segments(value: Any) -> dict[str, tuple[Segment, ...]]:
    if type(value) is not dict or len(value) > MAX_TABLES or not all(map(_is_table, value)):
        raise BadMessage("segments do not stand under names of tables")
    if not all(type(found) is list for found in value.values()) or sum(map(len, value.values())) > MAX_SEGMENTS:
        raise BadMessage(f"segments are no lists, or more than {MAX_SEGMENTS}")
    return {table: tuple(map(_segment, found)) for table, found in value.items()}


def _segment(record: Any) -> Segment:
    """A descriptor whose file lies in a table's own folder under a name that a writer gives."""
    try:
        found = Segment.from_record(record)
    except Corrupt:
        raise BadMessage("a segment lacks a field, or has one that none has") from None
    numbers = (found.table_id, found.rows, found.deletes, found.bytes, found.crc32)
    if type(found.path) is not str or not is_segment_path(found.path):
        raise BadMessage("a segment's path is none that a writer gives")
    if not all(type(number) is int and 0 <= number <= MAX_NUMBER for number in numbers) or found.deletes > found.rows:
        raise BadMessage("a segment's numbers are none")
    if found.label is not None and type(found.label) is not int:
        raise BadMessage("a segment's label is no number")
    keys = (found.key_min, found.key_max, *found.blocks)
    kind = type(found.key_min)
    if kind not in (int, bytes) or not all(type(key) is kind for key in keys):
        raise BadMessage("a segment's keys are none")
    if not all(type(name) is str and len(bounds) == 2 for name, bounds in found.stats.items()):
        raise BadMessage("a segment's bounds are none")
    return found


def _is_table(value: Any) -> bool:
    return type(value) is str and is_name(value)


def _list(value: Any, length: int) -> list[Any]:
    if type(value) is not list or len(value) != length:
        raise BadMessage("a message lacks a field, or has too many")
    return value


# ---- messages ------------------------------------------------------------------------------------------------------

_KINDS: dict[int, tuple[type, tuple[Check, ...]]] = {}
_TAGS: dict[type, int] = {}
M = TypeVar("M", bound=type)


def _message(tag: int, *checks: Check) -> Callable[[M], M]:
    def note(cls: M) -> M:
        assert len(fields(cls)) == len(checks), cls
        _KINDS[tag], _TAGS[cls] = (cls, checks), tag
        return cls

    return note


@_message(1, _number, _text)
@dataclass(frozen=True, slots=True)
class Hello:
    """A worker opens its line, for the first time or again. worker: its own name, the same as long as it lives."""

    version: int
    worker: str


@_message(2, _part, _number, _tables, _flag, _number)
@dataclass(frozen=True, slots=True)
class Attach:
    """The worker wants to be this part, of `parts`; with an incarnation: to go on as that one.

    tables and finish_tables declare a load; of a job there are none.
    """

    part: PartName
    parts: int
    tables: tuple[str, ...]
    finish_tables: bool
    incarnation: int


@_message(3, _part, _number, _number, _segments, _maybe_state, _flag)
@dataclass(frozen=True, slots=True)
class Reported:
    """Report of a part for one barrier: its sealed segments by table, and its state (None: unchanged)."""

    part: PartName
    incarnation: int
    barrier_id: int
    segments: Mapping[str, tuple[Segment, ...]]
    state: bytes | None
    ended: bool


@_message(4, _part, _number, _number, _text)
@dataclass(frozen=True, slots=True)
class Declined:
    part: PartName
    incarnation: int
    barrier_id: int
    reason: str


@_message(5, _part, _number)
@dataclass(frozen=True, slots=True)
class Ended:
    """The part's data has ended."""

    part: PartName
    incarnation: int


@_message(6, _part, _number)
@dataclass(frozen=True, slots=True)
class Progress:
    """The part has something to commit, the first since its last report."""

    part: PartName
    incarnation: int


@_message(7, _part, _number, _text)
@dataclass(frozen=True, slots=True)
class Detached:
    """The part has gone, and what it did not report with it."""

    part: PartName
    incarnation: int
    reason: str


@_message(8, _number)
@dataclass(frozen=True, slots=True)
class Ping:
    number: int


@_message(21, _number, _text, _number, _number)
@dataclass(frozen=True, slots=True)
class Welcome:
    """run: the coordinator's own name, another one when it is started again. Times in ms."""

    version: int
    run: str
    heartbeat_ms: int
    timeout_ms: int


@_message(22, _part, _text, _text)
@dataclass(frozen=True, slots=True)
class Refused:
    """The part cannot be attached. error: the name of a public error."""

    part: PartName
    error: str
    reason: str


@_message(23, _part, _number, _maybe_state, _flag)
@dataclass(frozen=True, slots=True)
class Started:
    """The part may begin, from the state given with its last commit (None: there was none)."""

    part: PartName
    incarnation: int
    state: bytes | None
    finished: bool


@_message(24, _part, _number, _number, _number, _number, _barrier_kind, _number, _flag)
@dataclass(frozen=True, slots=True)
class Injected:
    """The barrier (prev, curr]. taken: the newest barrier id of which the part's report was taken."""

    part: PartName
    incarnation: int
    barrier_id: int
    prev: int
    curr: int
    kind: str
    taken: int
    drain: bool


@_message(25, _part, _number, _number, _number, _flag)
@dataclass(frozen=True, slots=True)
class Committed:
    """finished: with this commit the part has finished."""

    part: PartName
    incarnation: int
    barrier_id: int
    epoch: int
    finished: bool


@_message(26, _part, _number, _number, _text)
@dataclass(frozen=True, slots=True)
class Aborted:
    part: PartName
    incarnation: int
    barrier_id: int
    reason: str


@_message(27, _part, _number, _flag, _text)
@dataclass(frozen=True, slots=True)
class Restarted:
    """This incarnation has ended. fenced: another has taken its place; else the part rolls back and attaches anew."""

    part: PartName
    incarnation: int
    fenced: bool
    reason: str


@_message(28, _part, _text)
@dataclass(frozen=True, slots=True)
class Stopped:
    """The load or job was stopped, or has failed."""

    part: PartName
    reason: str


@_message(29, _number)
@dataclass(frozen=True, slots=True)
class Pong:
    number: int


DOWN = (Welcome, Refused, Started, Injected, Committed, Aborted, Restarted, Stopped, Pong)
Up = Hello | Attach | Reported | Declined | Ended | Progress | Detached | Ping
Down = Welcome | Refused | Started | Injected | Committed | Aborted | Restarted | Stopped | Pong
Message = Up | Down

# ---- frames --------------------------------------------------------------------------------------------------------


def encode(messages: Iterable[Message]) -> bytes:
    """One frame."""
    packed = msgpack.packb([_plain(message) for message in messages], use_bin_type=True)
    assert isinstance(packed, bytes)
    return packed


def _plain(message: Message) -> list[Any]:
    tag = _TAGS[type(message)]
    values = [getattr(message, name) for name in _NAMES[tag]]
    if tag == 3:
        values[3] = {table: [found.to_record() for found in some] for table, some in values[3].items()}
    return [tag, *values]


def decode(frame: bytes) -> list[Message]:
    """The messages of a frame whose size was looked at before. Raises BadMessage, and nothing else."""
    try:
        found = msgpack.unpackb(
            frame, raw=False, strict_map_key=True, max_array_len=MAX_SEGMENTS, max_map_len=MAX_SEGMENTS, max_ext_len=0
        )
    except Exception:  # noqa: BLE001 (whatever a decoder makes of a stranger's bytes)
        raise BadMessage("a frame is no msgpack within the limits") from None
    if type(found) is not list or len(found) > MAX_FRAME:
        raise BadMessage(f"a frame is no list of at most {MAX_FRAME} messages")
    return [_made(each) for each in found]


def _made(plain: Any) -> Message:
    if type(plain) is not list or not plain or type(plain[0]) is not int or plain[0] not in _KINDS:
        raise BadMessage("a message is of no kind that this version knows")
    made, checks = _KINDS[plain[0]]
    given = _list(plain, len(checks) + 1)[1:]
    return made(*(check(value) for check, value in zip(checks, given, strict=True)))


_NAMES = {tag: tuple(field.name for field in fields(cls)) for tag, (cls, _) in _KINDS.items()}


# ---- what is asked of a coordinator in one call ----------------------------------------------------------------------


def encode_request(kind: Kind, name: str, *, drain: bool = False) -> bytes:
    """The body of the actions `checkpoint` and `stop`."""
    body = msgpack.packb([kind, name, drain])
    assert isinstance(body, bytes)
    return body


def decode_request(body: bytes) -> tuple[Kind, str, bool]:
    """Kind, name and drain of a body from a stranger. Raises BadMessage, and nothing else."""
    if len(body) <= MAX_REQUEST:
        try:
            found = msgpack.unpackb(body, raw=False)
        except Exception:  # noqa: BLE001 (whatever a decoder makes of a stranger's bytes)
            found = None
        if type(found) is list and [type(each) for each in found] == [str, str, bool] and found[0] in ("load", "job"):
            return found[0], found[1], found[2]
    raise BadMessage("the action takes a msgpack list [kind, name, drain]")
