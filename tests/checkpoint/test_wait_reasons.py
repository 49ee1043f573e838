"""Wait reasons of jobs: single cases, and a comparison with the runner's next action under random load."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from epochlog.checkpoint.job.wait_reasons import Wait, WaitKind, read_waits
from epochlog.checkpoint.manager.job_graph import JobGraph, vertex_of
from epochlog.store.epochs.view_reader import read_epoch_view
from epochlog.store.metadata.lookups import all_jobs
from epochlog.store.types.epoch import boundary, newest_index
from lab import INTERVAL_MS, Lab, mirror
from law_world import LawWorld

SEEDS = 8


def read_waits_of_all(view: Any, handle: Any, epochs: Any) -> dict[str, Wait]:
    jobs = list(all_jobs(view))
    return read_waits(view, handle, epochs, jobs, JobGraph(map(vertex_of, jobs)))


def waits(store: Any) -> dict[str, Wait]:
    handle = store._handle

    def body(view: Any) -> dict[str, Wait]:
        epochs = read_epoch_view(view, handle.memory, handle.catalog.now_ms())
        return read_waits_of_all(view, handle, epochs)

    return {name: replace(wait, since_ms=None) for name, wait in handle.catalog.read(body).items()}


def due_since(lab: Lab, name: str) -> int | None:
    """Return the milliseconds since the job became due, None if it is not due."""
    handle = lab.store._handle

    def body(view: Any) -> Wait:
        epochs = read_epoch_view(view, handle.memory, handle.catalog.now_ms())
        return read_waits_of_all(view, handle, epochs)[name]

    since_ms = handle.catalog.read(body).since_ms
    return None if since_ms is None else lab.now_ms - since_ms


def next_boundary(epoch: int, every: int = 1) -> int:
    return boundary(newest_index(epoch, every * INTERVAL_MS) + 1, every * INTERVAL_MS)


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    lab = Lab(tmp_path / "store")
    lab.root_table()
    return lab


def fail(ctx: Any) -> None:
    raise RuntimeError("no")


def test_a_change_waits_for_a_boundary_then_for_a_runner_then_there_is_nothing(lab: Lab) -> None:
    job = lab.job("j", ["r"])
    first = waits(lab.store)["j"]
    assert first.kind == "runner" and job.step_local(mirror("r", "j_out")) == first.epoch
    assert waits(lab.store)["j"] == Wait("nothing")
    at = lab.put({1: (1, 1)})
    assert waits(lab.store)["j"] == Wait("boundary", next_boundary(at))
    lab.tick()
    assert waits(lab.store)["j"] == Wait("runner", next_boundary(at))
    assert job.step_local(mirror("r", "j_out")) == next_boundary(at)
    assert waits(lab.store)["j"] == Wait("nothing")


def test_a_job_of_a_longer_interval_waits_for_its_own_boundary(lab: Lab) -> None:
    job = lab.job("j", ["r"], interval=5)
    lab.tick(5)
    job.step_local(mirror("r", "j_out"))
    at = lab.put({1: (1, 1)})
    lab.tick()
    assert waits(lab.store)["j"] == Wait("boundary", next_boundary(at, 5))
    forced = lab.store.checkpoint()
    assert waits(lab.store)["j"] == Wait("runner", forced)


def test_a_failed_job_holds_back_the_chain_behind_it(lab: Lab) -> None:
    jobs = [lab.job(f"j{at}", ["r" if not at else f"j{at - 1}_out"]) for at in range(3)]
    lab.tick()
    for at, job in enumerate(jobs):
        job.step_local(mirror("r" if not at else f"j{at - 1}_out", f"j{at}_out"))
    at = lab.put({1: (1, 1)})
    lab.tick()
    with pytest.raises(RuntimeError):
        jobs[0].step_local(fail)
    assert waits(lab.store) == {
        "j0": Wait("failed", next_boundary(at)),
        "j1": Wait("upstream", None, "j0_out", "j0", at - 1, "j0", jobs=("j0",)),
        "j2": Wait("upstream", None, "j1_out", "j1", at - 1, "j0", jobs=("j1",)),
    }
    assert jobs[0].step_local(mirror("r", "j0_out")) is not None
    waits_by_job = waits(lab.store)
    assert waits_by_job["j1"] == Wait("runner", next_boundary(at)) and waits_by_job["j2"].cause == "j1"


def test_a_job_waits_for_the_upstream_that_is_least_complete(lab: Lab) -> None:
    fast, slow = lab.job("fast", ["r"]), lab.job("slow", ["r"])
    both = lab.job("both", ["fast_out", "r", "slow_out"])
    assert waits(lab.store)["both"].kind == "upstream"
    assert {waits(lab.store)["both"].upstream, waits(lab.store)["both"].through} == {"fast_out", 0}
    lab.tick()
    for name, job in (("fast", fast), ("slow", slow)):
        job.step_local(mirror("r", f"{name}_out"))
    both.step_local(mirror("r", "both_out"))
    at = lab.put({1: (1, 1)})
    lab.tick()
    fast.step_local(mirror("r", "fast_out"))
    assert waits(lab.store)["both"] == Wait(
        "upstream", next_boundary(at), "slow_out", "slow", at - 1, "slow", jobs=("slow",)
    )


def test_a_finished_job_waits_for_nothing_more(lab: Lab) -> None:
    job = lab.job("j", ["r"])
    lab.store.table("r").finish()
    lab.tick()
    job.step_local(mirror("r", "j_out"))
    assert waits(lab.store)["j"] == Wait("over")


def test_a_draining_job_waits_for_its_end(lab: Lab) -> None:
    job = lab.job("j", ["r"])
    lab.tick()
    job.step_local(mirror("r", "j_out"))
    assert waits(lab.store)["j"] == Wait("nothing")
    lab.store.job("j").stop(drain=True)
    assert waits(lab.store)["j"].kind == "runner"


def test_one_that_is_made_anew_waits_for_a_runner_and_behind_a_parked_one_for_that(lab: Lab) -> None:
    job, above = lab.job("j", ["r"], snapshot_rows=1), lab.job("above", ["j_out"])
    lab.put({1: (1, 1), 2: (1, 1)})
    lab.tick()
    for _ in range(3):
        assert waits(lab.store)["j"].kind == "runner"
        job.step_local(mirror("r", "j_out"))
    above.step_local(mirror("j_out", "above_out"))
    lab.put({3: (1, 1)})
    lab.tick(2 * 86_400)
    lab.store.compact("r", full=True)
    assert waits(lab.store)["j"] == Wait("rebuild")
    job.rebuild()
    wait = waits(lab.store)["j"]
    assert wait.kind == "runner"
    while not (done := job.step_local(mirror("r", "j_out"))):
        assert waits(lab.store)["j"] == wait
    assert done == wait.epoch
    assert waits(lab.store)["above"].kind == "runner"


class Watched(LawWorld):
    """Random load under which every step does what was said of the job just before."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.said: list[str] = []
        super().__init__(seed, folder)

    def step_with(self, job: Any, name: str, *args: Any, **options: Any) -> int | None:
        wait = waits(self.store)[name]
        zombie = job is not self.jobs[name]
        self.said.append(wait.kind)
        done = super().step_with(job, name, *args, **options)
        if not zombie and "meanwhile" not in options:
            due = wait.epoch if wait.kind in ("runner", "failed") else None
            self.check(done == due or (done == 0 and due is not None), name, wait, done)
        return done


