"""Idle jobs cost nothing; jobs and snapshots keep the logs and the history that they need."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

import epochlog as el
from lab import Lab, commits, mirror, refuse, sums


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    lab = Lab(tmp_path / "store")
    lab.root_table(options=el.TableOptions(history_retention=timedelta(0)))
    return lab


# ---- idle ------------------------------------------------------------------------------------------------------------


@pytest.mark.rule("1.3")
def test_an_idle_job_writes_nothing(lab: Lab) -> None:
    lab.put({1: (0, 10)})
    job = lab.job("j", ["r"])
    lab.tick()
    assert job.step_local(mirror("r", "j_out")) is not None
    assert job.step_local(refuse) is None
    before = lab.txn_id()
    for intervals in (0, 0.3, 1, 1, 7, 100_000):
        lab.tick(intervals)
        assert job.step_local(refuse) is None
    assert lab.txn_id() == before


@pytest.mark.rule("1.3")
def test_idle_jobs_of_different_intervals_write_nothing(lab: Lab) -> None:
    """A boundary that one of them sealed is none for the other: they would seal for each other, for good."""
    lab.put({1: (0, 10)})
    jobs = {interval: lab.job(f"j{interval}", ["r"], interval=interval) for interval in (2, 3, 5)}
    steps = {str(k): lambda k=k, job=job: job.step_local(mirror("r", f"j{k}_out")) for k, job in jobs.items()}
    lab.tick(30)
    commits(steps)
    before = lab.txn_id()
    for _ in range(31):
        lab.tick()
        assert commits(steps) == {"2": [], "3": [], "5": []}
    assert lab.txn_id() == before


@pytest.mark.rule("2.1")
def test_an_empty_commit_upstream_wakes_nobody(lab: Lab) -> None:
    lab.put({1: (0, 10)})
    first, second = lab.job("a", ["r"]), lab.job("b", ["a_out"])
    lab.tick()
    first.step_local(mirror("r", "a_out"))
    second.step_local(mirror("a_out", "b_out"))
    lab.put({})
    lab.tick()
    before = lab.txn_id()
    assert first.step_local(refuse) is None
    assert lab.txn_id() == before
    lab.put({2: (0, -1)})
    lab.tick()
    assert first.step_local(mirror("r", "a_out", keep=lambda v: v > 0)) is not None  # an empty entry
    before = lab.txn_id()
    assert second.step_local(refuse) is None
    assert lab.txn_id() == before
    with lab.store.snapshot() as snapshot:
        assert set(snapshot.epochs.values()) == {lab.store.last_epoch}


def test_a_job_that_waits_for_its_upstream_takes_its_barrier_when_that_has_committed(lab: Lab) -> None:
    first, second = lab.job("a", ["r"]), lab.job("b", ["r", "a_out"])
    lab.put({1: (0, 10)})
    lab.tick()
    assert second.step_local(refuse) is None
    assert first.step_local(mirror("r", "a_out")) is not None
    assert second.step_local(sums("a_out", "b_out")) == first.info.committed_epoch


# ---- holds -----------------------------------------------------------------------------------------------------------


@pytest.mark.rule("3.17")
def test_a_job_holds_the_log_and_the_states_that_it_has_not_taken_in(lab: Lab) -> None:
    job = lab.job("j", ["r"])
    lab.put({1: (0, 10)})
    lab.tick()
    position = job.step_local(mirror("r", "j_out"))
    assert position is not None
    newest = 0
    for number in range(3):
        newest = lab.put({1: (0, number)})
        lab.tick()
    table = lab.store.table("r")
    with pytest.raises(el.LogHeld, match="job:j.*'r'"):
        table.truncate_log(newest)
    lab.store.compact("r", full=True)
    assert table.info.safe_epoch == position
    while job.step_local(mirror("r", "j_out")) is not None:
        pass
    lab.store.compact("r", full=True)
    table.truncate_log(newest)
    assert table.info.safe_epoch == newest
    assert lab.rows("j_out") == {1: (0, 2)}


def test_a_job_that_never_ran_holds_nothing_for_a_snapshot_and_the_whole_log_for_a_log_backfill(lab: Lab) -> None:
    epochs = [lab.put({1: (0, number)}) for number in range(3)]
    lab.job("j", ["r"], backfill="snapshot")
    lab.store.table("r").truncate_log(epochs[0])
    lab.root_table("other")
    epochs = [lab.put({1: (0, number)}, "other") for number in range(3)]
    lab.job("o", ["other"], backfill="log")
    with pytest.raises(el.LogHeld, match="job:o"):
        lab.store.table("other").truncate_log(epochs[0])
    lab.store.drop_job("o")
    lab.store.table("other").truncate_log(epochs[0])


@pytest.mark.rule("3.17")
def test_a_snapshot_holds_the_state_that_it_reads_until_it_is_closed(lab: Lab) -> None:
    epoch = lab.put({1: (0, 10)})
    table = lab.store.table("r")
    snapshot = lab.store.snapshot(["r"], consistency="latest")
    newest = max(lab.put({1: (0, number)}) for number in range(3))
    lab.tick()
    lab.store.compact("r", full=True)
    assert table.info.safe_epoch == epoch
    assert lab.rows("r", epoch) == {1: (0, 10)}
    snapshot.close()
    lab.put({2: (0, 1)})
    lab.store.compact("r", full=True)
    assert table.info.safe_epoch >= newest
    with pytest.raises(el.EpochExpired):
        lab.rows("r", epoch)


@pytest.mark.rule("3.17")
def test_a_finished_job_holds_nothing(lab: Lab) -> None:
    job = lab.job("j", ["r"])
    lab.put({1: (0, 10)})
    end = lab.store.table("r").finish()
    lab.tick()
    job.step_local(mirror("r", "j_out"))
    lab.store.compact("r", full=True)
    lab.store.table("r").truncate_log(end)
    assert lab.store.table("r").info.safe_epoch == end
