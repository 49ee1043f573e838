"""Stage gate of one consumer incarnation in a staged exchange: the rule that releases its items in stage order (pure).

Nothing of stage X is given out until, for every channel of every lower stage, the end mark is known and this
incarnation's own cursor has passed it. A counter that others keep, "all builds are done", says nothing about this
mailbox: a consumer that is brought up again elsewhere has to get the builds again, and their replay may be slower than
the probe's. Nor does absence say anything: a channel from which nothing has come is not an empty one.

Within a channel items come out in sequence, each once. The gate does no I/O, waits for nothing and is not thread-safe.
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
    """Return the lowest stage with a channel that is not among the `passed` ones; one past the highest stage when all
    have passed. A channel has passed when all batches up to its end mark were pushed, not when the mark came.

    It says which producers may start, and is never evidence about one consumer's mailbox.
    """
    if not stages:
        raise InvalidInput("no channels are declared, so there is no stage to count; declare the consumers first")
    open_stages = (stage for stage in sorted(stages) if any(channel not in passed for channel in stages[stage]))
    return next(open_stages, max(stages) + 1)


@dataclass(frozen=True, slots=True)
class _Held:
    """Item that waits for those before it."""

    item: Any
    digest: Hashable | None

    def same(self, item: Any, digest: Hashable | None) -> bool:
        if self.digest is not None or digest is not None:
            return self.digest == digest
        return self.item is item or bool(self.item == item)


@dataclass(slots=True)
class _Channel:
    """State of one producer's channel: its items, attempt and end mark. Sequences below `first` were delivered to an
    earlier incarnation.
    """

    name: str
    first: int
    attempt: int = 0
    last: int | None = None
    held: dict[int, _Held] = field(default_factory=dict)
    delivered: list[Hashable | None] = field(default_factory=list)  # digests, from `first` on

    @property
    def next(self) -> int:
        """Return the next sequence to give out."""
        return self.first + len(self.delivered)

    @property
    def passed(self) -> bool:
        """Return True if the end mark is known and all items up to it were given out."""
        return self.last is not None and self.next > self.last

    def check_attempt(self, attempt: int) -> None:
        if attempt < self.attempt:
            raise Fenced(
                f"channel {self.name!r}: attempt {attempt} was replaced by attempt {self.attempt}; what it sends now "
                "has no effect. End this producer, its successor sends the rest"
            )

    def check_content(self, seq: int, item: Any, digest: Hashable | None) -> None:
        """Raise ContentMismatch if a sequence comes again with other content."""
        held, place = self.held.get(seq), seq - self.first
        if held is not None:
            same = held.same(item, digest)
        else:
            known = self.delivered[place] if 0 <= place < len(self.delivered) else None
            given = _digest(item, digest)
            same = known is None or given is None or known == given
        if not same:
            raise ContentMismatch(
                f"channel {self.name!r}: sequence {seq} came again with other content; a producer that starts again "
                "must make the same batches under the same sequences"
            )

    def check_end(self, last_seq: int) -> None:
        if self.last is not None and self.last != last_seq:
            raise EndMarkMismatch(
                f"channel {self.name!r} ended at sequence {self.last}, and now is said to end at {last_seq}; a "
                "producer that starts again must end where it ended before"
            )
        beyond = max(self.held, default=self.next - 1)
        if beyond > last_seq:
            raise EndMarkMismatch(
                f"channel {self.name!r} is said to end at sequence {last_seq}, but sequence {beyond} has come; the "
                "end mark names the last sequence, -1 for none"
            )

    def take(self) -> list[Delivery]:
        """Return all items that have come in sequence and were not given out yet."""
        found: list[Delivery] = []
        while (held := self.held.pop(self.next, None)) is not None:
            found.append((self.name, self.next, held.item))
            self.delivered.append(_digest(held.item, held.digest))
        return found


class StageGate:
    """Stage gate of one consumer incarnation; make a new one, with its own cursor, for the next incarnation.

    stages: {stage: channels}; every channel belongs to one stage. cursor: {channel: next sequence}, the position that
    the consumer's durable state covers already; 0 for channels that are not in it. Raises InvalidInput, and
    ChannelUnknown for a cursor of a channel that is in no stage.
    """

    def __init__(self, stages: Stages, cursor: Mapping[str, int] | None = None) -> None:
        self._stages = _checked(stages)
        names = [name for channels in self._stages.values() for name in channels]
        for name, seq in (cursor or {}).items():
            _check_int(f"the cursor of channel {name!r}", seq, 0)
            if name not in names:
                raise _unknown(name, names)
        self._channels = {name: _Channel(name, (cursor or {}).get(name, 0)) for name in names}

    def offer(self, channel: str, seq: int, item: Any, attempt: int = 0, *, digest: Hashable | None = None) -> None:
        """Take in an item of a channel; a repeat is dropped.

        attempt: the producer's; the highest one seen fences its whole channel. digest: what two deliveries of the same
        content have alike, such as a checksum; without it items are compared with ==, and once they have been given out
        by their hash if they have one, so give it for record batches and the like (for all of a channel, or none).
        Raises ChannelUnknown, Fenced for a lower attempt, EndMarkMismatch past the end mark, ContentMismatch when the
        sequence came before with other content. What is refused changes nothing.
        """
        found = self._channel(channel, attempt)
        _check_int("a sequence", seq, 0)
        if found.last is not None and seq > found.last:
            raise EndMarkMismatch(f"channel {channel!r} ended at sequence {found.last}; sequence {seq} cannot be")
        found.check_content(seq, item, digest)
        if seq >= found.next and seq not in found.held:
            found.held[seq] = _Held(item, digest)
        found.attempt = attempt

    def end(self, channel: str, last_seq: int, attempt: int = 0) -> None:
        """Take in a channel's end mark: its last sequence, -1 when it is empty; a repeat is dropped.

        Raises ChannelUnknown, Fenced for a lower attempt, and EndMarkMismatch when another end mark is known, or a
        sequence past this one has come.
        """
        found = self._channel(channel, attempt)
        _check_int("the last sequence of an end mark", last_seq, -1)
        found.check_end(last_seq)
        found.last, found.attempt = last_seq, attempt

    def take(self) -> list[Delivery]:
        """Return all items that have become deliverable, each once: lower stages first, channels in the order of the
        plan.
        """
        taken: list[Delivery] = []
        for channels in self._stages.values():
            taken += [delivery for name in channels for delivery in self._channels[name].take()]
            if not all(self._channels[name].passed for name in channels):
                break
        return taken

    @property
    def done(self) -> bool:
        """Return True if all channels have ended and all of their items were given out."""
        return all(channel.passed for channel in self._channels.values())

    @property
    def cursor(self) -> dict[str, int]:
        """Return the next sequence to give out of each channel. An incarnation whose state covers all that was given
        out leaves this cursor to the next one.
        """
        return {name: channel.next for name, channel in self._channels.items()}

    def __repr__(self) -> str:
        def shown(channel: _Channel) -> str:
            last = "?" if channel.last is None else channel.last
            return f"{channel.name} {channel.next}/{last}" + (f" +{len(channel.held)}" if channel.held else "")

        stages = [
            f"{stage}: {', '.join(shown(self._channels[name]) for name in channels)}"
            for stage, channels in self._stages.items()
        ]
        return f"<StageGate {'; '.join(stages)}>"

    def _channel(self, name: str, attempt: int) -> _Channel:
        found = self._channels.get(name)
        if found is None:
            raise _unknown(name, list(self._channels))
        _check_int("an attempt", attempt, 0)
        found.check_attempt(attempt)
        return found


def _checked(stages: Stages) -> dict[int, tuple[str, ...]]:
    """Check the stages and return them in rising order. Raises InvalidInput."""
    if not isinstance(stages, Mapping):
        raise InvalidInput(f"stages is a dict of stages to channels, such as {{-1: ['build']}}, not {stages!r}")
    seen: set[str] = set()
    for stage, channels in stages.items():
        _check_int("a stage", stage, None)
        if isinstance(channels, str) or not isinstance(channels, Iterable):
            raise InvalidInput(f"stage {stage}: channels is a list of names, not {channels!r}")
    found = {stage: tuple(stages[stage]) for stage in sorted(stages)}
    for stage, channels in found.items():
        for name in channels:
            if not isinstance(name, str) or name in seen:
                raise InvalidInput(f"stage {stage}: {name!r} is no name, or is the channel of a stage already")
            seen.add(name)
    return found


def _check_int(what: str, value: object, least: int | None) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or (least is not None and value < least):
        raise InvalidInput(f"{what} is an int{'' if least is None else f' >= {least}'}, not {value!r}")


def _unknown(name: object, names: list[str]) -> ChannelUnknown:
    return ChannelUnknown(f"this consumer has no channel {name!r}; it has {', '.join(names) or 'none'}")


def _digest(item: Any, digest: Hashable | None) -> Hashable | None:
    """Return the value by which a delivered item is recognized when it comes again: its digest or hash; None if it has
    neither.
    """
    if digest is not None:
        return digest
    try:
        return hash(item)
    except TypeError:
        return None
