"""Backfills of views by chunks: each view is its text over its upstreams at the epoch of the fill, or not valid."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import epochlog as el
from epochlog.checkpoint.job import refresh_plan, runner
from epochlog.views import chunks
from epochlog.views.duckdb_engine import LocalEngine
from epochlog.views.reads import Reads
from lab import Lab
from raw_check import raw_check
from seeds import seeds
from view_shop import BY_REGION, CUSTOMERS, ORDERS

SUMS = "SELECT day, SUM(cents) AS cents, COUNT(*) AS n, MIN(cents) AS least, MAX(id) AS last FROM orders GROUP BY day"
JOINED = """
    WITH dear AS (SELECT id, customer, cents FROM orders WHERE cents > 5)
    SELECT d.id, d.cents, c.region FROM dear d LEFT JOIN customers c ON c.id = d.customer
"""
RANKED = """
    SELECT o.id, c.id AS customer, SUM(c.id) OVER (PARTITION BY o.id ORDER BY c.id) AS total
    FROM orders o JOIN customers c ON c.id >= o.customer
"""
OF_CUSTOMER = "SELECT o.id, COUNT(DISTINCT c.region) AS regions FROM customers c CROSS JOIN orders o GROUP BY o.id"
DECIMALS = """
    SELECT day, CAST(SUM(CAST(cents AS DECIMAL(10, 2))) AS DECIMAL(20, 3)) AS cents, day + 1 AS following,
        CAST(SUM(id) AS BIGINT) AS ids
    FROM orders GROUP BY day
"""
BY_CHUNKS = {
    "sums": (SUMS, ["day"]),
    "decimals": (DECIMALS, ["day"]),
    "joined": (JOINED, ["id"]),
    "by_region": (BY_REGION, ["region", "day"]),
    "ranked": (RANKED, ["id", "customer"]),
    "of_customer": (OF_CUSTOMER, ["id"]),
}
"""Views whose largest table, `orders`, is taken in by chunks."""
AT_ONCE = {
    "average": ("SELECT day, AVG(cents) AS cents FROM orders GROUP BY day", ["day"], "does not follow from"),
    "distinct": ("SELECT day, COUNT(DISTINCT cents) AS n FROM orders GROUP BY day", ["day"], "does not follow from"),
    "having": (
        "SELECT day, SUM(cents) AS c FROM orders GROUP BY day HAVING SUM(cents) > 9",
        ["day"],
        "a group has rows",
    ),
    "floats": ("SELECT day, SUM(CAST(cents AS DOUBLE)) AS c FROM orders GROUP BY day", ["day"], "is of type double"),
    "wide sums": (
        "SELECT day, CAST(SUM(CAST(cents AS DECIMAL(30, 2))) AS DECIMAL(38, 2)) AS c FROM orders GROUP BY day",
        ["day"],
        "is of type decimal128(38, 2)",
    ),
    "rounded sums": (
        "SELECT day, CAST(SUM(CAST(cents AS DECIMAL(10, 2))) AS DECIMAL(20, 1)) AS c FROM orders GROUP BY day",
        ["day"],
        "does not follow from",
    ),
    "other key": ("SELECT customer, id FROM orders WHERE id > 12", ["customer"], "primary key lacks its key"),
    "limit": ("SELECT id, cents FROM orders ORDER BY cents, id LIMIT 5", ["id"], "LIMIT"),
    "window": ("SELECT id, SUM(cents) OVER (PARTITION BY day) AS c FROM orders", ["id"], "a window has rows"),
    "extended": (
        "SELECT c.id, COUNT(o.id) AS n FROM customers c LEFT JOIN orders o ON o.customer = c.id GROUP BY c.id",
        ["id"],
        "an outer join extends",
    ),
    "twice": ("SELECT a.id FROM orders a JOIN orders b ON a.id = b.id + 1", ["id"], "more than once"),
    "condition": ("SELECT id FROM customers WHERE id IN (SELECT customer FROM orders)", ["id"], "a subquery"),
    "union": ("SELECT id FROM orders UNION ALL SELECT id + 100 FROM customers", ["id"], "a set operation"),
    "select distinct": ("SELECT DISTINCT day FROM orders", ["day"], "DISTINCT"),
}
"""Views that take in `orders` at once, with the reason."""


def orders_of(rows: list[tuple[int, int, int, int | None]]) -> pa.Table:
    return pa.table([list(column) for column in zip(*rows, strict=True)], schema=ORDERS)


def shop(lab: Lab, rows: int = 13) -> None:
    """Orders in several segments, some replaced and deleted, and customers; some orders have none."""
    orders = lab.store.create_table("orders", ORDERS, ["id"])
    customers = lab.store.create_table("customers", CUSTOMERS, ["id"])
    orders.upsert(orders_of([(i, 0, 9, 1) for i in range(rows + 2)]))
    orders.upsert(orders_of([(i, i % 5, i % 3, None if i % 4 == 0 else i) for i in range(rows)]))
    orders.delete(pa.table({"id": [rows, rows + 1]}))
    customers.upsert(pa.table([[0, 1, 2, 7], ["eu", "us", "eu", None]], schema=CUSTOMERS))
    lab.tick()


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    lab = Lab(tmp_path / "store")
    shop(lab)
    return lab


def by_chunks(view: el.View) -> list[int | None]:
    """Run the chunks of a backfill one by one, as a pipeline does, and its commit; return the steps' results."""
    results = [view._runner.step_local(view.refresh)]
    while results[-1] == 0:
        results.append(view._runner.step_local(view.refresh))
    return results


