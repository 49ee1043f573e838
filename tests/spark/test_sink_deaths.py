"""Writes from Spark while tasks, executors and drivers die, or run twice: what counts is there once, nothing else is
ever seen, and vacuum takes away just what does not count.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import epochlog as el
from s3_server import S3Server
from sink_simulation import DAY_MS, GRACE_MS, Later, spark_intents
from stores import servers

pytestmark = pytest.mark.spark

PROGRAM = Path(__file__).with_name("sink_driver.py")
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("amount", pa.float64())])
PARTS = 3
MANY = 300_000
"""Rows of an order whose tasks write files of their own, where small ones would be left to the driver."""


@dataclass(frozen=True)
class Attempts:
    """Paths that each attempt of a task has written, by "partition-attempt", and the attempt that failed."""

    paths: dict[str, list[str]]
    sick: str

    def lost(self, store: el.Store) -> set[str]:
        """Those whose files nothing reaches."""
        unreachable = set(store.verify().unreachable)
        assert all(len(unreachable & set(paths)) in (0, len(paths)) for paths in self.paths.values())
        return {name for name, paths in self.paths.items() if unreachable & set(paths)}

    def counted(self, store: el.Store) -> list[int]:
        """The partitions of the others."""
        return sorted(int(name.split("-")[0]) for name in self.paths.keys() - self.lost(store))


class Driver:
    """A Spark driver in a process of its own, that writes into the store."""

    def __init__(self, store: el.Store, notes: Path, **settings: str) -> None:
        self._place = {"path": store.root}
        if store._handle.catalog_url:
            self._place["catalog"] = store._handle.catalog_url
        self._notes, self._orders = notes, 0
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAM), json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
        )
        assert self._answer() == {"ready": True}

    def order(self, do: str, table: str, mood: str, count: int, **more: Any) -> Attempts:
        """Have rows 0 to `count` written, in PARTS partitions; what came of it."""
        assert self._process.stdin is not None
        self._orders += 1
        notes = self._notes / f"{id(self)}-{self._orders}"
        notes.mkdir(parents=True)
        place = {**self._place, "table": table}
        request = {"do": do, "place": place, "mood": mood, "rows": [0, count, PARTS], "notes": str(notes), **more}
        print(json.dumps(request), file=self._process.stdin, flush=True)
        answer = self._answer()
        assert answer == ({} if mood in ("before", "after") else {"done": True})
        notes_by_name = {path.name: path.read_text() for path in notes.iterdir()}
        sick = notes_by_name.pop("sick")
        return Attempts({name: json.loads(paths) for name, paths in notes_by_name.items()}, sick)

    def _answer(self) -> dict[str, Any]:
        """Return the driver's next answer; empty when the driver has died."""
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline() or "{}")

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.communicate()  # it ends with its input, and its JVM with it
        self._process.wait()


@contextmanager
def driver(store: el.Store, notes: Path, **settings: str) -> Iterator[Driver]:
    started = Driver(store, notes, **settings)
    try:
        yield started
    finally:
        started.end()


def rows(count: int) -> pa.Table:
    return pa.table({"id": range(count), "amount": [2.0 * number for number in range(count)]}, schema=SCHEMA)


def vacuumed(store: el.Store, later_ms: int) -> int:
    """Return the number of files that vacuum deletes `later_ms` later."""
    clock = Later()
    with el.open(store.root, store._handle.catalog_url, create=False, clock=clock) as opened:
        opened.vacuum()
        clock.added_ms = later_ms
        return len(opened.vacuum().deleted)


@pytest.mark.rule("1.7")
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
    settings = {
        "spark.speculation": "true",
        "spark.speculation.interval": "50ms",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.minTaskRuntime": "50ms",
        "spark.executorEnv.PYTHONPATH": os.environ.get("PYTHONPATH", ""),
    }
    with el.open(s3.uri(f"{s3.new_bucket()}/lake"), servers.redis.url()) as store:
        table = store.create_table("t", SCHEMA, ["id"])
        table.upsert(rows(100))
        with driver(store, tmp_path / "notes", master="two hosts", **settings) as spark_driver:
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
