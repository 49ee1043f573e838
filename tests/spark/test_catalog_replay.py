"""Streams of the catalog: a replayed micro-batch lands once; sessions, pre-images, and CHANGES beside the feed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (Spark's own convention)

import epochlog as el

pytestmark = pytest.mark.spark
ORDERS = pa.schema([("id", pa.int64()), ("day", pa.int64()), ("cents", pa.int64())])
TOTALS = pa.schema([("day", pa.int64()), ("cents", pa.int64())])


@pytest.fixture
def lake(tmp_path: Path, spark: SparkSession) -> Iterator[el.Store]:
    with el.open(tmp_path / "lake") as store:
        store.create_table("orders", ORDERS, ["id"])
        store.create_table("copy", ORDERS, ["id"])
        store.create_table("totals", TOTALS, ["day"])
        el.catalog(spark, store, name="lake")
        yield store


def put(store: el.Store, *rows: tuple[int, int, int]) -> int:
    columns = [list(column) for column in zip(*rows, strict=True)]
    return store.table("orders").upsert(pa.table(columns, schema=ORDERS))


def run(frame: DataFrame, table: str, checkpoint: Path, mode: str = "append") -> None:
    writer: Any = frame.writeStream.outputMode(mode).trigger(availableNow=True)
    writer.option("checkpointLocation", str(checkpoint)).toTable(table).awaitTermination()


def forget_last_commit(checkpoint: Path) -> None:
    """Leave the checkpoint of a query that died after the sink's commit of its last batch, and before Spark's."""
    commits = checkpoint / "commits"
    last = max((path for path in commits.iterdir() if path.name.isdecimal()), key=lambda path: int(path.name))
    last.unlink()
    (commits / f".{last.name}.crc").unlink(missing_ok=True)


@pytest.mark.long
@pytest.mark.parametrize("mode", ["append", "update"])
def test_a_replayed_batch_lands_once(lake: el.Store, spark: SparkSession, tmp_path: Path, mode: str) -> None:
    target, orders = ("copy" if mode == "append" else "totals"), spark.readStream.table("lake.orders")
    frame = orders if mode == "append" else orders.groupBy("day").agg(F.sum("cents").alias("cents"))
    put(lake, (1, 1, 5), (2, 1, 7))
    run(frame, f"lake.{target}", tmp_path / "one", mode)
    before = lake.table(target).history()["epoch"].to_pylist()
    assert len(before) == 1
    forget_last_commit(tmp_path / "one")
    last = put(lake, (3, 2, 9))
    run(frame, f"lake.{target}", tmp_path / "one", mode)
    after = sorted(lake.table(target).history()["epoch"].to_pylist())
    assert after[:-1] == before, "the replayed batch has landed again"
    assert after[-1] > last
    expected = [(1, 1, 5), (2, 1, 7), (3, 2, 9)] if mode == "append" else [(1, 12), (2, 9)]
    assert [tuple(row.values()) for row in lake.table(target).to_arrow().to_pylist()] == expected


def test_pre_images_without_their_change_type_are_refused(lake: el.Store, spark: SparkSession, tmp_path: Path) -> None:
    put(lake, (1, 1, 5))
    put(lake, (1, 1, 7))
    images = spark.readStream.option("startingVersion", "earliest").option("preImages", "true").table("lake.orders")
    with pytest.raises(Exception, match="InvalidInput.*preImages.*_change_type"):
        run(images, "lake.copy", tmp_path / "one")
    assert lake.table("copy").count() == 0


@pytest.mark.long
def test_a_new_session_and_that_of_a_micro_batch_have_the_catalog(
    lake: el.Store, spark: SparkSession, tmp_path: Path
) -> None:
    put(lake, (1, 1, 5), (2, 1, 7))
    session = spark.newSession()
    el.catalog(session, lake, name="lake")
    run(session.readStream.table("lake.orders"), "lake.copy", tmp_path / "one")
    assert lake.table("copy").to_arrow().equals(lake.table("orders").to_arrow())
    seen: list[int] = []

    def look(frame: DataFrame, _: int) -> None:
        el.catalog(frame.sparkSession, lake, name="lake")
        seen.append(frame.join(frame.sparkSession.table("lake.copy"), "id").count())
        frame.groupBy("day").agg(F.sum("cents").alias("cents")).writeTo("lake.totals").append()

    writer: Any = session.readStream.table("lake.orders").writeStream.foreachBatch(look).trigger(availableNow=True)
    writer.option("checkpointLocation", str(tmp_path / "two")).start().awaitTermination()
    assert seen == [2]
    assert lake.table("totals").to_arrow().to_pylist() == [{"day": 1, "cents": 12}]


@pytest.mark.needs("changes")
def test_changes_equal_the_feed_of_the_table(lake: el.Store, spark: SparkSession) -> None:
    first = put(lake, (1, 1, 5), (2, 1, 7))
    put(lake, (2, 1, 8), (3, 1, 1))
    lake.table("orders").delete(pa.table({"id": [1]}))
    last = put(lake, (1, 4, 4))
    columns = [*ORDERS.names, "_change_type", "_commit_version", "_commit_timestamp"]
    feed = spark.read.format("epochlog").option("path", lake.root).option("table", "orders")
    feed = feed.option("readChangeFeed", "true").option("preImages", "true")
    clause = f"FROM VERSION {first} TO VERSION {last}"
    changes = spark.sql(f"SELECT * FROM lake.orders CHANGES {clause}")
    assert changes.columns == columns
    expected = feed.option("startingVersion", first).option("endingVersion", last).load().select(*columns)
    assert changes.count() == 7
    assert sorted(map(tuple, changes.collect()), key=str) == sorted(map(tuple, expected.collect()), key=str)
