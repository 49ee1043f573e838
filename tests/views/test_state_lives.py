"""States of views in the life of a store: commits, rebuilds, drops, vacuum, damage, and changes that do not fit."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import epochlog as el
from epochlog.checkpoint.job import refresh_plan, state_rows
from epochlog.checkpoint.job.local_context import LocalRefreshContext
from epochlog.checkpoint.job.refresh_adapter import LocalRefreshAdapter
from epochlog.store.catalog.keys import STATE_PREFIX
from epochlog.store.catalog.protocol import scan_prefix
from epochlog.store.commit import job_commit
from epochlog.store.metadata.counters import move_counters
from epochlog.store.metadata.definitions import Counters
from epochlog.store.metadata.lookups import find_table, get_version
from epochlog.store.metadata.reachable_files import all_files
from epochlog.store.metadata.state_tables import ViewState, read_state, replace_state
from epochlog.store.scan.result_cache import set_result_cache_bytes
from epochlog.store.verify.verify import verify_store
from epochlog.views import state_changes, state_step
from epochlog.views.duckdb_engine import LocalEngine
from epochlog.views.state_step import StateStep
from epochlog.views.state_tables import Layout, ValueTable, substitute
from logged_events import logged
from view_states import CASES, StateCase, StateWorld, count_steps, random_row

SQL = "SELECT g, COUNT(DISTINCT e) AS u, MIN(w) AS low, AVG(e) AS mean FROM items WHERE g IS NOT NULL GROUP BY g"
CASE = StateCase(SQL, ("g",))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StateWorld]:
    """Yield a world of a view with a state of 12 rows in 3 groups."""
    before = set_result_cache_bytes(0)
    world = StateWorld(tmp_path / "store", CASE, random.Random(1))
    count_steps(monkeypatch, world.steps)
    world.put("items", *({"id": n, "g": n % 3, "e": n % 4, "w": n % 5} for n in range(12)))
    world.step()
    yield world
    world.store.close()
    set_result_cache_bytes(before)


def record_of(world: StateWorld) -> ViewState | None:
    """Return the state in the catalog, perhaps of an earlier commit."""
    catalog = world.store._handle.catalog
    return catalog.read(lambda view: read_state(view, table_id_of(world)))


def table_id_of(world: StateWorld) -> int:
    table = world.store._handle.catalog.read(lambda view: find_table(view, "v"))
    assert table is not None
    return table.id


def state_of(world: StateWorld) -> ViewState:
    """Return the state of the newest commit."""
    state = record_of(world)
    assert state is not None and state.epoch == world.view.info.committed_epoch
    return state


def put_state(world: StateWorld, state: ViewState | None) -> None:
    """Put a state in place of the view's."""
    catalog, table_id = world.store._handle.catalog, table_id_of(world)

    def body(tx: Any) -> None:
        replace_state(tx, table_id, state, catalog.now_ms())
        move_counters(tx, Counters.read(tx))

    catalog.transact(body)


def files_on_disk(store: el.Store) -> set[str]:
    return {info.path for info in store._handle.files.list(store._handle.store_id)}


def reached_files(store: el.Store) -> set[str]:
    return set(store._handle.catalog.read(all_files))


def change(world: StateWorld, value: int = 2) -> None:
    """Change a row, and move it to another group."""
    world.put("items", {"id": 0, "g": 1 + value % 2, "e": value, "w": 7})


def step_to(world: StateWorld, kind: str) -> None:
    """Step a view that has changes, and require the kind of the step."""
    before = world.steps.copy()
    world.step()
    assert (world.steps - before).keys() == {kind}


# ---- commits -------------------------------------------------------------------------------------------------------


@pytest.mark.medium
def test_idle_boundaries_carry_the_state(world: StateWorld) -> None:
    first = state_of(world)
    world.put("kinds", {"id": 1, "x": 1})  # a table that the view does not read
    world.step()
    change(world)
    world.store.table("items").upsert(world.store.table("items").to_arrow())  # nothing differs
    step_to(world, "Changes")
    second = state_of(world)
    assert second.stamp == first.stamp and second.epoch > first.epoch
    change(world, 3)
    step_to(world, "Changes")
    world.check_state()


