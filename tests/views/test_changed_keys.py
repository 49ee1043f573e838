"""Touched values that the changed rows have by themselves: which tables are read for them, and that none is missing."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from sqlglot import exp

from epochlog.store.types.schema import TableSchema
from epochlog.views import changed_keys
from epochlog.views.derivation import ViewPlan, derive
from view_world import SCHEMAS, Differs, DuckDBEngine, play

OF_KEYS = {
    "t": "SELECT u.id, SUM(t.v) AS s FROM t JOIN u ON t.id = u.id GROUP BY u.id",
    "u": "SELECT u.id, t.v, r.c FROM t JOIN u ON t.id = u.id JOIN r ON r.a = u.a",
    "e": "SELECT e.a, e.b, COUNT(*) AS n FROM e JOIN t ON e.a = t.a AND e.b = t.b WHERE e.v > 1 GROUP BY e.a, e.b",
    "r": "SELECT t.a, MAX(t.v) AS v FROM t, r WHERE r.a = t.a AND r.c > 0 GROUP BY t.a",
}
"""Queries whose scope is a key of that table."""
OF_OTHERS = {
    "t": "SELECT u.c, COUNT(*) AS n FROM t JOIN u ON t.id = u.id GROUP BY u.c",
    "u": "SELECT t.id, u.c FROM t LEFT JOIN u ON t.id = u.id",
    "r": "SELECT t.id, r.c FROM t JOIN r ON r.c = t.id",
    "e": "SELECT t.id, e.v FROM t JOIN e ON e.a <=> t.id",
}


def reads(sql: str, table: str) -> set[str]:
    """Return the tables with rows that the touched values of a change of the table are computed of."""
    plan = derive(sql, SCHEMAS, [sql.split()[1].strip(",").split(".")[1]])
    query = plan.touched_query({table}, plan.scope_of({table}))
    return {node.name for node in query.find_all(exp.Table) if not node.name.startswith("epochlog_empty_")}


@pytest.fixture
def engine() -> Iterator[DuckDBEngine]:
    with duckdb.connect() as connection:
        connection.execute("SET threads = 1")
        yield DuckDBEngine(connection)


@pytest.mark.parametrize("table", OF_KEYS)
def test_a_key_of_the_changed_rows_is_read_of_them_alone(table: str) -> None:
    assert reads(OF_KEYS[table], table) == {f"epochlog_changed_{table}"}


@pytest.mark.parametrize("table", OF_OTHERS)
def test_other_values_are_read_of_the_joined_tables_too(table: str) -> None:
    assert len(reads(OF_OTHERS[table], table)) > 1


@pytest.mark.parametrize("column, is_alone", [("id", False), ("x", True)])
def test_columns_of_different_types_do_not_stand_for_each_other(column: str, is_alone: bool) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("x", pa.int32())])
    tables = {"t": SCHEMAS["t"], "w": TableSchema("w", schema, ("id",))}
    plan = derive(f"SELECT w.{column}, t.v FROM t JOIN w ON t.id = w.{column}", tables, [column])
    names = {node.name for node in plan.touched_query({"t"}, (column,)).find_all(exp.Table)}
    assert ("epochlog_either_w" not in names) is is_alone


def plans() -> Iterator[ViewPlan]:
    for sql in [*OF_KEYS.values(), *OF_OTHERS.values()]:
        plan = derive(sql, SCHEMAS, [sql.split()[1].strip(",").split(".")[1]])
        yield plan


def test_no_touched_value_is_missing(engine: DuckDBEngine) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    for plan in plans():
        play(plan, seed, 8, engine, engine.judge)


def test_an_equality_of_an_outer_join_would_be_found(monkeypatch: pytest.MonkeyPatch, engine: DuckDBEngine) -> None:
    original = changed_keys.settled

    def settled(flat: Any) -> Any:
        flat = original(flat)
        flat.chains = {name: [replace(join, side="") for join in chain] for name, chain in flat.chains.items()}
        return flat

    monkeypatch.setattr(changed_keys, "settled", settled)
    plan = derive("SELECT r.a, COUNT(*) AS n FROM t LEFT JOIN r ON r.a = t.id GROUP BY r.a", SCHEMAS, ["a"])
    with pytest.raises(Differs):
        play(plan, 1, 300, engine, engine.judge)
