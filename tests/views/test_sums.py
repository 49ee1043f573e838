"""Sums and counts over inner joins, which a state keeps: the rows that a join gains and loses (R9), and the views."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from sqlglot import exp

import epochlog as el
from epochlog.views import aggregate_state, delta_join, state_step
from epochlog.views.derivation import derive
from epochlog.views.table_names import NOW, OLD
from judged_texts import SUMS
from raw_check import raw_check
from view_cases import COUNTED
from view_shop import ORDERS, Shop
from view_sums import play as play_changes
from view_world import SCHEMAS, Differs, DuckDBEngine, Outcome, ViewWorld, play, random_sums


@pytest.fixture(scope="module")
def engine() -> Iterator[DuckDBEngine]:
    with duckdb.connect() as connection:
        connection.execute("SET threads = 1")
        yield DuckDBEngine(connection)


def play_sums(seeds: Sequence[int], engine: DuckDBEngine) -> Outcome:
    total = Outcome()
    for seed in seeds:
        plan = random_sums(seed)
        assert plan.state is not None, plan.sql
        total = total.plus(play(plan, seed, 4, engine, engine.judge))
    return total


@pytest.mark.medium
@pytest.mark.parametrize("seeds", [range(12), pytest.param(range(30), marks=pytest.mark.long)], ids=["few", "more"])
def test_random_joins_gain_and_lose_the_rows_of_their_queries(engine: DuckDBEngine, seeds: range) -> None:
    assert play_sums(seeds, engine).joined > 2 * len(seeds)


def test_inner_joins_are_linear_and_outer_ones_whose_nulls_are_rejected() -> None:
    for join in ("JOIN u ON t.a = u.a", "LEFT JOIN u ON t.a = u.a AND u.c > 1 JOIN r ON r.a = u.c", "CROSS JOIN u"):
        assert derive(f"SELECT t.a, SUM(u.v) AS s FROM t {join} GROUP BY t.a", SCHEMAS, ["a"]).state is not None
    for join in ("LEFT JOIN u ON t.a = u.a", "LEFT SEMI JOIN u ON t.a = u.a", "LEFT ANTI JOIN u ON t.a = u.a"):
        assert derive(f"SELECT t.a, SUM(t.v) AS s FROM t {join} GROUP BY t.a", SCHEMAS, ["a"]).state is None


@pytest.mark.medium
def test_the_delta_of_a_self_join_has_a_term_of_each_occurrence() -> None:
    plan = derive(
        "SELECT x.a, COUNT(*) AS n FROM t x JOIN t y ON x.b = y.b JOIN r ON r.a = y.a GROUP BY x.a", SCHEMAS, ["a"]
    )
    assert plan.state is not None
    tables = [table.name for table in plan.state.changes({"t"}).find_all(exp.Table)]
    assert sorted(tables) == sorted([
        "epochlog_signed0_t", "epochlog_old1_t", "epochlog_now2_r",
        "epochlog_now3_t", "epochlog_signed4_t", "epochlog_now5_r",
    ])  # fmt: skip
    assert len(list(plan.state.changes({"r"}).find_all(exp.Table))) == 3


# planted errors


def old_images_are_missing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ViewWorld, "old_images", lambda world, name: [])


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


PLANTED = {
    old_images_are_missing: 0,
    other_tables_are_current: 1,
    other_tables_are_old: 1,
    a_table_has_one_occurrence: 3,
}
"""A seed of random sums that shows each error. Where queries have changed: the long test finds another one."""


@pytest.mark.planted
@pytest.mark.rule("R9")
@pytest.mark.parametrize("plant", PLANTED)
def test_a_planted_error_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch, engine: DuckDBEngine
) -> None:
    plant(monkeypatch)
    with pytest.raises(Differs, match="changes of the join"):
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
def test_an_outer_join_that_is_taken_for_an_inner_one_is_found(
    monkeypatch: pytest.MonkeyPatch, engine: DuckDBEngine
) -> None:
    play(derive(COUNTED, SCHEMAS, ["a"]), "outer", 20, engine, engine.judge)
    monkeypatch.setattr(aggregate_state, "is_inner_join", lambda block: True)
    with pytest.raises(Differs, match="changes of the join"):
        play(derive(COUNTED, SCHEMAS, ["a"]), "outer", 20, engine, engine.judge)


# in a store


def is_by_state(view: el.View) -> bool:
    (last,) = view.stats().steps[-1:]
    return last.work.by == "state"


@pytest.mark.medium
def test_each_change_of_a_join_is_added(tmp_path: Path) -> None:
    with el.open(tmp_path / "store", durability="os", checkpoint_interval_ms=10) as store:
        for (name, *_), step in play_changes(store):
            step()
            views = ("by_region", "without_count", "pairs", "total")
            assert all(is_by_state(store.view(each)) for each in views), name


@pytest.mark.medium
def test_a_view_of_sums_writes_the_groups_that_have_changed(tmp_path: Path) -> None:
    shop = Shop(tmp_path / "store")
    with shop.store:
        orders, view = shop.store.table("orders"), shop.store.view("revenue")

        def step(*rows: tuple[int, int, int | None]) -> list[dict[str, object]]:
            ids, days, cents = zip(*rows, strict=True)
            orders.upsert(pa.table([ids, [1] * len(ids), days, cents], schema=ORDERS))
            shop.store.checkpoint()
            while view.step() is not None:
                pass
            assert raw_check(view).ok and view.check(state=True).ok
            return shop.store.table("revenue").to_arrow().to_pylist()

        step((1, 1, 10), (2, 2, 20))
        assert step((3, 1, 5)) == [{"day": 1, "cents": 15, "n": 2}, {"day": 2, "cents": 20, "n": 1}]
        assert step((2, 1, 20)) == [{"day": 1, "cents": 35, "n": 3}]
        assert step((4, 3, 7))[1:] == [{"day": 3, "cents": 7, "n": 1}]
        assert step((4, 3, None))[1:] == [{"day": 3, "cents": None, "n": 1}]
        assert shop.store.table("revenue").history()["rows_upserted"].to_pylist()[0] == 1
        step((1, 1, 11))
        assert is_by_state(view)


def test_an_expression_that_fails_for_rows_that_never_were_is_computed_of_those_that_are(tmp_path: Path) -> None:
    with el.open(tmp_path / "store", durability="os", checkpoint_interval_ms=10) as store:
        for name in ("t", "u"):
            store.create_table(name, pa.schema([("id", pa.int64()), ("v", pa.int64())]), ["id"])
        view = store.create_view("s", "SELECT 'all' AS k, SUM(t.v * u.v) AS s FROM t JOIN u ON t.id = u.id", ["k"])
        large = 2**40
        for left, right in (
            (large, 1),
            (1, large),
            (large, 1),
        ):  # the product of both large ones is no integer of 64 bits
            with store.transaction() as tx:
                tx.upsert("t", pa.table({"id": [1], "v": [left]}))
                tx.upsert("u", pa.table({"id": [1], "v": [right]}))
            store.checkpoint()
            assert view.step()
            assert store.table("s").to_arrow().to_pylist() == [{"k": "all", "s": large}]
        assert not is_by_state(view)
        store.table("u").upsert(pa.table({"id": [1], "v": [2]}))
        store.checkpoint()
        assert view.step() and is_by_state(view), "the step after it has a state"


@pytest.mark.medium
def test_changes_that_can_never_be_added_end_the_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_step, "MOST_FAILURES", 2)
    with el.open(tmp_path / "store", durability="os", checkpoint_interval_ms=10) as store:
        for name in ("t", "u"):
            store.create_table(name, pa.schema([("id", pa.int64()), ("v", pa.int64())]), ["id"])
        view = store.create_view("s", "SELECT 'all' AS k, SUM(t.v * u.v) AS s FROM t JOIN u ON t.id = u.id", ["k"])
        large = 2**40
        for number in range(5):
            left, right = (large, 1) if number % 2 else (1, large)
            with store.transaction() as tx:
                tx.upsert("t", pa.table({"id": [1], "v": [left]}))
                tx.upsert("u", pa.table({"id": [1], "v": [right]}))
            store.checkpoint()
            assert view.step() and is_by_state(view) is (number == 2)  # the change of the others cannot be added
            assert ("because steps could not add their changes" in view.explain()) is (number > 2)


@pytest.mark.medium
@pytest.mark.parametrize("kind", [pa.float64(), pa.binary()])
def test_a_count_of_any_value_is_kept(tmp_path: Path, kind: pa.DataType) -> None:
    with el.open(tmp_path / "store", durability="os", checkpoint_interval_ms=10) as store:
        table = store.create_table("t", pa.schema([("id", pa.int64()), ("v", kind)]), ["id"])
        sql = "SELECT 'all' AS k, COUNT(v) AS n, COUNT(v) FILTER (WHERE id > 1) AS some FROM t"
        view = store.create_view("s", sql, ["k"])
        for values, n in (([None, None, None], 0), ([1, None, 2], 2), ([None, None, 3], 1)):
            texts = [None if value is None else str(value).encode() for value in values]
            table.upsert(
                pa.table([[1, 2, 3], pa.array(texts if pa.types.is_binary(kind) else values, kind)], ["id", "v"])
            )
            store.checkpoint()
            assert view.step()
            assert store.table("s").to_arrow()["n"].to_pylist() == [n] and raw_check(view).ok
        assert is_by_state(view)


@pytest.mark.medium
def test_a_sum_of_a_type_that_no_state_keeps_says_so(tmp_path: Path) -> None:
    with el.open(tmp_path / "store", durability="os", checkpoint_interval_ms=10) as store:
        table = store.create_table("t", pa.schema([("id", pa.int64()), ("v", pa.decimal128(38, 2))]), ["id"])
        view = store.create_view("s", "SELECT 'all' AS k, CAST(SUM(v) AS DECIMAL(38, 2)) AS s FROM t", ["k"])
        for number in range(2):
            table.upsert(pa.table({"id": [number], "v": pa.array([number], pa.decimal128(38, 2))}))
            store.checkpoint()
            assert view.step() and not is_by_state(view)
            assert "state: none until the view is rebuilt, because a value of it has a type" in view.explain()


@pytest.mark.medium
def test_a_sum_of_all_groups_that_does_not_fit_is_refused_with_the_views_error(tmp_path: Path) -> None:
    with el.open(tmp_path / "store", durability="os", checkpoint_interval_ms=10) as store:
        table = store.create_table("t", pa.schema([("id", pa.int64()), ("v", pa.int64())]), ["id"])
        sql = "SELECT id % 2 AS g, SUM(v) AS s FROM t GROUP BY id % 2 ORDER BY s DESC, g LIMIT 1"
        view = store.create_view("s", sql, ["g"])
        for number in (2, 4, 6):
            table.upsert(pa.table({"id": [number], "v": [2**62]}))
            store.checkpoint()
            if number == 2:
                assert view.step()
            else:
                with pytest.raises(el.InvalidInput, match="does not fit BIGINT"):
                    view.step()
        table.delete(pa.table({"id": [4, 6]}))
        store.checkpoint()
        while view.step(until="newest") is not None:
            pass
        assert store.table("s").to_arrow().to_pylist() == [{"g": 0, "s": 2**62}] and raw_check(view).ok


def test_the_smallest_value_of_a_type_leaves_a_sum(tmp_path: Path) -> None:
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
