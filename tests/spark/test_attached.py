"""Queries of jobs under a coordinator: it decides and commits, the driver refreshes."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import epochlog as el
from attached_fixture import REVENUE, add_orders, caught_up, check, make_store
from control_fixture import TOKEN, settings
from ports import fixed_location
from spark_store import rows
from wait_until import wait_until

pytestmark = pytest.mark.spark
HERE = Path(__file__).parent


def copy(ctx) -> None:
    ctx.upsert("copy", ctx.changes("orders").select("id", "amount"))


def made(lake) -> el.Job:
    schema = pa.schema([lake.orders.schema.field("id"), lake.orders.schema.field("amount")])
    return lake.store.create_job("copy", ["orders"], {"copy": (schema, ["id"])})


@contextmanager
def served(store: el.Store, location: str | None = None) -> Iterator[el.StoreServer]:
    with el.serve(store, location or fixed_location(), token=TOKEN, control=settings()) as server:
        yield server


def runner_kind(job: el.Job) -> str | None:
    runner = job.info.runner
    return None if runner is None else runner.kind


def copied(lake) -> int:
    return lake.store.table("copy").count()


def test_the_coordinator_decides_and_the_driver_goes_on_alone_without_it(lake) -> None:
    job = made(lake)
    lake.orders.upsert(rows(0, 5))
    with served(lake.store) as server, el.Worker(server.location, lake.store, token=TOKEN) as worker:
        query = job.start(lake.spark, copy, coordinator=worker)
        try:
            lake.store.checkpoint()
            query.processAllAvailable()
            assert copied(lake) == 5 and runner_kind(job) == "coordinator"
            wait_until(lambda: any(status.commits for status in server.coordinator.status()))
            server.shutdown()
            lake.orders.upsert(rows(5, 5))
            lake.store.checkpoint()
            wait_until(lambda: copied(lake) == 10)
            assert runner_kind(job) == "query"
            with served(lake.store, server.location):
                wait_until(lambda: runner_kind(job) == "coordinator")
                lake.orders.upsert(rows(10, 5))
                lake.store.checkpoint()
                query.processAllAvailable()
                assert copied(lake) == 15
                with pytest.raises(el.JobRunning):
                    job.start(lake.spark, copy, coordinator=worker)
                again = job.start(lake.spark, copy, coordinator=worker, take_over=True)
                wait_until(lambda: not query.isActive)
                assert "Fenced" in str(query.exception())
                lake.orders.upsert(rows(15, 5))
                job.stop(drain=True)
                assert copied(lake) == 20 and not again.isActive
        finally:
            query.stop()


def test_a_query_is_stopped_at_its_coordinator(lake) -> None:
    job = made(lake)
    with served(lake.store) as server, el.Worker(server.location, lake.store, token=TOKEN) as worker:
        query = job.start(lake.spark, copy, coordinator=worker)
        wait_until(lambda: runner_kind(job) == "coordinator")
        worker.stop(job="copy")
        with pytest.raises(Exception, match="Cancelled"):
            query.awaitTermination()
        assert not query.isActive


def test_a_query_is_drained_under_its_coordinator(lake) -> None:
    job = made(lake)
    lake.orders.upsert(rows(0, 5))
    with served(lake.store) as server, el.Worker(server.location, lake.store, token=TOKEN) as worker:
        query = job.start(lake.spark, copy, coordinator=worker)
        job.stop(drain=True)
        assert job.info.state == "finished" and copied(lake) == 5 and not query.isActive


def test_a_refresh_drains_its_own_job_under_the_coordinator(lake) -> None:
    """Return from the call at once: it would wait for the barrier of the refresh that makes it."""
    job = made(lake)
    lake.orders.upsert(rows(0, 5))
    returned: list[str] = []

    def copy_and_end(ctx) -> None:
        copy(ctx)
        job.stop(drain=True, timeout=None)
        returned.append(job.info.state)

    with served(lake.store) as server, el.Worker(server.location, lake.store, token=TOKEN) as worker:
        query = job.start(lake.spark, copy_and_end, coordinator=worker)
        lake.store.checkpoint()
        wait_until(lambda: job.info.state == "finished")
        query.stop()
        assert copied(lake) == 5 and query.exception() is None and returned[0] != "finished"


def test_a_pipeline_is_run_by_the_coordinator(lake) -> None:
    schema = lake.store.table("orders").schema
    made(lake)
    lake.store.create_job(
        "again", ["copy"], {"again": (pa.schema([schema.field("id"), schema.field("amount")]), ["id"])}
    )

    def copy_again(ctx) -> None:
        ctx.upsert("again", ctx.changes("copy").select("id", "amount"))

    lake.orders.upsert(rows(0, 5))
    with served(lake.store) as server, el.Worker(server.location, lake.store, token=TOKEN) as worker:
        pipe = el.Pipeline(lake.store, lake.spark, coordinator=worker)
        pipe.add(lake.store.job("copy"), copy)
        pipe.add(lake.store.job("again"), copy_again)
        pipe.run(until="idle")
        assert lake.store.table("again").count() == copied(lake) == 5
        assert sorted(status.job for status in server.coordinator.status()) == ["job:again", "job:copy"]
        assert all(status.commits for status in server.coordinator.status())
        lake.orders.upsert(rows(5, 10))
        pipe.stop(drain=True)
        pipe.run()
        assert {row.state for row in pipe.status()} == {"finished"}
        assert lake.store.table("again").count() == copied(lake) == 15


def test_bad_arguments_are_refused(lake) -> None:
    job = made(lake)
    with served(lake.store) as server:
        with pytest.raises(el.InvalidInput, match="a coordinator decides the barriers"):
            job.start(lake.spark, copy, timedelta(minutes=1), coordinator=server.location)
        with pytest.raises(el.InvalidInput, match="grpc://host:port"):
            job.start(lake.spark, copy, coordinator=server)  # pyright: ignore[reportArgumentType]
        with pytest.raises(el.AccessDenied):
            job.start(lake.spark, copy, coordinator=server.location)
        assert job.info.runner is None
        job.start(lake.spark, copy).stop()  # the job is free


def run(script: Path, *arguments: str) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(HERE.parent / "support"), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, str(script), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        start_new_session=True,
    )


def said(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def kill(child: subprocess.Popen[str], *pids: int) -> None:
    child.kill()
    for pid in pids:
        os.kill(pid, 9)
    child.communicate()


@pytest.mark.long
@pytest.mark.local_only
def test_drivers_and_the_coordinator_are_killed_in_any_order(tmp_path: Path) -> None:
    """Check with real Spark drivers that nothing is lost or lands twice, and that the job goes on after each death."""
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance, root = random.Random(seed), str(tmp_path / "store")
    coordinator = HERE.parent / "support" / "attached_fixture.py"
    with make_store(root) as store:
        server = run(coordinator, "serve", root, fixed_location())
        location = said(server)
        drivers: list[Any] = [start_driver(root, location) for _ in range(2)]
        try:
            for turn, victim in enumerate(chance.sample(["server", "driver", "both"] * 2, 6)):
                add_orders(store, 1000 * turn, 50)
                number = chance.randrange(2)
                if chance.random() < 0.5:
                    wait_until(lambda: caught_up(store))
                if victim != "driver":
                    kill(server)
                if victim != "server":
                    kill(*drivers[number])
                add_orders(store, 1000 * turn + 500, 50)
                if chance.random() < 0.5:
                    wait_until(lambda: caught_up(store))
                if victim != "driver":
                    server = run(coordinator, "serve", root, location)
                    assert said(server) == location
                wait_until(lambda: caught_up(store))
                if victim != "server":
                    drivers[number] = start_driver(root, location)
                check(store)
        finally:
            kill(server)
            for driver in drivers:
                kill(*driver)


@pytest.mark.long
@pytest.mark.local_only
def test_two_jobs_with_a_driver_each_survive_any_deaths(tmp_path: Path) -> None:
    """Kill the Spark driver of a job, the coordinator of both, or all three. The other job's barriers go on meanwhile,
    nothing is lost or lands twice, and both go on afterwards.
    """
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance, root, jobs = random.Random(seed), str(tmp_path / "store"), ["revenue", "sales"]
    coordinator = HERE.parent / "support" / "attached_fixture.py"
    first, second = chance.sample(jobs, 2)
    victims = chance.sample([["server", first], [second], ["server", *jobs]], 3)
    with make_store(root) as store:
        store.create_job("sales", ["orders"], {"sales": (REVENUE, ["day"])})
        server = run(coordinator, "serve", root, fixed_location())
        location = said(server)
        drivers = {name: start_driver(root, location, name) for name in jobs}
        try:
            for turn, killed in enumerate(victims):
                add_orders(store, 1000 * turn, 50)
                if chance.random() < 0.5:
                    wait_until(lambda: all(caught_up(store, name) for name in jobs))
                for victim in chance.sample(killed, len(killed)):
                    kill(server) if victim == "server" else kill(*drivers[victim])
                add_orders(store, 1000 * turn + 500, 50)
                alive = [name for name in jobs if name not in killed]
                wait_until(lambda alive=alive: all(caught_up(store, name) for name in alive))
                newest = store.table("orders").info.max_committed_epoch
                assert all(store.job(name).info.committed_epoch < newest for name in jobs if name in killed)
                for victim in chance.sample(killed, len(killed)):
                    if victim == "server":
                        server = run(coordinator, "serve", root, location)
                        assert said(server) == location
                    else:
                        drivers[victim] = start_driver(root, location, victim)
                wait_until(lambda: all(caught_up(store, name) for name in jobs))
                for name in jobs:
                    check(store, name)
            assert store.verify().ok
        finally:
            kill(server)
            for driver in drivers.values():
                kill(*driver)


def start_driver(root: str, location: str, job: str = "revenue") -> tuple[subprocess.Popen[str], int]:
    child = run(HERE / "attached_driver.py", root, location, job)
    return child, int(said(child).removeprefix("ready "))
