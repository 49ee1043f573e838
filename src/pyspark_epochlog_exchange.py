"""Data source "epochlog.exchange" for every session: Spark registers the DefaultSource of each module pyspark_*."""

from epochlog.spark.exchange_format import ExchangeSource as DefaultSource

__all__ = ["DefaultSource"]
