"""A pipeline on one Spark session: jobs really side by side, a failure stays with its job, and bounded data ends."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import sum as total_of

import epochlog as el
from spark_store import rows
from virtual_time import StandingTime

pytestmark = pytest.mark.spark

COPY = pa.schema([pa.field("id", pa.int64(), nullable=False), ("amount", pa.float64())])
TOTALS = pa.schema([("day", pa.string()), ("total", pa.float64())])
HOUR_MS = 3_600_000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[el.Store]:
    """With no boundaries but those that are forced: a run is the same however long a step takes."""
    with el.open(tmp_path / "store", checkpoint_interval_ms=HOUR_MS) as store:
        store.create_table("orders", rows(0, 1).schema, ["id"])
        yield store


def copy(source: str, output: str) -> Any:
    def refresh(ctx: Any) -> None:
        ctx.upsert(output, ctx.changes(source).select("id", "amount"))

    return refresh


def totals(ctx: Any) -> None:
    ctx.upsert("totals", ctx.table("orders").groupBy("day").agg(total_of("amount").alias("total")))


def by_duckdb(store: el.Store, table: str, sql: str) -> None:
    """At an aligned snapshot of everything the table equals its query."""
    with store.snapshot(consistency="aligned") as snapshot:
        rows = snapshot[table].to_arrow().to_pylist()
        assert [tuple(row.values()) for row in rows] == snapshot.duckdb().execute(sql).fetchall(), table


def three_jobs(store: el.Store, prefix: str, spark: SparkSession, troubled: bool) -> el.Pipeline:
    """Two copies, one on the other, and one of the orders that fails in a Spark task at each second try, or not."""
    tries = []

    def now_and_then(ctx: Any) -> None:
        tries.append(ctx.barrier)
        null = troubled and len(tries) % 2
        frame = ctx.changes("orders").select("id", "amount")
        ctx.upsert(f"{prefix}_c", frame.selectExpr("IF(id % 3 = 0, NULL, id) id", "amount") if null else frame)

    pipe = el.Pipeline(store, spark)
    for name, up, refresh in (
        ("a", "orders", copy("orders", f"{prefix}_a")),
        ("b", f"{prefix}_a", copy(f"{prefix}_a", f"{prefix}_b")),
        ("c", "orders", now_and_then),
    ):
        pipe.add(store.create_job(f"{prefix}_{name}", [up], {f"{prefix}_{name}": (COPY, ["id"])}), refresh)
    return pipe


def test_of_three_jobs_one_fails_at_each_second_try(store: el.Store, spark: SparkSession) -> None:
    """The others commit what they commit in a run where none fails, and the one that fails catches up each time."""
    committed: dict[str, list[list[int]]] = defaultdict(list)
    pipes = {"x": three_jobs(store, "x", spark, troubled=True), "y": three_jobs(store, "y", spark, troubled=False)}
    for part in range(2):
        store.table("orders").upsert(rows(part * 5, 10, amount=part + 1.0))
        for prefix, pipe in pipes.items():
            pipe.run(until="idle")
            views = [f"{prefix}_{name}" for name in "abc"]
            with store.snapshot(["orders", *views], consistency="aligned") as snapshot:
                wanted = snapshot["orders"].to_arrow(columns=["id", "amount"])
                assert all(snapshot[view].to_arrow().equals(wanted) for view in views)
    for prefix in pipes:
        for name in "abc":
            history = store.table(f"{prefix}_{name}").history().to_pylist()
            committed[name].append([row["rows_upserted"] for row in history])
    assert all(troubled == calm and len(calm) == 2 for troubled, calm in committed.values()), committed
    calm, (a, b, c) = pipes["y"].status(), pipes["x"].status()
    assert {(row.state, row.restarts, row.last_error) for row in (a, b, *calm)} == {("idle", 0, None)}
    assert (c.state, c.restarts) == ("idle", 2)
    assert "SchemaMismatch: job 'x_c': table x_c, primary-key column 'id'" in (c.last_error or "")


def test_jobs_run_side_by_side_in_spark(store: el.Store, spark: SparkSession, tmp_path: Path) -> None:
    """A Spark task of one job goes on only when a task of the other has run: one after the other they never end."""
    flag = tmp_path / "flag"

    def waits(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        pause = threading.Event()
        while not flag.exists():
            pause.wait(0.01)
        yield from batches

    def raises_the_flag(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        flag.touch()
        yield from batches

    def through(task: Any, output: str) -> Any:
        def refresh(ctx: Any) -> None:
            frame = ctx.table("orders").select("id", "amount").coalesce(1)
            ctx.upsert(output, frame.mapInArrow(task, frame.schema))

        return refresh

    pipe = el.Pipeline(store, spark)
    for name, task in (("first", waits), ("second", raises_the_flag)):
        pipe.add(store.create_job(name, ["orders"], {name: (COPY, ["id"])}), through(task, name))
    store.table("orders").upsert(rows(0, 10))
    pipe.run(until="idle")
    assert store.table("first").count() == store.table("second").count() == 10


def test_a_job_leaves_no_spark_properties_to_the_next_on_its_thread(store: el.Store, spark: SparkSession) -> None:
    names = ("spark.scheduler.pool", "spark.jobGroup.id", "spark.job.description", "spark.job.tags", "mine")
    seen: dict[str, dict[str, str | None]] = {}
    context = spark.sparkContext

    def leaves_properties(name: str) -> Any:
        def refresh(ctx: Any) -> None:
            seen[name] = {key: context.getLocalProperty(key) for key in names}
            context.setJobGroup(f"group of {name}", "a description", interruptOnCancel=True)
            context.addJobTag("tagged")
            context.setLocalProperty("mine", name)
            copy("orders", name)(ctx)

        return refresh

    pipe = el.Pipeline(store, spark, threads=1, pauses=StandingTime())  # so no step is long: all take one thread
    for name in ("p", "q", "r"):
        pipe.add(store.create_job(name, ["orders"], {name: (COPY, ["id"])}), leaves_properties(name))
    store.table("orders").upsert(rows(0, 10))
    pipe.run(until="idle")
    nothing = dict.fromkeys(names)
    own = ("spark.scheduler.pool", "spark.job.description")
    assert seen == {name: {**nothing, **dict.fromkeys(own, name)} for name in ("p", "q", "r")}


def test_a_bounded_source_ends_its_views(store: el.Store, spark: SparkSession, tmp_path: Path) -> None:
    """Files under AvailableNow into a root table through el.sink; the root's end is the views' end."""
    files = tmp_path / "files"
    files.mkdir()
    for part in range(2):
        pq.write_table(rows(part * 10, 10), files / f"{part}.parquet")
    stream = spark.readStream.schema("id long, day string, amount double").parquet(str(files))
    writer = stream.writeStream.foreachBatch(el.sink({"orders": None}, app_id="files", path=store.root))
    query = writer.option("checkpointLocation", str(tmp_path / "ck")).trigger(availableNow=True).start()
    query.awaitTermination()
    assert query.exception() is None
    pipe = el.Pipeline(store, spark)
    pipe.add(store.create_job("totals", ["orders"], {"totals": (TOTALS, ["day"])}), totals)
    pipe.add(store.create_job("copy", ["orders"], {"copy": (COPY, ["id"])}), copy("orders", "copy"))
    store.table("orders").finish()
    pipe.run(until="idle")
    assert {row.name: row.state for row in pipe.status()} == {"totals": "finished", "copy": "finished"}
    assert {info.state for info in store.tables()} == {"finished"}
    by_duckdb(store, "totals", "SELECT day, sum(amount) FROM orders GROUP BY day ORDER BY day")
    assert store.table("copy").count() == 20


@pytest.mark.parametrize("trigger", ["available_now", "continuous"])
def test_a_query_is_drained(store: el.Store, spark: SparkSession, trigger: str) -> None:
    """After its query has ended by itself, or while it is live: what came before is in, and nothing of what comes."""
    orders, job = store.table("orders"), store.create_job("totals", ["orders"], {"totals": (TOTALS, ["day"])})
    orders.upsert(rows(0, 10))
    store.checkpoint()
    query = job.start(spark, totals, trigger=trigger)
    if trigger == "available_now":
        query.awaitTermination()
    last = orders.upsert(rows(5, 10, amount=2.0))
    job.stop(drain=True)
    assert not query.isActive and query.exception() is None
    assert (job.info.state, store.table("totals").info.state) == ("finished", "finished")
    assert job.info.committed_epoch >= last
    by_duckdb(store, "totals", "SELECT day, sum(amount) FROM orders GROUP BY day ORDER BY day")
    orders.upsert(rows(0, 30, amount=9.0))
    store.checkpoint()
    assert job.step(spark, totals) is None
    assert job.info.committed_epoch == store.table("totals").info.max_committed_epoch
    job.start(spark, totals, trigger="available_now").awaitTermination()  # has nothing to do
    assert store.table("totals").history().num_rows <= 2


def test_what_is_no_classic_session_is_refused_at_once(store: el.Store) -> None:
    with pytest.raises(el.InvalidInput, match="Pipeline: spark must be a classic SparkSession, not 'local'"):
        el.Pipeline(store, "local")
