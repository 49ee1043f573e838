"""Driver that steps each view before and after a change: `hint_driver.py ROOT`. Spark's warnings go to stderr."""

from __future__ import annotations

import sys

import epochlog as el
from spark_store import rows


def main(root: str) -> None:
    spark = el.spark("hints", master="local[1]")
    spark.sparkContext.setLogLevel("WARN")
    with el.open(root, create=False) as store:
        for first in (0, 3):
            store.table("orders").upsert(rows(first, 9, amount=first + 1.0))
            store.checkpoint()
            for job in store.jobs():
                store.view(job.name).step(spark)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
