"""Barriers and partial recovery at the checkpoint manager: scenarios by their numbers, on virtual time."""

from __future__ import annotations

import pytest

from epochlog.checkpoint import Report
from epochlog.checkpoint.manager.commands import Abort, CommitBarrier, Drop, Failed, Inject, Restart
from manager_driver import START_MS, ManagerDriver

pytestmark = pytest.mark.local_only

A, B = ("v", 0), ("v", 1)


@pytest.fixture
def driver() -> ManagerDriver:
    return ManagerDriver()


@pytest.mark.rule("5.22")
def test_b1_a_worker_that_dies_before_reporting_holds_back_its_job_alone(driver: ManagerDriver) -> None:
    driver.job("hurt", {"v": 2})
    driver.job("well")
    driver.works("well")
    driver.attaches = False
    driver.to(1_000)
    driver.report("hurt", A, "a1")
    driver.fail("hurt", B)
    driver.to(5_999)
    assert driver.of(CommitBarrier, "hurt") == []
    assert len(driver.of(CommitBarrier, "well")) == 5
    driver.attach("hurt", B)
    driver.report("hurt", A, "a2")
    driver.report("hurt", B, "b1")
    assert driver.rows("hurt") == ["a1", "a2", "b1"]


@pytest.mark.rule("5.25")
def test_b1_only_the_killed_one_of_four_writers_restarts(driver: ManagerDriver) -> None:
    driver.job("load", {"v": 4})
    driver.to(1_000)
    driver.fail("load", ("v", 2))
    assert [tuple(restart.actors) for restart in driver.of(Restart, "load")] == [(("v", 2),)]


@pytest.mark.rule("5.25")
def test_b1_a_lost_actor_takes_its_own_segments_with_it_and_no_others(driver: ManagerDriver) -> None:
    """Two of three have reported: what the lost one reported is dropped, the other's is in the next commit."""
    driver.attaches = False
    actors = driver.job("load", {"v": 3})
    driver.to(1_000)
    driver.report("load", A, "a1")
    driver.report("load", B, "b1")
    driver.decline("load", ("v", 2))
    driver.fail("load", B)
    assert [tuple(restart.actors) for restart in driver.of(Restart, "load")] == [(B,)]
    assert [drop.segments for drop in driver.of(Drop, "load")] == [{"t": ("b1",)}]
    assert driver.manager.status("load").waiting_for == {B}
    driver.attach("load", B)
    assert driver.started("load") == [*actors, B]  # at once, and no other begins again
    driver.to(2_000)
    for actor in actors:
        driver.report("load", actor, f"again {actor[1]}")
    assert driver.rows("load") == ["a1", "again 0", "again 1", "again 2"]


@pytest.mark.rule("5.23", "5.28")
def test_b3_a_forced_checkpoint_of_two_jobs_at_once(driver: ManagerDriver) -> None:
    """One has a barrier in flight, the other is idle; neither loses its forced one, also across a lost actor."""
    for name in ("one", "two"):
        driver.job(name, interval_ms=None, timeout_ms=10_000)
    driver.do(driver.manager.inject("one"))
    first = driver.current("one").barrier_id
    for name in ("one", "two"):
        driver.do(driver.manager.inject(name))
    assert driver.current("one").barrier_id == first  # one in flight
    driver.report("one", A, "1")
    assert driver.current("one").barrier_id != first
    for name in ("one", "two"):
        driver.fail(name, A)
    driver.to(5_000)
    for name in ("one", "two"):
        assert driver.manager.status(name).forced
        driver.report(name, A, name)
        assert not driver.manager.status(name).forced
    assert driver.rows("one") == ["1", "one"]
    assert driver.rows("two") == ["two"]


@pytest.mark.rule("5.28")
def test_b3_a_forced_checkpoint_that_fails_is_tried_again(driver: ManagerDriver) -> None:
    driver.job("one", interval_ms=None)
    driver.do(driver.manager.inject("one"))
    driver.decline("one", A)
    assert len(driver.of(Inject, "one")) == 1  # not at once: whoever declined would decline again
    driver.to(1_000)
    assert len(driver.of(Inject, "one")) == 2


@pytest.mark.rule("5.24")
def test_b4_a_stuck_barrier_is_timed_out_and_its_segments_are_in_the_next(driver: ManagerDriver) -> None:
    driver.job("stuck", {"v": 2}, timeout_ms=3_000)
    driver.job("other")
    driver.works("other")
    driver.to(1_000)
    driver.report("stuck", A, "a1", "a2")
    driver.to(3_999)
    assert driver.of(Abort, "stuck") == []
    driver.to(4_999)
    assert [sorted(abort.actors) for abort in driver.of(Abort, "stuck")] == [[A, B]]
    assert "v[1]" in driver.of(Abort, "stuck")[0].reason
    assert len(driver.of(CommitBarrier, "other")) == 4
    driver.to(5_000)
    again = driver.current("stuck")
    assert again.taken == {A: driver.of(Inject, "stuck")[0].barrier_id, B: 0}
    driver.report("stuck", A, "a3")
    driver.report("stuck", B, "b1")
    assert driver.rows("stuck") == ["a1", "a2", "a3", "b1"]
    driver.works("stuck")
    driver.to(6_000)
    assert len(driver.rows("stuck")) == 6  # nothing twice


