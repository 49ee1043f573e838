"""A notebook whose session is stopped and made again: `catalog_driver.py ROOT`. It prints the sum of `a` each
time, and the errors of uses of the stopped session.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from pyspark.sql import SparkSession

import epochlog as el
from spark_limits import raise_connect_limit


def main(root: str) -> None:
    with el.open(root, create=False) as store:
        for _ in range(2):
            spark = el.spark("notebook", master="local[1]")
            raise_connect_limit(spark)
            spark.sparkContext.setLogLevel("OFF")
            if os.environ.get("PYSPARK_PIN_THREAD") == "false":
                try:
                    el.catalog(spark, store)
                except el.InvalidInput as error:
                    print("refused:", error, flush=True)
                return
            el.catalog(spark, store)
            for row in spark.sql("SELECT sum(x.n) FROM lake.a x JOIN lake.b y USING (id)").collect():
                print("sum", *row, flush=True)
            store.table("a").upsert([{"id": 0, "n": 10, "text": ""}])
            stop_and_use(spark, store)


def stop_and_use(spark: SparkSession, store: el.Store) -> None:
    """Stop the session, and print the errors of its further uses."""
    with store.snapshot(["a"]) as snapshot:
        spark.stop()
        uses: list[Callable[[], object]] = [
            lambda: el.catalog(spark, store),
            lambda: el.register(spark),
            lambda: snapshot.spark("a", spark),
            lambda: spark.read.format("epochlog"),
            lambda: spark.readStream.format("epochlog"),
        ]
        for use in uses:
            try:
                use()
            except el.SparkLost as error:
                print("lost:", error, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