def step_as_before(world: StateWorld) -> None:
    """Step the view as a release does that knows of no states: it leaves their records as they are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StateStep, "by_changes", lambda *_: None)
        patch.setattr(StateStep, "make_anew", lambda *_: None)
        patch.setattr(job_commit, "replace_state", lambda *_: None)
        step_to(world, "Groups")


def require_no_old_state(world: StateWorld) -> None:
    """Step the view in an older release, and then in this one, with changes that another state would not show."""
    change(world)
    step_as_before(world)
    record = record_of(world)
    assert record is not None and record.epoch < world.view.info.committed_epoch
    assert "state: none at the newest commit" in world.view.explain()
    assert len(world.view.check(state=True).outputs) == 1
    change(world, 9)
    world.step()
    world.check_state()
    assert world.steps["Changes"] == 0
    change(world)
    step_to(world, "Changes")
    world.check_state()


@pytest.mark.medium
def test_a_state_that_a_commit_has_left_behind_is_not_used(world: StateWorld) -> None:
    require_no_old_state(world)


def require_no_state_of_another_plan(root: Path) -> None:
    """Step a view in a release whose states have other numbers, and then in this one."""
    original = state_changes.value_rows

    def value_rows(layout: Layout, table: ValueTable, inputs: pa.Table, key: pa.Table) -> pa.Table:
        for name in table.inputs:
            filled = pc.fill_null(inputs.column(name), substitute(layout.types[name]))
            inputs = inputs.set_column(inputs.column_names.index(name), name, filled)
        return original(layout, table, inputs, key)

    world = StateWorld(root, CASE, random.Random(1))
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(state_step, "STATE", 0)
            patch.setattr(state_changes, "value_rows", value_rows)  # NULL is a value
            world.put("items", *({"id": n, "g": n % 3, "e": [None, 1, 2][n % 2]} for n in range(12)))
            world.step()
        change(world)
        world.step()
        world.check_state()
    finally:
        world.store.close()


@pytest.mark.medium
def test_a_state_of_another_plan_is_not_used(tmp_path: Path) -> None:
    require_no_state_of_another_plan(tmp_path / "store")


def _epochs_are_ignored(patch: pytest.MonkeyPatch) -> None:
    original = refresh_plan.read_state

    def read(view: Any, table_id: int) -> ViewState | None:
        state, table = original(view, table_id), get_version(view, table_id, "v")
        return None if state is None else replace(state, epoch=table.max_committed_epoch)

    patch.setattr(refresh_plan, "read_state", read)


@pytest.mark.planted
@pytest.mark.medium
def test_a_state_of_an_earlier_commit_is_found(world: StateWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    _epochs_are_ignored(monkeypatch)
    with pytest.raises(AssertionError):
        require_no_old_state(world)


@pytest.mark.planted
@pytest.mark.medium
def test_a_state_of_another_plan_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_step, "stamp_of", lambda *_: "")
    with pytest.raises(AssertionError):
        require_no_state_of_another_plan(tmp_path / "store")


@pytest.mark.medium
def test_a_fenced_runner_leaves_no_state(world: StateWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    written, other = state_step.BlockState.write, world.store.view("v")
    seen: list[set[str]] = []

    def write(state: Any, *args: Any) -> None:
        written(state, *args)
        if not seen:
            seen.append(files_on_disk(world.store))
            assert other.step(take_over=True) is not None

    monkeypatch.setattr(state_step.BlockState, "write", write)
    change(world)
    world.store.checkpoint()
    with pytest.raises(el.Fenced):
        world.view.step()
    world.check_rows()
    world.check_state()
    assert files_on_disk(world.store) & seen[0] < seen[0]  # the files of the fenced runner are gone
    world.view = world.store.view("v")
    change(world, 3)
    step_to(world, "Changes")
    world.check_state()
    require_no_files_left(world)


# ---- definitions ---------------------------------------------------------------------------------------------------


def require_no_files_left(world: StateWorld) -> None:
    """Require that vacuum leaves the files alone that the catalog reaches."""
    world.store.vacuum(grace=0)
    world.store.vacuum(grace=0)
    assert files_on_disk(world.store) == reached_files(world.store)


@pytest.mark.medium
def test_a_rebuild_makes_the_state_anew(world: StateWorld) -> None:
    before = state_of(world)
    world.view.rebuild()
    change(world)
    world.step()
    world.check_state()
    assert not state_of(world).files.keys() & before.files.keys()
    change(world, 3)
    step_to(world, "Changes")
    require_no_files_left(world)


@pytest.mark.medium
def test_a_new_query_has_a_state_of_its_own(world: StateWorld) -> None:
    world.put("kinds", {"id": 1})
    without = SQL.replace("WHERE", "WHERE EXISTS (SELECT 1 FROM kinds) AND")
    for sql in (SQL.replace("MIN(w)", "MAX(w)"), without, SQL):
        world.case = StateCase(sql, ("g",))
        world.store.replace_views({"v": sql})
        change(world)
        world.step()
        assert (record_of(world) is None) is (sql == without)
        require_no_files_left(world)
    world.check_state()


@pytest.mark.medium
@pytest.mark.parametrize("how", ["dropped", "table kept"])
def test_the_state_of_a_view_goes_with_it(world: StateWorld, how: str) -> None:
    table_id, states = table_id_of(world), state_of(world).files
    if how == "dropped":
        world.store.drop_view("v")
    else:
        world.store.drop_job("v", keep_outputs=True)
    catalog = world.store._handle.catalog
    assert catalog.read(lambda view: list(scan_prefix(view, STATE_PREFIX))) == []
    assert catalog.read(lambda view: read_state(view, table_id)) is None
    require_no_files_left(world)
    assert not files_on_disk(world.store) & states.keys()


@pytest.mark.medium
def test_a_finished_view_has_no_state(world: StateWorld) -> None:
    states = state_of(world).files
    change(world)
    world.store.table("items").finish()
    world.step()
    assert world.view.info.state == "finished" and record_of(world) is None
    require_no_files_left(world)
    assert not files_on_disk(world.store) & states.keys()


@pytest.mark.medium
def test_vacuum_leaves_the_files_of_the_newest_state_alone(world: StateWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_rows, "MOST_SEGMENTS", 2)
    for number in range(12):
        change(world, number % 5)
        step_to(world, "Changes")
    world.check_state()
    assert max(len(table.segments) for table in state_of(world).tables) <= 3
    require_no_files_left(world)
    change(world)
    step_to(world, "Changes")


# ---- damage --------------------------------------------------------------------------------------------------------


def damage(world: StateWorld, number: int, how: str) -> None:
    """Damage the first file of a state table."""
    path = Path(world.root) / state_of(world).tables[number].segments[0].path
    assert path.exists()
    if how == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-9] + b"\0" * 9 if how == "torn" else b"")


@pytest.mark.medium
@pytest.mark.local_only
@pytest.mark.logs("view_state_lost")
@pytest.mark.parametrize("how", ["missing", "torn", "empty"])
@pytest.mark.parametrize("number", [0, 1])
def test_a_step_goes_on_without_a_lost_state(world: StateWorld, number: int, how: str) -> None:
    damage(world, number, how)
    change(world)
    step_to(world, "Groups")
    world.check_state()
    change(world, 3)
    step_to(world, "Changes")
    world.check_state()


@pytest.mark.local_only
@pytest.mark.damages_store
@pytest.mark.medium
def test_verify_finds_a_damaged_state(world: StateWorld) -> None:
    damage(world, 1, "torn")
    (problem,) = verify_store(world.store._handle).problems
    assert problem.where == state_of(world).tables[1].segments[0].path
    assert "which a step that cannot read it makes anew" in problem.what


# ---- states that are given up --------------------------------------------------------------------------------------


@pytest.mark.medium
def test_a_state_that_is_too_large_is_not_kept(world: StateWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_step, "LEAST_BYTES", 0)
    case, chance = CASES["values of other types"], random.Random(0)
    world.put("items", *(random_row(chance, "items", number) for number in range(12)))
    world.store.checkpoint()
    view = world.store.create_view("large", case.sql, list(case.key))
    for value in (1, 2, 3):
        change(world, value)
        world.store.checkpoint()
        view.step()
        assert view.check(state=True).ok
    monkeypatch.undo()
    for value, has_sql in ((4, False), (5, True)):  # the reason outlives a step on another engine
        with monkeypatch.context() as patch:
            if not has_sql:
                patch.setattr(LocalEngine, "state_sql", None)
            change(world, value)
            world.store.checkpoint()
            view.step()
        assert "because it would take more than" in view.explain()
    assert "state: none until the view is rebuilt, because it would take more than" in view.explain()
    assert len(view.check(state=True).outputs) == 1
    require_no_files_left(world)
    view.rebuild()
    world.store.checkpoint()
    view.step()
    assert "state: groups" in view.explain()
    assert view.check(state=True).ok


@pytest.mark.medium
@pytest.mark.logs("view_state_disagrees")
def test_a_view_whose_state_disagrees_twice_keeps_none(world: StateWorld, caplog: pytest.LogCaptureFixture) -> None:
    for times in (1, 2):
        state = state_of(world)
        put_state(world, replace(state, tables=tuple(replace(table, segments=()) for table in state.tables)))
        change(world, times)
        step_to(world, "AllRows")
        assert len(logged(caplog, "view_state_disagrees")) == times
        assert state_of(world).disagreements == times
        assert (state_of(world).without == "") is (times == 1)
        if times == 1:
            world.check_state()
    assert "because its rows disagreed with the changes twice" in world.view.explain()
    change(world, 4)
    step_to(world, "Groups")
    assert state_of(world).tables == () and state_of(world).disagreements == 2
    require_no_files_left(world)
    world.view.rebuild()
    world.step()
    world.check_state()
    assert state_of(world).disagreements == 0
    change(world, 5)
    step_to(world, "Changes")


PARTED = ("two tables", "filters", "two tables, all rows", "groups of groups", "three blocks", "distinct rows")


@pytest.mark.medium
@pytest.mark.parametrize("name", [*PARTED, "a self join"])
def test_a_state_is_made_in_parts(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts: list[int] = []
    written = state_step.BlockState.write

    def write(state: Any, *args: Any) -> None:
        parts.append(1)
        written(state, *args)

    monkeypatch.setattr(state_step.BlockState, "write", write)
    monkeypatch.setattr(state_step, "PART_ROWS", 3)
    monkeypatch.setattr("epochlog.store.scan.scan_plan.BATCH_ROWS", 2)  # of the groups that a block above takes
    world = StateWorld(tmp_path / "store", CASES[name], random.Random(7))
    try:
        for _ in range(12):
            world.change()
        world.step()
        world.check_state()
        assert (len(parts) > 1) is (name != "a self join")
        world.change()
        world.step()
        world.check_state()
        world.store.vacuum(grace=0)
        assert files_on_disk(world.store) == reached_files(world.store)
    finally:
        world.store.close()


@pytest.mark.medium
def test_columns_that_change_their_names_keep_their_values(world: StateWorld) -> None:
    table = world.store.table("items")
    table.alter(rename={"e": "k", "k": "e"})
    for value in (2, 3):
        row = {"id": 0, "g": 1, "k": value, "e": 9 - value, "w": 7}
        table.upsert(pa.Table.from_pylist([row], schema=table.schema))
        assert "COUNT(DISTINCT k)" in world.view.sql
        step_to(world, "Changes")  # the judge runs the first text: the view's own reads have the former names
        world.check_state()
    assert world.share == 1


@pytest.mark.medium
def test_a_failed_step_leaves_no_files(world: StateWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise el.InvalidInput("refused")

    change(world)
    world.store.checkpoint()
    before, state = files_on_disk(world.store), state_of(world)
    with monkeypatch.context() as patch:
        patch.setattr(LocalRefreshContext, "_recompute", refuse)
        with pytest.raises(el.InvalidInput, match="refused"):
            world.view.step()
    assert files_on_disk(world.store) == before and state_of(world) == state
    step_to(world, "Changes")
    world.check_state()


@pytest.mark.medium
@pytest.mark.logs("view_state_lost")
def test_a_join_of_too_many_rows_has_no_state(
    world: StateWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(state_step, "MOST_ROWS", 1)
    for value in (5, 6):
        world.put("items", *({"id": n, "g": n % 3, "e": value} for n in range(12)))
        step_to(world, "Groups")
    assert "because it cannot be made: a join of the view has more than 1 rows" in world.view.explain()
    assert len(logged(caplog, "view_state_lost")) == 1, "the second step does not try"
    world.check_rows()


@pytest.mark.medium
def test_a_context_whose_commit_records_no_state_makes_none(world: StateWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refresh as a part of several does, none of which has the rows of all groups."""
    runner = world.view._runner
    change(world)
    world.store.checkpoint()
    plan = runner.begin()
    assert plan is not None
    monkeypatch.setattr(StateStep, "__init__", None)
    context = LocalRefreshContext(runner.handle, plan)
    segments = runner.run_refresh(plan, context, world.view.refresh, LocalRefreshAdapter(runner.handle))
    runner.commit(plan, segments)
    monkeypatch.undo()
    assert "state: none at the newest commit" in world.view.explain()
    world.check_rows()
