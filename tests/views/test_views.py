"""Views of a store: created, refreshed by DuckDB, replaced together, dropped, and refused with the reason."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
import sqlglot

import epochlog as el
from epochlog.views import duckdb_engine
from epochlog.views.derivation import ViewPlan
from epochlog.views.refresh_choice import recomputes_all
from logged_events import logged
from raw_check import raw_check
from view_shop import CUSTOMERS, ORDERS, REVENUE, VIEWS, Shop, change_orders, many_orders, random_shop
from wait_until import wait_until


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with random_shop(tmp_path) as shop:
        yield shop


@pytest.mark.medium
def test_views_equal_their_queries_after_every_step(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    shop.step()
    shop.check()
    for _ in range(6):
        shop.change()
        shop.step()
        shop.check()
        assert all(raw_check(shop.store.view(name)).ok for name in VIEWS)
    assert not logged(caplog, "view_recomputed")


@pytest.mark.logs("view_recomputed")
@pytest.mark.medium
def test_touched_values_that_cannot_be_computed_recompute_all_rows(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.step()
    monkeypatch.setattr(ViewPlan, "touched_by", lambda *_: sqlglot.parse_one("SELECT CAST('no number' AS INT) AS n"))
    shop.change()
    shop.step()
    shop.check()


@pytest.mark.medium
def test_only_rows_that_differ_are_committed(shop: Shop) -> None:
    orders = shop.store.table("orders")
    orders.upsert(pa.table([[1, 2], [1, 2], [1, 2], [10, 20]], schema=ORDERS))
    shop.step()
    orders.upsert(pa.table([[3], [1], [1], [5]], schema=ORDERS))
    orders.upsert(pa.table([[2], [3], [2], [20]], schema=ORDERS))  # another customer, the same revenue
    shop.step()
    newest = shop.store.table("revenue").history()
    assert newest["rows_upserted"].to_pylist()[0] == 1
    assert shop.store.table("revenue").to_arrow().to_pylist() == [
        {"day": 1, "cents": 15, "n": 2}, {"day": 2, "cents": 20, "n": 1},
    ]  # fmt: skip


def test_the_plan_is_explained(shop: Shop) -> None:
    assert "incremental by (day)" in shop.store.view("revenue").explain()
    assert "incremental: changes are added to a state" in shop.store.view("total").explain()
    assert shop.store.view("revenue").sql == REVENUE
    assert [info.sql for info in shop.store.jobs() if info.name == "revenue"] == [REVENUE]


@pytest.mark.parametrize("sql, key, error, message", [
    ("SELEC 1", ["a"], el.InvalidInput, "parsed|one SELECT"),
    ("SELECT 1 AS a; DROP TABLE orders", ["a"], el.InvalidInput, "one SELECT"),
    ("DELETE FROM orders", ["a"], el.InvalidInput, "SELECT"),
    ("SELECT id FROM nothing", ["id"], el.TableNotFound, "nothing"),
    ("SELECT id, nope FROM orders", ["id"], el.InvalidInput, "nope"),
    ("SELECT id FROM orders", ["day"], el.InvalidInput, "primary_key"),
    ("SELECT id FROM orders", "id", el.InvalidInput, "list of column names"),
    ("SELECT id, RAND() AS r FROM orders", ["id"], el.InvalidInput, "(?i)rand"),
    ("SELECT id, CURRENT_TIMESTAMP() AS t FROM orders", ["id"], el.InvalidInput, "(?i)current_timestamp"),
    (
        "WITH RECURSIVE r AS (SELECT 1 AS id UNION ALL SELECT id + 1 FROM r WHERE id < 5) SELECT id FROM r",
        ["id"], el.InvalidInput, "WITH RECURSIVE",
    ),
    ("SELECT * FROM read_csv('/etc/passwd')", ["id"], el.InvalidInput, "(?i)read_csv|table function"),
])  # fmt: skip
def test_a_query_that_cannot_be_kept_is_refused(
    shop: Shop, sql: str, key: Any, error: type[Exception], message: str
) -> None:
    before = [info.name for info in shop.store.jobs()]
    with pytest.raises(error, match=message):
        shop.store.create_view("v", sql, key)
    assert [info.name for info in shop.store.jobs()] == before


def test_a_view_is_created_once(shop: Shop) -> None:
    with pytest.raises(el.JobExists):
        shop.store.create_view("revenue", REVENUE, ["day"])
    assert shop.store.create_view("revenue", REVENUE, ["day"], exist_ok=True).name == "revenue"
    with pytest.raises(el.JobExists, match="its query is"):
        shop.store.create_view("revenue", REVENUE.replace("SUM", "MAX"), ["day"], exist_ok=True)
    with pytest.raises(el.OutputOwned):
        shop.store.create_view("customers", "SELECT id FROM orders", ["id"])
    with pytest.raises(el.TableInUse):
        shop.store.drop_view("by_region")
    shop.store.drop_view("best_day")
    shop.store.drop_view("by_region")
    with pytest.raises(el.JobNotFound):
        shop.store.view("by_region")


def test_rows_with_one_key_are_refused_and_nothing_lands(shop: Shop) -> None:
    view = shop.store.create_view("days", "SELECT day, customer FROM orders", ["day"])
    shop.store.table("orders").upsert(pa.table([[1, 2], [1, 2], [1, 1], [10, 20]], schema=ORDERS))
    shop.store.checkpoint()
    with pytest.raises(el.InvalidInput, match="'day': 1|day.*1"):
        view.step()
    assert not view.info.committed_epoch and "InvalidInput" in (view.info.last_error or "")
    shop.store.table("orders").delete(pa.table({"id": [2]}))
    shop.store.checkpoint()
    wait_until(lambda: view.step() is not None)
    assert shop.store.table("days").count() == 1


def test_a_views_job_takes_no_other_refresh(shop: Shop) -> None:
    job = shop.store.job("revenue")
    with pytest.raises(el.InvalidInput, match="store.view"):
        job.step_local(lambda ctx: None)
    pipeline = el.Pipeline(shop.store)
    with pytest.raises(el.InvalidInput, match="store.view"):
        pipeline.add(job, lambda ctx: None)
    with pytest.raises(el.InvalidInput, match="without a refresh"):
        pipeline.add(shop.store.view("revenue"), lambda ctx: None)
    plain = shop.store.create_job("plain", ["orders"], {"plain": (CUSTOMERS, ["id"])})
    with pytest.raises(el.InvalidInput, match="no view"):
        shop.store.view("plain")
    with pytest.raises(el.InvalidInput, match="refresh is a function"):
        pipeline.add(plain)


@pytest.mark.medium
def test_a_pipeline_takes_views(shop: Shop) -> None:
    pipeline = el.Pipeline(shop.store)
    for name in VIEWS:
        pipeline.add(shop.store.view(name))
    for _ in range(3):
        shop.change()
        pipeline.run(until="idle")
        shop.check()


@pytest.mark.medium
def test_replaced_views_change_at_one_epoch(tmp_path: Path) -> None:
    """Read all the time at one epoch, while both views are replaced again and again, and one of them is slow."""
    with el.open(tmp_path / "store", durability="os", checkpoint_interval_ms=10) as store:
        orders = store.create_table("orders", ORDERS, ["id"])
        orders.upsert(pa.table([[1], [1], [1], [10]], schema=ORDERS))
        for name in ("a", "b"):
            store.create_view(name, "SELECT day, SUM(cents) AS cents FROM orders GROUP BY day", ["day"])
        store.checkpoint()
        a, b = store.view("a"), store.view("b")
        a.step()
        b.step()
        seen: list[tuple[Any, ...]] = []
        stop = threading.Event()

        def read() -> None:
            while not stop.is_set():
                with store.snapshot(["a", "b"], consistency="aligned") as snapshot:
                    seen.append(tuple(snapshot[name].to_arrow().column("cents").to_pylist() for name in ("a", "b")))

        def wait_for_reads() -> None:
            count = len(seen)
            wait_until(lambda: len(seen) > count + 2)

        reader = threading.Thread(target=read)
        reader.start()
        try:
            for factor in range(2, 6):
                query = f"SELECT day, SUM(cents) * {factor} AS cents FROM orders GROUP BY day"
                at = store.replace_views({"a": query, "b": query})
                wait_for_reads()
                assert a.step() == at
                wait_for_reads()
                orders.upsert(pa.table([[1], [1], [1], [10 * factor]], schema=ORDERS))
                store.checkpoint()
                a.step()
                assert b.step() == at
                b.step()
        finally:
            stop.set()
            reader.join()
        assert all(first == second for first, second in seen), seen
        assert len({str(first) for first, _ in seen}) > 3


@pytest.mark.medium
def test_a_replacement_that_does_not_fit_changes_no_view(shop: Shop) -> None:
    shop.step()
    good = REVENUE.replace("SUM(cents)", "SUM(cents) * 2")
    for other, error in [
        ({"total": "SELECT 1 AS one, 'x' AS cents FROM orders"}, el.SchemaMismatch),
        ({"total": "SELECT 1 AS one FROM orders"}, el.SchemaMismatch),
        ({"by_region": "SELECT region, day, cents, 1 AS known FROM best_day"}, (el.JobCycle, el.SchemaMismatch)),
        ({"nothing": good}, el.JobNotFound),
    ]:
        with pytest.raises(error):
            shop.store.replace_views({"revenue": good, **other})
        assert shop.store.view("revenue").sql == REVENUE
    with pytest.raises(el.InvalidInput):
        shop.store.replace_views({})


@pytest.mark.parametrize("columns, difference", [
    ("id, region, 1 AS extra", "adds extra int"),
    ("id", "lacks region"),
    ("id, LENGTH(region) AS region", "has region int32"),
    ("region, id", "in another order: region, id"),
])  # fmt: skip
def test_a_query_with_other_columns_is_told_apart(shop: Shop, columns: str, difference: str) -> None:
    """Views that read `*` of the view keep its columns: it cannot gain any."""
    shop.store.create_view("first", "SELECT * FROM customers", ["id"])
    shop.store.create_view("second", "SELECT * FROM first", ["id"])
    with pytest.raises(el.SchemaMismatch, match=difference) as error:
        shop.store.replace_views({"first": f"SELECT {columns} FROM customers", "second": "SELECT * FROM first"})
    assert all(step in str(error.value) for step in ("cast", "another name", "drop the view"))
    with pytest.raises(el.TableInUse, match="second"):
        shop.store.drop_view("first")
    shop.store.drop_view("second")
    shop.store.drop_view("first")
    shop.store.create_view("first", f"SELECT {columns} FROM customers", ["id"])


WORKER = """
import sys, epochlog as el
with el.open(sys.argv[1], durability="os") as store:
    pipeline = el.Pipeline(store)
    for info in store.jobs():
        pipeline.add(store.view(info.name))
    print("up", flush=True)
    pipeline.run()
