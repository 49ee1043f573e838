"""Data source "epochlog" for every session: Spark registers the DefaultSource of each module pyspark_*."""

from epochlog.spark.session import EpochlogSource as DefaultSource

__all__ = ["DefaultSource"]
