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

COPY = mirror("r", "j_out")


@pytest.fixture
def lab(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[Lab]:
    lab = Lab(tmp_path / "store")
    lab.root_table(options=el.TableOptions(log_retention=timedelta(hours=2), history_retention=timedelta(hours=1)))
    lab.job("j", ["r"])
    lab.put({1: (0, 10)})
    lab.tick()
    caplog.set_level("INFO", "epochlog")
    yield lab
    lab.store.close()


def test_a_start_and_each_commit_are_told_and_idle_steps_are_not(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    job = lab.store.job("j")
    epoch = job.step_local(COPY)
    started, committed = caplog.messages
    assert started.startswith(f"job 'j': run by a step of process {os.getpid()} on ") and "incarnation 1" in started
    assert committed.startswith(f"job 'j': committed epoch {epoch} (2025-01-01T00:01:")
    assert ": 1 rows written, 0 unchanged, in " in committed
    for _ in range(3):
        assert job.step_local(COPY) is None
    assert len(caplog.messages) == 2
    lab.put({2: (0, 20), 3: (0, 30)})
    lab.tick()
    job.step_local(COPY)
    assert len(caplog.messages) == 3 and ": 2 rows written, 0 unchanged, in " in caplog.messages[2]


def test_rows_that_change_nothing_are_told_apart(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    def refresh(ctx: Any) -> None:
        ctx.upsert("j_out", ctx.table("r"))
        ctx.delete("j_out", pa.table({"k": pa.array([77, 78], pa.int64())}))

    def assert_logged(counts: str) -> None:
        lab.tick()
        lab.store.job("j").step_local(refresh)
        assert f": {counts}, in " in caplog.messages[-1], caplog.messages

    assert_logged("1 rows written, 2 unchanged")
    lab.put({1: (0, 10)})
    assert_logged("0 rows written, 3 unchanged")
    lab.put({1: (0, 11), 2: (0, 20)})
    assert_logged("2 rows written, 2 unchanged")
    lab.store.table("j_out").alter(drop_unchanged=False)
    lab.put({1: (0, 11)})
    assert_logged("4 rows written, 0 unchanged")


def test_a_takeover_names_who_was_fenced(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    def meanwhile(ctx: Any) -> None:
        lab.store.job("j").step_local(COPY, take_over=True)

    with pytest.raises(el.Fenced):
        lab.store.job("j").step_local(meanwhile)
    (taken,) = [text for text in caplog.messages if "taken over" in text]
    assert "incarnation 2" in taken and f"taken over from a step of process {os.getpid()} on " in taken


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
    (parked,) = [text for text in caplog.messages if text.startswith("job 'j': parked at epoch ")]
    assert "the changes of 'r' from" in parked
    assert [text for text in caplog.messages if text.startswith("table 'r': released ")]
    caplog.clear()
    lab.store.compact(full=True)
    assert caplog.messages == []  # nothing more was let go of