"""


@pytest.mark.slow
@pytest.mark.local_only
def test_views_are_right_after_their_process_was_killed_again_and_again(shop: Shop) -> None:
    for _ in range(4):
        child = subprocess.Popen([sys.executable, "-c", WORKER, shop.store.root], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None and child.stdout.readline() == "up\n"
        before = shop.store.view("revenue").info.committed_epoch
        for _ in range(shop.chance.randrange(1, 5)):
            shop.change()
        wait_until(lambda before=before: shop.store.view("revenue").info.committed_epoch > before)
        shop.change()
        child.kill()
        child.communicate()
        wait_until(lambda: _stepped(shop))
        shop.check()


def _stepped(shop: Shop) -> bool:
    """Step every view; return True when the dead runner's leases have ended and all have caught up."""
    shop.store.checkpoint()
    for name in VIEWS:
        try:
            while shop.store.view(name).step() is not None:
                pass
        except el.JobRunning:
            return False
    return True


@pytest.mark.medium
def test_rows_of_two_groups_with_one_key_are_refused(shop: Shop) -> None:
    view = shop.store.create_view("largest", "SELECT customer, MAX(cents) AS k FROM orders GROUP BY customer", ["k"])
    assert "(customer)" in view.explain()
    orders = shop.store.table("orders")
    rows = [{"id": 1, "day": 1, "customer": 1, "cents": 10}, {"id": 2, "day": 1, "customer": 2, "cents": 20}]
    orders.upsert(pa.Table.from_pylist(rows, schema=ORDERS))
    shop.store.checkpoint()
    assert view.step()
    orders.upsert(pa.Table.from_pylist([{**rows[1], "cents": 10}], schema=ORDERS))
    shop.store.checkpoint()
    with pytest.raises(el.InvalidInput, match="several rows with the key {'k': 10}"):
        view.step()
    assert shop.store.table("largest").to_arrow()["k"].to_pylist() == [10, 20]
    orders.upsert(pa.Table.from_pylist([{**rows[0], "cents": 30}], schema=ORDERS))  # a key moves between the groups
    shop.store.checkpoint()
    view.rebuild()
    assert view.step()
    assert shop.store.table("largest").to_arrow()["k"].to_pylist() == [10, 30]


