"""Filters that Spark pushes into scans of the catalog: rows, pruning, and scans that are taken for each other."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import epochlog as el
from spark_extremes import EXTREMES, FILTERS, bits, extremes

pytestmark = pytest.mark.spark

snapshot_frame = importlib.import_module("epochlog.spark.snapshot_frame")
scan = importlib.import_module("epochlog.spark.catalog.scan")
planned_query = importlib.import_module("epochlog.spark.catalog.planned_query")

ROWS = 400_000
FURTHER = [
    "id IN (1, 2, 299, 5000)",
    "id = NULL",
    "id IN (3, NULL)",
    "id < 3 OR id > 297",
    "id < 3 OR text LIKE '%s'",
    "NOT (id < 290)",
    "NOT (id IN (1, 2))",
    "id + 1 = 7",
    "5 > id",
    "id = 5.0 AND i8 = 127",
    "text IN ('ZZZ', '')",
    "text <=> NULL",
    "dec = -12345678.90",
    "dec38 >= 1",
    "f64 <> f64",
    "i32 IS NOT NULL AND i64 < 0",
    "day IN (DATE'0001-01-01', DATE'9999-12-31')",
    "tokyo >= TIMESTAMP'1969-12-31 00:00:00Z'",
    f"id IN ({', '.join(map(str, range(150)))})",
]


@pytest.fixture
def lake(tmp_path: Path, spark: SparkSession) -> Iterator[el.Store]:
    with el.open(tmp_path / "lake") as store:
        el.catalog(spark, store, name="lake")
        yield store
        spark.catalog.clearCache()


def fill(store: el.Store, rows: int = ROWS) -> el.Table:
    table = store.create_table("t", pa.schema([("id", pa.int64()), ("n", pa.int64()), ("x", pa.float64())]), ["id"])
    table.upsert(pa.table({"id": range(rows), "n": [number % 10 for number in range(rows)], "x": [0.5] * rows}))
    return table


def rows_read(frame: DataFrame) -> int:
    """Run the frame; return the number of rows that its scans have given to Spark."""
    java: Any = frame._jdf
    execution = java.queryExecution()
    execution.executedPlan().executeCollect()
    plans, total = [execution.executedPlan()], 0
    while plans:
        plan = plans.pop()
        children = plan.children()
        if children.isEmpty():
            total += plan.metrics().apply("numOutputRows").value()
        plans += [children.apply(place) for place in range(children.length())]
    return total


@pytest.mark.parametrize("least_bytes", [0, 1 << 40])
def test_rows_of_every_filter_are_those_of_a_frame_without_it(
    lake: el.Store, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, least_bytes: int
) -> None:
    """least_bytes: Spark reads the Parquet files, or our source reads them."""
    monkeypatch.setattr(scan, "SMALLEST_BYTES", least_bytes)
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    print(f"seed {seed}")
    data = extremes(EXTREMES, seed)
    lake.create_table("t", data.schema, ["id"]).upsert(data)
    lake.compact("t", full=True)
    with lake.snapshot() as snapshot:
        monkeypatch.setattr(snapshot_frame, "parquet_frame", lambda *_: None)
        whole = snapshot.spark("t", spark)  # read by our source, into which Spark pushes no filter
        for text in (*FILTERS, *FURTHER):
            assert bits(spark.table("lake.t").where(text)) == bits(whole.where(text)), text


@pytest.mark.parametrize("compacted", [True, False])
def test_a_range_of_keys_reads_a_part_of_the_table(lake: el.Store, spark: SparkSession, compacted: bool) -> None:
    table = fill(lake)
    lake.compact("t", full=True)
    if not compacted:
        table.upsert([{"id": 77, "n": -1, "x": 1.0}])
    for text, rows in (("id = 77", 1), ("id BETWEEN 70 AND 79", 10), ("id IN (5, 77, 399999)", 3)):
        frame = spark.table("lake.t").where(text)
        assert frame.count() == rows
        assert rows <= rows_read(frame.select("n")) <= ROWS / 2, text
    assert rows_read(spark.table("lake.t").select("id")) == ROWS


def test_a_list_prunes_a_read_up_to_a_bound(lake: el.Store, spark: SparkSession) -> None:
    table = fill(lake)
    lake.compact("t", full=True)
    table.upsert([{"id": 77, "n": -1, "x": 1.0}])  # so that our source reads it
    for count, pruned in ((100, True), (101, False)):
        frame = spark.table("lake.t").where(f"id IN ({', '.join(map(str, range(count)))})")
        assert frame.count() == count
        assert (rows_read(frame.select("n")) < ROWS) == pruned


@pytest.mark.parametrize(("least_bytes", "filters"), [(0, 0), (1 << 40, 1)])
def test_only_a_scan_that_our_source_reads_converts_its_filter(
    lake: el.Store, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, least_bytes: int, filters: int
) -> None:
    """Each value of a filter takes several calls of the JVM. Spark's own reader of Parquet has its filters already."""
    monkeypatch.setattr(scan, "SMALLEST_BYTES", least_bytes)
    converted = []
    read_filter = scan.read_filter
    monkeypatch.setattr(scan, "read_filter", lambda *args: converted.append(args) or read_filter(*args))
    fill(lake, 5_000)
    lake.compact("t", full=True)
    assert spark.table("lake.t").where("id < 10").count() == 10
    assert len(converted) == filters


