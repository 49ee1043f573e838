"""Spark gives the kept answers to the texts of tests again, and new ones to fresh random texts."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence

import duckdb
import pytest
from pyspark.sql import SparkSession

from confirmed import RawJudge, Reply, SparkAnswer, SparkRefusal, are_of_this_spark, compare, kept
from corner_tables import tables_of_set
from epochlog.errors import InvalidInput
from judged_texts import texts_of_sets
from spark_judge import SparkJudge
from spark_needs import is_read_alike
from view_queries import random_query, random_sums
from view_shop import VIEWS
from view_texts import READING, Text
from view_world import DuckDBEngine, Outcome, play, random_plan
from view_world import random_sums as plan_of_sums
from views_of_texts import rows_of_view

pytestmark = pytest.mark.spark

QUERIES = int(os.environ.get("EPOCHLOG_VIEW_QUERIES", "10000"))
"""Random queries of a campaign, from the seed EPOCHLOG_VIEW_SEED on."""
FIRST = int(os.environ.get("EPOCHLOG_VIEW_SEED") or random.SystemRandom().randrange(10**9))
ALWAYS = {text.asked for texts in READING.values() for text in texts.values()} | {sql for sql, _ in VIEWS.values()}
"""Texts that are easily read wrongly, and those of the shop, by which its views are judged on each Spark."""


def require_kept_answers(spark: SparkSession, texts_of_set: dict[str, list[str]]) -> None:
    """Ask Spark, and compare. A version without kept answers gives the same, but for random texts that it refuses,
    and for doubled quotes if it has none.
    """
    judge = SparkJudge(spark)
    for name, texts in texts_of_set.items():
        is_own = are_of_this_spark(name)
        answers = kept(name, of_any_spark=not is_own)
        replies = judge.ask(answers.tables, texts)
        asked = [sql for sql in texts if is_own or is_compared(sql, replies[sql])]
        assert {sql: replies[sql] for sql in asked} == {sql: answers.reply(sql) for sql in asked}, name
        assert len(texts) - len(asked) < 1 + 0.1 * len(texts), name


def is_compared(sql: str, reply: Reply) -> bool:
    return is_read_alike(sql) and (sql in ALWAYS or not isinstance(reply, SparkRefusal))


@pytest.mark.slow
def test_spark_gives_the_kept_answers(spark: SparkSession) -> None:
    """To the texts of ALWAYS, and to some others."""
    print("seed", FIRST)
    chance, some = random.Random(FIRST), {}
    for name, texts in texts_of_sets().items():
        others = [sql for sql in texts if sql not in ALWAYS]
        some[name] = [*ALWAYS.intersection(texts), *chance.sample(others, 12 if name == "integers" else 1)]
    require_kept_answers(spark, some)


@pytest.mark.long
def test_spark_gives_all_kept_answers(spark: SparkSession) -> None:
    require_kept_answers(spark, texts_of_sets())


def judged_by_spark(spark: SparkSession, texts: Sequence[str]) -> tuple[dict[str, Reply], set[str]]:
    """Return Spark's replies to fresh texts, and the texts that DuckDB answers so. Compare views on DuckDB too."""
    tables, raw, same = tables_of_set("integers"), RawJudge(), set[str]()
    replies = SparkJudge(spark).ask(tables, texts)
    for sql, reply in replies.items():
        if not isinstance(reply, SparkAnswer):
            continue
        difference = raw.difference(reply, sql, tables)
        if not difference:
            same.add(sql)
        try:
            rows = rows_of_view(Text(sql, ()), reply)
        except InvalidInput:
            continue
        assert compare(reply, rows, sql, with_types=True) == "", sql
        assert difference == "", sql
    return replies, same


def play_fresh_queries(spark: SparkSession, first: int, queries: int, steps: int) -> Outcome:
    """Play random queries and sums on DuckDB whose texts Spark answers as the DuckDB that judges them."""
    print("seed", first)
    seeds, of_sums = range(first, first + queries), range(first, first + queries // 5)
    texts = [*(random_query(seed).sql for seed in seeds), *(random_sums(seed).sql for seed in of_sums)]
    _, same = judged_by_spark(spark, texts)
    assert len(same) > 0.75 * len(texts)
    total, failed = Outcome(), 0
    with duckdb.connect() as connection:
        connection.execute("SET threads = 1")
        engine = DuckDBEngine(connection, same)
        for plan_of, numbers in ((random_plan, seeds), (plan_of_sums, of_sums)):
            for seed in numbers:
                plan = plan_of(seed)
                try:
                    total = total.plus(play(plan, seed, steps, engine, engine.judge) if plan.sql in same else Outcome())
                except duckdb.InternalException:  # DuckDB itself fails, and ends the database
                    failed += 1
                    engine.restart()
    assert failed <= 0.01 * queries, failed
    return total


@pytest.mark.slow
def test_fresh_random_texts_mean_what_spark_answers(spark: SparkSession) -> None:
    play_fresh_queries(spark, FIRST, 25, 2)


@pytest.mark.long
def test_hundreds_of_random_texts_mean_what_spark_answers(spark: SparkSession) -> None:
    outcome = play_fresh_queries(spark, FIRST, 300, 3)
    assert outcome.incremental > 0.15 * outcome.full and outcome.joined, outcome


@pytest.mark.campaign
def test_thousands_of_random_texts_mean_what_spark_answers(spark: SparkSession) -> None:
    for first in range(FIRST, FIRST + QUERIES, 1000):
        play_fresh_queries(spark, first, min(1000, QUERIES), 3)
