"""Jobs whose driver attaches to a coordinator: who decides, who waits, and who goes on alone."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import epochlog as el
from attached_fixture import (
    RATES,
    REVENUE,
    Driver,
    add_changes,
    add_orders,
    caught_up,
    check,
    copy,
    driving,
    end,
    make_rated,
    make_store,
    rate,
    rated_query,
    run,
    said,
)
from control_fixture import TOKEN, open_worker, settings
from epochlog.checkpoint.coordinator import job_looker, managed_jobs
from epochlog.checkpoint.coordinator.managed_jobs import JobTask
from epochlog.checkpoint.job.runner import JobRunner
from epochlog.checkpoint.job.step_scheduler import JobStep, failed
from epochlog.checkpoint.worker.job_part import JobPart
from epochlog.store.commit import job_commit
from ports import fixed_location
from wait_until import WAIT_LIMIT_S, wait_until


@contextmanager
def attached_world(
    folder: Path, times: el.CoordinatorSettings | None = None
) -> Iterator[tuple[el.Store, el.StoreServer, el.Worker]]:
    """A store with its server, and a worker that has reached it."""
    with (
        make_store(folder / "store") as store,
        el.serve(store, token=TOKEN, control=times or settings()) as server,
        open_worker(server, store) as worker,
    ):
        worker.await_answer()
        yield store, server, worker


def runner_kind(store: el.Store) -> str | None:
    runner = store.job("revenue").info.runner
    return None if runner is None else runner.kind


def commits(server: el.StoreServer) -> int:
    return sum(status.commits for status in server.coordinator.status())


@pytest.mark.rule("5.36")
def test_the_coordinator_decides_and_a_second_driver_waits_for_the_first(tmp_path: Path) -> None:
    with make_store(tmp_path / "store") as store, el.serve(store, token=TOKEN, control=settings()) as server:
        add_orders(store, 0, 50)
        with open_worker(server, store) as first_worker, open_worker(server, store) as second_worker:
            first_worker.await_answer()
            second_worker.await_answer()
            with driving(store, first_worker) as first:
                wait_until(lambda: caught_up(store) and commits(server))
                assert runner_kind(store) == "coordinator"
                text = server.metrics()
                for phase in ("decision", "collection", "commit"):
                    line = f'epochlog_barrier_phase_seconds_count{{job_name="job:revenue",phase="{phase}"}}'
                    assert next(float(x.split()[-1]) for x in text.splitlines() if x.startswith(line)) >= 1
                with driving(store, second_worker) as second:
                    wait_until(lambda: second.refused > 2)
                    assert first.error is None
                    with pytest.raises(el.JobRunning, match="coordinator"):
                        store.job("revenue").step_local(add_changes)
                    first.stop()
                    add_orders(store, 50, 50)
                    wait_until(lambda: caught_up(store) and second.steps)
        check(store)


@pytest.mark.rule("5.36")
def test_a_driver_that_takes_over_fences_the_first(tmp_path: Path) -> None:
    with make_store(tmp_path / "store") as store, el.serve(store, token=TOKEN, control=settings()) as server:
        with open_worker(server, store) as first_worker, open_worker(server, store) as second_worker:
            first_worker.await_answer()
            second_worker.await_answer()
            with driving(store, first_worker) as first:
                wait_until(lambda: first.steps)
                with driving(store, second_worker, take_over=True) as second:
                    first.join()
                    assert isinstance(first.error, el.Fenced)
                    add_orders(store, 0, 50)
                    wait_until(lambda: caught_up(store))
                    assert second.error is None and second.refused == 0
        check(store)


@pytest.mark.medium
def test_a_driver_takes_over_a_runner_that_is_no_coordinator(tmp_path: Path) -> None:
    with make_store(tmp_path / "store") as store, el.serve(store, token=TOKEN, control=settings()) as server:
        alone, entered = store.job("revenue"), threading.Event()
        let_go, errors = threading.Event(), []

        def hang(ctx: Any) -> None:
            entered.set()
            let_go.wait()

        def step() -> None:
            try:
                alone.step_local(hang)
            except el.EpochlogError as error:
                errors.append(error)

        add_orders(store, 0, 50)
        store.checkpoint()
        thread = threading.Thread(target=step)
        thread.start()
        wait_until(entered.is_set)
        with open_worker(server, store) as worker:
            worker.await_answer()
            with driving(store, worker) as waiting:
                wait_until(lambda: waiting.refused > 2)
            with driving(store, worker, take_over=True):
                wait_until(lambda: caught_up(store))
        let_go.set()
        thread.join()
        assert [type(error) for error in errors] == [el.Fenced]
        check(store)


def test_a_runner_outside_of_the_coordinator_fences_the_driver(tmp_path: Path) -> None:
    """Raise in the driver what ended it: a pipeline shows the job as fenced, not as stopped."""
    with attached_world(tmp_path) as (store, _server, worker), driving(store, worker) as driver:
        wait_until(lambda: driver.steps and runner_kind(store) == "coordinator")
        outside = store.job("revenue")
        for number in range(1000):
            add_orders(store, 10 * number, 10)
            store.checkpoint()
            if outside.step_local(add_changes, take_over=True) is not None:
                break
        driver.join()
        assert isinstance(driver.error, el.Fenced)
        assert failed(JobStep(), driver.error, 0, None).state == "fenced"
        while outside.step_local(add_changes) is not None:
            pass
        check(store)


def test_a_runner_outside_that_comes_before_the_commit_fences_the_driver(tmp_path: Path) -> None:
    """Fence the coordinator while the driver refreshes: its commit is the first call to find that out."""
    entered, let_go = threading.Event(), threading.Event()

    def refresh(ctx: Any) -> None:
        add_changes(ctx)
        entered.set()
        let_go.wait()

    with attached_world(tmp_path) as (store, _server, worker), driving(store, worker, refresh) as driver:
        add_orders(store, 0, 10)
        store.checkpoint()
        wait_until(entered.is_set)
        assert store.job("revenue").step_local(add_changes, take_over=True)
        let_go.set()
        driver.join()
        assert isinstance(driver.error, el.Fenced)
        check(store)


@pytest.mark.rule("5.36")
@pytest.mark.logs("coordinator_lost", "coordinator_back")
def test_without_a_coordinator_the_driver_runs_alone_and_goes_back_when_it_is_there(tmp_path: Path) -> None:
    with make_store(tmp_path / "store") as store:
        location = fixed_location()
        server = el.serve(store, location, token=TOKEN, control=settings())
        add_orders(store, 0, 50)
        with open_worker(server, store) as worker:
            worker.await_answer()
            with driving(store, worker) as driver:
                for turn in range(1, 4):
                    wait_until(lambda: caught_up(store) and not driver.job.holds)
                    server.shutdown()
                    add_orders(store, 100 * turn, 50)
                    wait_until(lambda: caught_up(store) and driver.job.holds)
                    assert runner_kind(store) == "query"
                    add_orders(store, 100 * turn + 50, 50)
                    server = el.serve(store, location, token=TOKEN, control=settings())
                wait_until(lambda: caught_up(store) and runner_kind(store) == "coordinator")
                assert driver.error is None
        server.shutdown()
        check(store)


@pytest.mark.logs("step_abandoned")
@pytest.mark.medium
def test_a_step_that_was_rolled_back_is_given_up_and_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, tries = JobPart.step_with, list[int]()

    def rolled_back_once(part: JobPart, *arguments: Any) -> int | None:
        tries.append(1)
        if len(tries) == 1:
            raise el.RolledBack("its attempt was given up")
        return real(part, *arguments)

    monkeypatch.setattr(JobPart, "step_with", rolled_back_once)
    with attached_world(tmp_path) as (store, _server, worker), driving(store, worker) as driver:
        add_orders(store, 0, 50)
        wait_until(lambda: len(tries) > 1 and caught_up(store))
        assert driver.error is None


@pytest.mark.rule("5.36")
def test_a_coordinator_that_was_passed_over_begins_again(tmp_path: Path) -> None:
    """It holds the job in memory still, but a runner has claimed the job since."""
    with attached_world(tmp_path) as (store, _server, worker):
        for turn in range(3):
            with driving(store, worker) as driver:
                add_orders(store, 100 * turn, 50)
                wait_until(lambda: caught_up(store))
            add_orders(store, 100 * turn + 50, 50)
            store.checkpoint()
            wait_until(lambda: runner_kind(store) is None)
            assert store.job("revenue").step_local(add_changes)
            assert driver.error is None
        check(store)


@pytest.mark.rule("5.36")
def test_a_coordinator_that_decides_as_the_last_part_leaves_gives_the_job_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A decision takes the lease of the job again; without a part, nothing would ever release it."""
    real, late, begun, go, ended = JobTask.decide, threading.Event(), *(threading.Event() for _ in range(3))

    def decide(task: JobTask, **options: Any) -> Any:
        is_late = late.is_set()
        if is_late:
            begun.set()
            assert go.wait(WAIT_LIMIT_S)
        decided = real(task, **options)
        if is_late:
            assert runner_kind(store) == "coordinator"
            ended.set()
        return decided

    monkeypatch.setattr(JobTask, "decide", decide)
    with attached_world(tmp_path) as (store, server, worker):
        with driving(store, worker):
            add_orders(store, 0, 50)
            wait_until(lambda: caught_up(store))
            late.set()
            add_orders(store, 50, 50)
            store.checkpoint()
            assert begun.wait(WAIT_LIMIT_S)
        wait_until(lambda: not server.coordinator._executor.owners and runner_kind(store) is None)
        go.set()
        assert ended.wait(WAIT_LIMIT_S)
        wait_until(lambda: runner_kind(store) is None)
        assert store.job("revenue").step_local(add_changes)
        check(store)