@pytest.mark.rule("R10")
@pytest.mark.parametrize("rows", [1, 4, 12])
@pytest.mark.parametrize("name", BY_CHUNKS)
def test_chunks_make_the_view(lab: Lab, name: str, rows: int) -> None:
    view = lab.store.create_view(name, *BY_CHUNKS[name], snapshot_rows=rows)
    results = by_chunks(view)
    assert len(results) == -(-13 // rows) + 1 and results[-1]
    assert raw_check(view).ok and lab.store.table(name).history().num_rows == 1
    assert "orders: a backfill can take in its rows by chunks" in view.explain()


@pytest.mark.rule("R10")
@pytest.mark.parametrize("name", AT_ONCE)
def test_a_table_whose_chunks_do_not_make_the_view_is_taken_in_at_once(lab: Lab, name: str) -> None:
    sql, key, reason = AT_ONCE[name]
    if name == "other key":
        lab.store.table("orders").delete(pa.table({"id": range(12)}))
        lab.tick()
    view = lab.store.create_view("v", sql, key, snapshot_rows=4)
    line = next(line for line in view.explain().splitlines() if line.startswith("  orders: a backfill"))
    assert "takes in all its rows at once, because" in line and reason in line
    assert [bool(done) for done in by_chunks(view)] == [True]
    assert raw_check(view).ok


def test_a_table_of_no_more_rows_than_a_chunk_is_one_step(lab: Lab) -> None:
    for name, rows in (("as many", 13), ("default", None)):
        view = lab.store.create_view(name.replace(" ", "_"), SUMS, ["day"], snapshot_rows=rows)
        assert [bool(done) for done in by_chunks(view)] == [True] and raw_check(view).ok


@pytest.mark.rule("5.8")
def test_no_chunk_is_read_before_the_commit_and_all_are_of_one_epoch(lab: Lab) -> None:
    view = lab.store.create_view("v", SUMS, ["day"], snapshot_rows=4)
    above = lab.store.create_view("above", "SELECT day, cents FROM v", ["day"])
    for number in range(1, 5):
        assert view._runner.step_local(view.refresh) == 0
        lab.store.table("orders").upsert(orders_of([(number, 0, 0, 1000 * number), (100 + number, 0, 8, 1)]))
        lab.store.table("orders").delete(pa.table({"id": [12 - number]}))
        lab.tick()
        assert view.info.snapshot_rows == min(4 * number, 13) and view.info.committed_epoch == 0
        assert above.step() is None
        with pytest.raises(el.NoConsistentEpoch):
            lab.store.snapshot(["v"], consistency="aligned")
        lab.store.compact("orders", full=True)
    first = view.step()
    assert first and raw_check(view).ok
    assert view.step() and raw_check(view).ok
    assert above.step(until="newest") and raw_check(above).ok


def test_a_step_of_a_view_runs_all_chunks(lab: Lab) -> None:
    view = lab.store.create_view("v", SUMS, ["day"], snapshot_rows=2)
    assert view.step() and raw_check(view).ok and view.step() is None


def test_a_pipeline_fills_a_view_by_chunks(lab: Lab) -> None:
    views = [lab.store.create_view("v", SUMS, ["day"], snapshot_rows=4)]
    views.append(lab.store.create_view("above", "SELECT day, cents FROM v", ["day"], snapshot_rows=2))
    pipeline = el.Pipeline(lab.store)
    for view in views:
        pipeline.add(view)
    pipeline.run(until="idle")
    assert all(raw_check(view).ok for view in views)
    assert [lab.store.table(view.name).history().num_rows for view in views] == [1, 1]


@pytest.mark.parametrize("how", ["rebuild", "replace"])
def test_rebuilds_and_replacements_by_chunks_commit_the_difference(lab: Lab, how: str) -> None:
    view = lab.store.create_view("v", SUMS, ["day"], snapshot_rows=4)
    view.step()
    before = lab.store.table("v").to_arrow()
    if how == "rebuild":
        view.rebuild()
    else:
        lab.store.replace_views({"v": SUMS.replace("FROM orders", "FROM orders WHERE day < 2")})
    for _ in range(4):
        lab.tick()
        assert view._runner.step_local(view.refresh) == 0
        assert lab.store.table("v").to_arrow().equals(before)
    assert view._runner.step_local(view.refresh) and raw_check(view).ok
    written = lab.store.table("v").history().slice(0, 1).to_pylist()[0]
    assert (written["rows_upserted"], written["rows_deleted"]) == (0, int(how == "replace"))


def test_a_replacement_drops_the_chunks_of_the_query_before(lab: Lab) -> None:
    view = lab.store.create_view("v", SUMS, ["day"], snapshot_rows=4)
    assert view._runner.step_local(view.refresh) == 0
    lab.store.replace_views({"v": SUMS.replace("SUM(cents)", "SUM(cents * 2)")})
    assert view.info.snapshot_rows == 0 and view.step() and raw_check(view).ok


def test_a_view_is_cancelled_between_two_chunks(lab: Lab) -> None:
    view = lab.store.create_view("v", SUMS, ["day"], snapshot_rows=4)
    assert view._runner.step_local(view.refresh) == 0
    view.job.cancel()
    with pytest.raises(el.JobNotFound):
        view.step()
    report = lab.store.verify()
    assert report.ok and "v" not in lab.store.tables()


def test_a_query_without_valid_rows_drops_the_chunks_and_begins_at_a_later_boundary(lab: Lab) -> None:
    """Chunks of the first epoch in a fill of a later one would keep rows that the table has no more."""
    lab.store.table("orders").upsert(orders_of([(11, 0, 0, 1 << 40)]))
    lab.tick()
    view = lab.store.create_view("v", "SELECT id, CAST(cents AS INT) AS cents FROM orders", ["id"], snapshot_rows=4)
    assert view._runner.step_local(view.refresh) == 0 and view._runner.step_local(view.refresh) == 0
    with pytest.raises(el.InvalidInput):
        view._runner.step_local(view.refresh)
    assert (view.info.state, view.info.snapshot_rows) == ("failed", 0)
    lab.store.table("orders").upsert(orders_of([(1, 0, 0, 7), (11, 0, 0, 50)]))
    lab.store.table("orders").delete(pa.table({"id": [2]}))
    lab.tick()
    assert [bool(done) for done in by_chunks(view)] == [False] * 3 + [True] and raw_check(view).ok
    assert lab.store.verify().ok


@pytest.mark.parametrize(
    "error", [OSError("disk"), KeyboardInterrupt(), el.LimitExceeded("memory"), el.WriteFailed("disk")]
)
def test_chunks_outlive_an_error_that_is_not_of_the_rows(lab: Lab, error: BaseException) -> None:
    view = lab.store.create_view("v", SUMS, ["day"], snapshot_rows=4)
    assert view._runner.step_local(view.refresh) == 0

    def fail(ctx: Any) -> None:
        raise error

    lab.tick()
    with pytest.raises(type(error)):
        view._runner.step_local(fail)
    assert view.info.snapshot_rows == 4
    assert len(by_chunks(view)) == 4 and raw_check(view).ok


def test_a_sum_of_some_chunks_that_does_not_fit_is_taken_in_at_once(lab: Lab) -> None:
    big = (1 << 62) + 1
    rows = [(i, 0, 0, big if i < 7 else -big) for i in range(13)]
    lab.store.table("orders").upsert(orders_of(rows))
    lab.tick()
    view = lab.store.create_view(
        "v", "SELECT day, SUM(cents) AS cents FROM orders GROUP BY day", ["day"], snapshot_rows=1
    )
    by_chunks(view)
    assert raw_check(view).ok


@pytest.mark.parametrize(("column", "big"), [("SUM(cents)", 1 << 62), ("CAST(SUM(cents) AS SMALLINT)", 30_000)])
def test_a_sum_that_does_not_fit_within_one_chunk_is_taken_in_at_once(lab: Lab, column: str, big: int) -> None:
    """The query of the chunk fails, and so did each further try; that of all rows does not."""
    lab.store.table("orders").upsert(orders_of([(i, 0, 0, big if i < 6 else -big) for i in range(12)]))
    lab.tick()
    sql = f"SELECT day, {column} AS cents FROM orders GROUP BY day"
    view = lab.store.create_view("v", sql, ["day"], snapshot_rows=6)
    by_chunks(view)
    assert raw_check(view).ok


def test_two_rows_with_one_key_within_a_chunk_are_an_error(lab: Lab) -> None:
    lab.store.table("orders").upsert(orders_of([(20, 7, 0, 1)]))
    lab.tick()
    view = lab.store.create_view(
        "v", "SELECT o.id, c.region FROM orders o JOIN customers c ON c.id < o.customer", ["id"], snapshot_rows=20
    )
    view.job.alter(snapshot_rows=5)
    with pytest.raises(el.InvalidInput, match="two rows|several rows|more than one row"):
        by_chunks(view)


def test_an_altered_number_of_rows_is_that_of_the_next_chunk(lab: Lab) -> None:
    view = lab.store.create_view("v", SUMS, ["day"])
    view.job.alter(snapshot_rows=5)
    assert view._runner.step_local(view.refresh) == 0
    view.job.alter(snapshot_rows=7)
    assert view._runner.step_local(view.refresh) == 0 and view.info.snapshot_rows == 12
    assert len(by_chunks(view)) == 2 and raw_check(view).ok
    with pytest.raises(el.InvalidInput, match="snapshot_rows"):
        view.job.alter(snapshot_rows=0)


def test_an_existing_view_keeps_its_number_of_rows(lab: Lab) -> None:
    lab.store.create_view("v", SUMS, ["day"], snapshot_rows=4)
    lab.store.create_view("v", SUMS, ["day"], exist_ok=True)
    with pytest.raises(el.JobExists, match="snapshot_rows is 4, not 5"):
        lab.store.create_view("v", SUMS, ["day"], snapshot_rows=5, exist_ok=True)


# ---- records of other releases ---------------------------------------------------------------------------------------


def record_of(store: el.Store, name: str) -> dict[str, Any]:
    return dict(store.job(name)._runner.record().to_record())


def test_a_record_has_format_2_while_a_fill_lasts(lab: Lab) -> None:
    """An earlier release, which computes the whole view in each chunk, refuses it then."""
    view = lab.store.create_view("v", SUMS, ["day"], snapshot_rows=4)
    assert "format" not in record_of(lab.store, "v")
    assert view._runner.step_local(view.refresh) == 0
    record = record_of(lab.store, "v")
    assert record["format"] == 2 and record["cursor"]["of_view"]
    view.step()
    assert "format" not in record_of(lab.store, "v")


def test_chunks_of_an_earlier_release_are_replaced_by_the_whole_view(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    view = lab.store.create_view("v", SUMS, ["day"], snapshot_rows=4)
    with monkeypatch.context() as earlier:
        earlier.setattr(Reads, "keys", lambda self, read: refresh_plan.ALL_KEYS)
        earlier.setattr(runner, "plan_chunk", _plan_of_earlier_release)
        assert view._runner.step_local(view.refresh) == 0
        assert "format" not in record_of(lab.store, "v") and record_of(lab.store, "v")["cursor"]["rows"] == 4
    assert view.step() and raw_check(view).ok


def _plan_of_earlier_release(files: Any, plan: refresh_plan.RefreshPlan) -> refresh_plan.RefreshPlan:
    return refresh_plan._narrowed(files, plan, plan.job.cursor or refresh_plan.Cursor())


# ---- random views and commits ---------------------------------------------------------------------------------------


def fill_at_random(root: Path, seed: int) -> int:
    """Fill views by chunks of random sizes while the tables change, then go on by steps; return the chunks."""
    chance, lab, taken = random.Random(seed), Lab(root), 0
    shop(lab, chance.choice([3, 13, 30]))

    def change() -> None:
        for _ in range(chance.randrange(3)):
            rows = [(chance.randrange(40), chance.randrange(8), chance.randrange(3), chance.choice([None, 1, -1, 50]))]
            if chance.random() < 0.7:
                lab.store.table("orders").upsert(orders_of(rows))
            else:
                lab.store.table("orders").delete(pa.table({"id": [rows[0][0]]}))
        if chance.random() < 0.4:
            row = pa.table([[chance.randrange(8)], [chance.choice(["eu", "us", None])]], schema=CUSTOMERS)
            lab.store.table("customers").upsert(row)
        lab.tick(chance.choice([0, 1, 2]))

    views = [
        lab.store.create_view(name, sql, key, snapshot_rows=chance.choice([1, 2, 5, 9]))
        for name, (sql, key) in BY_CHUNKS.items()
    ]
    for _ in range(60):
        change()
        view = chance.choice(views)
        if chance.random() < 0.1:
            view.rebuild()
        if chance.random() < 0.1:
            lab.reopen()
            views = [lab.store.view(view.name) for view in views]
            view = lab.store.view(view.name)
        done = view._runner.step_local(view.refresh)
        taken += done == 0
        if done:
            assert raw_check(view).ok, (seed, view.name)
    lab.tick()
    for view in views:
        while view.step() is not None:
            assert raw_check(view).ok, (seed, view.name)
    assert lab.store.verify().ok
    lab.store.close()
    return taken


@pytest.mark.medium
@pytest.mark.rule("R10")
@pytest.mark.parametrize("seed", seeds(range(6), 3))
def test_random_fills_beside_commits(tmp_path: Path, seed: int) -> None:
    assert fill_at_random(tmp_path / "store", seed) > 5


# ---- kills -----------------------------------------------------------------------------------------------------------

WORKER = """
import sys
import epochlog as el
with el.open(sys.argv[1], durability="os", checkpoint_interval_ms=10) as store:
    store.view("v").step(take_over=True)
"""
PLACES = ("piece:recorded", "segment:written", "job:before-commit", "job:after-commit", "rebuild:before-commit")


@pytest.mark.medium
@pytest.mark.local_only
@pytest.mark.parametrize("how", ["fill", "rebuild"])
@pytest.mark.parametrize("name", ["sums", "joined"])
def test_a_kill_in_each_chunk_repeats_at_most_that_chunk(tmp_path: Path, name: str, how: str) -> None:
    root = tmp_path / "store"
    with el.open(root, durability="os", checkpoint_interval_ms=10) as store:
        orders = store.create_table("orders", ORDERS, ["id"])
        store.create_table("customers", CUSTOMERS, ["id"]).upsert(
            pa.table([[0, 1, 2], ["eu", "us", None]], schema=CUSTOMERS)
        )
        orders.upsert(orders_of([(i, i % 5, i % 3, i + 10) for i in range(13)]))
        store.checkpoint()
        view = store.create_view("v", *BY_CHUNKS[name], snapshot_rows=5)
        if how == "rebuild":
            view.step()
            view.rebuild()
    done = 0
    for place, passed in (("segment:written", 1), ("piece:recorded", 1), ("segment:written", 1), ("piece:recorded", 1)):
        child = subprocess.run(
            [sys.executable, "-c", WORKER, str(root)],
            env={**os.environ, "EPOCHLOG_KILL_AT": f"{place}:{passed}"},
            capture_output=True,
            check=False,
        )
        assert child.returncode == -9, child.stderr
        done += 5 if place == "piece:recorded" else 0
        with el.open(root, durability="os", checkpoint_interval_ms=10) as store:
            assert store.view("v").info.snapshot_rows == done
            store.table("orders").upsert(orders_of([(100 + done, 0, 0, 1)]))
            store.checkpoint()
    with el.open(root, durability="os", checkpoint_interval_ms=10) as store:
        view = store.view("v")
        assert view.step(take_over=True) and raw_check(view).ok
        while view.step() is not None:
            assert raw_check(view).ok
        assert store.verify().ok


# ---- planted errors --------------------------------------------------------------------------------------------------


def _a_chunk_reads_all_rows(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Reads, "keys", lambda self, read: refresh_plan.ALL_KEYS)


def _merges_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LocalEngine, "merged", lambda self, output, rows, merges: rows)


def _minima_are_summed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(chunks, "MERGES", dict.fromkeys(chunks.MERGES, "sum"))


def _a_null_extended_side_is_divided(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(chunks, "_extends_others", lambda joins, place: False)


PLANTED: dict[Callable[[pytest.MonkeyPatch], None], str] = {
    _a_chunk_reads_all_rows: "sums",
    _merges_are_forgotten: "sums",
    _minima_are_summed: "sums",
}


# The examples of R10 in docs/VIEWS.md, with the wrong rows that a broken rule gives.
EXAMPLES = {
    "SELECT day, MAX(cents) AS most FROM orders GROUP BY day": ("day", _merges_are_forgotten, {"day": 1, "most": 10}),
    "SELECT c.id, COUNT(*) AS n FROM customers c LEFT JOIN orders o ON o.customer = c.id GROUP BY c.id": (
        "id",
        _a_null_extended_side_is_divided,
        {"id": 5, "n": 2},
    ),
}


@pytest.mark.planted
@pytest.mark.parametrize("sql", EXAMPLES)
def test_the_wrong_rows_of_the_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sql: str) -> None:
    lab, (key, plant, wrong) = Lab(tmp_path / "store"), EXAMPLES[sql]
    lab.store.create_table("orders", ORDERS, ["id"]).upsert(orders_of([(1, 6, 1, 20), (2, 5, 1, 10)]))
    customers = lab.store.create_table("customers", CUSTOMERS, ["id"])
    customers.upsert(pa.table([[5], ["eu"]], schema=CUSTOMERS))
    lab.tick()
    right = lab.store.create_view("right", sql, [key], snapshot_rows=1)
    assert right.step() and raw_check(right).ok
    plant(monkeypatch)
    view = lab.store.create_view("wrong", sql, [key], snapshot_rows=1)
    assert view.step() and lab.store.table("wrong").to_arrow().to_pylist() == [wrong]


@pytest.mark.planted
@pytest.mark.parametrize("plant", PLANTED)
def test_a_wrong_chunk_is_found(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        test_chunks_make_the_view(lab, PLANTED[plant], 4)
