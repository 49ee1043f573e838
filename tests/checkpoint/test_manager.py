"""The checkpoint manager: when it triggers, what forces it, and what it refuses; the scenarios have the rest."""

from __future__ import annotations

from typing import Any

import pytest

from epochlog.checkpoint import CheckpointManager, JobSettings, Outbox
from epochlog.checkpoint.manager.commands import Abort, Decide, Inject
from epochlog.errors import InvalidInput, JobExists, JobNotFound
from manager_driver import START_MS, ManagerDriver

pytestmark = pytest.mark.local_only

A = ("v", 0)


@pytest.fixture
def driver() -> ManagerDriver:
    return ManagerDriver()


def injected(driver: ManagerDriver, job: str = "j") -> list[int]:
    return [at for at, kind in driver.ticks(job) if kind == "Inject"]


def test_triggers_are_multiples_of_the_interval_however_late_the_ticks_are(driver: ManagerDriver) -> None:
    driver.job("j")
    driver.works("j")
    for ms in (1_003, 2_999, 3_000, 5_400):
        driver.now = START_MS + ms
        driver.do(driver.manager.tick())
    assert injected(driver) == [1_003, 2_999, 3_000, 5_400]
    driver.to(7_000)
    assert injected(driver)[4:] == [6_000, 7_000]


def test_a_trigger_that_comes_while_a_barrier_is_in_flight_waits_for_its_end_and_the_pause(
    driver: ManagerDriver,
) -> None:
    driver.job("j", min_pause_ms=300)
    driver.to(2_500)
    driver.report("j", A)
    driver.to(2_799)
    assert injected(driver) == [1_000]
    driver.to(2_800)
    assert injected(driver) == [1_000, 2_800]


def test_the_pause_holds_for_forced_ones_too(driver: ManagerDriver) -> None:
    driver.job("j", interval_ms=None, min_pause_ms=300)
    driver.works("j")
    for _ in range(2):
        driver.do(driver.manager.inject("j"))
    driver.to(1_000)
    assert injected(driver) == [0, 300]


def test_a_job_without_interval_has_forced_ones_only(driver: ManagerDriver) -> None:
    driver.job("j", interval_ms=None)
    driver.works("j")
    assert driver.manager.next_due() is None
    driver.to(60_000)
    assert injected(driver) == []


def test_no_attempt_before_all_actors_are_there(driver: ManagerDriver) -> None:
    driver.do(driver.manager.register("j", {"v": 2}, incarnation=1))
    driver.attach("j", A)
    driver.to(5_500)
    assert driver.of(Decide, "j") == []
    assert driver.manager.status("j").waiting_for == {("v", 1)}
    driver.attach("j", ("v", 1))
    assert injected(driver) == [5_500]


@pytest.mark.rule("5.28")
@pytest.mark.parametrize("settled", [False, True])
def test_nothing_to_commit_serves_a_forced_one_only_when_it_is_settled(driver: ManagerDriver, settled: bool) -> None:
    driver.answers = False
    driver.job("j", interval_ms=None)
    (decide,) = driver.do(driver.manager.inject("j"))
    assert isinstance(decide, Decide)
    driver.do(driver.manager.decided("j", decide.barrier_id, None, settled=settled))
    driver.to(3_500)
    assert len(driver.of(Decide, "j")) == (1 if settled else 2)
    assert driver.manager.status("j").forced is not settled


def test_an_answer_that_does_not_come_is_given_up(driver: ManagerDriver) -> None:
    driver.answers = False
    driver.job("j", timeout_ms=3_000)
    driver.to(4_000)
    assert "not decided" in driver.of(Abort, "j")[0].reason
    late = driver.of(Decide, "j")[0].barrier_id
    assert driver.do(driver.manager.decided("j", late, driver.barrier("j"))) == []
    driver.to(5_000)
    assert len(driver.of(Decide, "j")) == 2


@pytest.mark.rule("5.27")
def test_an_actor_lost_before_the_barrier_is_decided_puts_the_attempt_off_uncounted(driver: ManagerDriver) -> None:
    driver.answers = driver.attaches = False
    driver.job("j")
    driver.to(1_000)
    driver.fail("j", A)
    driver.do(driver.manager.decided("j", driver.of(Decide, "j")[0].barrier_id, driver.barrier("j")))
    assert driver.of(Inject, "j") == [] and driver.manager.status("j").failures == 0
    driver.answers = True
    driver.attach("j", A)
    assert injected(driver) == [1_000]


def test_finished_actors_stop_a_job_that_does_not_allow_them(driver: ManagerDriver) -> None:
    driver.job("j", {"v": 2}, allow_finished=False, finished=[A])
    driver.to(5_000)
    assert driver.of(Decide, "j") == []


def test_bad_input_leaves_nothing_behind() -> None:
    manager = CheckpointManager(clock=lambda: START_MS)
    bad: list[dict[str, Any]] = [
        {"vertices": {}},
        {"vertices": {"v": 0}},
        {"incarnation": 0},
        {"finished": [("w", 0)]},
        {"finished": [("v", 1)]},
    ]
    for options in bad:
        with pytest.raises(InvalidInput):
            manager.register("j", **{"vertices": {"v": 1}, "incarnation": 1, **options})
    assert manager.jobs() == []
    manager.register("j", {"v": 1}, incarnation=3)
    with pytest.raises(JobExists):
        manager.register("j", {"v": 1}, incarnation=4)
    with pytest.raises(InvalidInput, match="no actor"):
        manager.attach("j", ("v", 1))
    for call in (manager.inject, manager.status, manager.unregister):
        with pytest.raises(JobNotFound, match="register it first"):
            call("k")
    assert manager.unregister("j") == [] and manager.next_due() is None


@pytest.mark.parametrize(
    "options",
    [{"interval_ms": 0}, {"timeout_ms": 0}, {"min_pause_ms": -1}, {"tolerable_failures": -1}, {"timeout_ms": None}],
)
def test_settings_that_cannot_be_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(options))):
        JobSettings(**options)


@pytest.mark.rule("5.24")
def test_an_outbox_repeats_what_was_not_taken_and_nothing_else() -> None:
    box = Outbox()
    assert box.report(5, 0, {"t": ["a"]}) == {"t": ("a",)}
    assert box.report(6, 0, {"t": ["b"], "u": ["x"]}) == {"t": ("a", "b"), "u": ("x",)}
    assert box.report(7, 6, {"u": ["y"]}) == {"u": ("y",)}
    assert box.report(8, 6, {}) == {"u": ("y",)}
    assert box.report(9, 8, {}) == {}
