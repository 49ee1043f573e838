"""Plans of views on Spark: random queries and named cases, each step compared with the query's rows in DuckDB."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import duckdb
import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from sqlglot import exp

from confirmed import are_of_this_spark, confirmed, kept
from epochlog.errors import InvalidInput
from epochlog.spark.view_engine import ViewSession
from epochlog.views.compiled_plan import spark_text
from epochlog.views.derivation import TOUCHED, ViewPlan, derive
from epochlog.views.table_names import IS_NEW, NOW
from seeds import seeds
from view_cases import CASES, OF_ROWS
from view_world import (
    SCHEMAS,
    DuckDBEngine,
    Outcome,
    Row,
    Rows,
    columns_of,
    plan_of_case,
    play,
    random_plan,
    random_sums,
)

pytestmark = pytest.mark.spark

QUERIES = int(os.environ.get("EPOCHLOG_VIEW_QUERIES", "500"))
"""Random queries of a campaign, from the seed EPOCHLOG_VIEW_SEED on."""
FIRST = int(os.environ.get("EPOCHLOG_VIEW_SEED") or random.SystemRandom().randrange(10**9))
MOST_FAILED = 0.01
"""Largest share of the accepted queries in which Spark may fail later."""
SETTINGS = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
}
"""Settings for tables of a few rows, on which generating and compiling code takes most of the time."""


class NoAnswer(Exception):
    """Spark cannot run a query as it was written, which a plan of it can be free of; or fails in one of a plan."""


OWN_ERRORS = (
    "[INTERNAL_ERROR",
    "[UNSUPPORTED_SUBQUERY_EXPRESSION_CATEGORY",
    "java.util.NoSuchElementException: key not found",  # of its optimizer
)
"""Parts of errors by which Spark says that it cannot answer a query that it should."""


@contextmanager
def spark_refusals_told() -> Iterator[None]:
    """Raise NoAnswer for a bug in Spark, and for a subquery that it refuses only over tables with rows."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        if any(name in str(error) for name in OWN_ERRORS):
            raise NoAnswer from error
        raise


class SparkEngine:
    """Spark as the engine of plans: their queries run as the library runs them, over views of literal rows."""

    def __init__(self, spark: SparkSession) -> None:
        self._owner = spark.newSession()
        self._queries = ViewSession(self._owner)
        for session in (self._owner, self._queries.session):
            for name, value in SETTINGS.items():
                session.conf.set(name, value)
        self._frames: dict[str, DataFrame] = {}
        self._loaded: dict[str, list[Row]] = {}

    def load(self, contents: Mapping[str, list[Row]]) -> None:
        for name, rows in contents.items():
            if self._loaded.get(name) != rows:
                self._frames[name] = self._queries.session.sql(literal_rows(columns_of(name), rows))
                self._loaded[name] = rows

    def touched(self, query: exp.Expr) -> list[Row]:
        with spark_refusals_told(), self._queries.named(self._frames) as run:
            values = run(spark_text(query)).toArrow()
        self.put(TOUCHED, values)
        return list(zip(*(column.to_pylist() for column in values.columns), strict=True))

    def rows(self, query: exp.Expr) -> list[Row]:
        with spark_refusals_told(), self._queries.named(self._frames) as run:
            return [tuple(row) for row in run(spark_text(query)).collect()]

    def arrow(self, query: exp.Expr) -> pa.Table:
        with spark_refusals_told(), self._queries.named(self._frames) as run:
            return run(spark_text(query)).toArrow()

    def put(self, name: str, rows: pa.Table) -> None:
        self._frames[name] = self._queries.session.createDataFrame(rows).hint("broadcast")

    def accepts(self, plan: ViewPlan) -> bool:
        """Return True if a store would make a view of the query on Spark."""
        self.load({NOW + name: [] for name in plan.tables})
        try:
            self.rows(plan.query())
        except InvalidInput:
            return False
        return True

    def judge(self, sql: str, tables: Mapping[str, Rows]) -> list[Row]:
        """Return the rows of a query as it was written. Raises NoAnswer if Spark cannot run it."""
        for name, rows in tables.items():
            self._owner.sql(literal_rows(columns_of(name), list(rows.values()))).createOrReplaceTempView(name)
        try:
            return [tuple(row) for row in self._owner.sql(sql).collect()]
        except (PySparkException, Py4JJavaError) as error:
            raise NoAnswer(sql) from error


