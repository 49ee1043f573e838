"""Cached frames of a catalog, seen by a column that each computation fills anew, and shuffles that a query reuses."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (Spark's own convention)

import epochlog as el
from spark_needs import cases, has

pytestmark = pytest.mark.spark
SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.int64())])


@pytest.fixture
def lake(tmp_path: Path, spark: SparkSession) -> Iterator[el.Store]:
    """A store with two tables and a tag, as the catalog `lake`; Spark's cache is empty at the end."""
    with el.open(tmp_path / "lake") as store:
        for name in ("orders", "days"):
            store.create_table(name, SCHEMA, ["id"]).upsert([{"id": 1, "day": 1}])
        store.snapshot().tag("nightly")
        el.catalog(spark, store, name="lake")
        yield store
        spark.catalog.clearCache()


def marked(frame: DataFrame) -> DataFrame:
    """Return the frame with a column that tells one computation of a row from another."""
    mark = F.udf(lambda _: uuid.uuid4().hex, "string").asNondeterministic()
    return frame.select("id", mark("id").alias("mark"))


def marks(frame: DataFrame) -> dict[int, str]:
    """Return the mark of each row, by a new frame that is made of `frame`."""
    return {row.id: row.mark for row in frame.where("id > 0").collect()}


CURRENT: dict[str, Callable[[SparkSession], DataFrame]] = {
    "table": lambda spark: spark.table("lake.orders"),
    "statement": lambda spark: spark.sql("SELECT o.id FROM lake.orders o JOIN lake.orders p USING (id)"),
}
FIXED: dict[str, Callable[[SparkSession], DataFrame]] = {
    "version": lambda spark: spark.sql("SELECT * FROM lake.orders VERSION AS OF 'nightly'"),
    "tag": lambda spark: spark.table("lake.nightly.orders"),
    "changes": lambda spark: spark.read.option("startingVersion", "0").changes("lake.orders"),
}
FIXED_FORMS = cases({form: form for form in FIXED}, "changes", of="changes".__eq__)


@pytest.mark.parametrize("form", [*CURRENT, *FIXED_FORMS])
def test_a_cached_frame_is_kept_while_its_tables_do_not_change(lake: el.Store, spark: SparkSession, form: str) -> None:
    frame = marked({**CURRENT, **FIXED}[form](spark)).cache()
    kept = marks(frame)
    assert marks(frame) == kept
    lake.table("days").upsert([{"id": 2, "day": 2}])
    assert marks(frame) == kept, "another table has changed"
    assert {row.id: row.mark for row in frame.collect()} == kept
    frame.unpersist()
    assert marks(frame).keys() == kept.keys()
    assert marks(frame) != kept


@pytest.mark.parametrize("form", CURRENT)
def test_after_a_commit_a_cached_frame_keeps_its_rows_and_frames_made_of_it_are_read_anew(
    lake: el.Store, spark: SparkSession, form: str
) -> None:
    frame = marked(CURRENT[form](spark)).cache()
    kept = marks(frame)
    lake.table("orders").upsert([{"id": 2, "day": 2}])
    assert {row.id: row.mark for row in frame.collect()} == kept
    if not has("refresh"):  # this Spark takes the rows of a cached frame for all that is made of it
        assert marks(frame) == kept
        frame.unpersist()
    newer = marks(frame)
    assert newer.keys() == {1, 2}
    assert newer[1] != kept[1]
    assert frame.count() == 2
    again = marked(CURRENT[form](spark)).cache()
    assert marks(again) == marks(again), "a frame of the new rows is cached beside it"


@pytest.mark.parametrize("form", FIXED_FORMS)
def test_a_cached_frame_of_one_moment_outlasts_commits(lake: el.Store, spark: SparkSession, form: str) -> None:
    frame = marked(FIXED[form](spark)).cache()
    kept = marks(frame)
    lake.table("orders").upsert([{"id": 2, "day": 2}])
    assert marks(frame) == kept
    assert frame.count() == 1


