"""A Spark driver in a process of its own, so that sessions of different settings can be measured in turns.

`python spark_driver.py user|epochlog FOLDER` answers each line {"query": …, …} on standard input with a line
{"samples": [ms]} on standard output: of a stream's micro-batches ("batches": n, "warm_up": m), of one batch read, or of
the calls of a query.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import epochlog as el

POLL_SECONDS = 0.25
PARTITIONS = 4
"""Tasks that write the rows of a range."""


def make_session(kind: str) -> SparkSession:
    """`epochlog`: as el.spark() makes it. `user`: Spark's own defaults, the data source registered."""
    if kind == "epochlog":
        return el.spark(app_name="bench")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = SparkSession.builder.appName("bench").getOrCreate()
    el.register(session)
    return session


def start_epochlog(session: SparkSession, order: dict[str, Any]) -> StreamingQuery:
    """Every commit of the table `rows` is a micro-batch; its sink is another table of the same store."""
    frame = (
        session.readStream.format("epochlog")
        .option("path", order["store"])
        .option("table", "rows")
        .option("startingVersion", "earliest")
        .option("maxEpochsPerTrigger", 1)
        .load()
    )
    writer = frame.writeStream.format("epochlog").option("path", order["store"]).option("table", order["into"])
    return writer.option("checkpointLocation", order["checkpoint"]).start()


def start_parquet(session: SparkSession, order: dict[str, Any]) -> StreamingQuery:
    frame = session.readStream.format("rate-micro-batch").option("rowsPerBatch", order["rows"]).load()
    writer = frame.writeStream.format("parquet").option("path", order["into"])
    return writer.option("checkpointLocation", order["checkpoint"]).start()


START = {"epochlog": start_epochlog, "parquet": start_parquet}


def run(session: SparkSession, order: dict[str, Any]) -> list[float]:
    """Milliseconds (`triggerExecution`) of the micro-batches with rows, the first few left out."""
    wanted = order["warm_up"] + order["batches"]
    query = START[order["query"]](session, order)
    try:
        while len(done := _batches(query, order["rows"])) < wanted:
            if query.awaitTermination(POLL_SECONDS):  # pyright: ignore[reportArgumentType]  # parts of a second are fine
                raise RuntimeError(f"the query ended by itself: {query.exception()}")
    finally:
        query.stop()
    return done[order["warm_up"] : wanted]


def _batches(query: StreamingQuery, rows: int) -> list[float]:
    progress = [json.loads(each.json) for each in query.recentProgress]
    return [float(each["durationMs"]["triggerExecution"]) for each in progress if each["numInputRows"] == rows]


def read(session: SparkSession, order: dict[str, Any]) -> list[float]:
    """Milliseconds of one load, of the columns of the order or of all, and its way into a sink that keeps nothing."""
    start = perf_counter()
    return kept_nowhere(
        load_rows(session, order) if order["query"] == "read" else session.read.parquet(order["parquet"]), order, start
    )


def read_snapshot(session: SparkSession, order: dict[str, Any]) -> list[float]:
    """Milliseconds of the read of a snapshot of an open store, likewise."""
    with el.open(order["store"], create=False) as store:
        start = perf_counter()
        with store.snapshot(["rows"]) as snapshot:
            return kept_nowhere(snapshot.spark("rows", session), order, start)


def kept_nowhere(frame: DataFrame, order: dict[str, Any], start: float) -> list[float]:
    """Read the order's columns of the frame. Return the milliseconds since `start`."""
    selected = frame.select(*order["columns"]) if order.get("columns") else frame
    selected.write.format("noop").mode("overwrite").save()
    return [(perf_counter() - start) * 1000]


def write_parquet(session: SparkSession, order: dict[str, Any]) -> list[float]:
    load_rows(session, order).write.parquet(order["into"])
    return []


def load_rows(session: SparkSession, order: dict[str, Any]) -> DataFrame:
    return session.read.format("epochlog").option("path", order["store"]).option("table", "rows").load()


