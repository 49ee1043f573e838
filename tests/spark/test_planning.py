"""Spark's read plans: tasks of similar bytes in key order, joins that broadcast the small side, filters that skip."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession

import epochlog as el
from spark_store import Lake, rows

pytestmark = pytest.mark.spark

BIG = pa.schema([("k", pa.int64()), ("city", pa.int64()), ("text", pa.string())])
CITY = pa.schema([("city", pa.int64()), ("name", pa.string())])


@contextmanager
def conf(session: SparkSession, **settings: str) -> Iterator[None]:
    """Settings for a while; a name's dots are written as double underscores."""
    names = {name.replace("__", "."): value for name, value in settings.items()}
    before = {name: session.conf.get(name, None) for name in names}
    for name, value in names.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                session.conf.unset(name)
            else:
                session.conf.set(name, value)


@pytest.fixture(scope="module")
def towns(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[Lake]:
    """A big table whose first tenth is wide, and a small one."""
    made = Lake(tmp_path_factory.mktemp("towns"), spark)
    keys = np.arange(200_000)
    texts = ["x" * 600 if key < 20_000 else "" for key in keys.tolist()]
    made.store.create_table("big", BIG, ["k"]).upsert(pa.table([keys, keys % 50, texts], schema=BIG))
    cities = [[*range(50)], [f"town {city}" for city in range(50)]]
    made.store.create_table("city", CITY, ["city"]).upsert(pa.table(cities, schema=CITY))
    yield made
    made.store.close()


def plan_of(frame: DataFrame) -> str:
    java: Any = frame._jdf
    return java.queryExecution().executedPlan().toString()


class Task(NamedTuple):
    """Input of a task: its least and greatest key, if the keys came in order, and its bytes in memory."""

    low: int
    high: int
    ordered: bool
    bytes: int


def tasks_of(frame: DataFrame) -> list[Task]:
    """Of a frame with the columns `k` and `text`, without the tasks that have read nothing."""

    def summed_up(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        data = pa.Table.from_batches(list(batches))
        if data.num_rows:
            keys = data["k"].to_numpy()
            width = pc.sum(pc.binary_length(data["text"])).as_py() or 0
            rising = bool((keys[1:] > keys[:-1]).all())
            row = {"low": keys.min(), "high": keys.max(), "ordered": rising, "bytes": width + 24 * len(keys)}
            yield pa.RecordBatch.from_pylist([row])

    rows = frame.mapInArrow(summed_up, "low long, high long, ordered boolean, bytes long").collect()
    return sorted(Task(*row) for row in rows)


def like_sizes(tasks: Sequence[Task]) -> bool:
    mean = sum(task.bytes for task in tasks) / len(tasks)
    return all(0.8 * mean <= task.bytes <= 1.2 * mean for task in tasks)


# ---- tasks ---------------------------------------------------------------------------------------------------------


def test_tasks_read_like_bytes_in_key_order(towns: Lake) -> None:
    towns.store.table("big").delete(pa.table({"k": [5, 150_000]}))
    frame = towns.read("big", minPartitions=4)
    tasks = tasks_of(frame)
    assert len(tasks) == 4 and like_sizes(tasks), tasks
    assert all(task.ordered for task in tasks)
    assert all(before.high < after.low for before, after in pairwise(tasks))
    assert frame.select("k").where("k < 10").toArrow()["k"].to_pylist() == [0, 1, 2, 3, 4, 6, 7, 8, 9]


def test_as_many_tasks_as_the_session_runs(towns: Lake) -> None:
    assert towns.spark.sparkContext.defaultParallelism == 2
    assert towns.read("big").rdd.getNumPartitions() == 2
    assert towns.read("big", minPartitions=5).rdd.getNumPartitions() == 5
    assert towns.read("big", columns="k").rdd.getNumPartitions() == 1  # 1.6 MB
    assert towns.read("city").rdd.getNumPartitions() == 1
    with pytest.raises(Exception, match="InvalidInput: option minPartitions must be a whole number >= 1"):
        towns.read("big", minPartitions=0)


def test_a_feed_is_cut_too(towns: Lake) -> None:
    tasks = tasks_of(
        towns.read("big", readChangeFeed=True, startingVersion="earliest", changeMode="net", minPartitions=4)
    )
    assert len(tasks) == 4 and like_sizes(tasks), tasks
    assert all(task.ordered for task in tasks)


# ---- joins ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("adaptive", ["false", "true"])
def test_a_snapshots_small_table_is_broadcast(towns: Lake, adaptive: str) -> None:
    """As el.spark() has it, and as a user's own session has it."""
    with (
        towns.store.snapshot(["big", "city"], consistency="aligned") as snapshot,
        conf(towns.spark, spark__sql__adaptive__enabled=adaptive),
    ):
        big, city = snapshot.spark("big", towns.spark), snapshot.spark("city", towns.spark)
        for frame in (
            big.join(city, "city"),
            city.join(big, "city"),
            big.where("k > 7").join(city.select("city"), "city"),
        ):
            plan = plan_of(frame)
            assert "BroadcastHashJoin" in plan and "SortMergeJoin" not in plan
        assert "SortMergeJoin" in plan_of(big.join(big.select("city"), "city"))  # neither is small
        narrow = snapshot.spark("big", towns.spark, columns=["k", "city"])
        assert narrow.columns == ["k", "city"]
        assert "BroadcastHashJoin" in plan_of(big.join(narrow, "k"))  # 3 MB without the text
        assert city.join(narrow, "city").count() == snapshot["big"].count()


def test_the_sessions_threshold_is_heeded(towns: Lake) -> None:
    with towns.store.snapshot(["big", "city"], consistency="aligned") as snapshot:
        for threshold, broadcast in (("-1", False), ("300", False), ("2k", True), ("100m", True)):
            with conf(towns.spark, spark__sql__autoBroadcastJoinThreshold=threshold):
                big, city = snapshot.spark("big", towns.spark), snapshot.spark("city", towns.spark)
                assert ("BroadcastHashJoin" in plan_of(big.join(city, "city"))) == broadcast, threshold


def test_plain_loads_are_joined_by_what_adaptive_execution_finds(towns: Lake) -> None:
    """Spark cannot know the size of a plain load before it runs; a hint in SQL tells it."""
    towns.read("big", columns="k,city").createOrReplaceTempView("big_view")
    towns.read("city").createOrReplaceTempView("city_view")
    query = "SELECT {hint} name, count(*) n FROM big_view JOIN city_view USING (city) GROUP BY name"
    assert "SortMergeJoin" in plan_of(towns.spark.sql(query.format(hint="")))
    assert "BroadcastHashJoin" in plan_of(towns.spark.sql(query.format(hint="/*+ BROADCAST(city_view) */")))
    with conf(towns.spark, spark__sql__adaptive__enabled="true"):
        frame = towns.spark.sql(query.format(hint=""))
        assert len(frame.collect()) == 50
        final = plan_of(frame).split("Initial Plan")[0]
        assert "BroadcastHashJoin" in final and "SortMergeJoin" not in final


def test_a_snapshots_filter_and_columns_are_the_readers(towns: Lake) -> None:
    with towns.store.snapshot(["big", "city"], consistency="aligned") as snapshot:
        rows = snapshot.spark("city", towns.spark, columns=["name"], filter="city < 3").collect()
        assert sorted(row.name for row in rows) == ["town 0", "town 1", "town 2"]
        with pytest.raises(el.InvalidInput, match="has no column 'nope'"):
            snapshot.spark("city", towns.spark, columns=["nope"])
        with pytest.raises(el.InvalidInput, match="there is no column 'nope'"):
            snapshot.spark("city", towns.spark, filter="nope = 1")


# ---- SQL -----------------------------------------------------------------------------------------------------------


def view(lake: Lake, name: str, table: str, **options: str) -> None:
    given = ", ".join(f"{key} '{value}'" for key, value in lake.options(table, **options).items())
    lake.spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW {name} USING epochlog OPTIONS ({given})")


def test_views_of_one_token_are_of_one_moment(lake: Lake) -> None:
    lines = lake.store.create_table("lines", pa.schema([("order", pa.int64()), ("n", pa.int64())]), ["order", "n"])
    with lake.store.transaction() as tx:
        tx.upsert("orders", rows(0, 10))
        tx.upsert("lines", pa.table({"order": [*range(10)] * 2, "n": [0] * 10 + [1] * 10}))
    with lake.store.snapshot(["orders", "lines"], consistency="aligned") as snapshot:
        with lake.store.transaction() as tx:
            tx.upsert("orders", rows(100, 5))
            tx.upsert("lines", pa.table({"order": [0], "n": [2]}))
        lines.delete(pa.table({"order": [9], "n": [0]}))
        lake.store.compact(full=True)
        view(lake, "o", "orders", snapshot=snapshot.token, filter="id < 8")
        view(lake, "l", "lines", snapshot=snapshot.token)
        view(lake, "narrow", "orders", snapshot=snapshot.token, columns="day,id")
        sql = "SELECT day, count(*) n FROM o JOIN l ON o.id = l.order GROUP BY day ORDER BY day"
        assert [tuple(row) for row in lake.spark.sql(sql).collect()] == [("d0", 6), ("d1", 6), ("d2", 4)]
        sql = "SELECT count(*) FROM o JOIN l ON o.id = l.order JOIN narrow USING (id) WHERE n = 1 AND narrow.day = 'd1'"
        assert lake.spark.sql(sql).collect() == [(3,)]
        assert lake.spark.table("narrow").columns == ["day", "id"]
        view(lake, "now", "orders")
        assert lake.spark.sql("SELECT count(*) FROM now WHERE id NOT IN (SELECT id FROM narrow)").collect() == [(5,)]
        view(lake, "fed", "orders", readChangeFeed="true", startingVersion="earliest", changeMode="net")
        sql = "SELECT _change_type, count(*) FROM fed GROUP BY 1"
        assert [tuple(row) for row in lake.spark.sql(sql).collect()] == [("upsert", 15)]
