"""Expressions of views on DuckDB: averages and groups as Spark computes them, without Spark."""

from __future__ import annotations

import pyarrow as pa
import pytest

from epochlog.errors import InvalidInput
from epochlog.store.types.schema import TableSchema
from epochlog.views import duckdb_engine, duckdb_functions
from epochlog.views.derivation import NOW, derive
from plan_rows import rows_of

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("n", pa.int64()), ("f", pa.float64())])
TABLE = TableSchema("x", SCHEMA, ("id",))


def answer(sql: str, rows: pa.Table) -> list[dict[str, object]]:
    plan = derive(sql, {"x": TABLE}, ["k"])
    wanted = duckdb_engine.output_schema(plan, {"x": TABLE})
    with duckdb_engine._connected() as connection:
        connection.register(NOW + "x", rows)
        return rows_of(connection, plan).cast(wanted).to_pylist()


def test_an_average_of_bigint_sums_doubles() -> None:
    numbers = [2**53, 1, 1, 1]  # 2**53 + 1 is no DOUBLE
    rows = pa.table([[1, 2, 3, 4], numbers, [None] * 4], schema=SCHEMA)
    total = 0.0
    for number in numbers:  # `sum` of Python 3.12 keeps what rounding loses
        total += number
    assert total == 2.0**53
    assert answer("SELECT 1 AS k, AVG(n) AS a FROM x", rows) == [{"k": 1, "a": total / 4}]
    windowed = answer("SELECT id AS k, AVG(n) OVER () AS a FROM x", rows)
    assert {row["a"] for row in windowed} == {total / 4}


@pytest.mark.parametrize("sql", [
    "SELECT f AS k, COUNT(*) AS n FROM x GROUP BY f",
    "SELECT COALESCE(f, 1) AS k, COUNT(*) AS n FROM x GROUP BY COALESCE(f, 1)",
    "SELECT n AS k, f, COUNT(*) AS c FROM x GROUP BY ALL",
    "SELECT DISTINCT f AS k FROM x",
    "SELECT n AS k, f, COUNT(*) AS c FROM x GROUP BY GROUPING SETS ((n, f), (n))",
    "SELECT f AS k FROM x UNION SELECT f + 0D FROM x",
    "SELECT f AS k FROM x INTERSECT SELECT f FROM x",
])  # fmt: skip
def test_groups_of_doubles_with_a_negative_zero_are_refused(sql: str) -> None:
    with pytest.raises(InvalidInput, match=r"-0\.0.*add 0D"):
        answer(sql, SCHEMA.empty_table())


@pytest.mark.parametrize("sql", [
    "SELECT f + 0D AS k, COUNT(*) AS n FROM x GROUP BY f + 0D",
    "SELECT ABS(f) AS k, COUNT(*) AS n FROM x GROUP BY ABS(f)",
    "SELECT DISTINCT f + CAST(0 AS DOUBLE) AS k FROM x",
    "SELECT f + 0D AS k FROM x UNION SELECT 0D + f FROM x",
])  # fmt: skip
def test_a_sum_with_zero_is_grouped(sql: str) -> None:
    rows = answer(sql, pa.table([[1, 2], [1, 1], [-0.0, 0.0]], schema=SCHEMA))
    assert [repr(row["k"]) for row in rows] == ["0.0"]


def test_the_order_of_rows_decides_between_both_zeros() -> None:
    """They are equal, so MIN and MAX are either of them; in Spark too (`test_view_functions`)."""
    sql = "SELECT 1 AS k, MIN(f) AS low, MAX(f) AS high, MIN(f) + 0D AS low_sum, MAX(f) + 0D AS high_sum FROM x"
    rows = [answer(sql, pa.table([[1, 2], [1, 1], zeros], schema=SCHEMA))[0] for zeros in ([-0.0, 0.0], [0.0, -0.0])]
    assert {repr(row[name]) for row in rows for name in ("low", "high")} == {"0.0", "-0.0"}
    assert {repr(row[name]) for row in rows for name in ("low_sum", "high_sum")} == {"0.0"}


CORNERS = pa.schema([
    *(pa.field("id", pa.int64(), nullable=False), pa.field("n", pa.int64()), pa.field("f", pa.float64())),
    *(pa.field("fl", pa.float32()), pa.field("d", pa.decimal128(10, 2)), pa.field("day", pa.date32())),
    *(pa.field("at", pa.timestamp("us", "UTC")), pa.field("ntz", pa.timestamp("us")), pa.field("b", pa.bool_())),
    *(pa.field("st", pa.struct([("x", pa.int64())])), pa.field("li", pa.list_(pa.int64()))),
    pa.field("mp", pa.map_(pa.string(), pa.int64())),
])  # fmt: skip


