"""TPC-H's tables from tpchgen-cli as tables of a store, and the refreshes that change them.

Customers, suppliers, nations and regions are loaded once and finished: nobody can write to them any more. Orders and
their lines go on changing. A refresh is one transaction of both, made of the tables as they are, of a seed and of its
number; whoever dies and comes again commits each number once.
"""

from __future__ import annotations

import subprocess
import sys
from decimal import Decimal
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
MOST_LINES = 7  # of an order
FREE = 8  # dbgen uses the first 8 order keys of each 32; the next 8 are for orders that come later


def generate(folder: Path, scale: float) -> None:
    """The files of all tables, `<table>.parquet`, at this scale factor (1: 6 M lines)."""
    command = [str(Path(sys.executable).with_name("tpchgen-cli")), "parquet", "-s", f"{scale:g}", "-o", str(folder)]
    subprocess.run([*command, "--tables", ",".join(KEYS), "--quiet"], check=True)


def load(store: el.Store, folder: Path) -> None:
    """Make the tables, and fill them from the files."""
    tables = {name: plain(pq.read_table(folder / f"{name}.parquet")) for name in KEYS}
    for name, rows in tables.items():
        store.create_table(name, rows.schema, KEYS[name])
    for name in KEYS.keys() - LIVE:
        store.table(name).upsert(tables[name])
        store.table(name).finish()
    with store.transaction(txn=("load", 0)) as tx:
        for name in LIVE:
            tx.upsert(name, tables[name])


def plain(rows: pa.Table) -> pa.Table:
    """The rows with strings in place of string views, and without what Parquet has noted beside them."""
    kinds = [pa.string() if pa.types.is_string_view(field.type) else field.type for field in rows.schema]
    fields = [pa.field(field.name, kind, field.nullable) for field, kind in zip(rows.schema, kinds, strict=True)]
    return rows.cast(pa.schema(fields))


# ---- refreshes -----------------------------------------------------------------------------------------------------


def refresh(store: el.Store, seed: int, number: int) -> int:
    """Commit refresh `number`: as TPC-H has it, a thousandth of the orders comes new and a thousandth goes; as many
    change, alone or in their lines. Returns its epoch.
    """
    return Refresh(store, seed, number).commit()


