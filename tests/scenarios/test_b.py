"""Barriers, creation and partial recovery, as RisingWave has them: scenarios by their numbers, on virtual time."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import epochlog as el
from epochlog.store.types.epoch import boundary, boundary_index, from_unix_ms
from lab import INTERVAL_MS, START_MS, Lab, commits, mirror, refuse, state_of, sums, table_of


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    lab = Lab(tmp_path / "store")
    lab.root_table()
    return lab


def index(epoch: int | None) -> int | None:
    """Return the number of the store's boundary, counted from the one at which the lab's clock began."""
    if epoch is None:
        return None
    number = boundary_index(epoch, INTERVAL_MS)
    assert number is not None, f"{epoch} is no regular boundary"
    return number - (from_unix_ms(START_MS) >> 12) // INTERVAL_MS


@pytest.fixture
def without_renewals(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the thread from renewing the leases of runners: on a slow machine it writes while a test counts writes."""
    monkeypatch.setattr(lab.store._handle.runners, "renew", lambda: None)


@pytest.mark.usefixtures("without_renewals")
def test_b2_jobs_with_their_own_intervals(lab: Lab) -> None:
    """Intervals of 1, 2 and 5 times the store's: barriers at the exact boundaries; an idle one costs none."""
    lab.root_table("quiet")
    jobs = {interval: lab.job(f"j{interval}", ["r"], interval=interval) for interval in (1, 2, 5)}
    idle = lab.job("idle", ["quiet"])
    assert idle.step_local(mirror("quiet", "idle_out")) is not None
    steps = {str(k): lambda k=k, job=job: job.step_local(mirror("r", f"j{k}_out")) for k, job in jobs.items()}
    commits(steps)
    stops: dict[str, list[int | None]] = {name: [] for name in steps}
    for number in range(20):
        lab.put({number: (0, number)})
        lab.tick()
        for name, epochs in commits(steps).items():
            stops[name] += [index(epoch) for epoch in epochs]
        before = lab.txn_id()
        assert idle.step_local(refuse) is None
        assert lab.txn_id() == before
    assert stops == {"1": list(range(1, 21)), "2": list(range(2, 21, 2)), "5": list(range(5, 21, 5))}
    assert len(lab.entries("idle_out")) == 1


def test_b5_downstream_replays_what_it_missed_and_goes_on_live(lab: Lab) -> None:
    """Upstream at e4, downstream at e2: e3, e4 are replayed, their barriers made from the log; no duplicate, no gap."""
    upstream, seen = lab.job("up", ["r"]), []
    downstream = lab.job("down", ["up_out"])

    def replay(ctx: Any) -> None:
        changes = ctx.changes("up_out", mode="epochs").select(["k", "_change_type"]).to_pylist()
        seen.append((ctx.barrier.prev, ctx.barrier.curr, [row["k"] for row in changes]))
        mirror("up_out", "down_out")(ctx)

    epochs = []
    for number in (1, 2, 3, 4):
        lab.put({number: (0, number)})
        lab.tick()
        epochs.append(upstream.step_local(mirror("r", "up_out")))
        if number <= 2:
            assert downstream.step_local(replay) == epochs[-1]
    lab.reopen()  # the downstream's runner died; another takes its place
    upstream, downstream = lab.store.job("up"), lab.store.job("down")
    assert [downstream.step_local(replay), downstream.step_local(replay)] == epochs[2:]
    assert downstream.step_local(refuse) is None
    for number in (5, 6):
        lab.put({number: (0, number)})
        lab.tick()
        epochs.append(upstream.step_local(mirror("r", "up_out")))
        assert downstream.step_local(replay) == epochs[-1]
    e1, e2, e3, e4, e5, e6 = epochs
    assert seen == [(0, e1, [1]), (e1, e2, [2]), (e2, e3, [3]), (e3, e4, [4]), (e4, e5, [5]), (e5, e6, [6])]
    assert lab.entries("down_out") == [(epoch, 1) for epoch in epochs]
    assert lab.rows("down_out") == lab.rows("up_out") == lab.rows("r")


