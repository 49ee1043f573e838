"""Jobs on Spark: step and start commit at barriers what a refresh gave, once, with typed errors and one live runner."""

from __future__ import annotations

import re
import threading

import pyarrow as pa
import pytest
from pyspark.sql.functions import count
from pyspark.sql.functions import sum as total_of

import epochlog as el
from spark_store import rows
from wait_until import wait_until

pytestmark = pytest.mark.spark

DAYS = pa.schema([("day", pa.string()), ("n", pa.int64()), ("total", pa.float64())])


def refresh(ctx) -> None:
    """Recomputes the days that changed rows belonged to, before and after."""
    touched = ctx.changes("orders", pre_images=True).select("day").distinct()
    now = ctx.table("orders").join(touched, "day", "left_semi").groupBy("day")
    ctx.upsert("days", now.agg(count("*").alias("n"), total_of("amount").alias("total")))
    ctx.delete("days", touched.join(ctx.table("orders"), "day", "left_anti"))


@pytest.fixture
def job(lake):
    return lake.store.create_job("days", ["orders"], {"days": (DAYS, ["day"])})


def law(lake) -> None:
    """At an aligned snapshot the view equals its query over its upstream, row for row."""
    with lake.store.snapshot(["orders", "days"], consistency="aligned") as snapshot:
        sql = "SELECT day, count(*) n, sum(amount) total FROM orders GROUP BY day ORDER BY day"
        wanted = snapshot.duckdb().execute(sql).fetchall()
        days = snapshot["days"].to_arrow().to_pydict()
        assert list(zip(days["day"], days["n"], days["total"], strict=True)) == wanted


def wait_until_committed(lake, job, epoch: int) -> None:
    """Until the job has committed at or past `epoch`; an error of the job ends the wait at once."""
    pause = threading.Event()
    while job.info.committed_epoch < epoch:
        assert job.info.last_error is None, job.info.last_error
        pause.wait(0.02)


def test_steps_follow_the_upstream(lake, job) -> None:
    lake.orders.upsert(rows(0, 30))
    lake.store.checkpoint()
    assert job.step(lake.spark, refresh) is not None
    law(lake)
    assert job.step(lake.spark, refresh) is None
    lake.orders.upsert(rows(10, 30, amount=2.0))
    last = lake.orders.delete(pa.table({"id": list(range(0, 40, 3))}))  # the whole of d0
    lake.store.checkpoint()  # which the job passes over if the store has sealed one since by itself
    while job.step(lake.spark, refresh) is not None:  # a boundary may lie between the two commits
        law(lake)
    assert job.info.committed_epoch >= last
    assert lake.store.table("days").to_arrow()["day"].to_pylist() == ["d1", "d2"]
    assert job.info.state == "running"


def test_the_context_shows_both_ends_of_the_barrier(lake, job) -> None:
    lake.orders.upsert(rows(0, 3))
    lake.store.checkpoint()
    job.step(lake.spark, refresh)
    lake.orders.upsert(rows(2, 2, amount=4.0))
    lake.store.checkpoint()
    seen = {}

    def look(ctx) -> None:
        seen["barrier"] = ctx.barrier
        seen["previous"] = sorted(row.id for row in ctx.previous("orders").collect())
        seen["table"] = sorted(row.id for row in ctx.table("orders").collect())
        seen["output"] = sorted(row.day for row in ctx.output("days").collect())
        seen["net"] = sorted((row.id, row._change_type) for row in ctx.changes("orders", pre_images=True).collect())
        seen["cheap"] = sorted((row.id, row._change_type) for row in ctx.changes("orders").collect())
        seen["columns"] = ctx.table("orders", columns=["id"]).columns

    job.step(lake.spark, look)
    assert seen.pop("barrier").kind == "checkpoint"
    assert seen == {
        "previous": [0, 1, 2],
        "table": [0, 1, 2, 3],
        "output": ["d0", "d1", "d2"],
        "net": [(2, "update_postimage"), (2, "update_preimage"), (3, "insert")],
        "cheap": [(2, "upsert"), (3, "upsert")],
        "columns": ["id"],
    }


def test_the_first_step_of_a_backfill_sees_inserts(lake, job) -> None:
    lake.orders.upsert(rows(0, 3))
    lake.orders.upsert(rows(1, 3, amount=2.0))
    lake.store.checkpoint()
    seen = []

    def look(ctx) -> None:
        seen.append((ctx.barrier.prev, ctx.barrier.kind, ctx.previous("orders").count(), ctx.output("days").count()))
        seen.append(sorted((row.id, row.amount, row._change_type) for row in ctx.changes("orders").collect()))

    job.step(lake.spark, look)
    assert seen == [
        (0, "initial", 0, 0),
        [(0, 0.0, "insert"), (1, 2.0, "insert"), (2, 4.0, "insert"), (3, 6.0, "insert")],
    ]


