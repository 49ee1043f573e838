"""Steps of a job as Spark shows them: in the progress of its query, to listeners, and in the UI."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQueryListener

import epochlog as el
from epochlog.checkpoint.job.refresh_adapter import CommittedStep
from epochlog.spark import job as spark_job
from epochlog.spark import job_query, job_source
from epochlog.spark.job_query import progress_metrics
from epochlog.spark.step_events import description
from logged_events import logged
from spark_store import Lake, rows
from wait_until import wait_until

pytestmark = pytest.mark.spark

UI = Path(__file__).with_name("ui_driver.py")
HINTS = Path(__file__).with_name("hint_driver.py")
SUPPORT = Path(__file__).parents[1] / "support"


class Heard(StreamingQueryListener):
    """Listener that keeps the metrics of the sources of each progress."""

    def __init__(self) -> None:
        self.metrics: list[dict[str, str]] = []
        self.names: set[str] = set()
        self._lock = threading.Lock()

    def onQueryStarted(self, event: Any) -> None:
        pass

    def onQueryProgress(self, event: Any) -> None:
        with self._lock:
            self.names.add(event.progress.name)
            self.metrics += [dict(source.metrics) for source in event.progress.sources]

    def onQueryIdle(self, event: Any) -> None:
        pass

    def onQueryTerminated(self, event: Any) -> None:
        pass

    def steps(self, job: str) -> list[dict[str, str]]:
        with self._lock:
            return [metrics for metrics in self.metrics if metrics.get("job") == job and metrics["steps"] != "0"]

    def failed(self, job: str) -> list[dict[str, str]]:
        with self._lock:
            return [metrics for metrics in self.metrics if metrics.get("job") == job and "error" in metrics]


class StillActive:
    """Queries that `wait_until` polls: one that has ended fails the test at once, with its error."""

    def __init__(self, *queries: Any) -> None:
        self._queries = queries

    def poll(self) -> None:
        for query in self._queries:
            assert query.isActive, query.exception()


def progress_of(query: Any) -> Any:
    return query.lastProgress


def test_a_listener_hears_of_each_view_with_its_rows_and_engine(lake: Lake) -> None:
    lake.orders.upsert(rows(0, 6))
    lake.store.checkpoint()
    days = lake.store.create_view("days", "SELECT day, sum(amount) AS total FROM orders GROUP BY day", ["day"])
    big = lake.store.create_view("big", "SELECT id, amount FROM orders WHERE amount > 2", ["id"])
    heard = Heard()
    lake.spark.streams.addListener(heard)
    queries = [view.start(lake.spark) for view in (days, big)]
    try:
        active = StillActive(*queries)
        wait_until(lambda: heard.steps("days") and heard.steps("big"), active)
        assert sum(int(step["rows"]) for step in heard.steps("days")) == 3
        assert sum(int(step["rows"]) for step in heard.steps("big")) == 3
        lake.orders.upsert(rows(6, 1))
        epoch = lake.orders.info.max_committed_epoch  # a boundary may have passed since: the view is at that one then
        lake.store.checkpoint()
        wait_until(lambda: days.info.committed_epoch >= epoch, active)
        wait_until(lambda: heard.steps("days")[-1]["epoch"] == str(days.info.committed_epoch), active)
        last = heard.steps("days")[-1]
        assert (last["engine"], last["rows"], last["steps"]) == ("spark", "1", "1")
        assert int(last["epoch"]) >= epoch
        assert int(last["refreshMs"]) >= 0
        (source,) = progress_of(queries[0])["sources"]
        assert source["metrics"]["job"] == "days"
        assert "epochlog job days" in source["description"]
    finally:
        for query in queries:
            query.stop()
        lake.spark.streams.removeListener(heard)


def test_a_micro_batch_without_a_step_does_not_repeat_the_last_one(lake: Lake) -> None:
    lake.orders.upsert(rows(0, 3))
    lake.store.checkpoint()
    view = lake.store.create_view("v", "SELECT id FROM orders", ["id"])
    query = view.start(lake.spark, trigger="200 milliseconds")
    try:
        wait_until(lambda: any(progress["sources"][0]["metrics"]["steps"] == "1" for progress in query.recentProgress))
        wait_until(lambda: progress_of(query)["sources"][0]["metrics"] == {"job": "v", "steps": "0"})
    finally:
        query.stop()


def test_a_refresh_that_fails_is_seen_until_a_step_commits(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each micro-batch says so, also one that only waits for the next try."""
    monkeypatch.setattr(job_query, "MAX_IDLE_S", 0.3)
    job = lake.store.create_job("bad", ["orders"], {"copy": (lake.orders.schema, ["id"])})
    lake.orders.upsert(rows(0, 3))
    lake.store.checkpoint()
    broken = threading.Event()
    broken.set()

    def refresh(ctx: Any) -> None:
        if broken.is_set():
            raise ValueError("no such rate =\n" + "x" * 2000)
        ctx.upsert("copy", ctx.changes("orders").select("id", "day", "amount"))

    heard = Heard()
    lake.spark.streams.addListener(heard)
    query = job.start(lake.spark, refresh)
    try:
        wait_until(lambda: sum(int(failed["failedSteps"]) for failed in heard.failed("bad")) >= 2)
        assert {failed["error"][:24] for failed in heard.failed("bad")} == {"ValueError: no such rate"}
        assert all(len(failed["error"]) <= 1000 for failed in heard.failed("bad"))
        wait_until(lambda: any(failed["failedSteps"] == "0" for failed in heard.failed("bad")))
        wait_until(lambda: "error" in progress_of(query)["sources"][0]["metrics"])
        broken.clear()
        wait_until(lambda: heard.steps("bad"))
        wait_until(lambda: progress_of(query)["sources"][0]["metrics"] == {"job": "bad", "steps": "0"})
    finally:
        query.stop()
        lake.spark.streams.removeListener(heard)
    assert sum(int(step["rows"]) for step in heard.steps("bad")) == 3