def test_b6_from_the_snapshot_to_the_log_to_live(lab: Lab) -> None:
    """Handing over: a snapshot of rows 1-3, row 4 in the log, row 5 live: they come in this order, each once."""
    lab.put({1: (0, 1), 2: (0, 2)})
    lab.put({3: (0, 3)})
    lab.tick()
    job, order = lab.job("j", ["r"], backfill="snapshot"), []

    def take(ctx: Any) -> None:
        changes = ctx.changes("r", mode="epochs").select(["k", "_change_type"]).to_pylist()
        order.append((ctx.barrier.kind, [row["k"] for row in changes]))
        mirror("r", "j_out")(ctx)
        if ctx.barrier.kind == "initial":  # while the snapshot is read
            lab.put({4: (0, 4)})
            lab.tick()

    assert job.step_local(take) is not None
    assert job.step_local(take) is not None
    assert job.step_local(take) is None
    lab.put({5: (0, 5)})
    lab.tick()
    assert job.step_local(take) is not None
    assert order == [("initial", [1, 2, 3]), ("checkpoint", [4]), ("checkpoint", [5])]
    assert [rows for _, rows in lab.entries("j_out")] == [3, 1, 1]
    assert lab.rows("j_out") == lab.rows("r")


def write(lab: Lab, dice: random.Random, writers: int) -> None:
    """One commit that so many writers have sealed together, each its own keys; with one, a plain upsert."""
    rows = {dice.randrange(12): (dice.randrange(3), dice.randrange(100)) for _ in range(4)}
    if writers == 1:
        lab.put(rows)
        return
    segments = []
    for number in range(writers):
        writer = lab.store.table("r").writer()
        writer.upsert(table_of({k: row for k, row in rows.items() if k % writers == number}))
        segments += writer.seal(lab.store.last_epoch + 1)
    lab.store.commit({"r": segments})


@pytest.mark.medium
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 8))])
def test_b7_two_views_at_once_each_with_a_view_on_top(lab: Lab, seed: int) -> None:
    """Created together under write load, one piece at a time, by runners that die at random; the writers become four.
    Each equals its query at the end, and whenever it can be read aligned.
    """
    dice = random.Random(seed)
    for _ in range(6):
        write(lab, dice, writers=1)
    graph = {"low": "r", "sum": "r", "lower": "low_out", "total": "sum_out"}
    query = {
        "low": mirror("r", "low_out", keep=lambda v: v < 50),
        "sum": sums("r", "sum_out"),
        "lower": mirror("low_out", "lower_out", keep=lambda v: v < 20),
        "total": sums("sum_out", "total_out"),
    }
    for name, upstream in graph.items():
        lab.job(name, [upstream], snapshot_rows=dice.choice([1, 3, None]), max_lag=2)
    for number in range(60):
        write(lab, dice, writers=1 if number < 30 else 4)
        lab.tick(dice.choice([0, 0.5, 1]))
        for name in dice.sample(list(graph), dice.randrange(5)):
            dies(lab, name, query[name], dice)
        law(lab, "aligned")
    lab.tick()
    commits({name: lambda name=name: lab.store.job(name).step_local(query[name]) for name in graph})
    assert {info.state for info in lab.store.jobs()} == {"running"}
    law(lab, "global")
    report = lab.store.verify()
    assert report.ok, report


def dies(lab: Lab, name: str, refresh: Any, dice: random.Random) -> None:
    """A step of the job by a runner of its own, which may die before or after it has written; others notice nothing."""
    died = dice.choice([False, False, "before", "after"])

    def run(ctx: Any) -> None:
        if died == "before":
            raise ZeroDivisionError
        refresh(ctx)
        if died:
            raise ZeroDivisionError

    with suppress(ZeroDivisionError):
        lab.store.job(name).step_local(run)
    if dice.random() < 0.1:
        lab.reopen()


