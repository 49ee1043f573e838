"""Messages between a subscriber and its server: small JSON objects, every field checked before it is used (pure).

The command of the exchange is a Request. The server answers with a SubscriptionWelcome, then sends record batches of
the table's columns and the change columns, each with a Mark in its metadata. A Mark without rows comes alone. A client
answers with the number of bytes that it took, and with acknowledgements.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, TypeVar

from epochlog.errors import BadMessage, InvalidInput
from epochlog.store.changelog.consumers import KEEP
from epochlog.store.types.epoch import MAX_EPOCH

SUBSCRIBE = b"subscribe"
"""Name of the exchange."""
SNAPSHOT, CHANGES = "snapshot", "changes"
STAGES = {-1: [SNAPSHOT], 0: [CHANGES]}
"""Stages of a subscription's two channels: all rows of the table come before the first change."""
MAX_REQUEST = 1 << 16
"""Largest number of bytes of a request."""
MAX_ANSWER = 4_096
"""Largest number of bytes of any other message."""
MAX_NUMBER = (1 << 63) - 1

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FeedPosition:
    """Position of a feed in a table."""

    snapshot: int | None = None
    """Epoch of the table's rows, while they are being sent."""
    after: int = 0
    """Epoch through which all changes were sent, if `snapshot` is None."""
    rows: int = 0
    """Number of rows sent beyond that."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Position at which a subscriber resumes over a new connection."""

    store: str
    table: int
    place: FeedPosition
    seqs: tuple[int, int]
    """Next sequence of each channel, in the order of the stages."""
    held: int = 0
    """Bytes that were received but not yet taken."""
    incarnation: int | None = None
    schema: int = 0
    """Version of the table's schema whose columns the subscriber has."""


@dataclass(frozen=True, slots=True)
class Request:
    """Request for a subscription. too_old, keep_s: the consumer's policies; with keep_s None its hold never expires."""

    table: str
    consumer: str | None = None
    """Durable name."""
    after: int | None = None
    """Epoch, or None to begin with the rows."""
    columns: tuple[str, ...] | None = None
    """None for all."""
    too_old: str = "error"
    keep_s: float | None = KEEP.total_seconds()
    resume: Resume | None = None


@dataclass(frozen=True, slots=True)
class SubscriptionWelcome:
    """First message of the server: the position at which the subscription begins."""

    store: str
    table: int
    place: FeedPosition
    beat_s: float
    """Longest time without a message of the server."""
    slow_s: float
    """Longest time that a reader may take nothing while bytes wait for it."""
    incarnation: int | None = None
    acked: int | None = None
    schema: int = 0


@dataclass(frozen=True, slots=True)
class Mark:
    """Mark of a channel. kind "rows": a batch of one epoch, `last` if it is the epoch's last one; "passed": the channel
    is complete through the epoch, and no rows come with the mark; "end": the channel ends before sequence `seq`.
    """

    kind: str
    channel: str = CHANGES
    seq: int = 0
    epoch: int = 0
    last: bool = False
    size: int = 0
    """Batch's bytes, as the window counts them."""


@dataclass(frozen=True, slots=True)
class Notice:
    """Notice of the server. kind "beat": the server is alive; "acked": the acknowledgement of `epoch` is durable;
    "over": an error ends the exchange, and the client gets it after it has ended its own side.
    """

    kind: str
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer of a client. kind "took": `number` more bytes were taken; "ack": all changes through epoch `number` are
    processed; "here": the answer to a beat.
    """

    kind: str
    number: int = 0


def encode(message: Request | SubscriptionWelcome | Mark | Notice | Answer) -> bytes:
    members = asdict(message)
    for part in (members, members.get("resume") or {}):
        if part.get("schema") == 0:  # of a table that was never altered; earlier releases do not know the field
            del part["schema"]
    return json.dumps(members, separators=(",", ":")).encode()


def decode_request(data: bytes) -> Request:
    """Decode a subscriber's request. Raises InvalidInput."""
    try:
        members = _decode_object(data, MAX_REQUEST, Request)
        resume = members.get("resume")
        if resume is not None:
            members["resume"] = _decode_resume(resume)
        request = Request(**members)
    except BadMessage as error:
        raise InvalidInput(f"the request of a subscription is invalid: {error}") from None
    columns: Any = request.columns
    names = columns is None or (type(columns) is list and all(type(name) is str for name in columns))
    if type(request.table) is not str or not names or type(request.too_old) is not str:
        raise InvalidInput(
            'the request of a subscription needs strings as "table" and "too_old", and a list of names or null as '
            '"columns"'
        )
    if request.consumer is not None and type(request.consumer) is not str:
        raise InvalidInput('a subscription\'s "consumer" is a name')
    if request.keep_s is not None and (type(request.keep_s) not in (int, float) or not 0 <= request.keep_s < math.inf):
        raise InvalidInput('a subscription\'s "keep_s" is a number of seconds, or null')
    if request.after is not None and request.consumer is not None:
        raise InvalidInput(
            "a consumer resumes at its own position and takes no `after`; store.reset_consumer(name, to) changes the "
            "position"
        )
    if request.after is not None and not _is_number(request.after, MAX_EPOCH):
        raise InvalidInput(f'a subscription\'s "after" is an epoch, not {str(request.after)[:40]}')
    return replace(request, columns=None if columns is None else tuple(columns))


