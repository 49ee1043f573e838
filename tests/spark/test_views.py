"""Views in SQL on Spark: equal to their queries after random changes, run by steps, a pipeline and a query."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterable, Iterator
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

import epochlog as el
from epochlog.spark import refresh_context, view_engine
from epochlog.spark.partitions import ReadPartition
from epochlog.spark.refresh_context import SparkRefreshContext
from epochlog.views import reads as view_rows
from raw_check import raw_check
from view_lookups import VIEWS as LARGE_VIEWS
from view_lookups import LargeShop
from view_shop import CUSTOMERS, ORDERS, VIEWS, Shop, change_orders, many_orders, random_shop
from view_sums import play as play_changes
from wait_until import wait_until

pytestmark = pytest.mark.spark
FEW = 6
"""Changes of joins that are played on Spark."""


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with random_shop(tmp_path) as shop:
        yield shop


def test_views_equal_their_queries_after_every_step(shop: Shop, spark: SparkSession) -> None:
    """Steps of both engines take turns on the same views."""
    for engine in (spark, None, spark):
        shop.change()
        shop.step(engine)
        shop.check()


@pytest.mark.slow
def test_each_change_of_a_join_is_added(tmp_path: Path, spark: SparkSession) -> None:
    """The first changes; `tests/views/test_sums.py` has all of them without Spark."""
    with el.open(tmp_path / "sums", durability="os", checkpoint_interval_ms=10) as store:
        for (name, *_), step in islice(play_changes(store, spark), FEW):
            step()
            (last,) = store.view("by_region").stats().steps[-1:]
            assert last.work.by == "state", name
            assert store.table("by_region").history(1)["engine"].to_pylist() == [last.engine]


@pytest.mark.long
def test_views_of_large_tables_look_rows_up(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    shop = LargeShop(tmp_path / "lake", seed)
    codes = "SELECT o.id, MAX(c.id) AS customer FROM orders o JOIN customers c ON o.code = c.code GROUP BY o.id"
    for name, (sql, key) in {**LARGE_VIEWS, "of_codes": (codes, ["id"])}.items():
        shop.store.create_view(name, sql, key, spark=spark)
    taken: set[tuple[str, str]] = set()
    table_of, read_groups = SparkRefreshContext.table, view_rows.read_groups

    def by_tasks(self: SparkRefreshContext, name: str, **options: Any) -> DataFrame:
        if options.get("among") is not None:
            taken.add(("tasks", name))
        return table_of(self, name, **options)

    def by_driver(files: Any, plan: Any, *arguments: Any) -> pa.Table:
        taken.add(("driver", plan.table.name))
        return read_groups(files, plan, *arguments)

    monkeypatch.setattr(SparkRefreshContext, "table", by_tasks)
    monkeypatch.setattr(view_rows, "read_groups", by_driver)
    monkeypatch.setattr(view_engine, "LOCAL_BYTES", 0)  # as of large tables, which the driver does not read whole
    few_bytes = view_engine.BROADCAST_BYTES
    shop.play(1, lambda view: view.step(spark))
    for table in ("customers", "orders"):
        shop.put(table, [7, 9])  # the random changes may have deleted the rows
    shop.step_all(lambda view: view.step(spark))
    for changed, most_bytes, lookup in (
        ("orders", 0, ("driver", "customers")),  # by the primary key, of however many bytes
        ("customers", few_bytes, ("driver", "orders")),  # by another column
        ("customers", 0, ("tasks", "orders")),
    ):
        monkeypatch.setattr(view_engine, "BROADCAST_BYTES", most_bytes)
        taken.clear()
        shop.move(changed)  # a random change may leave what the views read as it is
        shop.step_all(lambda view: view.step(spark))
        assert lookup in taken, (changed, most_bytes)
    shop.store.view("of_codes").step(spark)
    rows = shop.store.table("of_codes").to_arrow()
    numbers = [row for row in shop.store.table("customers").to_arrow().to_pylist() if row["code"] in ("7", "007")]
    assert set(rows["customer"].to_pylist()) == {max(row["id"] for row in numbers)}
    shop.store.close()


def test_the_active_session_stays_the_users(shop: Shop, spark: SparkSession) -> None:
    """A stream of the user finds the data source, which the session of the views does not have."""
    spark.createDataFrame([], "id int")  # makes the session the active one of this thread
    view = shop.store.create_view("active", "SELECT id, cents FROM orders", ["id"], spark=spark)
    shop.store.checkpoint()
    view.step(spark)
    active: Any = SparkSession.getActiveSession()
    assert active._jsparkSession.equals(spark._jsparkSession)


@pytest.mark.long
def test_the_session_of_a_view_is_in_utc_and_the_users_is_left_as_it_is(
    shop: Shop, spark: SparkSession, tmp_path: Path
) -> None:
    zone = spark.conf.get("spark.sql.session.timeZone")
    temporary = spark.catalog.listTables()  # of other tests: the session is shared
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        moments = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
        table = shop.store.create_table("moments", moments, ["id"])
        table.upsert(pa.table([[1], [1_767_312_000_000_000]], schema=moments))  # 2026-01-02T00:00:00Z
        view = shop.store.create_view("days", "SELECT id, DATE(at) AS day FROM moments", ["id"], spark=spark)
        shop.store.checkpoint()
        view.step(spark)
        assert shop.store.table("days").to_arrow().column("day").to_pylist()[0].isoformat() == "2026-01-02"
        assert spark.conf.get("spark.sql.session.timeZone") == "Asia/Tokyo"
        assert spark.catalog.listTables() == temporary
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone or "UTC")


@pytest.mark.long
def test_a_query_and_a_pipeline_keep_views(shop: Shop, spark: SparkSession) -> None:
    query = shop.store.view("revenue").start(spark)
    try:
        shop.store.table("orders").upsert(pa.table([[1], [1], [1], [10]], schema=ORDERS))
        shop.store.checkpoint()
        query.processAllAvailable()
        assert shop.store.table("revenue").to_arrow().to_pylist() == [{"day": 1, "cents": 10, "n": 1}]
    finally:
        shop.store.view("revenue").stop()
        query.stop()
    pipeline = el.Pipeline(shop.store, spark)
    for name in VIEWS:
        pipeline.add(shop.store.view(name))
    shop.change()
    pipeline.run(until="idle")
    shop.check()


def test_spark_names_what_it_refuses(shop: Shop, spark: SparkSession) -> None:
    with pytest.raises(el.InvalidInput, match="region"):
        shop.store.create_view("v", "SELECT id, region FROM customers GROUP BY id", ["id"], spark=spark)


def test_a_key_that_two_groups_have_is_refused(shop: Shop, spark: SparkSession) -> None:
    """The scope is the day; another day's row with the key of an untouched day's row must not replace it."""
    view = shop.store.create_view(
        "v", "SELECT SUM(cents) AS cents, day FROM orders GROUP BY day", ["cents"], spark=spark
    )
    orders = shop.store.table("orders")
    orders.upsert(pa.table([[1, 2], [1, 1], [1, 2], [10, 20]], schema=ORDERS))
    shop.store.checkpoint()
    assert view.step(spark)
    orders.upsert(pa.table([[3], [1], [3], [20]], schema=ORDERS))
    shop.store.checkpoint()
    with pytest.raises(el.InvalidInput, match="20"):
        view.step(spark)
    assert shop.store.table("v").to_arrow().to_pylist() == [{"cents": 10, "day": 1}, {"cents": 20, "day": 2}]
    orders.upsert(pa.table([[3], [1], [3], [30]], schema=ORDERS))
    wait_until(lambda: shop.store.checkpoint() and stepped(view, spark))
    assert shop.store.table("v").count() == 3


def stepped(view: el.View, spark: SparkSession) -> bool:
    try:
        return view.step(spark) is not None
    except el.InvalidInput:  # the barrier before the mend
        return False


def test_tables_are_looked_up_by_key(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step reads the rows of the keys that changes touch, of large tables by prefixes of keys by tasks."""
    read: list[int] = []
    original_frame, original_rows = refresh_context.read_frame, view_rows.read_groups

    def read_frame(session: SparkSession, partition: ReadPartition, schema: StructType) -> DataFrame:
        read.append(sum(batch.num_rows for batch in partition.read()))
        return original_frame(session, partition, schema)

    def read_groups(*arguments: Any) -> pa.Table:
        rows = original_rows(*arguments)
        read.append(rows.num_rows)
        return rows

    monkeypatch.setattr(refresh_context, "read_frame", read_frame)
    monkeypatch.setattr(view_rows, "read_groups", read_groups)
    lines = pa.schema([("order", pa.int64()), ("line", pa.int32()), ("cents", pa.int64())])
    sql = """
        SELECT o.id, c.region, SUM(l.cents) AS cents FROM orders o JOIN customers c ON c.id = o.customer
        JOIN lines l ON l.order = o.id GROUP BY o.id, c.region
    """
    with el.open(tmp_path / "store", durability="os") as store:
        count = 2_000
        orders = store.create_table("orders", ORDERS, ["id"])
        numbers = list(range(count))
        orders.upsert(pa.table([numbers, [n % 500 for n in numbers], [1] * count, numbers], schema=ORDERS))
        customers = store.create_table("customers", CUSTOMERS, ["id"])
        customers.upsert(pa.table([numbers, ["eu"] * count], schema=CUSTOMERS))
        store.create_table("lines", lines, ["order", "line"]).upsert(
            pa.table([[n for n in numbers for _ in range(2)], [0, 1] * count, [10] * (2 * count)], schema=lines)
        )
        view = store.create_view("v", sql, ["id"])
        store.checkpoint()
        view.step()
        orders.upsert(pa.table([[7], [1_000], [1], [10]], schema=ORDERS))
        store.checkpoint()
        assert view.step(spark)
        assert raw_check(view).ok and store.table("v").count() == count
    assert 0 < sum(read) < 50, read


