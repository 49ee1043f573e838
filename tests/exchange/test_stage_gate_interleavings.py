"""Every order of deliveries, end marks, deaths and replays of small plans, counted; random large ones; mutants."""

from __future__ import annotations

import random
from collections.abc import Callable
from math import factorial
from typing import Any

import pytest

from epochlog.exchange import StageGate
from epochlog.exchange import stage_gate as gate_module
from epochlog.exchange.stage_gate import _Channel
from gate_model import Arrival, Given, Plan, Rules, check_taken, deliver, every_death, every_order

pytestmark = pytest.mark.local_only

JOIN = Plan.of({-1: {"build": 2}, 0: {"probe": 2}})
SMALL = Plan.of({-1: {"build": 1}, 0: {"probe": 1}})
TWO_BUILDS = Plan.of({-1: {"a": 1, "b": 1}, 0: {"probe": 1}})
THREE_DEEP = Plan.of({-2: {"a": 1}, -1: {"b": 1}, 0: {"c": 1}})
EMPTY = Plan.of({-1: {"nothing": 0, "build": 1}, 0: {"probe": 1}})
EMPTY_BETWEEN = Plan.of({-2: {"a": 1}, -1: {"b": 0}, 0: {"c": 1}})


@pytest.mark.rule("6.1")
@pytest.mark.parametrize("plan, events", [
    (JOIN, 6), (TWO_BUILDS, 6), (THREE_DEEP, 6), (EMPTY, 5), (EMPTY_BETWEEN, 5),
], ids=["join", "two builds", "deep", "empty", "empty between"])  # fmt: skip
def test_every_order_of_one_life(plan: Plan, events: int) -> None:
    assert every_order(plan, plan.events({})) == factorial(events)


@pytest.mark.slow
@pytest.mark.parametrize("plan", [
    Plan.of({-1: {"build": 2}, 0: {"probe": 3}}),
    Plan.of({-2: {"a": 1}, -1: {"b": 1, "empty": 0}, 0: {"c": 1}}),
    Plan.of({-1: {"a": 2, "b": 1}, 0: {"probe": 1}}),
], ids=["join", "deep", "two builds"])  # fmt: skip
def test_every_order_of_a_longer_life(plan: Plan) -> None:
    assert every_order(plan, plan.events({})) == factorial(7)


def test_every_order_with_a_repeat() -> None:
    """Each single event comes once more, anywhere."""
    events = SMALL.events({})
    assert sum(every_order(SMALL, [*events, again]) for again in events) == 4 * factorial(5)


def test_every_order_of_a_producer_that_dies() -> None:
    """All it sent may still come late, between and behind what its successor sends."""
    events = [*SMALL.events({}), *(event for event in SMALL.events({}, attempt=1) if event.channel == "build")]
    assert every_order(SMALL, events) == factorial(6)


@pytest.mark.campaign
def test_every_order_of_two_producers_that_die() -> None:
    assert every_order(SMALL, [*SMALL.events({}), *SMALL.events({}, attempt=1)]) == factorial(8)


# How many ways there are to die once: of the arrangements of a part of all events, so many let a first item be kept
# (and a second, a third), and the next life has so many orders of what is not covered by what was kept.
DEATHS = [
    (SMALL, 65 * factorial(4) + 49 * factorial(3) + 30 * factorial(2)),
    (Plan.of({-1: {"build": 2}, 0: {"probe": 1}}), 326 * 120 + 261 * factorial(4) + 212 * factorial(3) + 144 * 2),
    (EMPTY_BETWEEN, 326 * 120 + 261 * factorial(4) + 144 * factorial(3)),
]


@pytest.mark.parametrize("plan, ways", DEATHS, ids=["join", "longer join", "empty between"])
def test_every_death_of_the_consumer(plan: Plan, ways: int) -> None:
    assert every_death(plan, 1) == ways


@pytest.mark.medium
def test_every_two_deaths_of_the_consumer() -> None:
    once = dict(DEATHS)[SMALL]
    kept_build, kept_both = 16 * factorial(3) + 8 * factorial(2), 5 * factorial(2)  # the same count for what is left
    assert every_death(SMALL, 2) == 65 * once + 49 * kept_build + 30 * kept_both == 130_198


# ---- random large ones -------------------------------------------------------------------------------------------