@pytest.mark.rule("5.22")
def test_b13_one_jobs_flood_leaves_the_others_latency(driver: ManagerDriver) -> None:
    """400,000 changed rows for one job: its report takes half a minute, and 400 segments."""
    plain, flooded = ManagerDriver(), driver
    for each in (plain, flooded):
        each.job("flood", timeout_ms=60_000)
        for name in ("a", "b"):
            each.job(name)
            each.works(name)
    plain.works("flood")
    plain.to(40_000)
    flooded.to(31_000)
    flooded.report("flood", A, *range(400))
    flooded.works("flood")
    flooded.to(40_000)
    assert flooded.ticks("flood") != plain.ticks("flood")
    for name in ("a", "b"):
        assert flooded.ticks(name) == plain.ticks(name)
    assert flooded.rows("flood")[:400] == list(range(400))


@pytest.mark.rule("5.23", "5.31")
def test_b14_stale_repeated_unknown_and_late_reports_change_nothing(driver: ManagerDriver) -> None:
    driver.job("j", {"v": 2}, timeout_ms=3_000)
    old = driver.incarnations["j", B]
    driver.to(1_000)
    driver.attach("j", B)  # fences the first one; the barrier is injected anew
    first = driver.current("j").barrier_id
    driver.report("j", A, "a1")
    nothing = [
        driver.report("j", A, "again"),
        driver.report("j", A, "another incarnation", incarnation=driver.incarnations["j", A] + 1),
        driver.report("j", B, "fenced", incarnation=old),
        driver.report("j", B, "unknown", barrier_id=first + 1),
        driver.report("j", B, "unknown", barrier_id=-1),
        driver.report("j", ("v", 2), "no such actor", incarnation=1),
        driver.do(driver.manager.collect(Report("elsewhere", first, A, 1))),
    ]
    driver.to(4_000)
    nothing.append(driver.report("j", B, "late", barrier_id=first))
    assert nothing == [[]] * len(nothing)
    assert driver.manager.status("j").ignored == 7
    assert driver.of(CommitBarrier, "j") == []
    driver.to(5_000)
    driver.report("j", A, "a2")
    driver.report("j", B, "late", "b2")  # named again, since it was not taken
    assert driver.rows("j") == ["a1", "a2", "late", "b2"]


@pytest.mark.rule("5.22")
@pytest.mark.parametrize("trouble", ["fails", "is stuck", "dies", "is registered again"])
def test_g16_one_jobs_trouble_changes_no_tick_of_the_others(trouble: str) -> None:
    """100 times; the others' decisions come at the same ms as without it (B12 at the manager)."""
    drivers = {"calm": ManagerDriver(), "trouble": ManagerDriver()}
    settings = {"timeout_ms": 700, "tolerable_failures": 5}
    for name, driver in drivers.items():
        driver.job("bad", **settings)
        for interval, other in ((1_000, "a"), (700, "b"), (3_100, "c")):
            driver.job(other, interval_ms=interval, min_pause_ms=50)
            driver.works(other)
        if name == "calm":
            driver.works("bad")
    calm, driver = drivers.values()
    calm.to(130_000)
    if trouble == "fails":
        driver.on_inject["bad"] = lambda inject: driver.decline("bad", A, inject.barrier_id)
    for number in range(100):
        driver.to(1_250 * (number + 1))
        if trouble == "dies":
            driver.fail("bad", A)
        if trouble == "is registered again" or driver.manager.status("bad").state == "failed":
            driver.again("bad", **settings)
    driver.to(130_000)
    assert driver.of(CommitBarrier, "bad") == []
    assert len(driver.of(Failed, "bad")) >= (15 if trouble in ("fails", "is stuck") else 0)
    for other in ("a", "b", "c"):
        assert len(driver.of(CommitBarrier, other)) > 40
        assert driver.ticks(other) == calm.ticks(other)


def test_time_that_goes_back_stops_no_job(driver: ManagerDriver) -> None:
    driver.job("j", timeout_ms=2_000)
    driver.to(1_500)
    driver.now = START_MS - 3_600_000
    driver.do(driver.manager.tick())
    due = driver.manager.next_due()
    assert due is not None and due - driver.now == 2_000
    driver.now = due
    driver.do(driver.manager.tick())
    assert len(driver.of(Abort, "j")) == 1
