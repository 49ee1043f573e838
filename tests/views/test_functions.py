"""Lists of the functions that DuckDB computes as Spark does, of those that it refuses, and of those in the guide."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from sqlglot import exp

from corner_tables import SCHEMA
from epochlog.errors import InvalidInput
from epochlog.store.types.schema import TableSchema
from epochlog.views import duckdb_engine
from epochlog.views.derivation import derive
from epochlog.views.duckdb_functions import LOCAL
from epochlog.views.parsing import parse
from view_functions import AGGREGATES, AGREED, REFUSED, WHOLE


def test_every_function_of_the_list_occurs_in_an_agreed_text() -> None:
    """A name on the list without a text is one that no test compares with Spark's answer."""
    seen: set[type[exp.Expr]] = set()
    for text in (*AGREED, *AGGREGATES):
        seen.update(type(node) for node in parse(f"SELECT {text} AS c FROM x GROUP BY id").walk())
    for sql in WHOLE:
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
        duckdb_engine.output_schema(plan, {"x": schema})
