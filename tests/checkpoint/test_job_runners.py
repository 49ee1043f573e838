"""Runner leases: only an explicit takeover fences a live runner; a dead runner does not block the next one."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import epochlog as el
from epochlog.checkpoint.job.runner import JobRunner
from epochlog.store.catalog.keys import job_key, lease_key
from epochlog.store.env.process_id import identity
from epochlog.store.metadata.definitions import Runner
from epochlog.store.metadata.lookups import get_job
from epochlog.store.session.leases import RUNNER_MS
from lab import Lab, mirror, refuse
from wait_until import WAIT_LIMIT_S

COPY = mirror("r", "j_out")
OTHER_MACHINE = "another-boot/1 4711 99"


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path / "store")
    lab.root_table()
    lab.job("j", ["r"])
    lab.put({1: (0, 10)})
    lab.tick()
    yield lab
    lab.store.close()


def more(lab: Lab, k: int = 2) -> None:
    lab.put({k: (0, 10 * k)})
    lab.tick()


def runner_of(lab: Lab) -> Runner | None:
    handle = lab.store._handle
    return handle.catalog.read(lambda view: get_job(view, 1, "j")).runner


def run_elsewhere(lab: Lab, process: str = OTHER_MACHINE, kind: str = "pipeline") -> None:
    """Record another process as the job's runner in the catalog, with a lease renewed just now."""
    catalog = lab.store._handle.catalog

    def body(tx: Any) -> None:
        job = get_job(tx, 1, "j")
        runner = Runner("pipeline:theirs", "theirs", process, "far", 4711, lab.now_ms, kind)
        tx.put(job_key(1), replace(job, incarnation=job.incarnation + 1, runner=runner).to_record())
        tx.put(lease_key("theirs"), {"expires_ms": lab.now_ms + RUNNER_MS})

    catalog.transact(body)


def in_a_step(lab: Lab, meanwhile: Callable[[], None]) -> Callable[[Any], None]:
    def refresh(ctx: Any) -> None:
        meanwhile()
        COPY(ctx)

    return refresh


# ---- a live runner ---------------------------------------------------------------------------------------------------


@pytest.mark.rule("5.3")
def test_a_step_beside_a_step_is_refused_and_changes_nothing(lab: Lab) -> None:
    other = lab.store.job("j")
    lab.now_ms += 2_000

    def meanwhile() -> None:
        before = lab.txn_id()
        lab.now_ms += 3_000
        with pytest.raises(
            el.JobRunning, match=rf"'j' is run by a step of process {os.getpid()} on .* \(3.0 s\).*take_over"
        ):
            other.step_local(refuse)
        assert lab.txn_id() == before

    assert lab.store.job("j").step_local(in_a_step(lab, meanwhile)) is not None
    assert lab.rows("j_out") == {1: (0, 10)} and runner_of(lab) is None
    more(lab)
    assert other.step_local(COPY) is not None  # the first one is idle now


@pytest.mark.rule("5.3")
def test_take_over_fences_at_once(lab: Lab) -> None:
    old, new = lab.store.job("j"), lab.store.job("j")

    def meanwhile() -> None:
        assert new.step_local(COPY, take_over=True) is not None

    with pytest.raises(el.Fenced):
        old.step_local(in_a_step(lab, meanwhile))
    assert lab.rows("j_out") == {1: (0, 10)} and new.info.incarnation == 2
    for k in (2, 3):
        more(lab, k)
        assert new.step_local(COPY, take_over=True) is not None  # it runs the job already, and claims nothing
    assert new.info.incarnation == 2
    assert old.step_local(COPY, take_over=True) is None  # a fenced handle may take the job back
    with pytest.raises(el.Fenced):
        new.step_local(refuse)


