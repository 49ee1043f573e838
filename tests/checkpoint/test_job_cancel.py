"""Cancelling a job that is being created: gone at once with all it made and held, whoever is at work on it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import epochlog as el
from lab import Lab, keys_of, mirror, table_of
from wait_until import WAIT_LIMIT_S


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    lab = Lab(tmp_path / "store")
    lab.root_table()
    for number in range(4):
        lab.put({number: (0, number)})
    lab.tick()
    return lab


def files_of(lab: Lab, table: str) -> set[str]:
    handle = lab.store._handle
    return {file.path for file in handle.files.list(handle.table_folder(lab.store.table(table)._table.id))}


def is_gone(lab: Lab, files: set[str], table: str = "j_out") -> None:
    assert [info.name for info in lab.store.jobs()] == []
    assert table not in [info.name for info in lab.store.tables()]
    lab.store.vacuum(grace=0)
    assert not {file.path for file in lab.store._handle.files.list(lab.store._handle.store_id)} & files
    report = lab.store.verify()
    assert report.ok and not report.unreachable, report


@pytest.mark.rule("5.9")
def test_before_during_and_after_its_pieces(lab: Lab) -> None:
    for steps in range(5):
        job = lab.job("j", ["r"], snapshot_rows=1)
        for _ in range(steps):
            assert job.step_local(mirror("r", "j_out")) == 0
        files = files_of(lab, "j_out")
        assert len(files) == steps
        job.cancel()
        is_gone(lab, files)
        with pytest.raises(el.JobNotFound, match="cancelled"):
            job.cancel()
        with pytest.raises(el.JobNotFound, match="'j' was dropped or cancelled"):
            job.step_local(mirror("r", "j_out"))


def test_the_log_is_released(lab: Lab) -> None:
    job = lab.job("j", ["r"], snapshot_rows=1)
    job.step_local(mirror("r", "j_out"))
    newest = lab.put({9: (0, 9)})
    with pytest.raises(el.LogHeld, match="job:j"):
        lab.store.table("r").truncate_log(newest)
    job.cancel()
    lab.store.table("r").truncate_log(newest)
    assert lab.store.table("r").info.log_start_epoch == newest


def test_another_of_its_name_may_follow_at_once(lab: Lab) -> None:
    lab.job("j", ["r"], snapshot_rows=1).cancel()
    job = lab.job("j", ["r"])
    assert job.step_local(mirror("r", "j_out")) is not None
    assert lab.rows("j_out") == lab.rows("r")


@pytest.mark.rule("5.9")
@pytest.mark.parametrize("pieces", [None, 2])
def test_while_another_is_at_its_refresh(lab: Lab, pieces: int | None) -> None:
    """Its next call of the catalog tells it, and what it wrote is not left behind."""
    job, files = lab.job("j", ["r"], snapshot_rows=pieces), set[str]()

    def cancelled(ctx: Any) -> None:
        mirror("r", "j_out")(ctx)
        lab.store.job("j").cancel()

    with pytest.raises(el.JobNotFound, match="cancelled"):
        job.step_local(cancelled)
    is_gone(lab, files)
    with pytest.raises(el.JobNotFound):
        job.step_local(mirror("r", "j_out"))


def test_from_another_thread(lab: Lab) -> None:
    job, reached, cancelled, errors = lab.job("j", ["r"]), threading.Event(), threading.Event(), []

    def refresh(ctx: Any) -> None:
        ctx.upsert("j_out", table_of({1: (1, 1)}))
        reached.set()
        assert cancelled.wait(WAIT_LIMIT_S)
        ctx.delete("j_out", keys_of([2]))

    def run() -> None:
        try:
            job.step_local(refresh)
        except el.EpochlogError as error:
            errors.append(error)

    runner = threading.Thread(target=run)
    runner.start()
    assert reached.wait(WAIT_LIMIT_S)
    lab.store.job("j").cancel()
    cancelled.set()
    runner.join()
    assert [type(error) for error in errors] == [el.JobNotFound]
    is_gone(lab, set())


def test_a_failed_refresh_of_a_cancelled_job_tells_of_that(lab: Lab) -> None:
    """A file of its input went with the hold of the job: that it was cancelled is what matters."""
    job = lab.job("j", ["r"])

    def refresh(ctx: Any) -> None:
        lab.store.job("j").cancel()
        raise el.Corrupt("somewhere", "the file is gone")

    with pytest.raises(el.JobNotFound, match="cancelled"):
        job.step_local(refresh)


@pytest.mark.rule("5.9")
def test_only_a_creating_one(lab: Lab) -> None:
    job = lab.job("j", ["r"])
    assert job.step_local(mirror("r", "j_out")) is not None
    with pytest.raises(el.InvalidInput, match=r"'j' is running.*drop_job\('j'\)"):
        job.cancel()
    job.rebuild()
    with pytest.raises(el.InvalidInput, match="'j' is rebuilding"):
        job.cancel()
    assert lab.rows("j_out") == lab.rows("r")


def test_a_parked_one_that_never_committed(lab: Lab) -> None:
    job = lab.job("j", ["r"], snapshot_rows=1)
    job.step_local(mirror("r", "j_out"))
    lab.put({9: (0, 9)})
    lab.now_ms += 2 * 86_400_000
    lab.store.compact("r")
    assert job.info.state == "parked"
    job.cancel()
    is_gone(lab, set())


@pytest.mark.rule("5.9")
def test_not_while_another_job_reads_it(lab: Lab) -> None:
    job = lab.job("j", ["r"], snapshot_rows=1)
    above = lab.job("above", ["j_out"])
    with pytest.raises(el.TableInUse, match=r"'j' cannot be cancelled: job 'above' reads its output 'j_out'"):
        job.cancel()
    assert job.step_local(mirror("r", "j_out")) == 0
    above.cancel()
    job.cancel()
    is_gone(lab, set())


def test_one_that_catches_up_can_be_cancelled(lab: Lab) -> None:
    job = lab.job("j", ["r"], backfill="log", max_lag=0)
    for number in range(20):
        lab.put({number: (0, number)})
        lab.tick()
    assert job.step_local(mirror("r", "j_out")) is not None
    assert (job.info.state, bool(job.info.committed_epoch)) == ("creating", True)
    job.cancel()
    is_gone(lab, set())
