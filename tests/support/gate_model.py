"""Model of the stage gate: its rules by their definitions, and every order in which small plans can be delivered.

A plan says how many items each channel has; the item of a sequence is its name, so a wrong one is seen. A life is what
one consumer incarnation gets, in order; between two lives the consumer has died, and its successor starts at a cursor
that covers a first part of what was given out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import permutations

import epochlog as el
from epochlog.exchange import StageGate, stage_counter

Cursor = tuple[tuple[str, int], ...]
Given = tuple[str, int]
"""A channel and a sequence of it."""


@dataclass(frozen=True)
class Arrival:
    """Something that comes to a mailbox: an item, or with `seq` None an end mark."""

    channel: str
    seq: int | None
    attempt: int = 0


@dataclass(frozen=True)
class Plan:
    """Stages of channels, each with its number of items."""

    stages: tuple[tuple[int, tuple[tuple[str, int], ...]], ...]

    @classmethod
    def of(cls, stages: Mapping[int, Mapping[str, int]]) -> Plan:
        return cls(tuple((stage, tuple(stages[stage].items())) for stage in sorted(stages)))

    @property
    def channels(self) -> dict[int, list[str]]:
        return {stage: [name for name, _ in channels] for stage, channels in self.stages}

    @property
    def counts(self) -> dict[str, int]:
        return {name: count for _, channels in self.stages for name, count in channels}

    @property
    def stage_of(self) -> dict[str, int]:
        return {name: stage for stage, channels in self.stages for name, _ in channels}

    def events(self, cursor: Mapping[str, int], attempt: int = 0) -> list[Arrival]:
        """List the events that producers send to a consumer at this cursor."""
        counts = self.counts
        items = [Arrival(name, seq, attempt) for name in counts for seq in range(cursor.get(name, 0), counts[name])]
        return items + [Arrival(name, None, attempt) for name in counts]


def item(channel: str, seq: int) -> str:
    return f"{channel}[{seq}]"


def send(gate: StageGate, plan: Plan, event: Arrival) -> None:
    if event.seq is None:
        gate.end(event.channel, plan.counts[event.channel] - 1, event.attempt)
    else:
        gate.offer(event.channel, event.seq, item(event.channel, event.seq), event.attempt)


@dataclass
class Rules:
    """Reference model of the stage gate: it recomputes the released events from the set of all that came."""

    plan: Plan
    cursor: Mapping[str, int]
    came: set[Arrival] = field(default_factory=set)
    attempts: dict[str, int] = field(default_factory=dict)

    def take_in(self, event: Arrival) -> bool:
        """Accept an event, unless its channel has seen a higher attempt. Return True if it is accepted."""
        if event.attempt < self.attempts.get(event.channel, 0):
            return False
        self.attempts[event.channel] = event.attempt
        self.came.add(Arrival(event.channel, event.seq))
        return True

    def has(self, channel: str, seq: int | None) -> bool:
        return Arrival(channel, seq) in self.came

    def passed(self, channel: str) -> bool:
        first, count = self.cursor.get(channel, 0), self.plan.counts[channel]
        return self.has(channel, None) and all(self.has(channel, seq) for seq in range(first, count))

    def deliverable(self) -> set[Given]:
        batches: set[Given] = set()
        for stage, channels in self.plan.channels.items():
            lower = [name for name, at in self.plan.stage_of.items() if at < stage]
            for name in channels if all(self.passed(other) for other in lower) else ():
                seq = self.cursor.get(name, 0)
                while self.has(name, seq):
                    batches.add((name, seq))
                    seq += 1
        return batches

    def done(self) -> bool:
        return all(self.passed(name) for name in self.plan.counts)


def check_taken(gate: StageGate, rules: Rules, before: Sequence[Given]) -> list[Given]:
    """Takes what the gate gives and holds it against the rules; returns all that was given out so far."""
    plan, taken = rules.plan, gate.take()
    assert all(content == item(name, seq) for name, seq, content in taken), "an item under another's name"
    now = [(name, seq) for name, seq, _ in taken]
    assert [plan.stage_of[name] for name, _ in now] == sorted(plan.stage_of[name] for name, _ in now), "lower first"
    delivered = [*before, *now]
    assert len(set(delivered)) == len(delivered), f"given out twice: {delivered}"
    assert set(delivered) == rules.deliverable(), (
        f"given out {delivered}, to be given out {sorted(rules.deliverable())}"
    )
    for channel in plan.counts:
        seqs = [seq for name, seq in delivered if name == channel]
        assert seqs == list(range(rules.cursor.get(channel, 0), gate.cursor[channel])), f"{channel}: {seqs}"
    assert gate.done == rules.done()
    return delivered


def deliver(gate: StageGate, rules: Rules, event: Arrival) -> None:
    """One event to both; the gate must refuse what the rules refuse."""
    accepted = rules.take_in(event)
    try:
        send(gate, rules.plan, event)
    except el.Fenced:
        assert not accepted, f"{event} was refused"
    else:
        assert accepted, f"{event} of a lower attempt was accepted"
    ended = {name for name in rules.plan.counts if rules.has(name, None)}
    lacking = [stage for stage, names in rules.plan.channels.items() if not ended.issuperset(names)]
    highest = max(rules.plan.channels)
    assert stage_counter(rules.plan.channels, ended) == min(lacking, default=highest + 1), "the counter"


def live(plan: Plan, cursor: Cursor, events: Iterable[Arrival]) -> tuple[Given, ...]:
    """One life, looked at after each event, then again with one look at its end; returns what was given out."""
    events = list(events)
    gate, rules = StageGate(plan.channels, dict(cursor)), Rules(plan, dict(cursor))
    delivered = check_taken(gate, rules, ())
    for event in events:
        deliver(gate, rules, event)
        delivered = check_taken(gate, rules, delivered)
    late, rules = StageGate(plan.channels, dict(cursor)), Rules(plan, dict(cursor))
    for event in events:
        deliver(late, rules, event)
    assert set(check_taken(late, rules, ())) == set(delivered)
    return tuple(delivered)


def every_order(plan: Plan, events: Sequence[Arrival]) -> int:
    """Every permutation of the events as one life that ends well; how many there were."""
    count = 0
    for order in permutations(events):
        live(plan, (), order)
        count += 1
    return count


def every_death(plan: Plan, deaths: int) -> int:
    """Every way to live through that many deaths: how many there were.

    Of each life but the last every arrangement of every part of what is sent arrives, then the consumer dies; its
    durable state covers any first part of what it was given, and from there all is sent again. The last life gets
    everything, in every order. The effects of all lives together are each item once, lower stages first.
    """
    once = cache(lambda cursor, order: live(plan, cursor, order))
    stage_of, everything = plan.stage_of, {(name, seq) for name, count in plan.counts.items() for seq in range(count)}
    count = 0
    for effects in _effects(plan, (), deaths, once):
        assert len(effects) == len(everything) and set(effects) == everything, effects
        assert [stage_of[name] for name, _ in effects] == sorted(stage_of[name] for name, _ in effects), effects
        count += 1
    return count


def _effects(
    plan: Plan, cursor: Cursor, deaths: int, once: Callable[[Cursor, tuple[Arrival, ...]], tuple[Given, ...]]
) -> Iterator[tuple[Given, ...]]:
    events = plan.events(dict(cursor))
    if not deaths:
        yield from (once(cursor, order) for order in permutations(events))
        return
    for length in range(len(events) + 1):
        for order in permutations(events, length):
            delivered = once(cursor, order)
            for survivors in range(len(delivered) + 1):
                covered = dict(cursor) | {name: seq + 1 for name, seq in delivered[:survivors]}
                for later in _effects(plan, tuple(sorted(covered.items())), deaths - 1, once):
                    yield delivered[:survivors] + later
