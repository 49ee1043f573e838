"""Create the store of the declarative pipeline, and commit two orders more at each call."""

from __future__ import annotations

import os

import pyarrow as pa

import epochlog as el

ROOT = os.environ.get("EPOCHLOG_ROOT", "/tmp/epochlog-declarative/lake")
MONEY = pa.schema([pa.field("id", pa.int64(), nullable=False), ("cents", pa.int64())])

with el.open(ROOT) as store:
    for name in ("orders", "doubled"):
        if name not in {table.name for table in store.tables()}:
            store.create_table(name, MONEY, ["id"])
    orders = store.table("orders")
    first = orders.count() + 1
    orders.upsert(pa.table({"id": [first, first + 1], "cents": [first * 100, first * 100 + 100]}))
    print(f"orders has {orders.count()} rows")
