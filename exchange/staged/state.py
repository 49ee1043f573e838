"""State of a staged exchange as immutable values, and every decision about it (pure).

A query has channels, each of one stage and one producer, and consumers, each of some channels. A refusal is a typed
error and changes nothing. Rules: docs/SEMANTICS.md, 6.
"""

from __future__ import annotations

import re
from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from epochlog.errors import (
    ChannelUnknown,
    ContentMismatch,
    EndMarkMismatch,
    Fenced,
    InvalidInput,
    LimitExceeded,
    QueryNotFound,
    SequenceReleased,
)
from epochlog.exchange.stage_gate import stage_counter
from epochlog.exchange.transport.message_fields import MAX_NUMBER

Stages = Mapping[int, tuple[str, ...]]
"""Stage -> its channels, in rising order of stages."""
Cursor = Mapping[str, int]
"""Channel -> the next sequence."""

MAX_CHANNELS = 4_096
"""Channels of a query, and consumers of a query."""
MAX_AHEAD = 4_096
"""Pushed sequences of a channel above a missing one."""
MAX_SEQ = 1 << 48
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,62}")


def is_name(value: object) -> bool:
    """Return True if the value can name a query, channel or consumer: 1 to 63 letters, digits, _ . : or -, without a
    leading . : or -.
    """
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def check_name(kind: str, value: object) -> str:
    """Return the value if it can name a query, channel or consumer. kind: the named thing, for the message. Raises
    InvalidInput.
    """
    if not isinstance(value, str) or not is_name(value):
        raise InvalidInput(f"{kind} is named by 1 to 63 letters, digits, _ . : or -, not {value!r}")
    return value


