"""TPC-H tables from tpchgen-cli as tables of a store, and the refreshes that change them.

Customers, suppliers, nations and regions are loaded once and finished. Orders and their lines keep changing. A refresh
is one transaction over both tables, computed from their current rows, a seed and the number of the refresh. A restarted
process commits each number once.
"""

from __future__ import annotations

import subprocess
from decimal import Decimal
from importlib.metadata import distribution
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import epochlog as el

KEYS = {
    "region": ["r_regionkey"],
    "nation": ["n_nationkey"],
    "supplier": ["s_suppkey"],
    "customer": ["c_custkey"],
    "orders": ["o_orderkey"],
    "lineitem": ["l_orderkey", "l_linenumber"],
}
LIVE = ("orders", "lineitem")
MOST_LINES = 7  # largest number of lines of an order
FREE = 8  # dbgen uses the first 8 order keys of each 32; refreshes use the next 8 for new orders


def generate(folder: Path, scale: float) -> None:
    """Generate the files of all tables, `<table>.parquet`, at a scale factor (1: 6 M lines)."""
    package = distribution("tpchgen-cli")
    command = next(str(file.locate()) for file in package.files or () if file.name == package.name)
    options = ["parquet", "-s", f"{scale:g}", "-o", str(folder), "--tables", ",".join(KEYS), "--quiet"]
    subprocess.run([command, *options], check=True)


def load(store: el.Store, folder: Path) -> None:
    """Create the tables and fill them from the files."""
    tables = {name: without_string_views(pq.read_table(folder / f"{name}.parquet")) for name in KEYS}
    for name, rows in tables.items():
        store.create_table(name, rows.schema, KEYS[name])
    for name in KEYS.keys() - LIVE:
        store.table(name).upsert(tables[name])
        store.table(name).finish()
    with store.transaction(txn=("load", 0)) as tx:
        for name in LIVE:
            tx.upsert(name, tables[name])


def without_string_views(rows: pa.Table) -> pa.Table:
    """Convert string views to strings, and remove the schema's metadata."""
    kinds = [pa.string() if pa.types.is_string_view(field.type) else field.type for field in rows.schema]
    fields = [pa.field(field.name, kind, field.nullable) for field, kind in zip(rows.schema, kinds, strict=True)]
    return rows.cast(pa.schema(fields))


# ---- refreshes -----------------------------------------------------------------------------------------------------


def refresh(store: el.Store, seed: int, number: int) -> int:
    """Commit refresh `number` and return its epoch. As in TPC-H, it inserts and deletes a thousandth of the orders; it
    also changes a thousandth of the orders, and the lines of another thousandth.
    """
    return Refresh(store, seed, number).commit()


