"""A Spark driver that takes a folder of change events into a table with a sequence, until there are no more.

`cdc_driver.py ROOT EVENTS CHECKPOINT`. EPOCHLOG_KILL_AT in the environment ends the Python process of Spark that
reaches that failpoint.
"""

from __future__ import annotations

import sys

import epochlog as el
from spark_limits import raise_connect_limit


def main(root: str, events: str, checkpoint: str) -> None:
    spark = el.spark("cdc", master="local[2]", spark__sql__shuffle__partitions="2")
    raise_connect_limit(spark)
    spark.sparkContext.setLogLevel("OFF")
    rows = (
        spark.readStream.schema("k BIGINT, v STRING, at BIGINT, op STRING").option("maxFilesPerTrigger", 1).json(events)
    )
    options = {"path": root, "table": "t", "applyAsDeletes": "op = 'd'", "exceptColumnList": "op", "sequenceBy": "at"}
    query = (
        rows.repartition(2)
        .writeStream.format("epochlog")
        .options(**options)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