UNION = "SELECT n FROM lake.t WHERE id < {} UNION ALL SELECT n FROM lake.t WHERE id < {}"
JOIN = (
    "SELECT l.s, r.s FROM (SELECT n, SUM(id) AS s FROM lake.t WHERE id < {} GROUP BY n) AS l "
    "JOIN (SELECT n, SUM(id) AS s FROM lake.t WHERE id < {} GROUP BY n) AS r USING (n)"
)


def sums(limit: int) -> dict[int, int]:
    return {n: sum(range(n, limit, 10)) for n in range(10)}


@pytest.mark.parametrize("least_bytes", [0, 1 << 40])
def test_scans_of_one_query_with_other_filters_are_not_taken_for_each_other(
    lake: el.Store, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, least_bytes: int
) -> None:
    monkeypatch.setattr(scan, "SMALLEST_BYTES", least_bytes)
    fill(lake, 5_000)
    lake.compact("t", full=True)
    assert spark.sql(UNION.format(100, 1_000)).count() == 1_100
    assert sorted(map(tuple, spark.sql(JOIN.format(100, 1_000)).collect())) == sorted(
        (sums(100)[n], sums(1_000)[n]) for n in range(10)
    )


@pytest.mark.planted
def test_scans_that_are_taken_for_each_other_are_found(
    lake: el.Store, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted bug: the identity of a scan leaves out its filters."""
    monkeypatch.setattr(planned_query.PlannedQuery, "number_of", lambda query, filters: 0)
    fill(lake, 5_000)
    assert spark.sql(UNION.format(100, 1_000)).count() != 1_100


def test_equal_filters_of_one_query_share_a_shuffle(lake: el.Store, spark: SparkSession) -> None:
    fill(lake, 5_000)
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    try:
        frame = spark.sql(JOIN.format(1_000, 1_000))
        assert sorted(map(tuple, frame.collect())) == sorted((s, s) for s in sums(1_000).values())
        java: Any = frame._jdf
        assert "ReusedExchange" in java.queryExecution().executedPlan().toString()
    finally:
        spark.conf.unset("spark.sql.autoBroadcastJoinThreshold")


def test_a_frame_with_two_filters_has_the_rows_of_each(lake: el.Store, spark: SparkSession) -> None:
    """Each query plans its own scan: the filter of one leaves nothing behind in the frame."""
    fill(lake, 5_000)
    frame = spark.table("lake.t")
    assert [frame.where(text).count() for text in ("id < 10", "id >= 4990", "id < 10")] == [10, 10, 10]
    assert frame.count() == 5_000
    cached = frame.where("id < 10").select("n").cache()
    assert cached.count() == 10 and frame.where("id < 20").select("n").count() == 20


@pytest.mark.planted
def test_a_filter_that_a_bug_makes_too_narrow_is_found(
    lake: el.Store, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted bug: `<=` prunes as `<` does."""
    condition = importlib.import_module("epochlog.spark.catalog.condition")
    monkeypatch.setitem(condition._SIGNS, "<=", "less")
    fill(lake, 1_000)
    assert spark.table("lake.t").where("id <= 10").count() != 11
