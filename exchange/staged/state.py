"""State of a staged exchange as immutable values, and every decision about them (pure).

A query has channels, each of one stage and one producer, and consumers that need some of them. Refusals are typed
errors and change nothing. Rules: docs/SEMANTICS.md, 6.
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

Stages = Mapping[int, tuple[str, ...]]
"""Stage -> its channels, lower stages first."""
Cursor = Mapping[str, int]
"""Channel -> the next sequence."""

MOST_CHANNELS = 4_096
"""Channels of a query, and its consumers."""
MOST_AHEAD = 4_096
"""Sequences of a channel that may be there behind a missing one."""
MAX_SEQ = 1 << 48
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,62}")


def is_name(value: object) -> bool:
    """Return True if the value can name a query, channel or consumer: 1 to 63 letters, digits, _ . : or -; no . : -
    first.
    """
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def check_name(what: str, value: object) -> str:
    """Return the value if it can name a query, channel or consumer. Raises InvalidInput."""
    if not isinstance(value, str) or not is_name(value):
        raise InvalidInput(f"{what} is named by 1 to 63 letters, digits, _ . : or -, not {value!r}")
    return value


@dataclass(frozen=True, slots=True)
class Pushed:
    """Durable batch. bytes and crc32 are those of its file; batches of equal content agree in both."""

    path: str
    bytes: int
    crc32: int
    rows: int
    attempt: int

    def to_record(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class StagedQuery:
    """Query of a staged exchange. passed: the channels that were pushed up to their end marks. lease_ms: how long it
    stays when nobody uses it; budget: bytes of its batches on disk. Times are Unix ms.
    """

    name: str
    stages: Stages
    passed: frozenset[str]
    lease_ms: int
    expires_ms: int
    budget: int

    @property
    def stage(self) -> int:
        """Return the stage counter: the lowest stage with a channel that has not passed, one past the highest when all
        have.
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
    """Channel of one producer. attempt: the highest seen. last: the end mark's sequence, rows_told its rows; None while
    unknown. All sequences below `next` were pushed, and above it those in `ahead`; all below `released` were deleted.
    rows: of all batches pushed.
    """

    name: str
    stage: int
    attempt: int = 0
    last: int | None = None
    rows_told: int | None = None
    next: int = 0
    ahead: tuple[int, ...] = ()
    released: int = 0
    rows: int = 0

    def has(self, seq: int) -> bool:
        """Return True if the sequence was pushed."""
        at = bisect_left(self.ahead, seq)
        return seq < self.next or (at < len(self.ahead) and self.ahead[at] == seq)

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
class StageConsumer:
    """Consumer of a staged exchange. incarnation: the highest that has asked, -1 before the first. cursor: the
    acknowledged position of its durable state. start: the cursor at which the present incarnation began.
    """

    name: str
    stages: Stages
    incarnation: int = -1
    cursor: Cursor = field(default_factory=dict)
    start: Cursor = field(default_factory=dict)

    @property
    def channels(self) -> list[str]:
        return [name for channels in self.stages.values() for name in channels]

    def to_record(self) -> dict[str, Any]:
        return {
            "stages": [[stage, list(channels)] for stage, channels in self.stages.items()],
            "incarnation": self.incarnation,
            "cursor": dict(self.cursor),
            "start": dict(self.start),
        }

    @classmethod
    def from_record(cls, name: str, record: Mapping[str, Any]) -> StageConsumer:
        stages = {stage: tuple(channels) for stage, channels in record["stages"]}
        return cls(name, stages, record["incarnation"], record["cursor"], record["start"])


# ---- declaring -----------------------------------------------------------------------------------------------------


def with_consumer(
    query: StagedQuery, known: StageConsumer | None, given: StageConsumer, channels: Mapping[str, Channel]
) -> StagedQuery:
    """Return the query with one more consumer; unchanged if that is declared already.

    channels: the consumer's channels that exist. Raises InvalidInput when the consumer was declared with other
    channels, or a channel has another stage; SequenceReleased when a channel's first batches are deleted already;
    LimitExceeded above MOST_CHANNELS.
    """
    if known is not None:
        if _unordered(known.stages) != _unordered(given.stages):
            raise InvalidInput(f"consumer {given.name!r} was declared with other channels: {_shown(known.stages)}")
        return query
    stages = {stage: list(names) for stage, names in query.stages.items()}
    for stage, names in given.stages.items():
        for name in names:
            there = channels.get(name)
            if there is not None and there.stage != stage:
                raise InvalidInput(f"channel {name!r} is of stage {there.stage}, and of no other")
            if there is not None and there.released:
                raise SequenceReleased(
                    f"channel {name!r}: its batches below {there.released} were acknowledged by all consumers and let "
                    "go of; declare all consumers of a query before any of them acknowledges"
                )
            if there is None:
                stages.setdefault(stage, []).append(name)
    if sum(map(len, stages.values())) > MOST_CHANNELS:
        raise LimitExceeded(f"query {query.name!r} would have more than {MOST_CHANNELS} channels")
    return replace(query, stages={stage: tuple(stages[stage]) for stage in sorted(stages)})


