"""Touched values that the changed rows have by themselves: which tables are read for them, and that none is missing."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from sqlglot import exp

from epochlog.store.types.schema import TableSchema
from epochlog.views import changed_keys, duckdb_engine
from epochlog.views.compiled_plan import CompiledPlan, CompiledQuery
from epochlog.views.derivation import ViewPlan, derive
from view_cases import OF_AN_OUTER_JOIN, OF_KEYS, OF_OTHERS
from view_world import SCHEMAS, Differs, DuckDBEngine, ViewWorld, play, touched_query


def reads(sql: str, table: str) -> set[str]:
    """Return the tables with rows that the touched values of a change of the table are computed of."""
    plan = derive(sql, SCHEMAS, [sql.split()[1].strip(",").split(".")[1]])
    query = touched_query(plan, {table}, plan.coverage.scope_of({table}))
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
    names = {node.name for node in touched_query(plan, {"t"}, (column,)).find_all(exp.Table)}
    assert ("epochlog_either_w" not in names) is is_alone


def plans() -> Iterator[ViewPlan]:
    for sql in [*OF_KEYS.values(), *OF_OTHERS.values()]:
        plan = derive(sql, SCHEMAS, [sql.split()[1].strip(",").split(".")[1]])
        yield plan


@pytest.mark.medium
def test_no_touched_value_is_missing(engine: DuckDBEngine) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    for plan in plans():
        play(plan, seed, 8, engine, engine.judge)


@pytest.mark.planted
def test_an_equality_of_an_outer_join_would_be_found(monkeypatch: pytest.MonkeyPatch, engine: DuckDBEngine) -> None:
    original = changed_keys.settled

    def settled(flat: Any) -> Any:
        flat = original(flat)
        flat.chains = {name: [replace(join, side="") for join in chain] for name, chain in flat.chains.items()}
        return flat

    monkeypatch.setattr(changed_keys, "settled", settled)
    plan = derive(OF_AN_OUTER_JOIN, SCHEMAS, ["a"])
    with pytest.raises(Differs):
        play(plan, 1, 300, engine, engine.judge)


def image_tables(world: ViewWorld, plan: ViewPlan, queries: Mapping[str, CompiledQuery]) -> dict[str, pa.Table]:
    """Return the old and new images of changed rows, by occurrence."""
    images = {}
    for alias in queries:
        schema = SCHEMAS[plan.form.occurrences[alias]].schema
        rows = world.changed_images(plan.form.occurrences[alias])
        images[alias] = pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)
    return images


def _self(plan: ViewPlan) -> ViewPlan:
    return plan


@pytest.mark.medium
def test_keys_of_changed_rows_are_the_touched_values_on_each_engine(engine: DuckDBEngine) -> None:
    """Spark's driver computes them without a job: it must find what the touched query finds."""
    world, compared = ViewWorld(random.Random(1), list(SCHEMAS)), 0
    for _ in range(10):
        changed = world.change()
        for plan in plans():
            of_plan = changed & set(plan.tables)
            scope = plan.coverage.scope_of(of_plan)
            queries = CompiledPlan(partial(_self, plan), "spark").key_queries(of_plan, scope) if of_plan else None
            if queries is None:
                continue
            types = pa.schema([(name, pa.int32()) for name in scope])
            keys = duckdb_engine.touched_keys(queries, image_tables(world, plan, queries), types)
            assert keys is not None
            engine.load(world.contents())
            touched = engine.touched(touched_query(plan, of_plan, scope))
            assert sorted(zip(*(column.to_pylist() for column in keys.columns), strict=True)) == sorted(touched)
            compared += len(touched)
    assert compared > 10


def test_keys_on_which_the_engines_differ_are_left_to_spark() -> None:
    sql = "SELECT t.id, SUM(t.v) AS s FROM t JOIN u ON t.id = u.id WHERE SIGN(t.v) > 0 GROUP BY t.id"
    plan = derive(sql, SCHEMAS, ["id"])
    ((alias,),) = plan.coverage.changed_batches({"t"})
    assert plan.keys_of(alias, ("id",)) is not None
    assert CompiledPlan(lambda: plan, "spark").key_queries({"t"}, ("id",)) is None