def test_a_cached_frame_that_is_the_table_itself_pins_the_table(lake: el.Store, spark: SparkSession) -> None:
    """It is Spark's CACHE TABLE, as SPARK.md says: queries that name the table do not ask for it again."""
    frame = spark.table("lake.orders").cache()
    lake.table("orders").upsert([{"id": 2, "day": 2}])
    count = "SELECT COUNT(*) FROM lake.orders"
    assert frame.where("true").count() == 1
    assert spark.sql(count).collect()[0][0] == (1 if has("refresh") else 2)
    frame.unpersist()
    assert spark.sql(count).collect()[0][0] == spark.table("lake.orders").select("id").cache().count() == 2
    lake.table("orders").upsert([{"id": 3, "day": 3}])
    assert spark.sql(count).collect()[0][0] == 3, "a projection is no such frame"


def test_cached_results_and_tables_in_sql(lake: el.Store, spark: SparkSession) -> None:
    spark.udf.register("mark", F.udf(lambda _: uuid.uuid4().hex, "string").asNondeterministic())
    spark.sql("CACHE TABLE result AS SELECT id, mark(id) AS mark FROM lake.orders")
    kept = marks(spark.table("result"))
    assert marks(spark.table("result")) == kept
    lake.table("orders").upsert([{"id": 2, "day": 2}])
    assert marks(spark.table("result")).keys() == {1, 2}, "it is a view, whose rows are read anew"
    spark.sql("UNCACHE TABLE result")
    spark.sql("CACHE TABLE fixed AS SELECT id, mark(id) AS mark FROM lake.orders VERSION AS OF 'nightly'")
    kept = marks(spark.table("fixed"))
    lake.table("orders").upsert([{"id": 3, "day": 3}])
    assert marks(spark.table("fixed")) == kept
    spark.sql("UNCACHE TABLE fixed")


def test_a_write_by_spark_fills_the_caches_of_its_session_anew(lake: el.Store, spark: SparkSession) -> None:
    frame = marked(spark.table("lake.orders")).cache()
    assert marks(frame).keys() == {1}
    spark.sql("INSERT INTO lake.orders VALUES (2, 2)")
    newer = marks(frame)
    assert newer.keys() == {1, 2}
    assert marks(frame) == newer


def test_a_query_shuffles_equal_rows_once(lake: el.Store, spark: SparkSession) -> None:
    for query in ("lake.orders", *(["lake.orders CHANGES FROM VERSION 0"] if has("changes") else [])):
        days = f"(SELECT day, count(*) AS n FROM {query} GROUP BY day)"
        joined: Any = spark.sql(f"SELECT /*+ MERGE(y) */ x.n, y.n FROM {days} x JOIN {days} y USING (day)")
        assert "ReusedExchange" in joined._jdf.queryExecution().executedPlan().toString()
        assert [tuple(row) for row in joined.collect()] == [(1, 1)]
    other: Any = spark.sql("SELECT x.day FROM lake.orders x JOIN lake.days y USING (day)")
    assert "ReusedExchange" not in other._jdf.queryExecution().executedPlan().toString()


def test_tables_are_equal_until_they_change(lake: el.Store, spark: SparkSession) -> None:
    def table(name: str = "lake.orders") -> Any:
        frame: Any = spark.table(name)
        return frame._jdf.queryExecution().analyzed().collectLeaves().head().table()

    first = table()
    assert first.equals(first)
    assert first.equals(table())
    assert first.hashCode() == table().hashCode()
    assert not first.equals(table("lake.days"))
    assert not first.equals(first.name())
    assert not first.equals(None)
    lake.table("days").upsert([{"id": 2, "day": 2}])
    assert first.equals(table())
    lake.table("orders").upsert([{"id": 2, "day": 2}])
    assert not first.equals(table())
