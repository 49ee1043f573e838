"""Texts of a view's queries: made once, for an occurrence and a scope, in a time that follows the text's length."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from sqlglot import exp

import epochlog as el
from epochlog.store.types.schema import TableSchema
from epochlog.views import compiled_plan, derivation, stored
from epochlog.views.compiled_plan import CompiledPlan
from epochlog.views.derivation import ViewPlan, derive
from raw_check import raw_check
from view_shop import VIEWS, Shop

ROWS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("k", pa.int64()), ("v", pa.int64())])


class Calls:
    """Counts the calls of functions."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *places: tuple[Any, str]) -> None:
        self.count = 0
        for module, name in places:
            monkeypatch.setattr(module, name, self._counted(getattr(module, name)))

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            self.count += 1
            return function(*arguments, **options)

        return counted


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path / "store", 40)
    yield shop
    shop.store.close()


@pytest.mark.medium
def test_a_step_makes_no_text_that_an_earlier_one_has_made(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(4):
        shop.change()
        shop.step()
    made = Calls(monkeypatch, (stored, "derive"), (compiled_plan, "duckdb_text"), (compiled_plan, "table_reads"))
    for _ in range(4):
        shop.change()
        shop.step()
    shop.check()
    assert made.count == 0
    stored.compiled.cache_clear()
    shop.change()
    shop.step()
    assert made.count > len(VIEWS)


def store_of_many(root: Path, count: int) -> el.Store:
    store = el.open(root, durability="os", checkpoint_interval_ms=10)
    for number in range(count):
        store.create_table(f"t{number}", ROWS, ["id"])
    joins = " ".join(f"LEFT JOIN t{number} ON t{number}.id = t0.id" for number in range(1, count))
    sums = " + ".join(f"COALESCE(t{number}.v, 0)" for number in range(count))
    store.create_view("all_of_them", f"SELECT t0.id, {sums} AS v FROM t0 {joins}", ["id"])
    return store


@pytest.mark.medium
def test_texts_are_as_many_as_occurrences_not_as_sets_of_changed_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, chance = 6, random.Random(1)
    with store_of_many(tmp_path / "store", count) as store:
        view = store.view("all_of_them")
        view.step()
        made = Calls(monkeypatch, (compiled_plan, "duckdb_text"))
        for step in range(40):
            for number in chance.sample(range(count), chance.randrange(1, count + 1)):
                store.table(f"t{number}").upsert(pa.table([[step % 5], [step], [number]], schema=ROWS))
            store.checkpoint()
            view.step()
        assert raw_check(view).ok
        assert made.count <= count + 2


def table(columns: int) -> dict[str, TableSchema]:
    fields = [(f"c{number}", pa.int64()) for number in range(columns)]
    return {"t": TableSchema("t", pa.schema([pa.field("id", pa.int64(), nullable=False), *fields]), ("id",))}


def columns(size: int) -> tuple[str, str, int]:
    return "SELECT * FROM t", "id", size


def unions(size: int) -> tuple[str, str, int]:
    sides = (f"SELECT id * 100 + {number} AS k, c0 + {number} AS v FROM t" for number in range(size))
    return " UNION ALL ".join(sides), "k", 3


def unions_below(size: int) -> tuple[str, str, int]:
    sides = (f"SELECT c1 AS k, c0 + {number} AS v FROM t" for number in range(size))
    return f"SELECT k, SUM(v) AS s FROM ({' UNION ALL '.join(sides)}) GROUP BY k", "k", 3


def terms(size: int) -> tuple[str, str, int]:
    return f"SELECT id, {' + '.join(f'c{number % 8}' for number in range(size))} AS x FROM t", "id", 8


def sums(size: int) -> tuple[str, str, int]:
    text = " + ".join(f"c{number % 8}" for number in range(size))
    return f"SELECT c0, SUM({text}) AS x FROM t GROUP BY c0", "c0", 8


def cases(size: int) -> tuple[str, str, int]:
    text = " ".join(f"WHEN c0 = {number} THEN c{number % 8}" for number in range(size))
    return f"SELECT id, CASE {text} END AS x FROM t", "id", 8


def members(size: int) -> tuple[str, str, int]:
    return f"SELECT id, c0 FROM t WHERE c0 IN ({', '.join(map(str, range(size)))})", "id", 8


def visited(monkeypatch: pytest.MonkeyPatch, text: tuple[str, str, int]) -> int:
    """Count the nodes that are visited from the text to the queries of a step."""
    sql, key, size = text
    with monkeypatch.context() as patched:
        calls = Calls(patched, (exp.Expression, "iter_expressions"))
        plan = derive(sql, table(size), [key])
        compiled = CompiledPlan(lambda: plan, "duckdb")
        scope = compiled.coverage.scope_of(["t"])
        for query in (compiled.query(), compiled.touched_query(["t"], scope), compiled.refresh_query(scope)):
            assert query.text
        if compiled.state:
            assert compiled.state_changes(["t"]).text and compiled.state_rows(()).text
    return calls.count


LINEAR = [(columns, 100), (unions, 12), (unions_below, 12), (terms, 60), (sums, 60), (cases, 60), (members, 60)]


@pytest.mark.medium
@pytest.mark.parametrize(("text", "size"), LINEAR)
def test_the_work_on_a_text_follows_its_length(
    text: Callable[[int], tuple[str, str, int]], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    once, twice = visited(monkeypatch, text(size)), visited(monkeypatch, text(2 * size))
    assert twice < 2.1 * once


@pytest.mark.planted
def test_work_on_each_side_for_each_other_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(derivation, "batches_of", lambda query, tables: tuple((alias,) for alias in tables))
    once, twice = visited(monkeypatch, unions_below(12)), visited(monkeypatch, unions_below(24))
    assert twice > 3 * once


@pytest.mark.medium
@pytest.mark.parametrize("text", [columns, unions, terms])
def test_a_view_of_a_long_text_is_right(text: Callable[[int], tuple[str, str, int]], tmp_path: Path) -> None:
    sql, key, size = text({"columns": 1000, "unions": 100, "terms": 400}[text.__name__])
    schema = table(size)["t"].schema
    with el.open(tmp_path / "store", durability="os", checkpoint_interval_ms=10) as store:
        store.create_table("t", schema, ["id"])
        view = store.create_view("v", sql, [key])
        for step in range(3):
            values = [pa.array([step, step + 1]), *(pa.array([number + step, None]) for number in range(size))]
            store.table("t").upsert(pa.table(values, schema=schema))
            store.checkpoint()
            view.step()
        assert raw_check(view).ok


def batches_in(sql: str) -> list[tuple[str, ...]]:
    """Return the tables of each batch of a query, sorted."""
    tables = {name: TableSchema(name, ROWS, ("id",)) for name in ("t", "u")}
    plan = derive(sql, tables, [next(iter(derive(sql, tables, ["k"]).form.outputs))])
    batched = plan.coverage.batches
    assert sorted(alias for batch in batched for alias in batch) == sorted(plan.form.occurrences)
    return sorted(tuple(plan.form.occurrences[alias] for alias in batch) for batch in batched)


BATCHES = {
    "SELECT k, v FROM t": [("t",)],
    "SELECT k, v FROM t UNION ALL SELECT k, v FROM t": [("t", "t")],
    "SELECT k, v FROM t UNION SELECT k, v FROM u": [("t",), ("u",)],
    "SELECT k, COUNT(*) AS n FROM (SELECT k FROM t UNION ALL SELECT v FROM t) GROUP BY k": [("t", "t")],
    "SELECT k, COUNT(*) AS n FROM (SELECT k FROM t UNION ALL SELECT k FROM u UNION SELECT v FROM t) GROUP BY k": [
        ("t", "t"), ("u",),
    ],
    "SELECT k, COUNT(*) AS n FROM (SELECT a.k FROM t a JOIN t b ON a.k = b.k UNION ALL SELECT k FROM t) GROUP BY k": [
        ("t",), ("t", "t"),
    ],
    "SELECT k, v FROM t WHERE k IN (SELECT k FROM t UNION ALL SELECT v FROM t)": [("t",), ("t",), ("t",)],
}  # fmt: skip


@pytest.mark.parametrize("sql", BATCHES)
def test_sides_of_set_operations_in_from_share_a_query(sql: str) -> None:
    assert batches_in(sql) == BATCHES[sql]


OTHER_TYPES = "SELECT CAST(id AS DOUBLE) AS k, v FROM t UNION ALL SELECT d AS k, v FROM u"


def test_touched_values_have_the_types_of_the_view(tmp_path: Path) -> None:
    """The changed side has DECIMAL for the view's DOUBLE, and Arrow casts this value otherwise than the engine."""
    decimals = pa.schema([pa.field("d", pa.decimal128(10, 2), nullable=False), ("v", pa.int64())])
    with el.open(tmp_path / "store", durability="os", checkpoint_interval_ms=10) as store:
        store.create_table("t", ROWS, ["id"])
        store.create_table("u", decimals, ["d"])
        view = store.create_view("v", OTHER_TYPES, ["k"])
        store.table("t").upsert(pa.table([[1], [1], [1]], schema=ROWS))
        for step in range(3):
            store.table("u").upsert(pa.table([[Decimal("6111780.02")], [step]], schema=decimals))
            store.checkpoint()
            view.step()
            assert raw_check(view).ok


def test_a_plan_keeps_no_trees_of_its_queries() -> None:
    """They are twenty times as large as the texts, and a process may step thousands of views."""
    plan = derive("SELECT k, MAX(v) AS v FROM t GROUP BY k", {"t": TableSchema("t", ROWS, ("id",))}, ["k"])
    compiled = CompiledPlan(lambda: plan, "duckdb")
    assert compiled.touched_query(["t"], ("k",)).text and compiled.refresh_query(("k",)).text
    pending: list[Any] = [value for name, value in vars(compiled).items() if name != "derive"]
    while pending:
        value = pending.pop()
        assert not isinstance(value, exp.Expr | ViewPlan)
        if isinstance(value, dict | tuple | list):
            pending += [*value.values()] if isinstance(value, dict) else value
        elif hasattr(value, "__slots__") and not isinstance(value, TableSchema):
            pending += [getattr(value, name) for name in value.__slots__]
