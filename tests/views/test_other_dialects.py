"""Texts that sqlglot takes from other engines: a view refuses what Spark does not read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from epochlog.errors import InvalidInput
from epochlog.views import spark_dialect
from epochlog.views.parsing import parse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REFUSED = (
    *("SELECT g AS k, SUM(v) AS v FROM y GROUP BY g |> WHERE v > 5", "SELECT id FROM y LIMIT 3 |> WHERE v = 7"),
    *("SELECT id, v FROM y |> ORDER BY v, id |> LIMIT 2", "SELECT id FROM y |> UNION ALL SELECT 5L"),
    *(
        "SELECT id, FROM y",
        "SELECT id FROM y,",
        "SELECT id FROM (SELECT id, FROM y) q",
        "SELECT id FROM y GROUP BY id,",
    ),
    *("SELECT id FROM y LIMIT 3, 1", "SELECT id FROM y OFFSET 2 LIMIT 2", "SELECT id FROM y OFFSET 2 ROWS"),
    *("SELECT y.id FROM y OUTER JOIN x ON y.id = x.id", "SELECT id FROM y WHERE v IN ()"),
    *("SELECT CAST(id AS TIMESTAMP WITHOUT TIME ZONE) FROM y", "SELECT CAST(id AS TIMESTAMP WITH TIME ZONE) FROM y"),
    *("SELECT GREATEST(v) FROM y", "SELECT LEAST(v) FROM y", "SELECT IF(v > 1, v) FROM y"),
    *("SELECT INT '5' FROM y", "SELECT BIGINT '5' FROM y", "SELECT DOUBLE '5' FROM y"),
    *("SELECT CAST(v AS DECIMAL(39, 2)) FROM y", "SELECT CAST(v AS DECIMAL(-1)) FROM y"),
    *("SELECT CAST(v AS DECIMAL(3, 4)) FROM y", "SELECT CAST(v AS DECIMAL(39)) FROM y"),
)
OTHER_TYPES = (
    *("INT64", "INT8", "INT4", "INT2", "TEXT", "DOUBLE PRECISION", "FLOAT8", "FLOAT4", "TIMESTAMP(3)", "TIMESTAMPTZ"),
    *("BOOL", "NUMBER", "NUMBER(10, 2)", "STRING(5)", "INT(5)", "BYTEA", "BLOB", "DATETIME", "NVARCHAR", "HUGEINT"),
    *("UINT", "UUID", "JSON", "CHARACTER VARYING(3)"),
)
OWN_TYPES = (
    *("BOOLEAN", "BYTE", "TINYINT", "SHORT", "SMALLINT", "INT", "INTEGER", "LONG", "BIGINT", "REAL", "FLOAT", "DOUBLE"),
    *("DEC(4, 1)", "DECIMAL", "DECIMAL(38)", "DECIMAL(38, 38)", "NUMERIC(3, 0)", "STRING", "BINARY", "DATE"),
    *("TIMESTAMP", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ"),
)


@pytest.mark.parametrize("sql", REFUSED)
def test_a_clause_that_spark_does_not_read_is_refused(sql: str) -> None:
    """A view lost groups: WHERE behind a pipe was read as WHERE of the query before it."""
    with pytest.raises(InvalidInput):
        parse(sql)


@pytest.mark.parametrize("name", OTHER_TYPES)
def test_a_type_of_another_engine_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput):
        parse(f"SELECT CAST(v AS {name}) AS r FROM y")


@pytest.mark.parametrize("name", OWN_TYPES)
def test_each_type_of_spark_is_read(name: str) -> None:
    parse(f"SELECT CAST(v AS {name}) AS r FROM y")


def test_names_of_types_are_names_of_columns_too() -> None:
    names = ["time", "json", "object", "text", "number", "date", "timestamp", "char", "int", "string", "offset", "bool"]
    assert parse(f"SELECT {', '.join(names)} FROM y").named_selects == names


@pytest.mark.planted
def test_texts_that_are_taken_as_they_come_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_dialect, "_require_own", lambda tokens, sql: None)
    with pytest.raises(pytest.fail.Exception):
        test_a_clause_that_spark_does_not_read_is_refused(REFUSED[0])


def functions_read() -> Iterator[str]:
    """Yield the names of functions that the dialect reads as one that a view can have."""
    arguments = ("", "a", "a, b", "a, b, c", "'DAY', a", "a, 'DAY'", "a, DAY", "a, 1", "a AS INT", "DAY, 1, a")
    parser = spark_dialect.SparkText.Parser
    for name in {*parser.FUNCTIONS, *parser.FUNCTION_PARSERS}:
        for call in (f"{name}({given}){over}" for given in arguments for over in ("", " OVER (ORDER BY b)")):
            try:
                parse(f"SELECT {call} AS r FROM y")
            except InvalidInput:
                continue
            yield name
            break


@pytest.mark.spark
def test_each_function_that_is_read_is_spark_s(spark: SparkSession) -> None:
    own = {row[0].upper() for row in spark.sql("SHOW FUNCTIONS").collect()} | {"TRY_CAST"}  # of the grammar
    read = set(functions_read())
    assert len(read) > 60
    assert read - own == set()


@pytest.mark.spark
def test_spark_refuses_the_refused_texts_and_types(spark: SparkSession) -> None:
    """Those that Spark reads otherwise than SQL does are refused with another text to write."""
    spark.range(3).selectExpr("id", "id AS v", "id AS g").createOrReplaceTempView("y")
    spark.range(3).createOrReplaceTempView("x")
    texts = [sql for sql in REFUSED if "|>" not in sql and "WITHOUT" not in sql]
    taken: list[str] = []
    for sql in [*texts, *(f"SELECT CAST(v AS {name}) AS r FROM y" for name in OTHER_TYPES)]:
        try:
            spark.sql(sql)
        except Exception:
            continue
        taken.append(sql)
    spark.catalog.dropTempView("x")
    spark.catalog.dropTempView("y")
    assert taken == []
