"""Age of the newest epoch at which eight views are valid, while rows come at a steady rate.

    python bench/view_age.py --rate 50                       # ten minutes on DuckDB
    python bench/view_age.py --rate 50 --engine spark
    python bench/view_age.py --rate 50 --boundaries 1        # as if steps took one boundary after the other

One process writes orders and customers, in commits at least 20 ms apart, and a pipeline steps eight views over them,
three of them over other views. Each second the age of the newest epoch that is valid for all eight is taken. The
output is JSON: the quartiles and the maximum of the age in s, by minute too, and the steps and CPU seconds of the run.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import quantiles
from typing import Any

import pyarrow as pa

import epochlog as el
from epochlog.store.metadata import step_times
from epochlog.store.types.epoch import to_unix_ms

ORDERS = pa.schema([("id", pa.int64()), ("customer", pa.int64()), ("day", pa.int64()), ("cents", pa.int64())])
CUSTOMERS = pa.schema([("id", pa.int64()), ("region", pa.string())])
REGIONS = ("africa", "america", "asia", "europe")
CUSTOMERS_OF_SHOP, DAYS = 1_000, 30
LEAST_COMMIT_S = 0.02
"""Least time between two commits of the writer: beyond 50 rows a second a commit has several rows."""
SAMPLE_S = 1.0
VIEWS = {
    "daily": ("SELECT day, SUM(cents) AS cents, COUNT(*) AS orders FROM orders GROUP BY day", ["day"]),
    "spent": ("SELECT customer, SUM(cents) AS cents, COUNT(*) AS orders FROM orders GROUP BY customer", ["customer"]),
    "large": ("SELECT id, customer, cents FROM orders WHERE cents >= 9000", ["id"]),
    "named": (
        "SELECT o.id, o.day, o.cents, c.region FROM orders o JOIN customers c ON o.customer = c.id",
        ["id"],
    ),
    "silent": (
        "SELECT id, region FROM customers c WHERE NOT EXISTS (SELECT 1 FROM orders o WHERE o.customer = c.id)",
        ["id"],
    ),
    "by_region": (
        "SELECT region, day, SUM(cents) AS cents, COUNT(*) AS orders FROM named GROUP BY region, day",
        ["region", "day"],
    ),
    "best_days": (
        """SELECT region, day, cents FROM (
            SELECT region, day, cents, ROW_NUMBER() OVER (PARTITION BY region ORDER BY cents DESC, day) AS place
            FROM by_region
        ) WHERE place <= 3""",
        ["region", "day"],
    ),
    "regulars": ("SELECT customer, cents FROM spent WHERE orders >= 5", ["customer"]),
}
"""Query and primary key of each view."""


@dataclass(frozen=True)
class Course:
    """Ages in s, taken at seconds since the first row, and the commits of all views."""

    ages: tuple[tuple[float, float], ...]
    steps: int

    def by_minute(self) -> list[dict[str, float]]:
        minutes = dict[int, list[float]]()
        for at, age in self.ages:
            minutes.setdefault(int(at // 60), []).append(age)
        return [summary(ages) for ages in minutes.values() if len(ages) > 1]


def summary(ages: Sequence[float]) -> dict[str, float]:
    low, middle, high = quantiles(ages, n=4)
    return {name: round(age, 2) for name, age in (("q1", low), ("median", middle), ("q3", high), ("max", max(ages)))}


class Writer(threading.Thread):
    """Thread that commits orders at a steady rate, and a changed customer every second."""

    def __init__(self, store: el.Store, rate: float) -> None:
        super().__init__(daemon=True, name="writer")
        self._orders, self._customers = store.table("orders"), store.table("customers")
        self._rate, self._stopped, self._chance = rate, threading.Event(), random.Random(7)
        self.written = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self._write()
        except BaseException as error:
            self.error = error

    def _write(self) -> None:
        began, seconds = time.monotonic(), 0
        while not self._stopped.is_set():
            passed = time.monotonic() - began
            due = int(passed * self._rate) - self.written
            if due > 0:
                self._orders.upsert(self._rows(due))
            if passed > seconds:
                seconds += 1
                changed = self._chance.randrange(CUSTOMERS_OF_SHOP)
                self._customers.upsert([{"id": changed, "region": self._chance.choice(REGIONS)}])
            self._stopped.wait(max(LEAST_COMMIT_S, (self.written + 1) / self._rate - (time.monotonic() - began)))

    def _rows(self, count: int) -> pa.Table:
        ids = range(self.written, self.written + count)
        self.written += count
        chance = self._chance
        return pa.table(
            {
                "id": list(ids),
                "customer": [chance.randrange(CUSTOMERS_OF_SHOP) for _ in ids],
                "day": [chance.randrange(DAYS) for _ in ids],
                "cents": [chance.randrange(10_000) for _ in ids],
            },
            schema=ORDERS,
        )

    def stop(self) -> None:
        self._stopped.set()
        self.join()
        if self.error is not None:
            raise self.error


def measure(store: el.Store, pipe: el.Pipeline, rate: float, seconds: float) -> Course:
    """Return the course of the age over some seconds from the first row on; the pipeline runs meanwhile."""
    running = threading.Thread(target=pipe.run, name="pipeline", daemon=True)
    running.start()
    writer = Writer(store, rate)
    began = time.monotonic()
    writer.start()
    ages = list[tuple[float, float]]()
    while (passed := time.monotonic() - began) < seconds or len(ages) < 2:  # quartiles take two
        writer.join(max(0.0, min(SAMPLE_S, seconds - passed)))
        if not writer.is_alive():
            break  # `stop` raises its error
        with store.snapshot(list(VIEWS), consistency=el.Aligned()) as moment:
            age = time.time() - to_unix_ms(min(moment.epochs.values())) / 1000
        ages.append((time.monotonic() - began, age))
    writer.stop()
    steps = sum(len(store.table(name).history()) for name in VIEWS)
    pipe.stop()
    running.join()
    return Course(tuple(ages), steps)


def run(root: str, engine: str, rate: float, seconds: float) -> dict[str, Any]:
    """Fill a new store, step its views once, and measure. engine: duckdb or spark. rate: in rows a second."""
    spark = el.spark("view ages", master="local[2]") if engine == "spark" else None
    if spark is not None:
        spark.sparkContext.setLogLevel("ERROR")
    with el.open(root) as store:
        store.create_table("orders", ORDERS, ["id"])
        customers = store.create_table("customers", CUSTOMERS, ["id"])
        ids = list(range(CUSTOMERS_OF_SHOP))
        customers.upsert(pa.table([ids, [REGIONS[number % 4] for number in ids]], schema=CUSTOMERS))
        pipe = el.Pipeline(store, spark)
        for name, (sql, key) in VIEWS.items():
            pipe.add(store.create_view(name, sql, key))
        pipe.run(until="idle")
        before = time.process_time()
        course = measure(store, pipe, rate, seconds)
        cpu = time.process_time() - before
    if spark is not None:
        spark.stop()
    return {
        "engine": engine,
        "rate": rate,
        "seconds": seconds,
        "boundaries": step_times.MOST_BOUNDARIES,
        "steps": course.steps,
        "CPU seconds of Python": round(cpu, 1),
        "age": summary([age for _, age in course.ages]),
        "age by minute": course.by_minute(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=("duckdb", "spark"), default="duckdb")
    parser.add_argument("--rate", type=float, required=True, help="rows a second")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--boundaries", type=int, help="most boundaries of a step because of its time")
    chosen = parser.parse_args()
    if chosen.boundaries is not None:
        step_times.MOST_BOUNDARIES = chosen.boundaries
    with tempfile.TemporaryDirectory(prefix="epochlog-view-age-") as root:
        print(json.dumps(run(root, chosen.engine, chosen.rate, chosen.seconds), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