def planned(sql: str) -> pa.Schema:
    table = TableSchema("x", CORNERS, ("id",))
    return duckdb_engine.output_schema(derive(sql, {"x": table}, ["k"]), {"x": table})


@pytest.mark.parametrize("value", [
    *("fl / 3", "TRY_DIVIDE(fl, 3)", "-fl / 3", "CAST(n AS FLOAT) / 3", "fl / NULLIF(id, 0)", "MIN(fl) OVER () / 3"),
    *("fl / fl", "3 / NULLIF(fl, 0)", "MAX(st) OVER ()", "MIN(li) OVER ()", "st < st", "li >= li", "mp < mp"),
    *("GREATEST(st, st)", "LEAST(li, li)", "RANK() OVER (ORDER BY st)", "ROW_NUMBER() OVER (ORDER BY li, id)"),
    *("COALESCE(b, 1)", "CASE WHEN b THEN b ELSE 1 END", "GREATEST(b, 1)", "NULLIF(b, 0)", "n = TRUE", "n IN (TRUE)"),
    *("n IN (b)", "n BETWEEN FALSE AND TRUE", "CASE n WHEN TRUE THEN 1 END", "id IS TRUE", "DATE_TRUNC('DAY', ntz)"),
    *("12345678901234567890123456789012345678", "CAST(f AS FLOAT)", "LAG(fl, 1, f) OVER (ORDER BY id)"),
    *("- -2147483648", "-(-2147483648)", "- - -9223372036854775808", "- CAST(-128 AS TINYINT)", "ABS(-2147483648)"),
    *("GREATEST(fl, NULL)", "GREATEST(-0F, fl)", "LEAST(CAST(1 AS FLOAT), NULL, fl)", "LEFT('ab', 3000000000)"),
    "SUM(id) OVER (ORDER BY CAST(id AS TINYINT) RANGE BETWEEN 200 PRECEDING AND CURRENT ROW)",
    "SUM(id) OVER (ORDER BY CAST(d AS DECIMAL(5, 1)) RANGE BETWEEN CURRENT ROW AND 10000 FOLLOWING)",
    *("at = '2024-01-01 24:00:00'", "at = '2024-01-01 10:00:00+25:00'", "at = '2024-01-01 10:00:00-18:30'"),
    *("at = ' 2024-01-01 '", "day = '2024-01-01 10:00:60'", "day = '2024-02-30'", "day = '0000-01-01'"),
])  # fmt: skip
def test_values_that_spark_computes_otherwise_are_refused(value: str) -> None:
    with pytest.raises(InvalidInput, match="DuckDB and Spark differ on"):
        planned(f"SELECT id AS k, {value} AS r FROM x")


@pytest.mark.parametrize(("left", "right"), [
    *(("day", "'2024-01-01'"), ("'2024-01-01'", "day"), ("at", "'2024-01-01 00:00:00'"), ("d", "n"), ("n", "1.5")),
    *(("b", "n"), ("n", "b")),
])  # fmt: skip
@pytest.mark.parametrize("operation", ["UNION", "UNION ALL", "EXCEPT", "INTERSECT"])
def test_a_set_operation_of_other_types_than_in_spark_is_refused(left: str, right: str, operation: str) -> None:
    with pytest.raises(InvalidInput, match="DuckDB and Spark differ on"):
        planned(f"SELECT id AS k, {left} AS r FROM x {operation} SELECT id, {right} FROM x")


@pytest.mark.parametrize("value", [
    *("n / 3", "CAST(fl AS DOUBLE) / 3", "n = 1", "b = TRUE", "b IS TRUE", "COALESCE(b, FALSE)", "st", "li", "mp"),
    *("DATE_TRUNC('DAY', at)", "MAX(fl) OVER ()", "LAG(fl, 1, fl) OVER (ORDER BY id)", "day = '2024-01-01'"),
    *("-2147483648", "-(n)", "-CAST(n AS TINYINT)", "at = '2024-2-29 1:02:03+18:00'", "LEFT('ab', 2147483647)"),
    "SUM(id) OVER (ORDER BY CAST(id AS TINYINT) RANGE BETWEEN 127 PRECEDING AND CURRENT ROW)",
    "SUM(id) OVER (ORDER BY CAST(d AS DECIMAL(5, 1)) RANGE BETWEEN CURRENT ROW AND 9999 FOLLOWING)",
])  # fmt: skip
def test_values_that_both_engines_compute_alike_are_accepted(value: str) -> None:
    assert planned(f"SELECT id AS k, {value} AS r FROM x").names == ["k", "r"]