class Refresh:
    """One refresh. Half of what it takes out or changes is what the queries ask for: dear orders of the right days."""

    def __init__(self, store: el.Store, seed: int, number: int) -> None:
        self._store, self._number = store, number
        self._chance = np.random.default_rng([seed, number])
        known = store.table("orders").to_arrow(columns=["o_orderkey", "o_orderdate", "o_totalprice"])
        self._live = known["o_orderkey"].to_numpy()
        self._size = max(8, len(known) // 1000)
        asked = pc.or_(between(known, "1993-10-01", "1994-01-01"), between(known, "1994-11-15", "1995-03-15"))
        dear = known.filter(asked).sort_by([("o_totalprice", "descending")])
        self._dear = dear["o_orderkey"].to_numpy()[: 4 * self._size]

    def commit(self) -> int:
        gone, moved, altered = np.split(self._some(3 * self._size), 3)
        orders, lines = self._new()
        changed, dropped = self._altered(altered)
        with self._store.transaction(txn=("refresh", self._number)) as tx:
            tx.upsert("orders", pa.concat_tables([orders, self._moved(moved)]))
            tx.upsert("lineitem", pa.concat_tables([lines, changed]))
            tx.delete("orders", pa.table({"o_orderkey": gone}))
            tx.delete("lineitem", pa.concat_tables([dropped, self._lines(gone)]).select(KEYS["lineitem"]))
        return tx.epoch

    def _some(self, count: int) -> np.ndarray:
        """Keys of `count` different orders, in random order."""
        dear = self._chance.choice(self._dear, min(count // 2, len(self._dear)), replace=False)
        others = self._chance.choice(np.setdiff1d(self._live, dear), count - len(dear), replace=False)
        return self._chance.permutation(np.concatenate([dear, others]))

    def _orders(self, keys: np.ndarray) -> pa.Table:
        return self._store.table("orders").get(pa.table({"o_orderkey": np.sort(keys)}))

    def _lines(self, keys: np.ndarray) -> pa.Table:
        numbers = np.tile(np.arange(1, MOST_LINES + 1, dtype=np.int32), len(keys))
        wanted = pa.table({"l_orderkey": np.repeat(np.sort(keys), MOST_LINES), "l_linenumber": numbers})
        return self._store.table("lineitem").get(wanted)

    def _new(self) -> tuple[pa.Table, pa.Table]:
        """Orders that are there, bought again by other customers on other days, under keys that are free; some keys
        were there before and had gone.
        """
        again = self._live[(self._live % 32 < FREE) & ~np.isin(self._live + FREE, self._live)]
        keys = self._chance.choice(again, self._size, replace=False)
        old, lines = self._orders(keys), self._lines(keys)
        new = self._moved(keys, always=True)
        days = shift(new["o_orderdate"], old["o_orderdate"])[np.searchsorted(np.sort(keys), lines["l_orderkey"])]
        for name in ("l_shipdate", "l_commitdate", "l_receiptdate"):
            lines = put(lines, name, lines[name].to_numpy() + days)
        lines = put(lines, "l_orderkey", lines["l_orderkey"].to_numpy() + FREE)
        return put(new, "o_orderkey", new["o_orderkey"].to_numpy() + FREE), lines

    def _moved(self, keys: np.ndarray, *, always: bool = False) -> pa.Table:
        """These orders for another customer, or on a day between October 1993 and April 1995, or both."""
        rows, chance = self._orders(keys), self._chance
        customers = chance.choice(self._store.table("customer").to_arrow(columns=["c_custkey"])["c_custkey"], len(rows))
        days = np.datetime64("1993-10-01") + chance.integers(0, 550, len(rows))
        which = chance.integers(1, 4, len(rows)) | (3 if always else 0)
        rows = put(rows, "o_custkey", customers, where=which & 1 > 0)
        return put(rows, "o_orderdate", days, where=which & 2 > 0)

    def _altered(self, keys: np.ndarray) -> tuple[pa.Table, pa.Table]:
        """Lines of these orders with other values, and lines that go while their orders stay."""
        rows, chance = self._lines(keys), self._chance
        drawn = {
            "l_quantity": decimals(chance.integers(1, 51, len(rows)) * 100),
            "l_extendedprice": decimals(chance.integers(90_000, 10_500_000, len(rows))),
            "l_discount": decimals(chance.integers(0, 11, len(rows))),
            "l_returnflag": chance.choice(["A", "N", "R"], len(rows)),
            "l_shipdate": rows["l_shipdate"].to_numpy() + chance.integers(-200, 201, len(rows)),
        }
        for name, values in drawn.items():
            rows = put(rows, name, values, where=chance.random(len(rows)) < 0.4)
        stay = chance.random(len(rows)) < 0.9
        return rows.filter(stay), rows.filter(~stay)


def between(orders: pa.Table, first: str, end: str) -> pa.ChunkedArray:
    days = [pa.scalar(day).cast(pa.date32()) for day in (first, end)]
    return pc.and_(pc.greater_equal(orders["o_orderdate"], days[0]), pc.less(orders["o_orderdate"], days[1]))


def shift(new: pa.ChunkedArray, old: pa.ChunkedArray) -> np.ndarray:
    return new.to_numpy() - old.to_numpy()


def put(rows: pa.Table, name: str, values: object, where: object = True) -> pa.Table:
    """The rows with new values in a column, where that is so."""
    field = rows.schema.field(name)
    mask = pa.array(np.broadcast_to(np.asarray(where), len(rows)))
    column = pc.if_else(mask, pa.array(values, field.type), rows[name].combine_chunks())
    return rows.set_column(rows.schema.get_field_index(name), field, column)


def decimals(hundredths: np.ndarray) -> list[Decimal]:
    return [Decimal(int(value)).scaleb(-2) for value in hundredths]
