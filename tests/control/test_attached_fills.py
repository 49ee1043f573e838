"""Fills of views by chunks under a coordinator: the only driver takes the chunks, and none is dropped."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import epochlog as el
from attached_fixture import ORDERS, Driver, add_orders
from control_fixture import TOKEN, open_worker, settings
from epochlog.checkpoint.job.runner import JobRunner
from raw_check import raw_check
from wait_until import wait_until

SUMS = "SELECT day, SUM(cents) AS cents, COUNT(*) AS n, MAX(id) AS last FROM orders GROUP BY day"


def make(root: Path) -> el.Store:
    """Make a store with ten orders, and a view that takes them in by four chunks."""
    store = el.open(root, durability="os", checkpoint_interval_ms=20)
    store.create_table("orders", ORDERS, ["id"])
    add_orders(store, 0, 10)
    store.checkpoint()
    store.create_view("v", SUMS, ["day"], snapshot_rows=3)
    return store


@contextmanager
def driven(store: el.Store, chunks: list[int]) -> Iterator[Driver]:
    """Drive the view under a coordinator; note the rows of each chunk."""
    view = store.view("v")

    def refresh(ctx: Any) -> None:
        view.refresh(ctx)
        chunks.append(ctx.changes("orders").num_rows if ctx.plan.next_cursor else -1)
        assert view.info.runner is not None and view.info.runner.kind == "coordinator"

    with el.serve(store, token=TOKEN, control=settings()) as server, open_worker(server, store) as worker:
        worker.await_answer()
        driver = Driver(store, worker, refresh, name="v").start()
        try:
            yield driver
        finally:
            driver.stop()


def settle(store: el.Store, commits: int = 1) -> None:
    def is_settled() -> bool:
        store.checkpoint()
        return store.table("v").history().num_rows >= commits and not store.view("v").info.rebuilding

    wait_until(is_settled)
    assert raw_check(store.view("v")).ok


def test_the_only_driver_takes_a_fill_by_chunks(tmp_path: Path) -> None:
    with make(tmp_path / "store") as store:
        chunks: list[int] = []
        with driven(store, chunks) as driver:
            settle(store)
            assert chunks[:4] == [3, 3, 3, 1]
            add_orders(store, 10, 5)
            store.view("v").rebuild()
            settle(store, 2)
            assert driver.error is None
        assert [rows for rows in chunks if rows > 0][4:] == [3] * 5 and store.verify().ok


def test_chunks_that_were_taken_alone_are_kept(tmp_path: Path) -> None:
    with make(tmp_path / "store") as store:
        view = store.view("v")
        for _ in range(2):
            assert view._runner.step_local(view.refresh) == 0
        add_orders(store, 5, 10)  # chunks of another epoch would have their rows
        chunks: list[int] = []
        with driven(store, chunks) as driver:
            settle(store)
            assert chunks[:2] == [3, 1] and driver.error is None


@pytest.mark.planted
def test_a_coordinator_that_drops_chunks_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = JobRunner.begin

    def dropping(runner: JobRunner, *, keep_chunks: bool = False, unchunked: bool = False, **options: Any) -> Any:
        return begin(runner, unchunked=unchunked or keep_chunks, **options)

    monkeypatch.setattr(JobRunner, "begin", dropping)
    with pytest.raises(AssertionError):
        test_chunks_that_were_taken_alone_are_kept(tmp_path)


DRIVER = """
import sys
import epochlog as el
from attached_fixture import Driver
from control_fixture import open_worker
with el.open(sys.argv[1], create=False, durability="os") as store, open_worker(sys.argv[2], store) as worker:
    worker.await_answer()
    driver = Driver(store, worker, store.view("v").refresh, name="v", take_over=True)
    while True:
        driver.step()
"""


@pytest.mark.medium
@pytest.mark.local_only
def test_a_driver_that_is_killed_in_each_chunk_repeats_none(tmp_path: Path) -> None:
    path = os.pathsep.join([str(Path(el.__file__).parents[2] / "tests" / "support"), *sys.path])
    with make(tmp_path / "store") as store:
        with el.serve(store, token=TOKEN, control=settings()) as server:
            for chunk in range(1, 5):
                armed = {**os.environ, "PYTHONPATH": path, "EPOCHLOG_KILL_AT": "piece:recorded:1"}
                command = [sys.executable, "-c", DRIVER, str(tmp_path / "store"), server.location]
                child = subprocess.run(command, env=armed, capture_output=True, check=False)
                assert child.returncode == -9, child.stderr
                assert store.view("v").info.snapshot_rows == min(3 * chunk, 10)
                store.table("orders").upsert(pa.table([[chunk], ["day-9"], [100]], schema=ORDERS))
            chunks: list[int] = []
        with driven(store, chunks):
            settle(store)
            assert not [rows for rows in chunks[:1] if rows > 0]
        assert store.verify().ok