@pytest.mark.parametrize("drain", [False, True])
def test_a_job_is_stopped_at_its_coordinator(tmp_path: Path, drain: bool) -> None:
    with make_store(tmp_path / "store") as store, el.serve(store, token=TOKEN, control=settings()) as server:
        with open_worker(server, store) as worker, open_worker(server, store) as operator:
            worker.await_answer()
            add_orders(store, 0, 50)
            with driving(store, worker) as driver:
                wait_until(lambda: driver.steps and runner_kind(store) == "coordinator")
                operator.stop(job="revenue", drain=drain)
                if drain:
                    wait_until(lambda: store.job("revenue").info.state == "finished")
                    assert store.job("revenue").info.committed_epoch >= store.table("orders").info.max_committed_epoch
                else:
                    driver.join()
                    assert isinstance(driver.error, el.Cancelled)
                    assert store.job("revenue").info.state != "finished"
        check(store)


@pytest.mark.medium
def test_a_dropped_job_ends_its_driver_with_its_name(tmp_path: Path) -> None:
    with attached_world(tmp_path) as (store, _server, worker), driving(store, worker) as driver:
        wait_until(lambda: runner_kind(store) == "coordinator")
        store.drop_job("revenue")
        driver.join()
        assert isinstance(driver.error, el.JobNotFound)


