"""A driver whose executors are processes of their own: `cluster_driver.py ROOT CATALOG TOKEN` (CATALOG may be empty).

It reads the tables `orders` and `city` of the snapshot, joins them, reads a view and a change feed, writes `copy`, and
says what it found as one line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import epochlog as el
from spark_limits import raise_connect_limit


def main(root: str, catalog: str, token: str) -> None:
    both = {
        "spark.scheduler.minRegisteredResourcesRatio": 1.0,
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "600s",
    }
    spark = el.spark("cluster", master="local-cluster[2,1,1024]", **both)  # no task before both executors are there
    raise_connect_limit(spark)
    spark.sparkContext.setLogLevel("OFF")
    place = {"path": root, **({"catalog": catalog} if catalog else {})}

    def read(table: str, **options: Any) -> Any:
        return spark.read.format("epochlog").options(**place, table=table, **options).load()

    orders, city = read("orders", snapshot=token, minPartitions=4), read("city", snapshot=token)
    joined = orders.join(city.hint("broadcast"), "day").groupBy("name").count()
    listed = ", ".join(f"{name} '{value}'" for name, value in {**place, "table": "orders", "snapshot": token}.items())
    spark.sql(f"CREATE TEMPORARY VIEW seen USING epochlog OPTIONS ({listed}, filter 'id < 10')")
    feed = read("orders", readChangeFeed=True, startingVersion="earliest", changeMode="net")
    workers = orders.mapInArrow(_parents, "pid long").distinct().collect()
    orders.write.format("epochlog").mode("append").options(**place, table="copy").save()
    report = {
        "joined": sorted([row.name, row["count"]] for row in joined.collect()),
        "tasks": orders.rdd.getNumPartitions(),
        "view": spark.sql("SELECT sum(id) FROM seen").collect()[0][0],
        "feed": feed.count(),
        "executors": len({row.pid for row in workers}),
        "parallelism": read("orders").rdd.context.defaultParallelism,
    }
    print(json.dumps(report), flush=True)
    spark.stop()


def _parents(batches: Any) -> Any:
    """The process that this worker's daemon belongs to: one of each executor."""
    import pyarrow as pa

    for _ in batches:
        daemon = os.getppid()
        with open(f"/proc/{daemon}/status") as status:
            executor = next(int(line.split()[1]) for line in status if line.startswith("PPid:"))
        yield pa.RecordBatch.from_pylist([{"pid": executor}])


if __name__ == "__main__":
    main(*sys.argv[1:])
