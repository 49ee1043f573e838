"""One token, two Spark drivers: the same rows, whatever was committed since, also when the one that took it is dead."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import epochlog as el
from epochlog.store.session.leases import LEASE_MS
from spark_store import SCHEMA, rows

pytestmark = pytest.mark.spark

DRIVER = Path(__file__).with_name("token_driver.py")
COPY = pa.schema([pa.field("id", pa.int64(), nullable=False), ("amount", pa.float64())])
NO_PAST = el.TableOptions(history_retention=timedelta(0), log_retention=timedelta(0))
SPARK_LEASE_MS = 3_600_000


@contextmanager
def driver(root: Path) -> Iterator[Any]:
    """The other driver, and what it says."""
    command = [sys.executable, str(DRIVER), str(root)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, text=True, **pipes)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def read_message(process: Any, word: str) -> list[str]:
    words = process.stdout.readline().split()
    assert words[:1] == [word], (words, process.poll())
    return words[1:]


def copy(ctx: Any) -> None:
    ctx.upsert("copy", ctx.table("orders").select(["id", "amount"]))


def by_token(spark: SparkSession, root: Path, token: str, table: str) -> Any:
    return (
        spark.read.format("epochlog").option("path", str(root)).option("table", table).option("snapshot", token).load()
    )


def moved_on(store: el.Store, round_: int) -> None:
    """More commits, of the view too; all that nobody holds is folded, let go of and deleted."""
    store.table("orders").upsert(rows(0, 30, amount=round_ + 2.0))
    store.checkpoint()
    assert store.job("copy").step_local(copy)
    store.compact(full=True)
    store.vacuum(grace=0)


@pytest.mark.long
def test_two_drivers_read_one_token(tmp_path: Path, spark: SparkSession) -> None:
    root, late_ms = tmp_path / "lake", 0

    def clock() -> int:
        return time.time_ns() // 1_000_000 + late_ms

    with el.open(root, clock=clock) as store:
        store.create_table("orders", SCHEMA, ["id"], options=NO_PAST).upsert(rows(0, 20))
        job = store.create_job("copy", ["orders"], {"copy": (COPY, ["id"])})
        store.checkpoint()
        assert job.step_local(copy)
        with driver(root) as other:
            (token,) = read_message(other, "token")
            count, total = read_message(other, "rows")
            moved_on(store, 1)
            frames = {name: by_token(spark, root, token, name) for name in ("orders", "copy")}
            row = frames["copy"].selectExpr("count(*)", "sum(amount)").collect()[0]
            assert (int(count), float(total)) == (20, 190.0) == tuple(row)
        moved_on(store, 2)  # it is dead now, and its lease lasts
        joined = frames["orders"].join(by_token(spark, root, token, "copy"), ["id", "amount"])
        assert (joined.count(), frames["orders"].count()) == (20, 20)
        with store.snapshot(consistency=el.Exact(token)) as snapshot:
            assert snapshot["copy"].to_arrow(columns=["amount"]).equals(rows(0, 20).select(["amount"]))
        late_ms = LEASE_MS + SPARK_LEASE_MS  # and so do the leases of what this driver has read
        moved_on(store, 3)
        with pytest.raises(el.EpochExpired, match="orders"):
            store.snapshot(consistency=el.Exact(token))
        with pytest.raises(PySparkException, match=r"EpochExpired: .*orders"):
            by_token(spark, root, token, "orders").count()
