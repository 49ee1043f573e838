"""A job's commits: its recorded barrier, exactly once, fencing, outputs together, and nothing when a refresh fails."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

import epochlog as el
from epochlog.checkpoint.job.next_barrier import Barrier
from epochlog.checkpoint.job.refresh_plan import RefreshPlan
from epochlog.checkpoint.job.runner import JobRunner
from epochlog.store.catalog.keys import job_key
from epochlog.store.catalog.protocol import Txn
from epochlog.store.commit.change import TableChange
from epochlog.store.commit.job_commit import JobCommit
from epochlog.store.commit.transaction import commit_changes
from epochlog.store.metadata.lookups import get_job
from lab import Lab, keys_of, mirror, refuse, sums, table_of


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    lab = Lab(tmp_path / "store")
    lab.root_table()
    return lab


class Died(Exception):
    """A refresh was cut off."""


def dies(ctx: Any) -> None:
    raise Died


def noted(barriers: list[Barrier], then: Any) -> Any:
    def refresh(ctx: Any) -> None:
        barriers.append(ctx.barrier)
        then(ctx)

    return refresh


# ---- the recorded barrier --------------------------------------------------------------------------------------------


@pytest.mark.rule("5.1", "5.4")
def test_a_recorded_barrier_survives_failure_time_and_reopening_and_is_the_same_for_every_runner(lab: Lab) -> None:
    lab.put({1: (0, 10)})
    lab.tick()
    job, seen = lab.job("j", ["r"]), []
    with pytest.raises(Died):
        job.step_local(noted(seen, dies))
    for number in range(3):  # newer boundaries and newer rows change nothing about it
        lab.put({1: (0, 20 + number)})
        lab.tick(5)
        lab.reopen()
        with pytest.raises(Died):
            lab.store.job("j").step_local(noted(seen, dies))
    epoch = lab.store.job("j").step_local(noted(seen, mirror("r", "j_out")))
    assert len(set(seen)) == 1 and len(seen) == 5
    assert epoch == seen[0].curr
    assert lab.rows("j_out", epoch) == {1: (0, 10)}
    lab.reopen()
    job = lab.store.job("j")
    while job.step_local(mirror("r", "j_out")) is not None:
        pass
    assert lab.rows("j_out") == {1: (0, 22)}


@pytest.mark.rule("1.4")
def test_barriers_follow_each_other(lab: Lab) -> None:
    job, seen = lab.job("j", ["r"]), []
    lab.tick()
    while len(seen) < 4:
        lab.put({len(seen): (0, len(seen))})
        lab.tick()
        assert job.step_local(noted(seen, mirror("r", "j_out"))) == seen[-1].curr
    assert [barrier.prev for barrier in seen] == [0, *(barrier.curr for barrier in seen[:-1])]
    assert [barrier.kind for barrier in seen] == ["initial", "checkpoint", "checkpoint", "checkpoint"]


# ---- exactly once ----------------------------------------------------------------------------------------------------


def started(lab: Lab) -> JobRunner:
    record = lab.store.job("j")._runner
    return JobRunner(lab.store._handle, record.job_id, record.name)


def test_a_commit_repeated_after_an_unknown_outcome_changes_nothing(lab: Lab) -> None:
    lab.job("j", ["r"])
    lab.put({1: (0, 10)})
    lab.tick()
    runner = started(lab)
    barrier = runner.begin()
    assert barrier is not None
    epoch = runner.commit(barrier, {})
    before = lab.entries("j_out"), lab.store.last_epoch, lab.store.job("j").info
    assert runner.commit(barrier, {}) == epoch
    assert (lab.entries("j_out"), lab.store.last_epoch, lab.store.job("j").info) == before
    assert runner.begin() is None


@pytest.mark.rule("1.5")
def test_a_commit_of_a_barrier_that_is_over_is_refused(lab: Lab) -> None:
    lab.job("j", ["r"])
    lab.put({1: (0, 10)})
    lab.tick()
    runner = started(lab)
    first = runner.begin()
    assert first is not None
    runner.commit(first, {})
    lab.put({2: (0, 10)})
    lab.tick()
    second = runner.begin()
    assert second is not None
    runner.commit(second, {})
    with pytest.raises(el.BarrierChanged, match="'j'"):
        runner.commit(first, {})
    assert [epoch for epoch, _ in lab.entries("j_out")] == [first.barrier.curr, second.barrier.curr]


@pytest.mark.rule("1.4", "1.5")
def test_a_commit_past_the_barrier_or_without_one_is_refused(lab: Lab) -> None:
    lab.job("j", ["r"])
    lab.put({1: (0, 10)})
    lab.tick()
    runner = started(lab)
    run = runner.begin()
    assert run is not None and runner.incarnation == 1
    (output,) = run.outputs.values()
    changes = [TableChange(output.table)]
    for prev, curr in ((0, run.barrier.curr + 1), (1, run.barrier.curr)):
        with pytest.raises(el.BarrierChanged):
            commit_changes(lab.store._handle, changes, JobCommit(runner.job_id, "j", 1, prev, curr, "running"))
    assert lab.entries("j_out") == []


# ---- fencing ---------------------------------------------------------------------------------------------------------


@pytest.mark.rule("1.5", "5.3")
def test_an_old_runner_is_fenced_for_good(lab: Lab) -> None:
    lab.put({1: (0, 10)})
    lab.tick()
    old = lab.job("j", ["r"])
    assert old.step_local(mirror("r", "j_out")) is not None
    new = lab.open().job("j")
    lab.put({2: (0, 20)})
    lab.tick()
    assert new.step_local(mirror("r", "j_out")) is not None
    lab.put({3: (0, 30)})
    lab.tick()
    before = lab.entries("j_out"), lab.txn_id()
    for _ in range(3):
        with pytest.raises(el.Fenced, match="'j'.*incarnation 2.*store.job"):
            old.step_local(refuse)
    assert (lab.entries("j_out"), lab.txn_id()) == before
    assert new.info.incarnation == 2
    assert new.step_local(mirror("r", "j_out")) is not None  # the new one never noticed


@pytest.mark.rule("5.4")
def test_a_runner_overtaken_during_its_refresh_has_no_effect(lab: Lab) -> None:
    lab.put({1: (0, 10)})
    lab.tick()
    old, epochs = lab.job("j", ["r"]), []

    def overtaken(ctx: Any) -> None:
        ctx.upsert("j_out", table_of({9: (9, 9)}))
        epochs.append(lab.store.job("j").step_local(mirror("r", "j_out"), take_over=True))

    with pytest.raises(el.Fenced):
        old.step_local(overtaken)
    assert [epoch for epoch, _ in lab.entries("j_out")] == epochs
    assert lab.rows("j_out") == {1: (0, 10)}
    assert lab.store.job("j").info.last_error is None


def test_a_runner_that_was_overtaken_before_the_commit_of_the_other_has_no_effect(lab: Lab) -> None:
    """The new runner has claimed the job and failed: its barrier is still open, and not the old runner's any more."""
    lab.put({1: (0, 10)})
    lab.tick()
    old, new = lab.job("j", ["r"]), lab.store.job("j")

    def overtaken(ctx: Any) -> None:
        with pytest.raises(Died):
            new.step_local(dies, take_over=True)
        ctx.upsert("j_out", table_of({9: (9, 9)}))

    with pytest.raises(el.Fenced):
        old.step_local(overtaken)
    assert lab.entries("j_out") == []
    assert new.step_local(mirror("r", "j_out")) is not None
    assert lab.rows("j_out") == {1: (0, 10)}


