"""Drivers of jobs, by which pipelines and queries enter a job, wait for its runner, try again and leave it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import epochlog as el
from epochlog.checkpoint.job import driver as driver_module
from epochlog.checkpoint.job.driver import JobDriver
from epochlog.checkpoint.job.refresh_adapter import LocalRefreshAdapter
from epochlog.checkpoint.job.step_scheduler import JobStep
from lab import Lab, mirror
from logged_events import logged

pytestmark = pytest.mark.local_only
REFRESH = mirror("r", "j_out")


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    made = Lab(tmp_path / "store")
    made.root_table()
    made.job("j", ["r"])
    made.put({1: (0, 1)})
    made.tick()
    return made


def driver_of(store: el.Store, refresh: Callable[[Any], None] = REFRESH, **options: Any) -> JobDriver:
    return JobDriver(store.job("j")._runner, refresh, "pipeline", **options)


def stepped(driver: JobDriver, schedule: JobStep, tries: int | None = None) -> tuple[int | None, JobStep]:
    """Enter and step once; return the epoch, and the schedule after an error."""
    try:
        driver.enter()
        return driver.step(LocalRefreshAdapter(driver.runner.handle)), schedule
    except Exception as error:
        return None, driver.after_error(schedule, error, 1_000, tries)


def test_a_driver_waits_for_a_live_runner_and_logs_each_wait_once(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "epochlog")
    other = lab.open()
    for wait in (1, 2):
        first, second = driver_of(lab.store), driver_of(other)
        first.enter()
        schedule = JobStep()
        for _ in range(3):
            epoch, schedule = stepped(second, schedule)
            assert epoch is None and schedule.state == "waiting" and schedule.failures == 0
        assert len(logged(caplog, "runner_waits")) == wait and not logged(caplog, "job_retried")
        first.leave()
        assert stepped(second, schedule)[1] == schedule and second.holds
        second.leave()
    assert lab.store.job("j").info.runner is None
    other.close()


def test_a_refresh_that_raises_job_running_has_failed(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    def steps_itself(ctx: Any) -> None:
        driver.runner.step(REFRESH, LocalRefreshAdapter(driver.runner.handle), lease=driver.lease)

    driver = driver_of(lab.store, steps_itself)
    _, schedule = stepped(driver, JobStep())
    assert (schedule.state, schedule.failures) == ("backing off", 1) and "JobRunning" in (schedule.last_error or "")
    assert not logged(caplog, "runner_waits") and len(logged(caplog, "job_retried")) == 1
    driver.leave()


def test_a_job_that_takes_no_more_steps_is_left(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    def fails(ctx: Any) -> None:
        raise ZeroDivisionError("as always")

    driver, schedule = driver_of(lab.store, fails), JobStep()
    for failures in (1, 2):
        assert driver.holds is (failures == 2)
        schedule = stepped(driver, schedule, tries=2)[1]
    assert schedule.state == "given up" and not driver.holds and lab.store.job("j").info.runner is None
    assert len(logged(caplog, "job_retried")) == len(logged(caplog, "job_ended")) == 1
    with lab.open() as other:  # so another runner enters at once
        assert stepped(driver_of(other), JobStep())[0]


def test_a_driver_takes_over_once(lab: Lab) -> None:
    first = driver_of(lab.store)
    first.enter()
    with lab.open() as other:
        second = driver_of(other, take_over=True)
        assert stepped(second, JobStep())[0] and not second.take_over
        assert stepped(first, JobStep())[1].state == "fenced"
        second.leave()


# ---- planted bugs


def each_job_running_is_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JobDriver, "holds", False)


def a_wait_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_module, "JobRunning", ZeroDivisionError)


def an_ended_job_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JobDriver, "leave", lambda driver: None)


@pytest.mark.planted
@pytest.mark.parametrize(
    ("mutant", "check"),
    [
        (each_job_running_is_a_wait, test_a_refresh_that_raises_job_running_has_failed),
        (a_wait_is_a_failure, test_a_driver_waits_for_a_live_runner_and_logs_each_wait_once),
        (an_ended_job_is_kept, test_a_job_that_takes_no_more_steps_is_left),
    ],
)
def test_a_driver_with_a_rule_of_its_own_is_found(
    mutant: Callable[[pytest.MonkeyPatch], None],
    check: Callable[[Lab, pytest.LogCaptureFixture], None],
    lab: Lab,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        check(lab, caplog)
