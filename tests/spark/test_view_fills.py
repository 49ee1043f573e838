"""Backfills of views by chunks on Spark: each chunk once, on either engine, whichever driver takes it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import epochlog as el
from epochlog.spark.job import step
from epochlog.spark.view_engine import ViewEngine
from raw_check import raw_check
from view_shop import CUSTOMERS, ORDERS

pytestmark = pytest.mark.spark

SUMS = "SELECT day, SUM(cents) AS cents, COUNT(*) AS n, MIN(cents) AS least, MAX(id) AS last FROM orders GROUP BY day"
JOINED = "SELECT o.id, o.cents, c.region FROM orders o LEFT JOIN customers c ON c.id = o.customer WHERE o.cents > 2"
VIEWS = {"sums": (SUMS, ["day"]), "joined": (JOINED, ["id"])}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[el.Store]:
    with el.open(tmp_path / "store", durability="os", checkpoint_interval_ms=10) as store:
        orders = store.create_table("orders", ORDERS, ["id"])
        customers = store.create_table("customers", CUSTOMERS, ["id"])
        ids = range(13)
        orders.upsert(
            pa.table(
                [list(ids), [i % 5 for i in ids], [i % 3 for i in ids], [None if i % 4 == 0 else i for i in ids]],
                schema=ORDERS,
            )
        )
        customers.upsert(pa.table([[0, 1, 2], ["eu", "us", None]], schema=CUSTOMERS))
        store.checkpoint()
        yield store


def change(store: el.Store) -> None:
    store.table("orders").upsert(pa.table([[100, 1], [0, 0], [1, 1], [5, 5]], schema=ORDERS))
    store.table("customers").delete(pa.table({"id": [1]}))
    store.checkpoint()


@pytest.mark.parametrize("rows", [6, 1])
def test_a_sum_that_does_not_fit_within_one_chunk_is_taken_in_at_once(
    store: el.Store, spark: SparkSession, rows: int
) -> None:
    """rows: 6 of a chunk whose sum does not fit, 1 of chunks of which the merged sums do not."""
    values, ids = [30_000] * 6 + [-30_000] * 6 + [7], list(range(13))
    store.table("orders").upsert(pa.table([ids, [0] * 13, [0] * 13, values], schema=ORDERS))
    store.checkpoint()
    sql = "SELECT day, CAST(SUM(cents) AS SMALLINT) AS cents FROM orders GROUP BY day"
    view = store.create_view("v", sql, ["day"], snapshot_rows=rows)
    while step(view._runner, spark, view.refresh) is not None:
        pass
    assert view.info.state != "creating" and raw_check(view).ok


@pytest.mark.rule("R10")
def test_chunks_of_both_engines_make_the_view(store: el.Store, spark: SparkSession) -> None:
    for name, (sql, key) in VIEWS.items():
        view, rows = store.create_view(name, sql, key, snapshot_rows=5), store.table("orders").to_arrow().num_rows
        for number in range(3):
            done = view._runner.step_local(view.refresh) if number == 1 else step(view._runner, spark, view.refresh)
            assert done == 0 and view.info.snapshot_rows == min(5 * number + 5, rows)
        change(store)
        assert view.step() and raw_check(view).ok, name


def test_a_query_fills_a_view_by_chunks(store: el.Store, spark: SparkSession) -> None:
    view = store.create_view("v", SUMS, ["day"], snapshot_rows=5)
    view.start(spark, trigger="available_now").awaitTermination(120)
    assert raw_check(view).ok and store.table("v").history().num_rows == 1


@pytest.mark.planted
def test_forgotten_merges_are_found(store: el.Store, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ViewEngine, "merged", lambda self, output, rows, merges: rows)
    view = store.create_view("v", SUMS, ["day"], snapshot_rows=7)
    assert view.step(spark) and not raw_check(view).ok


DRIVER = """
import sys
import epochlog as el
spark = el.spark("driver", master="local[1]", spark__sql__shuffle__partitions="1")
with el.open(sys.argv[1], create=False, durability="os", checkpoint_interval_ms=10) as store:
    store.view("v").start(spark, take_over=True).awaitTermination()
"""


@pytest.mark.slow
@pytest.mark.local_only
def test_a_driver_that_is_killed_loses_one_chunk_at_most(store: el.Store, spark: SparkSession) -> None:
    view = store.create_view("v", SUMS, ["day"], snapshot_rows=7)
    child = subprocess.run(
        [sys.executable, "-c", DRIVER, store.root],
        env={**os.environ, "EPOCHLOG_KILL_AT": "piece:recorded:1"},
        capture_output=True,
        check=False,
    )
    assert child.returncode == -9, child.stderr
    assert view.info.snapshot_rows == 7
    change(store)
    assert step(view._runner, spark, view.refresh, take_over=True) == 0 and view.info.snapshot_rows == 13
    assert view.step(spark) and raw_check(view).ok
