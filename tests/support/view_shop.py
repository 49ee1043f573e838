"""Store with orders, customers and views of every kind, changed at random and checked by DuckDB."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

import epochlog as el
from confirmed import RawJudge, answer_of, kept
from epochlog.views.refresh_choice import LEAST_ROWS

ORDERS = pa.schema([("id", pa.int64()), ("customer", pa.int64()), ("day", pa.int32()), ("cents", pa.int64())])
CUSTOMERS = pa.schema([("id", pa.int64()), ("region", pa.string())])
REVENUE = "SELECT day, SUM(cents) AS cents, COUNT(*) AS n FROM orders GROUP BY day"
BY_REGION = """
    SELECT COALESCE(c.region, 'none') AS region, o.day, SUM(o.cents) AS cents, COUNT(c.id) AS known
    FROM orders o LEFT JOIN customers c ON o.customer = c.id
    GROUP BY COALESCE(c.region, 'none'), o.day
"""
BEST_DAY = """
    SELECT region, day, cents FROM (
        SELECT region, day, cents, ROW_NUMBER() OVER (PARTITION BY region ORDER BY cents DESC, day) AS place
        FROM by_region
    ) WHERE place = 1
"""
SILENT = "SELECT id, region FROM customers c WHERE NOT EXISTS (SELECT 1 FROM orders WHERE customer = c.id)"
TOTAL = "SELECT 1 AS one, COALESCE(SUM(cents), 0) AS cents FROM orders"
VIEWS: dict[str, tuple[str, list[str]]] = {
    "revenue": (REVENUE, ["day"]),
    "by_region": (BY_REGION, ["region", "day"]),
    "best_day": (BEST_DAY, ["region"]),
    "silent": (SILENT, ["id"]),
    "total": (TOTAL, ["one"]),
}
"""Query and primary key of each view; `best_day` reads `by_region`."""


class Shop:
    """A store with orders, customers and five views, one of them over another."""

    def __init__(self, root: Path, seed: int = 0) -> None:
        self.store = el.open(root, durability="os", checkpoint_interval_ms=10)
        self.chance = random.Random(seed)
        if not self.store.tables():
            self.store.create_table("orders", ORDERS, ["id"])
            self.store.create_table("customers", CUSTOMERS, ["id"])
            for name, (sql, key) in VIEWS.items():
                self.store.create_view(name, sql, key)

    def change(self) -> None:
        """Upsert and delete a few orders and customers, with nulls, in commits of their own."""
        chance = self.chance
        for _ in range(chance.randrange(1, 4)):
            ids = chance.sample(range(40), 5)
            rows = [[i, chance.choice([None, *range(8)]), chance.randrange(4), chance.randrange(100)] for i in ids]
            self.store.table("orders").upsert(
                pa.table([list(values) for values in zip(*rows, strict=True)], schema=ORDERS)
            )
        self.store.table("orders").delete(pa.table({"id": chance.sample(range(40), 3)}))
        if chance.random() < 0.5:
            ids = chance.sample(range(8), 2)
            regions = [chance.choice(["eu", "us", "asia", None]) for _ in ids]
            self.store.table("customers").upsert(pa.table([ids, regions], schema=CUSTOMERS))
        if chance.random() < 0.3:
            self.store.table("customers").delete(pa.table({"id": [chance.randrange(8)]}))

    def step(self, spark: SparkSession | None = None) -> None:
        """Step every view once, with Spark or with DuckDB."""
        self.store.checkpoint()
        for name in VIEWS:
            self.store.view(name).step(spark)

    def check(self) -> None:
        """Compare every view with its text, which Spark has answered, read at one epoch and run by DuckDB."""
        with self.store.snapshot([*VIEWS, "orders", "customers"], consistency="aligned") as snapshot:
            tables = {name: snapshot[name].to_arrow() for name in (*VIEWS, "orders", "customers")}
            for name, (sql, _) in VIEWS.items():
                kept("shop", of_any_spark=True).reply(sql)
                wanted = RawJudge().rows(sql, tables).cast(tables[name].schema)
                assert answer_of(wanted, sql) == answer_of(tables[name], sql), name


@contextmanager
def random_shop(folder: Path) -> Iterator[Shop]:
    """Enter a shop in the folder `store`, whose changes follow a seed that is printed."""
    seed = random.randrange(1 << 32)
    print("seed", seed)
    shop = Shop(folder / "store", seed)
    yield shop
    shop.store.close()


def many_orders(store: el.Store) -> tuple[dict[str, el.View], el.Table]:
    """Make a table of enough orders for a choice by rows, and a view of each kind of refresh, and step them."""
    orders = store.create_table("orders", ORDERS, ["id"])
    ids = list(range(LEAST_ROWS))
    orders.upsert(pa.table([ids, ids, ids, ids], schema=ORDERS))
    sql = "SELECT id, MAX(day) AS day, MAX(cents) * 2 AS cents FROM orders GROUP BY id"
    views = {kind: store.create_view(kind, sql, ["id"], refresh=kind) for kind in ("auto", "incremental", "full")}
    store.checkpoint()
    for view in views.values():
        view.step()
    return views, orders


def change_orders(store: el.Store, orders: el.Table, share: float) -> None:
    """Change a share of the orders of `many_orders`."""
    ids = list(range(round(LEAST_ROWS * share)))
    cents = [number + round(share * 100) for number in ids]
    orders.upsert(pa.table([ids, ids, ids, cents], schema=ORDERS))
    store.checkpoint()
