"""Retention of a table's past: by its options, by its holders' needs, and its newest version forever."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import epochlog as el
from epochlog.store.catalog.keys import job_key
from epochlog.store.catalog.protocol import Txn
from epochlog.store.epochs.view_reader import EpochMemory, read_epoch_view
from epochlog.store.metadata import lookups
from epochlog.store.metadata.lookups import find_job, find_table, get_job, get_runs, get_version
from epochlog.store.metadata.unreachable_files import list_unreachable
from epochlog.store.metadata.version import TableVersion
from epochlog.store.retention import retention
from epochlog.store.retention.holds import Hold, put_holds
from epochlog.store.retention.retention import apply_retention, limits
from epochlog.store.types.epoch import from_unix_ms
from lab import INTERVAL_MS, Lab, mirror, state_of, sums, table_of

HOUR_MS = 3_600_000


def options(history_s: float, log_s: float) -> el.TableOptions:
    return el.TableOptions(
        history_retention=timedelta(seconds=history_s), log_retention=timedelta(seconds=log_s), compact_segments=1000,
        max_segments=1000,
    )  # fmt: skip


def retain(lab: Lab, name: str = "r") -> TableVersion:
    """Apply retention to a table, and its version after that."""
    handle = lab.store._handle
    table = handle.catalog.read(lambda view: find_table(view, name))
    apply_retention(handle, table)
    return version(lab, name)


def version(lab: Lab, name: str = "r") -> TableVersion:
    handle = lab.store._handle
    return handle.catalog.read(lambda view: get_version(view, find_table(view, name).id, name))


def commits(lab: Lab, count: int, name: str = "r", seconds: float = 1) -> list[int]:
    """One row a commit, `seconds` apart; their epochs."""
    epochs = []
    for number in range(count):
        epochs.append(lab.put({number: (0, number)}, name))
        lab.now_ms += round(seconds * 1000)
    return epochs


# ---- the decision ------------------------------------------------------------------------------------------------


def hold(log: int | None = None, read: int | None = None) -> Hold:
    return Hold("x:y", 1, log, read, 0, None)


@pytest.mark.rule("3.17")
def test_limits_are_the_retentions_held_back_by_holders() -> None:
    now_ms = 1_767_225_600_000
    history, log = from_unix_ms(now_ms - 10_000), from_unix_ms(now_ms - 60_000)
    table = options(10, 60)
    assert limits(table, [], now_ms) == retention.RetentionLimits(history, log, log)
    held = limits(table, [hold(log=7), hold(read=5), hold(log=9), hold(read=8)], now_ms)
    assert held == retention.RetentionLimits(5, 7, log)
    far = limits(table, [hold(log=log + 1, read=history + 1)], now_ms)
    assert far == retention.RetentionLimits(history, log, log)
    assert limits(options(60, 10), [], now_ms).commits == log


# ---- the log -----------------------------------------------------------------------------------------------------


def test_the_log_begins_at_the_newest_entry_that_is_old_enough(lab: Lab) -> None:
    table = lab.root_table(options=options(3600, 10))
    epochs = commits(lab, 8)
    assert retain(lab).log_start == 0
    lab.now_ms += 5_999  # the first 4 are older than 10 s now
    for _ in range(2):
        after = retain(lab)
        assert (after.log_start, after.log_segments) == (epochs[4 - 1], 5)
    assert table.changes(epochs[3]).read_all().num_rows == 4 and table.next_epoch(epochs[3]) == epochs[4]
    with pytest.raises(el.LogTruncated):
        table.changes(epochs[2])
    lab.now_ms += HOUR_MS
    assert retain(lab).log_start == epochs[-1], "never past the newest commit"
    assert table.changes(epochs[-1]).read_all().num_rows == 0, "whoever has read it all loses nothing"


def test_entries_that_reads_need_stay_until_they_are_folded_and_files_are_noted(lab: Lab) -> None:
    table = lab.root_table(options=options(0, 0))
    commits(lab, 5)
    retain(lab)
    catalog = lab.store._handle.catalog
    assert table.info.log_segments == 1 and not catalog.read(list_unreachable) and len(lab.rows("r")) == 5
    lab.store.compact("r")
    assert len(catalog.read(list_unreachable)) == 4 and len(lab.rows("r")) == 5
    lab.put({9: (9, 9)})
    lab.tick()
    retain(lab)
    assert len(catalog.read(list_unreachable)) == 5, "the folded entry goes at once"
    assert lab.store.verify().ok


@pytest.mark.rule("3.17")
def test_holders_stop_the_log_and_let_it_go_on(lab: Lab) -> None:
    table = lab.root_table(options=options(0, 0))
    epochs = commits(lab, 6)
    catalog, at = lab.store._handle.catalog, epochs[2]
    catalog.transact(lambda tx: put_holds(tx, [Hold("consumer:c", 1, at, None, lab.now_ms, None)]))
    assert retain(lab).log_start == at
    assert table.changes(at).read_all().num_rows == 3
    catalog.transact(lambda tx: put_holds(tx, [Hold("consumer:c", 1, epochs[4], None, lab.now_ms, None)]))
    assert retain(lab).log_start == epochs[4]


def test_a_hold_between_commits_keeps_the_one_before_as_mark(lab: Lab) -> None:
    lab.root_table(options=options(0, 0))
    epochs = commits(lab, 3)
    between = epochs[1] + 5
    lab.store._handle.catalog.transact(lambda tx: put_holds(tx, [Hold("consumer:c", 1, between, None, 0, None)]))
    assert retain(lab).log_start == epochs[1]


@pytest.mark.rule("4.3")
def test_hidden_labels_of_the_first_entry_stay_for_a_job(lab: Lab) -> None:
    """A job reads whole commits, `changes` reads log epochs: truncation inside a commit hides them from the latter."""
    lab.root_table(options=options(0, 0))
    writer, sealed = lab.store.table("r").writer(), []
    for step in range(3):
        writer.upsert(table_of({step: (0, step)}))
        sealed += writer.seal(lab.store.last_epoch + 1 + step)
    job = lab.job("j", ["r"], backfill="snapshot")
    lab.store.checkpoint()
    assert job.step_local(mirror("r", "j_out")) is not None
    first = lab.store.commit({"r": sealed})
    lab.store.checkpoint()
    lab.store.table("r").truncate_log(job.info.committed_epoch)
    assert job.step_local(mirror("r", "j_out")) is not None
    assert lab.rows("j_out") == lab.rows("r", first) == {0: (0, 0), 1: (0, 1), 2: (0, 2)}


def test_a_long_log_goes_in_bounded_transactions(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "BATCH", 3)
    table = lab.root_table(options=options(0, 0))
    epochs = commits(lab, 17, seconds=0.01)
    lab.store.compact("r")
    writes: list[int] = []
    write = retention._write_release

    def counted(tx: Any, table_id: int, released: retention.Released, now_ms: int) -> None:
        writes.append(max(len(released.entries), len(released.commits)))
        write(tx, table_id, released, now_ms)

    monkeypatch.setattr(retention, "_write_release", counted)
    lab.now_ms += 1000
    after = retain(lab)
    assert (after.log_start, after.log_segments, after.known_from) == (epochs[-1], 1, epochs[-2])
    assert len(writes) >= 5 and max(writes) == 3
    assert len(table.history()) == 1 and lab.store.verify().ok
    more = commits(lab, 11, seconds=0.01)
    table.truncate_log(more[-1])
    assert table.info.log_start_epoch == more[-1] and table.info.log_segments == 1 and lab.store.verify().ok


def test_nothing_is_written_where_nothing_changes(lab: Lab) -> None:
    lab.root_table(options=options(10, 60))
    commits(lab, 3)
    retain(lab)
    lab.now_ms += 5_000
    retain(lab)
    before = lab.txn_id()
    for _ in range(3):
        retain(lab)
    lab.now_ms -= 60_000
    retain(lab)
    assert lab.txn_id() == before


# ---- states ------------------------------------------------------------------------------------------------------


def test_parts_of_replaced_rows_go_whole_when_nobody_can_see_them(lab: Lab) -> None:
    table = lab.root_table(options=options(10, 0))
    first = lab.put({1: (1, 1), 2: (2, 2)})
    lab.tick()
    second = lab.put({1: (9, 9)})
    lab.store.compact("r", full=True)
    handle = lab.store._handle

    def history() -> int:
        return handle.catalog.read(lambda view: sum(len(run.history) for run in get_runs(view, 1)))

    assert history() == 1 and lab.rows("r", first) == {1: (1, 1), 2: (2, 2)}
    lab.now_ms += 10_000
    snapshot = lab.store.snapshot(["r"], consistency=el.Exact({"r": first}))
    retain(lab)
    assert history() == 1, "the snapshot holds it"
    snapshot.close()
    bytes_before = table.info.bytes
    retain(lab)
    assert history() == 0 and table.info.bytes < bytes_before
    assert version(lab).safe_epoch == second and lab.rows("r", second) == {1: (9, 9), 2: (2, 2)}
    assert [file.table_id for file in handle.catalog.read(list_unreachable) if file.path.endswith(".parquet")] == [1]
    assert lab.store.verify().ok


# ---- memory ------------------------------------------------------------------------------------------------------


def test_commits_are_forgotten_but_for_the_newest_that_is_readable(lab: Lab) -> None:
    table = lab.root_table(options=options(10, 30))
    epochs = commits(lab, 5)
    lab.store.compact("r")
    lab.now_ms += 26_999
    lab.put({9: (9, 9)})
    after = retain(lab)
    assert after.known_from == epochs[0], "those older than both retentions, but for the newest of them"
    lab.now_ms += HOUR_MS
    after = retain(lab)
    assert after.known_from == epochs[-1]
    assert table.history()["epoch"].to_pylist() == [after.max_committed_epoch]
    assert lab.store.verify().ok


def makes_headway(lab: Lab, name: str) -> None:
    """As by a commit of a job that is days behind."""

    def body(tx: Txn) -> None:
        tx.put(job_key(job.id), replace(get_job(tx, job.id, name), progress_ms=lab.now_ms).to_record())

    catalog = lab.store._handle.catalog
    job = catalog.read(lambda view: find_job(view, name))
    catalog.transact(body)


@pytest.mark.rule("2.2")
def test_memory_reaches_as_far_back_as_those_who_read_the_table_may_be_read(lab: Lab) -> None:
    """r -> a -> b: b is far behind and not parked, and stays readable where it stands, by itself and with what it is
    of."""
    lab.root_table(options=options(0, 0))
    a, b = lab.job("a", ["r"]), lab.job("b", ["a_out"])
    for number in range(4):
        lab.put({number: (0, number)})
        lab.store.checkpoint()
        assert a.step_local(mirror("r", "a_out")) is not None
        lab.tick()
        if number == 1:
            assert b.step_local(sums("a_out", "b_out")) is not None
    at, rows = b.info.committed_epoch, lab.rows("b_out")
    for _ in range(2):
        lab.now_ms += 72 * HOUR_MS
        for name in ("a", "b"):
            makes_headway(lab, name)
        for name in ("b_out", "a_out", "r"):
            lab.store.compact(name, full=True)
            retain(lab, name)
        with lab.store.snapshot(["b_out"], consistency="aligned") as snapshot:
            assert snapshot.epochs["b_out"] >= at and state_of(snapshot["b_out"].to_arrow()) == rows == {0: (2, 1)}
        lab.put({7: (7, 7)})
    known = [version(lab, name).known_from for name in ("r", "a_out", "b_out")]
    assert all(epoch < at for epoch in known), known
    assert b.step_local(sums("a_out", "b_out")) is not None, "and goes on by the logs that it held"


def test_processes_agree_on_what_they_remember(lab: Lab) -> None:
    """One has read the commits before they were forgotten, one begins now, one missed some in between."""
    lab.root_table(options=options(0, 0))
    handle = lab.store._handle
    memories = [EpochMemory() for _ in range(3)]

    def seen(memory: EpochMemory) -> tuple[list[int], int]:
        view = handle.catalog.read(lambda view: read_epoch_view(view, memory, lab.now_ms))
        return view.table("r").commits.tolist(), view.table("r").known_from

    epochs = commits(lab, 3)
    assert seen(memories[0]) == seen(memories[1]) == (epochs, 0)
    epochs += commits(lab, 3)
    assert seen(memories[0]) == (epochs, 0)
    lab.store.compact("r")
    retain(lab)
    epochs += commits(lab, 2)
    expected = (epochs[5:], epochs[4])
    assert [seen(memory) for memory in memories] == [expected] * 3
    assert [seen(memory) for memory in memories] == [expected] * 3


@pytest.mark.local_only
def test_an_older_look_is_not_misled_by_a_later_one(lab: Lab) -> None:
    """Two threads: one view was taken before commits were forgotten, and asks after."""
    lab.root_table(options=options(0, 0))
    handle, memory = lab.store._handle, EpochMemory()
    epochs = commits(lab, 4)

    def meanwhile(view: Any) -> list[int]:
        head = view.get(b"meta/head")
        assert head is not None  # the view is of now
        forget()
        return read_epoch_view(view, memory, lab.now_ms).table("r").commits.tolist()

    def forget() -> None:
        def work() -> None:
            lab.store.compact("r")
            retain(lab)
            handle.catalog.read(lambda view: read_epoch_view(view, memory, lab.now_ms))

        import threading

        other = threading.Thread(target=work)
        other.start()
        other.join()

    assert handle.catalog.read(meanwhile) == epochs
    assert version(lab).known_from == epochs[2]


@pytest.mark.rule("2.2")
def test_a_finished_table_and_its_view_stay_readable(lab: Lab) -> None:
    table = lab.root_table(options=options(0, 0))
    job = lab.job("j", ["r"])
    lab.put({1: (1, 1)})
    table.finish()
    lab.store.checkpoint()
    assert job.step_local(mirror("r", "j_out")) is not None and job.info.state == "finished"
    lab.now_ms += 1000 * HOUR_MS
    for name in ("r", "j_out"):
        lab.store.compact(name, full=True)
        retain(lab, name)
    with lab.store.snapshot() as snapshot:
        assert {name: state_of(snapshot[name].to_arrow()) for name in snapshot} == {
            "r": {1: (1, 1)},
            "j_out": {1: (1, 1)},
        }


SinkWrite = Callable[[Lab, random.Random], None]


@pytest.mark.medium
@pytest.mark.local_only
@pytest.mark.parametrize("chains", [2, pytest.param(8, marks=pytest.mark.long)])
def test_random_chains_keep_the_newest_version_of_each(tmp_path: Path, chains: int) -> None:
    """After random writes, steps and truncations, `aligned` reads each view by itself at a valid epoch, with its rows
    of that epoch.
    """
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    for number in range(chains):
        lab = Lab(tmp_path / str(number))
        play(lab, dice)
        lab.store.close()


def play(lab: Lab, dice: random.Random) -> None:
    lab.root_table(options=options(dice.choice([0, 2, 30]), dice.choice([0, 5, 60])))
    chain = ["r", "a_out", "b_out", "c_out"]
    jobs = {name: lab.job(name[0], [up]) for up, name in pairwise(chain)}
    speed = {name: dice.choice([0.1, 0.5, 0.9]) for name in jobs}
    for number in range(30):
        lab.now_ms += dice.choice([1, 10, INTERVAL_MS, 20 * INTERVAL_MS, 48 * HOUR_MS])
        if dice.random() < 0.8:
            lab.put({dice.randrange(6): (0, number)})
        lab.store.checkpoint()
        for name, job in jobs.items():
            if dice.random() < speed[name]:
                up = chain[chain.index(name) - 1]
                job.step_local(mirror(up, name))
        for job in jobs.values():
            makes_headway(lab, job.name)
        if dice.random() < 0.5:
            lab.store.compact(dice.choice([None, *chain]), full=dice.random() < 0.5)
            lab.store.vacuum(grace=dice.choice([0, 900]))
        for name, job in jobs.items():
            if job.info.committed_epoch:
                with lab.store.snapshot([name], consistency="aligned") as snapshot:
                    assert snapshot.epochs[name] >= job.info.committed_epoch
                    assert state_of(snapshot[name].to_arrow()) == lab.rows(name)


def test_a_transaction_of_retention_reads_the_jobs_once(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The maintenance of a store with 50 jobs spent half of a core on reading all jobs three times."""
    lab.root_table(options=options(0, 0))
    lab.job("j", ["r"])
    commits(lab, 3)
    reads, read_jobs = [0], lookups.all_jobs

    def counted(view: Any) -> Iterator[Any]:
        reads[0] += 1
        return read_jobs(view)

    monkeypatch.setattr(lookups, "all_jobs", counted)
    for name in (module for module in sys.modules if module.startswith("epochlog.")):
        if getattr(sys.modules[name], "all_jobs", None) is read_jobs:
            monkeypatch.setattr(sys.modules[name], "all_jobs", counted)
    handle = lab.store._handle
    table = handle.catalog.read(lambda view: find_table(view, "r"))
    handle.catalog.read(lambda view: retention.plan_release(handle, view, table))
    assert reads == [1]
