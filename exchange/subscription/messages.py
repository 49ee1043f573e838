"""Messages between a subscriber and its server: small JSON objects, every field checked before it is used (pure).

The command of the exchange is a Request. The server answers with a SubscriptionWelcome, then sends record batches of
the table's columns and the change columns, each with a Mark in its metadata. A Mark without rows comes alone. A client
answers with the number of bytes that it took, and with acknowledgements.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from epochlog.errors import BadMessage, InvalidInput
from epochlog.exchange.transport.message_fields import (
    Flag,
    Number,
    Text,
    built,
    items,
    number,
    one_of,
    optional,
    seconds,
    text,
    up_to,
)
from epochlog.store.changelog.consumers import KEEP
from epochlog.store.types.epoch import MAX_EPOCH
from epochlog.store.types.schema import MAX_COLUMNS

SUBSCRIBE = b"subscribe"
"""Name of the exchange."""
SNAPSHOT, CHANGES = "snapshot", "changes"
STAGES = {-1: [SNAPSHOT], 0: [CHANGES]}
"""Stages of a subscription's two channels: all rows of the table come before the first change."""
MAX_REQUEST = 1 << 16
"""Largest number of bytes of a request."""
MAX_ANSWER = 4_096
"""Largest number of bytes of any other message."""

MaybeNumber = Annotated[int | None, optional(number)]
Epoch = Annotated[int, up_to(MAX_EPOCH, "an epoch")]
MaybeEpoch = Annotated[int | None, optional(up_to(MAX_EPOCH, "an epoch"))]


@dataclass(frozen=True, slots=True)
class FeedPosition:
    """Position of a feed in a table."""

    snapshot: MaybeEpoch = None
    """Epoch of the table's rows, while they are being sent."""
    after: Epoch = 0
    """Epoch through which all changes were sent, if `snapshot` is None."""
    rows: Number = 0
    """Number of rows sent beyond that."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Position at which a subscriber resumes over a new connection."""

    store: Text
    table: Number
    place: Annotated[FeedPosition, built(FeedPosition)]
    seqs: Annotated[tuple[int, int], items(number, 2, 2)]
    """Next sequence of each channel, in the order of the stages."""
    held: Number = 0
    """Bytes that were received but not yet taken."""
    incarnation: MaybeNumber = None
    schema: Number = 0
    """Version of the table's schema whose columns the subscriber has."""


@dataclass(frozen=True, slots=True)
class Request:
    """Request for a subscription. too_old, keep_s: the consumer's policies; with keep_s None its hold never expires."""

    table: Text
    consumer: Annotated[str | None, optional(text)] = None
    """Durable name."""
    after: MaybeEpoch = None
    """Epoch, or None to begin with the rows."""
    columns: Annotated[tuple[str, ...] | None, optional(items(text, MAX_COLUMNS))] = None
    """None for all."""
    too_old: Text = "error"
    keep_s: Annotated[float | None, optional(seconds)] = KEEP.total_seconds()
    resume: Annotated[Resume | None, optional(built(Resume))] = None
    together: Flag = False
    """True for a client that takes marks of the kind "epochs"."""


@dataclass(frozen=True, slots=True)
class SubscriptionWelcome:
    """First message of the server: the position at which the subscription begins."""

    store: Text
    table: Number
    place: Annotated[FeedPosition, built(FeedPosition)]
    beat_s: Annotated[float, seconds]
    """Longest time without a message of the server."""
    slow_s: Annotated[float, seconds]
    """Longest time that a reader may take nothing while bytes wait for it."""
    incarnation: MaybeNumber = None
    acked: MaybeNumber = None
    schema: Number = 0


@dataclass(frozen=True, slots=True)
class Mark:
    """Mark of a channel. kind "rows": a batch of one epoch, `last` if it is the epoch's last one; "epochs": a batch of
    several whole epochs, through `epoch`; "passed": the channel is complete through the epoch, and no rows come with
    the mark; "end": the channel ends before sequence `seq`.
    """

    kind: Annotated[str, one_of("rows", "epochs", "passed", "end")]
    channel: Annotated[str, one_of(SNAPSHOT, CHANGES)] = CHANGES
    seq: Number = 0
    epoch: Number = 0
    last: Flag = False
    size: Number = 0
    """Batch's bytes, as the window counts them."""


@dataclass(frozen=True, slots=True)
class Notice:
    """Notice of the server. kind "beat": the server is alive; "acked": the acknowledgement of `epoch` is durable;
    "over": an error ends the exchange, and the client gets it after it has ended its own side.
    """

    kind: Annotated[str, one_of("beat", "acked", "over")]
    epoch: Number = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer of a client. kind "took": `number` more bytes were taken; "ack": all changes through epoch `number` are
    processed; "here": the answer to a beat.
    """

    kind: Annotated[str, one_of("took", "ack", "here")]
    number: Number = 0


def encode(message: Request | SubscriptionWelcome | Mark | Notice | Answer) -> bytes:
    members = asdict(message)
    for part in (members, members.get("resume") or {}):
        if part.get("schema") == 0:  # of a table that was never altered; earlier releases do not know the field
            del part["schema"]
    if members.get("together") is False:  # nor this one
        del members["together"]
    return json.dumps(members, separators=(",", ":")).encode()


def decode_request(data: bytes) -> Request:
    """Decode a subscriber's request. Raises InvalidInput."""
    try:
        request: Request = built(Request)(_decode_object(data, MAX_REQUEST))
    except BadMessage as error:
        raise InvalidInput(f"the request of a subscription is invalid: {error}") from None
    if request.after is not None and request.consumer is not None:
        raise InvalidInput(
            "a consumer resumes at its own position and takes no `after`; store.reset_consumer(name, to) changes the "
            "position"
        )
    return request


def decode_answer(data: bytes) -> Answer:
    """Decode a subscriber's answer. Raises BadMessage."""
    return built(Answer)(_decode_object(data, MAX_ANSWER))


def decode_server_message(data: bytes) -> SubscriptionWelcome | Mark | Notice:
    """Decode a message of the server. Raises BadMessage."""
    members = _decode_object(data, MAX_ANSWER)
    kind = SubscriptionWelcome if "place" in members else Mark if "channel" in members else Notice
    return built(kind)(members)


def _decode_object(data: bytes, max_bytes: int) -> dict[str, Any]:
    if len(data) > max_bytes:
        raise BadMessage(f"the message has {len(data)} bytes; it may have at most {max_bytes}")
    try:
        members = json.loads(data)
    except (ValueError, RecursionError):
        raise BadMessage("the message is not JSON") from None
    if type(members) is not dict:
        raise BadMessage("the message is not a JSON object")
    return members
