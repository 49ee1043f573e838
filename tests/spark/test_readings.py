"""Texts of views on Spark: the answers of `spark_readings` are asked again, and the plans' own texts give them too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from epochlog.spark.view_engine import ViewSession
from epochlog.views.compiled_plan import spark_text
from epochlog.views.derivation import derive
from epochlog.views.normal_form import normal_form
from epochlog.views.parsing import parse
from epochlog.views.table_names import NOW
from spark_needs import is_read_alike
from spark_readings import (
    COMMENT_ANSWERS,
    COMMENTS,
    EXPRESSIONS,
    QUERIES,
    SCHEMAS,
    STAR_ANSWERS,
    STARS,
    TABLES,
    TEXT_ANSWERS,
    TEXTS,
    columns_of,
    in_order,
    kind,
    with_comment,
)

pytestmark = [pytest.mark.spark, pytest.mark.slow]


SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
}


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    """Return a session whose texts are raw ones, over views of the tables' names."""
    own = spark.newSession()
    for session in (own, ViewSession(own).session):
        for name, value in SETTINGS.items():
            session.conf.set(name, value)
    for name, rows in TABLES.items():
        own.createDataFrame(rows).coalesce(1).createOrReplaceTempView(name)
    return own


def read(session: SparkSession, text: str) -> tuple[str | None, str | None]:
    """Return the value of a text that Spark reads as one literal, and the expression that it reads."""
    jvm: Any = session._jsparkSession
    parser = jvm.sessionState().sqlParser()
    try:
        expression = parser.parseExpression(text)
    except Exception:  # each error of the parser is an answer
        return None, None
    is_text = expression.getClass().getSimpleName() == "Literal" and expression.dataType().simpleString() == "string"
    return expression.value().toString() if is_text else None, expression.sql()


def test_spark_reads_literals_comments_and_stars_so(session: SparkSession) -> None:
    texts = {text: read(session, text)[0] for text in TEXTS if is_read_alike(text)}
    answers = {text: value for text, value in TEXT_ANSWERS.items() if is_read_alike(text)}
    assert {text: value for text, value in texts.items() if value is not None} == answers
    comments = {word: read(session, with_comment(word))[1] for word in COMMENTS}
    read_ones = {word: text for word, text in comments.items() if text is not None and "unresolvedstar" not in text}
    assert read_ones == COMMENT_ANSWERS
    assert {sql: " ".join(session.sql(sql).columns) for sql in STARS} == STAR_ANSWERS


def test_spark_gives_expressions_these_values(session: SparkSession) -> None:
    raw = {text: answer for text, answer in EXPRESSIONS.items() if is_read_alike(text)}
    with ViewSession(session).named(frames(session)) as run:
        for answers in (raw, EXPRESSIONS):
            listed = ", ".join(f"{text} AS c{number}" for number, text in enumerate(answers))
            sql = f"SELECT id, {listed} FROM t"
            frame = session.sql(sql) if answers is raw else run(spark_text(derive(sql, SCHEMAS, ["id"]).query()))
            row = frame.where("id = 1").toArrow()
            seen = [(kind(column.type), column[0].as_py()) for column in row.columns[1:]]
            assert dict(zip(answers, seen, strict=True)) == answers
        listed = ", ".join(f"{text} AS c{number}" for number, text in enumerate(TEXT_ANSWERS))
        row = run(spark_text(derive(f"SELECT i4, {listed} FROM d", SCHEMAS, ["i4"]).query())).limit(1).toArrow()
        values = [column[0].as_py() for column in row.columns[1:]]
        assert dict(zip(TEXT_ANSWERS, values, strict=True)) == TEXT_ANSWERS


def frames(session: SparkSession) -> Mapping[str, DataFrame]:
    own = ViewSession(session).session
    return {NOW + name: own.createDataFrame(rows).coalesce(1) for name, rows in TABLES.items()}


def test_spark_gives_queries_these_rows(session: SparkSession) -> None:
    with ViewSession(session).named(frames(session)) as run:
        for sql, answer in QUERIES.items():
            first = normal_form(parse(sql), SCHEMAS).outputs[0]
            raw = [session.sql(sql)] if is_read_alike(sql) else []
            for frame in (*raw, run(spark_text(derive(sql, SCHEMAS, [first]).query()))):
                rows = frame.toArrow()
                assert (columns_of(rows), in_order(rows)) == answer, sql


NULLS_IGNORED = {
    "FIRST_VALUE(v) IGNORE NULLS OVER (ORDER BY g)": [5, 5, 5, 5],
    "NTH_VALUE(v, 2) IGNORE NULLS OVER (ORDER BY g)": [None, None, None, 7],
    "LAST_VALUE(v) IGNORE NULLS OVER (ORDER BY g, id ROWS UNBOUNDED PRECEDING)": [None, 5, 5, 7],
}
"""Values of the rows below; any order of the rows with equal g gives them."""


def test_frames_end_at_the_last_of_equal_rows(session: SparkSession) -> None:
    values = "VALUES (1, 1, NULL), (2, 1, 5), (3, 1, NULL), (4, 2, 7) AS t(id, g, v)"
    listed = ", ".join(f"{text} AS c{number}" for number, text in enumerate(NULLS_IGNORED))
    sql = f"SELECT id, {listed} FROM t"
    own = ViewSession(session)
    with own.named({NOW + "t": own.session.sql(f"SELECT * FROM {values}")}) as run:
        for frame in (
            session.sql(f"SELECT id, {listed} FROM {values}"),
            run(spark_text(derive(sql, SCHEMAS, ["id"]).query())),
        ):
            rows = frame.orderBy("id").toArrow()
            assert [column.to_pylist() for column in rows.columns[1:]] == list(NULLS_IGNORED.values())
