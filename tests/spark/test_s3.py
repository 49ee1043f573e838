"""Spark over a store whose files lie on S3 and whose catalog is in Redis: write, read, stream, and a job."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from s3_server import S3Server
from spark_store import SCHEMA, Lake, rows
from stores import servers

pytestmark = [pytest.mark.spark, pytest.mark.redis]


@pytest.fixture
def far(tmp_path: Path, spark: SparkSession, s3: S3Server) -> Iterator[Lake]:
    made = Lake(tmp_path, spark, s3.uri(f"{s3.new_bucket()}/lake"), servers.redis.url())
    yield made
    made.store.close()


def test_a_batch_is_written_and_read(far: Lake) -> None:
    far.write(far.spark.createDataFrame(rows(0, 100)))
    far.write(far.spark.createDataFrame(rows(90, 20, amount=2.0)))
    far.store.compact("orders", full=True)
    far.write(far.spark.createDataFrame(rows(5, 1, amount=7.0)))
    result = far.read().orderBy("id").toArrow().cast(SCHEMA)
    assert result.equals(far.orders.to_arrow())
    assert result.num_rows == 110 and result["amount"][5].as_py() == 35.0


def test_a_stream_is_read_and_a_job_steps(far: Lake) -> None:
    far.store.create_table("copy", SCHEMA, ["id"])
    far.orders.upsert(rows(0, 10))
    far.into(far.stream().drop("_commit_version", "_commit_timestamp"), "copy", "first")
    far.orders.upsert(rows(5, 10))
    far.into(far.stream().drop("_commit_version", "_commit_timestamp"), "copy", "first")
    assert far.store.table("copy").to_arrow().equals(far.orders.to_arrow())
    job = far.store.create_job(
        "sum", ["orders"], {"total": (pa.schema([("id", pa.int64()), ("n", pa.int64())]), ["id"])}
    )
    far.store.checkpoint()

    def refresh(ctx) -> None:
        ctx.upsert("total", pa.table({"id": [0], "n": [ctx.table("orders").num_rows]}))

    assert job.step_local(refresh)
    assert far.store.table("total").to_arrow()["n"].to_pylist() == [15]
