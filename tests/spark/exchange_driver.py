"""A Spark application over a staged exchange: `exchange_driver.py push|join|stream '{"options": …}'`.

The one that pushes loses an executor within the probe side, and waits within the build side until the file `go` is in
the folder `notes`. The one that joins notes its first row, and writes its result to the file `result`. The one that
streams adds the ids of each micro-batch to the file `rows` of `notes`, until it has all that is there if `once` is set,
and writes the class of the error that ends it to `error`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import epochlog as el
from epochlog.spark.errors import find_epochlog_error
from spark_limits import raise_connect_limit

FORMAT = "epochlog.exchange"
JOINED = "flight BIGINT, name STRING"
Function = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def pushing(notes: str, stage: int) -> Function:
    """Return a function that lets batches pass. The third batch of partition 1 kills its executor in stage 0, once, and
    waits in stage -1.
    """

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context: Any = TaskContext.get()
        for number, batch in enumerate(batches):
            if context.partitionId() == 1 and number == 3:
                if stage == 0 and not Path(notes, "killed").exists():
                    Path(notes, "killed").touch()
                    daemon = int(Path(f"/proc/{os.getppid()}/stat").read_text().rsplit(")", 1)[1].split()[1])
                    os.kill(daemon, signal.SIGKILL)  # the executor's JVM
                while stage == -1 and not Path(notes, "go").exists():
                    Path(notes, "waits").touch()
                    threading.Event().wait(0.05)
            yield batch

    return run


def joining(notes: str) -> Function:
    """Return the join of one task, whose rows of stage -1 come before those of stage 0."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        names: dict[int, str] = {}
        probing = False
        for batch in batches:
            Path(notes, "received").touch()
            columns = [batch.column(name).to_pylist() for name in ("_stage", "city", "name", "flight")]
            joined: list[tuple[int, str]] = []
            for stage, city, name, flight in zip(*columns, strict=True):
                assert stage == 0 or not probing, "a row of stage -1 came after one of stage 0"
                probing = stage == 0
                if stage == -1:
                    assert city not in names, "a row came twice"
                    names[city] = name
                elif city in names:
                    joined.append((flight, names[city]))
            yield pa.RecordBatch.from_pydict(
                {"flight": [flight for flight, _ in joined], "name": [name for _, name in joined]},
                pa.schema([("flight", pa.int64()), ("name", pa.string())]),
            )

    return run


def push(spark: Any, settings: dict[str, Any]) -> None:
    options, notes = settings["options"], settings["notes"]
    flights = spark.range(0, settings["flights"], 1, 4).selectExpr(
        "id % 6000 city", "id flight", "repeat('x', 200) text"
    )
    cities = spark.range(0, settings["cities"], 1, 2).selectExpr(
        "cast(id AS int) city", "concat(repeat('city ', 40), id) name"
    )
    for stage, frame in ((0, flights), (-1, cities)):
        changed = frame.mapInArrow(pushing(notes, stage), frame.schema)
        writer = changed.write.format(FORMAT).mode("append").options(**options)
        writer.options(stage=stage, partitionBy="city").save()


def join(spark: Any, settings: dict[str, Any]) -> None:
    options, notes = settings["options"], settings["notes"]
    schema = "_stage BIGINT, city BIGINT, name STRING, flight BIGINT"
    rows = spark.read.format(FORMAT).schema(schema).options(**options).load()
    table = rows.mapInArrow(joining(notes), JOINED).toArrow()
    pq.write_table(table, Path(notes, "part"))
    Path(notes, "part").rename(Path(notes, "result"))


def stream(spark: Any, settings: dict[str, Any]) -> None:
    notes = Path(settings["notes"])

    def note(frame: Any, _: int) -> None:
        with (notes / "rows").open("a") as rows:
            rows.writelines(f"{row.id}\n" for row in frame.collect())

    rows = spark.readStream.format(FORMAT).schema("id BIGINT").options(**settings["options"]).load()
    writer = rows.writeStream.option("checkpointLocation", settings["checkpoint"]).foreachBatch(note)
    trigger = {"availableNow": True} if settings["once"] else {"processingTime": "0 seconds"}
    query = writer.trigger(**trigger).start()
    try:
        query.awaitTermination()
    except Exception as error:
        cause = find_epochlog_error(error)
        (notes / "part").write_text(type(cause).__name__ if cause else repr(error))
        (notes / "part").rename(notes / "error")


def main(role: str, settings: dict[str, Any]) -> None:
    conf = {"spark.sql.execution.arrow.maxRecordsPerBatch": 250, "master": settings["master"]}
    conf["spark.executorEnv.PYTHONPATH"] = os.environ.get("PYTHONPATH", "")
    spark = el.spark(role, **conf)
    raise_connect_limit(spark)
    spark.sparkContext.setLogLevel("OFF")
    {"push": push, "join": join, "stream": stream}[role](spark, settings)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
