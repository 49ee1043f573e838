"""Views of random queries in a real store, refreshed by Spark between random commits, with Spark as the judge."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from epochlog.spark.types import arrow_schema, spark_schema, to_spark
from epochlog.spark.view_engine import ViewSession, keeping_active_session
from stored_views import NoAnswer, StoredViews

pytestmark = pytest.mark.spark

STORES = int(os.environ.get("EPOCHLOG_VIEW_STORES", "40"))
"""Random stores of a campaign, from the seed EPOCHLOG_VIEW_SEED on."""
FIRST = int(os.environ.get("EPOCHLOG_VIEW_SEED") or random.SystemRandom().randrange(10**9))
SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
}
"""Settings of views, and those for tables of a few rows, of which compiling code takes most of the time."""


def play_stores(folder: Path, spark: SparkSession, seeds: Sequence[int], actions: int) -> Counter[str]:
    session, seen = spark.newSession(), Counter[str]()
    for name, value in SETTINGS.items():
        session.conf.set(name, value)
        ViewSession(session).session.conf.set(name, value)

    def judge(sql: str, tables: Mapping[str, pa.Table]) -> pa.Table:
        for name, rows in tables.items():
            schema = spark_schema(name, rows.schema, ())
            frame = session.createDataFrame(to_spark(name, rows, arrow_schema(schema)), schema)
            frame.createOrReplaceTempView(name)
        try:
            return session.sql(sql).toArrow()
        except (PySparkException, Py4JJavaError) as error:
            raise NoAnswer(sql) from error

    with keeping_active_session(spark):  # the judge's createDataFrame makes its own session the active one
        for seed in seeds:
            print("seed", seed)
            seen += StoredViews(folder / str(seed), seed, judge, session).play(actions)
    print(seen)
    return seen


@pytest.mark.slow
def test_views_of_a_store_equal_their_queries(tmp_path: Path, spark: SparkSession) -> None:
    seen = Counter[str]()
    for seed in range(FIRST, FIRST + 8):  # nearly always the first alone
        seen += play_stores(tmp_path, spark, [seed], 10)
        if seen["views"] >= 3 and seen["checks"] > 0:
            return
    pytest.fail(f"eight stores from seed {FIRST} on show too little: {seen}")


@pytest.mark.long
def test_views_of_some_stores_equal_their_queries(tmp_path: Path, spark: SparkSession) -> None:
    seen = play_stores(tmp_path, spark, range(FIRST, FIRST + 3), 25)
    assert seen["checks"] >= 3, seen


@pytest.mark.campaign
def test_views_of_many_stores_equal_their_queries(tmp_path: Path, spark: SparkSession) -> None:
    seen = play_stores(tmp_path, spark, range(FIRST, FIRST + STORES), 40)
    assert seen["refresh"] > seen["recompute"], seen
