"""Sums that a refresh keeps by adding changes, held against their queries; and errors planted in the rule."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from sqlglot import exp

import epochlog as el
from epochlog.views import delta_join, folding
from epochlog.views import step as view_step
from epochlog.views.derivation import derive
from epochlog.views.table_names import NOW, OLD
from judged_texts import SUMS
from raw_check import raw_check
from view_cases import COUNTED
from view_shop import ORDERS, Shop
from view_sums import play as play_changes
from view_world import SCHEMAS, Differs, DuckDBEngine, Outcome, ViewWorld, play, random_sums

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
    "SELECT t.a, SUM(u.v) AS s FROM t LEFT JOIN u ON t.a = u.a GROUP BY t.a",
    "SELECT u.a, SUM(u.v) AS s FROM t RIGHT JOIN u ON t.a = u.a GROUP BY u.a",
    "SELECT t.a, SUM(u.v) AS s FROM t FULL JOIN u ON t.a = u.a GROUP BY t.a",
    "SELECT t.a, COUNT(*) AS n FROM t LEFT SEMI JOIN u ON t.a = u.a GROUP BY t.a",
    "SELECT t.a, COUNT(*) AS n FROM t LEFT ANTI JOIN u ON t.a = u.a GROUP BY t.a",
    "SELECT t.a, COUNT(*) AS n FROM t JOIN (SELECT DISTINCT a FROM u) u ON t.a = u.a GROUP BY t.a",
    "SELECT t.a, MAX(u.v) AS n FROM t JOIN u ON t.a = u.a GROUP BY t.a",
    "SELECT a, SUM(v) AS s FROM (SELECT DISTINCT a, v FROM t) GROUP BY a",
    "SELECT a, SUM(v) AS s FROM t WHERE a IN (SELECT a FROM u) GROUP BY a",
    "SELECT a, SUM(v) AS s FROM t GROUP BY ROLLUP (a)",
    "SELECT a, SUM(v) AS s, ROW_NUMBER() OVER (ORDER BY a) AS n FROM t GROUP BY a",
    "SELECT a, SUM(v) AS s FROM t GROUP BY a UNION ALL SELECT a, COUNT(*) AS s FROM u GROUP BY a",
)


@pytest.fixture(scope="module")
def engine() -> Iterator[DuckDBEngine]:
    with duckdb.connect() as connection:
        connection.execute("SET threads = 1")
        yield DuckDBEngine(connection)


def play_sums(seeds: Sequence[int], engine: DuckDBEngine) -> Outcome:
    total = Outcome()
    for seed in seeds:
        plan = random_sums(seed)
        assert plan.fold is not None, plan.sql
        total = total.plus(play(plan, seed, 4, engine, engine.judge))
    return total


@pytest.mark.medium
@pytest.mark.parametrize("seeds", [range(12), pytest.param(range(30), marks=pytest.mark.long)], ids=["few", "more"])
def test_random_sums_are_those_of_their_queries(engine: DuckDBEngine, seeds: range) -> None:
    outcome = play_sums(seeds, engine)
    assert outcome.folded > 3 * outcome.unfolded > 0 and outcome.computed > 1, outcome


@pytest.mark.parametrize("sql", REFUSED)
def test_other_queries_are_not_folded(sql: str) -> None:
    assert derive(sql, SCHEMAS, ["a"]).fold is None


def test_a_full_view_is_not_folded_and_a_key_beside_the_groups_is_not() -> None:
    sql = "SELECT a, SUM(v) AS s FROM t GROUP BY a"
    assert derive(sql, SCHEMAS, ["a"]).fold is not None
    assert derive(sql, SCHEMAS, ["a"], "full").fold is None
    assert derive(sql, SCHEMAS, ["s"]).fold is None


def test_an_inner_join_is_folded_and_an_outer_one_whose_nulls_are_rejected() -> None:
    for join in ("JOIN u ON t.a = u.a", "LEFT JOIN u ON t.a = u.a AND u.c > 1 JOIN r ON r.a = u.c", "CROSS JOIN u"):
        assert derive(f"SELECT t.a, SUM(u.v) AS s FROM t {join} GROUP BY t.a", SCHEMAS, ["a"]).fold is not None


@pytest.mark.medium
def test_the_delta_of_a_self_join_has_a_term_of_each_occurrence() -> None:
    plan = derive(
        "SELECT x.a, COUNT(*) AS n FROM t x JOIN t y ON x.b = y.b JOIN r ON r.a = y.a GROUP BY x.a", SCHEMAS, ["a"]
    )
    assert plan.fold is not None
    tables = [table.name for table in plan.fold.deltas({"t"}).find_all(exp.Table)]
    assert sorted(tables) == sorted([
        "epochlog_signed0_t", "epochlog_old1_t", "epochlog_now2_r",
        "epochlog_now3_t", "epochlog_signed4_t", "epochlog_now5_r",
    ])  # fmt: skip
    assert len(list(plan.fold.deltas({"r"}).find_all(exp.Table))) == 3


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
    patch.setattr(folding, "_has_sums", lambda values, sums: True)
    patch.setattr(folding, "_is_empty", lambda values, row_count: False)


def a_group_with_sums_of_zero_is_gone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(folding, "_is_empty", lambda values, row_count: not any(values.values()))


def old_images_are_missing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ViewWorld, "old_images", lambda world, name: [])


def nulls_are_counted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(folding, "_is_count_of_rows", lambda node: isinstance(node, exp.Count))


def other_tables_are_current(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(delta_join, "OLD", NOW)


def other_tables_are_old(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(delta_join, "NOW", OLD)


def a_table_has_one_occurrence(patch: pytest.MonkeyPatch) -> None:
    original = delta_join._changed_places

    def first_places(aliases: Sequence[str], tables: Mapping[str, str], changed: Collection[str]) -> list[int]:
        places = original(aliases, tables, changed)
        return list({tables[aliases[place]]: place for place in reversed(places)}.values())

    patch.setattr(delta_join, "_changed_places", first_places)


def unknown_groups_have_no_rows(patch: pytest.MonkeyPatch) -> None:
    original = folding.folded

    def without_unknown(*arguments: Any) -> folding.Folded | None:
        result = original(*arguments)
        if result is None:
            return None
        emptied = pa.concat_tables([result.emptied, result.unknown])
        return replace(result, emptied=emptied, unknown=result.unknown.slice(0, 0))

    patch.setattr("view_world.folded", without_unknown)


PLANTED = {
    a_sum_of_nulls_is_zero: 13,
    a_group_without_rows_stays: 0,
    a_group_with_sums_of_zero_is_gone: 0,
    old_images_are_missing: 0,
    nulls_are_counted: 15,
    other_tables_are_current: 1,
    other_tables_are_old: 1,
    a_table_has_one_occurrence: 3,
    unknown_groups_have_no_rows: 0,
}
"""A seed of random sums that shows each error. Where queries have changed: the long test finds another one."""


@pytest.mark.planted
@pytest.mark.rule("R9")
@pytest.mark.parametrize("plant", PLANTED)
def test_a_planted_error_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch, engine: DuckDBEngine
) -> None:
    plant(monkeypatch)
    with pytest.raises(Differs):
        play_sums([PLANTED[plant]], engine)


@pytest.mark.long
@pytest.mark.planted
@pytest.mark.parametrize("plant", PLANTED)
def test_a_planted_error_is_found_by_a_search(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch, engine: DuckDBEngine
) -> None:
    plant(monkeypatch)
    with pytest.raises(Differs, match="seed"):
        play_sums(range(SUMS), engine)


@pytest.mark.planted
@pytest.mark.medium
def test_an_outer_join_that_is_folded_is_found(monkeypatch: pytest.MonkeyPatch, engine: DuckDBEngine) -> None:
    play(derive(COUNTED, SCHEMAS, ["a"]), "outer", 20, engine, engine.judge)
    monkeypatch.setattr(folding, "is_inner_join", lambda block: True)
    with pytest.raises(Differs):
        play(derive(COUNTED, SCHEMAS, ["a"]), "outer", 20, engine, engine.judge)


# in a store


def spied(patch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which each folded step adds the number of groups that it computes again."""
    counts: list[int] = []

    def counted(*arguments: Any) -> folding.Folded | None:
        result = folding.folded(*arguments)
        counts.append(-1 if result is None else result.unknown.num_rows)
        return result

    patch.setattr(view_step, "folded", counted)
    return counts


