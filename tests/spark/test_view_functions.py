"""Functions that views can have on DuckDB, over corners: Spark gives the values and types that DuckDB gives."""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from sqlglot import exp

from epochlog.errors import InvalidInput
from epochlog.store.types.schema import TableSchema
from epochlog.views import local_engine
from epochlog.views.derivation import NOW, derive
from epochlog.views.local_functions import LOCAL
from epochlog.views.parsing import parse

UTC = dt.UTC
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("i", pa.int32()),
        pa.field("n", pa.int64()),
        pa.field("f", pa.float64()),
        pa.field("d", pa.decimal128(10, 2)),
        pa.field("s", pa.string()),
        pa.field("day", pa.date32()),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("b", pa.bool_()),
        pa.field("small", pa.int16()),
        pa.field("single", pa.float32()),
    ]
)
TIMES = [
    None,
    dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC),
    dt.datetime(2024, 2, 29, 13, 5, 7, 8, UTC),
    dt.datetime(1500, 3, 1, 0, 0, 0, 1, UTC),  # the Julian calendar had a 29th of February
]
ROWS = pa.Table.from_pylist(
    [
        {"id": number, "i": i, "n": n, "f": f, "d": d, "s": s, "day": day, "at": at, "b": b}
        | {"small": number * 7 if number else None, "single": number / 10 if number else None}
        for number, (i, n, f, d, s, day, at, b) in enumerate(
            [
                (None, None, None, None, None, None, TIMES[0], None),
                (0, 0, 0.0, Decimal("0.00"), "", dt.date(1970, 1, 1), TIMES[1], False),
                (-7, 2**53 + 1, -0.0, Decimal("-1.50"), "a", dt.date(1582, 10, 15), TIMES[2], True),
                (7, -(2**62), math.nan, Decimal("99999999.99"), "A_ä%\U0001f600", dt.date(2024, 2, 29), TIMES[2], True),
                (2**31 - 1, 3, math.inf, Decimal("0.01"), " a ", dt.date(9999, 12, 31), TIMES[1], False),
                (3, -3, -math.inf, Decimal("2.50"), "ab\\c", dt.date(2023, 1, 1), TIMES[2], None),
                (1, 1, 1e-300, Decimal("1.00"), "\n", dt.date(2000, 12, 31), TIMES[1], True),
                (-1, -5, -1.5, Decimal("-0.01"), "\u00a0\t x \u3000", dt.date(2, 1, 1), TIMES[3], False),
            ]
        )
    ],
    schema=SCHEMA,
)
AGREED = (
    "i / 2",
    "i / NULLIF(f, 0)",
    "n / 3",
    "n % 4",
    "i % 3",
    "-i",
    "ABS(n)",
    "n - i",
    "i * 1.5D",
    "COALESCE(d, CAST(0 AS DECIMAL(10, 2)))",
    "f * 2",
    "f + i",
    "NULLIF(i, 0)",
    "COALESCE(i, n)",
    "COALESCE(s, 'x')",
    "GREATEST(i, n)",
    "LEAST(i, n)",
    "IF(b, i, n)",
    "TRY_DIVIDE(i, 2)",
    "CASE WHEN i > 2 THEN 'big' WHEN i IS NULL THEN NULL ELSE s END",
    "i = n",
    "f = f",
    "f < 1",
    "f <=> NULL",
    "i <=> n",
    "i IS DISTINCT FROM n",
    "s = 'a'",
    "s < 'B'",
    "i IN (0, NULL)",
    "i NOT IN (0, 7)",
    "n BETWEEN -3 AND 3",
    "b OR i > 1",
    "NOT b",
    "s LIKE 'a%'",
    "s LIKE '_'",
    "LENGTH(s)",
    "SUBSTRING(s, 2, 3)",
    "SUBSTRING(s, 3)",
    "LEFT(s, 2)",
    "s || i",
    "CONCAT(s, '-', s)",
    "CAST(i AS BIGINT)",
    "CAST(i AS DOUBLE)",
    "CAST(i AS STRING)",
    "CAST(d AS DOUBLE)",
    "CAST(b AS INT)",
    "CAST(day AS STRING)",
    "CAST(NULL AS INT)",
    "DATE '2020-02-03'",
    "day > '2000-01-01'",
    "day = DATE '2024-02-29'",
    "CAST(i AS DECIMAL(12, 2))",
    "YEAR(day)",
    "QUARTER(day)",
    "MONTH(day)",
    "DAY(day)",
    "DAYOFYEAR(day)",
    "YEAR(at)",
    "DAY(at)",
    *(f"DATE_TRUNC('{unit}', at)" for unit in ("SECOND", "MINUTE", "HOUR", "DAY", "WEEK", "MONTH", "YEAR")),
    "ROW_NUMBER() OVER (PARTITION BY b ORDER BY id)",
    "RANK() OVER (ORDER BY b)",
    "DENSE_RANK() OVER (ORDER BY s)",
    "NTILE(3) OVER (ORDER BY id)",
    "LAG(i) OVER (ORDER BY id)",
    "LEAD(i, 2, -1) OVER (ORDER BY id)",
    "SUM(i) OVER (PARTITION BY b)",
    "FIRST_VALUE(i) OVER (ORDER BY id)",
    "MAX(NULLIF(f, 0)) OVER (ORDER BY id ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)",  # of -0.0 and 0.0 it is either
    "PERCENT_RANK() OVER (ORDER BY id)",
    "CUME_DIST() OVER (ORDER BY id)",
    "RANK() OVER (ORDER BY f)",
    "RANK() OVER (ORDER BY f DESC)",
    "RANK() OVER (ORDER BY s DESC)",
    "small + small",
    "small + n",
    "small > 14",
    "small IN (7, 100000)",
    "COALESCE(CAST(small AS INT), 0)",
    "single * f",
    "single < f",
    "CAST(single AS DOUBLE) = 0.1",
    "AVG(n) OVER (PARTITION BY i IS NULL)",
    "f + 0D",
    "ABS(f)",
    "b AND (i > 1)",
    "i <> n",
    "i >= 0",
    "i <= n",
    "i DIV 2",
    "n DIV 3",
    "n DIV NULLIF(i, 0)",
    "(n + 1) DIV 2 * 2 DIV 3",
    "HOUR(at)",
    "MINUTE(at)",
    "SECOND(at)",
    "CAST(at AS DATE)",
    "DATE(at)",
    "TO_DATE(at)",
    "TO_DATE(day)",
    "TO_DATE('2024-02-29')",
    "CAST(at AS DATE) = day",
    "CAST(day AS TIMESTAMP)",
    "DATE_TRUNC('MONTH', CAST(day AS TIMESTAMP))",
    "CAST(DATE_TRUNC('WEEK', at) AS DATE)",
    "DATEDIFF(day, DATE '2000-01-01')",
    "DATEDIFF(at, day)",
    "DATE_ADD(DATE_SUB(day, 1), 1)",
    "DATE_SUB(day, 30)",
    "YEAR(DATE_ADD(day, 31))",
    "DATE_ADD(DATE(at), -1) < day",
    "at + INTERVAL 1 DAY",
    "at - INTERVAL '90' MINUTES",
    "at + INTERVAL 3 SECONDS - INTERVAL 25 HOUR",
    "at + INTERVAL 1 DAY > CAST(day AS TIMESTAMP)",
    "TRIM(s)",
    "LTRIM(s)",
    "RTRIM(s)",
    "STARTSWITH(s, 'a')",
    "STARTSWITH(s, '')",
    "ENDSWITH(s, 'c')",
    "CONTAINS(s, 'b')",
    "CONTAINS(s, s)",
    "LAST_VALUE(i) OVER (ORDER BY id)",
    "NTH_VALUE(i, 2) OVER (ORDER BY id)",
)
AGGREGATES = (
    "COUNT(*)",
    "COUNT(i)",
    "COUNT(DISTINCT b)",
    "COUNT_IF(i > 0)",
    "SUM(i)",
    "SUM(DISTINCT i)",
    "AVG(i)",
    "AVG(n)",
    "AVG(n - 1)",
    "AVG(DISTINCT CAST(n AS DOUBLE))",
    "MIN(f)",
    "MAX(f)",
    "MIN(s)",
    "MAX(s)",
    "MIN(day)",
    "MAX(at)",
    "MAX(d)",
    "BOOL_AND(b)",
    "BOOL_OR(b)",
    "SUM(CAST(d AS DOUBLE))",
    "MAX(b)",
    "SUM(i) FILTER (WHERE i > 5)",
    "COUNT(*) FILTER (WHERE b)",
    "CAST(SUM(d) AS DECIMAL(20, 2))",
)
REFUSED = (
    "i / n",
    "i % n",
    "d / 2",
    "i DIV n",
    "f DIV 2",
    "d + 1",
    "d * d",
    "COALESCE(d, 0)",
    "IF(b, 1.5, 2)",
    "SUM(d) OVER (PARTITION BY b)",
    "CAST(f AS INT)",
    "CAST(s AS INT)",
    "TRY_CAST(i AS STRING)",
    "CAST(f AS STRING)",
    "ROUND(f, 1)",
    "UPPER(s)",
    "s LIKE 'a\\\\_%'",
    "s LIKE s",
    "SUBSTRING(s, 0, 2)",
    "SUBSTRING(s, -1)",
    "s = i",
    "YEAR(s)",
    "DAYOFWEEK(day)",
    "s RLIKE 'a'",
    "day + INTERVAL 1 DAY",
    "DATE_ADD(day, i)",
    "DATE_ADD(day, 2147483647)",  # in Spark it begins again at the oldest date
    "DATE_ADD(at, 1)",
    "day - day",
    "day + 1",
    "at - at",
    "s + s",
    "at + INTERVAL 1 MONTH",
    "INTERVAL 1 DAY",
    "INTERVAL 1 DAY + at",
    "DATEDIFF(DAY, at, at)",
    "DATEDIFF(s, day)",
    "HOUR(day)",
    "TO_DATE(s)",
    "TO_DATE(s, 'yyyy')",
    "CAST(s AS DATE)",
    "TRIM(BOTH 'x' FROM s)",
    "TRIM(i)",
    "STARTSWITH(s, i)",
    "CONCAT(s, f)",
    "small * 2",
    "COALESCE(small, -1)",
    "IF(b, small, 5)",
    "CASE WHEN b THEN small ELSE 0 END",
    "single + 1",
    "single = 0.1",
    "single > 2",
    "COALESCE(single, 0)",
    "COALESCE(i, s)",
    "CASE WHEN b THEN i ELSE s END",
    "CASE i WHEN '7' THEN 1 END",
    "NULLIF(i, s)",
    "GREATEST(s, i)",
    "i IN ('7', 'x')",
    "s BETWEEN 1 AND 9",
    "(SELECT MAX(q.w) FROM (SELECT y.i AS w FROM x y UNION SELECT z.s FROM x z) q)",
    "b AND i",
    "NOT i",
    "IF(i, 1, 2)",
    "CASE WHEN i THEN 1 END",
    "b IN (1)",
    "(SELECT MAX(y.n) FROM x y WHERE y.i)",
    "SUM(b) OVER (PARTITION BY i)",
    "COUNT(DISTINCT i) OVER (PARTITION BY b)",
    "(i, s)",
    "i IN (SELECT y.i FROM x y)",
    "COALESCE(i NOT IN (SELECT y.i FROM x y), TRUE)",
    "(SELECT AVG(DISTINCT y.n) FROM x y)",
    "(SELECT MAX(q.w) FROM (SELECT y.f AS w FROM x y GROUP BY y.f) q)",
    "(SELECT MAX(q.w) FROM (SELECT y.f AS w FROM x y GROUP BY GROUPING SETS ((y.f, y.i), (y.i))) q)",
    "(SELECT MAX(q.w) FROM (SELECT DISTINCT y.single AS w FROM x y) q)",
    "(SELECT MAX(q.w) FROM (SELECT y.f AS w FROM x y UNION SELECT z.f FROM x z) q)",
    "(SELECT MAX(q.w) FROM (SELECT y.f AS w FROM x y EXCEPT SELECT z.f FROM x z) q)",
)
QUERIES = (
    "SELECT id AS k, i AS c0 FROM x WHERE EXISTS (SELECT 1 FROM x y WHERE y.id = x.id + 1)",
    "SELECT f + 0D AS k, COUNT(*) AS c0 FROM x GROUP BY f + 0D",
    "SELECT DISTINCT ABS(f) AS k, f = f AS c0 FROM x",
    "SELECT f + 0D AS k, 1 AS c0 FROM x UNION SELECT 0D + f, 1 FROM x",
    "SELECT f AS k, 1 AS c0 FROM x UNION ALL SELECT f, 2 FROM x WHERE FALSE",
    "SELECT id AS k, (SELECT COUNT(DISTINCT y.f) FROM x y) AS c0 FROM x",
)
pytestmark = [pytest.mark.spark, pytest.mark.long]


