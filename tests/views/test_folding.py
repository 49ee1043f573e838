"""Sums that a refresh keeps by adding changes, held against their queries; and errors planted in the rule."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
import sqlglot

import epochlog as el
from epochlog.views import folding, local_engine
from epochlog.views.derivation import ViewPlan, derive, render
from view_shop import ORDERS, Shop
from view_world import SCHEMAS, Differs, Outcome, Row, ViewWorld

GROUPS = (["a"], ["b", "a"], ["a + b"], ["COALESCE(a, 7)"], ["e.a", "e.b"], [])
AGGREGATES = ("SUM(v)", "COUNT(*)", "COUNT(v)", "SUM(a * v)", "SUM(CASE WHEN v > 1 THEN 1 ELSE 0 END)", "SUM(v - 1)")
REFUSED = (
    "SELECT a, COALESCE(SUM(v), 0) AS s FROM t GROUP BY a",
    "SELECT a, COUNT(DISTINCT b) AS n FROM t GROUP BY a",
    "SELECT a, SUM(DISTINCT b) AS n FROM t GROUP BY a",
    "SELECT a, MAX(v) AS n FROM t GROUP BY a",
    "SELECT a, AVG(v) AS n FROM t GROUP BY a",
    "SELECT a, COUNT(*) AS n, MIN(b) AS m FROM t GROUP BY a",
    "SELECT a, SUM(v) FILTER (WHERE b > 1) AS s FROM t GROUP BY a",
    "SELECT a, SUM(v) AS s FROM t GROUP BY a HAVING SUM(v) > 3",
    "SELECT a, SUM(v) + COUNT(*) AS s FROM t GROUP BY a",
    "SELECT a, SUM(v) AS s FROM t GROUP BY a, b",
    "SELECT t.a, SUM(t.v) AS s FROM t JOIN u ON t.a = u.a GROUP BY t.a",
    "SELECT a, SUM(v) AS s FROM (SELECT DISTINCT a, v FROM t) GROUP BY a",
    "SELECT a, SUM(v) AS s FROM t WHERE a IN (SELECT a FROM u) GROUP BY a",
    "SELECT a, SUM(v) AS s FROM t GROUP BY ROLLUP (a)",
    "SELECT a, SUM(v) AS s, ROW_NUMBER() OVER (ORDER BY a) AS n FROM t GROUP BY a",
    "SELECT a, SUM(v) AS s FROM t GROUP BY a UNION ALL SELECT a, COUNT(*) AS s FROM u GROUP BY a",
)


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        connection.execute("SET threads = 1")
        yield connection


def random_plan(chance: random.Random) -> ViewPlan:
    groups, aggregates = chance.choice(GROUPS), chance.sample(AGGREGATES, chance.randint(1, 3))
    table = "e" if groups and groups[0].startswith("e.") else chance.choice(["t", "e"])
    outputs = [f"{text} AS k{number}" for number, text in enumerate(groups)] or ["1 AS k0"]
    outputs += [f"{text} AS x{number}" for number, text in enumerate(aggregates)]
    if chance.random() < 0.3:
        outputs.append(f"{' + '.join(aggregates)} AS y")
    where = chance.choice(["", "", " WHERE v <> 2", " WHERE a > 0 OR b IS NULL"])
    group = f" GROUP BY {', '.join(groups)}" if groups else ""
    having = chance.choice(["", "", " HAVING COUNT(*) > 0"])
    key = [f"k{number}" for number in range(max(len(groups), 1))]
    return derive(
        f"SELECT {', '.join(outputs)} FROM {table}{where}{group}{having}", SCHEMAS, chance.sample(key, len(key))
    )


def check_fold(world: ViewWorld, plan: ViewPlan, connection: duckdb.DuckDBPyConnection, outcome: Outcome) -> None:
    """Compare the view before, with the folded rows in place, with the query after. Raises Differs."""
    fold = plan.fold
    assert fold is not None
    judge = sqlglot.parse_one(plan.sql, read="spark").sql("duckdb")
    answers = []
    for rows in (world.before, world.now):
        connection.register(fold.table, as_table(fold.table, rows[fold.table].values()))
        answers.append(integers(connection.sql(judge).to_arrow_table()))
    before, wanted = answers
    new, old = world.new_images(fold.table), world.old_images(fold.table)
    is_new = pa.array([*([True] * len(new)), *([False] * len(old))], pa.bool_())
    signed = as_table(fold.table, [*new, *old]).append_column(folding.IS_NEW, is_new)
    connection.register(folding.SIGNED + fold.table, signed)
    deltas = integers(connection.sql(render(fold.deltas, "duckdb")).to_arrow_table())
    groups = folding.groups_of_changes(fold, wanted.schema, deltas)
    assert groups is not None
    sums = folding.folded(fold, groups, deltas, before)
    if sums is None:
        outcome.full += 1
        return
    outcome.incremental += 1
    connection.register(folding.FOLDED, sums)
    rows = integers(connection.sql(render(fold.rows, "duckdb")).to_arrow_table()).cast(wanted.schema)
    keys = {key_of(row, fold) for row in rows.to_pylist()}
    kept = [row for row in before.to_pylist() if key_of(row, fold) not in keys]
    actual = sorted(map(repr, [*kept, *rows.to_pylist()]))
    if actual != sorted(map(repr, wanted.to_pylist())):
        raise Differs(f"{plan.sql}: {actual}, not {wanted.to_pylist()}")


def as_table(name: str, rows: Iterable[Row]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * len(SCHEMAS[name].schema)
    arrays = [pa.array(column, pa.int32()) for column in columns]
    return pa.Table.from_arrays(arrays, names=SCHEMAS[name].schema.names)


def key_of(row: dict[str, object], fold: folding.Fold) -> tuple[object, ...]:
    return tuple(row[name] for name in fold.groups)


def integers(rows: pa.Table) -> pa.Table:
    kinds = [pa.int64() if pa.types.is_decimal(field.type) else field.type for field in rows.schema]
    return rows.cast(pa.schema(list(zip(rows.column_names, kinds, strict=True))))


def play(seeds: Sequence[int], connection: duckdb.DuckDBPyConnection) -> Outcome:
    outcome = Outcome()
    for seed in seeds:
        chance = random.Random(f"fold {seed}")
        plan = random_plan(chance)
        assert plan.fold is not None, plan.sql
        world = ViewWorld(random.Random(f"world {seed}"), plan.tables)
        for _ in range(4):
            world.change()
            try:
                check_fold(world, plan, connection, outcome)
            except Differs as error:
                raise Differs(f"seed {seed}: {error}") from error
    return outcome


@pytest.mark.medium
def test_random_sums_are_those_of_their_queries(connection: duckdb.DuckDBPyConnection) -> None:
    outcome = play(range(30), connection)
    assert outcome.incremental > 20 and outcome.full > 5, outcome


@pytest.mark.long
def test_many_random_sums_are_those_of_their_queries(connection: duckdb.DuckDBPyConnection) -> None:
    first = random.SystemRandom().randrange(10**9)
    play(range(first, first + 300), connection)


@pytest.mark.parametrize("sql", REFUSED)
def test_other_queries_are_not_folded(sql: str) -> None:
    assert derive(sql, SCHEMAS, ["a"]).fold is None


def test_a_full_view_is_not_folded_and_a_key_beside_the_groups_is_not() -> None:
    sql = "SELECT a, SUM(v) AS s FROM t GROUP BY a"
    assert derive(sql, SCHEMAS, ["a"]).fold is not None
    assert derive(sql, SCHEMAS, ["a"], "full").fold is None
    assert derive(sql, SCHEMAS, ["s"]).fold is None


def test_a_column_that_does_not_keep_each_sum_is_not_folded() -> None:
    plan = derive("SELECT a, CAST(SUM(v) AS DECIMAL(10, 1)) AS s FROM t GROUP BY a", SCHEMAS, ["a"])
    assert plan.fold is not None
    view = pa.schema([("a", pa.int32()), ("s", pa.decimal128(10, 1))])
    for kind, exact in ((pa.decimal128(38, 1), True), (pa.decimal128(38, 2), False), (pa.float64(), False)):
        deltas = pa.schema([("a", pa.int32()), ("epochlog_value_0", kind)]).empty_table()
        assert (folding.groups_of_changes(plan.fold, view, deltas) is not None) is exact
    floats = pa.schema([("a", pa.float64()), ("s", pa.decimal128(10, 1))])
    deltas = pa.schema([("a", pa.float64()), ("epochlog_value_0", pa.int64())]).empty_table()
    assert folding.groups_of_changes(plan.fold, floats, deltas) is None


# planted errors


def a_sum_of_nulls_is_zero(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(folding, "_has_sums", lambda values, sums: True)


def a_group_without_rows_stays(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(folding, "_has_rows", lambda values: True)


def old_images_are_missing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ViewWorld, "old_images", lambda world, name: [])


def nulls_are_counted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(folding, "_is_count_of_rows", lambda node: True)


PLANTED = (a_sum_of_nulls_is_zero, a_group_without_rows_stays, old_images_are_missing, nulls_are_counted)


@pytest.mark.medium
@pytest.mark.parametrize("plant", PLANTED)
def test_a_planted_error_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch, connection: duckdb.DuckDBPyConnection
) -> None:
    plant(monkeypatch)
    with pytest.raises(Differs):
        play(range(200), connection)


# in a store


def test_a_store_adds_changes_and_recomputes_only_groups_whose_sum_becomes_zero(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recomputed: list[Sequence[str]] = []
    original = local_engine._touched
    monkeypatch.setattr(local_engine, "_touched", lambda *args: recomputed.append(args[2]) or original(*args))
    shop = Shop(tmp_path / "store")
    with shop.store:
        orders, view = shop.store.table("orders"), shop.store.view("revenue")
        assert "added to the sums" in view.explain()

        def step(*rows: tuple[int, int, int | None]) -> list[dict[str, object]]:
            ids, days, cents = zip(*rows, strict=True)
            orders.upsert(pa.table([ids, [1] * len(ids), days, cents], schema=ORDERS))
            shop.store.checkpoint()
            while view.step() is not None:
                pass
            assert view.check().ok
            return shop.store.table("revenue").to_arrow().to_pylist()

        step((1, 1, 10), (2, 2, 20))
        assert step((3, 1, 5)) == [{"day": 1, "cents": 15, "n": 2}, {"day": 2, "cents": 20, "n": 1}]
        assert step((2, 1, 20)) == [{"day": 1, "cents": 35, "n": 3}]
        assert len(recomputed) == 1  # day 2 has no order any more
        assert step((4, 3, 7))[1:] == [{"day": 3, "cents": 7, "n": 1}]
        assert step((4, 3, None))[1:] == [{"day": 3, "cents": None, "n": 1}]
        assert len(recomputed) == 2
        assert shop.store.table("revenue").history()["rows_upserted"].to_pylist()[0] == 1
        step((1, 1, 11))
        assert len(recomputed) == 2


def test_a_sum_that_fails_for_an_old_value_is_recomputed(tmp_path: Path) -> None:
    with el.open(tmp_path / "store", durability="os", checkpoint_interval_ms=10) as store:
        table = store.create_table("t", pa.schema([("id", pa.int64()), ("v", pa.int64())]), ["id"])
        view = store.create_view("s", "SELECT 'all' AS k, SUM(v) AS s FROM t", ["k"])
        smallest = -(2**63)
        table.upsert(pa.table({"id": [1, 2], "v": [smallest, 5]}))
        store.checkpoint()
        assert view.step()
        table.upsert(pa.table({"id": [1], "v": [1]}))  # the old value has no negative
        store.checkpoint()
        assert view.step()
        assert store.table("s").to_arrow().to_pylist() == [{"k": "all", "s": 6}]


def test_a_group_of_null_is_refused_with_the_views_error(tmp_path: Path) -> None:
    with el.open(tmp_path / "store", durability="os", checkpoint_interval_ms=10) as store:
        table = store.create_table("t", pa.schema([("id", pa.int64()), ("a", pa.int64())]), ["id"])
        view = store.create_view("s", "SELECT a, COUNT(*) AS n FROM t GROUP BY a", ["a"])
        table.upsert(pa.table({"id": [1], "a": [5]}))
        store.checkpoint()
        assert view.step()
        table.upsert(pa.table({"id": [2], "a": pa.array([None], pa.int64())}))
        store.checkpoint()
        with pytest.raises(el.SchemaMismatch, match="primary-key column 'a'"):
            view.step()