def test_a_fenced_runner_leaves_no_error_behind(lab: Lab) -> None:
    lab.put({1: (0, 10)})
    lab.tick()
    old, new = lab.job("j", ["r"]), lab.store.job("j")

    def overtaken_then_dies(ctx: Any) -> None:
        new.step_local(mirror("r", "j_out"), take_over=True)
        raise Died

    with pytest.raises(Died):
        old.step_local(overtaken_then_dies)
    assert (new.info.state, new.info.last_error) == ("running", None)


def test_a_handle_that_never_ran_fences_nobody(lab: Lab) -> None:
    lab.put({1: (0, 10)})
    lab.tick()
    job = lab.job("j", ["r"])
    assert job.step_local(mirror("r", "j_out")) is not None
    assert lab.store.job("j").info.incarnation == 1
    lab.put({2: (0, 20)})
    lab.tick()
    assert job.step_local(mirror("r", "j_out")) is not None


# ---- all or nothing --------------------------------------------------------------------------------------------------


def both(ctx: Any) -> None:
    mirror("r", "left")(ctx)
    sums("r", "right")(ctx)


@pytest.mark.rule("1.4")
def test_outputs_of_a_job_commit_together(lab: Lab) -> None:
    job = lab.job("j", ["r"], ["left", "right"])
    for number in range(3):
        lab.put({number: (0, number)})
        lab.tick()
        epoch = job.step_local(both)
        assert {lab.store.table(name).info.max_committed_epoch for name in ("left", "right")} == {epoch}
    assert [epoch for epoch, _ in lab.entries("left")] == [epoch for epoch, _ in lab.entries("right")]
    assert lab.rows("right") == {0: (3, 3)}


