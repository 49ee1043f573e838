"""Real store for tests of the page: two root tables, two views that keep up, a slow one and a failing job."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

import epochlog as el

ORDERS = pa.schema([("id", pa.int64()), ("day", pa.string()), ("region", pa.string()), ("cents", pa.int64())])
REGIONS = pa.schema([("region", pa.string()), ("cents", pa.int64())])
HOSTILE = "<img src=x onerror=alert(1)>\u202e\x07 </script><script>alert(2)</script>"


def rows(*ids: int) -> pa.Table:
    return pa.table(
        {
            "id": ids,
            "day": [("mon", "tue", "wed")[number % 3] for number in ids],
            "region": [("north", "south")[number % 2] for number in ids],
            "cents": [number * 100 for number in ids],
        }
    )


@dataclass
class PageStore:
    """Open store. `slow` is a view that nobody steps; `by_region` fails; `by_day` and `best_day` keep up."""

    root: Path
    store: el.Store
    by_region: el.Job

    def put(self, *ids: int) -> int:
        """Commit orders, and let the views that keep up commit them."""
        epoch = self.store.table("orders").upsert(rows(*ids))
        self.store.checkpoint()
        self.catch_up("by_day", "best_day")
        return epoch

    def catch_up(self, *views: str) -> None:
        for view in views:
            while self.store.view(view).step() is not None:
                pass

    def refresh(self, ctx: el.LocalRefreshContext) -> None:
        sums = ctx.table("orders", among=ctx.touched("orders", "region")).group_by("region")
        ctx.recompute("by_region", by="region", from_=sums.aggregate([("cents", "sum")]).rename_columns(REGIONS.names))

    def fail(self, error: Exception | None = None) -> None:
        """Let a refresh of `by_region` fail."""

        def refresh(ctx: el.LocalRefreshContext) -> None:
            raise error or ZeroDivisionError("integer division or modulo by zero")

        with pytest.raises(type(error) if error else ZeroDivisionError):
            self.by_region.step_local(refresh)


def make_page_store(root: Path) -> PageStore:
    """Make the store. All tables have a commit of the first orders; the views in trouble lack the second ones."""
    store = el.open(str(root))
    store.create_table("orders", ORDERS, ["id"])
    store.create_table("days", pa.schema([("day", pa.string())]), ["day"]).upsert(pa.table({"day": ["mon", "tue"]}))
    store.create_view("by_day", "SELECT day, SUM(cents) AS cents FROM orders GROUP BY day", ["day"])
    store.create_view("best_day", "SELECT day, cents FROM by_day WHERE cents > 100", ["day"])
    store.create_view("slow", "SELECT region, COUNT(*) AS orders FROM orders GROUP BY region", ["region"])
    by_region = store.create_job("by_region", ["orders"], {"by_region": (REGIONS, ["region"])})
    lake = PageStore(root, store, by_region)
    lake.put(1, 2)
    lake.catch_up("slow")
    assert by_region.step_local(lake.refresh) is not None
    return lake


def break_views(lake: PageStore) -> None:
    """Commit more orders, which the slow view and the failing job do not reflect."""
    lake.put(3, 4)
    lake.fail()


def pack_orders(lake: PageStore) -> None:
    """Add orders one by one, until compaction packs their log."""
    for number in range(64):
        lake.store.table("orders").upsert(rows(1000 + number))
    lake.store.compact("orders", full=True)