def test_a_query_whose_source_cannot_be_made_runs_without_metrics(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.orders.upsert(rows(0, 3))
    lake.store.checkpoint()
    view = lake.store.create_view("v", "SELECT id FROM orders", ["id"])
    monkeypatch.setattr(job_source, "NAME", "EpochlogJobOfATest")
    monkeypatch.setattr(job_source, "_SOURCE", "this is no Java")
    with pytest.warns(RuntimeWarning, match="the progress of the query of job v, .* has no metrics"):
        query = view.start(lake.spark)
    try:
        wait_until(lambda: view.info.committed_epoch > 0)
        wait_until(lambda: query.lastProgress is not None)
        assert not progress_of(query)["sources"][0]["metrics"]
    finally:
        query.stop()
    assert lake.store.table("v").count() == 3


def driven(driver: Path, lake: Lake) -> subprocess.CompletedProcess[str]:
    """Run a driver on the lake, and return its output."""
    done = subprocess.run(
        [sys.executable, driver, lake.root],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(SUPPORT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_a_step_gives_spark_no_hint_that_no_join_uses(lake: Lake) -> None:
    for name, query, key in (
        ("days", "SELECT day, sum(amount) AS total FROM orders GROUP BY day", "day"),
        ("most", "SELECT day, max(amount) AS most FROM orders GROUP BY day", "day"),
        ("plain", "SELECT id, amount FROM orders WHERE amount > 2", "id"),
        ("joined", "SELECT a.id, b.day FROM orders AS a JOIN orders AS b ON a.id = b.id", "id"),
    ):
        lake.store.create_view(name, query, [key])
    warned = [line for line in driven(HINTS, lake).stderr.splitlines() if "HintErrorLogger" in line]
    assert not warned, warned
    assert lake.store.table("joined").count() == 12


def spark_jobs(spark: SparkSession) -> list[str | None]:
    """Return the descriptions of all Spark jobs, as the UI has them, newest first."""
    context: Any = spark.sparkContext
    jobs = context._jsc.sc().statusStore().jobsList(None)
    described = [jobs.apply(place).description() for place in range(jobs.length())]
    return [each.get() if each.isDefined() else None for each in described]


def test_each_spark_job_of_a_step_names_its_view(lake: Lake) -> None:
    context, seen = lake.spark.sparkContext, len(spark_jobs(lake.spark))
    view = lake.store.create_view("days", "SELECT day, sum(amount) AS total FROM orders GROUP BY day", ["day"])

    def newest(run: Callable[[], object]) -> list[str]:
        nonlocal seen
        lake.orders.upsert(rows(seen, 6))
        lake.store.checkpoint()
        run()
        wait_until(lambda: len(spark_jobs(lake.spark)) > seen)
        jobs = spark_jobs(lake.spark)
        before, seen = seen, len(jobs)
        return [text or "" for text in jobs[: len(jobs) - before]]

    def start() -> None:
        query = view.start(lake.spark)
        query.processAllAvailable()
        query.stop()

    def run_pipeline() -> None:
        pipeline = el.Pipeline(lake.store, lake.spark)
        pipeline.add(view)
        pipeline.run(until="idle")

    context.setJobDescription("mine")
    try:
        assert set(newest(lambda: view.step(lake.spark))) == {"days"}
        assert context.getLocalProperty("spark.job.description") == "mine"
        assert all(text.startswith("days@") for text in newest(start))
        assert set(newest(run_pipeline)) == {"days"}
        lake.store.drop_view("days")
        with pytest.raises(el.JobNotFound):
            view.step(lake.spark)
        assert context.getLocalProperty("spark.job.description") == "mine"
    finally:
        context.setLocalProperty("spark.job.description", None)  # pyright: ignore[reportArgumentType]: None removes it


def test_the_ui_shows_each_step_with_its_rows_and_engine(lake: Lake) -> None:
    lake.orders.upsert(rows(0, 6))
    lake.store.checkpoint()
    lake.store.create_view("days", "SELECT day, sum(amount) AS total FROM orders GROUP BY day", ["day"])
    done = driven(UI, lake)
    shown = json.loads(done.stdout.splitlines()[-1])
    (step,) = [each for each in shown if each["description"].startswith("days: ")]
    epoch = lake.store.job("days").info.committed_epoch
    assert step["description"] == f"days: refresh to epoch {epoch}, 3 rows, engine spark"
    assert step["status"] == "COMPLETED"
    assert step["duration"] >= 0
    assert len({each["id"] for each in shown}) == len(shown)


def test_the_last_step_of_a_finished_job_is_reported(lake: Lake) -> None:
    lake.orders.upsert(rows(0, 3))
    lake.orders.finish()
    view = lake.store.create_view("v", "SELECT id FROM orders", ["id"])
    query = view.start(lake.spark)
    assert query.awaitTermination(600)
    reported = [progress["sources"][0]["metrics"] for progress in query.recentProgress]
    assert sum(int(metrics.get("rows", 0)) for metrics in reported) == 3


def test_available_now_takes_all_steps_also_after_the_time_of_a_micro_batch(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under available_now there is one micro-batch."""
    monkeypatch.setattr(job_query, "MAX_IDLE_S", 0.0)
    job = lake.store.create_job("copy", ["orders"], {"copy": (lake.orders.schema, ["id"])})
    lake.orders.upsert(rows(0, 3))
    lake.store.checkpoint()
    more = iter([rows(3, 2), rows(5, 1)])

    def refresh(ctx: Any) -> None:
        ctx.upsert("copy", ctx.changes("orders").select("id", "day", "amount"))
        for added in more:
            lake.orders.upsert(added)
            lake.store.checkpoint()
            return

    query = job.start(lake.spark, refresh, trigger="available_now")
    assert query.awaitTermination(600)
    assert lake.store.table("copy").count() == 6
    assert progress_of(query)["sources"][0]["metrics"]["steps"] == "3"


@pytest.mark.logs("step_not_shown")
def test_a_step_that_the_ui_cannot_show_has_committed_all_the_same(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lake.orders.upsert(rows(0, 3))
    lake.store.checkpoint()
    view = lake.store.create_view("v", "SELECT id FROM orders", ["id"])

    def fail(session: object, step: CommittedStep) -> None:
        raise Py4JError(f"Spark has no place for {step.rows} rows")

    monkeypatch.setattr(spark_job, "show_step", fail)
    epoch = view.step(lake.spark)
    (event,) = logged(caplog, "step_not_shown")
    assert "Spark has no place for 3 rows" in str(event["error"]) and event["epoch"] == epoch
    assert lake.store.table("v").count() == 3


def test_a_step_is_described_by_what_it_did() -> None:
    step = CommittedStep("v", 12, 3, "spark", "recompute", 40)
    assert description(step) == "v: recompute to epoch 12, 3 rows, engine spark"
    chunk = CommittedStep("v", 0, 3, "spark", "refresh", 40)
    assert description(chunk) == "v: refresh to a chunk of its backfill, 3 rows, engine spark"
    assert progress_metrics("v", []) == {"job": "v", "steps": "0"}
    assert progress_metrics("v", [chunk, step]) == {
        "job": "v",
        "steps": "2",
        "epoch": "12",
        "engine": "spark",
        "operation": "recompute",
        "rows": "6",
        "refreshMs": "80",
    }
    error = "ValueError: one\nline"
    assert progress_metrics("v", [], 2, error) == {
        "job": "v",
        "steps": "0",
        "failedSteps": "2",
        "error": "ValueError: one line",
    }
