"""Stage gate of one consumer incarnation in a staged exchange: releases items in stage order (pure).

The gate releases no item of a stage until, for every channel of every lower stage, the end mark is known and this
incarnation's own cursor has passed it. A global counter ("all builds are done") is no evidence about this consumer: a
consumer that restarts elsewhere must receive the builds again, and their replay may be slower than the probe's. Absence
is no evidence either: a channel that has delivered nothing is not known to be empty.

Within a channel the gate releases items in sequence, each once. It does no I/O, never waits and is not thread-safe.
Rules: docs/SEMANTICS.md, 6.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from epochlog.errors import ChannelUnknown, ContentMismatch, EndMarkMismatch, Fenced, InvalidInput

Stages = Mapping[int, Iterable[str]]
"""Stage -> its channels; lower stages first."""
Delivery = tuple[str, int, Any]
"""(channel, sequence, item)."""


def stage_counter(stages: Stages, passed: Collection[str]) -> int:
    """Return the lowest stage with a channel outside `passed`; the highest stage plus one when all channels have
    passed. A channel has passed when all batches up to its end mark were pushed, not when the mark arrived.

    The counter tells which producers may start. It is no evidence about the items that one consumer has received.
    """
    if not stages:
        raise InvalidInput("no channels are declared, so there is no lowest stage; declare the consumers first")
    open_stages = (stage for stage in sorted(stages) if any(channel not in passed for channel in stages[stage]))
    return next(open_stages, max(stages) + 1)


@dataclass(frozen=True, slots=True)
class _WaitingItem:
    """Item that waits for its turn in the channel."""

    item: Any
    digest: Hashable | None

    def equals(self, item: Any, digest: Hashable | None) -> bool:
        if self.digest is not None or digest is not None:
            return self.digest == digest
        return self.item is item or bool(self.item == item)


@dataclass(slots=True)
class _Channel:
    """State of one producer's channel: waiting items, attempt and end mark. An earlier incarnation received the
    sequences below `first_seq`.
    """

    name: str
    first_seq: int
    attempt: int = 0
    last_seq: int | None = None
    waiting: dict[int, _WaitingItem] = field(default_factory=dict)
    delivered: list[Hashable | None] = field(default_factory=list)  # digests, from `first_seq` on

    @property
    def next(self) -> int:
        """Return the next sequence to release."""
        return self.first_seq + len(self.delivered)

    @property
    def passed(self) -> bool:
        """Return True if the end mark is known and all items up to it were released."""
        return self.last_seq is not None and self.next > self.last_seq

    def check_attempt(self, attempt: int) -> None:
        if attempt < self.attempt:
            raise Fenced(
                f"channel {self.name!r}: attempt {attempt} was replaced by attempt {self.attempt} and can send "
                "nothing more. End this producer; its successor sends the remaining batches"
            )

    def check_content(self, seq: int, item: Any, digest: Hashable | None) -> None:
        """Raise ContentMismatch if the sequence arrived before with other content."""
        waiting_item, index = self.waiting.get(seq), seq - self.first_seq
        if waiting_item is not None:
            equal = waiting_item.equals(item, digest)
        else:
            delivered_digest = self.delivered[index] if 0 <= index < len(self.delivered) else None
            repeated_digest = _digest(item, digest)
            equal = delivered_digest is None or repeated_digest is None or delivered_digest == repeated_digest
        if not equal:
            raise ContentMismatch(
                f"channel {self.name!r}: sequence {seq} arrived again with other content; a restarted producer must "
                "repeat its earlier batches under their sequences"
            )

    def check_end(self, last_seq: int) -> None:
        if self.last_seq is not None and self.last_seq != last_seq:
            raise EndMarkMismatch(
                f"channel {self.name!r} has the end mark {self.last_seq}, and a second end mark says {last_seq}; a "
                "restarted producer must repeat its earlier end mark"
            )
        beyond = max(self.waiting, default=self.next - 1)
        if beyond > last_seq:
            raise EndMarkMismatch(
                f"the end mark of channel {self.name!r} says {last_seq}, but sequence {beyond} has arrived; the end "
                "mark is the last sequence, -1 for an empty channel"
            )

    def take(self) -> list[Delivery]:
        """Return all items that are next in sequence and were not released yet."""
        deliveries: list[Delivery] = []
        while (waiting_item := self.waiting.pop(self.next, None)) is not None:
            deliveries.append((self.name, self.next, waiting_item.item))
            self.delivered.append(_digest(waiting_item.item, waiting_item.digest))
        return deliveries


class StageGate:
    """Stage gate of one consumer incarnation. Each incarnation needs a new gate with its own cursor.

    stages: {stage: channels}; every channel belongs to one stage. cursor: {channel: next sequence}, the position that
    the consumer's durable state covers already; 0 for channels without an entry. Raises InvalidInput, and
    ChannelUnknown for a cursor of a channel that is in no stage.
    """

    def __init__(self, stages: Stages, cursor: Mapping[str, int] | None = None) -> None:
        self._stages = _check_stages(stages)
        names = [name for channels in self._stages.values() for name in channels]
        for name, seq in (cursor or {}).items():
            _check_int(f"the cursor of channel {name!r}", seq, 0)
            if name not in names:
                raise _unknown(name, names)
        self._channels = {name: _Channel(name, (cursor or {}).get(name, 0)) for name in names}

    def offer(self, channel: str, seq: int, item: Any, attempt: int = 0, *, digest: Hashable | None = None) -> None:
        """Add an item to a channel; drop a repeated one.

        attempt: the producer's attempt; the highest one seen fences all lower ones on the channel. digest: a value that
        is equal for equal content, such as a checksum. Without it the gate compares waiting items with ==, and released
        items by their hash if they have one. Record batches and other unhashable items need a digest: give one for all
        items of a channel, or for none. Raises ChannelUnknown, Fenced for a lower attempt, EndMarkMismatch past the end
        mark, ContentMismatch when the sequence arrived before with other content. A refused item changes no state.
        """
        state = self._channel(channel, attempt)
        _check_int("a sequence", seq, 0)
        if state.last_seq is not None and seq > state.last_seq:
            raise EndMarkMismatch(f"sequence {seq} lies past the end mark of channel {channel!r}, {state.last_seq}")
        state.check_content(seq, item, digest)
        if seq >= state.next and seq not in state.waiting:
            state.waiting[seq] = _WaitingItem(item, digest)
        state.attempt = attempt

    def end(self, channel: str, last_seq: int, attempt: int = 0) -> None:
        """Set a channel's end mark: its last sequence, -1 when it is empty; drop a repeated one.

        Raises ChannelUnknown, Fenced for a lower attempt, and EndMarkMismatch when another end mark is known, or a
        sequence past this one has arrived.
        """
        state = self._channel(channel, attempt)
        _check_int("the last sequence of an end mark", last_seq, -1)
        state.check_end(last_seq)
        state.last_seq, state.attempt = last_seq, attempt

    def take(self) -> list[Delivery]:
        """Release all deliverable items, each once: lower stages first, channels in the order of `stages`."""
        deliveries: list[Delivery] = []
        for channels in self._stages.values():
            deliveries += [delivery for name in channels for delivery in self._channels[name].take()]
            if not all(self._channels[name].passed for name in channels):
                break
        return deliveries

    @property
    def done(self) -> bool:
        """Return True if all channels have ended and all their items were released."""
        return all(channel.passed for channel in self._channels.values())

    @property
    def cursor(self) -> dict[str, int]:
        """Return the next sequence to release of each channel. The next incarnation starts with this cursor if the
        durable state of this one covers all released items.
        """
        return {name: channel.next for name, channel in self._channels.items()}

    def __repr__(self) -> str:
        def show_channel(channel: _Channel) -> str:
            last_seq = "?" if channel.last_seq is None else channel.last_seq
            return f"{channel.name} {channel.next}/{last_seq}" + (
                f" +{len(channel.waiting)}" if channel.waiting else ""
            )

        stages = [
            f"{stage}: {', '.join(show_channel(self._channels[name]) for name in channels)}"
            for stage, channels in self._stages.items()
        ]
        return f"<StageGate {'; '.join(stages)}>"

    def _channel(self, name: str, attempt: int) -> _Channel:
        state = self._channels.get(name)
        if state is None:
            raise _unknown(name, list(self._channels))
        _check_int("an attempt", attempt, 0)
        state.check_attempt(attempt)
        return state


def _check_stages(stages: Stages) -> dict[int, tuple[str, ...]]:
    """Check the stages and return them in rising order. Raises InvalidInput."""
    if not isinstance(stages, Mapping):
        raise InvalidInput(f"stages is a dict of stages to channels, such as {{-1: ['build']}}, not {stages!r}")
    names: set[str] = set()
    for stage, channels in stages.items():
        _check_int("a stage", stage, None)
        if isinstance(channels, str) or not isinstance(channels, Iterable):
            raise InvalidInput(f"stage {stage}: channels is a list of names, not {channels!r}")
    ordered_stages = {stage: tuple(stages[stage]) for stage in sorted(stages)}
    for stage, channels in ordered_stages.items():
        for name in channels:
            if not isinstance(name, str) or name in names:
                raise InvalidInput(
                    f"stage {stage}: {name!r} is not a string, or names a channel that has a stage already"
                )
            names.add(name)
    return ordered_stages


def _check_int(label: str, value: object, least: int | None) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or (least is not None and value < least):
        raise InvalidInput(f"{label} is an int{'' if least is None else f' >= {least}'}, not {value!r}")


def _unknown(name: object, names: list[str]) -> ChannelUnknown:
    return ChannelUnknown(f"this consumer has no channel {name!r}; it has {', '.join(names) or 'none'}")


def _digest(item: Any, digest: Hashable | None) -> Hashable | None:
    """Return the value that identifies a released item when it arrives again: its digest or hash; None if it has
    neither.
    """
    if digest is not None:
        return digest
    try:
        return hash(item)
    except TypeError:
        return None
