"""Spark Connect client that uses a store: `connect_driver.py ROOT`; it prints the outcomes as one line of JSON.

It is a process of its own: PySpark is either classic or a Connect client in one process.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import epochlog as el


def main(root: str) -> None:
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    el.register(spark)
    el.register(spark)

    def load(reader: Any, table: str = "orders") -> Any:
        return reader.format("epochlog").option("path", root).option("table", table).load()

    outcomes: dict[str, Any] = {"session": type(spark).__module__}
    orders = load(spark.read)
    orders.createOrReplaceTempView("orders")
    outcomes["sql"] = [tuple(row) for row in spark.sql("SELECT count(*), sum(cents) FROM orders").collect()]
    changed = orders.where("id = 1").selectExpr("id", "cents + 100 AS cents")
    changed.write.format("epochlog").option("path", root).option("table", "orders").mode("append").save()
    outcomes["written"] = sorted(tuple(row) for row in load(spark.read).collect())
    stream = load(spark.readStream)
    query = (
        stream.selectExpr("id", "cents", "_change_type")
        .writeStream.format("epochlog")
        .outputMode("append")
        .option("path", root)
        .option("table", "copy")
        .option("checkpointLocation", f"{root}-progress")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    outcomes["stream"] = sorted(tuple(row) for row in load(spark.read, "copy").collect())
    with el.open(root, create=False) as store:
        outcomes["exchanged"] = exchanged(spark, store)
        with store.snapshot(["orders", "copy"]) as snapshot:
            token = snapshot.token
            store.table("orders").delete([{"id": 2}])
            held = (
                spark.read.format("epochlog").option("path", root).option("snapshot", token).option("table", "orders")
            )
            outcomes["held"] = held.load().count()
        job = store.create_job("same", ["orders"], {"same": (store.table("copy").schema, ["id"])})
        store.checkpoint()
        outcomes["step"] = error_of(lambda: job.step(spark, lambda context: None))
        view = store.create_view("v", "SELECT id, cents FROM orders", ["id"])
        outcomes["view"] = error_of(lambda: store.create_view("w", "SELECT id FROM orders", ["id"], spark=spark))
        outcomes["view step"] = error_of(lambda: view.step(spark))
        outcomes["pipeline"] = error_of(lambda: el.Pipeline(store, spark))
        outcomes["compact"] = error_of(lambda: store.compact("orders", spark=spark))
        outcomes["catalog"] = error_of(lambda: el.catalog(spark, store))
    outcomes["sink"] = sunk(spark, root)
    outcomes["saveAsTable"] = error_of(lambda: orders.write.format("epochlog").saveAsTable("t"))
    outcomes["create"] = error_of(lambda: spark.sql("CREATE TABLE t (id BIGINT) USING epochlog"))
    outcomes["newSession"] = newer_session(spark, root)
    print(json.dumps(outcomes), flush=True)
    spark.stop()


def newer_session(spark: Any, root: str) -> int:
    """Read in a second session of the same server, which has to be registered too."""
    newer = spark.newSession()
    el.register(newer)
    return newer.read.format("epochlog").option("path", root).option("table", "orders").load().count()


def exchanged(spark: Any, store: el.Store) -> int:
    """Push a frame to a stage, and read it."""
    with el.serve(store, token="the-token") as server:
        options = {"location": server.location, "token": "the-token", "query": "q"}
        writer = spark.range(1000).write.format("epochlog.exchange").options(**options, stage=0)
        writer.mode("append").save()
        return spark.read.format("epochlog.exchange").schema("id BIGINT").options(**options).load().distinct().count()


def sunk(spark: Any, root: str) -> list[Any]:
    """Write two batches by `el.sink`, and the second again; return the error of a new checkpoint, and the epochs."""
    with el.open(root, create=False) as store:
        sunk = store.create_table("sunk", store.table("copy").schema, ["id"])
        sink = el.sink({"sunk": None}, app_id="app", path=root)

        def run(checkpoint: str) -> None:
            rows = load_stream(spark, root)
            writer = rows.writeStream.foreachBatch(sink).option("checkpointLocation", f"{root}-{checkpoint}")
            writer.trigger(availableNow=True).start().awaitTermination()

        run("sunk")
        store.table("orders").upsert([{"id": 7, "cents": 70}])
        run("sunk")
        for name in ("1", ".1.crc"):
            Path(f"{root}-sunk", "commits", name).unlink(missing_ok=True)
        run("sunk")
        error = error_of(lambda: run("new"))
        store.table("orders").delete([{"id": 7}])
        return [error, sunk.history().num_rows, sunk.count()]


def load_stream(spark: Any, root: str) -> Any:
    stream = spark.readStream.format("epochlog").option("path", root).option("table", "orders").load()
    return stream.selectExpr("id", "cents", "_change_type")


def error_of(call: Any) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


if __name__ == "__main__":
    main(sys.argv[1])
