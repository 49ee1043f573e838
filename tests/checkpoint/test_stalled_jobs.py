"""Jobs that stand still for longer than a log is kept: who is parked, when, and what of it stays readable."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import epochlog as el
from epochlog.__main__ import main
from epochlog.checkpoint.job.claims import RunnerLease
from epochlog.checkpoint.job.runner import JobRunner
from epochlog.store.retention.holds import Hold, put_holds
from epochlog.store.types.epoch import to_unix_ms
from lab import Lab, mirror, refuse

HOUR_MS = 3_600_000
KEPT = el.TableOptions(history_retention=timedelta(hours=1), log_retention=timedelta(hours=24))


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    lab = Lab(tmp_path / "store")
    lab.root_table(options=KEPT)
    return lab


def running(lab: Lab, name: str = "j", upstream: str = "r", **options: Any) -> el.Job:
    """A job with its first commit."""
    job = lab.job(name, [upstream], **options)
    lab.put({1: (0, 1)})
    lab.tick()
    assert job.step_local(mirror(upstream, f"{name}_out")) is not None
    return job


def hours_pass(lab: Lab, hours: float) -> None:
    """Time, and upkeep after it."""
    lab.now_ms += round(hours * HOUR_MS)
    lab.store.compact()


@pytest.mark.rule("5.10")
def test_parked_when_its_log_goes_and_not_before(lab: Lab) -> None:
    job = running(lab)
    hours_pass(lab, 5)
    lab.put({2: (0, 2)})
    lab.put({3: (0, 3)})
    hours_pass(lab, 23)  # no headway for 28 hours, and the oldest change that it lacks is 23 hours old
    assert lab.state("j") == "running"
    hours_pass(lab, 2)
    info = job.info
    assert (info.state, info.committed_epoch) == ("parked", lab.entries("j_out")[-1][0])
    assert info.lost is not None and "'r'" in info.lost and "kept for 1 d and the job" in info.lost
    assert lab.store.table("j_out").info.state == "parked"
    assert lab.store.table("r").info.log_start_epoch > info.committed_epoch
    assert lab.store.verify().ok


def test_a_job_that_is_parked_while_its_step_decides_gets_no_barrier(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    job, record = running(lab), JobRunner._record_barrier
    lab.put({2: (0, 2)})
    lab.now_ms += 30 * HOUR_MS

    def recorded(runner: JobRunner, lease: RunnerLease) -> Any:
        lab.store.compact()
        return record(runner, lease)

    monkeypatch.setattr(JobRunner, "_record_barrier", recorded)
    assert job.step_local(refuse) is None
    assert (lab.state("j"), job._runner.record().barrier) == ("parked", None)
    with pytest.raises(el.JobParked):
        job.step_local(refuse)
    assert lab.store.verify().ok


@pytest.mark.rule("5.10")
def test_a_commit_or_a_piece_is_headway(lab: Lab) -> None:
    """A job that is days behind and works is not parked, whatever it lacks."""
    job = running(lab, max_lag=1e9)
    for number in range(8):
        for half in (0, 1):
            lab.put({number: (half, number)})
            hours_pass(lab, 10)
        assert job.step_local(mirror("r", "j_out")) is not None
    newest = lab.store.table("r").info.max_committed_epoch
    assert to_unix_ms(newest) - to_unix_ms(job.info.committed_epoch) > 72 * HOUR_MS
    assert lab.state("j") == "running"


@pytest.mark.rule("5.10")
def test_an_idle_job_is_never_parked(lab: Lab) -> None:
    job = running(lab)
    for _ in range(3):
        hours_pass(lab, 24 * 400)
    assert lab.state("j") == "running"
    lab.put({})  # no change either
    hours_pass(lab, 24 * 400)
    assert lab.state("j") == "running"
    lab.put({2: (0, 2)})
    lab.tick()
    lab.store.compact("r", full=True)  # it has lacked something for a second, after years
    assert lab.state("j") == "running"
    assert job.step_local(mirror("r", "j_out")) is not None
    assert lab.rows("j_out") == lab.rows("r")


def test_who_holds_the_past_for_another_reason_keeps_the_job_too(lab: Lab) -> None:
    job = running(lab)
    at = job.info.committed_epoch
    held = Hold("consumer:c", lab.store.table("r")._table.id, at, at, lab.now_ms, None)
    lab.store._handle.catalog.transact(lambda tx: put_holds(tx, [held]))
    lab.put({2: (0, 2)})
    for _ in range(3):
        hours_pass(lab, 24)
    lab.store.compact("r", full=True)
    assert lab.state("j") == "running", "nothing has been let go of"
    assert job.step_local(mirror("r", "j_out")) is not None


def test_two_that_are_late_hold_nothing_for_each_other(lab: Lab) -> None:
    running(lab, "a")
    running(lab, "b")
    lab.put({2: (0, 2)})
    hours_pass(lab, 30)
    assert (lab.state("a"), lab.state("b")) == ("parked", "parked")


def test_the_one_that_works_is_left_alone(lab: Lab) -> None:
    running(lab, "a")
    other = running(lab, "b")
    for number in range(4):
        lab.put({number: (0, number)})
        hours_pass(lab, 10)
        other.step_local(mirror("r", "b_out"))
    hours_pass(lab, 1)
    assert (lab.state("a"), lab.state("b")) == ("parked", "running")


@pytest.mark.rule("5.10")
def test_parked_for_rows_that_it_needs(lab: Lab) -> None:
    """The log reaches back, the states before it do not: its next refresh could not be made."""
    lab.root_table("brief", options=el.TableOptions(history_retention=timedelta(0), log_retention=timedelta(hours=1)))
    job = lab.job("j", ["brief"])
    lab.put({1: (0, 1)}, "brief")
    lab.tick()
    with pytest.raises(ZeroDivisionError):
        job.step_local(lambda ctx: 1 // 0)  # a barrier is recorded: the rows there are held
    lab.put({1: (0, 2)}, "brief")
    hours_pass(lab, 0.5)
    assert lab.state("j") == "failed"
    hours_pass(lab, 1)
    assert lab.state("j") == "parked"


def test_a_job_that_never_began_needs_nothing(lab: Lab) -> None:
    job = lab.job("j", ["r"])
    for number in range(4):
        lab.put({number: (0, number)})
        hours_pass(lab, 24)
    assert lab.state("j") == "creating"
    assert job.step_local(mirror("r", "j_out")) is not None
    assert lab.rows("j_out") == lab.rows("r")


def test_one_that_replays_the_log_and_never_began_is_parked(lab: Lab) -> None:
    lab.put({1: (0, 1)})
    lab.job("j", ["r"], backfill="log")
    hours_pass(lab, 23)
    assert lab.state("j") == "creating"
    lab.put({2: (0, 2)})
    hours_pass(lab, 2)
    assert lab.state("j") == "parked"


@pytest.mark.rule("5.10")
def test_the_step_says_so_and_changes_nothing(lab: Lab) -> None:
    job = running(lab)
    rows = lab.rows("j_out")
    lab.put({2: (0, 2)})
    hours_pass(lab, 30)
    for _ in range(2):
        with pytest.raises(el.JobParked, match=r"'j'.*'r'.*rebuild"):
            job.step_local(refuse)
    assert lab.rows("j_out") == rows
    assert job.info.last_error is None


def test_its_runner_is_refused_at_the_commit(lab: Lab) -> None:
    job = running(lab)
    lab.put({2: (0, 2)})

    def parked_meanwhile(ctx: Any) -> None:
        mirror("r", "j_out")(ctx)
        hours_pass(lab, 30)

    lab.tick()
    with pytest.raises(el.JobParked):
        job.step_local(parked_meanwhile)
    assert lab.rows("j_out") == {1: (0, 1)}
    assert lab.store.job("j").info.state == "parked"
    assert lab.store.verify().unreachable == ()


@pytest.mark.rule("5.10")
def test_its_outputs_are_readable_for_ever_and_global_refuses_them(lab: Lab) -> None:
    running(lab)
    lab.root_table("s")
    above = lab.job("above", ["j_out"])
    assert above.step_local(mirror("j_out", "above_out")) is not None
    lab.put({1: (0, 2)})
    for _ in range(4):
        hours_pass(lab, 24 * 100)
        lab.store.vacuum(grace=0)
    lab.reopen()
    assert lab.rows("j_out") == lab.rows("above_out") == {1: (0, 1)}
    with lab.store.snapshot(["j_out", "r"], consistency="latest") as snapshot:
        assert snapshot["j_out"].to_arrow().num_rows == 1
    for name in ("j_out", "above_out"):
        with pytest.raises(el.TableNotReadable, match=r"j_out.*parked"):
            lab.store.snapshot([name], consistency="global")
    with lab.store.snapshot() as snapshot:
        assert sorted(snapshot) == ["r", "s"]
    assert lab.state("above") == "running", "what is above has all that there is"


def test_memory_of_what_a_parked_job_lacks_does_not_grow_for_ever(lab: Lab) -> None:
    running(lab)
    for number in range(6):
        lab.put({1: (0, number)})
        hours_pass(lab, 30)
        lab.store.compact("r", full=True)
    assert len(lab.entries("r")) <= 3
    with lab.store.snapshot(["j_out"], consistency="aligned") as snapshot:
        assert snapshot["j_out"].to_arrow().num_rows == 1, "where it stands it is valid for ever"
    with pytest.raises(el.NoConsistentEpoch, match=r"j_out \(parked\)"):
        lab.store.snapshot(["j_out", "r"], consistency="aligned")


def test_the_command_shows_it(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    running(lab)
    lab.put({2: (0, 2)})
    hours_pass(lab, 30)
    lab.store.close()
    main(["status", str(lab.root)])
    shown = capsys.readouterr().out
    assert "parked" in shown and "released" in shown.replace("\n", " ")
