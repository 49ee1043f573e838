"""Views over tables that are large beside their changes, so that a refresh looks rows up by values."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

import epochlog as el
from raw_check import raw_check

CUSTOMERS = pa.schema([("id", pa.int32()), ("code", pa.string()), ("region", pa.int64())])
ORDERS = pa.schema([("id", pa.int64()), ("customer", pa.int64()), ("code", pa.int64()), ("day", pa.int64())])
VIEWS = {
    "of_regions": (
        """SELECT c.region, o.day, COUNT(*) AS n FROM orders o JOIN customers c ON o.customer = c.id
           GROUP BY c.region, o.day""",
        ["region", "day"],
    ),
    "of_orders": (
        "SELECT o.id, o.customer, c.region FROM orders o LEFT JOIN customers c ON o.customer = c.id",
        ["id"],
    ),
    "known": (
        "SELECT o.id, o.day FROM orders o WHERE EXISTS (SELECT 1 FROM customers c WHERE c.id = o.customer)",
        ["id"],
    ),
}
ROWS = 400


class LargeShop:
    """Store with orders, customers and the views, and random changes of few rows. Values out of the range of the other
    side's type, nulls and texts that equal numbers occur.
    """

    def __init__(self, root: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.store = el.open(root, checkpoint_interval_ms=10)
        self.store.create_table("customers", CUSTOMERS, ["id"])
        self.store.create_table("orders", ORDERS, ["id"])
        self.put("customers", range(ROWS))
        self.put("orders", range(ROWS))

    def put(self, table: str, ids: range | list[int]) -> None:
        pick = self.chance.choice
        if table == "customers":
            codes = ["7", "007", "8", None]
            rows = [{"id": number, "code": pick(codes), "region": pick([1, 2, 3])} for number in ids]
        else:
            rows = [
                {
                    "id": number,
                    "customer": pick([number % ROWS, number % 7, 2**40, None]),
                    "code": 7,
                    "day": pick([1, 2]),
                }
                for number in ids
            ]
        self.store.table(table).upsert(pa.Table.from_pylist(rows, schema=CUSTOMERS if table == "customers" else ORDERS))

    def move(self, table: str) -> None:
        """Change a row in a column that all views read: the region of a customer, or the customer of an order."""
        store_table = self.store.table(table)
        (row,) = store_table.get([7]).to_pylist()
        if table == "customers":
            row["region"] = (row["region"] or 0) % 3 + 1
        else:
            row["customer"] = 11 if row["customer"] == 9 else 9
        store_table.upsert(pa.Table.from_pylist([row], schema=store_table.schema))

    def change(self) -> None:
        for table in self.chance.choice([["orders"], ["customers"], ["orders", "customers"]]):
            self.put(table, [self.chance.randrange(ROWS) for _ in range(self.chance.choice([1, 3]))])
            if self.chance.random() < 0.5:
                self.store.table(table).delete(pa.table({"id": pa.array([self.chance.randrange(ROWS)])}))

    def play(self, rounds: int, step: Callable[[el.View], Any]) -> None:
        """Change rows and step all views, and compare each with its query."""
        for _ in range(rounds):
            self.change()
            self.step_all(step)

    def step_all(self, step: Callable[[el.View], Any]) -> None:
        """Step all views, and compare each with its query."""
        self.store.checkpoint()
        for view in map(self.store.view, VIEWS):
            step(view)
            report = raw_check(view)
            assert report.ok, f"{view.name}: {report}"
