"""Draining a job: everything so far is taken in, its last commit carries its outputs' end, nothing lands after it."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

import epochlog as el
from epochlog.checkpoint.job import drain
from epochlog.store.catalog.keys import job_key
from epochlog.store.metadata.lookups import get_job
from lab import Lab, commits, mirror, refuse, sums


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    lab = Lab(tmp_path / "store")
    lab.root_table()
    return lab


def states(lab: Lab) -> dict[str, str]:
    return {info.name: info.state for info in (*lab.store.tables(), *lab.store.jobs())}


def ran(lab: Lab, name: str = "j", upstream: str = "r", **options) -> el.Job:
    """A job that has committed what there was."""
    job = lab.job(name, [upstream], **options)
    lab.tick()
    assert job.step_local(mirror(upstream, f"{name}_out")) is not None
    return job


@pytest.mark.rule("5.7")
def test_what_came_before_is_taken_in_and_what_comes_later_is_not(lab: Lab) -> None:
    lab.put({1: (0, 10)})
    job = ran(lab)
    last = lab.put({2: (0, 20)})  # no boundary has passed since
    job.stop(drain=True)
    assert states(lab) == {"r": "created", "j_out": "finished", "j": "finished"}
    end = job.info.committed_epoch
    assert end >= last and (job.info.lag_ms, job.info.draining) == (0, False)
    lab.put({3: (0, 30)})
    lab.tick(5)
    assert job.step_local(refuse) is None
    assert lab.rows("j_out") == {1: (0, 10), 2: (0, 20)}
    assert lab.store.table("j_out").info.max_committed_epoch == end
    lab.reopen()
    assert lab.store.job("j").step_local(refuse) is None


@pytest.mark.rule("2.3", "5.7")
def test_a_drained_table_is_valid_and_complete_for_good(lab: Lab) -> None:
    lab.put({1: (0, 10)})
    job = ran(lab)
    job.stop(drain=True)
    for number in range(3):
        lab.tick(100)
        lab.put({number: (1, number)})
        at = lab.store.checkpoint()
        for policy in ("global", "aligned"):
            with lab.store.snapshot(consistency=policy) as snapshot:
                assert snapshot.epochs == {"r": at, "j_out": at} and snapshot.lag_ms["j_out"] == 0
                assert len(snapshot["j_out"].to_arrow()) == 1
        assert lab.store.table("j_out").to_arrow(epoch=at).num_rows == 1
    assert job.info.lag_ms == 0


@pytest.mark.rule("5.7")
def test_an_end_without_anything_new_is_an_empty_commit(lab: Lab) -> None:
    lab.put({1: (0, 10)})
    job = ran(lab)
    lab.tick(10)
    before = lab.entries("j_out")
    job.stop(drain=True)
    assert lab.entries("j_out")[:-1] == before and lab.entries("j_out")[-1][1] == 0
    assert lab.store.table("j_out").changes(0).read_all().num_rows == 1


@pytest.mark.rule("5.7")
def test_stop_alone_ends_no_data(lab: Lab) -> None:
    lab.put({1: (0, 10)})
    job = ran(lab)
    before = lab.entries("j_out")
    job.stop()
    assert states(lab) == {"r": "created", "j_out": "created", "j": "running"}
    assert lab.entries("j_out") == before
    lab.put({2: (0, 20)})
    lab.tick()
    assert job.step_local(mirror("r", "j_out")) is not None


def test_twice_is_once(lab: Lab) -> None:
    lab.put({1: (0, 10)})
    job = ran(lab)
    job.stop(drain=True)
    before = job.info, lab.entries("j_out"), lab.store.last_epoch
    job.stop(drain=True)
    lab.store.job("j").stop(drain=True)
    assert (job.info, lab.entries("j_out"), lab.store.last_epoch) == before


def test_without_a_runner_the_next_one_ends_it(lab: Lab) -> None:
    lab.put({1: (0, 10)})
    ran(lab)
    lab.reopen()
    lab.put({2: (0, 20)})
    lab.store.job("j").stop(drain=True)
    assert lab.store.job("j").info.draining and states(lab)["j"] == "running"
    lab.put({3: (0, 30)})
    lab.store.job("j").stop(drain=True)  # the end stays where it was
    lab.tick()
    job = lab.store.job("j")
    done = commits({"j": lambda: job.step_local(mirror("r", "j_out"))})
    assert len(done["j"]) == 1 and states(lab)["j_out"] == "finished"
    assert lab.rows("j_out") == {1: (0, 10), 2: (0, 20)}


@pytest.mark.parametrize("backfill", ["snapshot", "log"])
@pytest.mark.parametrize("empty", [True, False], ids=["empty", "with rows"])
def test_a_creating_job_takes_its_snapshot_and_ends(lab: Lab, backfill: str, empty: bool) -> None:
    if not empty:
        lab.put({1: (0, 10)})
        lab.tick()
        lab.put({2: (0, 20)})
    job = lab.job("j", ["r"], backfill=backfill)
    job.stop(drain=True)
    assert states(lab)["j"] == "creating" and job.info.draining
    lab.put({3: (0, 30)})
    lab.tick()
    commits({"j": lambda: job.step_local(mirror("r", "j_out"))})
    assert states(lab) == {"r": "created", "j_out": "finished", "j": "finished"}
    assert lab.rows("j_out") == ({} if empty else {1: (0, 10), 2: (0, 20)})


@pytest.mark.parametrize("when", ["before", "in the middle", "by somebody else"])
def test_a_snapshot_in_pieces_is_finished_first(lab: Lab, when: str) -> None:
    """It is taken at the end itself where that is known before; else at its own epoch, and then the log to the end."""
    lab.put({k: (0, k) for k in range(10)})
    job, done = lab.job("j", ["r"], snapshot_rows=3), []
    lab.tick()
    if when == "before":
        job.stop(drain=True)
    else:
        done.append(job.step_local(mirror("r", "j_out")))
    lab.put({20: (0, 20)})
    if when == "in the middle":
        job.stop(drain=True)
    elif when == "by somebody else":
        lab.store.job("j").stop(drain=True)
    lab.put({30: (0, 30)})
    lab.tick()
    while job.info.state != "finished":
        done.append(job.step_local(mirror("r", "j_out")))
    assert sorted(lab.rows("j_out")) == [*range(10), *([] if when == "before" else [20])]
    assert when == "in the middle" or done[:4] == [0, 0, 0, 0]
    assert len(lab.entries("j_out")) == (1 if when == "before" else 2)


def test_a_job_that_is_made_anew_ends_where_it_was_told_to(lab: Lab) -> None:
    lab.put({1: (0, 10)})
    ran(lab)
    lab.put({2: (0, 20)})
    job = lab.store.job("j")
    job.stop(drain=True)
    job.rebuild()
    lab.put({3: (0, 30)})
    lab.tick()
    commits({"j": lambda: job.step_local(mirror("r", "j_out"))})
    assert states(lab)["j"] == "finished" and sorted(lab.rows("j_out")) == [1, 2]


@pytest.mark.rule("5.7")
def test_a_job_that_lags_far_does_not_merge_past_its_end(lab: Lab) -> None:
    lab.put({0: (0, 0)})
    job = ran(lab, max_lag=1)
    for number in range(1, 9):
        lab.put({number: (0, number)})
        lab.tick()
        lab.store.checkpoint()
    lab.store.job("j").stop(drain=True)
    end = lab.store.last_epoch
    for number in range(9, 30):
        lab.put({number: (0, number)})
        lab.tick()
        lab.store.checkpoint()
    done = commits({"j": lambda: lab.store.job("j").step_local(mirror("r", "j_out"))})
    assert done["j"][-1] == end and states(lab)["j"] == "finished"
    assert sorted(lab.rows("j_out")) == list(range(9))
    assert job.info.committed_epoch == end


@pytest.mark.rule("5.7")
def test_it_waits_for_its_upstreams(lab: Lab) -> None:
    lab.put({1: (0, 10)})
    first = ran(lab, "a")
    second = ran(lab, "b", "a_out")
    lab.put({2: (0, 20)})
    with pytest.raises(el.DrainPending, match="waits for 'a_out'"):
        second.stop(drain=True, timeout=0)
    assert states(lab)["b"] == "running" and second.info.draining
    lab.put({3: (0, 30)})
    lab.tick()
    assert second.step_local(mirror("a_out", "b_out")) is None
    commits({"a": lambda: first.step_local(mirror("r", "a_out"))})
    assert states(lab) == {"r": "created", "a_out": "created", "a": "running", "b_out": "created", "b": "running"}
    second.stop(drain=True, timeout=0)
    assert states(lab)["b"] == "finished" and states(lab)["a"] == "running"
    # a merged nothing: its commits were at the end of b and after it
    assert lab.rows("b_out") == {1: (0, 10), 2: (0, 20)}


@pytest.mark.rule("5.7")
def test_where_an_upstream_merged_the_end_away_it_is_the_next_stop(lab: Lab) -> None:
    lab.put({0: (0, 0)})
    first = ran(lab, "a", max_lag=1)
    second = ran(lab, "b", "a_out")
    for number in range(1, 4):
        lab.put({number: (0, number)})
        lab.tick()
        lab.store.checkpoint()
    lab.store.job("b").stop(drain=True)
    end = lab.store.last_epoch
    for number in range(4, 12):
        lab.put({number: (0, number)})
        lab.tick()
        lab.store.checkpoint()
    at = commits({"a": lambda: first.step_local(mirror("r", "a_out"))})["a"]
    assert end not in at and any(epoch > end for epoch in at)
    second.stop(drain=True, timeout=0)
    stop = min(epoch for epoch in at if epoch >= end)
    assert second.info.committed_epoch == stop and states(lab)["b"] == "finished"
    assert lab.rows("b_out") == lab.rows("r", stop)


def test_downstream_jobs_take_the_end_on(lab: Lab) -> None:
    lab.put({1: (0, 10)})
    first, second, third = ran(lab, "a"), ran(lab, "b", "a_out"), lab.job("c", ["b_out", "r"])
    lab.tick()
    steps = {
        "b": lambda: second.step_local(sums("a_out", "b_out")),
        "c": lambda: third.step_local(mirror("r", "c_out")),
    }
    commits(steps)
    first.stop(drain=True)
    commits(steps)
    lab.tick()
    commits(steps)
    assert {name: state for name, state in states(lab).items() if len(name) == 1 and name != "r"} == {
        "a": "finished",
        "b": "finished",
        "c": "running",  # r has not ended
    }
    lab.put({2: (0, 20)})
    lab.tick()
    assert len(commits(steps)["c"]) == 1
    with lab.store.snapshot() as snapshot:
        assert set(snapshot.epochs.values()) == {lab.store.last_epoch}
    lab.store.table("r").finish()
    lab.tick()
    commits(steps)
    assert set(states(lab).values()) == {"finished"}
    assert lab.rows("c_out") == {1: (0, 10), 2: (0, 20)} and lab.rows("a_out") == {1: (0, 10)}


def test_a_failing_refresh_leaves_the_end_for_later(lab: Lab) -> None:
    lab.put({1: (0, 10)})
    job = ran(lab)
    lab.put({2: (0, 20)})
    lab.tick()
    with pytest.raises(ZeroDivisionError):
        job.step_local(lambda ctx: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        job.stop(drain=True)
    assert states(lab)["j"] == "failed" and job.info.draining
    commits({"j": lambda: job.step_local(mirror("r", "j_out"))})
    assert states(lab)["j"] == "finished" and lab.rows("j_out") == {1: (0, 10), 2: (0, 20)}


@pytest.mark.parametrize("piped", [False, True])
def test_a_refresh_may_end_its_own_job(lab: Lab, piped: bool) -> None:
    job, calls = lab.job("j", ["r"]), []

    def refresh(ctx) -> None:
        calls.append(ctx.barrier.curr)
        mirror("r", "j_out")(ctx)
        if 2 in lab.rows("r", ctx.barrier.curr):
            job.stop(drain=True)

    pipe = el.Pipeline(lab.store)
    pipe.add(job, refresh)
    for number in (1, 2, 3):
        lab.put({number: (0, number)})
        lab.tick()
        if piped:
            pipe.run(until="idle")
        else:
            commits({"j": lambda: job.step_local(refresh)})
    assert states(lab)["j"] == "finished" and sorted(lab.rows("j_out")) == [1, 2]
    assert calls == [epoch for epoch, _ in lab.entries("j_out")]


def test_a_runner_that_was_taken_over_ends_nothing(lab: Lab) -> None:
    lab.put({1: (0, 10)})
    old = ran(lab)
    lab.put({2: (0, 20)})
    lab.tick()
    lab.store.job("j").step_local(mirror("r", "j_out"))
    with pytest.raises(el.Fenced):
        old.stop(drain=True)
    assert not old.info.draining


def test_what_cannot_be_drained_says_so(lab: Lab) -> None:
    job = lab.job("j", ["r"])
    lab.store.drop_job("j")
    with pytest.raises(el.JobNotFound):
        job.stop(drain=True)
    with pytest.raises(el.InvalidInput, match="timeout"):
        lab.job("k", ["r"]).stop(drain=True, timeout=-1)
    assert not lab.store.job("k").info.draining


def test_a_parked_job_cannot_be_drained(lab: Lab) -> None:
    lab.put({1: (0, 10)})
    job = ran(lab)
    handle, job_id = lab.store._handle, job._runner.job_id
    handle.catalog.transact(
        lambda tx: tx.put(job_key(job_id), replace(get_job(tx, job_id, "j"), state="parked").to_record())
    )
    with pytest.raises(el.JobParked, match="Rebuild the job and then drain it"):
        job.stop(drain=True)
    assert not job.info.draining and states(lab)["j"] == "parked"
    pipe = el.Pipeline(lab.store)
    pipe.add(job, refuse)
    pipe.run()
    (row,) = pipe.status()
    assert row.state == "parked" and "JobParked" in (row.last_error or "")


def test_a_drained_upstream_may_be_dropped_last_only(lab: Lab) -> None:
    first = ran(lab, "a")
    ran(lab, "b", "a_out")
    first.stop(drain=True)
    with pytest.raises(el.TableInUse):
        lab.store.drop_job("a")


def test_a_job_made_on_a_drained_table_finishes_with_its_first_commit(lab: Lab) -> None:
    lab.put({1: (0, 10)})
    ran(lab, "a").stop(drain=True)
    lab.put({2: (0, 20)})
    lab.tick()
    job = lab.job("b", ["a_out"])
    assert job.step_local(mirror("a_out", "b_out")) is not None
    assert states(lab)["b"] == "finished" and lab.rows("b_out") == {1: (0, 10)}


# ---- C13, C14, C15 at the level of jobs ------------------------------------------------------------------------------


def test_c13_drained_while_the_final_commit_is_pending(lab: Lab) -> None:
    """The job ends with that commit: there is none after it."""
    lab.put({1: (0, 10)})
    job = ran(lab)
    lab.store.table("r").finish()
    lab.tick()

    def drain_meanwhile(ctx) -> None:
        mirror("r", "j_out")(ctx)
        lab.store.job("j").stop(drain=True)  # it has no runner of its own, so it only records

    end = job.step_local(drain_meanwhile)
    assert states(lab)["j"] == "finished" and lab.entries("j_out")[-1][0] == end
    job.stop(drain=True)
    assert lab.entries("j_out")[-1][0] == end


def test_c13_drained_while_the_barrier_of_its_end_is_pending(lab: Lab) -> None:
    """No clock has moved since the barrier was decided, so that the end falls on it: the commit at hand is the last."""
    lab.put({1: (0, 10)})
    job = lab.job("j", ["r"])
    at = lab.store.checkpoint()

    def drain_meanwhile(ctx) -> None:
        mirror("r", "j_out")(ctx)
        lab.store.job("j").stop(drain=True)

    assert job.step_local(drain_meanwhile) == at
    assert states(lab)["j_out"] == "finished" and lab.entries("j_out") == [(at, 1)]


def test_c13_drained_while_an_earlier_barrier_is_pending(lab: Lab) -> None:
    lab.put({1: (0, 10)})
    job = lab.job("j", ["r"])
    at = lab.store.checkpoint()

    def drain_meanwhile(ctx) -> None:
        mirror("r", "j_out")(ctx)
        lab.put({2: (0, 20)})
        lab.store.job("j").stop(drain=True)

    assert job.step_local(drain_meanwhile) == at
    assert states(lab)["j"] == "running"
    job.stop(drain=True)
    assert states(lab)["j"] == "finished" and lab.rows("j_out") == {1: (0, 10), 2: (0, 20)}


@pytest.mark.parametrize("how", ["drained", "its upstreams ended"])
def test_c14_restored_as_finished(lab: Lab, how: str) -> None:
    """Its function is never called, the end is passed on to a job that had not got it, its tables are served."""
    lab.put({1: (0, 10)})
    first = ran(lab, "a")
    ran(lab, "b", "a_out")
    if how == "drained":
        first.stop(drain=True)
    else:
        lab.store.table("r").finish()
        lab.tick()
        assert first.step_local(mirror("r", "a_out")) is not None
    assert states(lab)["b"] == "running"
    lab.reopen()
    lab.tick(3)
    first, second = lab.store.job("a"), lab.store.job("b")
    assert first.step_local(refuse) is None and first.info.state == "finished"
    assert second.step_local(mirror("a_out", "b_out")) is not None
    assert states(lab)["b"] == "finished"
    lab.reopen()
    assert [lab.store.job(name).step_local(refuse) for name in "ab"] == [None, None]
    with lab.store.snapshot() as snapshot:
        assert set(snapshot.epochs.values()) == {lab.store.last_epoch}
        assert {name: len(snapshot[name].to_arrow()) for name in snapshot} == {"r": 1, "a_out": 1, "b_out": 1}
    assert lab.rows("b_out") == {1: (0, 10)}


@pytest.mark.parametrize("restored", [False, True], ids=["in one go", "stopped and restored"])
def test_c15_two_chains_of_different_length(lab: Lab, restored: bool) -> None:
    """Chains finish with exactly 20 and 100 rows after the ends of the data and one forced boundary alone."""
    lab.root_table("long")
    for chain in ("r", "long"):
        lab.job(f"{chain}_a", [chain])
        lab.job(f"{chain}_b", [f"{chain}_a_out"])

    def step(chain: str) -> None:
        for job, up in ((f"{chain}_a", chain), (f"{chain}_b", f"{chain}_a_out")):
            while lab.store.job(job).step_local(mirror(up, f"{job}_out")) is not None:
                pass

    lab.put({k: (0, k) for k in range(20)}, "r")
    lab.store.table("r").finish()
    lab.put({k: (0, k) for k in range(60)}, "long")
    lab.store.checkpoint()
    step("r")
    if restored:
        step("long")
        lab.reopen()
    assert (states(lab)["r_b_out"], states(lab)["long_b_out"]) == (
        "finished",
        "creating" if not restored else "created",
    )
    lab.put({k: (0, k) for k in range(60, 100)}, "long")
    lab.store.table("long").finish()
    lab.store.checkpoint()
    for chain in ("r", "long"):
        step(chain)
    assert set(states(lab).values()) == {"finished"}
    assert (len(lab.rows("r_b_out")), len(lab.rows("long_b_out"))) == (20, 100)


@pytest.mark.medium
def test_others_commits_are_the_same_with_and_without_a_drain(tmp_path: Path) -> None:
    """An unconnected job notices nothing."""
    committed = []
    for drained in (False, True):
        lab = Lab(tmp_path / str(drained))
        lab.root_table()
        lab.root_table("other")
        job, other = lab.job("j", ["r"]), lab.job("o", ["other"])
        steps = {"j": lambda job=job: job.step_local(mirror("r", "j_out"))}
        done = []
        for number in range(6):
            lab.tick(0.5)
            lab.put({number: (0, number)})
            lab.put({number: (0, number)}, "other")
            lab.tick(0.7)
            commits(steps)
            if number == 2 and drained:
                job.stop(drain=True)
            done += commits({"o": lambda other=other: other.step_local(mirror("other", "o_out"))})["o"]
        committed.append(done)
    assert committed[0] == committed[1]


def test_a_wait_for_another_runner_ends_when_it_has_finished(lab: Lab) -> None:
    """The upstream is stepped by another thread meanwhile; both are waits on conditions."""
    lab.put({1: (0, 10)})
    first, second = ran(lab, "a"), ran(lab, "b", "a_out")
    lab.put({2: (0, 20)})
    waiting = threading.Event()

    def wait() -> None:
        waiting.set()
        second.stop(drain=True, timeout=None)

    thread = threading.Thread(target=wait)
    thread.start()
    waiting.wait()
    while thread.is_alive():
        first.step_local(mirror("r", "a_out"))
        thread.join(0.001)
    assert states(lab)["b"] == "finished" and lab.rows("b_out") == {1: (0, 10), 2: (0, 20)}


def test_a_run_that_ends_the_job_between_two_looks_at_it_has_not_failed(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is seen running, then it commits the end after the job's state was read and before the run is looked for."""
    lab.put({1: (0, 10)})
    runner = ran(lab)
    lab.put({2: (0, 20)})
    looks: list[bool] = []

    def running(_: object) -> bool:
        looks.append(not looks)
        if len(looks) == 2:
            assert runner.step_local(mirror("r", "j_out")) is not None
        return looks[-1]

    monkeypatch.setattr(drain.live, "running", running)
    lab.store.job("j").stop(drain=True)
    assert looks[:2] == [True, False] and states(lab)["j"] == "finished"
    assert lab.rows("j_out") == {1: (0, 10), 2: (0, 20)}
