"""Columns whose names differ by case alone: each door of Spark takes them, or says what to write."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

import epochlog as el
from epochlog.spark.errors import find_epochlog_error
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
    with pytest.raises(PySparkException, match="COLUMN_ALREADY_EXISTS"):  # which docs/SPARK.md explains
        spark.sql("SELECT * FROM lake.t").collect()
    sunk = spark.createDataFrame(rows(names, 5))
    el.sink({"t": None}, app_id="a", path=lake.root)(sunk, 0)
    lake.write(spark.createDataFrame(rows(names, 6)), "t")
    spark.sql("INSERT INTO lake.t VALUES (7, 70, 700)")
    expected = rows(names, 1, 2, 3, 5, 6, 7)
    assert table.to_arrow().to_pylist() == expected.to_pylist()
    changed = spark.sql(f"SELECT * FROM lake.t CHANGES FROM VERSION {begin}").collect()
    assert sorted(row[:3] for row in changed) == sorted(zip(*expected.to_pydict().values(), strict=True))
    assert sorted(tuple(row) for row in lake.read("t").collect()) == sorted(row[:3] for row in changed)


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


def test_columns_that_several_tables_have_are_left_to_spark(lake: Any) -> None:
    lake.store.create_table("t", rows(["k", "v", "w"]).schema, ["k"])
    el.catalog(lake.spark, lake.store)
    with pytest.raises(PySparkException, match="AMBIGUOUS_REFERENCE") as caught:
        lake.spark.sql("SELECT k FROM lake.t a JOIN lake.t b ON a.k = b.k")
    assert find_epochlog_error(caught.value) is None
