"""Reads of Spark that name no policy: loads by `format`, and queries of a catalog."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import epochlog as el
from default_doors import BOUND_MS, ROOTS, ROWS, VIEWS, DefaultWorld, Doors, Seen, State, as_state, error_name
from epochlog.store.env.clock import SystemClock

pytestmark = pytest.mark.spark
OWN = (None, None, "global", "aligned", "latest")


class SparkDoors:
    """Spark's doors of one store."""

    def __init__(self, world: DefaultWorld, spark: SparkSession) -> None:
        self.world, self.spark = world, spark

    def load(self, _: Doors, tables: Sequence[str] | None) -> Mapping[str, State]:
        assert tables is not None
        options = {"path": self.world.root, **({"tables": ",".join(tables)} if len(tables) > 1 else {})}
        reader = self.spark.read.format("epochlog").options(**options)
        return {name: states(reader.option("table", name).load().collect()) for name in tables}

    def catalog(self, _: Doors, tables: Sequence[str] | None) -> Mapping[str, State]:
        el.catalog(self.spark, self.world.store, "doors", tables=tables)
        names = [row.tableName for row in self.spark.sql("SHOW TABLES IN doors").collect()]
        seen: dict[str, State] = {}
        for name in names:
            try:
                seen[name] = states(self.spark.sql(f"SELECT * FROM doors.{name}").collect())
            except PySparkException as error:
                if tables is not None or error_name(error) != "TableNotReadable":  # SHOW TABLES lists these too
                    raise
        return seen


def states(rows: Sequence[object]) -> State:
    return {row["id"]: row["v"] for row in rows}  # pyright: ignore[reportIndexIssue]: rows of Spark


def seen_in_spark(doors: SparkDoors, door: str, tables: Sequence[str] | None) -> Seen:
    try:
        return dict(getattr(doors, door)(doors, tables))
    except PySparkException as error:
        return error_name(error)


def leave_late_behind(world: DefaultWorld) -> None:
    for view in VIEWS:
        world.store.checkpoint()
        world.step(view)
    world.now_ms += 1_000
    for name in ROOTS:
        world.commit(name)
    world.now_ms += BOUND_MS + 1_000
    for view in ("revenue", "margin"):
        world.commit("prices")
        world.store.checkpoint()
        world.step(view)


@pytest.mark.medium
@pytest.mark.rule("3.72")
def test_a_catalog_keeps_the_default_aligned_and_tells_how_to_read_a_late_table(
    tmp_path: Path, spark: SparkSession
) -> None:
    world = DefaultWorld(tmp_path / "lake", 3, SystemClock()() - 3_600_000)
    doors = SparkDoors(world, spark)
    leave_late_behind(world)
    el.catalog(spark, world.store, "doors")
    with pytest.raises(PySparkException, match="late cannot be read: it lags 1 min") as refused:
        spark.sql("SELECT * FROM doors.late").collect()
    advice = "write el.catalog(spark, store, name='…', consistency='aligned', tables=['late'])"
    assert advice in str(refused.value)
    el.catalog(spark, world.store, name="late_one", consistency="aligned", tables=["late"])
    assert states(spark.sql("SELECT * FROM late_one.late").collect()) == as_state(world.store.table("late").to_arrow())
    world.store.alter(default_consistency="aligned")
    world.store.create_job("job_new", ["orders"], {"new": (ROWS, ["id"])})
    every = {**world.states}
    with world.store.snapshot(list(every)) as moment:
        assert seen_in_spark(doors, "catalog", None) == {name: as_state(moment[name].to_arrow()) for name in every}
    world.store.close()


@pytest.mark.slow
@pytest.mark.rule("3.70", "3.71", "3.72")
def test_each_door_of_spark_shows_what_the_definition_says(tmp_path: Path, spark: SparkSession) -> None:
    world, outcomes = DefaultWorld(tmp_path / "lake", 3, SystemClock()() - 3_600_000), set[str]()
    doors = SparkDoors(world, spark)
    for _ in range(5):
        world.go_on()
        own = world.rng.choice(OWN)
        world.store.alter(default_consistency=own or "auto")
        names = [*ROOTS, *VIEWS]
        several = world.rng.sample(names, world.rng.randint(2, 4))
        for door, tables in (
            ("load", [world.rng.choice(names)]),
            ("load", several),
            ("catalog", several),
            ("catalog", [world.rng.choice(names)]),
            ("catalog", None),
        ):
            then_ms = world.now_ms
            if door == "load":  # a process of Spark resolves it, on the clock of the machine
                world.now_ms = SystemClock()()
            wanted, seen = world.wanted(tables, own), seen_in_spark(doors, door, tables)
            world.now_ms = then_ms
            assert seen == wanted, ("differs", door, own, tables, seen, wanted)
            outcomes.add(seen if isinstance(seen, str) else "rows")
    assert "rows" in outcomes and "TableNotReadable" in outcomes, outcomes
    world.store.close()
