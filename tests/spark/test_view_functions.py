"""Values that Spark computes in no one way, or not at all, of functions that views can have on DuckDB."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from corner_tables import SCHEMA
from epochlog.errors import InvalidInput
from epochlog.store.types.schema import TableSchema
from epochlog.views import duckdb_engine
from epochlog.views.derivation import NOW, derive
from plan_rows import rows_of

pytestmark = [pytest.mark.spark, pytest.mark.long]


@pytest.fixture
def utc(spark: SparkSession) -> Iterator[SparkSession]:
    """The session in UTC, as views run in it."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    yield spark
    spark.catalog.dropTempView("x")  # the session is shared
    spark.conf.set("spark.sql.session.timeZone", before)


def test_the_order_of_rows_decides_between_both_zeros_in_spark(utc: SparkSession) -> None:
    """So a view has either of them: no refresh could have the one that Spark would compute another time."""
    seen: dict[str, set[str]] = {"low": set(), "high": set(), "sum": set()}
    for zeros in ([-0.0, 0.0], [0.0, -0.0]):
        frame = utc.createDataFrame([(zero,) for zero in zeros], "f double").coalesce(1)
        frame.createOrReplaceTempView("x")
        (row,) = utc.sql("SELECT MIN(f) AS low, MAX(f) AS high, MAX(f) + 0D AS sum FROM x").collect()
        for name, values in seen.items():
            values.add(repr(row[name]))
    assert seen == {"low": {"0.0", "-0.0"}, "high": {"0.0", "-0.0"}, "sum": {"0.0"}}


@pytest.mark.parametrize("text", [
    "n DIV NULLIF(i, 0)",
    "CAST(CAST(n AS INT) AS BIGINT)",
])  # fmt: skip
def test_both_engines_fail_for_a_value_that_has_no_place(utc: SparkSession, text: str) -> None:
    rows = pa.Table.from_pylist([{"id": 1, "i": -1, "n": -(2**63), "day": dt.date(2024, 1, 1)}], schema=SCHEMA)
    sql = f"SELECT id AS k, {text} AS c FROM x"
    plan = derive(sql, {"x": TableSchema("x", SCHEMA, ("id",))}, ["k"])
    with duckdb_engine._connected() as connection:
        connection.register(NOW + "x", rows)
        with pytest.raises(InvalidInput):
            rows_of(connection, plan)
    utc.createDataFrame(rows).createOrReplaceTempView("x")
    with pytest.raises((PySparkException, Py4JJavaError)):
        utc.sql(sql).toArrow()
