"""Pipelines under a coordinator: all jobs over one stream, and each alone while no coordinator answers."""

from __future__ import annotations

import random
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import epochlog as el
from attached_fixture import add_orders, caught_up, check_chain, copy, end, make_chain, make_store, run, said
from control_fixture import TOKEN, open_worker, settings
from epochlog.checkpoint import control_messages
from epochlog.checkpoint.worker.job_part import JobPart
from ports import fixed_location
from wait_until import WAIT_LIMIT_S, wait_until


@contextmanager
def served(store: el.Store, location: str | None = None, times: el.CoordinatorSettings | None = None) -> Iterator[Any]:
    with el.serve(store, location or fixed_location(), token=TOKEN, control=times or settings()) as server:
        yield server


def pipeline(store: el.Store, refreshes: Mapping[str, Any], coordinator: Any, **options: Any) -> el.Pipeline:
    pipe = el.Pipeline(store, coordinator=coordinator)
    for name, refresh in refreshes.items():
        pipe.add(store.job(name), refresh, **options)
    return pipe


@contextmanager
def running(pipe: el.Pipeline) -> Iterator[threading.Thread]:
    """The pipeline in a thread of its own, stopped at the end."""
    thread = threading.Thread(target=pipe.run)
    thread.start()
    try:
        yield thread
    finally:
        pipe.stop()
        thread.join()


def states(pipe: el.Pipeline) -> dict[str, str]:
    return {row.name: row.state for row in pipe.status()}


def kinds(store: el.Store, names: Collection[str]) -> set[str | None]:
    runners = [store.job(name).info.runner for name in names]
    return {None if runner is None else runner.kind for runner in runners}


def all_caught_up(store: el.Store, names: Collection[str]) -> bool:
    return all(caught_up(store, name) for name in names)


@pytest.mark.medium
@pytest.mark.rule("5.36")
def test_the_coordinator_runs_all_jobs_over_one_stream(tmp_path: Path) -> None:
    with make_store(tmp_path / "store") as store, served(store) as server:
        refreshes = make_chain(store, 12)
        with open_worker(server, store) as worker:
            pipe = pipeline(store, refreshes, worker)
            with running(pipe):
                for turn in range(3):
                    add_orders(store, 100 * turn, 50)
                    wait_until(lambda: all_caught_up(store, refreshes))
                assert kinds(store, refreshes) == {"coordinator"} and server.coordinator.workers == 1
                wait_until(lambda: set(states(pipe).values()) == {"idle"})
                with pytest.raises(el.JobRunning):
                    store.job("copy3").step_local(refreshes["copy3"])
            assert {status.job for status in server.coordinator.status()} == {f"job:{name}" for name in refreshes}
            assert all(status.commits >= 1 for status in server.coordinator.status())
            wait_until(lambda: kinds(store, refreshes) == {None})
        check_chain(store, refreshes)


@pytest.mark.medium
def test_a_run_until_idle_takes_in_all_that_was_committed_before(tmp_path: Path) -> None:
    with make_store(tmp_path / "store") as store, served(store) as server, open_worker(server, store) as worker:
        refreshes = make_chain(store, 3)
        pipe = pipeline(store, refreshes, worker)
        for turn in range(3):
            add_orders(store, 100 * turn, 50)
            last = store.last_epoch
            pipe.run(until="idle")
            assert all(row.state == "idle" and row.committed_epoch >= last for row in pipe.status())
        check_chain(store, refreshes)
        assert sum(status.commits for status in server.coordinator.status()) >= 15

        def fail(ctx: Any) -> None:
            raise ZeroDivisionError("as it always does")

        pipe = pipeline(store, {**refreshes, "copy0": fail}, worker)
        add_orders(store, 1000, 50)
        pipe.run(until="idle")
        assert states(pipe) == {**dict.fromkeys(refreshes, "idle"), "copy0": "given up"}
        assert store.job("copy0").info.last_error == "ZeroDivisionError: as it always does"
        pipe = pipeline(store, refreshes, worker)
        pipe.run(until="idle")
        assert all_caught_up(store, refreshes)
        check_chain(store, refreshes)


@pytest.mark.rule("5.36")
def test_without_a_coordinator_the_pipeline_goes_on_and_returns_to_it(tmp_path: Path) -> None:
    with make_store(tmp_path / "store") as store:
        refreshes, location = make_chain(store, 3), fixed_location()
        server = el.serve(store, location, token=TOKEN, control=settings())
        with open_worker(server, store) as worker, running(pipeline(store, refreshes, worker)):
            for turn in range(1, 3):
                add_orders(store, 200 * turn, 50)
                wait_until(lambda: all_caught_up(store, refreshes) and kinds(store, refreshes) == {"coordinator"})
                server.shutdown()
                add_orders(store, 200 * turn + 100, 50)
                wait_until(lambda: all_caught_up(store, refreshes))
                assert kinds(store, refreshes) == {"pipeline"}
                server = el.serve(store, location, token=TOKEN, control=settings())
            # also without any work: an operator must find each job at its coordinator
            wait_until(lambda: kinds(store, refreshes) == {"coordinator"})
        server.shutdown()
        check_chain(store, refreshes)