def literal_rows(columns: Sequence[str], rows: Sequence[Row]) -> str:
    kinds = {column: "BOOLEAN" if column == IS_NEW else "INT" for column in columns}
    listed = ", ".join(f"CAST({column} AS {kind}) AS {column}" for column, kind in kinds.items())
    values = ", ".join(f"({', '.join('NULL' if value is None else str(value) for value in row)})" for row in rows)
    empty = f"({', '.join('0' for _ in columns)})"
    return f"SELECT {listed} FROM VALUES {values or empty} AS t({', '.join(columns)}){'' if rows else ' WHERE FALSE'}"


REFUSED = (
    "EXISTS in EXISTS",
    "HAVING with a subquery and grouping sets",
    "a subquery beside a correlated global aggregate",
)
"""Named cases that Spark cannot run."""


@pytest.fixture(scope="module")
def judge() -> Iterator[DuckDBEngine]:
    with duckdb.connect() as connection:
        connection.execute("SET threads = 1")
        yield DuckDBEngine(connection)


def play_on_spark(plan: ViewPlan, seed: object, steps: int, spark: SparkEngine, duck: DuckDBEngine) -> Outcome:
    """Compare with DuckDB's answer to a text that Spark has answered so; with Spark's own answer to any other, and to
    all texts in a version of which no answers are kept.
    """
    is_judged = are_of_this_spark("integers") and plan.sql in kept("integers").replies and confirmed([plan.sql])
    return play(plan, seed, steps, spark, duck.judge if is_judged else spark.judge)


def play_random_queries(
    first: int, queries: int, steps: int, spark: SparkSession, duck: DuckDBEngine
) -> tuple[Outcome, int]:
    """Play the next queries that Spark accepts; return the outcome and how many others it has refused. Of those that
    it accepts it may fail in few.
    """
    engine, total, played, failed, seed = SparkEngine(spark), Outcome(), 0, list[int](), first
    while played < queries:
        plan = random_plan(seed)
        if engine.accepts(plan):
            try:
                total = total.plus(play_on_spark(plan, seed, steps, engine, duck))
                played += 1
            except NoAnswer:
                failed.append(seed)
                assert len(failed) <= 2 + MOST_FAILED * queries, failed
        seed += 1
    return total, seed - first - queries


@pytest.mark.slow
def test_random_queries_refresh_to_their_rows(spark: SparkSession, judge: DuckDBEngine) -> None:
    outcome, _ = play_random_queries(0, 4, 1, spark, judge)
    assert outcome.incremental, outcome


@pytest.mark.slow
@pytest.mark.parametrize("name", seeds(["two dimensions", "one table", *OF_ROWS], 2))
def test_changes_give_the_rows_of_the_query(name: str, spark: SparkSession, judge: DuckDBEngine) -> None:
    outcome = play_on_spark(derive(OF_ROWS[name][0], SCHEMAS, OF_ROWS[name][1]), name, 4, SparkEngine(spark), judge)
    assert outcome.by_changes, outcome


def play_random_sums(seeds: Sequence[int], steps: int, spark: SparkSession, duck: DuckDBEngine) -> Outcome:
    engine, total = SparkEngine(spark), Outcome()
    for seed in seeds:
        plan = random_sums(seed)
        assert plan.state is not None
        total = total.plus(play_on_spark(plan, seed, steps, engine, duck))
    return total


@pytest.mark.slow
def test_random_sums_are_those_of_their_queries(spark: SparkSession, judge: DuckDBEngine) -> None:
    outcome = play_random_sums(range(2), 2, spark, judge)
    assert outcome.joined, outcome


@pytest.mark.campaign
def test_many_random_sums_are_those_of_their_queries(spark: SparkSession, judge: DuckDBEngine) -> None:
    outcome = play_random_sums(range(FIRST, FIRST + QUERIES // 5), 3, spark, judge)
    assert outcome.joined, outcome


@pytest.mark.campaign
def test_many_random_queries_refresh_to_their_rows(spark: SparkSession, judge: DuckDBEngine) -> None:
    outcome, refused = play_random_queries(FIRST, QUERIES, 2, spark, judge)
    assert outcome.incremental > 0.15 * outcome.full and refused < QUERIES, (outcome, refused)


@pytest.mark.campaign
@pytest.mark.parametrize("name", CASES)
def test_a_named_case_refreshes_to_its_query(name: str, spark: SparkSession, judge: DuckDBEngine) -> None:
    engine, plan = SparkEngine(spark), plan_of_case(name)
    if engine.accepts(plan):
        try:
            play_on_spark(plan, name, 3, engine, judge)
        except NoAnswer:
            assert name in REFUSED
    else:
        assert name in REFUSED