@pytest.mark.parametrize(
    "place",
    [(JobRunner, "commit"), (job_commit, "prepare_outputs"), (job_commit, "hit")],
    ids=lambda place: place[1],
)
def test_a_job_that_is_dropped_at_its_commit_ends_its_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: tuple[Any, str]
) -> None:
    """Drop the job after its driver has reported: before the commit, before it looks for its tables, or after that."""
    commit, is_point = getattr(*place), place[1] == "hit"

    def late(*arguments: Any, **options: Any) -> Any:
        if not is_point or arguments == ("job:before-commit",):
            with suppress(el.JobNotFound):
                store.drop_job("revenue")
        return commit(*arguments, **options)

    with attached_world(tmp_path) as (store, _server, worker), driving(store, worker) as driver:
        wait_until(lambda: driver.steps and runner_kind(store) == "coordinator")
        monkeypatch.setattr(*place, late)
        add_orders(store, 0, 10)
        store.checkpoint()
        driver.join()
        assert isinstance(driver.error, el.JobNotFound)


@pytest.mark.medium
def test_an_error_of_the_refresh_is_recorded_and_tried_again(tmp_path: Path) -> None:
    bad = threading.Event()
    bad.set()

    def refresh(ctx: Any) -> None:
        add_changes(ctx)
        if bad.is_set():
            raise ZeroDivisionError("not now")

    with attached_world(tmp_path) as (store, _server, worker):
        add_orders(store, 0, 50)
        with driving(store, worker, refresh):
            wait_until(lambda: store.job("revenue").info.last_error == "ZeroDivisionError: not now")
            assert store.job("revenue").info.committed_epoch == 0
            bad.clear()
            wait_until(lambda: caught_up(store))
            assert store.job("revenue").info.last_error is None
        check(store)


