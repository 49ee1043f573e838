"""The demo's Spark sessions: settings for a run of two minutes over frames of a few hundred rows."""

from __future__ import annotations

from pyspark.sql import SparkSession

from ..spark import spark

SETTINGS = {
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": 1,
    # In two minutes the optimising compiler never earns back what it costs: half of all processor time with it.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC",
}


def session(app_name: str) -> SparkSession:
    """A local session of its own process."""
    return spark(app_name=app_name, **SETTINGS)