def test_take_over_by_the_same_handle_from_another_thread(lab: Lab) -> None:
    job = lab.store.job("j")
    with pytest.raises(el.Fenced):
        job.step_local(in_a_step(lab, lambda: job.step_local(COPY, take_over=True)))
    assert job.info.incarnation == 2 and lab.rows("j_out") == {1: (0, 10)}
    more(lab)
    assert job.step_local(COPY) is not None


@pytest.mark.rule("5.3")
def test_an_idle_handle_is_not_live_and_gets_fenced(lab: Lab) -> None:
    idle, other = lab.store.job("j"), lab.store.job("j")
    assert idle.step_local(COPY) is not None
    assert idle.step_local(refuse) is None
    more(lab)
    assert other.step_local(COPY) is not None
    with pytest.raises(el.Fenced):
        idle.step_local(refuse)


@pytest.mark.parametrize("fails", ["refresh", "commit", "begin"])
def test_a_failed_step_leaves_nobody_running(lab: Lab, fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise el.CatalogUnavailable("not now")

    job = lab.store.job("j")
    with monkeypatch.context() as patch:
        if fails != "refresh":
            patch.setattr(
                f"epochlog.checkpoint.job.runner.{'commit_changes' if fails == 'commit' else 'plan_barrier'}", fail
            )
        with pytest.raises(el.CatalogUnavailable):
            job.step_local(fail if fails == "refresh" else COPY)
    assert runner_of(lab) is None
    assert lab.store.job("j").step_local(COPY) is not None


@pytest.mark.local_only  # Redis counts changes, not transactions
def test_looking_for_work_writes_nothing_and_a_step_writes_no_more_than_before(lab: Lab) -> None:
    job = lab.store.job("j")
    job.step_local(COPY)
    before = lab.txn_id()
    for _ in range(3):
        assert job.step_local(refuse) is None
    assert lab.txn_id() == before
    more(lab)
    before = lab.txn_id()
    job.step_local(COPY)
    assert lab.txn_id() - before == 3  # the boundary is sealed, the barrier recorded, the commit


# ---- other processes -------------------------------------------------------------------------------------------------


@pytest.mark.rule("5.3")
def test_a_runner_of_another_host_holds_until_its_lease_ends(lab: Lab) -> None:
    run_elsewhere(lab)
    job = lab.store.job("j")
    lab.now_ms += RUNNER_MS - 1
    with pytest.raises(el.JobRunning, match=r"a pipeline of process 4711 on far since 2025.*41.000Z \(9.9 s\)"):
        job.step_local(refuse)
    assert job.info.runner == el.RunnerInfo("pipeline", "far", 4711, lab.now_ms - RUNNER_MS + 1)
    lab.now_ms += 1
    assert job.info.runner is None
    assert job.step_local(COPY) is not None
    assert job.info.incarnation == 2


@pytest.mark.rule("5.3")
def test_a_runner_of_this_machine_that_died_holds_nobody(lab: Lab) -> None:
    machine = identity().rsplit(" ", 2)[0]
    run_elsewhere(lab, f"{machine} {os.getpid()} 1")  # the same number, but another process had it then
    assert lab.store.job("j").step_local(COPY) is not None
    run_elsewhere(lab, f"{machine} {os.getppid()} {_start_ticks(os.getppid())}")
    with pytest.raises(el.JobRunning):
        lab.store.job("j").step_local(refuse)


def _start_ticks(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


def test_take_over_does_not_wait_for_another_host(lab: Lab) -> None:
    run_elsewhere(lab)
    assert lab.store.job("j").step_local(COPY, take_over=True) is not None


# ---- the lease -------------------------------------------------------------------------------------------------------


@pytest.mark.rule("5.3")
def test_a_jump_of_the_clock_ends_no_runner_of_this_process(lab: Lab) -> None:
    other = lab.store.job("j")

    def meanwhile() -> None:
        lab.now_ms += 3_600_000
        with pytest.raises(el.JobRunning):
            other.step_local(refuse)

    assert lab.store.job("j").step_local(in_a_step(lab, meanwhile)) is not None


@pytest.mark.rule("5.3")
def test_all_runners_of_a_store_share_one_lease_that_is_renewed_while_they_run(lab: Lab) -> None:
    lab.job("k", ["r"])
    handle = lab.store._handle
    runners = [JobRunner(handle, number, name) for number, name in ((1, "j"), (2, "k"))]
    runs = [runner.begin() for runner in runners]

    def leases() -> list[int]:
        return [
            record["expires_ms"]
            for _, record in handle.catalog.read(lambda view: list(view.scan(b"lease/", b"lease0")))
        ]

    assert leases() == [lab.now_ms + RUNNER_MS]
    lab.now_ms += 5_000
    handle.runners.renew()
    assert leases() == [lab.now_ms + RUNNER_MS]
    for runner, run in zip(runners, runs, strict=True):
        assert run is not None
        runner.commit(run, {})
    lab.now_ms += 1_000
    handle.runners.renew()
    assert leases() == []  # nobody runs: nothing is renewed
    before = lab.txn_id()
    handle.runners.renew()
    assert lab.txn_id() == before


def test_a_close_lets_go_of_what_it_ran(lab: Lab) -> None:
    other = lab.open()
    lab.store.job("j")._runner.begin()
    lab.store.close()
    lab.store = other
    assert runner_of(lab) is None


def test_a_leave_that_could_not_be_told_is_told_later(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = lab.store.job("j")._runner
    lease = runner.new_lease("query")
    runner.acquire(lease)

    def unavailable(*_: Any) -> Any:
        raise el.CatalogUnavailable("not now")

    with monkeypatch.context() as patch:
        patch.setattr(lab.store._handle.catalog, "transact", unavailable)
        runner.release(lease)
    assert runner_of(lab) is not None and runner.record().runner is not None
    lab.store._handle.runners.renew()
    assert runner_of(lab) is None


# ---- queries, pipelines and handles ----------------------------------------------------------------------------------


def test_a_handle_beside_its_own_standing_runner(lab: Lab) -> None:
    job, alive = lab.store.job("j"), [True]
    lease = job._runner.new_lease("query")
    lease.alive = lambda: alive[0]
    job._runner.acquire(lease)
    for handle in (job, lab.store.job("j")):
        with pytest.raises(el.JobRunning, match="a query of"):
            handle.step_local(refuse)
    assert job._runner.step_local(COPY, lease=lease) is not None
    assert runner_of(lab) is not None  # it goes on
    alive[0] = False  # as when somebody has stopped the query behind our back
    more(lab)
    assert job.step_local(COPY) is not None
    assert job.info.incarnation == 1


def test_a_standing_runner_that_was_taken_over_by_its_own_handle_is_fenced(lab: Lab) -> None:
    job = lab.store.job("j")
    lease = job._runner.new_lease("query")
    job._runner.acquire(lease)
    assert job.step_local(COPY, take_over=True) is not None
    more(lab)
    with pytest.raises(el.Fenced):
        job._runner.step_local(refuse, lease=lease)
    job._runner.release(lease)
    assert job.step_local(COPY) is not None


def test_of_many_threads_with_handles_of_their_own_one_runs_the_job(lab: Lab) -> None:
    """All claim at once; whoever is first is inside its step until all others were refused."""
    count, refused, done = 8, [], []
    all_refused, gate = threading.Event(), threading.Barrier(8)

    def refresh(ctx: Any) -> None:
        assert all_refused.wait(WAIT_LIMIT_S)
        COPY(ctx)

    def step() -> None:
        job = lab.store.job("j")
        gate.wait()
        try:
            done.append(job.step_local(refresh))
        except el.JobRunning as error:
            refused.append(error)
            if len(refused) == count - 1:
                all_refused.set()

    threads = [threading.Thread(target=step) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) == 1 and len(refused) == count - 1
    assert lab.store.job("j").info.incarnation == 1
