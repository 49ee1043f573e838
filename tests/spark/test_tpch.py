"""The example's views of TPC-H: their queries are TPC-H's own, refreshes land once, and what a view forgets shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
import tpch
import tpch_data
import tpch_views
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (Spark's own convention)
from tpch_views import VIEWS

import epochlog as el

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SCALE = 0.01
SEED = 20
ANSWERS: dict[str, list[tuple[Any, ...]]] = {
    "SELECT l_returnflag, l_linestatus, sum_qty, sum_disc_price, sum_charge, avg_qty, count_order FROM q1": [
        ("A", "F", "3774200.00", "5054096266.6828", "5256751331.449234", "25.537587", "147790"),
        ("N", "F", "95257.00", "127132372.6512", "132286291.229445", "25.300664", "3765"),
        ("N", "O", "7459297.00", "9986238338.3847", "10385578376.585467", "25.545537", "292000"),
        ("R", "F", "3785523.00", "5071818532.9420", "5274405503.049367", "25.525943", "148301"),
    ],
    "SELECT l_orderkey, revenue, o_orderdate FROM q3 WHERE place <= 2": [
        ("223140", "355369.0698", "1995-03-14"),
        ("584291", "354494.7318", "1995-02-21"),
    ],
    "SELECT n_name, revenue FROM q5": [
        ("CHINA", "7822103.0000"),
        ("INDIA", "6376121.5085"),
        ("INDONESIA", "5580475.4027"),
        ("JAPAN", "6000077.2184"),
        ("VIETNAM", "4497840.5466"),
    ],
    "SELECT revenue FROM q6": [("11803420.2534",)],
    "SELECT place, c_custkey, c_name, revenue, n_name FROM q10 WHERE place IN (1, 20)": [
        ("1", "8242", "Customer#000008242", "622786.7297", "ETHIOPIA"),
        ("20", "13478", "Customer#000013478", "395513.1358", "KENYA"),
    ],
}
"""Of scale factor 0.1, as published with other databases."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tpch")
    tpch_data.generate(folder, SCALE)
    return folder


@pytest.fixture
def store(tmp_path: Path, files: Path) -> Iterator[el.Store]:
    with el.open(tmp_path / "store", durability="os") as store:
        tpch_data.load(store, files)
        yield store


def test_the_queries_are_tpchs(tmp_path: Path) -> None:
    """The reference queries of the views give TPC-H's published answers."""
    tpch_data.generate(tmp_path, 0.1)
    with duckdb.connect() as connection:
        for table in tpch_data.KEYS:
            connection.execute(f"CREATE VIEW {table} AS FROM '{tmp_path}/{table}.parquet'")
        for view in VIEWS.values():
            connection.execute(f"CREATE VIEW {view.name} AS {view.sql}")
        for query, answer in ANSWERS.items():
            rows = connection.execute(f"SELECT COLUMNS(*)::VARCHAR FROM ({query}) ORDER BY ALL").fetchall()
            assert rows == sorted(answer), query


def test_a_refresh_is_made_again_and_lands_once(store: el.Store) -> None:
    epoch = tpch_data.refresh(store, SEED, 1)
    rows = {name: store.table(name).to_arrow() for name in tpch_data.LIVE}
    assert tpch_data.refresh(store, SEED, 1) == epoch
    assert all(store.table(name).to_arrow().equals(kept) for name, kept in rows.items())
    assert tpch_data.refresh(store, SEED, 2) > epoch
    assert not store.table("lineitem").to_arrow().equals(rows["lineitem"])


# ---- what the comparison sees --------------------------------------------------------------------------------------


def deletes_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    signed = tpch_views.signed
    monkeypatch.setattr(tpch_views, "signed", lambda changes: signed(changes.where("_change_type != 'delete'")))


def old_rows_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an update only what is there now is counted."""
    signed = tpch_views.signed
    kept = "_change_type != 'update_preimage'"
    monkeypatch.setattr(tpch_views, "signed", lambda changes: signed(changes.where(kept)))


def orders_that_moved_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """An order is joined again when a line of it has changed, and not when it has itself."""

    def lines_only(ctx: Any) -> pa.Table | None:
        if ctx.barrier.prev == 0:
            return None
        return ctx.touched("lineitem", "l_orderkey").toArrow().rename_columns(["key"])

    monkeypatch.setattr(tpch_views, "touched", lines_only)


def before_is_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Earlier rows are read as of the current epoch."""
    lines_of_orders = tpch_views.lines_of_orders

    def of_now(read: Callable[..., DataFrame], *args: Any, **where: str) -> DataFrame:
        return lines_of_orders(getattr(read, "__self__").table, *args, **where)  # noqa: B009 (a method's own object)

    monkeypatch.setattr(tpch_views, "lines_of_orders", of_now)


def nothing_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a view stay when their keys have no answer any more."""

    def only_added(ctx: Any, view: str, *, by: str, touched: pa.Table, from_: DataFrame) -> None:
        ctx.upsert(view, from_)

    monkeypatch.setattr(el.SparkRefreshContext, "recompute", only_added)


def rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of floating-point numbers, made decimals at the end."""
    fold = tpch_views.fold

    def through_doubles(ctx: Any, view: str, deltas: DataFrame, *args: Any) -> None:
        near = F.col("revenue").cast("float").cast("decimal(38,4)")
        fold(ctx, view, deltas.withColumn("revenue", near), *args)

    monkeypatch.setattr(tpch_views, "fold", through_doubles)


MUTANTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str]] = {
    "deletes ignored": (deletes_ignored, "q1"),
    "old rows ignored": (old_rows_ignored, "q6"),
    "orders that moved ignored": (orders_that_moved_ignored, "q10_customers"),
    "before is now": (before_is_now, "q5"),
    "nothing is deleted": (nothing_is_deleted, "q3_orders"),
    "rounded": (rounded, "q6"),
}


@pytest.mark.planted
@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutants_are_caught(store: el.Store, spark: SparkSession, mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    break_it, name = MUTANTS[mutant]
    view = VIEWS[name]
    break_it(monkeypatch)
    job = store.create_job(name, view.upstreams, {name: (view.schema, view.key)})
    for number in range(3):
        if number:
            tpch_data.refresh(store, SEED, number)
        store.checkpoint()
        while job.step(spark, view.refresh) is not None:
            pass
    with store.snapshot(consistency="aligned") as moment, moment.duckdb() as connection:
        assert tpch.compare(connection, view, name) > 0