@pytest.fixture
def utc(spark: SparkSession) -> Iterator[SparkSession]:
    """The session in UTC, as views run in it."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    yield spark
    spark.catalog.dropTempView("x")  # of `answers`: the session is shared
    spark.conf.set("spark.sql.session.timeZone", before)


def answers(spark: SparkSession, sql: str) -> tuple[pa.Table, pa.Table]:
    """Return the rows of a query from DuckDB and from Spark, in one order."""
    schema = TableSchema("x", SCHEMA, ("id",))
    plan = derive(sql, {"x": schema}, ["k"])
    wanted = local_engine.output_schema(plan, {"x": schema}, ["k"])
    with local_engine._connected() as connection:
        connection.register(NOW + "x", ROWS)
        ours = local_engine._run(connection, plan.query()).cast(wanted)
    spark.createDataFrame(ROWS).createOrReplaceTempView("x")
    return ours.sort_by("k"), spark.sql(sql).toArrow().sort_by("k")


def plain(value: Any) -> Any:
    return repr(value) if isinstance(value, float) else value  # tells -0.0 from 0.0


def compare(spark: SparkSession, sql: str, names: list[str]) -> None:
    ours, theirs = answers(spark, sql)
    wrong = []
    for number, text in enumerate(names):
        left, right = ours.column(f"c{number}"), theirs.column(f"c{number}")
        if [plain(v) for v in left.to_pylist()] != [plain(v) for v in right.to_pylist()]:
            wrong.append(f"{text}: DuckDB {left.to_pylist()}, Spark {right.to_pylist()}")
        elif left.type != right.type and not pa.types.is_string(left.type):
            wrong.append(f"{text}: DuckDB {left.type}, Spark {right.type}")
    assert not wrong, "\n".join(wrong)


def test_duckdb_computes_rows_as_spark(utc: SparkSession) -> None:
    listed = ", ".join(f"{text} AS c{number}" for number, text in enumerate(AGREED))
    compare(utc, f"SELECT id AS k, {listed} FROM x", list(AGREED))


def test_duckdb_computes_aggregates_as_spark(utc: SparkSession) -> None:
    listed = ", ".join(f"{text} AS c{number}" for number, text in enumerate(AGGREGATES))
    compare(utc, f"SELECT id % 3 AS k, {listed} FROM x GROUP BY id % 3", list(AGGREGATES))


@pytest.mark.parametrize("sql", QUERIES)
def test_duckdb_makes_the_rows_of_a_query_as_spark(utc: SparkSession, sql: str) -> None:
    ours, theirs = answers(utc, sql)
    for left, right in zip(ours.columns, theirs.columns, strict=True):
        assert sorted(map(repr, left.to_pylist())) == sorted(map(repr, right.to_pylist()))


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
    with local_engine._connected() as connection:
        connection.register(NOW + "x", rows)
        with pytest.raises(InvalidInput):
            local_engine._run(connection, derive(sql, {"x": TableSchema("x", SCHEMA, ("id",))}, ["k"]).query())
    utc.createDataFrame(rows).createOrReplaceTempView("x")
    with pytest.raises((PySparkException, Py4JJavaError)):
        utc.sql(sql).toArrow()


def test_every_function_of_the_list_occurs_in_an_agreed_text() -> None:
    """A name on the list without a text here is one that no test compares."""
    seen: set[type[exp.Expr]] = set()
    for text in (*AGREED, *AGGREGATES):
        seen.update(type(node) for node in parse(f"SELECT {text} AS c FROM x GROUP BY id").walk())
    for sql in QUERIES:
        seen.update(type(node) for node in parse(sql).walk())
    functions = {kind for kind in LOCAL if issubclass(kind, exp.Func | exp.Binary | exp.Unary | exp.Predicate)}
    assert sorted(kind.__name__ for kind in functions - seen) == []


def test_the_guide_lists_the_functions_that_are_compared() -> None:
    page = (Path(__file__).parents[2] / "docs/guide/views-in-sql.md").read_text("utf-8")
    table = page.partition("these give the same values on both engines")[2].partition("Spark alone computes")[0]
    listed = set(re.findall(r"`([A-Z_]{2,})[`(]", table)) - {"DIV", "LIKE", "CASE", "IN", "BETWEEN", "INTERVAL"}
    listed -= {"DISTINCT", "FILTER"}
    called = set(re.findall(r"\b([A-Z_]{2,})\(", " ".join((*AGREED, *AGGREGATES)))) - {"CAST", "DECIMAL", "DATE"}
    assert listed == called


def test_spark_alone_computes_the_functions_of_the_guide() -> None:
    page = (Path(__file__).parents[2] / "docs/guide/views-in-sql.md").read_text("utf-8")
    text = page.partition("Spark alone computes")[2].partition("IGNORE NULLS")[0]
    calls = {"RLIKE": "s RLIKE 'a'", "TRUNC": "TRUNC(day, 'MONTH')", "REPLACE": "REPLACE(s, 'a', 'b')"}
    calls["RIGHT"] = "RIGHT(s, 1)"
    for name in re.findall(r"`([A-Z]+)`", text):
        sql = f"SELECT {calls.get(name, f'{name}(i)')} AS c FROM x"
        if name in ("ROLLUP", "CUBE"):
            sql = f"SELECT i AS c FROM x GROUP BY {name}(i)"
        kinds = {type(node) for node in parse(sql).walk()}
        assert kinds - LOCAL, name


@pytest.mark.parametrize("text", REFUSED)
def test_duckdb_refuses_what_spark_computes_otherwise(text: str) -> None:
    schema = TableSchema("x", SCHEMA, ("id",))
    plan = derive(f"SELECT id AS k, {text} AS c FROM x", {"x": schema}, ["k"])
    with pytest.raises(InvalidInput, match="DuckDB and Spark differ"):
        local_engine.output_schema(plan, {"x": schema}, ["k"])
