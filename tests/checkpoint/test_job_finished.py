"""Jobs whose upstreams have finished: one last barrier, then sticky, downstream too, and across restarts."""

from __future__ import annotations

from pathlib import Path

import pytest

import epochlog as el
from lab import Lab, commits, mirror, refuse, sums, table_of


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    lab = Lab(tmp_path / "store")
    lab.root_table()
    return lab


def states(lab: Lab) -> dict[str, str]:
    return {info.name: info.state for info in (*lab.store.tables(), *lab.store.jobs())}


@pytest.mark.rule("5.6")
def test_the_last_barrier_takes_in_the_end_of_the_data(lab: Lab) -> None:
    job = lab.job("j", ["r"])
    lab.put({1: (0, 10)})
    lab.tick()
    job.step_local(mirror("r", "j_out"))
    end = lab.store.table("r").finish()
    assert states(lab) == {"r": "finished", "j_out": "created", "j": "running"}
    assert job.step_local(refuse) is None  # its boundary has not passed
    lab.tick()
    epoch = job.step_local(mirror("r", "j_out"))
    assert epoch is not None and epoch > end
    assert states(lab) == {"r": "finished", "j_out": "finished", "j": "finished"}
    assert lab.rows("j_out") == {1: (0, 10)}
    assert (job.info.committed_epoch, job.info.lag_ms) == (epoch, 0)


@pytest.mark.rule("5.6")
def test_finished_is_for_good(lab: Lab) -> None:
    job = lab.job("j", ["r"])
    lab.put({1: (0, 10)})
    lab.store.table("r").finish()
    lab.tick()
    job.step_local(mirror("r", "j_out"))
    lab.root_table("other")
    for _ in range(2):
        lab.put({1: (0, 1)}, "other")
        lab.tick()
        before = lab.store.last_epoch, lab.entries("j_out")
        assert job.step_local(refuse) is None
        assert (lab.store.last_epoch, lab.entries("j_out")) == before
        lab.reopen()
        job = lab.store.job("j")
        assert job.info.state == "finished"
    with pytest.raises(el.TableFinished, match="'r'"):
        lab.put({2: (0, 2)})


def test_a_finished_table_holds_nobody_back(lab: Lab) -> None:
    job, other = lab.job("j", ["r"]), lab.job("o", ["other"]) if lab.root_table("other") else None
    assert other is not None
    lab.put({1: (0, 10)})
    lab.store.table("r").finish()
    lab.tick()
    job.step_local(mirror("r", "j_out"))
    for number in range(3):
        lab.put({number: (0, number)}, "other")
        lab.tick()
        epoch = other.step_local(mirror("other", "o_out"))
        with lab.store.snapshot() as snapshot:
            assert set(snapshot.epochs.values()) == {epoch}
            assert sorted(snapshot) == ["j_out", "o_out", "other", "r"]


@pytest.mark.rule("5.6")
def test_downstream_finishes_after_its_upstream(lab: Lab) -> None:
    first, second = lab.job("a", ["r"]), lab.job("b", ["a_out"])
    lab.put({1: (0, 10)})
    lab.tick()
    steps = {
        "a": lambda: first.step_local(mirror("r", "a_out")),
        "b": lambda: second.step_local(sums("a_out", "b_out")),
    }
    commits(steps)
    lab.store.table("r").finish()
    lab.tick()
    assert second.step_local(refuse) is None
    assert steps["a"]() is not None
    assert states(lab)["b"] == "running"
    assert steps["b"]() is not None
    assert set(states(lab).values()) == {"finished"}
    assert commits(steps) == {"a": [], "b": []}
    lab.reopen()
    assert set(states(lab).values()) == {"finished"}
    with lab.store.snapshot() as snapshot:
        assert set(snapshot.epochs.values()) == {lab.store.last_epoch}


@pytest.mark.rule("5.6")
def test_a_job_with_one_upstream_left_goes_on(lab: Lab) -> None:
    lab.root_table("other")
    job = lab.job("j", ["r", "other"])
    lab.put({1: (0, 10)})
    lab.put({1: (0, 20)}, "other")
    lab.store.table("r").finish()
    lab.tick()
    assert job.step_local(mirror("other", "j_out")) is not None
    assert job.info.state == "running"
    lab.put({2: (0, 30)}, "other")
    lab.tick()
    assert job.step_local(mirror("other", "j_out")) is not None
    assert job.info.state == "running"
    lab.store.table("other").finish()
    lab.tick()
    assert job.step_local(mirror("other", "j_out")) is not None
    assert job.info.state == "finished"
    assert lab.rows("j_out") == {1: (0, 20), 2: (0, 30)}


@pytest.mark.parametrize("backfill", ["snapshot", "log"])
@pytest.mark.parametrize("empty", [True, False], ids=["empty", "with rows"])
@pytest.mark.logs("job_finished")
def test_a_job_made_when_all_has_ended_finishes_at_once(lab: Lab, backfill: str, empty: bool) -> None:
    rows = {} if empty else {1: (0, 10)}
    lab.put(rows)
    lab.store.table("r").finish()
    lab.tick()
    job = lab.job("j", ["r"], backfill=backfill, max_lag=0)
    assert job.step_local(mirror("r", "j_out")) is not None
    assert job.info.state == "finished"
    assert job.step_local(refuse) is None
    assert lab.rows("j_out") == rows


def test_a_failure_at_the_end_does_not_finish(lab: Lab) -> None:
    job = lab.job("j", ["r"])
    lab.put({1: (0, 10)})
    lab.store.table("r").finish()
    lab.tick()

    def fails(ctx) -> None:
        ctx.upsert("j_out", table_of({1: (0, 10)}))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        job.step_local(fails)
    assert states(lab) == {"r": "finished", "j_out": "creating", "j": "failed"}
    assert job.step_local(mirror("r", "j_out")) is not None
    assert states(lab) == {"r": "finished", "j_out": "finished", "j": "finished"}


def test_the_end_may_come_while_the_barrier_before_it_is_at_work(lab: Lab) -> None:
    job = lab.job("j", ["r"])
    lab.put({1: (0, 10)})
    lab.tick()

    def ended_meanwhile(ctx) -> None:
        mirror("r", "j_out")(ctx)
        lab.put({2: (0, 20)})
        lab.store.table("r").finish()

    assert job.step_local(ended_meanwhile) is not None
    assert job.info.state == "running"
    lab.tick()
    assert job.step_local(mirror("r", "j_out")) is not None
    assert job.info.state == "finished"
    assert lab.rows("j_out") == {1: (0, 10), 2: (0, 20)}