@dataclass(frozen=True, slots=True)
class Pushed:
    """Durable batch. bytes and crc32 are of its file; batches of equal content agree in both."""

    path: str
    bytes: int
    crc32: int
    rows: int
    attempt: int

    def to_record(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class StagedQuery:
    """Query of a staged exchange."""

    name: str
    stages: Stages
    passed: frozenset[str]
    """Channels that were pushed up to their end marks."""
    lease_ms: int
    """Time until an unused query ends."""
    expires_ms: int
    """Unix time at which the query ends unless it is used."""
    budget: int
    """Most bytes of its batches on disk."""

    @property
    def stage(self) -> int:
        """Return the stage counter: the lowest stage with a channel that has not passed; the highest stage plus one
        when all channels have passed.
        """
        return stage_counter(self.stages, self.passed)

    def to_record(self) -> dict[str, Any]:
        return {
            "stages": [[stage, list(channels)] for stage, channels in self.stages.items()],
            "passed": sorted(self.passed),
            "lease_ms": self.lease_ms,
            "expires_ms": self.expires_ms,
            "budget": self.budget,
            "dropped": False,
        }

    @classmethod
    def from_record(cls, name: str, record: Mapping[str, Any]) -> StagedQuery:
        stages = {stage: tuple(channels) for stage, channels in record["stages"]}
        passed = frozenset(record["passed"])
        return cls(name, stages, passed, record["lease_ms"], record["expires_ms"], record["budget"])


@dataclass(frozen=True, slots=True)
class Channel:
    """Channel of one producer."""

    name: str
    stage: int
    attempt: int = 0
    """Highest attempt of the producer that has pushed."""
    last: int | None = None
    """Sequence of the end mark; None while unknown."""
    rows_told: int | None = None
    """Number of rows that the end mark tells; None while unknown."""
    next: int = 0
    """First sequence that was not pushed: all below it were."""
    ahead: tuple[int, ...] = ()
    """Sequences above `next` that were pushed, ascending."""
    released: int = 0
    """Sequence below which all batches were deleted."""
    rows: int = 0
    """Rows of all pushed batches."""

    def has(self, seq: int) -> bool:
        """Return True if the sequence was pushed."""
        index = bisect_left(self.ahead, seq)
        return seq < self.next or (index < len(self.ahead) and self.ahead[index] == seq)

    @property
    def passed(self) -> bool:
        """Return True if the end mark is known and all sequences up to it were pushed."""
        return self.last is not None and self.next > self.last

    def to_record(self) -> dict[str, Any]:
        return {**asdict(self), "ahead": list(self.ahead)}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Channel:
        return cls(**{**record, "ahead": tuple(record["ahead"])})


@dataclass(frozen=True, slots=True)
class ChannelProgress:
    """Progress of one channel's producer."""

    stage: int
    next: int
    """First sequence that was not pushed; sequences above it may have been."""
    last: int | None
    """Sequence of the end mark, -1 for an empty channel; None while unknown."""

    @property
    def passed(self) -> bool:
        """Return True if the end mark is known and all sequences up to it were pushed."""
        return self.last is not None and self.next > self.last


@dataclass(frozen=True, slots=True)
class StageConsumer:
    """Consumer of a staged exchange."""

    name: str
    stages: Stages
    incarnation: int = -1
    """Highest that has claimed it, -1 before the first."""
    cursor: Cursor = field(default_factory=dict)
    """Acknowledged position of its durable state."""
    start: Cursor = field(default_factory=dict)
    """Cursor at which the present incarnation began."""
    claimant: str = ""
    """Id of the caller to whom the server gave the present incarnation; "" if its consumer brought the number."""

    @property
    def channels(self) -> list[str]:
        return [name for channels in self.stages.values() for name in channels]

    def to_record(self) -> dict[str, Any]:
        return {
            "stages": [[stage, list(channels)] for stage, channels in self.stages.items()],
            "incarnation": self.incarnation,
            "cursor": dict(self.cursor),
            "start": dict(self.start),
            **({"claimant": self.claimant} if self.claimant else {}),
        }

    @classmethod
    def from_record(cls, name: str, record: Mapping[str, Any]) -> StageConsumer:
        stages = {stage: tuple(channels) for stage, channels in record["stages"]}
        claimant = record.get("claimant", "")
        return cls(name, stages, record["incarnation"], record["cursor"], record["start"], claimant)


# ---- declaring -----------------------------------------------------------------------------------------------------


def with_consumer(
    query: StagedQuery, declared: StageConsumer | None, consumer: StageConsumer, channels: Mapping[str, Channel]
) -> StagedQuery:
    """Return the query with one more consumer; unchanged if the consumer is declared already.

    declared: the consumer's earlier declaration. channels: the consumer's channels that exist. Raises InvalidInput when
    the consumer was declared with other channels, or a channel has another stage; SequenceReleased when a channel's
    first batches were deleted already; LimitExceeded above MAX_CHANNELS.
    """
    if declared is not None:
        if _channel_sets(declared.stages) != _channel_sets(consumer.stages):
            raise InvalidInput(
                f"consumer {consumer.name!r} was declared with other channels: {_format_stages(declared.stages)}"
            )
        return query
    stages = {stage: list(names) for stage, names in query.stages.items()}
    for stage, names in consumer.stages.items():
        for name in names:
            channel = channels.get(name)
            if channel is not None and channel.stage != stage:
                raise InvalidInput(f"channel {name!r} is of stage {channel.stage}; a channel has one stage")
            if channel is not None and channel.released:
                raise SequenceReleased(
                    f"channel {name!r}: its batches below {channel.released} were acknowledged by all consumers and "
                    "deleted; declare all consumers of a query before any of them acknowledges"
                )
            if channel is None:
                stages.setdefault(stage, []).append(name)
    if sum(map(len, stages.values())) > MAX_CHANNELS:
        raise LimitExceeded(f"query {query.name!r} would have more than {MAX_CHANNELS} channels")
    return replace(query, stages={stage: tuple(stages[stage]) for stage in sorted(stages)})


def _channel_sets(stages: Stages) -> dict[int, set[str]]:
    """Return the channels of each stage as a set, for a comparison that ignores their order."""
    return {stage: set(names) for stage, names in stages.items() if names}


def _format_stages(stages: Stages) -> str:
    return "; ".join(f"{stage}: {', '.join(names)}" for stage, names in stages.items())


# ---- producers -----------------------------------------------------------------------------------------------------


def check_producer(channel: Channel, stage: int | None, attempt: int) -> None:
    """Raise Fenced for an attempt that was replaced, and InvalidInput for a stage other than the channel's."""
    if attempt < channel.attempt:
        raise Fenced(
            f"channel {channel.name!r}: attempt {attempt} was replaced by attempt {channel.attempt}, and its pushes "
            "have no effect. End this producer; its successor pushes the remaining batches"
        )
    if stage is not None and stage != channel.stage:
        raise InvalidInput(f"channel {channel.name!r} is of stage {channel.stage}, not {stage}")


def check_repeat(channel: Channel, seq: int, stored: tuple[int, int] | None, pushed: tuple[int, int]) -> None:
    """Raise ContentMismatch if a repeated sequence has another size or checksum than at its first push.

    stored, pushed: size in bytes and CRC-32, of the first push and of this one.
    """
    if stored is not None and stored != pushed:
        raise ContentMismatch(
            f"channel {channel.name!r}: sequence {seq} was pushed again with other content; a producer that restarts "
            "must push equal batches under equal sequences"
        )


def with_push(channel: Channel, seq: int, rows: int, attempt: int) -> Channel:
    """Return the channel with a new sequence. Raises EndMarkMismatch past the end mark, or when the number of rows
    differs from the end mark's; LimitExceeded for more than MAX_AHEAD sequences above a missing one.
    """
    if channel.last is not None and seq > channel.last:
        raise EndMarkMismatch(
            f"channel {channel.name!r} ended at sequence {channel.last}, so sequence {seq} cannot be pushed: the end "
            "mark names the last sequence"
        )
    ahead = list(channel.ahead)
    insort(ahead, seq)
    end = channel.next
    while ahead and ahead[0] == end:
        end, _ = end + 1, ahead.pop(0)
    if len(ahead) > MAX_AHEAD:
        raise LimitExceeded(
            f"channel {channel.name!r} has {MAX_AHEAD} sequences above the missing sequence {end}; push {end} first"
        )
    after = replace(channel, next=end, ahead=tuple(ahead), rows=channel.rows + rows, attempt=attempt)
    _check_rows(after)
    return after


def with_end(channel: Channel, last: int, attempt: int, rows: int | None) -> Channel:
    """Return the channel with its end mark; unchanged when it has this end mark. Raises EndMarkMismatch when it has a
    different end mark, when a later sequence was pushed, or when the number of rows differs.
    """
    if channel.last is not None and channel.last != last:
        raise EndMarkMismatch(
            f"channel {channel.name!r} ended at sequence {channel.last}, and a new end mark names sequence {last}; a "
            "producer that restarts must end its channel at the same sequence"
        )
    if channel.rows_told is not None and rows is not None and channel.rows_told != rows:
        raise EndMarkMismatch(
            f"channel {channel.name!r} ended with {channel.rows_told} rows, and a new end mark names {rows} rows; pass "
            "the same number, or none"
        )
    highest = max(channel.next - 1, channel.ahead[-1] if channel.ahead else -1)
    if highest > last:
        raise EndMarkMismatch(
            f"the end mark of channel {channel.name!r} names sequence {last}, but sequence {highest} was pushed; pass "
            "the last sequence, -1 for none"
        )
    marked_rows = channel.rows_told if rows is None else rows
    after = replace(channel, last=last, rows_told=marked_rows, attempt=attempt)
    _check_rows(after)
    return after


def _check_rows(channel: Channel) -> None:
    if channel.passed and channel.rows_told is not None and channel.rows != channel.rows_told:
        raise EndMarkMismatch(
            f"channel {channel.name!r} has {channel.rows} rows in its {channel.next} batches, and its end mark names "
            f"{channel.rows_told}; pass the number of pushed rows"
        )


def fits_budget(query: StagedQuery, used: int, channel: Channel, seq: int, size: int) -> bool:
    """Return True if the batch fits into the query's disk budget now.

    The lowest open stage may fill the whole budget, later stages half of it: a later stage cannot block an earlier one.
    A channel of the lowest open stage without an undelivered batch may always add its next batch, so that its consumers
    make progress even if the other channels have filled the budget.
    """
    stage = query.stage
    if channel.stage <= stage and seq == channel.next == channel.released:
        return True
    return used + size <= (query.budget if channel.stage <= stage else query.budget // 2)


# ---- consumers -----------------------------------------------------------------------------------------------------


def with_claim(
    consumer: StageConsumer, incarnation: int, cursor: Cursor | None, channels: Mapping[str, Channel]
) -> StageConsumer:
    """Return the consumer after a claim by this incarnation, which begins at the given cursor, or at the acknowledged
    one.

    Raises Fenced when a higher incarnation has claimed the consumer, ChannelUnknown for a cursor of a channel that the
    consumer lacks, SequenceReleased when a needed batch was deleted, InvalidInput for a cursor past an end mark.
    """
    if incarnation < consumer.incarnation:
        raise _replaced(consumer, incarnation)
    start = dict(consumer.cursor)
    for name, seq in (cursor or {}).items():
        if name not in consumer.channels:
            raise ChannelUnknown(f"consumer {consumer.name!r} has no channel {name!r}; it has {consumer.channels}")
        start[name] = seq
    for name, channel in channels.items():
        if start.get(name, 0) < channel.released:
            raise SequenceReleased(
                f"channel {name!r}: consumer {consumer.name!r} cannot begin at sequence {start.get(name, 0)}, because "
                f"batches below {channel.released} were acknowledged and deleted; begin at the acknowledged cursor"
            )
        if channel.last is not None and start.get(name, 0) > channel.last + 1:
            raise InvalidInput(
                f"channel {name!r} ended at sequence {channel.last}; a cursor is at most {channel.last + 1}"
            )
    claimant = consumer.claimant if incarnation == consumer.incarnation else ""
    return replace(consumer, incarnation=incarnation, start=start, claimant=claimant)


def with_next_claim(consumer: StageConsumer, claimant: str, channels: Mapping[str, Channel]) -> StageConsumer:
    """Return the consumer after a claim by its next incarnation, which begins at the acknowledged cursor; unchanged if
    the claimant has the present incarnation, because it repeats a call whose answer was lost.
    """
    if claimant == consumer.claimant:
        return consumer
    if consumer.incarnation >= MAX_NUMBER:
        raise LimitExceeded(f"consumer {consumer.name!r} is of incarnation {MAX_NUMBER}: no incarnation is left")
    return replace(with_claim(consumer, consumer.incarnation + 1, None, channels), claimant=claimant)


def with_acknowledgement(
    consumer: StageConsumer, incarnation: int, cursor: Cursor, channels: Mapping[str, Channel]
) -> StageConsumer:
    """Return the consumer after it has acknowledged all sequences below the cursor. A lower cursor changes nothing.

    Raises Fenced for an incarnation other than the newest, ChannelUnknown, and InvalidInput beyond the pushed batches.
    """
    if incarnation < consumer.incarnation:
        raise _replaced(consumer, incarnation)
    if incarnation > consumer.incarnation:
        raise Fenced(
            f"consumer {consumer.name!r}: incarnation {incarnation} has not claimed the consumer, the newest is "
            f"{consumer.incarnation}; consume batches before acknowledging them"
        )
    after = dict(consumer.cursor)
    for name, seq in cursor.items():
        if name not in consumer.channels:
            raise ChannelUnknown(f"consumer {consumer.name!r} has no channel {name!r}; it has {consumer.channels}")
        channel = channels[name]
        if seq > max(channel.next, consumer.start.get(name, 0)):
            raise InvalidInput(
                f"channel {name!r}: cursor {seq} is beyond the next sequence {channel.next}; acknowledge only batches "
                "that were delivered"
            )
        after[name] = max(after.get(name, 0), min(seq, channel.next))
    return replace(consumer, cursor=after)


def _replaced(consumer: StageConsumer, incarnation: int) -> Fenced:
    return Fenced(
        f"consumer {consumer.name!r}: incarnation {incarnation} was replaced by incarnation {consumer.incarnation}, "
        "and its requests and acknowledgements have no effect. End it"
    )


def releasable(channel: str, consumers: Iterable[StageConsumer]) -> int:
    """Return the sequence below which every consumer of the channel has acknowledged; 0 if it has none."""
    return min((consumer.cursor.get(channel, 0) for consumer in consumers if channel in consumer.channels), default=0)


# ---- errors for missing names --------------------------------------------------------------------------------------


def no_query(name: str) -> QueryNotFound:
    return QueryNotFound(
        f"there is no query {name!r}: it was never declared, or it was dropped, or its lease has ended; declare its "
        "consumers"
    )


def no_channel(query: str, channel: str, known: Iterable[str]) -> ChannelUnknown:
    return ChannelUnknown(
        f"no consumer of query {query!r} has declared the channel {channel!r}; its channels: "
        f"{', '.join(known) or 'none'}. Declare the consumers before the first push"
    )


def no_consumer(query: str, consumer: str) -> InvalidInput:
    return InvalidInput(f"query {query!r} has no consumer {consumer!r}; declare it first")
