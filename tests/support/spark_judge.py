"""Spark as the judge of texts: many texts over small tables in one session and few jobs.

    PYTHONPATH=tests/support:examples .venv/bin/python -m spark_judge

asks it for the answers that tests need and `confirmed` does not keep, and writes them; with `all` for all answers.
"""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from functools import reduce
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame, SparkSession

from confirmed import NotConfirmed, Reply, SparkRefusal, answer_of, keep, kept
from corner_tables import tables_of_set
from epochlog.spark.types import arrow_schema, spark_schema, to_spark
from epochlog.spark.view_engine import keeping_active_session

SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.caseSensitive": "false",
    "spark.sql.variable.substitute": "false",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
}
"""Settings that decide values."""
FOR_FEW_ROWS = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
}
"""Settings for tables of a few rows, on which planning exchanges and compiling code take most of the time."""
TEXTS_OF_JOB = 25


class SparkJudge:
    """Session of its own, with one set of tables at a time."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self.session = spark.newSession()
        for name, value in {**SETTINGS, **FOR_FEW_ROWS}.items():
            self.session.conf.set(name, value)

    def ask(self, tables: Mapping[str, pa.Table], texts: Sequence[str]) -> dict[str, Reply]:
        """Return Spark's reply to each text over the tables."""
        with keeping_active_session(self._spark), _quiet():
            for name, rows in tables.items():
                schema = spark_schema(name, rows.schema, ())
                frame = self.session.createDataFrame(to_spark(name, rows, arrow_schema(schema)), schema)
                frame.coalesce(1).createOrReplaceTempView(name)
            replies: dict[str, Reply] = {}
            for first in range(0, len(texts), TEXTS_OF_JOB):
                replies |= self._ask(texts[first : first + TEXTS_OF_JOB])
            for name in tables:
                self.session.catalog.dropTempView(name)
        return replies

    def _ask(self, texts: Sequence[str]) -> dict[str, Reply]:
        """SparkAnswer the texts in one job; one by one if it fails."""
        replies: dict[str, Reply] = {}
        frames: dict[str, DataFrame] = {}
        for sql in texts:
            try:
                frames[sql] = self.session.sql(sql)
            except (PySparkException, Py4JJavaError) as error:
                replies[sql] = _refusal(error)
        plain = {sql: frame for sql, frame in frames.items() if not _is_nested(frame)}
        if len(plain) > 1:
            try:
                replies |= _together(plain)
                frames = {sql: frame for sql, frame in frames.items() if sql not in plain}
            except (PySparkException, Py4JJavaError):
                pass  # one of the texts, of which the others do not tell
        for sql, frame in frames.items():
            try:
                replies[sql] = answer_of(frame.toArrow(), sql)
            except (PySparkException, Py4JJavaError) as error:
                replies[sql] = _refusal(error)
        return replies


def _is_nested(frame: DataFrame) -> bool:
    return any(kind.startswith(("array", "map", "struct")) for _, kind in frame.dtypes)


def _together(frames: Mapping[str, DataFrame]) -> dict[str, Reply]:
    """Return the answers of one job, which unites the rows of all texts, each row a list of its values' texts."""
    parts = [
        frame.selectExpr(
            f"{number} AS number", f"array({', '.join(_as_text(name, kind) for name, kind in frame.dtypes)})"
        )
        for number, frame in enumerate(frames.values())
    ]
    rows: list[list[list[str | None]]] = [[] for _ in frames]
    for number, row in reduce(DataFrame.unionAll, parts).collect():
        rows[number].append(row)
    return {
        sql: answer_of(_parsed(arrow_schema(frame.schema), own), sql)
        for (sql, frame), own in zip(frames.items(), rows, strict=True)
    }


def _as_text(name: str, kind: str) -> str:
    column = "`" + name.replace("`", "``") + "`"
    return f"hex({column})" if kind == "binary" else f"cast({column} AS string)"


def _parsed(schema: pa.Schema, rows: Sequence[Sequence[str | None]]) -> pa.Table:
    """Return rows of the texts of values as a table."""
    columns = list(zip(*rows, strict=True)) or [() for _ in schema]
    arrays = [
        pa.array([None if text is None else _value(text, field.type) for text in column], field.type)
        for column, field in zip(columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def _value(text: str, kind: pa.DataType) -> Any:
    if pa.types.is_integer(kind):
        return int(text)
    if pa.types.is_floating(kind):
        return float(text)
    if pa.types.is_boolean(kind):
        return text == "true"
    if pa.types.is_decimal(kind):
        return Decimal(text)
    if pa.types.is_binary(kind):
        return bytes.fromhex(text)
    if pa.types.is_date(kind):
        return dt.date.fromisoformat(text)
    if pa.types.is_timestamp(kind):
        moment = dt.datetime.fromisoformat(text)
        return moment.replace(tzinfo=dt.UTC) if kind.tz else moment
    return text


def _refusal(error: Exception) -> SparkRefusal:
    name = error.getCondition() if isinstance(error, PySparkException) else None
    return SparkRefusal(name or type(error).__name__)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep pyspark from logging the errors of texts that it refuses."""
    logger = PySparkLogger.getLogger("SQLQueryContextLogger")
    was, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = was


def main(arguments: Sequence[str]) -> None:
    """Ask for the answers that are missing, or for all, and write them; find the pairs of kinds anew if asked to."""
    import epochlog as el
    import kind_pairs
    from judged_texts import texts_of_sets

    spark = el.spark("judge of texts", master="local[1]", spark__ui__enabled="false")
    spark.sparkContext.setLogLevel("OFF")
    judge = SparkJudge(spark)
    for name, texts in texts_of_sets().items():
        if name == "pairs" and "pairs" in arguments:
            product = kind_pairs.Product()
            texts = kind_pairs.asked_texts((case, product.verdict(case)) for case in kind_pairs.cases())
        tables, known = tables_of_set(name), {} if "all" in arguments else _known(name)
        replies = judge.ask(tables, [sql for sql in texts if sql not in known])
        print(f"{name}: {len(replies)} of {len(texts)} texts asked")
        keep(name, tables, {sql: replies.get(sql) or known[sql] for sql in texts})
    spark.stop()


def _known(name: str) -> Mapping[str, Reply]:
    try:
        return kept(name).replies
    except NotConfirmed:
        return {}


if __name__ == "__main__":
    main(sys.argv[1:])
