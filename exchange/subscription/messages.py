"""Messages between a subscriber and its server: small JSON objects, every field checked before it is used (pure).

The command of the exchange is a Request. The server answers with a Welcome, then sends record batches of the table's
columns and the change columns, each with a Mark in its metadata, and Marks alone where no rows are. A client answers
with what it took, and with acknowledgements.
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
"""The name of the exchange."""
SNAPSHOT, CHANGES = "snapshot", "changes"
STAGES = {-1: [SNAPSHOT], 0: [CHANGES]}
"""A table's log as channels of a staged exchange: its rows come whole before the first change."""
MAX_REQUEST = 1 << 16
"""Bytes of a request."""
MAX_ANSWER = 4_096
"""Bytes of any other message."""
MAX_NUMBER = (1 << 63) - 1

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FeedPosition:
    """Position in a table that was given out: in its rows at epoch `snapshot`, or, when that is None, in its log after
    epoch `after`, through which all of it was given. rows: the number of rows given out beyond that.
    """

    snapshot: int | None = None
    after: int = 0
    rows: int = 0


@dataclass(frozen=True, slots=True)
class Resume:
    """Position at which a subscriber resumes over a new connection. seqs: the next sequence of each channel, in the
    order of the stages. held: bytes received before that it has yet to take.
    """

    store: str
    table: int
    place: FeedPosition
    seqs: tuple[int, int]
    held: int = 0
    incarnation: int | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """Request for a subscription. consumer: the durable name; after: an epoch, or None for the rows first; columns:
    None for all. too_old, keep_s: the consumer's policies; keep_s None keeps it for good.
    """

    table: str
    consumer: str | None = None
    after: int | None = None
    columns: tuple[str, ...] | None = None
    too_old: str = "error"
    keep_s: float | None = KEEP.total_seconds()
    resume: Resume | None = None


@dataclass(frozen=True, slots=True)
class SubscriptionWelcome:
    """First message of the server: the position at which the subscription begins. beat_s: the longest time without a
    message of the server; slow_s: the longest time that a reader may take nothing while something waits for it.
    """

    store: str
    table: int
    place: FeedPosition
    beat_s: float
    slow_s: float
    incarnation: int | None = None
    acked: int | None = None


@dataclass(frozen=True, slots=True)
class Mark:
    """Mark of a channel. kind "rows": a batch of one epoch, `last` when no more of it comes; "passed": nothing through
    that epoch is left out, and no rows come with it; "end": the channel ends before sequence `seq`. size: the batch's
    bytes, as the window counts them.
    """

    kind: str
    channel: str = CHANGES
    seq: int = 0
    epoch: int = 0
    last: bool = False
    size: int = 0


@dataclass(frozen=True, slots=True)
class Notice:
    """Notice of the server. kind "beat": the server lives; "acked": through `epoch`, durably; "over": an error ends the
    exchange, which the client learns when it has ended its own side.
    """

    kind: str
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer of a client. kind "took": so many bytes more; "ack": all through that epoch; "here": the answer to
    a beat.
    """

    kind: str
    number: int = 0


def encode(message: Request | SubscriptionWelcome | Mark | Notice | Answer) -> bytes:
    return json.dumps(asdict(message), separators=(",", ":")).encode()


def decode_request(data: bytes) -> Request:
    """Decode a subscriber's request. Raises InvalidInput, which tells the subscriber the fault."""
    try:
        given = _object(data, MAX_REQUEST, Request)
        resume = given.get("resume")
        if resume is not None:
            given["resume"] = _resume(resume)
        found = Request(**given)
    except BadMessage as error:
        raise InvalidInput(f"a subscription's request is wrong: {error}") from None
    columns: Any = found.columns
    names = columns is None or (type(columns) is list and all(type(name) is str for name in columns))
    if type(found.table) is not str or not names or type(found.too_old) is not str:
        raise InvalidInput('a subscription\'s request names a "table", and its "columns" as a list of names')
    if found.consumer is not None and type(found.consumer) is not str:
        raise InvalidInput('a subscription\'s "consumer" is a name')
    if found.keep_s is not None and (type(found.keep_s) not in (int, float) or not 0 <= found.keep_s < math.inf):
        raise InvalidInput('a subscription\'s "keep_s" is a number of seconds, or null')
    if found.after is not None and found.consumer is not None:
        raise InvalidInput(
            "a consumer goes on after what it acknowledged and takes no `after`; store.reset_consumer(name, to) moves "
            "it"
        )
    if found.after is not None and not _is_number(found.after, MAX_EPOCH):
        raise InvalidInput(f'a subscription\'s "after" is an epoch, not {str(found.after)[:40]}')
    return replace(found, columns=None if columns is None else tuple(columns))