def _unordered(stages: Stages) -> dict[int, set[str]]:
    return {stage: set(names) for stage, names in stages.items() if names}


def _shown(stages: Stages) -> str:
    return "; ".join(f"{stage}: {', '.join(names)}" for stage, names in stages.items())


# ---- producers -----------------------------------------------------------------------------------------------------


def check_producer(channel: Channel, stage: int | None, attempt: int) -> None:
    """Raise Fenced for an attempt that was replaced, and InvalidInput for another stage than the channel's."""
    if attempt < channel.attempt:
        raise Fenced(
            f"channel {channel.name!r}: attempt {attempt} was replaced by attempt {channel.attempt}; what it sends now "
            "has no effect. End this producer, its successor sends the rest"
        )
    if stage is not None and stage != channel.stage:
        raise InvalidInput(f"channel {channel.name!r} is of stage {channel.stage}, not {stage}")


def check_repeat(channel: Channel, seq: int, known: tuple[int, int] | None, given: tuple[int, int]) -> None:
    """Raise ContentMismatch if a sequence that was pushed before comes again with another size or checksum."""
    if known is not None and known != given:
        raise ContentMismatch(
            f"channel {channel.name!r}: sequence {seq} came again with other content; a producer that starts again "
            "must make the same batches under the same sequences"
        )


def with_push(channel: Channel, seq: int, rows: int, attempt: int) -> Channel:
    """Return the channel with a sequence that it did not have. Raises EndMarkMismatch past the end mark, or when the
    number of rows differs from the end mark's; LimitExceeded when too many sequences lie behind a missing one.
    """
    if channel.last is not None and seq > channel.last:
        raise EndMarkMismatch(
            f"channel {channel.name!r} ended at sequence {channel.last}; sequence {seq} cannot be: the end mark names "
            "the last sequence"
        )
    ahead = list(channel.ahead)
    insort(ahead, seq)
    end = channel.next
    while ahead and ahead[0] == end:
        end, _ = end + 1, ahead.pop(0)
    if len(ahead) > MOST_AHEAD:
        raise LimitExceeded(
            f"channel {channel.name!r} has {MOST_AHEAD} sequences behind the missing {end}; push that one first"
        )
    after = replace(channel, next=end, ahead=tuple(ahead), rows=channel.rows + rows, attempt=attempt)
    _check_rows(after)
    return after


def with_end(channel: Channel, last: int, attempt: int, rows: int | None) -> Channel:
    """Return the channel with its end mark; unchanged when it has this one. Raises EndMarkMismatch when it has another
    one, when a later sequence was pushed, or when the number of rows differs.
    """
    if channel.last is not None and channel.last != last:
        raise EndMarkMismatch(
            f"channel {channel.name!r} ended at sequence {channel.last}, and now is said to end at {last}; a producer "
            "that starts again must end where it ended before"
        )
    if channel.rows_told is not None and rows is not None and channel.rows_told != rows:
        raise EndMarkMismatch(
            f"channel {channel.name!r} ended with {channel.rows_told} rows, and now is said to have {rows}"
        )
    beyond = max(channel.next - 1, channel.ahead[-1] if channel.ahead else -1)
    if beyond > last:
        raise EndMarkMismatch(
            f"channel {channel.name!r} is said to end at sequence {last}, but sequence {beyond} was pushed; the end "
            "mark names the last sequence, -1 for none"
        )
    told = channel.rows_told if rows is None else rows
    after = replace(channel, last=last, rows_told=told, attempt=attempt)
    _check_rows(after)
    return after


