"""Staged exchanges in every order of pushes, end marks, deaths, replays and acknowledgements, counted; random large
ones under a small disk budget; mutants.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from math import factorial, prod
from typing import Any

import pytest

import epochlog as el
from epochlog.exchange.staged import state, transactions
from gate_model import Plan
from staged_interleavings import SIZE, StagedEvent, StagedWorld, check, check_end, every_order

pytestmark = pytest.mark.local_only

JOIN = Plan.of({-1: {"build": 1}, 0: {"probe": 1}})
LONGER = Plan.of({-1: {"build": 2}, 0: {"probe": 1}})
TWO_BUILDS = Plan.of({-1: {"a": 1, "b": 1}, 0: {"probe": 1}})
EMPTY_BETWEEN = Plan.of({-2: {"a": 1}, -1: {"nothing": 0}, 0: {"c": 1}})
ONE = Plan.of({0: {"only": 2}})


def sent(plan: Plan, attempt: int = 0, channels: list[str] | None = None) -> list[StagedEvent]:
    names = channels or list(plan.counts)
    pushes = [StagedEvent("push", name, seq, attempt) for name in names for seq in range(plan.counts[name])]
    return pushes + [StagedEvent("end", name, 0, attempt) for name in names]


def did(consumer: str, **times: int) -> dict[StagedEvent, int]:
    return {StagedEvent(action, consumer): count for action, count in times.items()}


def all_orders(events: Mapping[StagedEvent, int]) -> int:
    return factorial(sum(events.values())) // prod(map(factorial, events.values()))


def walk(plan: Plan, consumers: Mapping[str, Plan], *events: Any) -> tuple[int, int]:
    """Try every order of the events. Return the number of orders and of distinct worlds they end in."""
    counted: dict[StagedEvent, int] = {}
    for part in events:
        counted.update(part if isinstance(part, dict) else dict.fromkeys(part, 1))
    walked = every_order(StagedWorld.new(plan, consumers), counted)
    assert walked.orders == all_orders(counted), "the space has shrunk"
    return walked.orders, walked.worlds


def one_death() -> None:
    """A consumer that takes, saves, acknowledges and dies at any moment."""
    assert walk(JOIN, {"c": JOIN}, sent(JOIN), did("c", take=2, save=1, ack=1, die=1))[0] == 181_440


def two_deaths() -> None:
    assert walk(JOIN, {"c": JOIN}, sent(JOIN), did("c", take=2, save=1, ack=2, die=2, late=1))[0] == 59_875_200


def a_producer_that_dies() -> None:
    """All it sent may still come late, between and behind what its successor sends."""
    events = [*sent(JOIN), *sent(JOIN, 1, ["build"])]
    assert walk(JOIN, {"c": JOIN}, events, did("c", take=1, save=1, ack=1))[0] == 362_880


def two_consumers() -> None:
    """Of one channel: it is let go of when both have acknowledged it."""
    both = {"c": ONE, "d": ONE}
    assert walk(ONE, both, sent(ONE), did("c", take=1, save=1, ack=1), did("d", take=1, save=1, ack=1))[0] == 362_880


def an_empty_channel() -> None:
    assert walk(EMPTY_BETWEEN, {"c": EMPTY_BETWEEN}, sent(EMPTY_BETWEEN), did("c", take=2, save=1, die=1))[0] == 181_440


def two_builds() -> None:
    assert walk(TWO_BUILDS, {"c": TWO_BUILDS}, sent(TWO_BUILDS), did("c", take=2, save=1, die=1))[0] == 1_814_400


def lies() -> None:
    """Another content under a sequence that is known, another end of a channel that has ended."""
    events = [
        *sent(ONE),
        StagedEvent("lie", "only", 0),
        StagedEvent("lie", "only", 1),
        StagedEvent("wrong end", "only"),
    ]
    assert walk(ONE, {"c": ONE}, events, did("c", take=1, save=1, ack=1))[0] == 362_880


def two_readers_of_a_join() -> None:
    """One of them reads the probe alone; the build is another's."""
    readers = {"c": JOIN, "d": Plan.of({0: {"probe": 1}})}
    orders, _ = walk(JOIN, readers, sent(JOIN), did("c", take=2, save=1, ack=1, die=1), did("d", take=1, save=1, ack=1))
    assert orders == 239_500_800