@contextmanager
def stepped_and_attached(store: el.Store, refreshes: Mapping[str, Any]) -> Iterator[tuple[Any, el.Pipeline]]:
    """Step each job, and run the same handles under a coordinator; yield its server and the pipeline."""
    add_orders(store, 0, 50)
    jobs = {name: store.job(name) for name in refreshes}
    for name, refresh in refreshes.items():
        store.checkpoint()
        jobs[name].step_local(refresh)
    server = el.serve(store, fixed_location(), token=TOKEN, control=settings())
    with open_worker(server, store) as worker:
        pipe = el.Pipeline(store, coordinator=worker)
        for name, refresh in refreshes.items():
            pipe.add(jobs[name], refresh)
        with running(pipe):
            yield server, pipe


def end_coordinator(store: el.Store, refreshes: Mapping[str, Any], server: Any, pipe: el.Pipeline) -> None:
    """Shut the server down; the jobs go on alone, and none takes its claim for one that has fenced them."""
    server.shutdown()
    add_orders(store, 100, 50)
    wait_until(lambda: all_caught_up(store, refreshes) or "fenced" in states(pipe).values())
    assert "fenced" not in states(pipe).values()


@pytest.mark.medium
def test_jobs_that_were_stepped_before_go_on_without_the_coordinator(tmp_path: Path) -> None:
    """The coordinator's claim follows theirs, so they must not take it for a runner that has fenced them."""
    with make_store(tmp_path / "store") as store:
        refreshes = make_chain(store, 2)
        with stepped_and_attached(store, refreshes) as (server, pipe):
            wait_until(lambda: kinds(store, refreshes) == {"coordinator"})
            end_coordinator(store, refreshes, server, pipe)
            assert kinds(store, refreshes) == {"pipeline"}
        check_chain(store, refreshes)


@pytest.mark.medium
def test_a_stepped_job_goes_on_alone_if_the_answer_to_its_attach_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Take the claim of a coordinator that ended before its driver knew of it for no other driver's."""
    handle_message = JobPart.handle_message

    def lose_answers(part: JobPart, message: Any) -> None:
        if not isinstance(message, control_messages.Started):
            handle_message(part, message)

    monkeypatch.setattr(JobPart, "handle_message", lose_answers)
    with make_store(tmp_path / "store") as store:
        refreshes = make_chain(store, 1)
        with stepped_and_attached(store, refreshes) as (server, pipe):
            wait_until(lambda: "coordinator" in kinds(store, refreshes))
            end_coordinator(store, refreshes, server, pipe)
        check_chain(store, refreshes)


@pytest.mark.medium
def test_a_pipeline_that_begins_without_its_coordinator(tmp_path: Path) -> None:
    with make_store(tmp_path / "store") as store:
        refreshes, location = make_chain(store, 2), fixed_location()
        add_orders(store, 0, 50)
        with open_worker(location, store) as worker, running(pipeline(store, refreshes, worker)):
            wait_until(lambda: all_caught_up(store, refreshes))
            with served(store, location):
                wait_until(lambda: kinds(store, refreshes) == {"coordinator"})
                add_orders(store, 100, 50)
                wait_until(lambda: all_caught_up(store, refreshes))
        check_chain(store, refreshes)


@pytest.mark.medium
def test_all_jobs_are_drained_at_one_epoch(tmp_path: Path) -> None:
    with make_store(tmp_path / "store") as store, served(store) as server, open_worker(server, store) as worker:
        refreshes = make_chain(store, 3)
        add_orders(store, 0, 50)
        pipe = pipeline(store, refreshes, worker)
        with running(pipe) as thread:
            wait_until(lambda: all_caught_up(store, refreshes))
            add_orders(store, 100, 50)
            last = store.last_epoch
            pipe.stop(drain=True)
            thread.join(WAIT_LIMIT_S)
            assert not thread.is_alive()
        assert set(states(pipe).values()) == {"finished"}
        assert {store.job(name).info.state for name in refreshes} == {"finished"}
        assert len({store.job(name).info.committed_epoch for name in refreshes}) == 1
        assert store.job("revenue").info.committed_epoch >= last
        check_chain(store, refreshes)


@pytest.mark.medium
def test_jobs_end_at_their_coordinator_and_the_others_go_on(tmp_path: Path) -> None:
    with make_store(tmp_path / "store") as store, served(store) as server, open_worker(server, store) as worker:
        refreshes = make_chain(store, 5)
        pipe = pipeline(store, refreshes, worker)
        with running(pipe):
            add_orders(store, 0, 50)
            wait_until(lambda: all_caught_up(store, refreshes))
            worker.stop(job="copy1")
            worker.stop(job="copy2", drain=True)
            store.drop_job("copy3")
            with open_worker(server, store) as other, running(pipeline_of_one(store, "copy4", other)) as thread:
                ended = {"copy1": "stopped", "copy2": "finished", "copy3": "dropped", "copy4": "fenced"}
                wait_until(lambda: {name: states(pipe)[name] for name in ended} == ended)
                rest = ["revenue", "copy0", "copy4", "again"]
                add_orders(store, 100, 50)
                wait_until(lambda: all_caught_up(store, rest))
                assert thread.is_alive()
            assert {states(pipe)[name] for name in ("revenue", "copy0", "again")} <= {"idle", "running"}
        check_chain(store, rest)


