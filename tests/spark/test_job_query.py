"""The query of a job: what it costs, when it steps, and how it waits for another runner."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

import epochlog as el
from epochlog.spark import job_query
from epochlog.spark.job_query import parse_trigger, span_ms
from epochlog.store.catalog.keys import job_key, lease_key
from epochlog.store.env.clock import monotonic_s
from epochlog.store.metadata.definitions import Runner
from epochlog.store.metadata.lookups import get_job
from logged_events import logged
from spark_store import rows
from wait_until import wait_until

pytestmark = pytest.mark.spark


def copy(ctx) -> None:
    name = next(iter(ctx.plan.outputs))
    ctx.upsert(name, ctx.table("orders").select("id", "amount"))


def made(lake, name: str = "copy") -> el.Job:
    schema = pa.schema([lake.orders.schema.field("id"), lake.orders.schema.field("amount")])
    return lake.store.create_job(name, ["orders"], {f"{name}_out": (schema, ["id"])})


def python_processes() -> int:
    """Python processes below this one: Spark's workers and readers."""
    parents, names = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                name, _, rest = (entry / "stat").read_text().partition("(")[2].rpartition(")")
            except OSError:
                continue
            parents[int(entry.name)], names[int(entry.name)] = int(rest.split()[1]), name
    pids = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in pids} - pids:
        pids |= more
    return sum("python" in names[pid] for pid in pids if pid in names)


def test_queries_cost_no_process(lake) -> None:
    lake.orders.upsert(rows(0, 5))
    jobs = [made(lake, f"j{number}") for number in range(3)]
    first = jobs[0].start(lake.spark, copy)
    queries = [first]
    try:
        first.processAllAvailable()
        wait_until(lambda: jobs[0].info.committed_epoch > 0)
        before = python_processes()
        queries += [job.start(lake.spark, lambda ctx: None) for job in jobs[1:]]
        for job in jobs[1:]:
            wait_until(lambda job=job: job.info.committed_epoch > 0)
        assert python_processes() <= before
        assert [job.info.runner.kind for job in jobs if job.info.runner] == ["query"] * 3
    finally:
        for query in queries:
            query.stop()
    assert [job.info.runner for job in jobs] == [None] * 3


def test_a_query_by_time_commits_one_barrier_each_time(lake) -> None:
    job = made(lake)
    lake.orders.upsert(rows(0, 5))
    lake.store.checkpoint()
    query = job.start(lake.spark, copy, trigger=timedelta(hours=1))
    try:
        wait_until(lambda: query.lastProgress is not None)
        position = job.info.committed_epoch
        assert position > 0
        lake.orders.upsert(rows(9, 1))
        lake.store.checkpoint()
        assert query.isActive and job.info.committed_epoch == position
    finally:
        query.stop()
    assert job.step(lake.spark, copy) is not None


@pytest.mark.rule("5.3")
def test_a_query_waits_for_a_runner_elsewhere_and_goes_on(lake, caplog) -> None:
    caplog.set_level("INFO", "epochlog")
    job, handle = made(lake), lake.store._handle
    lake.orders.upsert(rows(0, 5))

    def theirs(tx, runner: Runner | None) -> None:
        tx.put(job_key(1), replace(get_job(tx, 1, "copy"), incarnation=1, runner=runner).to_record())
        tx.put(lease_key("theirs"), {"expires_ms": handle.catalog.now_ms() + 3_600_000})

    runner = Runner("query:theirs", "theirs", "far/1 2 3", "far", 2, handle.catalog.now_ms(), "query")
    handle.catalog.transact(lambda tx: theirs(tx, runner))
    query = job.start(lake.spark, copy)
    try:
        wait_until(lambda: query.status["isTriggerActive"])
        assert query.isActive and job.info.committed_epoch == 0 and job.info.last_error is None
        handle.catalog.transact(lambda tx: theirs(tx, None))
        wait_until(lambda: job.info.committed_epoch > 0)
    finally:
        query.stop()
    (wait,) = logged(caplog, "runner_waits")
    assert wait["job"] == "copy" and "a query of process 2 on far" in wait["reason"]


# ---- starting and stopping -------------------------------------------------------------------------------------------


def failing(times: int, monkeypatch: pytest.MonkeyPatch, noted: Callable[[], str | None]) -> list[str | None]:
    """Spark refuses to start a query so many times; the list has what was noted on the job before each try."""
    started, seen = job_query._start_query, []

    def refused(*args):
        seen.append(noted())
        if len(seen) <= times:
            raise ConnectionError(f"no answer {len(seen)}")
        return started(*args)

    monkeypatch.setattr(job_query, "_start_query", refused)
    return seen


def test_a_start_that_fails_is_noted_and_tried_again(lake, monkeypatch) -> None:
    job = made(lake)
    lake.orders.upsert(rows(0, 5))
    seen = failing(2, monkeypatch, lambda: job.info.last_error)
    query = job.start(lake.spark, copy)
    try:
        assert seen == [None, "ConnectionError: no answer 1", "ConnectionError: no answer 2"]
        wait_until(lambda: job.info.committed_epoch > 0)
        assert job.info.last_error is None
    finally:
        query.stop()