def test_refreshes_share_one_database_and_see_no_tables_of_each_other() -> None:
    with duckdb_engine._connected() as left, duckdb_engine._connected() as right:
        left.register("t", pa.table({"k": [1]}))
        right.register("t", pa.table({"k": [2]}))
        assert [c.sql("FROM t").fetchall() for c in (left, right)] == [[(1,)], [(2,)]]
        assert left.sql("SELECT current_setting('TimeZone')").fetchall() == [("UTC",)]
        with pytest.raises(duckdb.PermissionException):
            left.sql("FROM read_csv('/etc/passwd')")
    with duckdb_engine._connected() as later, pytest.raises(duckdb.CatalogException):
        later.sql("FROM t")
    assert duckdb_engine._database.cache_info().currsize == 1


@pytest.mark.logs("engine_reset")
@pytest.mark.medium
def test_views_go_on_after_an_internal_error_of_duckdb(shop: Shop) -> None:
    """It ends the database, which the views of a process share."""
    with duckdb_engine._connected() as connection:
        connection.register("t", pa.table({"a": pa.array([], pa.int64())}))
        unlucky = """
            SELECT 1 FROM (SELECT COUNT(*) AS n) ANTI JOIN t s ON (SELECT COUNT(*) FROM t u) > 0
            ANTI JOIN t w ON w.a IN (0, 1)
        """
        with pytest.raises(duckdb.InternalException):
            connection.sql(unlucky).fetchall()
        with pytest.raises(duckdb.FatalException):
            connection.sql("SELECT 1").fetchall()
    shop.change()
    shop.step()
    shop.check()