def decode_answer(data: bytes) -> Answer:
    """Decode a subscriber's answer. Raises BadMessage."""
    found = Answer(**_object(data, MAX_ANSWER, Answer))
    if found.kind not in ("took", "ack", "here") or not _is_number(found.number):
        raise BadMessage("a subscriber's answer is of no kind, or without its number")
    return found


def decode_news(data: bytes) -> SubscriptionWelcome | Mark | Notice:
    """Decode a message of the server. Raises BadMessage."""
    given = _object(data, MAX_ANSWER, None)
    if "place" in given:
        return _welcome(_checked(given, SubscriptionWelcome))
    if "channel" in given:
        mark = Mark(**_checked(given, Mark))
        numbers = all(_is_number(number) for number in (mark.seq, mark.epoch, mark.size))
        known = mark.kind in ("rows", "passed", "end") and mark.channel in (SNAPSHOT, CHANGES)
        if not known or not numbers or type(mark.last) is not bool:
            raise BadMessage("a mark is of no kind, channel or number")
        return mark
    notice = Notice(**_checked(given, Notice))
    if notice.kind not in ("beat", "acked", "over") or not _is_number(notice.epoch):
        raise BadMessage("a notice is of no kind")
    return notice


def _welcome(given: dict[str, Any]) -> SubscriptionWelcome:
    found = SubscriptionWelcome(**{**given, "place": _place(given["place"])})
    times = (found.beat_s, found.slow_s)
    if type(found.store) is not str or not _is_number(found.table) or not all(type(s) in (int, float) for s in times):
        raise BadMessage("a welcome lacks its store, table or times")
    if not all(number is None or _is_number(number) for number in (found.incarnation, found.acked)):
        raise BadMessage("a welcome's numbers are none")
    return found


def _resume(given: Any) -> Resume:
    found = Resume(**_checked(given, Resume))
    seqs: Any = found.seqs
    own = found.incarnation
    if type(seqs) is not list or len(seqs) != 2 or not all(_is_number(seq) for seq in seqs):
        raise BadMessage("it resumes at no sequences")
    numbers = _is_number(found.table) and _is_number(found.held) and (own is None or _is_number(own))
    if type(found.store) is not str or not numbers:
        raise BadMessage("it resumes nothing that this server gave")
    return replace(found, place=_place(found.place), seqs=(seqs[0], seqs[1]))


def _place(given: Any) -> FeedPosition:
    found = FeedPosition(**_checked(given, FeedPosition))
    epochs = (found.after, found.after if found.snapshot is None else found.snapshot)
    if not _is_number(found.rows) or not all(_is_number(epoch, MAX_EPOCH) for epoch in epochs):
        raise BadMessage("a place is none in a table")
    return found


def _object(data: bytes, most: int, kind: type | None) -> dict[str, Any]:
    if len(data) > most:
        raise BadMessage(f"{len(data)} bytes are more than {most}")
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise BadMessage("it is no JSON") from None
    if type(found) is not dict:
        raise BadMessage("it is no JSON object")
    return found if kind is None else _checked(found, kind)


def _checked(given: Any, kind: type) -> dict[str, Any]:
    """Return the fields of a JSON object of this kind: none unknown, and none missing that has no default. Raises
    BadMessage.
    """
    if type(given) is not dict:
        raise BadMessage("a JSON object is missing")
    known: Any = fields(kind)
    unknown = sorted(given.keys() - {one.name for one in known})
    if unknown:
        raise BadMessage(f"nothing is known of {unknown[0][:40]!r}; known are {', '.join(one.name for one in known)}")
    missing = [one.name for one in known if one.default is field().default and one.name not in given]
    if missing:
        raise BadMessage(f"{missing[0]!r} is missing")
    return given


def _is_number(value: object, most: int = MAX_NUMBER) -> bool:
    return type(value) is int and 0 <= value <= most
