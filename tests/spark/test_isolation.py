"""Two drivers on one store whose catalog is in Redis: one is killed in mid-barrier, the other loses its JVM."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import epochlog as el
from spark_store import rows
from stores import servers

pytestmark = [pytest.mark.spark, pytest.mark.redis, pytest.mark.long]

DRIVER = Path(__file__).with_name("driver.py")
COPY = pa.schema([pa.field("id", pa.int64(), nullable=False), ("amount", pa.float64())])
HOUR_MS = 3_600_000


class Driver:
    """A driver process of its own, with a session of its own."""

    def __init__(self, root: str, catalog: str, *names: str) -> None:
        command = [sys.executable, str(DRIVER), root, catalog, *names]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def expect(self, word: str) -> list[str]:
        """The next line, which must begin with the word."""
        assert self.process.stdout is not None
        words = self.process.stdout.readline().split()
        assert words[:1] == [word], (words, self.process.poll())
        return words[1:]

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


def copy(source: str, name: str, seen: list[Any]) -> Any:
    def refresh(ctx: Any) -> None:
        seen.append(ctx.barrier)
        ctx.upsert(name, ctx.changes(source).select("id", "amount"))

    return refresh


def law(store: el.Store) -> None:
    with store.snapshot(consistency="aligned") as snapshot:
        wanted = snapshot["orders"].to_arrow(columns=["id", "amount"])
        assert all(snapshot[name].to_arrow().equals(wanted) for name in ("a", "b", "c"))


def test_a_driver_is_killed_and_another_loses_its_jvm(tmp_path: Path, spark: SparkSession) -> None:
    root, catalog = str(tmp_path / "store"), servers.redis.url()
    with el.open(root, catalog, checkpoint_interval_ms=HOUR_MS) as store:
        store.create_table("orders", rows(0, 1).schema, ["id"])
        for name, upstream in (("a", "orders"), ("b", "orders"), ("c", "b")):
            store.create_job(name, [upstream], {name: (COPY, ["id"])})
        store.table("orders").upsert(rows(0, 10))
        drivers = Driver(root, catalog, "a"), Driver(root, catalog, "b", "c")
        try:
            jvms = [int(driver.expect("ready")[0]) for driver in drivers]
            one_is_killed_in_mid_barrier(store, *drivers)
            a_third_takes_over_from_the_catalog(root, catalog, spark)
            a_jvm_is_killed_under_its_driver(store, drivers[1], jvms[1], spark)
            law(store)
        finally:
            for driver in drivers:
                driver.kill()


def one_is_killed_in_mid_barrier(store: el.Store, victim: Driver, other: Driver) -> None:
    """The other's jobs commit at each boundary, before and after; nothing was restarted."""
    store.checkpoint()
    victim.tell("hang")
    victim.expect("hanging")
    for part in range(2):
        last = store.table("orders").upsert(rows(part * 5 + 1, 10, amount=part + 2.0))
        other.tell("idle")
        states = [row.split("/") for row in other.expect("idle")]
        assert all(int(epoch) >= last and restarts == "0" for _, epoch, restarts in states), (states, last)
        if not part:
            victim.process.send_signal(signal.SIGKILL)
            victim.process.wait()
    assert [info.committed_epoch for info in store.jobs() if info.name == "a"] == [0]
    assert [info.incarnation for info in store.jobs()] == [1, 1, 1]


def a_third_takes_over_from_the_catalog(root: str, catalog: str, spark: SparkSession) -> None:
    """It knows the store alone: the barrier that was recorded comes first, then what has come since."""
    with el.open(root, catalog, create=False) as store:
        job, seen = store.job("a"), []
        while job.step(spark, copy("orders", "a", seen)) is not None:
            pass
        history = store.table("a").history().to_pylist()
        assert (seen[0].prev, seen[0].curr) == (0, history[-1]["epoch"])
        assert [row["rows_upserted"] for row in history] == [10, 10, 10]
        law(store)


def a_jvm_is_killed_under_its_driver(store: el.Store, driver: Driver, jvm: int, spark: SparkSession) -> None:
    """All that its refresh wrote is durable; yet it commits nothing, and nothing either once another has taken over."""
    store.table("orders").upsert(rows(20, 10))
    store.checkpoint()
    before = store.table("b").history().to_pylist()
    driver.tell("hang")
    driver.expect("hanging")
    os.kill(jvm, signal.SIGKILL)
    driver.tell("")
    assert driver.expect("failed") == ["SparkLost"]
    assert "SparkLost" in (store.job("b").info.last_error or "")
    driver.tell("step")
    assert driver.expect("failed") == ["SparkLost"]
    assert store.table("b").history().to_pylist() == before
    pipe, seen = el.Pipeline(store, spark), []
    for name, upstream in (("a", "orders"), ("b", "orders"), ("c", "b")):
        pipe.add(store.job(name), copy(upstream, name, seen))
    pipe.run(until="idle")
    driver.tell("step")
    assert driver.expect("failed") == ["Fenced"]
    driver.tell("idle")
    assert [row.split("/")[0] for row in driver.expect("idle")] == ["fenced", "fenced"]
