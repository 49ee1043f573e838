"""The checkpoint manager: when it triggers, what forces it, and what it refuses; the scenarios have the rest."""

from __future__ import annotations

from typing import Any

import pytest

from epochlog.checkpoint import CheckpointManager, Edge, JobSettings, Outbox
from epochlog.checkpoint.manager.commands import Abort, Decide, Inject
from epochlog.errors import InvalidInput, JobExists, JobNotFound
from manager_driver import START_MS, Desk

pytestmark = pytest.mark.local_only

A = ("v", 0)


@pytest.fixture
def desk() -> Desk:
    return Desk()


def injected(desk: Desk, job: str = "j") -> list[int]:
    return [at for at, kind in desk.ticks(job) if kind == "Inject"]


def test_triggers_are_multiples_of_the_interval_however_late_the_ticks_are(desk: Desk) -> None:
    desk.job("j")
    desk.works("j")
    for ms in (1_003, 2_999, 3_000, 5_400):
        desk.now = START_MS + ms
        desk.do(desk.manager.tick())
    assert injected(desk) == [1_003, 2_999, 3_000, 5_400]
    desk.to(7_000)
    assert injected(desk)[4:] == [6_000, 7_000]


@pytest.mark.parametrize(("interval_ms", "then"), [(5_000, [5_000, 10_000]), (2_000, [4_000, 6_000, 8_000, 10_000])])
def test_another_pace_holds_from_the_next_trigger_on(desk: Desk, interval_ms: int, then: list[int]) -> None:
    desk.job("j")
    desk.works("j")
    desk.to(3_000)
    desk.manager.pace("j", interval_ms)
    desk.to(10_900)
    assert injected(desk) == [1_000, 2_000, 3_000, *then]
    desk.manager.pace("gone", interval_ms)


def test_a_pace_that_stays_moves_no_trigger(desk: Desk) -> None:
    """Not even one that is to come again because it was not used up."""
    desk.job("j")
    desk.works("j")
    desk.to(999)
    desk.now = START_MS + 1_500
    desk.manager.pace("j", 1_000)
    desk.do(desk.manager.tick())
    assert injected(desk) == [1_500]


def test_a_trigger_that_comes_while_a_barrier_is_in_flight_waits_for_its_end_and_the_pause(desk: Desk) -> None:
    desk.job("j", min_pause_ms=300)
    desk.to(2_500)
    desk.report("j", A)
    desk.to(2_799)
    assert injected(desk) == [1_000]
    desk.to(2_800)
    assert injected(desk) == [1_000, 2_800]


def test_the_pause_holds_for_forced_ones_too(desk: Desk) -> None:
    desk.job("j", interval_ms=None, min_pause_ms=300)
    desk.works("j")
    for _ in range(2):
        desk.do(desk.manager.inject("j"))
    desk.to(1_000)
    assert injected(desk) == [0, 300]


def test_a_job_without_interval_has_forced_ones_only(desk: Desk) -> None:
    desk.job("j", interval_ms=None)
    desk.works("j")
    assert desk.manager.next_due() is None
    desk.to(60_000)
    assert injected(desk) == []


def test_no_attempt_before_all_actors_are_there(desk: Desk) -> None:
    desk.do(desk.manager.register("j", {"v": 2}, incarnation=1))
    desk.attach("j", A)
    desk.to(5_500)
    assert desk.of(Decide, "j") == []
    assert desk.manager.status("j").waiting_for == {("v", 1)}
    desk.attach("j", ("v", 1))
    assert injected(desk) == [5_500]


@pytest.mark.rule("5.28")
@pytest.mark.parametrize("settled", [False, True])
def test_nothing_to_commit_serves_a_forced_one_only_when_it_is_settled(desk: Desk, settled: bool) -> None:
    desk.answers = False
    desk.job("j", interval_ms=None)
    (decide,) = desk.do(desk.manager.inject("j"))
    assert isinstance(decide, Decide)
    desk.do(desk.manager.decided("j", decide.barrier_id, None, settled=settled))
    desk.to(3_500)
    assert len(desk.of(Decide, "j")) == (1 if settled else 2)
    assert desk.manager.status("j").forced is not settled


def test_an_answer_that_does_not_come_is_given_up(desk: Desk) -> None:
    desk.answers = False
    desk.job("j", timeout_ms=3_000)
    desk.to(4_000)
    assert "not decided" in desk.of(Abort, "j")[0].reason
    late = desk.of(Decide, "j")[0].barrier_id
    assert desk.do(desk.manager.decided("j", late, desk.barrier("j"))) == []
    desk.to(5_000)
    assert len(desk.of(Decide, "j")) == 2


@pytest.mark.rule("5.27")
def test_an_actor_lost_before_the_barrier_is_decided_puts_the_attempt_off_uncounted(desk: Desk) -> None:
    desk.answers = desk.attaches = False
    desk.job("j")
    desk.to(1_000)
    desk.fail("j", A)
    desk.do(desk.manager.decided("j", desk.of(Decide, "j")[0].barrier_id, desk.barrier("j")))
    assert desk.of(Inject, "j") == [] and desk.manager.status("j").failures == 0
    desk.answers = True
    desk.attach("j", A)
    assert injected(desk) == [1_000]


def test_finished_actors_stop_a_job_that_does_not_allow_them(desk: Desk) -> None:
    desk.job("j", {"v": 2}, allow_finished=False, finished=[A])
    desk.to(5_000)
    assert desk.of(Decide, "j") == []


def test_bad_input_leaves_nothing_behind() -> None:
    manager = CheckpointManager(clock=lambda: START_MS)
    bad: list[dict[str, Any]] = [
        {"vertices": {}},
        {"vertices": {"v": 0}},
        {"incarnation": 0},
        {"finished": [("w", 0)]},
        {"edges": [Edge("v", "w", "all")]},
    ]
    for given in bad:
        with pytest.raises(InvalidInput):
            manager.register("j", **{"vertices": {"v": 1}, "incarnation": 1, **given})
    assert manager.jobs() == []
    manager.register("j", {"v": 1}, incarnation=3)
    with pytest.raises(JobExists):
        manager.register("j", {"v": 1}, incarnation=4)
    with pytest.raises(InvalidInput, match="not newer"):
        manager.recover("j", incarnation=3)
    with pytest.raises(InvalidInput, match="no actor"):
        manager.attach("j", ("v", 1))
    for call in (manager.inject, manager.status, manager.unregister):
        with pytest.raises(JobNotFound, match="register it first"):
            call("k")
    assert manager.unregister("j") == [] and manager.next_due() is None


@pytest.mark.parametrize(
    "given",
    [{"interval_ms": 0}, {"timeout_ms": 0}, {"min_pause_ms": -1}, {"tolerable_failures": -1}, {"timeout_ms": None}],
)
def test_settings_that_cannot_be_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(given))):
        JobSettings(**given)


@pytest.mark.rule("5.24")
def test_an_outbox_repeats_what_was_not_taken_and_nothing_else() -> None:
    box = Outbox()
    assert box.report(5, 0, {"t": ["a"]}) == {"t": ("a",)}
    assert box.report(6, 0, {"t": ["b"], "u": ["x"]}) == {"t": ("a", "b"), "u": ("x",)}
    assert box.report(7, 6, {"u": ["y"]}) == {"u": ("y",)}
    assert box.report(8, 6, {}) == {"u": ("y",)}
    assert box.report(9, 8, {}) == {}
