"""Model of a staged exchange: its catalog, producers and consumers, in every order of the events of small plans.

What the exchange decides is the library's: `keeping` over a dict of packed records, and one gate for each consumer
incarnation. What must hold is worked out anew from what was accepted, in the predicates of `World.check`. Orders are
counted without walking each: two orders that lead to the same world go on alike.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import epochlog as el
from epochlog.exchange import StageGate
from epochlog.exchange.staged import state, transactions
from epochlog.store.catalog.keys import intent_key
from epochlog.store.catalog.protocol import PackedReads
from epochlog.store.catalog.records import pack
from gate_model import Plan

QUERY = "q"
INTENT = "a" * 32
SIZE = 10
"""Bytes of each batch."""
PLENTY = 1 << 20
MOST = 4


class MemoryRecords(PackedReads):
    """The records of a world: a ReadTxn and a Txn. What fails leaves nothing behind."""

    def __init__(self, records: Mapping[bytes, bytes]) -> None:
        self.records = dict(records)

    def get_packed(self, key: bytes) -> bytes | None:
        return self.records.get(key)

    def scan_packed(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        for key in sorted((key for key in self.records if start <= key < stop), reverse=reverse):
            yield key, self.records[key]

    def put(self, key: bytes, record: dict[str, Any]) -> None:
        self.records[key] = pack(key, record)

    def delete(self, key: bytes) -> None:
        self.records.pop(key, None)


# ---- what can happen ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, order=True)
class StagedEvent:
    """Of a producer: push, end (lie, wrong end: with another content, another last sequence). Of a consumer: take what
    there is, save what was taken, ack what was saved, die, and late: an acknowledgement by the incarnation before.
    """

    action: str
    actor: str
    seq: int = 0
    attempt: int = 0


@dataclass(frozen=True)
class Life:
    """A consumer incarnation: what it has taken, and how much of that its durable state covers."""

    number: int = 0
    taken: tuple[tuple[str, int, int], ...] = ()
    saved: int = 0

    def cursor(self, length: int | None = None) -> dict[str, int]:
        return {name: seq + 1 for name, seq, _ in self.taken[:length]}


@dataclass(frozen=True)
class Truth:
    """Accepted events, by the rules alone."""

    pushed: frozenset[tuple[str, int]] = frozenset()
    ended: frozenset[str] = frozenset()
    attempts: tuple[tuple[str, int], ...] = ()
    acked: tuple[tuple[str, int], ...] = ()  # of each consumer how much of what it took

    def attempt(self, channel: str) -> int:
        return dict(self.attempts).get(channel, 0)

    def with_attempt(self, channel: str, attempt: int) -> Truth:
        return replace(self, attempts=tuple(sorted({**dict(self.attempts), channel: attempt}.items())))


def content(channel: str, seq: int) -> int:
    return zlib.crc32(f"{channel}[{seq}]".encode())


@dataclass(frozen=True)
class StagedWorld:
    """One state. `consumers` says which channels each of them has."""

    plan: Plan
    consumers: tuple[tuple[str, Plan], ...]
    records: frozenset[tuple[bytes, bytes]]
    lives: tuple[tuple[str, Life], ...]
    truth: Truth = Truth()

    @classmethod
    def new(cls, plan: Plan, consumers: Mapping[str, Plan], budget: int = PLENTY) -> StagedWorld:
        catalog = MemoryRecords({})
        catalog.put(intent_key(INTENT), {"id": INTENT})
        for name, part in consumers.items():
            stages = {stage: tuple(channels) for stage, channels in part.channels.items()}
            query = state.StagedQuery(QUERY, stages, frozenset(), 1000, 1000, budget)
            transactions.declare(catalog, query, state.StageConsumer(name, stages))
        lives = []
        for name in consumers:
            transactions.claim(catalog, QUERY, name, 0, None)
            lives.append((name, Life()))
        records = frozenset(catalog.records.items())
        return cls(plan, tuple(consumers.items()), records, tuple(lives))

    def after(self, event: StagedEvent) -> StagedWorld:
        """The world once it has happened; AssertionError where it was answered otherwise than the rules say."""
        catalog = MemoryRecords(dict(self.records))
        if event.action in ("push", "end", "lie", "wrong end"):
            truth, lives = _produced(self, catalog, event), self.lives
        else:
            life, truth = _consumed(self, catalog, event)
            lives = tuple((name, life if name == event.actor else other) for name, other in self.lives)
        return replace(self, records=frozenset(catalog.records.items()), truth=truth, lives=lives)

    def life(self, consumer: str) -> Life:
        return dict(self.lives)[consumer]

    @property
    def done(self) -> bool:
        """Return True if every consumer has acknowledged all of it."""
        return all(dict(self.truth.acked).get(name) == sum(part.counts.values()) for name, part in self.consumers)


# ---- producers ---------------------------------------------------------------------------------------------------


def _produced(world: StagedWorld, catalog: MemoryRecords, event: StagedEvent) -> Truth:
    channel, truth = event.actor, world.truth
    fenced = event.attempt < truth.attempt(channel)
    last = world.plan.counts[channel] - 1
    if event.action in ("lie", "wrong end") and not _is_known(truth, event):
        return truth  # it would be the truth: a producer tells no lie first
    wrong = event.action == "lie", event.action == "wrong end"
    try:
        if event.action in ("push", "lie"):
            crc32 = content(channel, event.seq) ^ wrong[0]
            path = f"{INTENT}-{channel}-{event.seq}-{event.attempt}.arrow"
            request = transactions.Push(
                channel, world.plan.stage_of[channel], event.seq, event.attempt, path, SIZE, crc32, 1
            )
            if transactions.push(catalog, QUERY, request).full:
                assert catalog.records.keys() == dict(world.records).keys(), "what has no room is not kept"
                return truth.with_attempt(channel, event.attempt)  # and it fences who was before it
        else:
            transactions.end(catalog, QUERY, channel, last + wrong[1], event.attempt, None)
    except el.Fenced:
        assert fenced, f"{event} was refused as one of a lower attempt"
        assert catalog.records == dict(world.records), "what is refused changes nothing"
    except (el.ContentMismatch, el.EndMarkMismatch):
        assert any(wrong) and not fenced, f"{event} was refused"
        assert catalog.records == dict(world.records), "what is refused changes nothing"
    else:
        assert not fenced, f"an attempt that was replaced was served: {event}"
        assert not any(wrong), f"one content per sequence, one end per channel: {event} was taken"
        truth = truth.with_attempt(channel, event.attempt)
        if event.action == "push":
            return replace(truth, pushed=truth.pushed | {(channel, event.seq)})
        return replace(truth, ended=truth.ended | {channel})
    return truth


def _is_known(truth: Truth, event: StagedEvent) -> bool:
    return (event.actor, event.seq) in truth.pushed if event.action == "lie" else event.actor in truth.ended


# ---- consumers ---------------------------------------------------------------------------------------------------


def _consumed(world: StagedWorld, catalog: MemoryRecords, event: StagedEvent) -> tuple[Life, Truth]:
    life, truth = world.life(event.actor), world.truth
    if event.action == "take":
        return _take(world, catalog, event.actor, life), truth
    if event.action == "save":
        return replace(life, saved=len(life.taken)), truth
    if event.action == "ack":
        _acknowledge(catalog, event.actor, life.number, life.cursor(life.saved))
        return life, replace(truth, acked=tuple(sorted({**dict(truth.acked), event.actor: life.saved}.items())))
    if event.action == "late":
        if life.number:
            try:
                _acknowledge(catalog, event.actor, life.number - 1, life.cursor())
            except el.Fenced:
                return life, truth
            raise AssertionError("an incarnation that was replaced has acknowledged")
        return life, truth
    assert event.action == "die"
    born = Life(life.number + 1, life.taken[: life.saved], life.saved)
    claimed = transactions.claim(catalog, QUERY, event.actor, born.number, born.cursor())
    assert {name: seq for name, seq in claimed.start.items() if seq} == born.cursor(), "it begins where its state ends"
    try:
        transactions.claim(catalog, QUERY, event.actor, life.number, None)
    except el.Fenced:
        return born, truth
    raise AssertionError("an incarnation that was replaced has come back")


def _take(world: StagedWorld, catalog: MemoryRecords, consumer: str, life: Life) -> Life:
    """All that its gate lets out, each held against the rules."""
    part = dict(world.consumers)[consumer]
    gate = StageGate(part.channels, life.cursor())
    while True:
        cursor = gate.cursor
        pending = transactions.read_backlog(catalog, QUERY, consumer, cursor, list(cursor), MOST)
        for name, last in pending.ends.items():
            gate.end(name, last)
        for name, seq, pushed in pending.pushed:
            gate.offer(name, seq, pushed, digest=pushed.crc32)
        taken = gate.take()
        if not taken:
            return life
        for name, seq, pushed in taken:
            _check_given(part, world.truth, life, name, seq, pushed.crc32)
            life = replace(life, taken=(*life.taken, (name, seq, pushed.crc32)))


def _check_given(part: Plan, truth: Truth, life: Life, name: str, seq: int, crc32: int) -> None:
    """The gate, contiguity, and one content per sequence."""
    position = life.cursor()
    for other, count in part.counts.items():
        if part.stage_of[other] < part.stage_of[name]:
            assert other in truth.ended, f"the gate: {name}[{seq}] before the end mark of {other}"
            assert position.get(other, 0) == count, f"the gate: {name}[{seq}] before {other} has passed"
    assert seq == position.get(name, 0), f"contiguity: {name}[{seq}] at {position.get(name, 0)}"
    assert crc32 == content(name, seq), f"one content per sequence: {name}[{seq}]"


def _acknowledge(catalog: MemoryRecords, consumer: str, incarnation: int, cursor: dict[str, int]) -> None:
    transactions.acknowledge(catalog, QUERY, consumer, incarnation, cursor)


# ---- what holds at every moment ----------------------------------------------------------------------------------


def check(world: StagedWorld) -> None:
    catalog = MemoryRecords(dict(world.records))
    counter_never_ahead(world, catalog)
    nothing_freed_too_early(world, catalog)
    effects_once(world)


def counter_never_ahead(world: StagedWorld, catalog: MemoryRecords) -> None:
    """A stage has passed once all its channels have ended, and all up to the ends was pushed."""
    stages, counts = world.plan.channels, world.plan.counts
    pushed = Counter(channel for channel, _ in world.truth.pushed)
    passed = {channel for channel in world.truth.ended if pushed[channel] == counts[channel]}
    lacking = [stage for stage, names in stages.items() if not passed.issuperset(names)]
    counter, expected = transactions.find_query(catalog, QUERY).stage, min(lacking, default=max(stages) + 1)
    assert counter == expected, f"the counter is {counter}, by what was ended and pushed {expected}"


def nothing_freed_too_early(world: StagedWorld, catalog: MemoryRecords) -> None:
    """Check that each pushed batch exists until all its consumers have acknowledged it, and that its file is then
    freed.
    """
    acked = dict(world.truth.acked)
    covered = {name: world.life(name).cursor(acked.get(name, 0)) for name, _ in world.consumers}
    readers = {
        channel: [name for name, part in world.consumers if channel in part.counts] for channel in world.plan.counts
    }
    stored = 0
    for channel, seq in world.truth.pushed:
        exists = transactions.find_pushed(catalog, QUERY, channel, seq) is not None
        needed = any(covered[name].get(channel, 0) <= seq for name in readers[channel])
        assert exists or not needed, f"freed too early: {channel}[{seq}]"
        assert needed or not exists, f"never freed: {channel}[{seq}]"
        stored += exists
    assert transactions.used_bytes(catalog, QUERY) == stored * SIZE, "the bytes on disk"


def effects_once(world: StagedWorld) -> None:
    for name, _ in world.consumers:
        effects = [(channel, seq) for channel, seq, _ in world.life(name).taken]
        assert len(set(effects)) == len(effects), f"an effect twice: {effects}"


# ---- every order -------------------------------------------------------------------------------------------------


@dataclass
class Walked:
    """Numbers of the orders and of the distinct worlds they end in."""

    orders: int
    worlds: int


def every_order(world: StagedWorld, events: Mapping[StagedEvent, int]) -> Walked:
    """Every order of the events (each as often as it says); each way ends well, once everything that died came back."""
    seen: dict[tuple[StagedWorld, tuple[tuple[StagedEvent, int], ...]], int] = {}
    ended: set[StagedWorld] = set()

    def orders(at: StagedWorld, remaining: tuple[tuple[StagedEvent, int], ...]) -> int:
        known = seen.get((at, remaining))
        if known is not None:
            return known
        check(at)
        if not remaining and at not in ended:
            ended.add(at)
            settle(at)
        count = 0 if remaining else 1
        for event, _ in remaining:
            later = tuple((other, n - (other == event)) for other, n in remaining if n > (other == event))
            count += orders(at.after(event), later)
        seen[at, remaining] = count
        return count

    return Walked(orders(world, tuple(sorted(Counter(events).items()))), len(seen))


def settle(world: StagedWorld) -> None:
    """All producers start again and all consumers go on: it ends, and each batch has taken effect once at each."""
    attempts = {name: world.truth.attempt(name) + 1 for name in world.plan.counts}
    for _ in range(2 * len(world.plan.counts) + 2):
        for channel, count in world.plan.counts.items():
            for seq in range(count):
                world = world.after(StagedEvent("push", channel, seq, attempts[channel]))
            world = world.after(StagedEvent("end", channel, 0, attempts[channel]))
        for name, _ in world.consumers:
            for action in ("take", "save", "ack"):
                world = world.after(StagedEvent(action, name))
                check(world)
        if world.done:
            break
    check_end(world)


def check_end(world: StagedWorld) -> None:
    assert world.done, "it does not end"
    for name, part in world.consumers:
        effects = [(channel, seq) for channel, seq, _ in world.life(name).taken]
        wanted = [(channel, seq) for channel, count in part.counts.items() for seq in range(count)]
        assert sorted(effects) == sorted(wanted), f"exactly one effect: {name} has {effects}"
        stages = [part.stage_of[channel] for channel, _ in effects]
        assert stages == sorted(stages), f"lower stages first: {effects}"
