"""Background maintenance: it does what is due, a slice at a time, survives what fails, and ends when it is told to."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import epochlog as el
from epochlog.store.compaction import executor, rewriter, subcompactions
from epochlog.store.compaction.task_record import CompactionOutcome, read_work
from epochlog.store.compaction.trace import read_traces
from epochlog.store.maintenance import scheduler
from epochlog.store.maintenance.scheduler import LOOK_AGAIN_MS, VACUUM_EVERY_MS, Maintenance, all_troubles
from lab import Lab
from logged_events import logged
from wait_until import WAIT_LIMIT_S

OPTIONS = el.TableOptions(
    history_retention=timedelta(seconds=10), log_retention=timedelta(minutes=1), compact_segments=2
)


@pytest.fixture
def worker(lab: Lab) -> Maintenance:
    """Maintenance on virtual time, without its thread."""
    return Maintenance(lab.store._handle)


def rounds(worker: Maintenance) -> int:
    """Rounds until nothing is left to do."""
    count = 1
    while worker.run_once():
        count += 1
    return count


def fill(lab: Lab, name: str = "r", commits: int = 4, rows: int = 1) -> el.Table:
    table = lab.root_table(name, options=OPTIONS)
    for number in range(commits):
        lab.put({number * rows + k: (number, k) for k in range(rows)}, name)
        lab.tick()
    return table


@pytest.mark.local_only
def test_a_round_lets_go_compacts_and_vacuums(lab: Lab, worker: Maintenance) -> None:
    table = fill(lab)
    rounds(worker)
    assert (table.info.runs, table.info.log_start_epoch, worker.errors) == (1, 0, {})
    assert lab.store._handle.catalog.read(lambda view: read_traces(view, 1))[0].by == "maintenance"
    rows = lab.rows("r")
    lab.now_ms += 120_000
    rounds(worker)
    info = table.info
    assert info.safe_epoch == info.log_start_epoch == info.max_committed_epoch and info.log_segments == 1
    before = len(list(lab.root.rglob("*.arrow")))
    lab.now_ms += 900_000
    rounds(worker)
    assert len(list(lab.root.rglob("*.arrow"))) == 1 < before
    assert lab.rows("r") == rows


def test_an_idle_store_is_left_alone(lab: Lab, worker: Maintenance) -> None:
    fill(lab)
    rounds(worker)
    before = lab.txn_id()
    for _ in range(3):
        lab.now_ms += 1
        assert not worker.run_once()
    assert lab.txn_id() == before


def test_large_compactions_take_turns(lab: Lab, worker: Maintenance, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subcompactions, "SUBCOMPACTION_ROWS", 8)
    monkeypatch.setattr("epochlog.store.sst.segment.BATCH_ROWS", 4)
    turns: list[str] = []
    compact = executor.compact_table

    def seen(handle: Any, table: Any, **options: Any) -> CompactionOutcome:
        outcome = compact(handle, table, **options)
        turns.append(table.name) if outcome is CompactionOutcome.PROGRESS else None
        return outcome

    monkeypatch.setattr(scheduler, "compact_table", seen)
    for name in ("a", "b"):
        fill(lab, name, rows=20)
    rounds(worker)
    assert len(turns) >= 4 and turns == ["a", "b"] * (len(turns) // 2)
    assert {lab.store.table(name).info.runs for name in "ab"} == {1}


@pytest.mark.logs("defect")
def test_what_fails_is_kept_visible_and_stops_nothing_else(
    lab: Lab, worker: Maintenance, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = fill(lab, "bad"), fill(lab, "good")
    fold = rewriter.Rewriter.rewrite

    def failing(self: Any, *args: Any, **options: Any) -> Any:
        if self.table.name == "bad":
            raise ValueError("no such luck")
        return fold(self, *args, **options)

    monkeypatch.setattr(rewriter.Rewriter, "rewrite", failing)
    rounds(worker)
    rounds(worker)
    assert (bad.info.runs, good.info.runs) == (0, 1)
    assert worker.errors == {"bad": "ValueError: no such luck"} and len(logged(caplog, "defect")) == 1
    troubles = lab.store._handle.catalog.read(all_troubles)
    assert {table: trouble.error for table, trouble in troubles.items()} == {1: "ValueError: no such luck"}
    assert lab.store.verify().ok
    monkeypatch.undo()
    lab.now_ms += LOOK_AGAIN_MS
    rounds(worker)
    assert (bad.info.runs, worker.errors, lab.store._handle.catalog.read(all_troubles)) == (1, {}, {})


def test_trouble_goes_with_its_table(lab: Lab, worker: Maintenance, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(lab)
    monkeypatch.setattr(scheduler, "compact_table", lambda *args, **options: 1 // 0)
    rounds(worker)
    assert lab.store._handle.catalog.read(all_troubles)
    lab.store.drop_table("r")
    assert not lab.store._handle.catalog.read(all_troubles) and lab.store.verify().ok


def test_vacuum_comes_now_and_then(lab: Lab, worker: Maintenance, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []

    def counted(handle: Any, **options: Any) -> el.VacuumReport:
        done.append(lab.now_ms)
        return el.VacuumReport()

    monkeypatch.setattr(scheduler, "vacuum", counted)
    for step in (0, 1, VACUUM_EVERY_MS - 2, 1, 5, -7, VACUUM_EVERY_MS):
        lab.now_ms += step
        worker.run_once()
    assert len(done) == 4, "at once, after each period, and when the clock was put back"


# ---- the thread --------------------------------------------------------------------------------------------------


def until(condition: threading.Event) -> None:
    assert condition.wait(WAIT_LIMIT_S)


def test_the_thread_compacts_when_a_commit_wakes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "PERIOD_S", 3600.0)
    done, compact = threading.Event(), scheduler.compact_table

    def seen(*args: Any, **options: Any) -> CompactionOutcome:
        outcome = compact(*args, **options)
        if outcome is CompactionOutcome.DONE:
            done.set()
        return outcome

    monkeypatch.setattr(scheduler, "compact_table", seen)
    with el.open(tmp_path / "s", durability="os", maintenance=True) as store:
        table = store.create_table("r", pa.schema([("k", pa.int64())]), ["k"], options=OPTIONS)
        for number in range(4):
            table.upsert(pa.table({"k": [number]}))
        until(done)
        assert table.info.runs == 1 and table.count() == 4
    assert "epochlog-maintenance" not in {thread.name for thread in threading.enumerate()}


def test_a_close_in_the_middle_of_a_compaction_waits_for_one_slice(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subcompactions, "SUBCOMPACTION_ROWS", 8)
    monkeypatch.setattr("epochlog.store.sst.segment.BATCH_ROWS", 4)
    fill(lab, rows=40)
    began, fold, folds = threading.Event(), rewriter.Rewriter.rewrite, list[int]()

    def slow(self: Any, *args: Any, **options: Any) -> Any:
        folds.append(1)
        began.set()
        assert closing.wait(WAIT_LIMIT_S)
        return fold(self, *args, **options)

    monkeypatch.setattr(rewriter.Rewriter, "rewrite", slow)
    worker = Maintenance(lab.store._handle)
    closing = worker._closing
    worker.start()
    until(began)
    worker.close()
    assert worker.errors == {} and len(folds) <= scheduler.SLICE
    work = lab.store._handle.catalog.read(lambda view: read_work(view, 1))
    assert work is not None and 0 < len(work.done) < len(work.subcompactions)
    lab.store.compact("r")
    assert lab.store.table("r").info.runs == 1 and len(lab.rows("r")) == 160


@pytest.mark.medium
def test_closing_twice_or_in_a_forked_child_is_harmless(tmp_path: Path) -> None:
    code = (
        "import os, sys, threading, epochlog as el\n"
        "store = el.open(sys.argv[1], maintenance=True)\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    names = [t.name for t in threading.enumerate()]\n"
        "    store._handle.wake_maintenance(); store.close()\n"
        "    os._exit(0 if 'epochlog-maintenance' not in names else 3)\n"
        "code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])\n"
        "store.close(); store.close(); sys.exit(code)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "s")], check=False, env=dict(os.environ))
    assert done.returncode == 0


def test_maintenance_is_true_or_false(tmp_path: Path) -> None:
    for wrong in (None, 1, "yes"):
        with pytest.raises(el.InvalidInput, match="maintenance"):
            el.open(tmp_path / "s", maintenance=wrong)  # pyright: ignore[reportArgumentType]
    assert not (tmp_path / "s").exists()


@pytest.mark.local_only
def test_a_log_that_had_nothing_to_pack_is_searched_again_after_more_files_or_a_minute(
    lab: Lab, worker: Maintenance, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches: list[str] = []
    packs = [1, 1]

    def searched(handle: Any, table: Any, **limits: Any) -> bool:
        searches.append(table.name)
        return bool(packs and packs.pop())

    def after_a_commit(number: int) -> int:
        lab.put({9: (number, 0)})
        worker.run_once()
        return len(searches)

    monkeypatch.setattr(scheduler, "pack_table", searched)
    monkeypatch.setattr(scheduler, "PACK_EVERY", 6)
    table = lab.root_table("r", options=el.TableOptions(log_retention=timedelta(days=1)))
    assert [after_a_commit(number) for number in range(3)] == [1, 2, 3], "it follows each round with a pack"
    assert [after_a_commit(number) for number in range(3, 9)] == [3, 3, 3, 3, 3, 4]
    lab.now_ms += scheduler.PACK_AGAIN_MS - 1
    assert after_a_commit(9) == 4
    lab.now_ms += 1
    assert after_a_commit(10) == 5
    table.truncate_log(lab.store.last_epoch)
    assert after_a_commit(11) == 6, "the log has become shorter"
