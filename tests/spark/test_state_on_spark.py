"""States of views on Spark: tasks make them of all rows, and steps of Spark and of the driver share them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import epochlog as el
from epochlog.spark import local_steps, state_sql, view_engine
from epochlog.spark.column_names import columns_named
from epochlog.spark.view_engine import ViewSession
from epochlog.views import state_step
from view_states import CASES, TABLES, StateWorld, count_steps, fail_on_disagreements, random_row

pytestmark = pytest.mark.spark
STEPS_IN_DRIVER = True


@dataclass
class SparkWorld(StateWorld):
    """World whose view is stepped by Spark's tasks, by the driver, or without Spark."""

    spark: Any = None
    budget: int = 0
    """Rows that the driver may read in a step; -1: the step is without Spark."""

    def step(self) -> None:
        self.store.checkpoint()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(local_steps, "BUDGET_ROWS", max(0, self.budget))
            while self.view.step(self.spark if self.budget >= 0 else None) is not None:
                self.check_rows()

    def last(self) -> tuple[str, str]:
        """Return the engine of the newest step, and what it was computed by."""
        step = self.view.stats().steps[-1]
        return step.engine, step.work.by


def world_of(root: Path, case: str, spark: SparkSession, seed: int) -> SparkWorld:
    print("seed", seed)
    world = SparkWorld(root, CASES[case], random.Random(seed), spark=spark)
    for name, count in world.ids.items():
        rows = [random_row(world.chance, name, number) for number in range(count)]
        world.store.table(name).upsert(pa.Table.from_pylist(rows, schema=TABLES[name]))
    return world


