"""Reads of Spark that name no policy: loads by `format`, and queries of a catalog."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import epochlog as el
from default_doors import ROOTS, VIEWS, DefaultWorld, Doors, Seen, State, error_name
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
            # A catalog of all tables aligns those that take part in `global`.
            policy = "global" if (tables, own) == (None, "aligned") else own
            wanted, seen = world.wanted(tables, policy), seen_in_spark(doors, door, tables)
            world.now_ms = then_ms
            assert seen == wanted, ("differs", door, own, tables, seen, wanted)
            outcomes.add(seen if isinstance(seen, str) else "rows")
    assert "rows" in outcomes and "TableNotReadable" in outcomes, outcomes
    world.store.close()
