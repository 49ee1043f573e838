"""A read of no columns keeps its count at every door that needs no Spark (tests/spark/test_sessions.py has those)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import epochlog as el
from epochlog.spark.partitions import ReadPartition
from epochlog.store.changelog.log_plan import plan_changes
from epochlog.store.scan.scan_plan import plan_scan
from epochlog.store.types.read_options import ReadOptions

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


@pytest.fixture(params=["log", "run", "both"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    with el.open(tmp_path / "lake", durability="os") as store:
        table = store.create_table("t", SCHEMA, ["id"])
        table.upsert([{"id": n, "v": "x"} for n in range(7)])
        table.delete([5, 6])
        if request.param != "log":
            store.compact("t", full=True)
        if request.param == "both":
            table.upsert([{"id": 2, "v": "y"}])
        yield store


def latest(store: el.Store) -> Any:
    return store.snapshot(["t"], consistency="latest")["t"]


def in_duckdb(store: el.Store) -> int:
    with store.snapshot(["t"], consistency="latest") as moment, moment.duckdb() as connection:
        (row,) = connection.sql("SELECT count(*) FROM t").fetchall()
        return row[0]


def in_a_refresh(store: el.Store, act: Callable[[Any], int]) -> int:
    counts: list[int] = []
    store.checkpoint()
    store.create_job("j", ["t"], {"out": (SCHEMA, ["id"])}).step_local(lambda ctx: counts.append(act(ctx)))
    return counts[0]


def served(store: el.Store) -> int:
    with el.serve(store, "grpc://127.0.0.1:0") as server, el.connect(server.location) as client:
        return client.snapshot("t", consistency="latest", columns=[]).read_all().num_rows


def in_a_spark_task(store: el.Store, *, feed: bool) -> int:
    """Count the rows that a Spark task reads for a schema without columns, before they go to the JVM."""
    table = store.table("t")._table
    handle = store._handle
    plan = handle.catalog.read(
        lambda view: plan_changes(view, table, 0, None) if feed else plan_scan(view, table, None)
    )
    return sum(
        batch.num_rows for batch in ReadPartition(handle.files, plan, pa.schema([]), ReadOptions(()), mode="net").read()
    )


DOORS: dict[str, Callable[[el.Store], int]] = {
    "to_arrow": lambda store: store.table("t").to_arrow(columns=[]).num_rows,
    "a filter": lambda store: store.table("t").to_arrow(columns=[], filter=pc.field("id") >= 0).num_rows,
    "scan": lambda store: sum(batch.num_rows for batch in store.table("t").scan(columns=[])),
    "get": lambda store: store.table("t").get(list(range(9)), columns=[]).num_rows,
    "snapshot": lambda store: latest(store).to_arrow(columns=[]).num_rows,
    "dataset": lambda store: store.table("t").dataset().to_table(columns=[]).num_rows,
    "scanner": lambda store: store.table("t").dataset().scanner(columns=[]).count_rows(),
    "batches": lambda store: sum(batch.num_rows for batch in store.table("t").dataset().to_batches(columns=[])),
    "polars": lambda store: store.table("t").lazy().select(pl.len()).collect().item(),
    "duckdb": in_duckdb,
    "refresh": lambda store: in_a_refresh(store, lambda ctx: ctx.table("t", columns=[]).num_rows),
    "flight": served,
    "spark": lambda store: in_a_spark_task(store, feed=False),
}


@pytest.mark.parametrize("door", DOORS)
def test_a_read_of_no_columns_keeps_its_count(store: el.Store, door: str) -> None:
    assert DOORS[door](store) == 5


def test_changes_without_columns_keep_theirs(store: el.Store) -> None:
    row_count = store.table("t").changes(0, mode="net").read_all().num_rows
    assert store.table("t").changes(0, mode="net", columns=[]).read_all().num_rows == row_count
    assert in_a_spark_task(store, feed=True) == row_count
