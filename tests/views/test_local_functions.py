"""Expressions of views on DuckDB: averages and groups as Spark computes them, without Spark."""

from __future__ import annotations

import pyarrow as pa
import pytest

from epochlog.errors import InvalidInput
from epochlog.store.types.schema import TableSchema
from epochlog.views import local_engine
from epochlog.views.derivation import NOW, derive

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("n", pa.int64()), ("f", pa.float64())])
TABLE = TableSchema("x", SCHEMA, ("id",))


def answer(sql: str, rows: pa.Table) -> list[dict[str, object]]:
    plan = derive(sql, {"x": TABLE}, ["k"])
    wanted = local_engine.output_schema(plan, {"x": TABLE}, ["k"])
    with local_engine._connected() as connection:
        connection.register(NOW + "x", rows)
        return local_engine._run(connection, plan.query()).cast(wanted).to_pylist()


def test_an_average_of_bigint_sums_doubles() -> None:
    numbers = [2**53, 1, 1, 1]  # 2**53 + 1 is no DOUBLE
    rows = pa.table([[1, 2, 3, 4], numbers, [None] * 4], schema=SCHEMA)
    assert answer("SELECT 1 AS k, AVG(n) AS a FROM x", rows) == [{"k": 1, "a": sum(map(float, numbers)) / 4}]
    windowed = answer("SELECT id AS k, AVG(n) OVER () AS a FROM x", rows)
    assert {row["a"] for row in windowed} == {sum(map(float, numbers)) / 4}


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
