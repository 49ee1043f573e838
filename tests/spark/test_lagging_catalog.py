"""Statements of a catalog while a view lags: what reads no rows takes the newest definition of a table at once, and a
query still reads all tables at one epoch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

import epochlog as el
from epochlog.spark.catalog.catalog import StoreCatalog
from epochlog.spark.catalog.query_epochs import LoadedTable
from spark_store import refusal

pytestmark = pytest.mark.spark
ORDERS = pa.schema([("id", pa.int64()), ("day", pa.string()), ("cents", pa.int64())])
NEW = "CREATE TABLE lake.t (id BIGINT, n INT) TBLPROPERTIES (primary_key = 'id')"
Rows = set[tuple[Any, ...]]


@pytest.fixture
def store(tmp_path: Path, spark: SparkSession) -> Iterator[el.Store]:
    """A store with a view that has not read the newest commit of `orders`, as the catalog `lake`."""
    with el.open(tmp_path / "lake") as opened:
        orders = opened.create_table("orders", ORDERS, ["id"])
        orders.upsert([{"id": 1, "day": "mon", "cents": 100}, {"id": 2, "day": "tue", "cents": 7}])
        opened.checkpoint()
        query = "SELECT day, SUM(cents) AS cents FROM orders GROUP BY day"
        opened.create_view("revenue", query, primary_key=["day"]).step()
        orders.upsert([{"id": 3, "day": "mon", "cents": 1}])
        el.catalog(spark, opened, "lake")
        yield opened
        spark.sql("USE spark_catalog.default")


def catch_up(store: el.Store) -> None:
    store.checkpoint()
    while store.view("revenue").step() is not None:
        pass


def newest(store: el.Store, name: str) -> Rows:
    return {tuple(row.values()) for row in store.table(name).to_arrow().to_pylist()}


def read(spark: SparkSession, query: str) -> Rows:
    return {tuple(row) for row in spark.sql(query).collect()}


def described(spark: SparkSession, name: str) -> list[str]:
    return [row.col_name for row in spark.sql(f"DESCRIBE lake.{name}").collect()]


# ---- a table that was made after the epoch at which queries read -----------------------------------------------------


def sql(text: str) -> Callable[[DataFrame], object]:
    return lambda frame: frame.sparkSession.sql(text)


WRITTEN: dict[str, Callable[[DataFrame], object]] = {
    "INSERT": sql("INSERT INTO lake.t VALUES (7, 70)"),
    "INSERT SELECT": sql("INSERT INTO lake.t SELECT id + 6, 70 FROM lake.orders WHERE id = 1"),
    "INSERT OVERWRITE": sql("INSERT OVERWRITE lake.t VALUES (7, 70)"),
    "append": lambda frame: frame.writeTo("lake.t").append(),
    "insertInto": lambda frame: frame.write.insertInto("lake.t"),
    "saveAsTable": lambda frame: frame.write.mode("append").saveAsTable("lake.t"),
}  # fmt: skip


@pytest.mark.parametrize("way", WRITTEN)
def test_a_new_table_takes_rows_at_once(store: el.Store, spark: SparkSession, way: str) -> None:
    spark.sql(NEW)
    WRITTEN[way](spark.createDataFrame([(7, 70)], "id long, n int"))
    assert newest(store, "t") == {(7, 70)}
    assert spark.table("lake.orders").count() == 2, "queries still read where the view agrees"


def test_a_new_table_is_a_sink_and_a_source_of_streams_at_once(
    store: el.Store, spark: SparkSession, tmp_path: Path
) -> None:
    for name in ("t", "copied"):
        spark.sql(NEW.replace("lake.t", f"lake.{name}"))
    spark.sql("INSERT INTO lake.t VALUES (7, 70)")
    writer = spark.readStream.table("lake.t").writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(availableNow=True).toTable("lake.copied").awaitTermination()
    assert newest(store, "copied") == {(7, 70)}


def test_a_new_table_loses_rows_at_once(store: el.Store, spark: SparkSession) -> None:
    spark.sql(NEW)
    spark.sql("INSERT INTO lake.t VALUES (7, 70), (8, 80), (9, 90)")
    spark.sql("DELETE FROM lake.t WHERE n = 80")
    assert newest(store, "t") == {(7, 70), (9, 90)}
    spark.sql("DELETE FROM lake.t")
    spark.sql("INSERT INTO lake.t VALUES (7, 70)")
    spark.sql("TRUNCATE TABLE lake.t")
    assert newest(store, "t") == set()
    spark.sql("DROP TABLE lake.t")
    assert not spark.catalog.tableExists("lake.t")


def test_a_new_table_is_described_and_altered_at_once(store: el.Store, spark: SparkSession) -> None:
    spark.sql(NEW)
    assert spark.catalog.tableExists("lake.t") and spark.catalog.getTable("lake.t").name == "t"
    assert [column.name for column in spark.catalog.listColumns("lake.t")] == described(spark, "t") == ["id", "n"]
    assert "`n` INT" in spark.sql("SHOW CREATE TABLE lake.t").collect()[0][0].replace("n INT", "`n` INT")
    assert read(spark, "SHOW TBLPROPERTIES lake.t") == {("primary_key", "id")}, "no epoch at which a query reads it"
    spark.sql("ALTER TABLE lake.t ADD COLUMNS (text STRING)")
    spark.sql("ALTER TABLE lake.t RENAME COLUMN text TO words")
    spark.sql("ALTER TABLE lake.t ALTER COLUMN n TYPE BIGINT")
    assert described(spark, "t") == ["id", "n", "words"]
    spark.sql("ALTER TABLE lake.t DROP COLUMN words")
    assert described(spark, "t") == ["id", "n"]


def test_a_query_of_a_new_table_names_the_view_to_wait_for(store: el.Store, spark: SparkSession) -> None:
    spark.sql(NEW)
    spark.sql("INSERT INTO lake.t VALUES (1, 10)")
    for query in ("SELECT * FROM lake.t", "SELECT n FROM lake.orders JOIN lake.t USING (id)", "CACHE TABLE lake.t"):
        text = refusal(lambda query=query: spark.sql(query).collect())
        assert text.startswith("TableNotReadable: t cannot be read: t was created at "), text
        assert "revenue is committed through" in text and "does not reflect the change of orders" in text, text
        wait = re.search(
            r"store\.snapshot\(\['t', 'revenue'\], consistency=el\.AtLeast\((\d+), timeout=60\)\)\.close", text
        )
        assert wait is not None and "consistency='aligned', tables=['t'])" in text, text
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(store.snapshot, ["t", "revenue"], consistency=el.AtLeast(int(wait[1]), timeout=60))
        catch_up(store)
        waiting.result().close()
    assert read(spark, "SELECT cents, n FROM lake.orders JOIN lake.t USING (id)") == {(100, 10)}


# ---- a table that was altered after the epoch at which queries read --------------------------------------------------


def test_an_alter_counts_at_once_in_all_but_queries(store: el.Store, spark: SparkSession) -> None:
    frame = spark.table("lake.orders")
    spark.sql("ALTER TABLE lake.orders ADD COLUMNS (note STRING)")
    assert described(spark, "orders") == ["id", "day", "cents", "note"]
    with pytest.raises(AnalysisException, match="FIELD_ALREADY_EXISTS|FIELDS_ALREADY_EXISTS"):
        spark.sql("ALTER TABLE lake.orders ADD COLUMNS (note STRING)")
    spark.sql("ALTER TABLE lake.orders RENAME COLUMN note TO remark")
    spark.sql("INSERT INTO lake.orders VALUES (4, 'wed', 9, 'new'), (5, 'wed', 9, 'gone')")
    spark.sql("DELETE FROM lake.orders WHERE remark = 'gone'")
    old = {(1, "mon", 100), (2, "tue", 7)}
    assert newest(store, "orders") == {(*row, None) for row in (*old, (3, "mon", 1))} | {(4, "wed", 9, "new")}
    assert read(spark, "SELECT * FROM lake.orders") == {tuple(row) for row in frame.collect()} == old
    assert read(spark, "SELECT o.cents, r.cents FROM lake.orders o JOIN lake.revenue r USING (day)") == {
        (100, 100),
        (7, 7),
    }
    catch_up(store)
    assert len(read(spark, "SELECT remark FROM lake.orders")) == 2
    spark.sql("ALTER TABLE lake.orders DROP COLUMN remark")
    assert described(spark, "orders") == ["id", "day", "cents"]


def test_a_query_of_a_new_column_says_when_it_will_be_read(store: el.Store, spark: SparkSession) -> None:
    spark.sql("ALTER TABLE lake.orders ADD COLUMNS (note STRING)")
    text = refusal(lambda: spark.sql("SELECT id, note FROM lake.orders").collect())
    assert text.startswith("TableNotReadable: lake.orders has the column note since epoch "), text
    assert "revenue is committed through" in text, text
    catch_up(store)
    assert read(spark, "SELECT note FROM lake.orders") == {(None,)}


# ---- other catalogs --------------------------------------------------------------------------------------------------


def test_a_write_does_not_wait_for_the_epoch_of_reads(store: el.Store, spark: SparkSession) -> None:
    store.create_view("never", "SELECT id, cents FROM orders", primary_key=["id"])
    el.catalog(spark, store, "both", tables=["orders", "never"])
    assert refusal(lambda: spark.table("both.orders").collect()).startswith("NoConsistentEpoch: ")
    spark.sql("INSERT INTO both.orders VALUES (4, 'wed', 9)")
    spark.sql("DELETE FROM both.orders WHERE id = 4")
    assert [row.col_name for row in spark.sql("DESCRIBE both.orders").collect()] == ["id", "day", "cents"]
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND|no table 'revenue'"):
        spark.sql("INSERT INTO both.revenue VALUES ('wed', 9)")


def test_the_past_is_described_as_it_was(store: el.Store, spark: SparkSession) -> None:
    store.tag("before")
    epoch = store.last_epoch
    spark.sql("ALTER TABLE lake.orders ADD COLUMNS (note STRING)")
    el.catalog(spark, store, "old", "as_of", epoch=epoch)
    for name in ("lake.before.orders", "old.orders"):
        assert [row.col_name for row in spark.sql(f"DESCRIBE {name}").collect()] == ["id", "day", "cents"]


# ---- the law ---------------------------------------------------------------------------------------------------------

JOIN = "SELECT o.day, SUM(o.cents), MAX(r.cents) FROM lake.orders o JOIN lake.revenue r USING (day) GROUP BY o.day"


def disagreements(spark: SparkSession) -> Rows:
    """Return the rows of `JOIN` in which the view is not the sum of its table."""
    return {row for row in read(spark, JOIN) if row[1] != row[2]}


def test_a_definition_is_never_read(store: el.Store, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug that takes a query for DDL makes no wrong rows: the scan refuses a table without an epoch."""
    spark.sql("ALTER TABLE lake.orders ADD COLUMNS (note STRING)")
    assert not disagreements(spark)
    monkeypatch.setattr(StoreCatalog, "_reads_no_rows", lambda self: True)
    assert refusal(lambda: read(spark, JOIN)).startswith(
        "TableNotReadable: table 'orders' was loaded to write or alter"
    )


@pytest.mark.planted
def test_a_query_that_reads_the_newest_definition_is_noticed(
    store: el.Store, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark.sql("ALTER TABLE lake.orders ADD COLUMNS (note STRING)")
    monkeypatch.setattr(StoreCatalog, "_reads_no_rows", lambda self: True)
    monkeypatch.setattr(LoadedTable, "rows_at", property(lambda self: self.epoch or store.last_epoch))
    assert disagreements(spark) == {("mon", 101, 100)}
