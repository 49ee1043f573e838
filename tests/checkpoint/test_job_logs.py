"""Log lines of a job: its runner, its commits, a takeover, its parking."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import epochlog as el
from lab import Lab, mirror
from logged_events import logged

COPY = mirror("r", "j_out")


@pytest.fixture
def lab(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[Lab]:
    lab = Lab(tmp_path / "store")
    lab.root_table(options=el.TableOptions(log_retention=timedelta(hours=2), history_retention=timedelta(hours=1)))
    lab.job("j", ["r"])
    lab.put({1: (0, 10)})
    lab.tick()
    caplog.set_level("DEBUG", "epochlog")
    yield lab
    lab.store.close()


@pytest.mark.logs("commit", "barrier", "runner_claimed")
def test_a_start_and_each_commit_are_told_and_idle_steps_are_not(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    job = lab.store.job("j")
    epoch = job.step_local(COPY)
    started, _, committed = events = logged(caplog)
    assert [event["event"] for event in events] == ["runner_claimed", "commit", "barrier"]
    assert started["runner"].startswith(f"a step of process {os.getpid()} on ") and started["incarnation"] == 1
    assert (committed["epoch"], committed["rows"], committed["unchanged"]) == (epoch, 1, 0)
    for _ in range(3):
        assert job.step_local(COPY) is None
    assert len(caplog.messages) == 3
    lab.put({2: (0, 20), 3: (0, 30)})
    lab.tick()
    job.step_local(COPY)
    assert [event["rows"] for event in logged(caplog, "barrier")] == [1, 2]


@pytest.mark.logs("table_altered")
def test_rows_that_change_nothing_are_told_apart(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    def refresh(ctx: Any) -> None:
        ctx.upsert("j_out", ctx.table("r"))
        ctx.delete("j_out", pa.table({"k": pa.array([77, 78], pa.int64())}))

    def assert_logged(rows: int, unchanged: int) -> None:
        lab.tick()
        lab.store.job("j").step_local(refresh)
        barrier = logged(caplog, "barrier")[-1]
        assert (barrier["rows"], barrier["unchanged"]) == (rows, unchanged)

    assert_logged(1, 2)
    lab.put({1: (0, 10)})
    assert_logged(0, 3)
    lab.put({1: (0, 11), 2: (0, 20)})
    assert_logged(2, 2)
    lab.store.table("j_out").alter(drop_unchanged=False)
    lab.put({1: (0, 11)})
    assert_logged(4, 0)


@pytest.mark.logs("runner_fenced")
def test_a_takeover_names_who_was_fenced(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    def meanwhile(ctx: Any) -> None:
        lab.store.job("j").step_local(COPY, take_over=True)

    with pytest.raises(el.Fenced):
        lab.store.job("j").step_local(meanwhile)
    _, taken = logged(caplog, "runner_claimed")
    assert taken["incarnation"] == 2 and f"a step of process {os.getpid()} on " in taken["predecessor"]
    (fenced,) = logged(caplog, "runner_fenced", "refresh_failed", "job_retried")
    assert fenced["job"] == "j" and "taken over by incarnation 2" in fenced["error"]


@pytest.mark.logs("refresh_failed")
def test_a_refresh_that_fails_is_told_once(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ZeroDivisionError):
        lab.store.job("j").step_local(lambda ctx: 1 // 0)
    (failed,) = logged(caplog, "refresh_failed")
    assert failed["error"].startswith("ZeroDivisionError: ") and failed["epoch"] > 0
    assert caplog.records[-1].levelname == "WARNING"


@pytest.mark.logs("job_parked", "files_released")
def test_parking_and_what_retention_lets_go_of_are_told_once(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    lab.store.job("j").step_local(COPY)
    for number in range(4):
        lab.put({number: (0, number)})
        lab.tick(3600)
    caplog.clear()
    for _ in range(2):
        lab.store.compact(full=True)
    lab.tick(4 * 3600)
    lab.store.compact(full=True)
    assert lab.state("j") == "parked"
    (parked,) = logged(caplog, "job_parked")
    assert (parked["job"], parked["table"]) == ("j", "r")
    (released,) = logged(caplog, "files_released")
    assert released["table"] == "r" and released["files"] > 0 < released["bytes"]
    caplog.clear()
    lab.store.compact(full=True)
    assert caplog.messages == []  # nothing more was let go of


@pytest.mark.logs("leases_left")
def test_a_close_without_the_catalog_says_that_leases_are_left(
    lab: Lab, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: Any) -> Any:
        raise el.CatalogUnavailable("gone; try again")

    snapshot = lab.store.snapshot(consistency="latest")
    with monkeypatch.context() as patch:
        patch.setattr(lab.store._handle.catalog, "transact", gone)
        lab.store.close()
    assert "gone; try again" in logged(caplog, "leases_left")[0]["error"]
    del snapshot
