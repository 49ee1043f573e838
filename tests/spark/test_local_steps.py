"""Steps of views on Spark that the driver computes: small ones, within a budget; Spark takes the others over whole."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import epochlog as el
from epochlog.checkpoint.job.local_context import LocalRefreshContext
from epochlog.errors import InvalidInput
from epochlog.spark import local_steps, state_sql, view_engine
from epochlog.store.metadata.unreachable_files import list_unreachable
from epochlog.views import duckdb_engine
from logged_events import logged
from raw_check import raw_check
from view_shop import ORDERS, VIEWS, Shop, random_shop

pytestmark = pytest.mark.spark
STEPS_IN_DRIVER = True
"""Other tests of Spark let it step all views; see `spark_steps_views` in tests/conftest.py."""


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with random_shop(tmp_path) as shop:
        yield shop


@pytest.fixture
def on_spark(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the views that Spark has stepped, one for each step."""
    names: list[str] = []
    real = view_engine.ViewEngine.__init__

    def counted(engine: Any, ctx: Any, *arguments: Any) -> None:
        names.append(ctx.plan.job.name)
        real(engine, ctx, *arguments)

    monkeypatch.setattr(view_engine.ViewEngine, "__init__", counted)
    return names


def unrecorded(store: el.Store) -> set[str]:
    """Return the files that no record names, not even as unreachable."""
    noted = store._handle.catalog.read(list_unreachable)
    return set(store.verify().unreachable) - {file.path for file in noted}


def check_step(shop: Shop, spark: SparkSession) -> None:
    shop.change()
    shop.step(spark)
    shop.check()
    assert all(raw_check(shop.store.view(name)).ok for name in VIEWS)


def test_small_steps_run_in_the_driver(shop: Shop, spark: SparkSession, on_spark: list[str]) -> None:
    shop.change()
    shop.step(spark)
    assert set(on_spark) == set(VIEWS), "a backfill is Spark's"
    on_spark.clear()
    for _ in range(6):
        check_step(shop, spark)
    assert not on_spark
    assert shop.store.verify().ok


def test_each_step_may_be_either_engines(
    shop: Shop, spark: SparkSession, on_spark: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_steps, "STEPS_ON_SPARK", 0)
    steps = 0
    for budget in (12, 200_000, 1, 60):
        monkeypatch.setattr(local_steps, "BUDGET_ROWS", budget)
        check_step(shop, spark)
        steps += len(VIEWS)
    assert len(VIEWS) < len(on_spark) < steps + len(VIEWS), "backfills, and more of small budgets"
    assert not unrecorded(shop.store)