class Refresh:
    """Refresh of orders and lines. Half of the orders that it deletes or changes affect the queries: expensive orders
    within their date ranges.
    """

    def __init__(self, store: el.Store, seed: int, number: int) -> None:
        self._store, self._number = store, number
        self._chance = np.random.default_rng([seed, number])
        orders = store.table("orders").to_arrow(columns=["o_orderkey", "o_orderdate", "o_totalprice"])
        self._live = orders["o_orderkey"].to_numpy()
        self._size = max(8, len(orders) // 1000)
        in_queried_days = pc.or_(
            between(orders, "1993-10-01", "1994-01-01"), between(orders, "1994-11-15", "1995-03-15")
        )
        dear = orders.filter(in_queried_days).sort_by([("o_totalprice", "descending")])
        self._dear = dear["o_orderkey"].to_numpy()[: 4 * self._size]

    def commit(self) -> int:
        deleted, reassigned, changed_orders = np.split(self._choose_keys(3 * self._size), 3)
        orders, lines = self._new()
        changed_lines, deleted_lines = self._changed_lines(changed_orders)
        with self._store.transaction(txn=("refresh", self._number)) as tx:
            tx.upsert("orders", pa.concat_tables([orders, self._reassigned(reassigned)]))
            tx.upsert("lineitem", pa.concat_tables([lines, changed_lines]))
            tx.delete("orders", pa.table({"o_orderkey": deleted}))
            tx.delete("lineitem", pa.concat_tables([deleted_lines, self._lines(deleted)]).select(KEYS["lineitem"]))
        return tx.epoch

    def _choose_keys(self, count: int) -> np.ndarray:
        """Return the keys of `count` different orders, in random order."""
        dear = self._chance.choice(self._dear, min(count // 2, len(self._dear)), replace=False)
        other_keys = self._chance.choice(np.setdiff1d(self._live, dear), count - len(dear), replace=False)
        return self._chance.permutation(np.concatenate([dear, other_keys]))

    def _orders(self, keys: np.ndarray) -> pa.Table:
        return self._store.table("orders").get(pa.table({"o_orderkey": np.sort(keys)}))

    def _lines(self, keys: np.ndarray) -> pa.Table:
        numbers = np.tile(np.arange(1, MOST_LINES + 1, dtype=np.int32), len(keys))
        keys_of_lines = pa.table({"l_orderkey": np.repeat(np.sort(keys), MOST_LINES), "l_linenumber": numbers})
        return self._store.table("lineitem").get(keys_of_lines)

    def _new(self) -> tuple[pa.Table, pa.Table]:
        """Return new orders with their lines: copies of orders for other customers on other days, under free keys. Some
        of these keys belonged to orders that were deleted.
        """
        reusable = self._live[(self._live % 32 < FREE) & ~np.isin(self._live + FREE, self._live)]
        keys = self._chance.choice(reusable, self._size, replace=False)
        old, lines = self._orders(keys), self._lines(keys)
        new = self._reassigned(keys, always=True)
        days = shift(new["o_orderdate"], old["o_orderdate"])[np.searchsorted(np.sort(keys), lines["l_orderkey"])]
        for name in ("l_shipdate", "l_commitdate", "l_receiptdate"):
            lines = with_column(lines, name, lines[name].to_numpy() + days)
        lines = with_column(lines, "l_orderkey", lines["l_orderkey"].to_numpy() + FREE)
        return with_column(new, "o_orderkey", new["o_orderkey"].to_numpy() + FREE), lines

    def _reassigned(self, keys: np.ndarray, *, always: bool = False) -> pa.Table:
        """Return the orders with another customer, or a day between October 1993 and April 1995, or both."""
        rows, chance = self._orders(keys), self._chance
        customers = chance.choice(self._store.table("customer").to_arrow(columns=["c_custkey"])["c_custkey"], len(rows))
        days = np.datetime64("1993-10-01") + chance.integers(0, 550, len(rows))
        changed_columns = chance.integers(1, 4, len(rows)) | (3 if always else 0)
        rows = with_column(rows, "o_custkey", customers, mask=changed_columns & 1 > 0)
        return with_column(rows, "o_orderdate", days, mask=changed_columns & 2 > 0)

    def _changed_lines(self, keys: np.ndarray) -> tuple[pa.Table, pa.Table]:
        """Return the lines of these orders to write with other values, and the lines to delete."""
        rows, chance = self._lines(keys), self._chance
        new_values = {
            "l_quantity": decimals(chance.integers(1, 51, len(rows)) * 100),
            "l_extendedprice": decimals(chance.integers(90_000, 10_500_000, len(rows))),
            "l_discount": decimals(chance.integers(0, 11, len(rows))),
            "l_returnflag": chance.choice(["A", "N", "R"], len(rows)),
            "l_shipdate": rows["l_shipdate"].to_numpy() + chance.integers(-200, 201, len(rows)),
        }
        for name, values in new_values.items():
            rows = with_column(rows, name, values, mask=chance.random(len(rows)) < 0.4)
        stay = chance.random(len(rows)) < 0.9
        return rows.filter(stay), rows.filter(~stay)


def between(orders: pa.Table, first: str, end: str) -> pa.ChunkedArray:
    days = [pa.scalar(day).cast(pa.date32()) for day in (first, end)]
    return pc.and_(pc.greater_equal(orders["o_orderdate"], days[0]), pc.less(orders["o_orderdate"], days[1]))


def shift(new: pa.ChunkedArray, old: pa.ChunkedArray) -> np.ndarray:
    return new.to_numpy() - old.to_numpy()


def with_column(rows: pa.Table, name: str, values: object, mask: object = True) -> pa.Table:
    """Return the rows with new values in a column, for the rows of the mask."""
    field = rows.schema.field(name)
    row_mask = pa.array(np.broadcast_to(np.asarray(mask), len(rows)))
    column = pc.if_else(row_mask, pa.array(values, field.type), rows[name].combine_chunks())
    return rows.set_column(rows.schema.get_field_index(name), field, column)


def decimals(hundredths: np.ndarray) -> list[Decimal]:
    return [Decimal(int(value)).scaleb(-2) for value in hundredths]