def law(lab: Lab, consistency: str) -> None:
    """Of all views that can be read together now, each is its query over the rows of that moment."""
    views = ["r", *(info.outputs[0] for info in lab.store.jobs() if info.committed_epoch)]
    try:
        snapshot = lab.store.snapshot(views, consistency=consistency)
    except el.NoConsistentEpoch:
        assert consistency == "aligned"
        return
    with snapshot:
        rows = {view: state_of(snapshot[view].to_arrow()) for view in views}
    r = rows["r"]
    total = (len(r), sum(v for _, v in r.values()))
    wanted = {
        "r": r,
        "low_out": {k: row for k, row in r.items() if row[1] < 50},
        "lower_out": {k: row for k, row in r.items() if row[1] < 20},
        "sum_out": {0: total},
        "total_out": {0: (1, total[1])},
    }
    assert rows == {view: wanted[view] for view in views}


@pytest.mark.rule("5.9")
def test_b8_cancelled_while_it_takes_one_row_a_step_of_ten_thousand(lab: Lab) -> None:
    """At once: its tables are gone, the upstream's log is released, and what it had made is vacuum's."""
    lab.put({k: (0, k) for k in range(10_000)})
    lab.tick()
    job = lab.job("j", ["r"], snapshot_rows=1)
    for number in range(5):
        assert job.step_local(mirror("r", "j_out")) == 0
        assert job.info.snapshot_rows == number + 1
    newest = lab.put({0: (0, 1)})
    with pytest.raises(el.LogHeld, match="job:j"):
        lab.store.table("r").truncate_log(newest)
    lab.store.job("j").cancel()
    assert lab.store.jobs() == [] and [info.name for info in lab.store.tables()] == ["r"]
    lab.store.table("r").truncate_log(newest)
    with pytest.raises(el.JobNotFound):
        job.step_local(refuse)
    assert len([file for file in lab.store.vacuum(grace=0).deleted if "/t00000002/" in file.path]) == 5
    report = lab.store.verify()
    assert report.ok and not report.unreachable


TAKER = """
import sys
import epochlog as el
from lab import START_MS, mirror
with el.open(sys.argv[1], durability="os", clock=lambda: START_MS + 1000) as store:
    while store.job("j").step_local(mirror("r", "j_out")) == 0:
        pass
"""


@pytest.mark.rule("5.8")
@pytest.mark.slow
@pytest.mark.local_only
def test_b9_killed_in_mid_snapshot(lab: Lab) -> None:
    """By SIGKILL, in a process of its own: the snapshot goes on where it was. Another view is created meanwhile."""
    lab.put({k: (0, k) for k in range(10)})
    lab.tick()
    lab.job("j", ["r"], snapshot_rows=2)
    environment = {**os.environ, "EPOCHLOG_KILL_AT": "piece:recorded:3", "PYTHONPATH": os.pathsep.join(sys.path)}
    taker = subprocess.run([sys.executable, "-c", TAKER, str(lab.root)], env=environment, check=False)
    assert taker.returncode == -signal.SIGKILL
    assert lab.store.job("j").info.snapshot_rows == 6
    other = lab.job("k", ["r"])
    assert other.step_local(mirror("r", "k_out")) is not None
    assert lab.rows("k_out") == lab.rows("r")
    lab.store.vacuum(grace=0)
    seen: list[int] = []

    def go_on(ctx: Any) -> None:
        seen.extend(ctx.changes("r").column("k").to_pylist())
        mirror("r", "j_out")(ctx)

    job = lab.store.job("j")
    while job.step_local(go_on) == 0:
        pass
    assert seen == [6, 7, 8, 9]
    assert lab.rows("j_out") == lab.rows("r") and lab.state("j") == "running"
    assert lab.store.verify().ok


