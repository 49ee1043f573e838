"""Columns that a view's query reads: a plan over these alone is the plan over whole tables."""

from __future__ import annotations

import random
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa
import pytest

from epochlog.errors import EpochlogError
from epochlog.store.metadata.job_columns import chosen_columns
from epochlog.store.types.schema import TableSchema
from epochlog.views.derivation import ViewPlan, derive
from epochlog.views.table_names import IS_NEW
from epochlog.views.table_reads import table_reads
from epochlog.views.touched import NotCovered
from view_queries import Queries
from view_world import TABLES, touched_query

NUMBER = pa.int64()
SCHEMAS = {
    name: TableSchema(name, pa.schema([pa.field(c, NUMBER, c not in key) for c in (*columns, "x1", "x2")]), tuple(key))
    for name, (columns, key) in TABLES.items()
}


def planned(sql: str, tables: Mapping[str, TableSchema], key: tuple[str, ...]) -> ViewPlan | None:
    try:
        return derive(sql, tables, key)
    except EpochlogError:
        return None


def columns_of_all_queries(plan: ViewPlan) -> dict[str, set[str]]:
    """Return the columns that the plan's queries read, by table: of a barrier in which all tables have changed."""
    scope, aliases = plan.scope, plan.form.occurrences
    queries = [plan.query(), *([plan.state.changes(plan.tables), plan.state_rows(())] if plan.state else [])]
    if scope:
        queries += [plan.refresh_query(scope), *filter(None, (plan.keys_of(alias, scope) for alias in aliases))]
        with suppress(NotCovered):
            queries.append(touched_query(plan, plan.tables, scope))
    read: dict[str, set[str]] = {}
    for query in queries:
        for part in table_reads(query).values():
            read.setdefault(part.table, set()).update(part.columns)
    return read


@pytest.mark.rule("7.7")
@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(30), marks=pytest.mark.medium, id="few"),
        pytest.param(range(30, 400), marks=pytest.mark.long, id="many"),
    ],
)
def test_a_plan_over_the_columns_that_it_reads_is_the_plan_over_all(seeds: range) -> None:
    seen = narrower = 0
    for seed in seeds:
        queries = Queries(random.Random(seed))
        query = queries.sums() if seed % 4 == 0 else queries.query(1 + seed % 2)
        plan = planned(query.sql, SCHEMAS, tuple(query.unique or ()))
        if plan is None:
            continue
        few = {name: chosen_columns(SCHEMAS[name], columns) for name, columns in plan.columns.items()}
        again = planned(query.sql, few, plan.coverage.primary_key)
        assert again is not None, query.sql
        assert replace(again, schemas=plan.schemas) == plan, query.sql
        assert again.columns == plan.columns
        for table, columns in columns_of_all_queries(again).items():
            assert columns - {IS_NEW} <= set(few[table].schema.names), query.sql
        seen += 1
        narrower += any(len(few[name].schema) < len(SCHEMAS[name].schema) - 2 for name in few)
    assert seen > len(seeds) // 3 and narrower > len(seeds) // 6, (seen, narrower)


@pytest.mark.rule("7.7")
@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT * FROM t", {"t": "kabc"}),
        ("SELECT * EXCEPT (c) FROM t", {"t": "kab"}),
        ("SELECT k FROM t ORDER BY a", {"t": "k"}),  # without LIMIT the order says nothing
        ("SELECT k FROM t ORDER BY a LIMIT 2", {"t": "ka"}),
        ("SELECT k FROM t AS s (k, y, z, w)", {"t": "kabc"}),  # names by position
        ("SELECT a AS k FROM t GROUP BY 1 HAVING MAX(b) > 0", {"t": "ab"}),
        ("SELECT t.k FROM t LEFT JOIN u USING (k) WHERE t.a = u.c", {"t": "ka", "u": "kc"}),
        ("SELECT t.k FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.a = t.b)", {"t": "kb", "u": "a"}),
        ("SELECT k, ROW_NUMBER() OVER (PARTITION BY a ORDER BY b) AS n FROM t", {"t": "kab"}),
        ("WITH q AS (SELECT a, b FROM u) SELECT k FROM t", {"t": "k"}),
        ("SELECT 1 AS k, COUNT(*) AS n FROM t", {"t": ""}),
        ("SELECT k FROM t UNION SELECT c FROM u", {"t": "k", "u": "c"}),
    ],
)
def test_the_columns_of_a_query(sql: str, expected: dict[str, str]) -> None:
    schema = pa.schema([("k", NUMBER), ("a", NUMBER), ("b", NUMBER), ("c", NUMBER)])
    plan = derive(sql, {name: TableSchema(name, schema, ["k"]) for name in ("t", "u")}, ["k"])
    assert {table: "".join(names) for table, names in plan.columns.items()} == expected