def test_what_is_written_again_is_left_out(lake) -> None:
    """The tasks write whole days; what differs is decided when they are committed, over all of their segments."""
    output = el.Output(DAYS, ["day"], changelog="full")
    job = lake.store.create_job("days", ["orders"], {"days": output})

    def whole(ctx) -> None:
        days = ctx.table("orders").groupBy("day").agg(count("*").alias("n"), total_of("amount").alias("total"))
        ctx.upsert("days", days.selectExpr("day", "0L AS n", "total").repartition(3))
        ctx.upsert("days", days.repartition(3))

    lake.orders.upsert(rows(0, 30))
    lake.store.checkpoint()
    first = job.step(lake.spark, whole)
    lake.orders.upsert(rows(3, 1, amount=7.0))  # of one day
    lake.store.checkpoint()
    assert job.step(lake.spark, whole)
    law(lake)
    days = lake.store.table("days")
    changed = days.changes(first, pre_images=True).read_all().to_pydict()
    assert changed["day"] == ["d0", "d0"] and changed["_change_type"] == ["update_preimage", "update_postimage"]
    lake.orders.upsert(rows(3, 1, amount=7.0))
    lake.store.checkpoint()
    last = job.step(lake.spark, whole)
    assert last and days.changes(last - 1).read_all().num_rows == 0
    report = lake.store.verify()
    assert report.ok and not report.unreachable


@pytest.mark.rule("1.8")
def test_later_calls_win_within_a_barrier(lake, job) -> None:
    lake.orders.upsert(rows(0, 3))
    lake.store.checkpoint()

    def write(ctx) -> None:
        ctx.upsert("days", ctx.spark.sql("SELECT 'a' day, 1L n, 1D total UNION ALL SELECT 'b', 1L, 1D"))
        ctx.delete("days", ctx.spark.sql("SELECT 'a' day UNION ALL SELECT 'never'"))
        ctx.upsert("days", ctx.spark.sql("SELECT 'b' day, 2L n, 2D total"))

    job.step(lake.spark, write)
    assert lake.store.table("days").to_arrow().to_pylist() == [{"day": "b", "n": 2, "total": 2.0}]


def test_large_outputs_are_written_by_the_tasks(lake, job) -> None:
    lake.orders.upsert(rows(0, 3))
    lake.store.checkpoint()
    job.step(
        lake.spark,
        lambda ctx: ctx.upsert("days", ctx.spark.range(300_000).selectExpr("'k' || id day", "id n", "0D total")),
    )
    days = lake.store.table("days")
    assert days.count() == 300_000
    assert days.info.log_segments > 1
    assert lake.store.verify().ok


def test_step_raises_typed_errors_and_commits_nothing(lake, job) -> None:
    lake.orders.upsert(rows(0, 3))
    lake.store.checkpoint()

    def unknown_column(ctx) -> None:
        ctx.upsert("days", ctx.table("orders"))

    def null_key_in_a_task(ctx) -> None:
        ctx.upsert("days", ctx.table("orders").selectExpr("IF(id = 2, NULL, day) day", "1L n", "amount total"))

    def own_error(ctx) -> None:
        ctx.upsert("days", ctx.spark.sql("SELECT 'a' day, 1L n, 1D total"))
        raise ZeroDivisionError("mine")

    with pytest.raises(el.SchemaMismatch, match="table days: unknown column 'id'"):
        job.step(lake.spark, unknown_column)
    with pytest.raises(el.SchemaMismatch, match="table days, primary-key column 'day'"):
        job.step(lake.spark, null_key_in_a_task)
    assert job.info.state == "failed"
    pattern = (
        r"SchemaMismatch: job 'days': table days, primary-key column 'day': 1 of its values are null, .* in row \d"
    )
    assert re.search(pattern, job.info.last_error or ""), job.info.last_error
    with pytest.raises(ZeroDivisionError, match="mine"):
        job.step(lake.spark, own_error)
    with pytest.raises(el.InvalidInput, match="has no upstream 'other'"):
        job.step(lake.spark, lambda ctx: ctx.table("other"))
    assert lake.store.table("days").history().num_rows == 0
    job.step(lake.spark, refresh)
    assert job.info.last_error is None
    law(lake)


def test_a_fenced_runner_steps_no_more(lake, job) -> None:
    lake.orders.upsert(rows(0, 3))
    lake.store.checkpoint()
    job.step(lake.spark, refresh)
    lake.orders.upsert(rows(3, 3))
    lake.store.checkpoint()
    lake.store.job("days").step(lake.spark, refresh)
    lake.orders.upsert(rows(6, 3))
    lake.store.checkpoint()
    with pytest.raises(el.Fenced):
        job.step(lake.spark, refresh)


