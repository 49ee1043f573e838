"""One barrier for all jobs of a graph is a global checkpoint: readers see all of it, or the one before."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import epochlog as el

ORDERS = pa.schema([("id", pa.int64()), ("day", pa.int64()), ("cents", pa.int64())])
VIEWS = {
    "revenue": ("SELECT day, SUM(cents) AS cents FROM orders GROUP BY day", ["day"]),
    "of_days": ("SELECT day, COUNT(*) AS n FROM orders GROUP BY day", ["day"]),
    "best": ("SELECT cents, COUNT(*) AS n FROM revenue GROUP BY cents", ["cents"]),
}
NAMES = ["orders", *VIEWS]
INTERVAL_MS = 3_600_000  # only requested boundaries occur


@pytest.fixture
def store(tmp_path: Path) -> Iterator[el.Store]:
    with el.open(tmp_path / "lake", checkpoint_interval_ms=INTERVAL_MS) as made:
        made.create_table("orders", ORDERS, ["id"]).upsert(pa.table([[1], [1], [5]], schema=ORDERS))
        for name, (sql, key) in VIEWS.items():
            made.create_view(name, sql, key)
        made.checkpoint()
        for name in VIEWS:
            made.view(name).step()
        yield made


def read(store: el.Store) -> tuple[int, int]:
    """Return the one epoch of all tables under `global`, and the number of orders, after a comparison of each view with
    its query.
    """
    with store.snapshot(NAMES) as moment:
        epochs = set(moment.epochs.values())
        connection = moment.duckdb()
        for name, (sql, _) in VIEWS.items():
            differing = f"(FROM {name} EXCEPT ALL ({sql})) UNION ALL (({sql}) EXCEPT ALL FROM {name})"
            assert connection.execute(differing).fetchall() == [], name
        (epoch,) = epochs
        return epoch, moment["orders"].count()


def assert_reads_before(store: el.Store, barrier: int) -> None:
    epoch, orders = read(store)
    assert epoch < barrier and orders == 1


@pytest.mark.parametrize("order", [
    order for order in itertools.permutations(VIEWS) if order.index("revenue") < order.index("best")
])  # fmt: skip
@pytest.mark.medium
def test_readers_see_the_barrier_when_the_last_job_has_committed(store: el.Store, order: tuple[str, ...]) -> None:
    store.table("orders").upsert(pa.table([[2, 3], [1, 2], [7, 9]], schema=ORDERS))
    barrier = store.checkpoint()
    for name in order:
        assert_reads_before(store, barrier)
        assert store.view(name).step() == barrier
    assert read(store) == (barrier, 3)
    commits = {name: store.table(name).history().num_rows for name in VIEWS}
    assert commits == dict.fromkeys(VIEWS, 2)


@pytest.mark.medium
def test_a_barrier_that_was_cut_off_is_finished_by_another_process(store: el.Store) -> None:
    store.table("orders").upsert(pa.table([[2, 3], [1, 2], [7, 9]], schema=ORDERS))
    barrier = store.checkpoint()
    assert store.view("revenue").step() == barrier
    root = store.root
    store.close()
    with el.open(root) as successor:
        assert_reads_before(successor, barrier)
        for name in ("of_days", "best"):
            assert successor.view(name).step() == barrier
        assert successor.view("revenue").step() is None
        assert read(successor) == (barrier, 3)
