"""Views whose rows are computed of the changes alone (R11): which they are, and that no row is missing or too many."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import epochlog as el
from epochlog.store.types.schema import TableSchema
from epochlog.views import duckdb_engine, row_changes, step
from epochlog.views.delta_join import TERM
from epochlog.views.derivation import ViewPlan, derive
from epochlog.views.table_names import IS_NEW
from raw_check import raw_check
from view_cases import OF_OTHER_ROWS, OF_ROWS
from view_world import SCHEMAS, Differs, DuckDBEngine, play

T = pa.schema([pa.field("id", pa.int64(), nullable=False), ("a", pa.int64()), ("v", pa.int64())])


@pytest.fixture
def engine() -> Iterator[DuckDBEngine]:
    with duckdb.connect() as connection:
        connection.execute("SET threads = 1")
        yield DuckDBEngine(connection)


def plan_of(case: tuple[str, tuple[str, ...]]) -> ViewPlan:
    return derive(case[0], SCHEMAS, case[1])


@pytest.mark.parametrize("name", OF_OTHER_ROWS)
def test_other_queries_are_no_such_views(name: str) -> None:
    assert plan_of(OF_OTHER_ROWS[name]).row_changes is None


@pytest.mark.medium
@pytest.mark.parametrize("name", OF_ROWS)
def test_changes_give_the_rows_of_the_query(name: str, engine: DuckDBEngine) -> None:
    plan = plan_of(OF_ROWS[name])
    assert "rows are computed of the changed rows" in plan.explain()
    outcome = play(plan, name, 40, engine, engine.judge)
    assert outcome.by_changes > 20, outcome


@pytest.mark.long
@pytest.mark.parametrize("name", OF_ROWS)
@pytest.mark.parametrize("seed", range(20))
def test_long_histories_give_the_rows_of_the_query(name: str, seed: int, engine: DuckDBEngine) -> None:
    play(plan_of(OF_ROWS[name]), f"{name} {seed}", 200, engine, engine.judge)


def _terms_are_not_in_order(patch: pytest.MonkeyPatch) -> None:
    original = row_changes.gained_and_lost

    def gained_and_lost(output: TableSchema, rows: pa.Table) -> tuple[pa.Table, pa.Table]:
        place = rows.column_names.index(TERM)
        return original(output, rows.set_column(place, TERM, pa.array([0] * len(rows), pa.int32())))

    patch.setattr("view_world.gained_and_lost", gained_and_lost)


def _lost_rows_stay(patch: pytest.MonkeyPatch) -> None:
    original = row_changes.gained_and_lost

    def gained_and_lost(output: TableSchema, rows: pa.Table) -> tuple[pa.Table, pa.Table]:
        return original(output, rows.filter(rows[IS_NEW]))

    patch.setattr("view_world.gained_and_lost", gained_and_lost)


def _others_have_their_new_rows(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("epochlog.views.delta_join.OLD", "epochlog_now_")


PLANTED = [
    (_terms_are_not_in_order, "two dimensions"),
    (_lost_rows_stay, "one table"),
    (_others_have_their_new_rows, "two dimensions"),
]


@pytest.mark.planted
@pytest.mark.parametrize(("plant", "name"), PLANTED)
def test_planted_errors_are_found(
    plant: Callable[[pytest.MonkeyPatch], None], name: str, engine: DuckDBEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    plan = plan_of(OF_ROWS[name])
    with pytest.raises(Differs, match="rows of the changes"):
        play(plan, "planted", 400, engine, engine.judge)


class Steps:
    """Store with tables `t` and `u`, a view, and the kinds of its steps."""

    def __init__(self, root: Path, sql: str, key: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = el.open(root, durability="os", checkpoint_interval_ms=10)
        for name in ("t", "u"):
            self.store.create_table(name, T, ["id"])
        self.view = self.store.create_view("v", sql, key)
        self.kinds: list[str] = []
        decide = step._Driver.decide

        def decided(driver: Any, changed: Any) -> step.Step:
            result = decide(driver, changed)
            self.kinds.append(type(result).__name__)
            return result

        monkeypatch.setattr(step._Driver, "decide", decided)

    def put(self, *, deleted_of_u: int | None = None, **rows: Sequence[tuple[int | None, ...]]) -> None:
        """Upsert rows of tables in one commit, and delete one of `u`."""
        with self.store.transaction() as tx:
            for table, some in rows.items():
                tx.upsert(table, pa.table([list(column) for column in zip(*some, strict=True)], schema=T))
            if deleted_of_u is not None:
                tx.delete("u", pa.table({"id": [deleted_of_u]}))

    def step(self) -> str:
        """Step the view, check it by its text, and return the kind of the step."""
        self.store.checkpoint()
        self.view.step()
        assert raw_check(self.view).ok
        return self.kinds[-1]


@pytest.fixture
def steps_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, list[str]], Steps]]:
    opened: list[Steps] = []

    def make(sql: str, key: list[str]) -> Steps:
        opened.append(Steps(tmp_path / "store", sql, key, monkeypatch))
        return opened[-1]

    yield make
    for steps in opened:
        steps.store.close()


DIMENSION = "SELECT t.id, t.v, u.v AS other FROM t JOIN u ON u.id = t.a"


def test_both_tables_change_in_one_step(steps_of: Callable[[str, list[str]], Steps]) -> None:
    steps = steps_of(DIMENSION, ["id"])
    steps.put(t=[(1, 1, 10), (2, 1, 20), (3, 9, 30)], u=[(1, 0, 100), (2, 0, 200)])
    assert steps.step() == "AllRows"
    steps.put(t=[(1, 2, 11), (4, 2, 40)], u=[(2, 0, 201), (9, 0, 900)], deleted_of_u=1)
    assert steps.step() == "ChangedRows"
    rows = steps.store.table("v").to_arrow().to_pylist()
    assert rows == [
        {"id": 1, "v": 11, "other": 201},
        {"id": 3, "v": 30, "other": 900},
        {"id": 4, "v": 40, "other": 201},
    ]
    steps.put(t=[(1, 2, 11)], u=[(2, 5, 201)])  # nothing that the view reads differs
    assert steps.step() == "ChangedRows"
    assert steps.store.table("v").history()["rows_upserted"].to_pylist() == [0, 3, 2]


@pytest.mark.medium
def test_an_expression_that_fails_on_rows_of_no_join_is_no_error(steps_of: Callable[[str, list[str]], Steps]) -> None:
    """New rows of `t` meet old rows of `u` in the query of the changes, and their difference fits no SMALLINT."""
    sql = "SELECT t.id, CAST(t.v - u.v AS SMALLINT) AS x FROM t JOIN u ON u.id = t.a"
    steps = steps_of(sql, ["id"])
    steps.put(t=[(1, 1, 5)], u=[(1, 0, 1)])
    steps.step()
    steps.put(t=[(1, 1, 90_000)], u=[(1, 0, 89_999)])
    assert steps.step() == "Groups"


@pytest.mark.medium
def test_many_changes_go_by_touched_groups(
    steps_of: Callable[[str, list[str]], Steps], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duckdb_engine.LocalEngine, "most_rows", 4)
    steps = steps_of(DIMENSION, ["id"])
    steps.put(t=[(number, number % 2, number) for number in range(9)], u=[(0, 0, 1), (1, 0, 2)])
    steps.step()
    steps.put(t=[(1, 0, 7), (2, 1, 8)])
    assert steps.step() == "ChangedRows"
    steps.put(t=[(number, 0, 70) for number in range(5)])
    assert steps.step() in ("Groups", "AllRows")
    steps.put(u=[(0, 0, 3)])  # one change that gives and takes many rows
    assert steps.step() in ("Groups", "AllRows")


def test_a_key_that_becomes_null_is_refused_as_before(steps_of: Callable[[str, list[str]], Steps]) -> None:
    steps = steps_of("SELECT id, v FROM t", ["id", "v"])
    steps.put(t=[(1, 1, 1)])
    steps.step()
    steps.put(t=[(1, 1, None)])
    steps.store.checkpoint()
    with pytest.raises(el.EpochlogError, match="'v'"):
        steps.view.step()
    assert steps.kinds[-1] == "Groups"
    steps.put(t=[(1, 1, 3)])
    assert steps.step() == "ChangedRows"


def test_float_keys_are_one_key_by_value(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("x", pa.float64(), nullable=False), ("v", pa.int64())])
    with el.open(tmp_path / "store", durability="os", checkpoint_interval_ms=10) as store:
        table = store.create_table("f", schema, ["x"])
        view = store.create_view("v", "SELECT x, v + 1 AS w FROM f", ["x"])
        for number, keys in enumerate(([0.0, float("nan"), 1.5], [-0.0, float("nan")], [float("nan"), 1.5])):
            table.upsert(pa.table([keys, [number] * len(keys)], schema=schema))
            store.checkpoint()
            view.step()
            assert raw_check(view).ok
        table.delete(pa.table({"x": [float("nan"), -0.0]}))
        store.checkpoint()
        view.step()
        assert raw_check(view).ok and store.table("v").count() == 1
