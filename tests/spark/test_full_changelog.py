"""A table that stores old rows with its log: written by every Spark sink, its feed read by Spark."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from pyspark.sql.functions import count
from pyspark.sql.functions import sum as total

import epochlog as el
from spark_store import SCHEMA, rows

pytestmark = pytest.mark.spark
FORGETFUL = el.TableOptions(history_retention=timedelta(0))


def changes_after(lake: Any, after: int) -> list[tuple[str, int, float]]:
    """Read the change feed of `full` past an epoch by Spark, when only the table's newest state is left."""
    lake.store.compact("full", full=True)
    table = lake.store.table("full")
    assert table.info.safe_epoch > after
    feed = lake.read("full", readChangeFeed=True, startingVersion=after + 1, preImages=True)
    spark_rows = sorted((row.id, row._change_type, row.amount) for row in feed.collect())
    local = table.changes(after, pre_images=True).read_all()
    assert spark_rows == sorted(
        zip(*(local[name].to_pylist() for name in ("id", "_change_type", "amount")), strict=True)
    )
    return [(kind, key, amount) for key, kind, amount in spark_rows]


def test_every_sink_stores_what_it_replaces(lake) -> None:
    table = lake.store.create_table("full", SCHEMA, ["id"], changelog="full", options=FORGETFUL)
    frame = lake.spark.createDataFrame
    start = table.upsert(rows(0, 3))

    lake.write(frame(rows(2, 2, amount=5.0)), "full")
    assert changes_after(lake, start) == [
        ("update_postimage", 2, 10.0),
        ("update_preimage", 2, 2.0),
        ("insert", 3, 15.0),
    ]
    at = table.info.max_committed_epoch
    lake.write(frame(rows(1, 2, amount=9.0)), "full", mode="overwrite")
    assert changes_after(lake, at) == [
        ("delete", 0, 0.0),
        ("update_postimage", 1, 9.0),
        ("update_preimage", 1, 1.0),
        ("update_postimage", 2, 18.0),
        ("update_preimage", 2, 10.0),
        ("delete", 3, 15.0),
    ]
    at = table.info.max_committed_epoch
    write = el.sink({"full": None}, app_id="sink", path=lake.root)
    for _ in range(2):  # the second time it has landed
        write(frame(rows(2, 1, amount=1.0)), 0)
    assert changes_after(lake, at) == [("update_postimage", 2, 2.0), ("update_preimage", 2, 18.0)]
    at = table.info.max_committed_epoch
    lake.orders.upsert(rows(1, 1, amount=4.0))
    lake.into(lake.stream(), "full", "ck")
    assert changes_after(lake, at) == [("update_postimage", 1, 4.0), ("update_preimage", 1, 9.0)]
    assert lake.store.verify().ok


def test_a_large_feed_is_cut_into_tasks_with_its_old_rows(lake) -> None:
    table = lake.store.create_table("full", SCHEMA, ["id"], changelog="full", options=FORGETFUL)
    start = table.upsert(rows(0, 200_000))
    table.upsert(rows(100_000, 300_000, amount=2.0))
    lake.store.compact("full", full=True)
    feed = lake.read("full", readChangeFeed=True, startingVersion=start + 1, preImages=True, minPartitions=3)
    assert feed.rdd.getNumPartitions() == 3
    totals = feed.groupBy("_change_type").agg(count("*").alias("n"), total("amount").alias("total")).collect()
    counts = {row["_change_type"]: (row["n"], row["total"]) for row in totals}
    low, middle, high = 100_000, 200_000, 400_000
    first, second = sum(range(low, middle)), sum(range(middle, high))
    assert counts == {
        "update_preimage": (100_000, first),
        "update_postimage": (100_000, 2 * first),
        "insert": (200_000, 2 * second),
    }


def test_a_stream_with_old_rows_holds_no_state(lake) -> None:
    table = lake.store.create_table("full", SCHEMA, ["id"], changelog="full", options=FORGETFUL)
    start = table.upsert(rows(0, 2))
    streamed: list[tuple[str, float]] = []

    def run() -> None:
        stream = lake.stream("full", startingVersion=start + 1, preImages=True, consumerId="dash")
        writer = stream.writeStream.option("checkpointLocation", str(lake.scratch / "ck"))
        lake.drain(
            writer.foreachBatch(
                lambda frame, _: streamed.extend(sorted((row._change_type, row.amount) for row in frame.collect()))
            )
        )

    table.upsert(rows(1, 1, amount=7.0))
    run()
    table.upsert(rows(1, 1, amount=8.0))
    newest = table.upsert(rows(1, 1, amount=9.0))
    lake.store.compact("full", full=True)
    assert table.info.safe_epoch == newest, "only the log is held"
    run()
    pre, post = "update_preimage", "update_postimage"
    assert sorted(streamed) == sorted([(pre, 1.0), (post, 7.0), (pre, 7.0), (post, 8.0), (pre, 8.0), (post, 9.0)])