def test_b10_a_downstream_never_commits_before_its_upstreams_snapshot(lab: Lab) -> None:
    """After each crash the upstream's first barrier is decided and fails again, while the downstream keeps asking."""
    lab.put({1: (0, 1)})
    lab.tick()
    upstream, downstream = lab.job("up", ["r"]), lab.job("down", ["up_out"])

    def fails(ctx: Any) -> None:
        mirror("r", "up_out")(ctx)
        raise ZeroDivisionError

    for number in range(3):
        with pytest.raises(ZeroDivisionError):
            upstream.step_local(fails)
        lab.put({2 + number: (0, number)})
        lab.tick()
        lab.store.checkpoint()
        assert downstream.step_local(refuse) is None
        lab.reopen()
        upstream, downstream = lab.store.job("up"), lab.store.job("down")
    first = upstream.step_local(mirror("r", "up_out"))
    assert first is not None
    done = commits({
        "up": lambda: upstream.step_local(mirror("r", "up_out")),
        "down": lambda: downstream.step_local(mirror("up_out", "down_out")),
    })  # fmt: skip
    assert min(done["down"]) >= first
    assert lab.rows("down_out") == lab.rows("r")
    with pytest.raises(el.NoConsistentEpoch, match="down_out|up_out"):
        lab.store.snapshot(["down_out"], consistency="as_of", epoch=first - 1)