def pipeline_of_one(store: el.Store, name: str, coordinator: Any) -> el.Pipeline:
    """A pipeline that takes the job over."""
    return pipeline(store, {name: copy("revenue", name)}, coordinator, take_over=True)


@pytest.mark.slow
@pytest.mark.local_only
def test_a_second_pipeline_waits_for_the_end_of_the_first(tmp_path: Path) -> None:
    root = str(tmp_path / "store")
    with make_store(root) as store, served(store, times=settings(timeout_ms=1_500)) as server:
        refreshes = make_chain(store, 3)
        first = run("drive_pipeline", root, server.location)
        try:
            assert said(first) == "ready"
            add_orders(store, 0, 50)
            wait_until(lambda: all_caught_up(store, refreshes))
            with open_worker(server, store) as worker:
                second = pipeline(store, refreshes, worker)
                with running(second):
                    wait_until(lambda: set(states(second).values()) == {"waiting"})
                    add_orders(store, 100, 50)
                    wait_until(lambda: all_caught_up(store, refreshes))
                    end(first)
                    add_orders(store, 200, 50)
                    wait_until(lambda: all_caught_up(store, refreshes))
                    wait_until(lambda: set(states(second).values()) == {"idle"})
        finally:
            end(first)
        check_chain(store, refreshes)


@pytest.mark.parametrize("coordinator", [7, "no location"])
def test_a_bad_coordinator_is_refused(tmp_path: Path, coordinator: Any) -> None:
    with make_store(tmp_path / "store") as store, pytest.raises(el.InvalidInput):
        el.Pipeline(store, coordinator=coordinator)


def test_a_worker_of_another_store_and_a_wrong_token_are_refused(tmp_path: Path) -> None:
    with make_store(tmp_path / "store") as store, make_store(tmp_path / "other") as other, served(other) as server:
        with open_worker(server, other) as worker, pytest.raises(el.InvalidInput, match="another store"):
            el.Pipeline(store, coordinator=worker)
        pipe = pipeline(other, make_chain(other), server.location)  # a location has no token
        with pytest.raises(el.AccessDenied):
            pipe.run(until="idle")
        assert kinds(other, ["revenue"]) == {None}


@pytest.mark.slow
@pytest.mark.local_only
@pytest.mark.parametrize("rounds", [2, pytest.param(12, marks=pytest.mark.long)])
def test_pipelines_and_the_coordinator_are_killed_in_any_order(tmp_path: Path, rounds: int) -> None:
    """Two pipelines of the same jobs: what one of them leaves, the other goes on with."""
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance, root = random.Random(seed), str(tmp_path / "store")
    with make_store(root) as store:
        names = list(make_chain(store, 3))
        server = run("serve", root, fixed_location())
        location = said(server)
        pipes = [run("drive_pipeline", root, location) for _ in range(2)]
        assert [said(pipe) for pipe in pipes] == ["ready", "ready"]
        try:
            for turn in range(rounds):
                add_orders(store, 1000 * turn, 50)
                victim = chance.choice(("server", "pipeline", "both"))
                if victim != "pipeline":
                    end(server)
                if victim != "server":
                    number = chance.randrange(2)
                    end(pipes[number])
                    pipes[number] = run("drive_pipeline", root, location)
                add_orders(store, 1000 * turn + 500, 50)
                if chance.random() < 0.5:
                    wait_until(lambda: all_caught_up(store, names))
                if victim != "pipeline":
                    server = run("serve", root, location)
                    assert said(server) == location
                wait_until(lambda: all_caught_up(store, names))
                check_chain(store, names)
        finally:
            for child in (server, *pipes):
                end(child)


# ---- time --------------------------------------------------------------------------------------------------------


@pytest.mark.rule("5.37")
def test_a_forced_boundary_reaches_a_chain_of_jobs_at_once(tmp_path: Path) -> None:
    """Each job under a coordinator waited for a multiple of its interval: a view on a view was an interval later, and a
    forced boundary waited for up to an interval.
    """
    hour_ms = 3_600_000
    with make_store(tmp_path / "store", interval_ms=hour_ms) as store, served(store) as server:
        refreshes = make_chain(store, 2)
        with open_worker(server, store) as worker:
            worker.await_answer()
            with running(pipeline(store, refreshes, worker)) as thread:
                for turn in range(3):
                    add_orders(store, 100 * turn, 20)
                    boundary = store.checkpoint()
                    wait_until(lambda e=boundary: all(store.job(name).info.committed_epoch >= e for name in refreshes))
                wait_until(lambda: all(status.commits >= 3 for status in server.coordinator.status()))
                check_chain(store, refreshes)
                add_orders(store, 1000, 20)
                for name in refreshes:
                    store.job(name).stop(drain=True, timeout=None)
                thread.join()
                assert {info.state for info in store.jobs()} == {"finished"}
        check_chain(store, refreshes)
