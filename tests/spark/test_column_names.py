"""Columns of any name on Spark: with dots, backticks, spaces, quotes and signs, as keys, as values and in views."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

import epochlog as el
from epochlog.spark.column_names import quoted
from epochlog.spark.view_engine import keeping_active_session
from spark_needs import has

pytestmark = pytest.mark.spark
NAMES = (
    *(
        "k.1",
        "a`b",
        "``",
        "c d",
        "*",
        "a.*",
        "it's",
        'say "x"',
        "${env:HOME}",
        "back\\slash",
        "line\nbreak",
        "semi;colon",
    ),
    *("--", "/*", "1", "select", "ünïcode", ".", "a,b", "x[0]", "(y)", "%s", ":p", "?", "@v", " lead", "trail ", "$"),
)
"""Names that Spark's parsers of names, expressions, statements or variables could take for something else."""


def schema_of(names: Sequence[str]) -> pa.Schema:
    return pa.schema([(name, pa.int64()) for name in names])


def rows(names: Sequence[str], *numbers: int, shift: int = 0) -> pa.Table:
    """Rows of which the row `n` has n in the first half of the columns, and n + shift in the others."""
    half = len(names) // 2
    return pa.table([[n + (shift if at >= half else 0) for n in numbers] for at in range(len(names))], schema_of(names))


def first_values(table: pa.Table) -> list[tuple[Any, Any]]:
    return sorted(zip(table[0].to_pylist(), table[len(table.schema) - 1].to_pylist(), strict=True))


@pytest.fixture(params=["keys first", "values first"])
def names(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """All names: the first half are the key, and each name is of the key in one of the two cases."""
    half = len(NAMES) // 2
    return NAMES if request.param == "keys first" else NAMES[half:] + NAMES[:half]


@pytest.mark.medium
def test_any_name_goes_through_each_door(lake, names: tuple[str, ...]) -> None:
    """DELETE, CHANGES and `el.sink` ended in errors of Java or py4j with a key `k.1`."""
    spark, key = lake.spark, names[: len(names) // 2]
    table = lake.store.create_table("t", schema_of(names), list(key))
    el.catalog(spark, lake.store)
    begin = table.upsert(rows(names, 1, 2, 3, 4, 5))
    written = [name for name in names if "${" not in name]  # Spark puts the value there, in the user's own statements
    conditions = " AND ".join(f"{quoted(name)} = 1" for name in written)
    spark.sql(f"DELETE FROM lake.t WHERE {conditions}")
    spark.sql(f"DELETE FROM lake.t WHERE {quoted(key[0])} IN (2, 9) AND {quoted(names[-1])} + 0 = 2")
    assert first_values(table.to_arrow()) == [(3, 3), (4, 4), (5, 5)]
    listed = ", ".join(map(quoted, written))
    if has("changes"):
        changes = spark.sql(f"SELECT {listed}, _change_type FROM lake.t CHANGES FROM VERSION {begin}")
        kinds = sorted((row[0], row[-1]) for row in changes.collect())[:3]
        assert kinds == [(1, "delete"), (1, "insert"), (2, "delete")]
    el.sink({"t": None}, app_id="a", path=lake.root)(spark.createDataFrame(rows(names, 3, 7, shift=1)), 0)
    assert first_values(table.to_arrow()) == [(3, 4), (4, 4), (5, 5), (7, 8)]
    lake.write(spark.createDataFrame(rows(names, 5, shift=2)), "t", columnList=json.dumps(names), keys=json.dumps(key))
    read = lake.read("t", columns=json.dumps([key[0], names[-1]]), filter=f"{quoted(key[-1])} = 5")
    assert [tuple(row) for row in read.collect()] == [(5, 7)]
    selected = spark.sql(
        f"SELECT {quoted(names[-1])} FROM lake.t WHERE {quoted(key[0])} IN (4, 7) AND {quoted(key[1])} > 4"
    )
    assert [tuple(row) for row in selected.collect()] == [(8,)]


@pytest.mark.medium
def test_a_table_is_created_and_shown_in_sql(lake) -> None:
    spark, key = lake.spark, ["k.1", "a,b", " lead"]
    el.catalog(spark, lake.store)
    columns = ", ".join(f"{quoted(name)} BIGINT NOT NULL" for name in key)
    spark.sql(f"CREATE TABLE lake.made ({columns}, v INT) TBLPROPERTIES (primary_key = '{json.dumps(key)}')")
    assert lake.store.table("made").primary_key == key
    (shown,) = spark.sql("SHOW CREATE TABLE lake.made").collect()
    spark.sql(shown[0].replace("lake.made", "lake.again"))
    assert lake.store.table("again").schema == lake.store.table("made").schema
    assert lake.store.table("again").primary_key == key


def views_of(names: Sequence[str]) -> dict[str, tuple[str, list[str]]]:
    """Return the query and the primary key of views by name, for each kind of refresh."""
    half, first, second, third, *_, last = len(names) // 2, *map(quoted, names)
    renamed = ", ".join(f"{quoted(name)} AS {quoted(other)}" for name, other in zip(names, names[::-1], strict=True))
    ranked = f"ROW_NUMBER() OVER (PARTITION BY {last} ORDER BY {second}, {first})"
    queries = {
        "renamed": (f"SELECT {renamed} FROM t", names[::-1][:half]),
        "summed": (
            f"SELECT {last} AS {first}, SUM({second}) AS {third}, COUNT(*) AS n FROM t GROUP BY {last}",
            names[:1],
        ),
        "largest": (f"SELECT {last}, MAX({second}) AS {third} FROM t GROUP BY {last}", names[-1:]),
        "joined": (f"SELECT t.{first}, u.{last} FROM t JOIN u ON t.{second} = u.{first}", names[:1]),
        "ranked": (f"SELECT {first}, {ranked} AS {third} FROM t", names[:1]),
    }
    return {name: (query, list(key)) for name, (query, key) in queries.items()}


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True))


def rows_by_spark(lake, sql: str) -> list[tuple[Any, ...]]:
    """Return the rows that Spark itself gives to a text over the newest rows of t and u."""
    with keeping_active_session(lake.spark):
        session = lake.spark.newSession()
        session.conf.set("spark.sql.variable.substitute", "false")
        for name in ("t", "u"):
            session.createDataFrame(lake.store.table(name).to_arrow()).coalesce(1).createOrReplaceTempView(name)
        return sorted(tuple(row) for row in session.sql(sql).collect())


@pytest.mark.medium
def test_views_have_columns_of_any_name(lake) -> None:
    """An alias with a backtick could be made, and was never refreshed."""
    names = tuple(name for name in NAMES if "${" not in name)
    for name in ("t", "u"):
        lake.store.create_table(name, schema_of(names), list(names[: len(names) // 2])).upsert(rows(names, 1, 2, 3))
    views = {name: lake.store.create_view(name, *made) for name, made in views_of(names).items()}
    lake.store.checkpoint()
    wrong: dict[str, str] = {}
    for change in (lambda: None, lambda: lake.store.table("t").upsert(rows(names, 2, 4, shift=1))):
        change()
        lake.store.checkpoint()
        for name, view in views.items():
            try:
                assert view.step(lake.spark)
                assert rows_of(lake.store.table(name).to_arrow()) == rows_by_spark(lake, view.sql), "rows"
            except Exception as error:
                wrong[name] = f"{type(error).__name__}: {error}"[:300]
    assert not wrong