@pytest.mark.medium
def test_each_change_of_a_join_is_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    computed = spied(monkeypatch)
    with el.open(tmp_path / "store", durability="os", checkpoint_interval_ms=10) as store:
        for (name, *_, again), step in play_changes(store):
            computed.clear()
            step()
            assert computed[0] == again, name  # by_region is the first


@pytest.mark.medium
def test_a_store_adds_changes_and_recomputes_only_groups_whose_sum_becomes_zero(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recomputed = spied(monkeypatch)
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
            assert raw_check(view).ok
            return shop.store.table("revenue").to_arrow().to_pylist()

        step((1, 1, 10), (2, 2, 20))
        assert sum(recomputed) == 0
        assert step((3, 1, 5)) == [{"day": 1, "cents": 15, "n": 2}, {"day": 2, "cents": 20, "n": 1}]
        assert step((2, 1, 20)) == [{"day": 1, "cents": 35, "n": 3}]
        assert sum(recomputed) == 0  # day 2 has no order any more
        assert step((4, 3, 7))[1:] == [{"day": 3, "cents": 7, "n": 1}]
        assert step((4, 3, None))[1:] == [{"day": 3, "cents": None, "n": 1}]
        assert sum(recomputed) == 1
        assert shop.store.table("revenue").history()["rows_upserted"].to_pylist()[0] == 1
        step((1, 1, 11))
        assert recomputed == [0, 0, 0, 1, 0]


def test_an_expression_that_fails_for_rows_that_never_were_is_computed_of_those_that_are(tmp_path: Path) -> None:
    with el.open(tmp_path / "store", durability="os", checkpoint_interval_ms=10) as store:
        for name in ("t", "u"):
            store.create_table(name, pa.schema([("id", pa.int64()), ("v", pa.int64())]), ["id"])
        view = store.create_view("s", "SELECT 'all' AS k, SUM(t.v * u.v) AS s FROM t JOIN u ON t.id = u.id", ["k"])
        large = 2**40
        for left, right in ((large, 1), (1, large)):  # the product of both large ones is no integer of 64 bits
            with store.transaction() as tx:
                tx.upsert("t", pa.table({"id": [1], "v": [left]}))
                tx.upsert("u", pa.table({"id": [1], "v": [right]}))
            store.checkpoint()
            assert view.step()
            assert store.table("s").to_arrow().to_pylist() == [{"k": "all", "s": large}]


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
