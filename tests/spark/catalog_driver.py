"""A notebook whose session is stopped and made again: `catalog_driver.py ROOT`. It prints the sum of `a` each time."""

from __future__ import annotations

import os
import sys

import epochlog as el


def main(root: str) -> None:
    with el.open(root, create=False) as store:
        for _ in range(2):
            spark = el.spark("notebook", master="local[1]")
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
            spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
