"""Views that keep a state of their aggregates (R12): which they are, and that their rows and state are the query's."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import epochlog as el
from epochlog.views import state_changes, state_step
from epochlog.views.aggregate_state import KeptBlock
from epochlog.views.derivation import ViewPlan, derive
from epochlog.views.state_changes import Find, StateChange
from epochlog.views.state_step import GroupRows, StateStep
from epochlog.views.state_tables import Layout, layout_of
from epochlog.views.table_names import IS_NEW
from seeds import seeds
from state_queries import random_case_of_all_groups, random_state_case
from view_states import CASES, SCHEMAS, StateCase, StateWorld, count_steps, fail_on_disagreements, play_case


@pytest.fixture(autouse=True)
def no_repair_hides_an_error() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        fail_on_disagreements(patch)
        yield


WorldOf = Callable[..., StateWorld]


@pytest.fixture
def world_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WorldOf]:
    opened: list[StateWorld] = []

    def make(sql: str, key: str, judged: str = "") -> StateWorld:
        opened.append(StateWorld(tmp_path / "store", StateCase(sql, (key,), judged), random.Random(0)))
        count_steps(monkeypatch, opened[-1].steps)
        return opened[-1]

    yield make
    for world in opened:
        world.store.close()


def plan_of(sql: str, *key: str) -> ViewPlan:
    return derive(sql, SCHEMAS, key)


def blocks_of(sql: str, *key: str) -> tuple[KeptBlock, ...]:
    plan = plan_of(sql, *key).state
    assert plan is not None
    return plan.blocks


# ---- which views keep a state --------------------------------------------------------------------------------------

OTHER_QUERIES = {
    "no aggregate": ("SELECT id, e FROM items", "id"),
    "groups alone": ("SELECT g, s FROM items GROUP BY g, s", "g", "s"),
    "a DISTINCT block": ("SELECT DISTINCT g, MIN(e) AS low FROM items GROUP BY g", "g"),
    "a window of some groups": (
        (
            "SELECT g, s, MIN(e) AS low, ROW_NUMBER() OVER (PARTITION BY g ORDER BY MIN(e), s) AS p FROM items "
            "GROUP BY g, s"
        ),
        "g",
        "s",
    ),
    "a window beside an average": (
        "SELECT g, AVG(e) AS mean, ROW_NUMBER() OVER (ORDER BY AVG(e), g) AS place FROM items GROUP BY g",
        "g",
    ),
    "groups that are read twice": (
        "WITH t AS (SELECT g, COUNT(*) AS n FROM items GROUP BY g) SELECT g, n, (SELECT MAX(n) FROM t) AS most FROM t",
        "g",
    ),
    "a left join": (
        "SELECT i.g, COUNT(DISTINCT k.x) AS u FROM items i LEFT JOIN kinds k ON k.id = i.k GROUP BY i.g",
        "g",
    ),
    "a full join": (
        "SELECT i.g, COUNT(DISTINCT k.x) AS u FROM items i FULL JOIN kinds k ON k.id = i.k GROUP BY i.g",
        "g",
    ),
    "a semi join": (
        "SELECT g, COUNT(DISTINCT e) AS u FROM items LEFT SEMI JOIN kinds ON kinds.id = items.k GROUP BY g",
        "g",
    ),
    "a subquery of rows": (
        "SELECT g, MIN(e) AS u FROM items WHERE EXISTS (SELECT 1 FROM kinds WHERE kinds.id = items.k) GROUP BY g",
        "g",
    ),
    "a subquery of a value": (
        "SELECT g, COUNT(DISTINCT e) + (SELECT MAX(x) FROM kinds) AS u FROM items GROUP BY g",
        "g",
    ),
    "averages of groups below": (
        "SELECT g, COUNT(*) AS n FROM (SELECT g, s, AVG(e) AS a FROM items GROUP BY g, s) WHERE a > 1 GROUP BY g",
        "g",
    ),
    "a join of groups": (
        (
            "SELECT q.g, MIN(n) AS x FROM (SELECT g, COUNT(*) AS n FROM items GROUP BY g) q JOIN kinds ON id = q.g "
            "GROUP BY q.g"
        ),
        "g",
    ),
    "groups of a window": (
        (
            "SELECT g, MIN(p) AS x FROM (SELECT g, ROW_NUMBER() OVER (PARTITION BY g ORDER BY id) AS p FROM items) "
            "GROUP BY g"
        ),
        "g",
    ),
    "groups of a union": (
        "SELECT g, MIN(e) AS low FROM (SELECT g, e FROM items UNION ALL SELECT x, x FROM kinds) GROUP BY g",
        "g",
    ),
    "groups of a limit": (
        "SELECT g, MIN(e) AS low FROM (SELECT g, e FROM items ORDER BY id LIMIT 3) GROUP BY g",
        "g",
    ),
    "a union": (
        "SELECT g, MIN(e) AS low FROM items GROUP BY g UNION ALL SELECT x + 9 AS g, x AS low FROM kinds",
        "g",
    ),
    "grouping sets": ("SELECT g, s, MIN(e) AS low FROM items GROUP BY GROUPING SETS ((g), (g, s))", "g", "s"),
    "a rollup": ("SELECT g, s, MIN(e) AS low FROM items GROUP BY ROLLUP (g, s)", "g", "s"),
    "a group that is no output": ("SELECT g, MIN(e) AS low FROM items GROUP BY g, s", "g"),
    "a key that is no group": ("SELECT g, MIN(e) AS low FROM items GROUP BY g", "low"),
    "an average of values": ("SELECT g, AVG(DISTINCT e) AS mean FROM items GROUP BY g", "g"),
    "another aggregate": ("SELECT g, STDDEV(e) AS spread, COUNT(DISTINCT e) AS u FROM items GROUP BY g", "g"),
}


@pytest.mark.parametrize("name", CASES)
def test_aggregates_of_inner_joins_keep_a_state(name: str) -> None:
    plan = plan_of(CASES[name].sql, *CASES[name].key)
    assert plan.state is not None
    assert "changes are added to a state of the groups" in plan.explain()


@pytest.mark.parametrize("name", OTHER_QUERIES)
def test_other_queries_keep_no_state(name: str) -> None:
    plan = plan_of(*OTHER_QUERIES[name])
    assert plan.state is None
    assert "a state of the groups" not in plan.explain()


def test_a_view_that_is_to_be_recomputed_keeps_no_state() -> None:
    case = CASES["all kinds"]
    assert derive(case.sql, SCHEMAS, case.key, refresh="full").state is None


TYPES = [
    ("COUNT(DISTINCT v)", pa.int64(), True),
    ("COUNT(DISTINCT v)", pa.string(), True),
    ("COUNT(DISTINCT v)", pa.timestamp("us", "UTC"), True),
    ("COUNT(DISTINCT v)", pa.decimal128(38, 4), True),
    ("COUNT(DISTINCT v)", pa.float64(), False),
    ("COUNT(DISTINCT v)", pa.float32(), False),
    ("COUNT(DISTINCT v)", pa.binary(), False),
    ("SUM(v) + COUNT(DISTINCT e)", pa.int8(), True),
    ("SUM(v) + COUNT(DISTINCT e)", pa.decimal128(28, 3), True),
    ("SUM(v) + COUNT(DISTINCT e)", pa.decimal128(29, 3), False),
    ("SUM(v) + COUNT(DISTINCT e)", pa.float64(), False),
    ("AVG(v)", pa.int64(), True),
    ("AVG(v)", pa.decimal128(9, 2), False),
    ("AVG(v)", pa.float32(), False),
    ("MIN(v)", pa.bool_(), True),
    ("MIN(v)", pa.date32(), True),
    ("MAX(v)", pa.float64(), False),
    ("MAX(v)", pa.binary(), False),
]


@pytest.mark.parametrize(("text", "kind", "kept"), TYPES)
def test_values_of_some_types_are_kept(text: str, kind: pa.DataType, kept: bool) -> None:
    column = "e" if text == "AVG(v)" else "m"  # the average of a DECIMAL has no plan
    (plan,) = blocks_of(f"SELECT g, {text.replace('v', column)} AS x FROM items GROUP BY g", "g")
    types = {"g": pa.int32(), **{name: pa.int64() for name in plan.inputs}}
    types |= {name: kind for name, value in plan.inputs.items() if value.name == column}
    assert (layout_of(plan.kept, pa.schema(types)) is not None) is kept


@pytest.mark.parametrize(("kind", "kept"), [(pa.int64(), True), (pa.string(), True), (pa.float64(), False)])
def test_groups_of_some_types_are_kept(kind: pa.DataType, kept: bool) -> None:
    (plan,) = blocks_of("SELECT g, MIN(e) AS low FROM items GROUP BY g", "g")
    types = pa.schema({"g": kind, **{name: pa.int64() for name in plan.inputs}})
    assert (layout_of(plan.kept, types) is not None) is kept


# ---- the law -------------------------------------------------------------------------------------------------------


@pytest.mark.medium
@pytest.mark.parametrize("name", CASES)
def test_a_view_with_a_state_has_the_rows_of_its_query(name: str, tmp_path: Path) -> None:
    world = play_case(tmp_path / "store", CASES[name], random.randrange(1 << 32), 12)
    assert world.share >= 0.9, world.steps


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", range(12))
def test_long_histories_have_the_rows_of_the_query(name: str, seed: int, tmp_path: Path) -> None:
    world = play_case(tmp_path / "store", CASES[name], seed, 100)
    assert world.share >= 0.9, world.steps


@pytest.mark.medium
@pytest.mark.parametrize("seed", seeds(range(100), 2))
def test_views_of_random_queries_have_their_rows(seed: int, tmp_path: Path) -> None:
    case = random_state_case(random.Random(seed))
    print(case.sql)
    world = play_case(tmp_path / "store", case, seed, 12)
    assert world.share >= 0.9, world.steps


@pytest.mark.medium
@pytest.mark.rule("R14")
@pytest.mark.parametrize("seed", seeds(range(100), 2))
def test_views_of_all_groups_have_their_rows(seed: int, tmp_path: Path) -> None:
    case = random_case_of_all_groups(random.Random(seed))
    print(case.sql)
    world = play_case(tmp_path / "store", case, seed, 12)
    assert world.share >= 0.9, world.steps


@pytest.mark.medium
def test_a_row_of_all_rows_goes_when_having_refuses_it(world_of: WorldOf) -> None:
    sql = "SELECT 1 AS one, COUNT(DISTINCT e) AS u FROM items HAVING COUNT(DISTINCT e) > 2"
    world = world_of(sql, "one")
    world.put("items", *({"id": number, "e": number} for number in range(3)))
    world.step()
    for value, rows in ((None, 0), (7, 1), (1, 0)):
        world.put("items", {"id": 2, "e": value})
        world.step()
        assert world.store.table("v").count() == rows
    world.check_state()
    assert world.share == 1


@pytest.mark.medium
def test_a_state_of_all_rows_has_its_row_without_rows(world_of: WorldOf) -> None:
    world = world_of("SELECT 1 AS one, COUNT(DISTINCT e) AS u, MIN(s) AS low FROM items WHERE g = 1", "one")
    world.put("items", {"id": 1, "g": 0})
    world.step()
    world.check_state()
    world.put("items", {"id": 1, "g": 2}, {"id": 2, "g": 3})  # changes of which the view has no row
    world.step()
    world.put("items", {"id": 1, "g": 1, "e": 5, "s": "b"})
    world.step()
    world.put("items", {"id": 1, "g": 0})
    world.step()
    world.check_state()
    assert world.share == 1
    assert world.store.table("v").to_arrow().to_pylist() == [{"one": 1, "u": 0, "low": None}]


@pytest.mark.medium
def test_a_lost_extreme_above_reads_the_groups_of_its_own(world_of: WorldOf, monkeypatch: pytest.MonkeyPatch) -> None:
    sql = "SELECT g, MAX(t) AS high FROM (SELECT s, g, SUM(e) AS t FROM items WHERE g >= 0 GROUP BY s, g) GROUP BY g"
    world = world_of(sql, "g")
    rows = [{"id": number, "g": number % 5, "s": f"s{number}", "e": number} for number in range(50)]
    world.put("items", *rows)
    world.step()
    read: list[int] = []
    among = state_step.StateRows.among

    def counted(state: Any, keys: pa.Table) -> pa.Table:
        result = among(state, keys)
        read.append(len(result))
        return result

    monkeypatch.setattr(state_step.StateRows, "among", counted)
    world.put("items", {**rows[49], "e": 0}, {**rows[3], "e": 1})  # the greatest of its group, and another
    world.step()
    assert read == [10] and world.share == 1
    world.check_state()


def play_averages(world_of: WorldOf) -> None:
    """Step a view with averages whose sums are above 2**53: doubles lose digits on the way."""
    sql = "SELECT COALESCE(g, 0) AS g, AVG(e) AS mean, SUM(e) AS total FROM items GROUP BY COALESCE(g, 0)"
    world = world_of(sql, "g", sql.replace("AVG(e)", "AVG(CAST(e AS DOUBLE))"))
    world.put("items", {"id": 1, "g": 1, "e": 1}, {"id": 9, "g": 2, "e": 7})
    world.step()
    for number in (2**53 - 3, 2**53 - 2, 2**53 + 1, 2**60 + 1, -(2**63), 4):
        world.put("items", {"id": 2, "g": 1, "e": number}, {"id": 9, "g": 2, "e": number % 7})
        world.step()
    world.check_state()
    assert world.share == 1


@pytest.mark.medium
def test_an_average_beyond_a_double_is_that_of_the_query(world_of: WorldOf) -> None:
    play_averages(world_of)


@pytest.mark.medium
def test_a_sum_that_does_not_fit_is_refused_until_it_does(world_of: WorldOf) -> None:
    sql = "SELECT 1 AS one, SUM(e) AS total, MIN(e) AS low, COUNT(DISTINCT w) AS u FROM items"
    world = world_of(sql, "one")
    world.put("items", {"id": 1, "e": 2**62}, {"id": 2, "e": 2**62 - 1})
    world.step()
    world.put("items", {"id": 3, "e": 1})
    world.store.checkpoint()
    with pytest.raises(el.EpochlogError, match="BIGINT"):
        world.view.step()
    world.put("items", {"id": 3, "e": -1})
    world.step()
    world.check_state()
    assert world.steps == {"AllRows": 1, "Changes": 1}


# ---- planted errors ------------------------------------------------------------------------------------------------


def _lost_rows_are_ignored(patch: pytest.MonkeyPatch) -> None:
    original = state_step.state_change

    def state_change(layout: Layout, inputs: pa.Table, finds: Sequence[Find]) -> StateChange:
        return original(layout, inputs.filter(inputs.column(IS_NEW)), finds)

    patch.setattr(state_step, "state_change", state_change)


def _groups_stay_without_rows(patch: pytest.MonkeyPatch) -> None:
    original = StateStep._outputs

    def outputs(state: StateStep, layout: Layout, change: StateChange) -> GroupRows | None:
        columns = {**change.groups.columns, "n": pc.max_element_wise(change.groups.columns["n"], 1)}
        return original(state, layout, replace(change, groups=replace(change.groups, columns=columns)))

    patch.setattr(StateStep, "_outputs", outputs)


def _groups_stay_in_the_state(patch: pytest.MonkeyPatch) -> None:
    original = StateChange.rows

    def rows(change: StateChange, layout: Layout) -> list[tuple[pa.Table, pa.Array | None]]:
        (own, _), *of_values = original(change, layout)
        return [(own, None), *of_values]

    patch.setattr(StateChange, "rows", rows)


def _unknown_extremes_are_null(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StateStep, "_redone", lambda state, layout, change, below: change.groups)


def _others_have_their_new_rows(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("epochlog.views.delta_join.OLD", "epochlog_now_")


def _block_above(patch: pytest.MonkeyPatch, changed: Callable[[pa.Table], pa.Table]) -> None:
    """Alter what a block hands on."""
    original = state_step.handed_on
    patch.setattr(state_step, "handed_on", lambda *given: changed(original(*given)))


def _old_groups_are_not_handed_on(patch: pytest.MonkeyPatch) -> None:
    _block_above(patch, lambda rows: rows.filter(rows.column(IS_NEW)))


def _groups_without_rows_are_handed_on(patch: pytest.MonkeyPatch) -> None:
    def greater(values: pa.Array, least: int) -> pa.Array:
        return pc.greater_equal(values, least)

    class Kernels:
        def __getattr__(self, name: str) -> Callable[..., pa.Array]:
            return greater if name == "greater" else getattr(pc, name)

    original = state_step.handed_on

    def handed_on(*given: Any) -> pa.Table:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(state_changes, "pc", Kernels())
            return original(*given)

    patch.setattr(state_step, "handed_on", handed_on)


def _the_groups_below_are_those_before(patch: pytest.MonkeyPatch) -> None:
    original = state_step.BlockState.write

    def write(block: Any, change: StateChange) -> None:
        groups = state_step.StateRows(block.groups._files, block.groups._target, block.groups.table)
        original(block, change)
        patch.setattr(state_step.BlockState, "groups", property(lambda block: groups))

    patch.setattr(state_step.BlockState, "write", write)


def _inexact_averages_are_taken(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(state_changes, "EXACT", 2**62)


@pytest.mark.parametrize(("kind", "values"), [(pa.string(), ["s03", "s04", "s50"]), (pa.int32(), [3, 4, 50])])
def test_groups_of_more_columns_than_the_key_leave_and_move(tmp_path: Path, kind: pa.DataType, values: Any) -> None:
    """A view with one column as key, grouped by it and another: a group that had no rows any more stayed (a text), or
    its step raised TypeError (an integer).
    """
    gone, moved, doubled = values
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("k", kind), ("g", pa.int64()), ("e", pa.int64())])
    with el.open(tmp_path, durability="os", checkpoint_interval_ms=10) as store:
        table = store.create_table("t", schema, ["id"])
        sql = "SELECT k, g, COUNT(DISTINCT e) AS u FROM t WHERE k IS NOT NULL GROUP BY k, g"
        view = store.create_view("v", sql, ["k"])
        table.upsert([{"id": n, "k": f"s{n:02}" if kind == pa.string() else n, "g": n, "e": n} for n in range(20)])

        def step() -> str:
            store.checkpoint()
            while view.step() is not None:
                continue
            assert view.check().ok and view.check(state=True).ok
            return view.stats().steps[-1].work.by

        step()
        table.delete([{"id": 3}])
        assert step() == "state" and gone not in store.table("v").to_arrow()["k"].to_pylist()
        table.upsert([{"id": 4, "k": moved, "g": 99, "e": 4}])
        assert step() == "state"
        table.upsert([{"id": 30, "k": doubled, "g": 1, "e": 1}, {"id": 31, "k": doubled, "g": 2, "e": 1}])
        with pytest.raises(el.InvalidInput, match="several rows with the key"):
            step()
        table.delete([{"id": 30}])
        assert step() == "state"


Plant = Callable[[pytest.MonkeyPatch], None]
PLANTED: list[tuple[Plant, str]] = [
    (_lost_rows_are_ignored, "all kinds"),
    (_groups_stay_without_rows, "all kinds"),
    (_groups_stay_in_the_state, "all kinds"),
    (_unknown_extremes_are_null, "all kinds"),
    (_others_have_their_new_rows, "two tables"),
    (_old_groups_are_not_handed_on, "groups of groups"),
    (_groups_without_rows_are_handed_on, "groups of groups"),
    (_the_groups_below_are_those_before, "groups of groups"),
]


@pytest.mark.planted
@pytest.mark.medium
@pytest.mark.parametrize(("plant", "name"), PLANTED)
def test_planted_errors_are_found(plant: Plant, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        play_case(tmp_path / "store", CASES[name], 0, 100)


@pytest.mark.planted
@pytest.mark.medium
def test_averages_that_are_not_exact_are_found(world_of: WorldOf, monkeypatch: pytest.MonkeyPatch) -> None:
    _inexact_averages_are_taken(monkeypatch)
    with pytest.raises(AssertionError, match="mean_expected"):
        play_averages(world_of)
