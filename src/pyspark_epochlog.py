"""Data source "epochlog" for every session: Spark registers the DefaultSource of each module pyspark_*.

Each Spark application imports this module to look for sources, so it imports epochlog only where the source is used.
"""

from collections.abc import MutableMapping
from typing import Any

from pyspark.sql.datasource import DataSource


class DefaultSource(DataSource):
    """Name of the data source, whose objects are those of epochlog."""

    def __new__(cls, options: MutableMapping[str, str]) -> Any:
        from epochlog.spark.session import EpochlogSource

        return EpochlogSource(options)

    @classmethod
    def name(cls) -> str:
        return "epochlog"
