"""A statement that writes a table from older rows of it is refused: it would undo newer commits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import epochlog as el
from spark_store import refusal

pytestmark = pytest.mark.spark
ORDERS = pa.schema([("id", pa.int64()), ("day", pa.string()), ("cents", pa.int64())])


@pytest.fixture
def store(tmp_path: Path, spark: SparkSession) -> Iterator[el.Store]:
    """A store with a view that has not read the newest commit of `orders`."""
    with el.open(tmp_path / "lake") as opened:
        orders = opened.create_table("orders", ORDERS, ["id"])
        opened.create_table("others", ORDERS, ["id"])
        orders.upsert([{"id": 1, "day": "mon", "cents": 100}, {"id": 2, "day": "tue", "cents": 7}])
        opened.checkpoint()
        view = opened.create_view(
            "revenue", "SELECT day, SUM(cents) AS cents FROM orders GROUP BY day", primary_key=["day"]
        )
        view.step()
        el.catalog(spark, opened, "lake")
        spark.sql("INSERT INTO lake.orders VALUES (50, 'mon', 1)")
        yield opened


def newest(store: el.Store) -> dict[int, int]:
    rows = store.table("orders").to_arrow()
    return dict(zip(rows["id"].to_pylist(), rows["cents"].to_pylist(), strict=True))


@pytest.mark.parametrize("statement", [
    "INSERT OVERWRITE lake.orders SELECT * FROM lake.orders",
    "INSERT INTO lake.orders SELECT id, day, cents + 1000 FROM lake.orders WHERE id = 1",
    "INSERT INTO lake.orders SELECT a.id, a.day, b.cents FROM lake.others AS b JOIN lake.orders AS a ON a.id = b.id",
    "WITH old AS (SELECT * FROM lake.orders) INSERT OVERWRITE lake.orders SELECT id, day, cents FROM old WHERE id < 9",
])  # fmt: skip
def test_a_statement_that_would_undo_newer_rows_is_refused(
    store: el.Store, spark: SparkSession, statement: str
) -> None:
    before = newest(store)
    assert before == {1: 100, 2: 7, 50: 1} and spark.table("lake.orders").count() == 2
    text = refusal(lambda: spark.sql(statement).collect())
    assert text.startswith("NotWritable: lake.orders: this statement writes the table and reads it at epoch"), text
    assert "consistency='latest'" in text and newest(store) == before


def test_a_frame_that_would_undo_newer_rows_is_refused(store: el.Store, spark: SparkSession) -> None:
    before = newest(store)
    frame = spark.table("lake.orders").selectExpr("id", "day", "cents + 1 AS cents")
    for write in (frame.writeTo("lake.orders").append, lambda: frame.write.insertInto("lake.orders")):
        assert refusal(write).startswith("NotWritable: lake.orders: this statement writes")
    assert newest(store) == before


def test_statements_that_undo_nothing_are_taken(store: el.Store, spark: SparkSession) -> None:
    spark.sql("INSERT INTO lake.others SELECT * FROM lake.orders")
    spark.sql("INSERT INTO lake.orders SELECT id + 2 AS id, 'tue' AS day, 8 AS cents FROM range(1)")
    assert newest(store) == {1: 100, 2: 8, 50: 1}
    first = store.table("orders").history()["epoch"].to_pylist()[-1]
    spark.sql(f"INSERT OVERWRITE lake.orders SELECT * FROM lake.orders VERSION AS OF {first}")  # named: meant
    assert newest(store) == {1: 100, 2: 7}
    el.catalog(spark, store, "now", consistency="latest")
    spark.sql("INSERT INTO now.orders VALUES (51, 'mon', 1)")
    spark.sql("INSERT INTO now.orders SELECT id, day, cents + 1000 FROM now.orders WHERE id > 1")
    assert newest(store) == {1: 100, 2: 1007, 51: 1001}
    assert spark.table("lake.orders").count() == 2
    store.checkpoint()
    while store.view("revenue").step() is not None:
        pass
    spark.sql("INSERT INTO lake.orders SELECT id, day, cents + 1 FROM lake.orders")
    assert newest(store) == {1: 101, 2: 1008, 51: 1002}