def test_an_output_that_is_not_written_gets_an_empty_entry(lab: Lab) -> None:
    job = lab.job("j", ["r"], ["left", "right"])
    lab.put({1: (0, 10)})
    lab.tick()
    epoch = job.step_local(mirror("r", "left"))
    assert lab.entries("right") == [(epoch, 0)]
    assert lab.rows("right") == {}


@pytest.mark.rule("5.4")
@pytest.mark.parametrize("wrote", [False, True], ids=["before writing", "after writing"])
def test_nothing_is_committed_when_the_refresh_raises(lab: Lab, wrote: bool) -> None:
    job = lab.job("j", ["r"], ["left", "right"])
    lab.put({1: (0, 10)})
    lab.tick()

    def fails(ctx: Any) -> None:
        if wrote:
            both(ctx)
        raise ZeroDivisionError("no rows to divide by")

    last_epoch = None
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            job.step_local(fails)
        assert lab.entries("left") == lab.entries("right") == []
        assert (job.info.state, job.info.committed_epoch) == ("failed", 0)
        assert job.info.last_error == "ZeroDivisionError: no rows to divide by"
        assert last_epoch in (None, lab.store.last_epoch)
        last_epoch = lab.store.last_epoch
    epoch = job.step_local(both)
    assert (job.info.state, job.info.last_error, job.info.committed_epoch) == ("running", None, epoch)
    assert lab.entries("left") == [(epoch, 1)]
    assert lab.store.verify().ok


def test_rows_that_do_not_fit_fail_the_barrier_and_name_the_table(lab: Lab) -> None:
    job = lab.job("j", ["r"])
    lab.put({1: (0, 10)})
    lab.tick()
    with pytest.raises(el.SchemaMismatch, match="j_out"):
        job.step_local(lambda ctx: ctx.upsert("j_out", keys_of([1])))
    assert job.info.state == "failed" and "SchemaMismatch" in (job.info.last_error or "")
    assert lab.entries("j_out") == []


@pytest.mark.parametrize("wrong", [
    lambda ctx: ctx.upsert("r", table_of({1: (1, 1)})),
    lambda ctx: ctx.delete("nothing", keys_of([1])),
    lambda ctx: ctx.changes("j_out"),
    lambda ctx: ctx.table("nothing"),
    lambda ctx: ctx.previous("nothing"),
    lambda ctx: ctx.output("r"),
    lambda ctx: ctx.changes("r", mode="some"),
    lambda ctx: ctx.table("r", columns=["nothing"]),
])  # fmt: skip
def test_what_the_job_does_not_have_is_refused(lab: Lab, wrong: Any) -> None:
    job = lab.job("j", ["r"])
    lab.put({1: (0, 10)})
    lab.tick()
    with pytest.raises(el.InvalidInput):
        job.step_local(wrong)
    assert job.step_local(mirror("r", "j_out")) is not None


# ---- what a refresh sees ---------------------------------------------------------------------------------------------


