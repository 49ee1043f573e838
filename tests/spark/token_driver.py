"""A Spark driver that holds a snapshot: `token_driver.py ROOT`.

It takes an aligned snapshot, says `token TOKEN`, reads it on Spark, says `rows N SUM` of the table copy, and then waits
with the snapshot open until its standard input ends.
"""

from __future__ import annotations

import sys

import epochlog as el
from spark_limits import raise_connect_limit


def main(root: str) -> None:
    spark = el.spark("the driver that holds", master="local[1]")
    raise_connect_limit(spark)
    spark.sparkContext.setLogLevel("OFF")
    with el.open(root, create=False) as store, store.snapshot(["orders", "copy"], consistency="aligned") as snapshot:
        print("token", snapshot.token, flush=True)
        row = snapshot.spark("copy", spark).selectExpr("count(*)", "sum(amount)").collect()[0]
        print("rows", *row, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
