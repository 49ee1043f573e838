"""A Spark driver of jobs in a process of its own: `attached_driver.py ROOT LOCATION WORK JOB…`, says `ready`.

LOCATION: that of the store's server, whose coordinator decides the jobs' barriers; `alone`: the driver decides them.
WORK: `copies`: each job copies the changes of its upstream. `stalls`: its refresh does not return between the lines
`stall` and `go` on standard input. `views`: each line `create ROWS` creates a view of the table `base` in pieces of
that many rows, from nothing to its first commit, and is answered with `created`. `flood`: one row that changes in
`rate` changes all rows of the output. The driver ends with its standard input.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from itertools import count
from typing import Any

from data import SCHEMA
from pyspark.sql import SparkSession
from pyspark.sql.functions import broadcast, col

import epochlog as el

Refresh = Callable[[Any], None]


def copy(job: el.Job) -> Refresh:
    (source,), (output,) = job.info.upstreams, job.info.outputs

    def refresh(ctx: Any) -> None:
        changes = ctx.changes(source, mode="net")
        ctx.upsert(output, changes.select("id", (col("value") * 2).alias("value"), "name"))

    return refresh


def flood(job: el.Job) -> Refresh:
    (output,) = job.info.outputs

    def refresh(ctx: Any) -> None:
        factor = broadcast(ctx.table("rate").select(col("value").alias("factor")))
        rows = ctx.table("facts").crossJoin(factor)
        ctx.upsert(output, rows.select("id", (col("value") * col("factor")).alias("value"), "name"))

    return refresh


class Driver:
    """A store and a session, and a pipeline of the jobs."""

    def __init__(self, store: el.Store, spark: SparkSession, worker: el.Worker | None) -> None:
        self._store = store
        self._spark = spark
        self._worker = worker
        self._free = threading.Event()
        self._free.set()

    def pipeline(self) -> el.Pipeline:
        return el.Pipeline(self._store, self._spark, coordinator=self._worker)

    def run(self, work: str, names: list[str]) -> None:
        pipe = self.pipeline()
        for job in map(self._store.job, names):
            pipe.add(job, self._stalling(job) if work == "stalls" else {"copies": copy, "flood": flood}[work](job))
        thread = threading.Thread(target=pipe.run)
        if names:
            thread.start()
        print("ready", flush=True)
        numbers = count()
        for line in sys.stdin:
            match line.split():
                case ["stall"]:
                    self._free.clear()
                case ["go"]:
                    self._free.set()
                case ["create", rows]:
                    self._create(f"view{next(numbers)}", int(rows))
                    print("created", flush=True)
        self._free.set()
        if names:
            pipe.stop()
            thread.join()

    def _stalling(self, job: el.Job) -> Refresh:
        plain = copy(job)

        def refresh(ctx: Any) -> None:
            self._free.wait()
            plain(ctx)

        return refresh

    def _create(self, name: str, rows: int) -> None:
        store = self._store
        job = store.create_job(name, ["base"], {f"{name}_out": (SCHEMA, ["id"])}, snapshot_rows=rows)
        pipe = self.pipeline()
        pipe.add(job, copy(job))
        pipe.run(until="idle")
        assert store.table(f"{name}_out").count() == store.table("base").count()
        store.drop_job(name)


def main(root: str, location: str, work: str, *names: str) -> None:
    spark = el.spark("driver", master="local[1]", spark__sql__shuffle__partitions="1")
    spark.sparkContext.setLogLevel("OFF")
    with ExitStack() as stack:
        store = stack.enter_context(el.open(root, create=False))
        worker = None if location == "alone" else stack.enter_context(el.Worker(location, store))
        Driver(store, spark, worker).run(work, list(names))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