@pytest.mark.logs("step_left_driver")
def test_a_step_beyond_the_budget_is_sparks_and_so_are_the_next(
    shop: Shop,
    spark: SparkSession,
    on_spark: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(local_steps, "STEPS_ON_SPARK", 2)
    orders, view = shop.store.table("orders"), shop.store.view("revenue")
    shop.store.checkpoint()
    view.step(spark)

    def step(count: int) -> int:
        """Change so many orders; return the number of steps that Spark has taken for it."""
        on_spark.clear()
        ids = list(range(count))
        orders.upsert(pa.table([ids, ids, [n % 5 for n in ids], [random.randrange(100) for _ in ids]], schema=ORDERS))
        shop.store.checkpoint()
        view.step(spark)
        assert raw_check(view).ok
        return len(on_spark)

    assert step(10) == 0
    monkeypatch.setattr(local_steps, "BUDGET_ROWS", 20)
    assert step(30) == 1
    (record,) = logged(caplog, "step_left_driver")
    assert "more than 20 rows" in str(record["error"])
    assert [step(1), step(1), step(1)] == [1, 1, 0]
    monkeypatch.setattr(local_steps, "BUDGET_BYTES", 1)
    assert step(1) == 1
    assert not unrecorded(shop.store), "what the driver had written before is deleted"


@pytest.mark.logs("step_left_driver")
def test_what_the_driver_cannot_compute_spark_does(
    shop: Shop, spark: SparkSession, on_spark: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.change()
    shop.step(spark)
    on_spark.clear()

    def refused(*_: Any) -> pa.Table:
        raise InvalidInput("DuckDB refuses the query of the view: as if")

    with monkeypatch.context() as patched:
        patched.setattr(duckdb_engine, "_answer", refused)
        shop.change()
        shop.step(spark)
    assert set(on_spark) <= set(VIEWS) and on_spark
    shop.check()


def test_a_view_that_only_spark_computes_alike_is_sparks(
    tmp_path: Path, spark: SparkSession, on_spark: list[str]
) -> None:
    with el.open(tmp_path / "store", durability="os", checkpoint_interval_ms=10) as store:
        table = store.create_table("orders", ORDERS, ["id"])
        view = store.create_view("v", "SELECT id, ROUND(cents / 3, 1) AS x FROM orders", ["id"], spark=spark)
        for number in range(3):
            table.upsert(pa.table([[number], [1], [1], [number]], schema=ORDERS))
            store.checkpoint()
            view.step(spark)
            assert view.check(spark).ok
        assert len(on_spark) == 3


@pytest.mark.logs("refresh_failed")
def test_an_error_of_the_data_is_sparks_error_and_leaves_nothing(
    tmp_path: Path, spark: SparkSession, on_spark: list[str]
) -> None:
    with el.open(tmp_path / "store", durability="os", checkpoint_interval_ms=10) as store:
        table = store.create_table("orders", ORDERS, ["id"])
        view = store.create_view("v", "SELECT day, cents FROM orders", ["day"])
        table.upsert(pa.table([[1], [1], [1], [5]], schema=ORDERS))
        store.checkpoint()
        view.step(spark)
        table.upsert(pa.table([[2], [1], [1], [6]], schema=ORDERS))
        store.checkpoint()
        with pytest.raises(InvalidInput, match="several rows with the key"):
            view.step(spark)
        assert on_spark == ["v", "v"]
        table.delete(pa.table({"id": [1]}))
        store.checkpoint()
        view.step(spark)
        assert raw_check(view).ok and not set(store.verify().unreachable)


@pytest.mark.planted
def test_rows_that_a_left_step_has_written_are_found(
    shop: Shop, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would be files that nothing refers to, until the store's process ends."""
    shop.change()
    shop.step(spark)
    monkeypatch.setattr(LocalRefreshContext, "_discard", lambda ctx: None)
    real = duckdb_engine.refresh

    def fails_at_the_end(*arguments: Any) -> None:
        real(*arguments)
        arguments[0]._finish()
        raise InvalidInput("as if")

    monkeypatch.setattr(duckdb_engine, "refresh", fails_at_the_end)
    shop.change()
    shop.step(spark)
    shop.check()
    assert shop.store.verify().unreachable


def test_steps_in_the_driver_and_on_spark_keep_one_state(
    shop: Shop, spark: SparkSession, on_spark: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_steps, "STEPS_ON_SPARK", 0)
    orders = shop.store.table("orders")
    sql = "SELECT day, COUNT(DISTINCT customer) AS buyers, MAX(cents) AS most FROM orders GROUP BY day"
    view = shop.store.create_view("buyers", sql, ["day"])

    def step(day: int) -> str:
        """Change the day of an order; return the last line about the view."""
        orders.upsert(pa.table([[day], [day % 3], [day], [day * 10]], schema=ORDERS))
        shop.store.checkpoint()
        view.step(spark)
        assert raw_check(view).ok and view.check(state=True).ok
        return view.explain().splitlines()[-1]

    assert step(1).startswith("state: groups"), "a backfill is Spark's"
    assert on_spark.pop() == "buyers"
    assert step(2).startswith("state: groups") and not on_spark
    with monkeypatch.context() as patch:
        patch.setattr(local_steps, "BUDGET_ROWS", 0)
        assert step(3).startswith("state: groups") and on_spark.pop() == "buyers"
        patch.setattr(state_sql, "MOST_CHANGES", 0)
        assert "none at the newest commit" in step(4)
    on_spark.clear()
    assert step(5).startswith("state: groups") and not on_spark, "a step in the driver makes it of all rows"
