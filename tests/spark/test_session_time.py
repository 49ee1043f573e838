"""Times of options without an offset: those of the session's zone, as Spark's own."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import epochlog as el
from epochlog.spark.session_time import in_session_zone
from spark_store import Lake, rows

pytestmark = pytest.mark.spark


def test_times_without_an_offset_are_read_as_spark_reads_them(spark: SparkSession) -> None:
    """Spark casts a text to a time in the session's zone, also in hours that a clock repeats or skips."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    first = datetime(2026, 1, 1)  # without an offset on purpose
    texts = ["2026-03-29 02:30:00", "2026-10-25T02:30:00", "2026-03-08 02:15", "2026-11-01 01:30", "2026-01-31"]
    texts += [(first + timedelta(minutes=rng.randrange(525_600))).isoformat() for _ in range(200)]
    before = spark.conf.get("spark.sql.session.timeZone")
    try:
        for zone in ("Europe/Berlin", "America/New_York", "Asia/Kathmandu", "UTC", "+05:30", "GMT-3", "UTC+02:00", "Z"):
            spark.conf.set("spark.sql.session.timeZone", zone)
            frame = spark.createDataFrame([(text,) for text in texts], "text string")
            wanted = [row[0] for row in frame.selectExpr("unix_millis(CAST(text AS TIMESTAMP))").collect()]
            zoned = [datetime.fromisoformat(in_session_zone("x", text, zone)) for text in texts]
            assert [round(moment.timestamp() * 1000) for moment in zoned] == wanted, zone
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


def test_timestamp_as_of_means_what_the_catalog_means(lake: Lake) -> None:
    """`timestampAsOf` of format was in UTC, that of a catalog in the session's zone: two answers to one text."""
    lake.orders.upsert(rows(0, 3))
    spark, moment = lake.spark, datetime.now(UTC).replace(tzinfo=None) + timedelta(minutes=30)
    el.catalog(spark, lake.store)
    before = spark.conf.get("spark.sql.session.timeZone")
    try:
        for zone, hours in {"Asia/Tokyo": 9, "-07:00": -7}.items():
            spark.conf.set("spark.sql.session.timeZone", zone)
            text = (moment + timedelta(hours=hours)).isoformat(sep=" ")
            early = (moment + timedelta(hours=hours - 2)).isoformat(sep=" ")
            assert lake.read(timestampAsOf=text).count() == 3
            assert spark.read.option("timestampAsOf", text).table("lake.orders").count() == 3
            assert lake.read(consistency="as_of", timestamp=text).count() == 3
            for call in (
                lambda early=early: lake.read(timestampAsOf=early),
                lambda early=early: spark.read.option("timestampAsOf", early).table("lake.orders"),
            ):
                with pytest.raises(PySparkException, match="EpochNotCommitted"):
                    call().count()
        view = f"CREATE TEMPORARY VIEW v USING epochlog OPTIONS (path '{lake.store.root}', table 'orders', "
        with pytest.raises(PySparkException, match=r"does not know the session's time zone: add one"):
            spark.sql(f"{view} timestampAsOf '{moment.isoformat()}')")
        spark.sql(f"{view} timestampAsOf '{moment.isoformat()}+00:00')")
        assert spark.table("v").count() == 3
    finally:
        spark.sql("DROP VIEW IF EXISTS v")
        spark.conf.set("spark.sql.session.timeZone", before)