class RandomRun:
    """Producers, a network that repeats, reorders and delays, and a consumer that dies and comes back."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        names = (f"ch{number}" for number in range(99))
        self.plan = Plan.of({
            stage: {next(names): rng.choice((0, 1, 2, 5, 20)) for _ in range(rng.randint(1, 3))}
            for stage in rng.sample(range(-4, 3), rng.randint(1, 4))
        })  # fmt: skip
        self.durable: list[Given] = []
        self.attempts = dict.fromkeys(self.plan.counts, 0)
        self.deaths = rng.randint(0, 4)

    def run(self) -> list[Given]:
        """All effects, once everything has been delivered."""
        while True:
            if self.life(last=self.deaths == 0):
                return self.durable
            self.deaths -= 1

    def life(self, *, last: bool) -> bool:
        """One incarnation; whether it lived to the end. The last one gets all there is."""
        rng, cursor = self.rng, {}
        for name, seq in self.durable:
            cursor[name] = seq + 1
        gate, rules = StageGate(self.plan.channels, cursor), Rules(self.plan, cursor)
        start, given = list(self.durable), []
        waiting = self.sent(cursor)
        until = 0 if last else rng.randrange(len(waiting) + 1)
        while len(waiting) > until:
            event = waiting.pop(rng.randrange(len(waiting))) if rng.random() < 0.7 else rng.choice(waiting)
            deliver(gate, rules, event)
            if rng.random() < 0.5:
                given = check_taken(gate, rules, given)
            if rng.random() < 0.1:
                self.durable = start + given
            if rng.random() < 0.02:
                waiting += self.replayed(event.channel, rules)
        given = check_taken(gate, rules, given)
        if last:
            assert gate.done, gate
            self.durable = start + given
        return last

    def sent(self, cursor: dict[str, int]) -> list[Arrival]:
        """A replay to this cursor, or to one before it, and what earlier attempts left in the network."""
        behind = {name: self.rng.randint(0, seq) for name, seq in cursor.items()}
        events = [event for name in self.plan.counts for event in self.of(name, behind, self.attempts[name])]
        return events + self.rng.sample(events, len(events) // 3)

    def replayed(self, channel: str, rules: Rules) -> list[Arrival]:
        """The producer has died; its successor sends all of it again."""
        self.attempts[channel] = max(self.attempts[channel], rules.attempts.get(channel, 0)) + 1
        return self.of(channel, {}, self.attempts[channel])

    def of(self, channel: str, cursor: dict[str, int], attempt: int) -> list[Arrival]:
        return [event for event in self.plan.events(cursor, attempt) if event.channel == channel]


def random_runs(seeds: range) -> None:
    for seed in seeds:
        made = RandomRun(seed)
        try:
            effects = made.run()
            assert sorted(effects) == sorted((n, s) for n, count in made.plan.counts.items() for s in range(count))
            stages = [made.plan.stage_of[name] for name, _ in effects]
            assert stages == sorted(stages)
        except BaseException:
            print(f"repeat with random_runs(range({seed}, {seed + 1})): {made.plan}")
            raise


@pytest.mark.rule("6.1")
@pytest.mark.medium
def test_random_runs() -> None:
    random_runs(range(40))


@pytest.mark.long
def test_more_random_runs() -> None:
    random_runs(range(1_000, 1_300))


@pytest.mark.campaign
def test_many_random_runs() -> None:
    random_runs(range(2_000, 6_000))


# ---- mutants ------------------------------------------------------------------------------------------------

Mutant = Callable[[pytest.MonkeyPatch], None]


def counter_trusted(patch: pytest.MonkeyPatch) -> None:
    """The marks are kept for all incarnations, and a stage that has all of them lets the next one pass."""
    ended: set[str] = set()
    whole = StageGate.end

    def end(gate: StageGate, channel: str, last_seq: int, attempt: int = 0) -> None:
        whole(gate, channel, last_seq, attempt)
        ended.add(channel)

    patch.setattr(StageGate, "end", end)
    patch.setattr(_Channel, "passed", property(lambda channel: channel.name in ended))


def mark_is_enough(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_Channel, "passed", property(lambda channel: channel.last_seq is not None))


def absence_is_completion(patch: pytest.MonkeyPatch) -> None:
    def passed(channel: _Channel) -> bool:
        return not channel.waiting if channel.last_seq is None else channel.next > channel.last_seq

    patch.setattr(_Channel, "passed", property(passed))


def cursor_is_completion(patch: pytest.MonkeyPatch) -> None:
    """A channel counts as complete at the cursor of an earlier incarnation."""
    whole = _Channel.passed

    def passed(channel: _Channel) -> bool:
        return channel.first_seq > 0 if channel.last_seq is None else whole.__get__(channel)

    patch.setattr(_Channel, "passed", property(passed))


def one_too_early(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        _Channel, "passed", property(lambda channel: channel.last_seq is not None and channel.next >= channel.last_seq)
    )


def never_past_an_empty_channel(patch: pytest.MonkeyPatch) -> None:
    whole = _Channel.passed
    patch.setattr(_Channel, "passed", property(lambda channel: channel.last_seq != -1 and whole.__get__(channel)))


def no_contiguity(patch: pytest.MonkeyPatch) -> None:
    def take(channel: _Channel) -> list[Any]:
        batches = [(channel.name, seq, held.item) for seq, held in sorted(channel.waiting.items())]
        channel.delivered += [None] * len(batches)
        channel.waiting.clear()
        return batches

    patch.setattr(_Channel, "take", take)


def only_the_next_lower_stage(patch: pytest.MonkeyPatch) -> None:
    def take(gate: StageGate) -> list[Any]:
        taken, open_ = [], True
        for channels in gate._stages.values():
            if open_:
                taken += [delivery for name in channels for delivery in gate._channels[name].take()]
            open_ = all(gate._channels[name].passed for name in channels)
        return taken

    patch.setattr(StageGate, "take", take)


def one_channel_is_enough(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(gate_module, "all", any, raising=False)


def attempts_not_fenced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_Channel, "check_attempt", lambda channel, attempt: None)


def end_marks_do_not_fence(patch: pytest.MonkeyPatch) -> None:
    whole = StageGate.end

    def end(gate: StageGate, channel: str, last_seq: int, attempt: int = 0) -> None:
        before = gate._channels[channel].attempt
        whole(gate, channel, last_seq, attempt)
        gate._channels[channel].attempt = before

    patch.setattr(StageGate, "end", end)


def a_new_attempt_forgets(patch: pytest.MonkeyPatch) -> None:
    """A new attempt discards batches of the earlier attempt that were accepted."""
    whole = _Channel.check_attempt

    def check_attempt(channel: _Channel, attempt: int) -> None:
        whole(channel, attempt)
        if attempt > channel.attempt:
            channel.waiting.clear()

    patch.setattr(_Channel, "check_attempt", check_attempt)


def replay_delivered_twice(patch: pytest.MonkeyPatch) -> None:
    whole = StageGate.offer

    def offer(gate: StageGate, channel: str, seq: int, *rest: Any, **options: Any) -> None:
        state = gate._channels[channel]
        if seq == state.next - 1 >= state.first_seq:
            state.delivered.pop()
        whole(gate, channel, seq, *rest, **options)

    patch.setattr(StageGate, "offer", offer)


def cursor_ignored(patch: pytest.MonkeyPatch) -> None:
    whole = StageGate.__init__
    patch.setattr(StageGate, "__init__", lambda gate, stages, cursor=None: whole(gate, stages))


def counter_ahead(patch: pytest.MonkeyPatch) -> None:
    """A stage counts as ended once one of its channels has."""
    patch.setattr("gate_model.stage_counter", lambda stages, ended: next(
        (stage for stage in sorted(stages) if not ended & set(stages[stage])), max(stages) + 1
    ))  # fmt: skip


def one_life_of_a_join() -> None:
    every_order(JOIN, JOIN.events({}))


def one_life_of_two_builds() -> None:
    every_order(TWO_BUILDS, TWO_BUILDS.events({}))


def one_life_with_an_empty_stage_between() -> None:
    every_order(EMPTY_BETWEEN, EMPTY_BETWEEN.events({}))


def one_death() -> None:
    every_death(SMALL, 1)


def one_life_with_an_empty_channel() -> None:
    every_order(EMPTY, EMPTY.events({}))


CAUGHT: list[tuple[Mutant, Callable[[], None]]] = [
    (counter_trusted, one_life_of_a_join),
    (counter_trusted, one_death),
    (mark_is_enough, one_life_of_a_join),
    (absence_is_completion, one_life_of_a_join),
    (cursor_is_completion, one_death),
    (one_too_early, one_life_of_a_join),
    (never_past_an_empty_channel, one_life_with_an_empty_channel),
    (no_contiguity, one_life_of_a_join),
    (only_the_next_lower_stage, one_life_with_an_empty_stage_between),
    (one_channel_is_enough, one_life_of_two_builds),
    (attempts_not_fenced, test_every_order_of_a_producer_that_dies),
    (end_marks_do_not_fence, test_every_order_of_a_producer_that_dies),
    (a_new_attempt_forgets, test_random_runs),
    (replay_delivered_twice, test_every_order_with_a_repeat),
    (cursor_ignored, one_death),
    (counter_ahead, one_life_of_two_builds),
]


@pytest.mark.planted
@pytest.mark.parametrize(
    "mutant, check", CAUGHT, ids=[f"{mutant.__name__}-{check.__name__}" for mutant, check in CAUGHT]
)
def test_a_mutant_is_caught(mutant: Mutant, check: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        check()