def append(session: SparkSession, order: dict[str, Any]) -> list[float]:
    """Milliseconds of the way of the rows of a range into a table or a folder of files."""
    start = perf_counter()
    numbers = session.range(0, order["rows"], 1, PARTITIONS)
    rows = numbers.selectExpr("id", "id / 7 AS value", "CAST(id * 7919 % 10000000000 AS STRING) AS name")
    into, options = order["into"]
    rows.write.format(into).options(**options).mode("append").save()
    return [(perf_counter() - start) * 1000]


def scan(session: SparkSession, order: dict[str, Any]) -> list[float]:
    """Milliseconds of a batch read into a sink that keeps nothing: of a format, or through the catalog of the store."""
    source, options = order["source"]
    if source == "catalog":
        el.catalog(session, order["store"], name="lake")
        start = perf_counter()
        return kept_nowhere(session.table("lake.rows"), order, start)
    start = perf_counter()
    return kept_nowhere(session.read.format(source).options(**options).load(), order, start)


def stream(session: SparkSession, order: dict[str, Any]) -> list[float]:
    """Milliseconds of a stream, from its start to its end, that takes in all rows that there are."""
    (source, options), (into, into_options) = order["source"], order["into"]
    reader = session.readStream.format(source).options(**options)
    if source == "parquet":
        reader = reader.schema(session.read.parquet(options["path"]).schema)
    start = perf_counter()
    writer = reader.load().writeStream.format(into).options(**into_options).trigger(availableNow=True)
    query = writer.option("checkpointLocation", order["checkpoint"]).start()
    query.awaitTermination()
    took_ms = (perf_counter() - start) * 1000
    rows = sum(each["numInputRows"] for each in query.recentProgress)
    assert rows == order["rows"], f"the stream took in {rows} rows, not {order['rows']}"
    return [took_ms]


def sql(session: SparkSession, order: dict[str, Any]) -> list[float]:
    """Milliseconds of each of so many calls of a query; with no calls, the numbers of its answer."""
    ask = ask_catalog if order["query"] == "sql_of_catalog" else ask_loads
    if order["query"] == "sql_of_catalog":
        el.catalog(session, order["store"], name="lake")
    if not order["calls"]:
        return [float(number) for number in ask(session, order)[0]]
    took = []
    for _ in range(order["calls"]):
        start = perf_counter()
        ask(session, order)
        took.append((perf_counter() - start) * 1000)
    return took


def ask_catalog(session: SparkSession, order: dict[str, Any]) -> list[Row]:
    return session.sql(order["text"].format(**{name: f"lake.{name}" for name in order["tables"]})).collect()


def ask_loads(session: SparkSession, order: dict[str, Any]) -> list[Row]:
    """Load the tables that the query names, and run it over their frames."""
    named = [name for name in order["tables"] if f"{{{name}}}" in order["text"]]
    read = {
        name: session.read.format("epochlog").option("path", order["store"]).option("table", name) for name in named
    }
    frames: dict[str, Any] = {name: reader.load() for name, reader in read.items()}
    return session.sql(order["text"], **frames).collect()


WORK = {
    "read": read,
    "read_snapshot": read_snapshot,
    "read_parquet": read,
    "write_parquet": write_parquet,
    "sql_of_catalog": sql,
    "sql_of_loads": sql,
    "append": append,
    "scan": scan,
    "stream": stream,
}


def main() -> None:
    kind, folder = sys.argv[1:]
    os.chdir(Path(folder))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Spark prints goes to standard error
    session = make_session(kind)
    session.sparkContext.setLogLevel("ERROR")
    for line in sys.stdin:
        order = json.loads(line)
        samples = WORK.get(order["query"], run)(session, order)
        print(json.dumps({"samples": samples}), file=answers, flush=True)
    session.stop()


if __name__ == "__main__":
    main()