def test_a_change_of_most_rows_recomputes_all(tmp_path: Path, spark: SparkSession) -> None:
    with el.open(tmp_path / "store", durability="os") as store:
        views, orders = many_orders(store)
        change_orders(store, orders, 0.6)
        assert views["auto"].step(spark)
        assert store.table("auto").history()["operation"].to_pylist()[0] == "recompute"
        assert raw_check(views["auto"]).ok


SIDES: dict[str, tuple[pa.DataType, list[object]]] = {
    "texts": (pa.string(), ["2020-01-01 05:00:00", "2020-01-02 06:00:00"]),
    "dates": (pa.date32(), [dt.date(2020, 5, 5)]),
    "moments": (pa.timestamp("us", "UTC"), [dt.datetime(2020, 1, 1, 3, tzinfo=dt.UTC)]),
    "fine": (pa.decimal128(38, 10), [Decimal("1.25"), Decimal("7.75")]),
    "whole": (pa.decimal128(38, 0), [Decimal(5)]),
    "cents": (pa.decimal128(10, 2), [Decimal("96.85"), Decimal("158.45")]),
    "doubles": (pa.float64(), [2.5]),
}
"""Type and values of each side of the set operations below."""
OF_SIDES = [("texts", "dates", "moments"), ("fine", "whole", "doubles"), ("cents", "doubles")]
"""Sides whose values become others on the way to the type of the view."""


