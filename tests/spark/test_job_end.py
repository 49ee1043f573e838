"""Queries of jobs whose data ends: each ends by itself, without an error, and releases the job."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest

import epochlog as el
import wait_until as wait_until_module
from control_fixture import TOKEN, settings
from epochlog.spark.job_query import Loop
from ports import fixed_location
from spark_store import rows
from wait_until import wait_until

pytestmark = pytest.mark.spark


def copy(ctx) -> None:
    (name,) = ctx.plan.outputs
    ctx.upsert(name, ctx.changes("orders").select("id", "amount"))


@contextmanager
def coordinators(lake, driver: str) -> Iterator[dict[str, el.Worker]]:
    """Yield the arguments of `start` for a driver alone, or under a coordinator."""
    if driver == "alone":
        yield {}
        return
    with (
        el.serve(lake.store, fixed_location(), token=TOKEN, control=settings()) as server,
        el.Worker(server.location, lake.store, token=TOKEN) as worker,
    ):
        yield {"coordinator": worker}


def made(lake, kind: str) -> Any:
    if kind == "view":
        return lake.store.create_view(kind, "SELECT id, amount FROM orders", ["id"])
    schema = pa.schema([lake.orders.schema.field("id"), lake.orders.schema.field("amount")])
    return lake.store.create_job(kind, ["orders"], {kind: (schema, ["id"])})


@pytest.mark.medium
@pytest.mark.parametrize("driver", ["alone", "under a coordinator"])
def test_queries_end_with_the_data(lake, driver: str) -> None:
    """They stayed active for ever, and held the jobs: `awaitTermination` never returned, and a step got JobRunning."""
    with coordinators(lake, driver) as arguments:
        starts: dict[str, Any] = {}
        for kind, trigger in (("job", "continuous"), ("view", "continuous"), ("slow", "1 hour")):
            if trigger == "continuous" or driver == "alone":
                target = made(lake, kind)
                refresh = () if kind == "view" else (copy,)
                options = {**arguments, **({} if trigger == "continuous" else {"trigger": trigger})}
                starts[kind] = lambda start=target.start, refresh=refresh, options=options: start(
                    lake.spark, *refresh, **options
                )
        lake.orders.upsert(rows(0, 5))
        lake.store.checkpoint()
        queries = {kind: start() for kind, start in starts.items() if kind != "slow"}
        for query in queries.values():
            query.processAllAvailable()
        lake.orders.upsert(rows(5, 5))
        lake.orders.finish()
        lake.store.checkpoint()  # a step of "slow" ends the job: the next one is an hour away
        queries |= {kind: start() for kind, start in starts.items() if kind not in queries}
        ends(lake, queries)
        ends(lake, {kind: start() for kind, start in starts.items()})  # of jobs that have finished before
        assert lake.store.job("job").step(lake.spark, copy) is None


def ends(lake, queries: dict[str, Any]) -> None:
    """Assert that the queries end, in any order, and leave finished jobs behind that have no runner."""
    wait_until(lambda: not any(query.isActive for query in queries.values()))
    for kind, query in queries.items():
        query.awaitTermination()
        info = lake.store.table(kind).info
        assert query.exception() is None and info.state == "finished" and lake.store.table(kind).count() == 10
        wait_until(lambda kind=kind: runner_of(lake, kind) is None)
        query.stop()


def runner_of(lake, kind: str) -> Any:
    return {job.name: job.runner for job in lake.store.jobs()}[kind]


@pytest.mark.medium
@pytest.mark.planted
def test_a_query_that_outlives_the_data_is_found(lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Loop, "_has_finished", lambda loop: False)
    monkeypatch.setattr(wait_until_module, "WAIT_LIMIT_S", 0.5)
    view = made(lake, "view")
    lake.orders.upsert(rows(0, 10))
    lake.orders.finish()
    query = view.start(lake.spark)
    try:
        query.processAllAvailable()
        with pytest.raises(AssertionError, match="the condition is not true"):
            ends(lake, {"view": query})
    finally:
        query.stop()
