"""Pipeline of two views in one process, the second over the first: `python examples/pipeline.py`.

`revenue` keeps the sum of the orders per day, `best` the day with the largest sum. Each view commits by itself. The
refresh of `best` fails at every second attempt; the pipeline repeats it, and `revenue` is not affected. At the end
`revenue` is drained: its data ends, and so does that of `best`.
"""

from __future__ import annotations

import tempfile

import pyarrow as pa

import epochlog as el

ORDERS = pa.schema([("id", pa.int64()), ("day", pa.string()), ("cents", pa.int64())])
REVENUE = pa.schema([("day", pa.string()), ("cents", pa.int64())])
BEST = pa.schema([("rank", pa.int64()), ("day", pa.string()), ("cents", pa.int64())])


def revenue(ctx: el.LocalRefreshContext) -> None:
    """Recompute the sums of the days with changed orders; a day without orders is deleted."""
    days = ctx.touched("orders", "day")
    sums = ctx.table("orders", among=days).group_by("day").aggregate([("cents", "sum")])
    ctx.recompute("revenue", by="day", from_=sums.rename_columns(["day", "cents"]))


class Best:
    """Refresh of the best day that fails at every second attempt."""

    tries = 0

    def __call__(self, ctx: el.LocalRefreshContext) -> None:
        self.tries += 1
        if self.tries % 2:
            raise ConnectionError("the exchange-rate service did not answer")
        best = ctx.table("revenue").sort_by([("cents", "descending"), ("day", "ascending")]).slice(0, 1)
        ctx.recompute("best", by=[], from_=best.add_column(0, "rank", pa.array([1] * best.num_rows, pa.int64())))


def show(pipe: el.Pipeline) -> None:
    """Print the state of each job as a table."""
    print(f"{'job':8} {'state':9} {'lag':>6} {'restarts':>8}  last error")
    for row in pipe.status():
        print(f"{row.name:8} {row.state:9} {row.lag_ms:3} ms {row.restarts:8}  {row.last_error or '-'}")


def main(root: str) -> None:
    with el.open(root) as store:
        orders = store.create_table("orders", ORDERS, ["id"])
        first = store.create_job("revenue", ["orders"], {"revenue": (REVENUE, ["day"])})
        second = store.create_job("best", ["revenue"], {"best": (BEST, ["rank"])})
        pipe = el.Pipeline(store)  # with a Spark session: el.Pipeline(store, spark), and refreshes take DataFrames
        pipe.add(first, revenue)
        pipe.add(second, Best())
        for day, cents in (("mon", [500, 700]), ("tue", [900, 400, 100])):
            count = orders.count()
            ids = list(range(count, count + len(cents)))
            orders.upsert(pa.table({"id": ids, "day": [day] * len(cents), "cents": cents}))
            pipe.run(until="idle")  # until the views reflect all commits; until=None runs without end
            show(pipe)
            with store.snapshot(consistency="aligned") as moment:
                print(
                    "revenue", moment["revenue"].to_arrow().to_pylist(), "best", moment["best"].to_arrow().to_pylist()
                )
        first.stop(drain=True)
        pipe.run()  # until every job has ended
        show(pipe)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
