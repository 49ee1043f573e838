"""Renamed columns of a view's tables: the text of the view in present names, and errors that name the rename."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

import epochlog as el
from confirmed import RawJudge, confirmed
from epochlog.errors import InvalidInput
from epochlog.facts.store import RowCounter, describe_table, jobs_facts, look
from epochlog.page.document import table_document
from epochlog.store.types.schema import TableSchema
from epochlog.views import duckdb_engine, renamed_columns
from epochlog.views.derivation import ViewPlan, derive
from epochlog.views.renamed_columns import text_now
from epochlog.views.table_names import NOW
from plan_rows import rows_of
from raw_check import raw_check
from view_queries import random_query
from view_world import SCHEMAS, ViewWorld

ORDERS = pa.schema([("id", pa.int64()), ("weekday", pa.string()), ("cents", pa.int64())])
SQL = "SELECT weekday, SUM(cents) AS cents FROM orders GROUP BY weekday"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[el.Store]:
    with el.open(tmp_path / "store", durability="os", checkpoint_interval_ms=10) as store:
        orders = store.create_table("orders", ORDERS, ["id"])
        orders.upsert(pa.table([[1, 2], ["mon", "mon"], [5, 7]], schema=ORDERS))
        yield store


def stepped(view: el.View, store: el.Store) -> list[dict[str, object]]:
    store.checkpoint()
    view.step()
    return store.table(view.name).to_arrow().to_pylist()


@pytest.mark.rule("7.7")
def test_the_text_of_a_view_after_a_rename_can_be_given_again(store: el.Store) -> None:
    view = store.create_view("v", SQL, ["weekday"])
    store.table("orders").alter(rename={"weekday": "day"})
    store.table("orders").upsert([{"id": 3, "day": "tue", "cents": 9}])
    rows = [{"weekday": "mon", "cents": 12}, {"weekday": "tue", "cents": 9}]
    assert stepped(view, store) == rows
    text = view.sql
    assert " ".join(text.split()) == "SELECT day AS weekday, SUM(cents) AS cents FROM orders GROUP BY day"
    assert describe_table(store._handle, "v", RowCounter(store._handle, enabled=False))["sql"] == text
    assert text == view.info.sql == store.jobs()[0].sql == jobs_facts(look(store._handle))[0]["sql"]
    assert table_document(store._handle, "v")["sql"] == text
    assert view.job.check(text).ok and view.job.check(SQL).ok
    store.replace_views({"v": text})
    assert stepped(view, store) == rows and view.sql == text and raw_check(view).ok


@pytest.mark.parametrize("text", [
    "SELECT day AS weekday, SUM(cents) AS cents FROM orders GROUP BY day",
    "select o.day weekday, -- of the week\n sum(cents) cents from orders as o group by 1",
])  # fmt: skip
def test_a_view_in_present_names_exists_already(store: el.Store, text: str) -> None:
    view = store.create_view("v", SQL, ["weekday"])
    assert store.create_view("v", SQL + " -- again", ["weekday"], exist_ok=True).sql == SQL
    store.table("orders").alter(rename={"weekday": "day"})
    again = store.create_view("v", text, ["weekday"], exist_ok=True)
    assert again.sql == view.sql and not view.info.rebuilding
    with pytest.raises(el.InvalidInput, match="weekday.*under the name 'day'"):
        store.create_view("v", SQL, ["weekday"], exist_ok=True)
    with pytest.raises(el.JobExists, match="its query is"):
        store.create_view("v", text.replace("cents)", "cents) + 1"), ["weekday"], exist_ok=True)


def test_columns_that_change_names_give_a_text_another_meaning(store: el.Store) -> None:
    """The text is as it was, and after the swap it is another query."""
    sql = "SELECT id, a FROM t"
    store.create_table("t", pa.schema([("id", pa.int64()), ("a", pa.int64()), ("b", pa.int64())]), ["id"])
    store.create_view("v", sql, ["id"])
    store.table("t").alter(rename={"a": "b", "b": "a"})
    with pytest.raises(el.JobExists, match="its query is"):
        store.create_view("v", sql, ["id"], exist_ok=True)
    assert store.create_view("v", "SELECT id, b AS a FROM t", ["id"], exist_ok=True).name == "v"


def test_a_view_is_listed_where_its_text_cannot_be_parsed(store: el.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.create_view("v", SQL, ["weekday"])
    store.table("orders").alter(rename={"weekday": "date"})

    def fail(*args: object) -> str:
        raise ModuleNotFoundError("sqlglot")

    monkeypatch.setattr(renamed_columns, "text_now", fail)
    assert store.jobs()[0].sql == SQL


@pytest.mark.rule("7.7")
@pytest.mark.parametrize("call", [
    lambda store: store.replace_views({"v": SQL}),
    lambda store: store.create_view("w", SQL, ["weekday"]),
    lambda store: store.create_view("w", "SELECT id, orders.WEEKDAY AS d FROM orders", ["id"]),
    lambda store: store.create_view("w", "SELECT id FROM orders JOIN orders o USING (id, weekday)", ["id"]),
])  # fmt: skip
def test_a_text_in_former_names_is_refused_with_the_rename(store: el.Store, call: Callable[[el.Store], object]) -> None:
    view, table = store.create_view("v", SQL, ["weekday"]), store.table("orders")
    table.alter(rename={"weekday": "date"})
    table.alter(add=[pa.field("note", pa.string())])
    table.alter(rename={"date": "day"})
    with pytest.raises(el.InvalidInput, match="(?i)weekday.*table 'orders' has it under the name 'day'.*write day"):
        call(store)
    assert stepped(view, store) == [{"weekday": "mon", "cents": 12}]


def test_a_column_in_use_is_named_as_it_is_called_now(store: el.Store) -> None:
    store.create_view("v", SQL, ["weekday"])
    store.table("orders").alter(rename={"weekday": "day"})
    with pytest.raises(el.SchemaInUse, match="column 'day' cannot be dropped: the query of view 'v' reads it"):
        store.table("orders").alter(drop=["day"])


@pytest.mark.medium
def test_a_query_that_is_nested_too_deeply_is_refused(store: el.Store) -> None:
    condition = " OR ".join(f"cents = {number}" for number in range(3000))
    with pytest.raises(el.InvalidInput, match="nested too deeply.*write IN"):
        store.create_view("v", f"SELECT id FROM orders WHERE {condition}", ["id"])


def test_a_column_that_was_dropped_is_named(store: el.Store) -> None:
    store.table("orders").alter(drop=["weekday"])
    with pytest.raises(el.InvalidInput, match="weekday.*table 'orders' had such a column.*dropped at epoch"):
        store.create_view("v", SQL, ["weekday"])
    with pytest.raises(el.InvalidInput, match="nope, which is unknown; the columns are id, cents"):
        store.create_view("v", "SELECT id, nope FROM orders", ["id"])


def renamed(table: TableSchema, names: Mapping[str, str]) -> TableSchema:
    """Return the table after an alter that renames columns."""
    fields = [field.with_name(names.get(field.name, field.name)) for field in table.schema]
    key = tuple(names.get(name, name) for name in table.primary_key)
    version = replace(table, schema=pa.schema(fields), primary_key=key, version=table.version + 1)
    return version.with_lineage((*(table.lineage or (table,)), version))


TABLE = TableSchema("t", pa.schema([("k", pa.int64()), ("a", pa.int64()), ("b", pa.int64())]), ("k",))
U = TableSchema("u", pa.schema([("k", pa.int64()), ("a", pa.int64())]), ("k",))


@pytest.mark.parametrize(("sql", "expected"), [
    ("SELECT k, b FROM t", "SELECT k, b FROM t"),
    ("SELECT k, a FROM t", "SELECT k, x AS a FROM t"),
    ("SELECT k, t.a FROM t", "SELECT k, t.x AS a FROM t"),
    ("SELECT k, CAST(a AS STRING) FROM t", "SELECT k, CAST(x AS STRING) AS a FROM t"),
    ("SELECT k, SUM(a) AS a FROM t GROUP BY k HAVING a > 1",
     "SELECT k, SUM(x) AS a FROM t GROUP BY k HAVING a > 1"),
    ("SELECT k, a FROM t ORDER BY a, k LIMIT 3", "SELECT k, x AS a FROM t ORDER BY a, k LIMIT 3"),
    ("SELECT t.k, u.a FROM t JOIN u ON t.a = u.a", "SELECT t.k, u.a FROM t JOIN u ON t.x = u.a"),
    ("WITH t AS (SELECT k, a FROM u) SELECT k, a FROM t", "WITH t AS (SELECT k, a FROM u) SELECT k, a FROM t"),
    ("SELECT k FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.k = t.a)",
     "SELECT k FROM t WHERE EXISTS(SELECT 1 FROM u WHERE u.k = t.x)"),
    ("SELECT * FROM t", "SELECT * FROM (SELECT `k` AS `k`, `x` AS `a`, `b` AS `b` FROM `t`) AS `t`"),
    ("SELECT k FROM t JOIN u USING (k, a)",
     "SELECT k FROM (SELECT `k` AS `k`, `x` AS `a`, `b` AS `b` FROM `t`) AS `t` JOIN u USING (k, a)"),
])  # fmt: skip
def test_the_text_in_present_names(sql: str, expected: str) -> None:
    text = text_now(sql, {"t": TABLE, "u": U}, {"t": renamed(TABLE, {"a": "x"}), "u": U})
    text = " ".join(text.split()).replace("( ", "(").replace(" )", ")")
    assert text == expected


def test_names_that_need_quotes_and_names_that_change_places() -> None:
    now = {"t": renamed(TABLE, {"a": "select", "k": "Ä b"})}
    assert " ".join(text_now("SELECT k, a FROM t", {"t": TABLE}, now).split()) == (
        "SELECT `Ä b` AS `k`, `select` AS `a` FROM t"
    )
    swapped = {"t": renamed(TABLE, {"a": "b", "b": "a"})}
    assert " ".join(text_now("SELECT k, a + 1 AS c FROM t WHERE b > 0", {"t": TABLE}, swapped).split()) == (
        "SELECT k, b + 1 AS c FROM t WHERE a > 0"
    )


def rows(plan: ViewPlan, world: ViewWorld, tables: Mapping[str, TableSchema]) -> pa.Table:
    with duckdb_engine._connected() as connection:
        for name in plan.tables:
            connection.register(NOW + name, table_of(world, tables[name]))
        return rows_of(connection, plan)


def texts_of(rows: pa.Table) -> list[str]:
    return sorted(map(str, rows.to_pylist()))


def table_of(world: ViewWorld, table: TableSchema) -> pa.Table:
    columns = list(zip(*world.now[table.name].values(), strict=True)) or [[] for _ in table.schema]
    return pa.table([list(column) for column in columns], schema=table.schema)


def compare_random_texts(seeds: range) -> tuple[int, int]:
    """Compare the rows of random queries, as they were given, with those of their texts after random renames; return
    the numbers of texts, and of those in which tables are subqueries.
    """
    seen, wrapped, judge = 0, 0, RawJudge()
    judged = confirmed(random_query(seed).sql for seed in seeds)
    for seed in seeds:
        chance = random.Random(seed)
        world, query = ViewWorld(chance, tuple(SCHEMAS)), random_query(seed)
        if query.sql not in judged:
            continue
        given = judge.rows(query.sql, {name: table_of(world, table) for name, table in SCHEMAS.items()})
        before = rows(derive(query.sql, SCHEMAS, query.columns[:1]), world, SCHEMAS)
        wanted = texts_of(given.cast(before.schema))  # DuckDB's sum of integers has a wider type than Spark's
        assert texts_of(before) == wanted, (seed, query.sql)
        now = {}
        for name, table in SCHEMAS.items():
            old = chance.sample(table.schema.names, chance.randrange(1, 3))
            new = chance.choice([old[::-1], [f"n{number}" for number in range(len(old))]])
            now[name] = renamed(table, dict(zip(old, new, strict=True)))
        text = text_now(query.sql, SCHEMAS, now)
        after = rows(derive(text, now, query.columns[:1]), world, now)
        assert texts_of(after) == wanted, (seed, query.sql, text)
        seen, wrapped = seen + 1, wrapped + ("AS `a`" in text)
    return seen, wrapped


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(20), marks=pytest.mark.medium, id="few"),
        pytest.param(range(20, 260), marks=pytest.mark.long, id="many"),
    ],
)
def test_random_texts_in_present_names_have_the_rows_of_the_given_ones(seeds: range) -> None:
    seen, wrapped = compare_random_texts(seeds)
    assert seen > len(seeds) // 2 and seen > wrapped, (seen, wrapped)


@pytest.mark.planted
@pytest.mark.medium
def test_a_name_that_is_not_compared_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The texts are compared with the wanted normal form: without that, a name gets another meaning."""
    monkeypatch.setattr(renamed_columns, "_form", lambda sql, tables: AlwaysEqual())
    with pytest.raises((AssertionError, InvalidInput)):
        compare_random_texts(range(40))


class AlwaysEqual:
    outputs = ()

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0
