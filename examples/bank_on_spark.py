"""The sums of bank.py by four plain streaming queries of Spark, each of which writes a Delta table of its own.

`credits` and `debits` aggregate the transfers. Structured Streaming has no join of two aggregates that change, so five
times a second `balance` joins the newest commits of both tables, and `total` adds up the newest commit of `balance`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq
from bank import TRANSFERS, Arrivals, Tally
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import TableNotFoundError

import epochlog as el

EMPTY = {
    "credits": pa.schema([("account", pa.int64()), ("credits", pa.int64())]),
    "debits": pa.schema([("account", pa.int64()), ("debits", pa.int64())]),
    "balance": pa.schema([("account", pa.int64()), ("balance", pa.int64())]),
    "total": pa.schema([("total", pa.int64())]),
}
"""Columns of each Delta table."""


class DeltaBank:
    """Four streaming queries over a folder of files, and their Delta tables."""

    def __init__(self, folder: Path, arrivals: Arrivals) -> None:
        self.tally = Tally()
        self._folder, self._arrivals, self._parts = folder, arrivals, 0
        self._queries: list[Any] = []
        (folder / "transfers").mkdir()
        self._spark = el.spark("bank")
        self._spark.sparkContext.setLogLevel("ERROR")

    def __enter__(self) -> Self:
        columns = "id BIGINT, from_account BIGINT, to_account BIGINT, amount BIGINT, ts TIMESTAMP"
        rows = self._spark.readStream.schema(columns).parquet(str(self._folder / "transfers"))
        for name, side in (("credits", "to_account"), ("debits", "from_account")):
            sums = rows.groupBy(side).sum("amount").toDF("account", name)
            self._start(name, sums, "complete", lambda batch: batch.toArrow())
        ticks = self._spark.readStream.format("rate").option("rowsPerSecond", 5).load()
        self._start("balance", ticks, "append", lambda batch: self._balance())
        self._start("total", ticks, "append", lambda batch: self._total())
        return self

    def __exit__(self, *error: object) -> None:
        errors = [query.exception() for query in self._queries]
        for query in self._queries:
            query.stop()
        self._spark.stop()
        if any(errors):
            raise RuntimeError(f"a query failed: {errors}")

    def _start(self, name: str, rows: Any, mode: str, answer: Callable[[Any], pa.Table]) -> None:
        def write(batch: Any, _: int) -> None:
            write_deltalake(self._folder / name, answer(batch).cast(EMPTY[name]), mode="overwrite")

        writer = rows.writeStream.outputMode(mode).foreachBatch(write)
        writer.option("checkpointLocation", str(self._folder / "checkpoints" / name))
        self._queries.append(writer.start())

    def _newest(self, name: str) -> pa.Table:
        """Return the newest commit of a Delta table; no rows without one."""
        try:
            return pa.table(DeltaTable(self._folder / name).to_pyarrow_table()).cast(EMPTY[name])
        except TableNotFoundError:
            return EMPTY[name].empty_table()

    def _balance(self) -> pa.Table:
        both = self._newest("credits").join(self._newest("debits"), "account", join_type="inner").to_pylist()
        rows = [{"account": row["account"], "balance": row["credits"] - row["debits"]} for row in both]
        return pa.Table.from_pylist(rows, schema=EMPTY["balance"])

    def _total(self) -> pa.Table:
        return pa.table({"total": [sum(self._newest("balance")["balance"].to_pylist())]})

    def write(self, part: pa.Table) -> None:
        """Add a file of transfers."""
        partial = self._folder / "transfers" / f"_part-{self._parts}"
        pq.write_table(part.cast(TRANSFERS), partial)
        partial.rename(self._folder / "transfers" / f"part-{self._parts}.parquet")
        self._parts += 1

    def read(self) -> None:
        """Read the newest commits of all four tables, and judge what was read."""
        sums = {name: self._newest(name) for name in EMPTY}
        if all(len(rows) for rows in sums.values()) and not self.tally.done:
            self.tally.add(sums, self._arrivals)