@pytest.mark.rule("5.10")
@pytest.mark.usefixtures("without_renewals")
def test_b11_down_for_longer_than_the_log_is_kept(lab: Lab) -> None:
    """Parked, visible, not looping, its old state readable, and so is what is above it; `rebuild` works for it, and
    what is above takes in just the difference.
    """
    lab.put({1: (0, 1), 2: (0, 2)})
    lab.tick()
    job, above = lab.job("j", ["r"]), lab.job("above", ["j_out"])
    assert job.step_local(mirror("r", "j_out")) is not None
    assert above.step_local(mirror("j_out", "above_out")) is not None
    lab.put({2: (0, 20), 3: (0, 3)})
    lab.tick()
    with pytest.raises(ZeroDivisionError):
        job.step_local(lambda ctx: 1 // 0)
    lab.tick(2 * 86_400)
    lab.store.compact("r", full=True)
    assert (job.info.state, lab.store.table("j_out").info.state) == ("parked", "parked")
    for _ in range(3):
        with pytest.raises(el.JobParked, match="rebuild"):
            job.step_local(refuse)
    before = lab.txn_id()
    assert above.step_local(refuse) is None and lab.txn_id() == before
    assert lab.rows("j_out") == lab.rows("above_out") == {1: (0, 1), 2: (0, 2)}
    with pytest.raises(el.TableNotReadable, match="above_out.*j_out.*parked"):
        lab.store.snapshot(["above_out"], consistency="global")

    job.rebuild()
    assert job.step_local(mirror("r", "j_out")) is not None
    seen: list[tuple[int, str]] = []

    def replay(ctx: Any) -> None:
        seen.extend((row["k"], row["_change_type"]) for row in ctx.changes("j_out").to_pylist())
        mirror("j_out", "above_out")(ctx)

    assert above.step_local(replay) is not None
    assert seen == [(2, "upsert"), (3, "upsert")]
    with lab.store.snapshot() as snapshot:
        rows = [state_of(snapshot[name].to_arrow()) for name in ("r", "j_out", "above_out")]
    assert rows == [{1: (0, 1), 2: (0, 20), 3: (0, 3)}] * 3


@pytest.mark.rule("1.4")
@pytest.mark.medium
def test_b12_a_job_that_fails_changes_nothing_for_another(tmp_path: Path) -> None:
    """Two unconnected jobs: one fails 100 times; the other's barriers come at the same ticks as without it."""

    def stops(folder: str, failing: bool) -> list[int | None]:
        lab = Lab(tmp_path / folder)
        for name in ("r", "s"):
            lab.root_table(name)
        good, bad = lab.job("good", ["r"]), lab.job("bad", ["s"])
        boundaries, failures = [], 0
        for number in range(50):
            lab.put({number % 7: (0, number)})
            lab.put({number % 7: (0, number)}, "s")
            lab.tick()
            for _ in range(2 if failing else 0):
                with pytest.raises(ZeroDivisionError):
                    bad.step_local(lambda ctx: 1 // 0)
                failures += 1
            boundaries.append(index(good.step_local(mirror("r", "good_out"))))
        assert failures == (100 if failing else 0)
        assert (lab.state("bad"), lab.state("good")) == ("failed" if failing else "creating", "running")
        return boundaries

    assert stops("with", failing=True) == stops("without", failing=False) == list(range(1, 51))


@pytest.mark.rule("5.1")
def test_b15_jobs_far_behind_merge_to_shared_stops(lab: Lab) -> None:
    """40 boundaries behind, two jobs that started apart meet; in between complete is not valid."""
    first, second = lab.job("a", ["r"], max_lag=4), lab.job("b", ["r"], max_lag=4)
    lab.put({0: (0, 0)})
    lab.tick()
    first.step_local(mirror("r", "a_out"))
    for number in range(1, 42):
        lab.put({number % 9: (0, number)})
        lab.tick()
        if number == 1:
            second.step_local(mirror("r", "b_out"))
    apart = {name: [index(epoch) for epoch, _ in lab.entries(name)] for name in ("a_out", "b_out")}
    assert apart == {"a_out": [1], "b_out": [2]}
    done = commits({
        "a": lambda: first.step_local(mirror("r", "a_out")),
        "b": lambda: second.step_local(mirror("r", "b_out")),
    })  # fmt: skip
    stops = {name: [index(epoch) for epoch in epochs] for name, epochs in done.items()}
    assert stops["a"] == stops["b"]
    # the store's own indices are 100 higher: 128 is a multiple of 32, 136 of 8, 140 of 4; then it is within max_lag
    assert stops["a"] == [28, 36, 40, 41, 42]
    with lab.store.snapshot(["a_out", "b_out", "r"], consistency="aligned") as snapshot:
        assert set(snapshot.epochs.values()) == {done["a"][-1]}
    between = boundary((from_unix_ms(START_MS) >> 12) // INTERVAL_MS + 20, INTERVAL_MS)
    assert lab.rows("a_out", between) == {0: (0, 0)}  # complete, so it can be read, and it misses what came since
    assert lab.rows("r", between) != {0: (0, 0)}
    with lab.store.snapshot(["a_out"], consistency="as_of", epoch=between) as snapshot:
        assert snapshot.epochs["a_out"] < between  # not valid there, only before the next change after its commit at 1
        assert state_of(snapshot["a_out"].to_arrow()) == {0: (0, 0)}


@pytest.mark.rule("2.1")
def test_b16_empty_entries_neither_block_nor_wake(lab: Lab) -> None:
    """A commit with an empty answer over empty input is there from the first barrier."""
    first, second = lab.job("a", ["r"]), lab.job("b", ["a_out"])
    start = first.step_local(mirror("r", "a_out"))
    assert start is not None and lab.entries("a_out") == [(start, 0)]
    assert second.step_local(sums("a_out", "b_out")) == start
    assert lab.rows("b_out") == {0: (0, 0)}
    for _ in range(5):
        lab.put({})
        lab.tick()
        assert first.step_local(refuse) is None and second.step_local(refuse) is None
        with lab.store.snapshot(["r", "a_out", "b_out"], consistency="aligned") as snapshot:
            assert set(snapshot.epochs.values()) == {lab.store.last_epoch}
            assert set(snapshot.lag_ms.values()) == {0}
    lab.put({1: (0, -1)})
    lab.tick()
    empty = first.step_local(mirror("r", "a_out", keep=lambda v: v > 0))
    assert lab.entries("a_out")[-1] == (empty, 0)
    assert second.step_local(refuse) is None
    with lab.store.snapshot(["r", "a_out", "b_out"], consistency="aligned") as snapshot:
        assert set(snapshot.epochs.values()) == {empty}
