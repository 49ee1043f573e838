"""Sums and counts over joins of orders and customers, and named changes of both, with the rows that each must give."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

import epochlog as el
from raw_check import raw_check

ORDERS = pa.schema([("id", pa.int64()), ("customer", pa.int64()), ("day", pa.int32()), ("cents", pa.int64())])
CUSTOMERS = pa.schema([("id", pa.int64()), ("region", pa.string())])
BY_REGION = """
    SELECT c.region, SUM(o.cents) AS cents, COUNT(*) AS n
    FROM orders o JOIN customers c ON o.customer = c.id GROUP BY c.region
"""
VIEWS: dict[str, tuple[str, list[str]]] = {
    "by_region": (BY_REGION, ["region"]),
    "without_count": (
        "SELECT o.day, SUM(o.cents) AS cents FROM orders o JOIN customers c ON o.customer = c.id GROUP BY o.day",
        ["day"],
    ),
    "pairs": (
        """SELECT a.day, SUM(b.cents) AS cents, COUNT(b.cents) AS n
           FROM orders a JOIN orders b ON a.customer <=> b.customer GROUP BY a.day""",
        ["day"],
    ),
    "outer_join": (
        """SELECT c.id, SUM(o.cents) AS cents, COUNT(*) AS n
           FROM customers c LEFT JOIN orders o ON o.customer = c.id GROUP BY c.id""",
        ["id"],
    ),
    "total": (
        """SELECT 1 AS one, SUM(o.cents * c.id) AS cents, COUNT(*) AS n
           FROM orders o JOIN customers c ON o.customer = c.id""",
        ["one"],
    ),
}

Row = tuple[Any, ...]
Change = tuple[str, list[Row], list[Row], list[int], list[int], list[Row]]
"""Name, orders, customers, orders deleted, customers deleted; rows of `by_region`."""
CHANGES: list[Change] = [
    (
        "the first rows",
        [(1, 1, 1, 10), (2, 2, 1, 20), (3, 2, 2, 5)],
        [(1, "eu"), (2, "us")],
        [],
        [],
        [("eu", 10, 1), ("us", 25, 2)],
    ),
    ("a join key is NULL", [(4, None, 1, 99)], [], [], [], [("eu", 10, 1), ("us", 25, 2)]),
    ("a sum gets a NULL", [(4, 1, 1, None)], [], [], [], [("eu", 10, 2), ("us", 25, 2)]),
    ("a join key changes", [(3, 1, 2, 5)], [], [], [], [("eu", 15, 3), ("us", 20, 1)]),
    ("the group of a row changes", [], [(2, "asia")], [], [], [("asia", 20, 1), ("eu", 15, 3)]),
    (
        "both sides change",
        [(2, 2, 1, 7), (5, 1, 2, 1)],
        [(1, "us")],
        [],
        [],
        [("asia", 7, 1), ("us", 16, 4)],
    ),
    ("a group has no rows any more", [], [], [2], [], [("us", 16, 4)]),
    ("a group returns", [(6, 2, 3, 7)], [], [], [], [("asia", 7, 1), ("us", 16, 4)]),
    ("a sum becomes 0", [(6, 2, 3, 0)], [], [], [], [("asia", 0, 1), ("us", 16, 4)]),
    ("a sum becomes NULL", [(6, 2, 3, None)], [], [], [], [("asia", None, 1), ("us", 16, 4)]),
    ("a sum is NULL no more", [(6, 2, 3, 4)], [], [], [], [("asia", 4, 1), ("us", 16, 4)]),
    ("one side of a row goes", [], [], [], [1], [("asia", 4, 1)]),
    ("one side of a row returns", [], [(1, "us")], [], [], [("asia", 4, 1), ("us", 16, 4)]),
    ("both sides of a row go", [], [], [6], [2], [("us", 16, 4)]),
    ("no row stays", [], [], [1, 3, 4, 5], [], []),
    ("rows return", [(7, 1, 1, 3)], [], [], [], [("us", 3, 1)]),
]


def play(store: el.Store, spark: SparkSession | None = None) -> Iterator[tuple[Change, Callable[[], None]]]:
    """Make the tables and the views, then each change; yield it and a function that steps and checks all views."""
    orders, customers = store.create_table("orders", ORDERS, ["id"]), store.create_table("customers", CUSTOMERS, ["id"])
    views = {name: store.create_view(name, sql, key) for name, (sql, key) in VIEWS.items()}
    store.checkpoint()

    def step() -> None:
        store.checkpoint()
        for name, view in views.items():
            while view.step(spark) is not None:
                pass
            assert raw_check(view).ok, name

    step()
    for change in CHANGES:
        _, put_orders, put_customers, lost_orders, lost_customers, _ = change
        with store.transaction() as tx:
            for table, schema, rows, lost in (
                (orders, ORDERS, put_orders, lost_orders),
                (customers, CUSTOMERS, put_customers, lost_customers),
            ):
                if rows:
                    tx.upsert(table.name, pa.table([list(column) for column in zip(*rows, strict=True)], schema=schema))
                if lost:
                    tx.delete(table.name, pa.table({"id": pa.array(lost, pa.int64())}))
        yield change, step
        rows = store.table("by_region").to_arrow().to_pylist()
        assert [tuple(row.values()) for row in rows] == change[5], change[0]