@pytest.mark.parametrize("error", [ValueError("a defect"), el.WriteFailed("no space"), el.OutcomeUnknown("no answer")])
@pytest.mark.medium
def test_an_error_of_the_commit_is_recorded_and_tried_again(
    tmp_path: Path, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody but the coordinator has seen it: the refresh has returned."""
    bad, commit = threading.Event(), managed_jobs.JobRunner.commit
    bad.set()

    def failing(self: JobRunner, *arguments: Any, **options: Any) -> int:
        if bad.is_set():
            raise error
        return commit(self, *arguments, **options)

    monkeypatch.setattr(managed_jobs.JobRunner, "commit", failing)
    with attached_world(tmp_path) as (store, _server, worker):
        add_orders(store, 0, 50)
        with driving(store, worker, add_changes):
            wait_until(lambda: store.job("revenue").info.last_error == f"{type(error).__name__}: {error}")
            assert store.job("revenue").info.committed_epoch == 0
            bad.clear()
            wait_until(lambda: caught_up(store))
            assert store.job("revenue").info.last_error is None
        check(store)


@pytest.mark.medium
def test_a_refresh_that_outlasts_its_attempts_is_carried_over(tmp_path: Path) -> None:
    calls: list[int] = []
    with attached_world(tmp_path, settings(attempt_ms=300)) as (store, server, worker):

        def refresh(ctx: Any) -> None:
            add_changes(ctx)
            calls.append(ctx.barrier.curr)
            if len(calls) == 1:
                wait_until(lambda: sum(status.aborts for status in server.coordinator.status()) >= 2)

        add_orders(store, 0, 50)
        with driving(store, worker, refresh):
            wait_until(lambda: store.job("revenue").info.committed_epoch)
        assert len(set(calls)) == len(calls)
        check(store)


def test_a_wrong_token_is_refused_and_nobody_runs_alone(tmp_path: Path) -> None:
    with (
        attached_world(tmp_path) as (store, server, _),
        el.Worker(server.location, store, token="another-Token-1") as worker,
    ):
        with pytest.raises(el.AccessDenied):
            worker.await_answer()
        with pytest.raises(el.AccessDenied):
            Driver(store, worker).step()
        assert runner_kind(store) is None


@pytest.mark.medium
def test_jobs_at_rest_cost_their_coordinator_one_look_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job without work gets no attempt; also after a commit that gives it none, which the next look sees."""
    with make_store(tmp_path / "store", interval_ms=3_600_000) as store:
        other = store.create_table("other", RATES, ["day"])
        names = ["revenue"]
        for number in range(5):
            names.append(f"copy{number}")
            store.create_job(names[-1], ["revenue"], {names[-1]: (REVENUE, ["day"])})
        asked, looks, decide, look_at = [0], list[int](), JobTask.decide, job_looker.look_at

        def counted(task: JobTask, **options: Any) -> Any:
            asked[0] += 1
            return decide(task, **options)

        def looked(handle: Any, requests: Any, *rest: Any) -> Any:
            looks.append(len(requests))
            return look_at(handle, requests, *rest)

        monkeypatch.setattr(JobTask, "decide", counted)
        monkeypatch.setattr(job_looker, "look_at", looked)
        with el.serve(store, token=TOKEN, control=settings()) as server, open_worker(server, store) as worker:
            worker.await_answer()
            with ExitStack() as stack:
                for name in names:
                    refresh = add_changes if name == "revenue" else copy("revenue", name)
                    stack.enter_context(driving(store, worker, refresh, name=name))
                add_orders(store, 0, 5)
                boundary = store.checkpoint()
                wait_until(lambda: all(store.job(name).info.committed_epoch >= boundary for name in names))
                looks.clear()
                wait_until(lambda: len(looks) >= 2)  # the commits of all have been seen
                asked[0] = 0
                for _ in range(3):
                    other.upsert(pa.table({"day": ["x"]}))
                    looks.clear()
                    wait_until(lambda: len(looks) >= 2)
                assert asked[0] == 0 and set(looks) == {len(names)}


def check_rated(store: el.Store) -> None:
    epoch = store.job("rated").info.committed_epoch
    rated, orders, rates = (store.table(name).to_arrow(epoch=epoch) for name in ("rated", "orders", "rates"))
    assert rated.cast(REVENUE).sort_by("day").equals(rated_query(orders, rates))


@pytest.mark.rule("5.10")
@pytest.mark.slow
@pytest.mark.local_only
def test_a_job_that_fails_again_and_again_is_parked_and_the_others_go_on(tmp_path: Path) -> None:
    """A server and two drivers, in processes of their own. The rebuilt job goes on under the same server."""
    root, broken = str(tmp_path / "store"), tmp_path / "broken"
    with make_store(root) as store:
        job = make_rated(store)
        add_orders(store, 0, 50)
        rate(store, 0, 1)
        server = run("serve", root, fixed_location())
        location = said(server)
        children = [server, run("drive", root, location), run("drive_rated", root, location)]
        try:
            assert [said(child) for child in children[1:]] == ["ready", "ready"]
            wait_until(lambda: caught_up(store) and caught_up(store, "rated"))
            broken.touch()
            rate(store, 2)
            add_orders(store, 100, 50)
            wait_until(lambda: job.info.last_error == "ZeroDivisionError: the rates are broken")
            before, rows_before = job.info.committed_epoch, store.table("rated").to_arrow()
            check_rated(store)
            wait_until(lambda: caught_up(store))  # a neighbour fails meanwhile

            def parked() -> bool:
                store.compact("rates")
                return job.info.state == "parked"

            wait_until(parked)
            assert said(children[2]) == "JobParked"
            add_orders(store, 200, 50)
            wait_until(lambda: caught_up(store))
            check(store)
            assert (job.info.state, job.info.committed_epoch) == ("parked", before)
            assert store.table("rated").to_arrow().equals(rows_before)

            broken.unlink()
            job.rebuild()
            children.append(run("drive_rated", root, location))
            assert said(children[3]) == "ready"
            wait_until(lambda: caught_up(store, "rated"))
            add_orders(store, 300, 50)
            wait_until(lambda: caught_up(store, "rated") and caught_up(store))
            wait_until(lambda: job.info.state == "running" and job.info.last_error is None)
            assert job.info.runner is not None and job.info.runner.kind == "coordinator"
            check_rated(store)
            check(store)
            assert store.verify().ok
        finally:
            for child in children:
                end(child)


@pytest.mark.slow
@pytest.mark.local_only
@pytest.mark.parametrize("rounds", [2, pytest.param(25, marks=pytest.mark.long)])
def test_drivers_and_the_coordinator_are_killed_in_any_order(tmp_path: Path, rounds: int) -> None:
    """Check that nothing is lost or lands twice, and that the job goes on after each death."""
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance, root = random.Random(seed), str(tmp_path / "store")
    with make_store(root) as store:
        server = run("serve", root, fixed_location())
        location = said(server)
        drivers = [run("drive", root, location) for _ in range(2)]
        assert [said(driver) for driver in drivers] == ["ready", "ready"]
        try:
            for turn in range(rounds):
                add_orders(store, 1000 * turn, 50)
                victim = chance.choice(("server", "driver", "both"))
                if victim != "driver":
                    end(server)
                if victim != "server":
                    number = chance.randrange(2)
                    end(drivers[number])
                    drivers[number] = run("drive", root, location)
                add_orders(store, 1000 * turn + 500, 50)
                if chance.random() < 0.5:
                    wait_until(lambda: caught_up(store))
                if victim != "driver":
                    server = run("serve", root, location)
                    assert said(server) == location
                wait_until(lambda: caught_up(store))
                check(store)
        finally:
            for child in (server, *drivers):
                end(child)
