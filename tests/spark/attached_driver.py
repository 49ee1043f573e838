"""A Spark driver of a job that keeps the revenue, under a coordinator: `attached_driver.py ROOT LOCATION JOB`.

Says `ready JVM_PID`.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

from pyspark.sql.functions import sum as total

import epochlog as el
from control_fixture import TOKEN
from spark_limits import raise_connect_limit


def add_changes(ctx: Any, output: str) -> None:
    """Add the new orders to the sums so far: rows that are taken in twice, or never, show for good."""
    changes = ctx.changes("orders").select("day", "cents")
    sums = changes.union(ctx.output(output).select("day", "cents")).groupBy("day")
    ctx.upsert(output, sums.agg(total("cents").alias("cents")))


def main(root: str, location: str, job: str) -> None:
    spark = el.spark("driver", master="local[1]", spark__sql__shuffle__partitions="1")
    raise_connect_limit(spark)
    spark.sparkContext.setLogLevel("OFF")
    with (
        el.open(root, create=False, durability="os") as store,
        el.Worker(location, store, token=TOKEN) as worker,
    ):
        query = store.job(job).start(spark, partial(add_changes, output=job), coordinator=worker)
        gateway: Any = spark.sparkContext._gateway
        print("ready", gateway.proc.pid, flush=True)
        query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