@pytest.mark.medium
@pytest.mark.local_only
def test_a_runner_finds_a_barrier_exactly_when_the_job_waits_for_one(tmp_path: Path) -> None:
    kinds = set()
    for seed in range(SEEDS):
        world = Watched(seed, tmp_path / str(seed))
        world.play(15)
        world.close()
        kinds |= set(world.said)
    assert kinds | {"rebuild"} == set(get_args(WaitKind))


@pytest.mark.rule("5.5")
@pytest.mark.parametrize(("backfill", "hours"), [("snapshot", 24), ("log", 5)])  # a log is held for a day
@pytest.mark.parametrize("rows", [True, False])
def test_the_lag_of_a_job_that_never_ran_grows_and_so_does_how_long_it_is_due(
    lab: Lab, backfill: str, hours: int, rows: bool
) -> None:
    """Both grow with an idle upstream, with new commits and with a log that retention has truncated."""
    lab.root_table("other")
    if rows:
        lab.put({1: (1, 1)})
    job = lab.job("j", ["r"], backfill=backfill)
    seen: list[tuple[int, int | None]] = []
    for times in range(1, 5):
        lab.tick(hours * 3600)
        lab.put({times: (1, 1)}, "r" if rows else "other")
        lab.store.compact(full=True)
        seen.append((job.info.lag_ms, due_since(lab, "j")))
        assert job.info.state == "creating"
    assert seen == [(times * hours * 3_600_000,) * 2 for times in range(1, 5)]


def test_a_late_job_that_merges_is_due_since_its_first_stop(lab: Lab) -> None:
    job = lab.job("j", ["r"], max_lag=0)
    job.step_local(mirror("r", "j_out"))
    lab.tick()
    for minutes in range(1, 4):
        lab.put({1: (1, minutes)})
        lab.tick(60)
        due = due_since(lab, "j")
        assert due is not None and minutes * 60_000 - 1000 <= due <= minutes * 60_000


def test_a_rebuild_is_due_since_it_was_asked_for(lab: Lab) -> None:
    job = lab.job("j", ["r"])
    job.step_local(mirror("r", "j_out"))
    lab.tick(60)
    job.rebuild()
    for _ in range(2):
        lab.tick(60)
        lab.put({1: (1, lab.now_ms % 100)})
    assert due_since(lab, "j") == 120_000 == job.info.lag_ms
