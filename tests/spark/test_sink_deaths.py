"""Writes from Spark while tasks, executors and drivers die, or run twice: what counts is there once, nothing else is
ever seen, and vacuum takes away just what does not count.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import epochlog as el
from s3_server import S3Server
from sink_simulation import DAY_MS, GRACE_MS, spark_intents
from spark_driver import PARTS, SPECULATIVE, driver, vacuumed
from stores import servers

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("amount", pa.float64())])
MANY = 300_000
"""Rows of an order whose tasks write files of their own, where small ones would be left to the driver."""


def rows(count: int) -> pa.Table:
    return pa.table({"id": range(count), "amount": [2.0 * number for number in range(count)]}, schema=SCHEMA)


@pytest.mark.rule("1.7")
@pytest.mark.long
def test_tasks_that_die_and_drivers_that_die(tmp_path: Path, spark: SparkSession) -> None:
    with el.open(tmp_path / "store") as store:
        table, view = store.create_table("t", SCHEMA, ["id"]), "view"
        table.upsert(pa.table({"id": [10**6], "amount": [0.0]}, schema=SCHEMA))
        job = store.create_job(view, ["t"], {view: (SCHEMA, ["id"])})
        store.checkpoint()
        with driver(store, tmp_path / "notes", master="local[2,4]") as spark_driver:
            for attempts in (
                spark_driver.order("write", "t", "task-dies", 30, mode="overwrite"),
                spark_driver.order("sink", "t", "task-dies", MANY, batch=1),
                spark_driver.order("step", view, "task-dies", MANY, job=job.name),
            ):
                assert attempts.counted(store) == [0, 1, 2] and attempts.sick in attempts.lost(store)
            assert table.to_arrow().equals(rows(MANY)) and store.table(view).to_arrow().equals(rows(MANY))
            assert spark_intents(store) == 0 and table.history().num_rows == 3
            txn = {"txnAppId": "app", "txnVersion": "1"}
            attempts = spark_driver.order("write", "t", "before", 20, mode="overwrite", txn=txn)
            assert attempts.counted(store) == []
        assert table.to_arrow().equals(rows(MANY)) and spark_intents(store) == 1
        assert vacuumed(store, GRACE_MS) >= 3
        assert len(attempts.lost(store)) >= PARTS  # whoever died may be committing still: they are kept for a day
        frame = spark.range(20).selectExpr("id", "cast(id * 2 as double) amount").write.format("epochlog")
        for _ in range(2):
            frame.mode("overwrite").options(path=store.root, table="t", **txn).save()
            assert table.to_arrow().equals(rows(20)) and table.history().num_rows == 4
        assert vacuumed(store, DAY_MS + 2 * GRACE_MS) >= 3
        assert not store.verify().unreachable and spark_intents(store) == 0
        assert table.to_arrow().equals(rows(20)) and store.table(view).to_arrow().equals(rows(MANY))


@pytest.mark.redis
@pytest.mark.long
def test_tasks_that_run_twice_and_executors_that_die(tmp_path: Path, spark: SparkSession, s3: S3Server) -> None:
    """On a cluster, files on S3, catalog in Redis. The driver dies when it has committed, and is told so by nobody."""
    with el.open(s3.uri(f"{s3.new_bucket()}/lake"), servers.redis.url()) as store:
        table = store.create_table("t", SCHEMA, ["id"])
        table.upsert(rows(100))
        with driver(store, tmp_path / "notes", master="two hosts", **SPECULATIVE) as spark_driver:
            attempts = spark_driver.order("write", "t", "slow", 30, mode="overwrite")
            assert len([name for name in attempts.paths if name.startswith("1-")]) > 1
            assert attempts.counted(store) == [0, 1, 2] and table.to_arrow().equals(rows(30))
            attempts = spark_driver.order("write", "t", "executor-dies", 60)
            assert attempts.counted(store) == [0, 1, 2] and attempts.sick in attempts.lost(store)
            assert table.to_arrow().equals(rows(60)) and spark_intents(store) == 0
            txn = {"txnAppId": "app", "txnVersion": "1"}
            spark_driver.order("write", "t", "after", 20, mode="overwrite", txn=txn)
        assert table.to_arrow().equals(rows(20)) and spark_intents(store) == 0
        frame = spark.range(50).selectExpr("id", "cast(id as double) amount").write.format("epochlog")
        place = {"path": store.root, "catalog": str(store._handle.catalog_url), "table": "t"}
        frame.mode("overwrite").options(**place, **txn).save()
        assert table.to_arrow().equals(rows(20)) and table.history().num_rows == 4
        assert vacuumed(store, GRACE_MS) >= 2
        assert not store.verify().unreachable and table.to_arrow().equals(rows(20))