def test_start_runs_until_everything_is_committed(lake, job) -> None:
    lake.orders.upsert(rows(0, 30))
    boundary = lake.store.checkpoint()
    query = job.start(lake.spark, refresh, trigger="available_now")
    query.awaitTermination()
    assert query.exception() is None
    assert job.info.committed_epoch >= boundary
    law(lake)


def test_start_follows_commits_and_refuses_a_second_runner(lake, job) -> None:
    query = job.start(lake.spark, refresh)
    try:
        for part in range(4):
            wait_until_committed(lake, job, lake.orders.upsert(rows(part * 5, 10)))
            law(lake)
        with pytest.raises(el.JobRunning, match="already in this process, by a query of process"):
            job.start(lake.spark, refresh)
        with pytest.raises(el.JobRunning):
            lake.store.job("days").start(lake.spark, refresh)
        with pytest.raises(el.JobRunning, match="a query of process"):
            job.step(lake.spark, refresh)
        assert query.isActive
        wait_until_committed(lake, job, lake.orders.upsert(rows(50, 1)))
    finally:
        query.stop()
    again = lake.store.job("days").start(lake.spark, refresh, trigger="available_now")
    again.awaitTermination()
    assert again.exception() is None


def test_a_failing_barrier_stands_as_last_error_and_is_tried_again(lake, job) -> None:
    lake.orders.upsert(rows(0, 3))
    lake.store.checkpoint()
    good, failures = threading.Event(), []

    def often_wrong(ctx) -> None:
        if good.is_set():
            return refresh(ctx)
        failures.append(1)
        return ctx.upsert("days", ctx.table("orders"))

    query = job.start(lake.spark, often_wrong)
    try:
        wait_until(lambda: len(failures) > 2)
        message = "SchemaMismatch: job 'days': table days: unknown column 'id'; it takes day, n, total"
        assert job.info.last_error == message
        assert query.isActive and lake.store.table("days").history().num_rows == 0
        good.set()
        query.processAllAvailable()
        assert job.info.last_error is None
        law(lake)
    finally:
        query.stop()


def test_a_query_that_is_to_end_gives_up_in_the_end(lake, job) -> None:
    lake.orders.upsert(rows(0, 3))
    lake.store.checkpoint()
    query, tries = None, []

    def wrong(ctx) -> None:
        tries.append(1)
        ctx.upsert("days", ctx.table("orders"))

    query = job.start(lake.spark, wrong, trigger="available_now")
    with pytest.raises(Exception, match="unknown column 'id'"):
        query.awaitTermination()
    assert len(tries) == 5 and job.info.runner is None
    assert "SchemaMismatch" in (job.info.last_error or "")


def test_a_runner_that_was_taken_over_stops(lake, job) -> None:
    query = job.start(lake.spark, refresh)
    wait_until_committed(lake, job, lake.orders.upsert(rows(0, 3)))
    other = lake.store.job("days")
    with pytest.raises(el.JobRunning, match="a query of process"):
        other.step(lake.spark, refresh)
    assert query.isActive
    other.step(lake.spark, refresh, take_over=True)
    lake.orders.upsert(rows(3, 3))
    with pytest.raises(Exception, match="Fenced: job 'days' was taken over by incarnation 2"):
        query.awaitTermination()
    lake.store.checkpoint()
    while other.step(lake.spark, refresh) is not None:
        continue
    law(lake)


def test_views_on_views_align(lake, job) -> None:
    top = lake.store.create_job("top", ["days"], {"top": (pa.schema([("n", pa.int64()), ("days", pa.int64())]), ["n"])})

    def rank(ctx) -> None:
        counts = ctx.table("days").groupBy("n").agg(count("*").alias("days"))
        ctx.upsert("top", counts)
        ctx.delete("top", ctx.output("top").join(counts, "n", "left_anti").select("n"))

    for part in range(3):
        lake.orders.upsert(rows(part * 4, 10))
        lake.store.checkpoint()
        job.step(lake.spark, refresh)
        top.step(lake.spark, rank)
        with lake.store.snapshot(["days", "top"], consistency="aligned") as snapshot:
            counts = snapshot["days"].to_arrow().group_by("n").aggregate([("day", "count")])
            assert dict(zip(*counts.to_pydict().values(), strict=True)) == dict(
                zip(*snapshot["top"].to_arrow().to_pydict().values(), strict=True)
            )


def test_a_finished_upstream_finishes_the_job(lake, job) -> None:
    lake.orders.upsert(rows(0, 3))
    lake.orders.finish()
    lake.store.checkpoint()
    query = job.start(lake.spark, refresh, trigger="available_now")
    query.awaitTermination()
    assert job.info.state == "finished"
    assert job.step(lake.spark, refresh) is None
    assert next(info for info in lake.store.tables() if info.name == "days").state == "finished"