def test_a_start_that_fails_each_time_lets_go_of_the_job(lake, monkeypatch) -> None:
    job = made(lake)
    lake.orders.upsert(rows(0, 5))
    seen = failing(3, monkeypatch, lambda: job.info.last_error)
    with pytest.raises(ConnectionError, match="no answer 3"):
        job.start(lake.spark, copy)
    assert len(seen) == 3 and job.info.last_error == "ConnectionError: no answer 3" and job.info.runner is None
    lake.store.checkpoint()
    assert lake.store.job("copy").step(lake.spark, copy)


def test_a_query_takes_over_while_the_one_before_is_at_work(lake) -> None:
    job, began, go = made(lake), threading.Event(), threading.Event()
    lake.orders.upsert(rows(0, 5))

    def slow(ctx) -> None:
        began.set()
        go.wait()
        copy(ctx)

    before = job.start(lake.spark, slow)
    try:
        began.wait()
        after = lake.store.job("copy").start(lake.spark, copy, take_over=True)
        wait_until(lambda: job.info.committed_epoch > 0)
        go.set()
        wait_until(lambda: not before.isActive)
        assert "Fenced" in str(before.exception()) and after.isActive
        assert after.name != before.name
        after.stop()
    finally:
        go.set()
        before.stop()


@pytest.mark.parametrize("how", ["the query", "the job"])
def test_a_query_is_stopped_after_the_barrier_at_hand(lake, how: str) -> None:
    job, began, go = made(lake), threading.Event(), threading.Event()
    lake.orders.upsert(rows(0, 5))

    def slow(ctx) -> None:
        began.set()
        go.wait()
        copy(ctx)

    query = job.start(lake.spark, slow)
    began.wait()
    stopping = threading.Thread(target=query.stop if how == "the query" else job.stop)
    stopping.start()
    stopping.join(0.3)
    assert stopping.is_alive() and job.info.runner is not None
    go.set()
    stopping.join()
    assert not query.isActive and query.exception() is None
    info = job.info
    assert info.committed_epoch > 0 and info.state == "running" and info.last_error is None and info.runner is None


def test_what_is_no_function_or_session_is_refused_at_once(lake) -> None:
    job = made(lake)
    lake.orders.upsert(rows(0, 5))
    lake.store.checkpoint()
    for run in (job.start, job.step):
        with pytest.raises(el.InvalidInput, match="job 'copy': refresh is a function of one argument, not None"):
            run(lake.spark, None)
        with pytest.raises(el.InvalidInput, match="job 'copy': spark must be a classic SparkSession"):
            run(None, copy)
    assert job.info.incarnation == 0 and job.info.last_error is None


@pytest.mark.parametrize(
    ("given", "ms"),
    [
        ("5 minutes", 300_000),
        ("100 milliseconds", 100),
        (timedelta(seconds=2), 2_000),
        ("1 h", 3_600_000),
        ("5 Minutes", 300_000),
        ("1 minute 30 seconds", 90_000),
        ("INTERVAL 1 hour 2 MIN  3 s", 3_723_000),
        ("1 second 250 ms", 1_250),
    ],
)
def test_times_are_told_in_whole_milliseconds(given, ms: int) -> None:
    assert span_ms("trigger", given) == parse_trigger(given).every_ms == ms


NONSENSE = ["1 minute 30", "minute", "interval", "1 minute -30 seconds", "1 month", "1 s, 2 ms", "9" * 5_000 + " s"]
NONSENSE += ["1 minutes30 seconds", "\u0665 minutes", "0 s 0 ms", "5 \u017f", "999999999 days"]


@pytest.mark.parametrize(
    "given", ["often", "", "0 seconds", timedelta(0), timedelta.max, "5", 5, None, "-1 s", *NONSENSE]
)
def test_other_triggers_are_refused(given) -> None:
    with pytest.raises(el.InvalidInput, match="'continuous' or 'available_now'"):
        parse_trigger(given)


def test_the_progress_has_the_cost_of_the_refreshes(lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A micro-batch waits for work up to ten seconds, and Spark counts the wait as its time."""
    monkeypatch.setattr(job_query, "MAX_IDLE_S", 0.1)
    job = made(lake)
    lake.orders.upsert(rows(0, 5))
    lake.store.checkpoint()
    steps: list[float] = []

    def timed(ctx) -> None:
        began_s = monotonic_s()
        copy(ctx)
        steps.append(monotonic_s() - began_s)

    query = job.start(lake.spark, timed)
    try:
        query.processAllAvailable()
        wait_until(lambda: query.lastProgress is not None)
        costs = [progress.durationMs["refresh"] for progress in query.recentProgress]
        assert costs[0] >= sum(steps) * 1000 - 1
        assert costs[0] <= query.recentProgress[0].durationMs["addBatch"] + 1
        wait_until(lambda: len(query.recentProgress) > 1)  # a micro-batch that found no work
        idle = query.recentProgress[1]
        assert (idle["durationMs"]["refresh"], json.loads(idle.json)["durationMs"]["refresh"]) == (0, 0)
    finally:
        query.stop()
    assert len(steps) == 1