@pytest.mark.parametrize("touched, rows, expected", [
    (5_000, 10_000, True), (4_999, 10_000, False), (9_999, 9_999, False), (0, 0, False), (30_000, 20_000, True),
])  # fmt: skip
def test_the_choice_of_a_refresh_is_by_rows(touched: int, rows: int, expected: bool) -> None:
    assert recomputes_all(touched, rows) == expected


@pytest.mark.medium
def test_a_change_of_most_rows_recomputes_all(tmp_path: Path) -> None:
    with el.open(tmp_path / "store", durability="os") as store:
        views, orders = many_orders(store)
        operations = {}
        for share in (0.6, 0.1):
            change_orders(store, orders, share)
            for name, view in views.items():
                assert view.step() and raw_check(view).ok
                operations[name, share] = store.table(name).history()["operation"].to_pylist()[0]
        assert operations == {
            ("auto", 0.6): "recompute",
            ("auto", 0.1): "refresh",
            ("incremental", 0.6): "refresh",
            ("incremental", 0.1): "refresh",
            ("full", 0.6): "recompute",
            ("full", 0.1): "recompute",
        }
        assert "recomputes all rows" in views["auto"].explain()
        assert "recomputes all rows" not in views["incremental"].explain()


def test_nested_values_are_handed_on(tmp_path: Path) -> None:
    nested = pa.struct([("x", pa.int64()), ("tags", pa.list_(pa.string()))])
    schema = pa.schema(
        [("id", pa.int64()), ("n", nested), ("l", pa.list_(pa.int32())), ("m", pa.map_(pa.string(), pa.int64()))]
    )
    rows = [
        {"id": 1, "n": {"x": 1, "tags": ["a", None]}, "l": [1, None], "m": [("k", 1)]},
        {"id": 2, "n": {"x": None, "tags": []}, "l": [], "m": []},
        {"id": 3, "n": None, "l": None, "m": None},
    ]
    with el.open(tmp_path / "store", durability="os", checkpoint_interval_ms=10) as store:
        table = store.create_table("t", schema, ["id"])
        table.upsert(pa.Table.from_pylist(rows, schema=schema))
        view = store.create_view("v", "SELECT id, n, l, m FROM t WHERE id <> 2", ["id"])
        store.checkpoint()
        assert view.step() and store.table("v").to_arrow().to_pylist() == [rows[0], rows[2]]
        changed = {**rows[2], "n": {"x": 7, "tags": None}}
        table.upsert(pa.Table.from_pylist([changed], schema=schema))
        store.checkpoint()
        assert view.step() and store.table("v").to_arrow().to_pylist() == [rows[0], changed]
        assert raw_check(view).ok and store.table("v").schema == table.schema