def test_sides_of_other_types_touch_the_values_of_the_view(tmp_path: Path, spark: SparkSession) -> None:
    """Neither the side alone has them, nor a cast of its values to the view's type."""
    with el.open(tmp_path / "store", durability="os", checkpoint_interval_ms=10) as store:
        schemas = {
            name: pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", kind), ("w", pa.int64())])
            for name, (kind, _) in SIDES.items()
        }
        for name, schema in schemas.items():
            store.create_table(name, schema, ["id"])
        views = [
            store.create_view(
                f"of_{sides[0]}",
                " UNION ALL ".join(f"SELECT '{name}' AS k, v, w FROM {name}" for name in sides),
                ["k", "v"],
                spark=spark,
            )
            for sides in OF_SIDES
        ]

        def put(names: Iterable[str], place: int, w: int) -> None:
            for name in names:
                store.table(name).upsert(pa.table([[place], [SIDES[name][1][place]], [w]], schema=schemas[name]))

        def step() -> None:
            store.checkpoint()
            for view in views:
                view.step(spark)
                assert view.check(spark).ok, view.name

        put(SIDES, 0, 0)
        step()
        first = [sides[0] for sides in OF_SIDES]
        put(first, 0, 1)
        put(first, 1, 2)
        step()
        for name in first:
            store.table(name).delete(pa.table({"id": [0]}))
        step()