def _check_rows(channel: Channel) -> None:
    if channel.passed and channel.rows_told is not None and channel.rows != channel.rows_told:
        raise EndMarkMismatch(
            f"channel {channel.name!r} has {channel.rows} rows in its {channel.next} batches, and its end mark says "
            f"{channel.rows_told}; count the rows that are pushed"
        )


def has_room(query: StagedQuery, used: int, channel: Channel, seq: int, size: int) -> bool:
    """Return True if the query's disk budget has room for a batch now.

    Stages above the lowest open one may fill half of the budget, that one all of it: a later stage cannot keep out an
    earlier one. A channel of the lowest open stage with nothing to deliver may always add its next batch, so that its
    consumers get on even if the other channels have filled the budget.
    """
    stage = query.stage
    if channel.stage <= stage and seq == channel.next == channel.released:
        return True
    return used + size <= (query.budget if channel.stage <= stage else query.budget // 2)


# ---- consumers -----------------------------------------------------------------------------------------------------


def claimed(
    consumer: StageConsumer, incarnation: int, cursor: Cursor | None, channels: Mapping[str, Channel]
) -> StageConsumer:
    """Return the consumer as claimed by this incarnation, which begins at the cursor it brings, or at the acknowledged
    one.

    Raises Fenced when a higher one has asked, ChannelUnknown for a cursor of a channel that the consumer lacks,
    SequenceReleased when a batch that it needs is deleted, InvalidInput for a cursor past an end mark.
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
                f"channel {name!r}: consumer {consumer.name!r} wants to begin at sequence {start.get(name, 0)}, and "
                f"those below {channel.released} were acknowledged and let go of; begin at the acknowledged cursor"
            )
        if channel.last is not None and start.get(name, 0) > channel.last + 1:
            raise InvalidInput(f"channel {name!r} ended at sequence {channel.last}; no cursor lies beyond it")
    return replace(consumer, incarnation=incarnation, start=start)


def acknowledged(
    consumer: StageConsumer, incarnation: int, cursor: Cursor, channels: Mapping[str, Channel]
) -> StageConsumer:
    """Return the consumer with its durable state covering all sequences below the cursor. A lower cursor changes
    nothing.

    Raises Fenced for an incarnation other than the one that asked last, ChannelUnknown, and InvalidInput beyond the
    batches that were pushed.
    """
    if incarnation < consumer.incarnation:
        raise _replaced(consumer, incarnation)
    if incarnation > consumer.incarnation:
        raise Fenced(
            f"consumer {consumer.name!r}: incarnation {incarnation} is unknown here, the newest that has asked is "
            f"{consumer.incarnation}; ask for the batches before acknowledging them"
        )
    after = dict(consumer.cursor)
    for name, seq in cursor.items():
        if name not in consumer.channels:
            raise ChannelUnknown(f"consumer {consumer.name!r} has no channel {name!r}; it has {consumer.channels}")
        channel = channels[name]
        if seq > max(channel.next, consumer.start.get(name, 0)):
            raise InvalidInput(
                f"channel {name!r}: {seq} lies beyond what was pushed, the next sequence is {channel.next}; "
                "acknowledge what was given out, no more"
            )
        after[name] = max(after.get(name, 0), min(seq, channel.next))
    return replace(consumer, cursor=after)


def _replaced(consumer: StageConsumer, incarnation: int) -> Fenced:
    return Fenced(
        f"consumer {consumer.name!r}: incarnation {incarnation} was replaced by incarnation {consumer.incarnation}; "
        "what it asks for or acknowledges now has no effect. End it"
    )


def releasable(channel: str, consumers: Iterable[StageConsumer]) -> int:
    """Return the sequence below which every consumer of the channel has acknowledged; 0 if it has none."""
    return min((one.cursor.get(channel, 0) for one in consumers if channel in one.channels), default=0)


# ---- what is not there ---------------------------------------------------------------------------------------------


def no_query(name: str) -> QueryNotFound:
    return QueryNotFound(
        f"there is no query {name!r}: none was declared, or it was dropped or its lease has ended; declare its "
        "consumers"
    )


def no_channel(query: str, channel: str, known: Iterable[str]) -> ChannelUnknown:
    return ChannelUnknown(
        f"no consumer of query {query!r} has declared the channel {channel!r}; there are {', '.join(known) or 'none'}. "
        "Declare the consumers before anything is pushed to them"
    )


def no_consumer(query: str, consumer: str) -> InvalidInput:
    return InvalidInput(f"query {query!r} has no consumer {consumer!r}; declare it first")