BEYOND_BIGINT = pa.table([[1, 2, 3], [2**63 - 1, 1, None], [None] * 3], schema=SCHEMA)
OF_TOTALS = (
    *(
        "SUM(n)",
        "SUM(n) > 0",
        "SUM(n) IN (1, 2)",
        "SUM(n) BETWEEN 1 AND 2",
        "SUM(n) <=> 1",
        "SUM(n) IS NULL",
        "-SUM(n)",
    ),
    *(
        "SUM(n) + 1",
        "SUM(n) - SUM(n)",
        "SUM(n) * 2",
        "SUM(n) / 3",
        "SUM(n) % 10",
        "SUM(n) DIV 3",
        "TRY_DIVIDE(SUM(n), 3)",
    ),
    *("CAST(SUM(n) AS DOUBLE)", "CAST(SUM(n) AS STRING)", "CAST(SUM(n) AS BIGINT)", "NULLIF(SUM(n), 1)", "ABS(SUM(n))"),
    *("CASE WHEN SUM(n) > 1 THEN 1 END", "IF(SUM(n) = 1, 1, 2)", "COALESCE(SUM(n), 0)", "LEAST(SUM(n), 1)"),
    *("SUM(n) FILTER (WHERE id < 9) > 0", "SUM(DISTINCT n) > 0", "CONCAT('a', SUM(n))", "SUM(SUM(n)) OVER () > 0"),
    *("RANK() OVER (ORDER BY SUM(n))", "SUM(SUM(n) + 0) OVER (ORDER BY SUM(n)) > 0"),
)
"""Expressions of a sum of integers, which Spark fails to compute where the sum does not fit BIGINT."""


@pytest.mark.parametrize("value", OF_TOTALS)
def test_a_sum_beyond_bigint_is_an_error_wherever_it_stands(value: str) -> None:
    """DuckDB goes on with 128 bits, so a view had a row of a query that fails in Spark."""
    with pytest.raises(InvalidInput, match="a sum of the view does not fit BIGINT"):
        answer(f"SELECT 1 AS k, {value} AS r FROM x", BEYOND_BIGINT)


@pytest.mark.parametrize("sql", [
    "SELECT 1 AS k, COUNT(*) AS r FROM (SELECT SUM(n) AS v FROM x) q WHERE v > 0",
    "SELECT id AS k, SUM(n) OVER (ORDER BY id) > 0 AS r FROM x",
    "SELECT 1 AS k, COUNT(*) AS r FROM x HAVING SUM(n) > 0",
    "SELECT id AS k FROM x JOIN (SELECT SUM(n) AS v FROM x) q ON x.id < q.v",
])  # fmt: skip
def test_a_sum_beyond_bigint_is_an_error_in_each_clause(sql: str) -> None:
    with pytest.raises(InvalidInput, match="a sum of the view does not fit BIGINT"):
        answer(sql, BEYOND_BIGINT)


@pytest.mark.planted
def test_sums_that_stay_wide_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duckdb_functions, "_replace_total", lambda total: None)
    with pytest.raises(pytest.fail.Exception):
        test_a_sum_beyond_bigint_is_an_error_wherever_it_stands("SUM(n) > 0")


def test_the_smallest_integer_has_a_remainder_by_minus_one() -> None:
    rows = pa.table([[1], [-(2**63)], [None]], schema=SCHEMA)
    assert answer("SELECT id AS k, n % -1 AS r, n % (-7) AS s FROM x", rows) == [{"k": 1, "r": 0, "s": -1}]


INTS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("i", pa.int32()), ("n", pa.int64())])
LARGEST = pa.table([[1, 2], [2**31 - 1, -(2**31)], [2**63 - 1, -(2**63)]], schema=INTS)
COMPARED = (
    *("i + 1 = 8", "1 + i = 8", "i + 1 > 8", "i - 1 < 0", "i * 2 = 14", "i * 2 > 10", "n + 1 = 4", "n - 1 <> 4"),
    *("i + 1 BETWEEN 1 AND 9", "i + 1 IN (8, 9)", "i + 1 <=> 8", "-i > 0", "NOT i + 1 = 8"),
)


@pytest.mark.parametrize("condition", COMPARED)
@pytest.mark.parametrize("sql", ["SELECT id AS k FROM x WHERE {}", "SELECT id AS k, {} AS r FROM x"])
def test_an_overflow_in_a_comparison_is_an_error(sql: str, condition: str) -> None:
    """DuckDB solves i + 1 = 8 for i, so a view had rows of a query that fails in Spark."""
    table = TableSchema("x", INTS, ("id",))
    plan = derive(sql.format(condition), {"x": table}, ["k"])
    with duckdb_engine._connected() as connection:
        connection.register(NOW + "x", LARGEST)
        with pytest.raises(InvalidInput, match=r"Out of Range|[Oo]verflow"):
            rows_of(connection, plan)
