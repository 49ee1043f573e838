"""Spark Declarative Pipeline whose source and sink are tables of a store.

    pip install 'pyspark[pipelines]'
    python make_orders.py                   # once: the store, with the tables `orders` and `doubled`
    PYSPARK_PYTHON=$(which python) spark-pipelines run

Each run takes the changes of `orders` since the last one into `doubled`; its progress is kept in the pipeline's
`storage`, and each batch lands once.
"""

from __future__ import annotations

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

import epochlog as el

ROOT = os.environ.get("EPOCHLOG_ROOT", "/tmp/epochlog-declarative/lake")

spark: SparkSession = SparkSession.getActiveSession()  # pyright: ignore[reportAssignmentType]: spark-pipelines makes it
el.register(spark)

dp.create_sink("doubled", "epochlog", {"path": ROOT, "table": "doubled"})


@dp.append_flow(target="doubled")
def double() -> DataFrame:
    """Stream the changes of `orders`; rows of change type `delete` are deleted from the sink's table."""
    orders = spark.readStream.format("epochlog").option("path", ROOT).option("table", "orders").load()
    return orders.selectExpr("id", "cents * 2 AS cents", "_change_type")
