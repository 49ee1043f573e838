"""Columns whose names differ by case alone: each door of Spark takes them, or says what to write."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Row
from pyspark.sql.types import ArrayType, LongType, StructField, StructType

import epochlog as el
from epochlog.spark.catalog.ddl import meant_column
from epochlog.spark.catalog.table import told_apart
from epochlog.spark.errors import find_epochlog_error
from spark_needs import has
from spark_store import refusal

pytestmark = [pytest.mark.spark, pytest.mark.medium]
TWINS = {"k": (["k", "K", "v"], ["k"]), "v": (["i", "v", "V"], ["i"]), "both": (["k", "K", "v"], ["k", "K"])}


def rows(names: list[str], *numbers: int) -> pa.Table:
    """Rows whose columns have n, 10 n and 100 n."""
    columns = [pa.array([number * 10**at for number in numbers]) for at in range(len(names))]
    return pa.table(columns, pa.schema([(name, pa.int64()) for name in names]))


@pytest.fixture
def sensitive(lake: Any) -> Iterator[None]:
    lake.spark.conf.set("spark.sql.caseSensitive", "true")
    yield
    lake.spark.conf.unset("spark.sql.caseSensitive")


@pytest.mark.parametrize("kind", TWINS)
def test_what_spark_refuses_names_both_columns(lake: Any, kind: str) -> None:
    """Its own errors name one of them twice, or in lower case, and no way out."""
    spark, (names, key) = lake.spark, TWINS[kind]
    table, twins = lake.store.create_table("t", rows(names).schema, key), ["vV", "kK"]["k" in names]
    begin = table.upsert(rows(names, 1, 2, 3))
    el.catalog(spark, lake.store)
    message = f"InvalidInput: lake.t has the columns '{twins[0]}' and '{twins[1]}', which Spark takes for one name. Set"
    for statement in (
        f"SELECT {twins[1]} FROM lake.t",
        f"SELECT count(*) FROM lake.t WHERE {twins[0]} = 1",
        f"DELETE FROM lake.t WHERE {twins[0]} = 1",
        f"DELETE FROM lake.t WHERE `{twins[1]}` + 0 = 10",
        f"INSERT INTO lake.t ({', '.join(names)}) VALUES (4, 40, 400)",
    ):
        assert refusal(lambda statement=statement: spark.sql(statement).collect()).startswith(message), statement
    spark.sql("CREATE OR REPLACE TEMPORARY VIEW twins (a, b, c) AS SELECT * FROM lake.t")
    statement = "CREATE OR REPLACE TEMPORARY VIEW twins AS SELECT * FROM lake.t"
    assert refusal(lambda: spark.sql(statement)).startswith(message)
    sunk = spark.createDataFrame(rows(names, 5))
    el.sink({"t": None}, app_id="a", path=lake.root)(sunk, 0)
    lake.write(spark.createDataFrame(rows(names, 6)), "t")
    spark.sql("INSERT INTO lake.t VALUES (7, 70, 700)")
    expected = rows(names, 1, 2, 3, 5, 6, 7)
    assert table.to_arrow().to_pylist() == expected.to_pylist()
    present = sorted(zip(*expected.to_pydict().values(), strict=True))
    if has("changes"):
        changed = spark.sql(f"SELECT * FROM lake.t CHANGES FROM VERSION {begin}").collect()
        assert sorted(row[:3] for row in changed) == present
    assert sorted(tuple(row) for row in lake.read("t").collect()) == present


@pytest.mark.parametrize("kind", TWINS)
@pytest.mark.usefixtures("sensitive")
def test_a_case_sensitive_session_takes_them_for_two(lake: Any, kind: str) -> None:
    spark, (names, key) = lake.spark, TWINS[kind]
    table = lake.store.create_table("t", rows(names).schema, key)
    table.upsert(rows(names, 1, 2, 3))
    el.catalog(spark, lake.store)
    quoted = [f"`{name}`" for name in names]
    for at, name in enumerate(quoted):
        assert [row[0] for row in spark.sql(f"SELECT {name} FROM lake.t ORDER BY 1").collect()] == [
            number * 10**at for number in (1, 2, 3)
        ]
    spark.sql(f"DELETE FROM lake.t WHERE {quoted[1]} = 10")
    spark.sql(f"DELETE FROM lake.t WHERE {quoted[0]} = 10 OR {quoted[2]} + 0 = 200")
    spark.sql(f"INSERT INTO lake.t ({', '.join(quoted)}) VALUES (4, 40, 400)")
    assert table.to_arrow().to_pylist() == rows(names, 3, 4).to_pylist()


STATEMENTS = {
    "SELECT * FROM lake.t": ["id", "k", "K", "v", "s"],
    "SELECT v FROM lake.t WHERE v > 0": ["v"],
    "SELECT * EXCEPT (v) FROM lake.t": ["id", "k", "K", "s"],
    "SELECT b.* FROM lake.t a JOIN lake.t b ON a.id = b.id": ["id", "k", "K", "v", "s"],
    "SELECT c3 FROM lake.t AS t(c1, c2, c3, c4, c5) WHERE c2 = 2": ["K"],
    "SELECT * FROM lake.t VERSION AS OF {epoch}": ["id", "k", "K", "v", "s"],
}


def test_statements_that_name_neither_read_both(lake: Any) -> None:
    """Spark compares the table with that of the analysis before each query, and refused such names at any depth."""
    spark, inner = lake.spark, pa.struct([("a", pa.int64()), ("A", pa.int64())])
    fields = [(name, pa.int64()) for name in ("id", "k", "K", "v")]
    table = lake.store.create_table("t", pa.schema([*fields, ("s", pa.map_(pa.string(), pa.list_(inner)))]), ["id"])
    row = {"id": 1, "k": 2, "K": 3, "v": 4, "s": {"x": [{"a": 5, "A": 6}]}}
    epoch = table.upsert([{**row, "s": list(row["s"].items())}])
    el.catalog(spark, lake.store)
    shown = {**row, "s": {"x": [Row(a=5, A=6)]}}
    for statement, names in STATEMENTS.items():
        assert [tuple(line) for line in spark.sql(statement.format(epoch=epoch)).collect()] == [
            tuple(shown[name] for name in names)
        ], statement
    assert spark.sql("SELECT count(*) FROM lake.t").first()[0] == spark.table("lake.t").count() == 1
    spark.sql("INSERT OVERWRITE lake.t SELECT * FROM lake.t")
    assert [tuple(line) for line in spark.table("lake.t").collect()] == [tuple(shown.values())]
    analysed = spark.table("lake.t"), spark.table("lake.t")
    table.alter(add=[pa.field("w", pa.int64())])
    if has("refresh"):
        assert [tuple(line) for line in analysed[0].collect()] == [tuple(shown.values())], "as of any table"
    else:
        assert refusal(analysed[0].collect).startswith("SchemaChanged: "), "Spark keeps the columns of a frame"
    table.alter(rename={"K": "other", "k": "K"})
    with pytest.raises(PySparkException, match="INCOMPATIBLE" if has("refresh") else "SchemaChanged"):
        analysed[1].collect()


def test_create_table_takes_the_column_of_these_letters_first() -> None:
    columns = StructType([StructField(name, LongType()) for name in ("k", "K", "Id", "é")])
    named = {"k": "k", "K": "K", "iD": "Id", "É": "é", "none": "none"}
    assert {name: meant_column(columns, name) for name in named} == named


def test_names_that_are_told_apart_are_told_apart_for_good() -> None:
    """The names by which Spark compares a table do not depend on the columns behind them."""
    rng, letters = random.Random(5), ["a", "A", "b", "B", "ß", "ẞ", "é"]
    for _ in range(200):
        names = rng.sample(letters, rng.randrange(1, len(letters)))
        inner = StructType([StructField(name, LongType()) for name in names])
        kind = StructType([StructField(name, ArrayType(inner)) for name in names])
        apart = told_apart(kind)
        assert apart[0].dataType == ArrayType(told_apart(inner))
        assert len({name.lower() for name in apart.names}) == len(names)
        assert (apart is kind) == (len({name.lower() for name in names}) == len(names))
        assert told_apart(StructType(kind.fields[:-1])).names == apart.names[:-1]


def test_columns_that_several_tables_have_are_left_to_spark(lake: Any) -> None:
    lake.store.create_table("t", rows(["k", "v", "w"]).schema, ["k"])
    el.catalog(lake.spark, lake.store)
    with pytest.raises(PySparkException, match="AMBIGUOUS_REFERENCE") as caught:
        lake.spark.sql("SELECT k FROM lake.t a JOIN lake.t b ON a.k = b.k")
    assert find_epochlog_error(caught.value) is None