@pytest.mark.rule("1.4")
def test_a_refresh_sees_its_inputs_at_the_barrier_and_its_outputs_at_the_one_before(lab: Lab) -> None:
    job, seen = lab.job("j", ["r"]), {}
    lab.put({1: (0, 10), 2: (0, 20)})
    lab.tick()
    job.step_local(mirror("r", "j_out"))
    lab.put({1: (0, 11), 3: (0, 30)})
    lab.store.table("r").delete(keys_of([2]))
    lab.tick()

    def look(ctx: Any) -> None:
        lab.put({4: (0, 40)})  # while it is at work
        for name, read in (("table", ctx.table), ("previous", ctx.previous)):
            seen[name] = read("r").to_pydict()["v"]
        seen["output"] = ctx.output("j_out").to_pydict()["v"]
        images = ctx.changes("r", pre_images=True).select(["k", "v", "_change_type"]).to_pylist()
        seen["images"] = [tuple(row.values()) for row in images]
        seen["cheap"] = ctx.changes("r", mode="epochs", columns=["k"]).select(["k", "_change_type"]).to_pylist()
        seen["some"] = ctx.table("r", columns=["v"]).to_pydict()
        mirror("r", "j_out")(ctx)

    job.step_local(look)
    assert seen["table"] == [11, 30]
    assert seen["previous"] == seen["output"] == [10, 20]
    assert seen["images"] == [
        (1, 10, "update_preimage"),
        (1, 11, "update_postimage"),
        (2, 20, "delete"),
        (3, 30, "insert"),
    ]
    assert [(row["k"], row["_change_type"]) for row in seen["cheap"]] == [(1, "upsert"), (3, "upsert"), (2, "delete")]
    assert seen["some"] == {"v": [11, 30]}
    assert lab.rows("j_out") == {1: (0, 11), 3: (0, 30)}


def test_results_without_rows_have_the_whole_schema(lab: Lab) -> None:
    job, seen = lab.job("j", ["r"]), []
    lab.tick()

    def look(ctx: Any) -> None:
        seen.extend([ctx.table("r"), ctx.previous("r"), ctx.output("j_out")])
        changes = ctx.changes("r")
        assert changes.column_names == ["k", "g", "v", "_change_type", "_commit_version", "_commit_timestamp"]
        assert changes.num_rows == 0

    assert job.step_local(look) is not None
    assert {table.schema for table in seen} == {lab.store.table("r").schema}


@pytest.mark.rule("1.4")
def test_a_barrier_past_what_an_upstream_is_complete_through_is_refused(lab: Lab) -> None:
    """No decision records such a barrier; were one there all the same, the commit would not take it."""
    lab.put({1: (0, 10)})
    lab.tick()
    lab.job("j", ["r"])
    runner = started(lab)
    run = runner.begin()
    assert run is not None
    ahead = dataclasses.replace(run, barrier=dataclasses.replace(run.barrier, curr=lab.store.last_epoch + 1))
    record_barrier(lab, ahead)
    with pytest.raises(el.UpstreamIncomplete, match="upstream 'r' is complete only"):
        runner.commit(ahead, {})
    assert lab.store.table("j_out").info.max_committed_epoch == 0
    record_barrier(lab, run)
    assert runner.commit(run, {}) == run.barrier.curr


def record_barrier(lab: Lab, plan: RefreshPlan) -> None:
    def body(tx: Txn) -> None:
        job, barrier = get_job(tx, plan.job.id, plan.job.name), plan.barrier
        recorded = dataclasses.replace(job, barrier=(barrier.prev, barrier.curr, barrier.kind))
        tx.put(job_key(job.id), recorded.to_record())

    lab.store._handle.catalog.transact(body)


def test_a_step_within_its_own_refresh_is_refused(lab: Lab) -> None:
    """It would commit the barrier, and what the refresh writes after it would be lost without a word."""
    lab.put({1: (0, 10)})
    job = lab.job("m", ["r"])
    lab.tick()

    def nested(ctx: Any) -> None:
        with pytest.raises(el.JobRunning, match="one barrier at a time"):
            job.step_local(mirror("r", "m_out"))
        mirror("r", "m_out")(ctx)

    assert job.step_local(nested) is not None
    assert lab.rows("m_out") == {1: (0, 10)}
    lab.put({2: (0, 20)})
    lab.tick()
    assert job.step_local(mirror("r", "m_out")) is not None