SPACES = [one_death, a_producer_that_dies, two_consumers, an_empty_channel, two_builds, lies]


@pytest.mark.rule("6.1", "6.2")
@pytest.mark.medium
@pytest.mark.parametrize("space", SPACES, ids=lambda space: space.__name__)
def test_every_order(space: Callable[[], None]) -> None:
    space()


@pytest.mark.slow
@pytest.mark.parametrize("space", [two_deaths, two_readers_of_a_join], ids=lambda space: space.__name__)
def test_every_order_of_more(space: Callable[[], None]) -> None:
    space()


def longer(**done: int) -> tuple[int, int]:
    events = [*sent(LONGER), *sent(LONGER, 1, ["build"])]
    return walk(LONGER, {"c": LONGER}, events, did("c", **done))


@pytest.mark.long
def test_every_order_of_a_longer_join() -> None:
    orders, worlds = longer(take=1, save=1, ack=1, die=1)
    assert (orders, worlds > 10_000) == (factorial(12), True)


@pytest.mark.campaign
def test_every_order_of_a_longer_join_where_everything_dies() -> None:
    orders, worlds = longer(take=2, save=2, ack=2, die=2, late=1)
    assert (orders, worlds > 100_000) == (factorial(17) // 2**4, True)


# ---- random large ones -------------------------------------------------------------------------------------------


class RandomRun:
    """Producers that die and repeat, consumers that die, everything late or out of order, and little room on disk."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        names = (f"ch{number}" for number in range(99))
        self.plan = Plan.of({
            stage: {next(names): rng.choice((0, 1, 2, 5, 12)) for _ in range(rng.randint(1, 3))}
            for stage in rng.sample(range(-3, 2), rng.randint(1, 3))
        })  # fmt: skip
        consumers = {"all": self.plan}
        for name in rng.sample(("b", "c"), rng.randint(0, 2)):
            consumers[name] = self.part()
        self.world = StagedWorld.new(self.plan, consumers, SIZE * rng.choice((2, 3, 8, 1000)))
        self.attempts = dict.fromkeys(self.plan.counts, 0)

    def part(self) -> Plan:
        """Some of the channels."""
        stages = {
            stage: {name: self.plan.counts[name] for name in channels if self.rng.random() < 0.6}
            for stage, channels in self.plan.channels.items()
        }
        return Plan.of({stage: channels for stage, channels in stages.items() if channels} or {0: {}})

    def run(self) -> None:
        for _ in range(self.rng.randint(20, 120)):
            self.do(self.rng.choice((self.produce, self.consume))())
        while not self.world.done:
            before = self.world
            for event in self.rest():
                self.do(event)
            assert self.world != before, f"it does not end: {self.world.truth}"
        check_end(self.world)

    def do(self, event: StagedEvent) -> None:
        self.world = self.world.after(event)
        check(self.world)

    def produce(self) -> StagedEvent:
        name, rng = self.rng.choice(list(self.plan.counts)), self.rng
        if rng.random() < 0.05:
            self.attempts[name] += 1
        attempt = self.attempts[name] - (self.attempts[name] > 0 and rng.random() < 0.1)
        ahead = [seq for seq in range(self.plan.counts[name]) if (name, seq) not in self.world.truth.pushed][:3]
        action = rng.choices(("push", "end", "lie", "wrong end"), (20, 2, 1, 1))[0]
        if action in ("end", "wrong end") or not self.plan.counts[name]:
            return StagedEvent("end" if action == "push" or not self.plan.counts[name] else action, name, 0, attempt)
        again = rng.random() < 0.1 or not ahead or action == "lie"
        return StagedEvent(action, name, rng.randrange(self.plan.counts[name]) if again else rng.choice(ahead), attempt)

    def consume(self) -> StagedEvent:
        action = self.rng.choices(("take", "save", "ack", "die", "late"), (10, 5, 5, 1, 1))[0]
        return StagedEvent(action, self.rng.choice(self.world.consumers)[0])

    def rest(self) -> list[StagedEvent]:
        """List the events that every producer and consumer would do next."""
        events = []
        for name, count in self.plan.counts.items():
            attempt = max(self.attempts[name], self.world.truth.attempt(name))
            missing = [seq for seq in range(count) if (name, seq) not in self.world.truth.pushed]
            events += [StagedEvent("push", name, seq, attempt) for seq in missing[:1]]
            events += [StagedEvent("end", name, 0, attempt)] * (not missing)
        return events + [
            StagedEvent(action, name) for name, _ in self.world.consumers for action in ("take", "save", "ack")
        ]


def random_runs(seeds: range) -> None:
    for seed in seeds:
        try:
            RandomRun(seed).run()
        except BaseException:
            print(f"repeat with random_runs(range({seed}, {seed + 1}))")
            raise


@pytest.mark.medium
def test_random_runs() -> None:
    random_runs(range(30))


@pytest.mark.long
def test_more_random_runs() -> None:
    random_runs(range(1_000, 1_100))


@pytest.mark.campaign
def test_many_random_runs() -> None:
    random_runs(range(2_000, 6_000))


# ---- mutants ------------------------------------------------------------------------------------------------

Mutant = Callable[[pytest.MonkeyPatch], None]


def producers_not_fenced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(transactions, "check_producer", lambda channel, stage, attempt: None)


def an_attempt_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A push fences its channel, an end mark does not."""
    whole = transactions.with_end
    patch.setattr(
        transactions, "with_end", lambda channel, last, attempt, rows: whole(channel, last, channel.attempt, rows)
    )


def content_not_compared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(transactions, "check_repeat", lambda *args: None)


def released_content_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    whole = transactions.find_digest

    def digest_of(view: Any, query: str, channel: Any, seq: int) -> Any:
        return None if seq < channel.released else whole(view, query, channel, seq)

    patch.setattr(transactions, "find_digest", digest_of)


def a_second_end_is_taken(patch: pytest.MonkeyPatch) -> None:
    def with_end(channel: Any, last: int, attempt: int, rows: Any) -> Any:
        return state.replace(channel, last=last, attempt=attempt)

    patch.setattr(transactions, "with_end", with_end)


def a_repeat_is_kept_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(state.Channel, "has", lambda channel, seq: False)


def holes_are_passed(patch: pytest.MonkeyPatch) -> None:
    whole = transactions.with_push

    def with_push(channel: Any, seq: int, rows: int, attempt: int) -> Any:
        after = whole(channel, seq, rows, attempt)
        return state.replace(after, next=max([after.next, *(ahead + 1 for ahead in after.ahead)]), ahead=())

    patch.setattr(transactions, "with_push", with_push)


def one_acknowledgement_is_enough(patch: pytest.MonkeyPatch) -> None:
    def releasable(channel: str, consumers: Any) -> int:
        return max(
            (consumer.cursor.get(channel, 0) for consumer in consumers if channel in consumer.channels), default=0
        )

    patch.setattr(transactions, "releasable", releasable)


def who_has_not_begun_needs_nothing(patch: pytest.MonkeyPatch) -> None:
    whole = transactions.releasable
    patch.setattr(
        transactions,
        "releasable",
        lambda channel, consumers: whole(channel, [consumer for consumer in consumers if consumer.cursor]),
    )


def received_is_acknowledged(patch: pytest.MonkeyPatch) -> None:
    """An acknowledgement also releases the batch that follows its cursor."""
    whole = transactions.releasable
    patch.setattr(
        transactions, "releasable", lambda channel, consumers: (below := whole(channel, consumers)) and below + 1
    )


def nothing_is_released(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(transactions, "releasable", lambda channel, consumers: 0)


def bytes_on_disk_are_miscounted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(transactions, "used_bytes", lambda view, query: 0)


def consumers_not_fenced(patch: pytest.MonkeyPatch) -> None:
    for name in ("with_claim", "with_acknowledgement"):
        whole = getattr(state, name)

        def unfenced(consumer: Any, incarnation: int, *rest: Any, whole: Any = whole) -> Any:
            return whole(consumer, max(incarnation, consumer.incarnation), *rest)

        patch.setattr(transactions, name, unfenced)


def acknowledgements_not_fenced(patch: pytest.MonkeyPatch) -> None:
    whole = transactions.with_acknowledgement
    patch.setattr(transactions, "with_acknowledgement", lambda consumer, incarnation, *rest: whole(
        consumer, consumer.incarnation, *rest
    ))  # fmt: skip


def incarnations_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    whole = transactions.with_claim
    patch.setattr(transactions, "with_claim", lambda consumer, incarnation, *rest: state.replace(
        whole(consumer, incarnation, *rest), incarnation=consumer.incarnation
    ))  # fmt: skip


def brought_cursor_ignored(patch: pytest.MonkeyPatch) -> None:
    whole = transactions.with_claim
    patch.setattr(
        transactions, "with_claim", lambda consumer, number, cursor, channels: whole(consumer, number, None, channels)
    )


def acknowledged_cursor_goes_back(patch: pytest.MonkeyPatch) -> None:
    def acknowledged(consumer: Any, incarnation: int, cursor: Any, channels: Any) -> Any:
        if incarnation != consumer.incarnation:
            raise el.Fenced("replaced")
        return state.replace(consumer, cursor={name: seq - 1 for name, seq in cursor.items()})

    patch.setattr(transactions, "with_acknowledgement", acknowledged)


def absence_is_completion(patch: pytest.MonkeyPatch) -> None:
    """A channel that has something is taken to end there."""
    whole = transactions.read_backlog

    def look(view: Any, query: str, consumer: str, cursor: Any, wanted: Any, most: int) -> Any:
        sent = whole(view, query, consumer, cursor, wanted, most)
        last = {name: seq for name, seq, _ in sent.pushed}
        return state.replace(sent, ends={**last, **sent.ends})

    patch.setattr(transactions, "read_backlog", look)


def counter_ahead(patch: pytest.MonkeyPatch) -> None:
    """A stage counts as ended once one of its channels has."""
    patch.setattr(state, "stage_counter", lambda stages, passed: next(
        (stage for stage in sorted(stages) if not passed & set(stages[stage])), max(stages) + 1
    ))  # fmt: skip


def an_end_mark_is_enough(patch: pytest.MonkeyPatch) -> None:
    """A channel counts as passed when its end mark comes, whatever of it was pushed."""
    patch.setattr(state.Channel, "passed", property(lambda channel: channel.last is not None))


def a_push_completes_nothing(patch: pytest.MonkeyPatch) -> None:
    """A channel is counted by its end mark alone, and not at all when its last push comes after that."""
    whole = transactions.push

    def push(tx: Any, query: str, given: Any) -> Any:
        before = tx.get(transactions.query_key(query))
        taken = whole(tx, query, given)
        tx.put(transactions.query_key(query), before)
        return taken

    patch.setattr(transactions, "push", push)


def later_stages_take_all_room(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(transactions, "fits_budget", lambda query, used, channel, seq, size: used + size <= query.budget)


def counted_before_refused(patch: pytest.MonkeyPatch) -> None:
    """The attempt is written before the content is looked at."""
    pushing = transactions.push

    def push(tx: Any, query: str, given: Any) -> Any:
        key = transactions.channel_key(query, given.channel)
        tx.put(key, {**tx.get(key), "attempt": max(tx.get(key)["attempt"], given.attempt + 1)})
        return pushing(tx, query, given)

    patch.setattr(transactions, "push", push)


CAUGHT: list[tuple[Mutant, Callable[[], None]]] = [
    (producers_not_fenced, a_producer_that_dies),
    (an_attempt_is_forgotten, a_producer_that_dies),
    (content_not_compared, lies),
    (released_content_is_forgotten, lies),
    (a_second_end_is_taken, lies),
    (a_repeat_is_kept_again, a_producer_that_dies),
    (holes_are_passed, two_consumers),
    (one_acknowledgement_is_enough, two_consumers),
    (who_has_not_begun_needs_nothing, two_consumers),
    (received_is_acknowledged, two_consumers),
    (nothing_is_released, one_death),
    (bytes_on_disk_are_miscounted, one_death),
    (consumers_not_fenced, one_death),
    (acknowledgements_not_fenced, two_deaths),
    (incarnations_are_forgotten, one_death),
    (brought_cursor_ignored, one_death),
    (acknowledged_cursor_goes_back, two_consumers),
    (absence_is_completion, one_death),
    (counter_ahead, two_builds),
    (an_end_mark_is_enough, one_death),
    (a_push_completes_nothing, one_death),
    (later_stages_take_all_room, test_random_runs),
    (counted_before_refused, lies),
]


@pytest.mark.planted
@pytest.mark.parametrize("mutant, space", CAUGHT, ids=[mutant.__name__ for mutant, _ in CAUGHT])
def test_a_mutant_is_caught(mutant: Mutant, space: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    with pytest.raises((AssertionError, el.EpochlogError)):
        space()
