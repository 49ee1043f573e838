"""A small store with the table `orders`, and short ways to reach it from Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import epochlog as el
from epochlog.spark.errors import find_epochlog_error
from spark_needs import has

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("day", pa.string()), ("amount", pa.float64())])

ONE_EPOCH: dict[str, Any] = {"maxEpochsPerTrigger": 1} if has("limits") else {}
"""Options of a stream that reads one epoch in each micro-batch, where Spark limits them."""

HOSTILE, HOSTILE_VALUE = "EPOCHLOG_HOSTILE", "mine' OR day <> '"
"""Variable of the session's environment whose value ends a text of SQL and widens a condition, and the value."""


class Lake:
    """A store with the table `orders`, and short ways to reach it from Spark."""

    def __init__(self, root: Path, session: SparkSession, uri: str | None = None, catalog: str | None = None) -> None:
        self.root = uri or str(root / "lake")
        self.catalog = catalog
        self.scratch = root
        self.spark = session
        self.store = el.open(self.root, catalog, checkpoint_interval_ms=100)
        self.orders = self.store.create_table("orders", SCHEMA, ["id"])

    def options(self, table: str, **options: Any) -> dict[str, str]:
        place = {"path": self.root, "table": table, **({"catalog": self.catalog} if self.catalog else {})}
        return {**place, **{name: str(value) for name, value in options.items()}}

    def read(self, table: str = "orders", **options: Any) -> DataFrame:
        return self.spark.read.format("epochlog").options(**self.options(table, **options)).load()

    def stream(self, table: str = "orders", **options: Any) -> DataFrame:
        return self.spark.readStream.format("epochlog").options(**self.options(table, **options)).load()

    def write(self, frame: DataFrame, table: str = "orders", mode: str = "append", **options: Any) -> None:
        frame.write.format("epochlog").mode(mode).options(**self.options(table, **options)).save()

    def into(self, frame: DataFrame, table: str, checkpoint: str, **options: Any) -> StreamingQuery:
        """Run a stream into a table until nothing is left to read."""
        writer = frame.writeStream.format("epochlog").options(**self.options(table, **options))
        return self.drain(writer.option("checkpointLocation", str(self.scratch / checkpoint)))

    def catch_up(self, frame: DataFrame, table: str, checkpoint: str, **options: Any) -> StreamingQuery:
        """Run a stream with a batch that an earlier run has left until nothing is left to read. Before Spark 4.2 a run
        ends with such a batch.
        """
        query = self.into(frame, table, checkpoint, **options)
        return query if has("limits") else self.into(frame, table, checkpoint, **options)

    @staticmethod
    def drain(writer: Any) -> StreamingQuery:
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return query

    def forget_last_commit(self, checkpoint: str) -> None:
        """As if the driver had died after the sink's commit and before Spark's own."""
        commits = self.scratch / checkpoint / "commits"
        last = max(int(entry.name) for entry in commits.iterdir() if entry.name.isdecimal())
        (commits / str(last)).unlink()
        (commits / f".{last}.crc").unlink(missing_ok=True)


def rows(first: int, count: int, amount: float = 1.0) -> pa.Table:
    """Rows of `orders` with ids from `first` on, over three days."""
    ids = list(range(first, first + count))
    return pa.table({"id": ids, "day": [f"d{i % 3}" for i in ids], "amount": [amount * i for i in ids]}, schema=SCHEMA)


def forget_catalog(session: SparkSession, name: str) -> None:
    """Make a catalog of all sessions unknown to this one and to sessions to come."""
    context: Any = session.sparkContext
    context._jsc.sc().conf().remove(f"spark.sql.catalog.{name}")
    session.conf.unset(f"spark.sql.catalog.{name}")


def refusal(call: Callable[[], object]) -> str:
    """Return the typed error of a call on Spark as text, with its class."""
    with pytest.raises((PySparkException, el.EpochlogError)) as caught:
        call()
    error = find_epochlog_error(caught.value)
    assert error is not None, caught.value
    return f"{type(error).__name__}: {error}"