def decode_answer(data: bytes) -> Answer:
    """Decode a subscriber's answer. Raises BadMessage."""
    answer = Answer(**_decode_object(data, MAX_ANSWER, Answer))
    if answer.kind not in ("took", "ack", "here") or not _is_number(answer.number):
        raise BadMessage("a subscriber's answer has an unknown kind or an invalid number")
    return answer


def decode_server_message(data: bytes) -> SubscriptionWelcome | Mark | Notice:
    """Decode a message of the server. Raises BadMessage."""
    members = _decode_object(data, MAX_ANSWER, None)
    if "place" in members:
        return _decode_welcome(_check_fields(members, SubscriptionWelcome))
    if "channel" in members:
        mark = Mark(**_check_fields(members, Mark))
        numbers = all(_is_number(number) for number in (mark.seq, mark.epoch, mark.size))
        valid = mark.kind in ("rows", "passed", "end") and mark.channel in (SNAPSHOT, CHANGES)
        if not valid or not numbers or type(mark.last) is not bool:
            raise BadMessage("a mark has an unknown kind or channel, or an invalid number")
        return mark
    notice = Notice(**_check_fields(members, Notice))
    if notice.kind not in ("beat", "acked", "over") or not _is_number(notice.epoch):
        raise BadMessage("a notice has an unknown kind or an invalid epoch")
    return notice


def _decode_welcome(members: dict[str, Any]) -> SubscriptionWelcome:
    welcome = SubscriptionWelcome(**{**members, "place": _decode_position(members["place"])})
    times = (welcome.beat_s, welcome.slow_s)
    if (
        type(welcome.store) is not str
        or not _is_number(welcome.table)
        or not all(type(s) in (int, float) for s in times)
    ):
        raise BadMessage("a welcome has an invalid store, table or time")
    numbers = (welcome.incarnation, welcome.acked, welcome.schema)
    if not all(number is None or _is_number(number) for number in numbers):
        raise BadMessage("a welcome has an invalid incarnation or acknowledged epoch")
    return welcome


def _decode_resume(members: Any) -> Resume:
    resume = Resume(**_check_fields(members, Resume))
    seqs: Any = resume.seqs
    incarnation = resume.incarnation
    if type(seqs) is not list or len(seqs) != 2 or not all(_is_number(seq) for seq in seqs):
        raise BadMessage("`resume` has invalid sequences")
    numbers = all(map(_is_number, (resume.table, resume.held, resume.schema)))
    numbers = numbers and (incarnation is None or _is_number(incarnation))
    if type(resume.store) is not str or not numbers:
        raise BadMessage("`resume` has an invalid store, table or number")
    return replace(resume, place=_decode_position(resume.place), seqs=(seqs[0], seqs[1]))


def _decode_position(members: Any) -> FeedPosition:
    position = FeedPosition(**_check_fields(members, FeedPosition))
    epochs = (position.after, position.after if position.snapshot is None else position.snapshot)
    if not _is_number(position.rows) or not all(_is_number(epoch, MAX_EPOCH) for epoch in epochs):
        raise BadMessage("`place` has an invalid epoch or number of rows")
    return position


def _decode_object(data: bytes, max_bytes: int, kind: type | None) -> dict[str, Any]:
    if len(data) > max_bytes:
        raise BadMessage(f"the message has {len(data)} bytes; it may have at most {max_bytes}")
    try:
        members = json.loads(data)
    except (ValueError, RecursionError):
        raise BadMessage("the message is not JSON") from None
    if type(members) is not dict:
        raise BadMessage("the message is not a JSON object")
    return members if kind is None else _check_fields(members, kind)


def _check_fields(members: Any, kind: type) -> dict[str, Any]:
    """Check that a JSON object has only fields of the dataclass `kind`, and all that have no default; return it. Raises
    BadMessage.
    """
    if type(members) is not dict:
        raise BadMessage(f"a {kind.__name__} is not a JSON object")
    kind_fields: Any = fields(kind)
    unknown = sorted(members.keys() - {field_info.name for field_info in kind_fields})
    if unknown:
        names = ", ".join(field_info.name for field_info in kind_fields)
        raise BadMessage(f"there is no field {unknown[0][:40]!r}; the fields are {names}")
    required = [field_info.name for field_info in kind_fields if field_info.default is field().default]
    missing = [name for name in required if name not in members]
    if missing:
        raise BadMessage(f"{missing[0]!r} is missing")
    return members


def _is_number(value: object, limit: int = MAX_NUMBER) -> bool:
    return type(value) is int and 0 <= value <= limit
