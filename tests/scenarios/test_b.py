"""Barriers, creation and partial recovery, as RisingWave has them: scenarios by their numbers, on virtual time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import epochlog as el
from epochlog.store.epoch import boundary, boundary_index, from_unix_ms
from lab import INTERVAL_MS, START_MS, Lab, commits, mirror, refuse, state_of, sums


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    lab = Lab(tmp_path / "store")
    lab.root_table()
    return lab


def index(epoch: int | None) -> int | None:
    """Which boundary of the store this is, counted from the one at which the lab's clock began."""
    if epoch is None:
        return None
    found = boundary_index(epoch, INTERVAL_MS)
    assert found is not None, f"{epoch} is no regular boundary"
    return found - (from_unix_ms(START_MS) >> 12) // INTERVAL_MS


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


def test_b10_a_downstream_never_commits_before_its_upstreams_snapshot(lab: Lab) -> None:
    """Whatever crashes: the upstream's first barrier is decided and fails, the downstream asks again and again."""
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


def test_b12_a_job_that_fails_changes_nothing_for_another(tmp_path: Path) -> None:
    """Two unconnected jobs: one fails 100 times; the other's barriers come at the same ticks as without it."""

    def stops(folder: str, failing: bool) -> list[int | None]:
        lab = Lab(tmp_path / folder)
        for name in ("r", "s"):
            lab.root_table(name)
        good, bad = lab.job("good", ["r"]), lab.job("bad", ["s"])
        found, failures = [], 0
        for number in range(50):
            lab.put({number % 7: (0, number)})
            lab.put({number % 7: (0, number)}, "s")
            lab.tick()
            for _ in range(2 if failing else 0):
                with pytest.raises(ZeroDivisionError):
                    bad.step_local(lambda ctx: 1 // 0)
                failures += 1
            found.append(index(good.step_local(mirror("r", "good_out"))))
        assert failures == (100 if failing else 0)
        assert (lab.state("bad"), lab.state("good")) == ("failed" if failing else "creating", "running")
        return found

    assert stops("with", failing=True) == stops("without", failing=False) == list(range(1, 51))


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