@pytest.mark.parametrize(
    "case",
    ["all kinds", "all kinds of all rows", "filters", "two tables", "groups of groups", "three blocks", "HAVING"],
)
def test_steps_of_both_engines_go_on_with_one_state(
    tmp_path: Path, spark: SparkSession, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_on_disagreements(monkeypatch)
    world = world_of(tmp_path, case, spark, random.SystemRandom().randrange(2**32))
    with world.store:
        world.step()
        assert world.last() == ("spark", "all rows")
        world.check_state()
        count_steps(monkeypatch, world.steps)
        for budget in (0, 200_000, 0, -1):
            world.budget = budget
            world.change()
            world.step()
            world.check_state()
        assert world.share == 1, world.steps


def large_world(root: Path, spark: SparkSession, rows: int = 300_000) -> SparkWorld:
    """Return a world whose view groups many rows, among them most in one group."""
    world = SparkWorld(root, CASES["filters"], random.Random(4), spark=spark)
    chance = np.random.default_rng(4)
    columns = {"id": np.arange(rows), "g": np.where(chance.random(rows) < 0.8, 7, chance.integers(0, 50, rows))}
    columns |= {name: chance.integers(0, 900, rows) for name in ("e", "w")}
    data = pa.table({**columns, "s": chance.choice(["a", "b", "c"], rows), "f": chance.random(rows) < 0.5})
    for field in TABLES["items"]:
        if field.name not in data.column_names:
            data = data.append_column(field.name, pa.nulls(rows, field.type))
    world.store.table("items").upsert(data.select(TABLES["items"].names).cast(TABLES["items"]))
    return world


def check_many_tasks(root: Path, spark: SparkSession) -> None:
    session = ViewSession(spark).session
    session.conf.set("spark.sql.adaptive.coalescePartitions.enabled", "false")
    session.conf.set("spark.sql.shuffle.partitions", "3")
    try:
        world = large_world(root, spark)
        with world.store:
            world.step()
            assert world.last() == ("spark", "all rows")
            world.check_state()
            (block,) = world.view.stats().steps[-1].work.blocks
            assert block.rows == 300_000 and block.groups >= 50
            world.budget = 200_000
            world.put("items", {"id": 5, "g": 7, "e": 1}, {"id": -1, "g": 99, "e": 3})
            world.step()
            assert world.last() == ("local", "state")
            world.check_state()
    finally:
        session.conf.unset("spark.sql.adaptive.coalescePartitions.enabled")
        session.conf.unset("spark.sql.shuffle.partitions")


def test_many_tasks_make_a_state_of_many_rows(tmp_path: Path, spark: SparkSession) -> None:
    """Each takes its rows in parts, and merges its small files."""
    check_many_tasks(tmp_path, spark)


@pytest.mark.planted
def test_groups_whose_rows_come_to_several_tasks_are_found(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plant a bug: rows come to tasks by another column than that of their group."""
    monkeypatch.setattr(state_sql, "columns_named", lambda names: real(["epochlog_input_0"]))
    real = columns_named
    with pytest.raises(AssertionError):
        check_many_tasks(tmp_path, spark)


def test_a_state_that_the_driver_lacks_is_made_on_spark_once(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step of too many changes leaves the view without a state; the next small one has it made, the others use it."""
    world = world_of(tmp_path, "two tables", spark, 3)
    with world.store:
        world.step()
        with monkeypatch.context() as patch:
            patch.setattr(state_sql, "MOST_CHANGES", 0)
            world.change()
            world.step()
        assert world.last()[0] == "spark" and world.last()[1] != "state"
        assert "state: none" in world.view.explain()
        world.budget = 200_000
        monkeypatch.setattr(local_steps.BudgetReads, "fits", without_room)
        seen: list[tuple[str, str]] = []
        for _ in range(3):
            world.change()
            world.step()
            seen.append(world.last())
        world.check_state()
        assert [engine for engine, _ in seen] == ["spark", "local", "local"]
        assert [by for _, by in seen[1:]] == ["state", "state"]


def without_room(reads: Any, query: Any) -> bool:
    raise local_steps.StateMissing("its state must be made of all rows of its tables")


def test_a_step_that_fails_leaves_no_file_of_its_state(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise OSError("planted")

    world = world_of(tmp_path, "groups of groups", spark, 3)
    with world.store:
        with monkeypatch.context() as patch:
            patch.setattr(state_step.StateStep, "_keep", fails)
            with pytest.raises(OSError, match="planted"):
                world.step()
        assert not world.store.verify().unreachable
        world.step()
        world.check_state()


def test_a_view_without_duckdb_has_no_state(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: Any) -> None:
        raise el.DependencyMissing("planted")

    world = world_of(tmp_path, "HAVING", spark, 3)
    with world.store:
        monkeypatch.setattr(view_engine, "plan_of", missing)
        world.step()
        assert "state: none" in world.view.explain()
        world.check_rows()


def test_a_failure_of_spark_leaves_a_view_without_its_state_for_one_step(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was taken for a failure of the rows, and the view had no state until it was rebuilt."""

    def fails(*_: Any) -> Any:
        raise RuntimeError("planted")
        yield  # a task yields rows

    world = world_of(tmp_path, "all kinds", spark, 3)
    with world.store:
        with monkeypatch.context() as patch:
            patch.setattr(state_sql, "_make_part", fails)
            world.step()
        assert "state: none at the newest commit" in world.view.explain()
        monkeypatch.setattr(local_steps.BudgetReads, "fits", without_room)
        for engine, by in (("spark", None), ("local", "state")):
            world.budget = 200_000
            world.change()
            world.step()
            assert world.last()[0] == engine and by in (None, world.last()[1])
            world.check_state()


def test_a_value_that_no_state_can_have_ends_it_until_a_rebuild(tmp_path: Path, spark: SparkSession) -> None:
    world = world_of(tmp_path, "values of other types", spark, 3)
    with world.store:
        world.put("items", {"id": 1, "w": 1, "s": "x" * 100_000})
        world.step()
        assert "state: none until the view is rebuilt" in world.view.explain()
        world.put("items", {"id": 1, "w": 1, "s": "x"})
        world.step()
        world.view.rebuild()
        world.step()
        world.check_state()
