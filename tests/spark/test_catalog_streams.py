"""Streams through the catalog: `readStream.table` and `writeStream.toTable`, from checkpoint to checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (Spark's own convention)

import epochlog as el
from epochlog.spark.errors import find_epochlog_error
from spark_store import ONE_EPOCH

pytestmark = pytest.mark.spark
ORDERS = pa.schema([("id", pa.int64()), ("day", pa.int64()), ("cents", pa.int64())])


@pytest.fixture
def lake(tmp_path: Path, spark: SparkSession) -> Iterator[el.Store]:
    with el.open(tmp_path / "lake") as store:
        store.create_table("orders", ORDERS, ["id"])
        store.create_table("copy", ORDERS, ["id"])
        store.create_table("totals", pa.schema([("day", pa.int64()), ("cents", pa.int64())]), ["day"])
        el.catalog(spark, store, name="lake")
        yield store


def put(store: el.Store, *rows: tuple[int, int, int]) -> None:
    columns = [list(column) for column in zip(*rows, strict=True)]
    store.table("orders").upsert(pa.table(columns, schema=ORDERS))


def run(frame: DataFrame, table: str, checkpoint: Path, mode: str = "append") -> None:
    writer: Any = frame.writeStream.outputMode(mode).trigger(availableNow=True)
    writer.option("checkpointLocation", str(checkpoint)).toTable(table).awaitTermination()


def test_a_table_is_streamed_into_another_and_goes_on(lake: el.Store, spark: SparkSession, tmp_path: Path) -> None:
    put(lake, (1, 1, 5), (2, 1, 7))
    orders = spark.readStream.table("lake.orders")
    assert orders.columns == ORDERS.names
    run(orders, "lake.copy", tmp_path / "one")
    assert lake.table("copy").to_arrow().equals(lake.table("orders").to_arrow())
    put(lake, (2, 2, 70), (3, 2, 9))
    run(orders, "lake.copy", tmp_path / "one")
    assert lake.table("copy").to_arrow().equals(lake.table("orders").to_arrow())
    assert lake.table("copy").history().num_rows == 2  # nothing twice
    run(orders, "lake.copy", tmp_path / "one")
    assert lake.table("copy").history().num_rows == 2


def test_deletes_are_streamed_with_their_change_type(lake: el.Store, spark: SparkSession, tmp_path: Path) -> None:
    put(lake, (1, 1, 5), (2, 1, 7))
    changes = spark.readStream.options(**ONE_EPOCH).table("lake.orders").select("*", "_change_type")
    run(changes, "lake.copy", tmp_path / "one")
    lake.table("orders").delete(pa.table({"id": [1]}))
    put(lake, (3, 3, 3))
    run(changes, "lake.copy", tmp_path / "one")
    assert lake.table("copy").to_arrow().equals(lake.table("orders").to_arrow())
    plain = spark.readStream.option("startingVersion", "earliest").table("lake.orders")
    with pytest.raises(Exception, match="InvalidInput.*deletes.*_change_type"):
        run(plain, "lake.copy", tmp_path / "two")


def test_a_stream_does_not_write_through_a_tag(lake: el.Store, spark: SparkSession, tmp_path: Path) -> None:
    put(lake, (1, 1, 5))
    lake.tag("nightly")
    with pytest.raises(Exception, match="NotWritable.*epoch of the past"):
        run(spark.readStream.table("lake.orders"), "lake.nightly.copy", tmp_path / "one")
    assert lake.table("copy").count() == 0


def test_an_aggregate_in_update_mode_upserts(lake: el.Store, spark: SparkSession, tmp_path: Path) -> None:
    put(lake, (1, 1, 5), (2, 1, 7))
    totals = spark.readStream.table("lake.orders").groupBy("day").agg(F.sum("cents").alias("cents"))
    run(totals, "lake.totals", tmp_path / "one", "update")
    put(lake, (3, 1, 1), (4, 2, 2))
    run(totals, "lake.totals", tmp_path / "one", "update")
    assert lake.table("totals").to_arrow().to_pylist() == [{"day": 1, "cents": 13}, {"day": 2, "cents": 2}]


def test_a_stream_joined_with_a_table_reads_its_newest_moment(
    lake: el.Store, spark: SparkSession, tmp_path: Path
) -> None:
    days = lake.create_table("days", pa.schema([("day", pa.int64()), ("factor", pa.int64())]), ["day"])
    days.upsert(pa.table({"day": [1], "factor": [10]}))
    joined = spark.readStream.table("lake.orders").join(spark.table("lake.days"), "day")
    scaled = joined.select("id", "day", (F.col("cents") * F.col("factor")).alias("cents"))
    put(lake, (1, 1, 5))
    run(scaled, "lake.copy", tmp_path / "one")
    days.upsert(pa.table({"day": [1], "factor": [100]}))
    put(lake, (2, 1, 5))
    run(scaled, "lake.copy", tmp_path / "one")
    assert lake.table("copy").to_arrow()["cents"].to_pylist() == [50, 500]


def test_streams_and_batches_are_not_mixed_up(lake: el.Store, spark: SparkSession, tmp_path: Path) -> None:
    put(lake, (1, 1, 5))
    with pytest.raises(Exception, match="InvalidInput.*_change_type is of streams"):
        spark.sql("SELECT id, _change_type FROM lake.orders").collect()
    with pytest.raises(Exception, match="InvalidInput.*startingVersion is of streams"):
        spark.read.option("startingVersion", "1").table("lake.orders").collect()
    with pytest.raises(Exception, match="InvalidInput.*takes no option columns"):
        run(spark.readStream.option("columns", "id").table("lake.orders"), "lake.copy", tmp_path / "two")
    lake.snapshot().tag("nightly", 3600)
    nightly = spark.readStream.table("lake.nightly.orders")
    with pytest.raises(Exception, match="InvalidInput.*a stream reads changes, not one moment"):
        run(nightly, "lake.copy", tmp_path / "three")


def feed(spark: SparkSession, clause: str) -> list[tuple[Any, ...]]:
    query = f"SELECT _change_type, id, day, cents, _commit_version FROM lake.orders CHANGES {clause}"
    return sorted(tuple(row) for row in spark.sql(query).collect())


@pytest.mark.needs("changes")
def test_changes_are_those_of_the_log(lake: el.Store, spark: SparkSession) -> None:
    orders = lake.table("orders")
    first, second = (
        orders.upsert(pa.table([[1, 2], [1, 1], [5, 7]], schema=ORDERS)),
        orders.delete(pa.table({"id": [1]})),
    )
    put(lake, (2, 2, 70))
    third = max(orders.history()["epoch"].to_pylist())
    inserted = [("insert", 1, 1, 5, first), ("insert", 2, 1, 7, first)]
    deleted = [("delete", 1, 1, 5, second)]
    updated = [("update_postimage", 2, 2, 70, third), ("update_preimage", 2, 1, 7, third)]
    assert feed(spark, f"FROM VERSION {first} TO VERSION {third}") == [*deleted, *inserted, *updated]
    assert feed(spark, f"FROM VERSION {first} EXCLUSIVE TO VERSION {second} INCLUSIVE") == deleted
    assert feed(spark, f"FROM VERSION {second} TO VERSION {third} EXCLUSIVE") == deleted
    assert feed(spark, f"FROM VERSION {third}") == updated
    assert feed(spark, "FROM TIMESTAMP '2020-01-01'") == [*deleted, *inserted, *updated]
    for nothing in (
        "2020-01-01' TO TIMESTAMP '2024-06-01'",
        "2030-01-01'",
        "2099-01-01'",
        "2099-01-01' TO TIMESTAMP '2399-01-01'",
    ):
        assert feed(spark, f"FROM TIMESTAMP '{nothing}") == []
    counted = spark.sql(f"SELECT count(*) FROM lake.orders CHANGES FROM VERSION {first} TO VERSION {third}").collect()
    assert counted[0][0] == 5
    reader = spark.read.option("startingVersion", str(second)).option("endingVersion", str(third))
    assert reader.changes("lake.orders").count() == 3
    with pytest.raises(Exception, match="InvalidInput.*takes no option columns; it takes startingVersion"):
        reader.option("columns", "id").changes("lake.orders").count()
    with pytest.raises(Exception, match="InvalidInput.*CHANGES takes epochs"):
        feed(spark, "FROM VERSION 'nightly'")
    with pytest.raises(Exception, match="TABLE_OR_VIEW_NOT_FOUND"):
        spark.sql("SELECT * FROM lake.nothing CHANGES FROM VERSION 1").collect()


def test_changes_are_joined_with_a_table_at_a_version(lake: el.Store, spark: SparkSession, tmp_path: Path) -> None:
    put(lake, (1, 1, 5))
    first = lake.last_epoch
    put(lake, (2, 1, 7))
    last = lake.last_epoch
    changes = spark.readStream.option("startingVersion", first + 1).table("lake.orders").select("id", "_commit_version")
    joined = changes.join(spark.sql(f"SELECT id AS key FROM lake.orders VERSION AS OF {last}"), F.expr("id = key"))
    joined_rows: list[tuple[int, int, int]] = []
    writer = joined.writeStream.trigger(availableNow=True).option("checkpointLocation", str(tmp_path / "joined"))
    writer.foreachBatch(
        lambda frame, _batch: joined_rows.extend(map(tuple, frame.collect()))
    ).start().awaitTermination()
    assert joined_rows == [(2, last, 2)]


def test_an_error_of_a_stream_is_known_by_its_type(lake: el.Store, spark: SparkSession, tmp_path: Path) -> None:
    """Spark puts the text of such an error in the middle of a line of its own."""
    put(lake, (1, 1, 5))
    lake.table("orders").delete(pa.table({"id": [1]}))
    orders = spark.readStream.option("startingVersion", "earliest").table("lake.orders")
    with pytest.raises(StreamingQueryException) as deletes:
        run(orders, "lake.copy", tmp_path / "one")
    error = find_epochlog_error(deletes.value)
    assert isinstance(error, el.InvalidInput) and str(error).startswith("table orders: the next changes"), error
    changes = spark.readStream.table("lake.orders").select("*", "_change_type")
    run(changes, "lake.copy", tmp_path / "two")
    for number in range(3):
        put(lake, (number, 1, 5))
    lake.table("orders").truncate_log(lake.last_epoch)
    put(lake, (9, 1, 5))
    with pytest.raises(StreamingQueryException) as truncated:
        run(changes, "lake.copy", tmp_path / "two")
    assert isinstance(find_epochlog_error(truncated.value), el.LogTruncated)
    lake.tag("nightly")
    with pytest.raises(StreamingQueryException) as past:
        run(orders, "lake.nightly.copy", tmp_path / "three")
    error = find_epochlog_error(past.value)
    assert isinstance(error, el.NotWritable) and str(error).endswith("write to lake.copy"), past.value
