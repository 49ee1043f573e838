"""Live view in another process while Spark writes it: `python examples/live_view.py`.

This process takes orders, keeps their sums per day as a view that Spark refreshes, and serves the store. The screen
process has neither the store nor Spark: it follows the view over the network and keeps it as a polars DataFrame. It
gets the rows first, then each change. It ends with the view's data; its DataFrame then equals the view.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile

import polars as pl
import pyarrow as pa

import epochlog as el

ORDERS = pa.schema([("id", pa.int64()), ("day", pa.string()), ("cents", pa.int64())])
REVENUE = pa.schema([("day", pa.string()), ("cents", pa.int64()), ("orders", pa.int64())])


# ---- the process of the screen: no store, no Spark ---------------------------------------------------------------


def follow(location: str, leave_at: str) -> None:
    """Print the view after each change; at the end of its data, write it to a file."""
    with el.connect(location, token=os.environ["LIVE_TOKEN"]) as client, client.subscribe("revenue") as sub:
        frame = pl.DataFrame(pl.from_arrow(REVENUE.empty_table()))
        for batch in sub:
            frame = applied(frame, pl.DataFrame(pl.from_arrow(batch)))
            kinds = sorted(set(batch["_change_type"].to_pylist()))
            days = ", ".join(f"{day} {cents / 100:.2f} ({orders})" for day, cents, orders in frame.rows())
            print(f"  screen at {sub.epoch}, after {batch.num_rows} x {'/'.join(kinds)}: {days}", flush=True)
    frame.write_ipc(leave_at)


def applied(frame: pl.DataFrame, changes: pl.DataFrame) -> pl.DataFrame:
    """Apply one batch of changes to the frame: each of its keys is replaced or deleted."""
    unchanged = frame.join(changes, on="day", how="anti")
    rows = changes.filter(pl.col("_change_type") != "delete").select(frame.columns)
    return pl.concat([unchanged, rows]).sort("day")


# ---- the process that writes -------------------------------------------------------------------------------------


def revenue(ctx: el.SparkRefreshContext) -> None:
    """Recompute the sums of the days with changed orders."""
    from pyspark.sql import functions as F  # noqa: N812 (imported here, because the screen process has no Spark)

    touched_orders = ctx.table("orders", among=ctx.touched("orders", "day"))
    sums = touched_orders.groupBy("day").agg(F.sum("cents").alias("cents"), F.count("id").alias("orders"))
    ctx.recompute("revenue", by="day", from_=sums)


def orders(first: int, day: str, *cents: int) -> pa.Table:
    return pa.table({"id": range(first, first + len(cents)), "day": [day] * len(cents), "cents": cents}, schema=ORDERS)


def main(folder: str) -> None:
    token = secrets.token_urlsafe()
    spark = el.spark("live view")
    spark.sparkContext.setLogLevel("ERROR")
    with el.open(f"{folder}/store") as store, el.serve(store, token=token) as server:
        table = store.create_table("orders", ORDERS, ["id"])
        job = store.create_job("revenue", ["orders"], {"revenue": (REVENUE, ["day"])})

        def refresh(event: str) -> None:
            store.checkpoint()  # forces a boundary now; without it the job commits at the next second
            print(f"spark committed the view at {job.step(spark, revenue)}: {event}", flush=True)

        table.upsert(orders(1, "mon", 500, 700))
        refresh("two orders on monday")
        command = [sys.executable, __file__, "follow", server.location, f"{folder}/screen.arrow"]
        screen = subprocess.Popen(command, env={**os.environ, "LIVE_TOKEN": token})
        try:
            table.upsert(orders(3, "tue", 900, 400, 100))
            refresh("three on tuesday")
            table.upsert(orders(2, "mon", 1700))
            refresh("one of monday's was dearer")
            table.delete(pa.table({"id": [1, 2]}))
            refresh("both of monday's were cancelled")
            table.upsert(orders(6, "wed", 2500))
            table.finish()
            refresh("one on wednesday, and the end of the data")
            screen.wait()
        finally:
            screen.kill()
        equal = pl.read_ipc(f"{folder}/screen.arrow").equals(store.table("revenue").to_polars())
        print(f"the screen's frame is the view: {equal}")
    spark.stop()


if __name__ == "__main__":
    if sys.argv[1:2] == ["follow"]:
        follow(*sys.argv[2:4])
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(folder)
