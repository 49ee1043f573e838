"""Several processes on one store: they create it together and commit together; and what a forked child may do."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

import epochlog as el
from crash.children import child, lines
from crash.committer import ROWS, SCHEMA, rows_of
from epochlog.testing.catalog_conformance import in_a_fork


@pytest.mark.medium
def test_processes_that_create_and_commit_at_once_lose_and_double_nothing(tmp_path: Path) -> None:
    processes, count = 3, 10
    with ExitStack() as stack:
        racers = [stack.enter_context(child("racer", tmp_path / "s", name, count)) for name in range(processes)]
        assert [lines(racer, 1) for racer in racers] == [[f"ready {tmp_path / 's'}"]] * processes
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write("go\n")
            racer.stdin.flush()
        printed_lines = [[line.split() for line in lines(racer, count)] for racer in racers]
    acknowledged = [int(epoch) for lines_said in printed_lines for _, _, epoch in lines_said]
    assert len(set(acknowledged)) == processes * count
    with el.open(tmp_path / "s") as store:
        history = store.table("t").history().to_pylist()
        assert sorted(row["epoch"] for row in history) == sorted(acknowledged)
        assert {(row["txn"]["application"], row["txn"]["id"]) for row in history} == {
            (str(name), number) for name in range(processes) for number in range(count)
        }
        counts = Counter(store.table("t").to_arrow()["n"].to_pylist())
        assert counts == {name * 1_000_000 + n: ROWS for name in range(processes) for n in range(count)}
        assert store.verify().ok


# ---- forks -------------------------------------------------------------------------------------------------------


def test_a_forked_child_reads_and_commits_with_the_store_of_its_parent(tmp_path: Path) -> None:
    with el.open(tmp_path / "s") as store:
        table = store.create_table("t", SCHEMA, ["id"])
        table.upsert(rows_of(0))

        def work() -> None:
            assert table.count() == ROWS
            table.upsert(rows_of(1))
            store.close()

        in_a_fork(work)
        table.upsert(rows_of(2))
        assert table.count() == 3 * ROWS
        assert len(set(table.history()["epoch"].to_pylist())) == 3
        assert store.verify().ok


@pytest.mark.medium
def test_a_child_forked_while_threads_commit_is_not_stuck(tmp_path: Path) -> None:
    """A lock that another thread holds at the moment of the fork is never released in the child."""
    with el.open(tmp_path / "s", durability="os") as store:
        table = store.create_table("t", SCHEMA, ["id"])
        over = threading.Event()
        started = threading.Barrier(3)

        def commit(name: int) -> None:
            started.wait()
            number = 0
            while not over.is_set():
                table.upsert(rows_of(name * 1_000_000 + number), txn=(str(name), number))
                number += 1

        threads = [threading.Thread(target=commit, args=(name,)) for name in range(2)]
        for thread in threads:
            thread.start()
        started.wait()
        try:
            for number in range(8):
                in_a_fork(lambda number=number: store.checkpoint() and None)
        finally:
            over.set()
            for thread in threads:
                thread.join()
        assert store.verify().ok


def test_a_child_gives_back_nothing_of_what_its_parent_holds(tmp_path: Path) -> None:
    now = [1_767_225_600_000]
    with el.open(tmp_path / "s", clock=lambda: now[0]) as store:
        table = store.create_table("t", SCHEMA, ["id"], options=el.TableOptions(history_retention=timedelta(0)))
        pinned = table.upsert(rows_of(0))
        with store.snapshot(["t"], consistency="latest") as snapshot:
            in_a_fork(snapshot.close)
            in_a_fork(store.close)
            now[0] += 1
            table.upsert(rows_of(1))
            now[0] += 1
            store.compact("t")
            assert table.count(pinned) == ROWS
            assert table.info.safe_epoch == pinned
        store.compact("t", full=True)
        assert table.info.safe_epoch > pinned


# ---- threads -----------------------------------------------------------------------------------------------------


def test_closing_a_store_under_commits_ends_them_with_a_typed_error(tmp_path: Path) -> None:
    for _ in range(5):
        store = el.open(tmp_path / "s", durability="os")
        table = store.table("t") if store.tables() else store.create_table("t", SCHEMA, ["id"])
        started, errors = threading.Barrier(3), list[type[el.EpochlogError]]()

        def commit(
            table: el.Table = table,
            started: threading.Barrier = started,
            errors: list[type[el.EpochlogError]] = errors,
        ) -> None:
            started.wait()
            try:
                while True:
                    table.upsert(pa.table({"id": [1], "n": [1]}))
            except el.EpochlogError as error:
                errors.append(type(error))

        threads = [threading.Thread(target=commit) for _ in range(2)]
        for thread in threads:
            thread.start()
        started.wait()
        count = len(table.history())
        while len(table.history()) < count + 3:
            pass
        store.close()
        for thread in threads:
            thread.join()
        assert errors == [el.StoreClosed] * 2
    with el.open(tmp_path / "s") as store:
        assert store.verify().ok
