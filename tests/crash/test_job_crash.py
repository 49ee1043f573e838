"""Drivers of a job that are killed or stopped at their work: nothing is lost or doubled, zombies have no effect."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

import epochlog as el
from crash.job_driver import refresh
from lab import KEY, SCHEMA, State, keys_of, state_of, table_of

pytestmark = pytest.mark.slow

DRIVER = Path(__file__).with_name("job_driver.py")
TOTALS = pa.schema([pa.field("g", pa.int64(), nullable=False), ("n", pa.int64()), ("v", pa.int64())])
INTERVAL_MS = 5


@pytest.fixture
def store(tmp_path: Path) -> Iterator[el.Store]:
    with el.open(tmp_path / "store", checkpoint_interval_ms=INTERVAL_MS, durability="os") as store:
        store.create_table("r", SCHEMA, KEY)
        store.create_job("j", ["r"], {"totals": (TOTALS, ["g"])}, max_lag=0)
        yield store


class Driver:
    """A driver process; what it says is read line by line."""

    def __init__(self, store: el.Store, mode: str) -> None:
        command = [sys.executable, str(DRIVER), store.root, mode]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.expect("ready")

    def expect(self, word: str) -> list[str]:
        """The next line, which must begin with the word."""
        assert self.process.stdout is not None
        words = self.process.stdout.readline().split()
        assert words[:1] == [word], (words, self.process.poll())
        return words[1:]

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def kill(self) -> list[str]:
        """SIGKILL; the lines that it had still said."""
        self.process.kill()
        output, _ = self.process.communicate()
        return output.splitlines()


@contextmanager
def driver(store: el.Store, mode: str) -> Iterator[Driver]:
    running = Driver(store, mode)
    try:
        yield running
    finally:
        running.kill()


def totals(rows: State) -> dict[int, tuple[int, int]]:
    out: dict[int, tuple[int, int]] = {}
    for g, v in rows.values():
        n, total = out.get(g, (0, 0))
        out[g] = (n + 1, total + v)
    return out


def check_law(store: el.Store, commits: int = 20) -> None:
    """At the aligned epoch, and at the newest commits of the job, the totals are those of the rows."""
    with store.snapshot(["r", "totals"], consistency="aligned") as snapshot:
        last = snapshot.epochs["totals"]
        for epoch in [last, *store.table("totals").history(commits).column("epoch").to_pylist()]:
            sums = {row["g"]: (row["n"], row["v"]) for row in store.table("totals").to_arrow(epoch=epoch).to_pylist()}
            wanted = totals(state_of(store.table("r").to_arrow(epoch=epoch)))
            assert {g: pair for g, pair in sums.items() if pair[0]} == wanted, epoch
    report = store.verify()
    assert report.ok, report.problems


def change(store: el.Store, rng: random.Random) -> int:
    table = store.table("r")
    if rng.random() < 0.2:
        return table.delete(keys_of([rng.randrange(40)]))
    return table.upsert(table_of({rng.randrange(40): (rng.randrange(4), rng.randrange(100)) for _ in range(5)}))


def finish_up(store: el.Store, epoch: int) -> None:
    """A new runner here takes in everything up to the epoch."""
    store.checkpoint()
    job = store.job("j")
    while job.step_local(refresh) is not None:
        pass
    assert job.info.committed_epoch >= epoch and job.info.state == "running"


@pytest.mark.rule("5.4")
def test_killed_after_writing_and_before_the_commit(store: el.Store) -> None:
    for number in range(2):
        epoch = store.table("r").upsert(table_of({number: (0, number), 9: (number, 1)}))
        store.checkpoint()
        before = store.table("totals").history().to_pylist()
        with driver(store, "hang") as running:
            prev, curr = map(int, running.expect("hanging"))
            with pytest.raises(el.JobRunning, match=f"a step of process {running.process.pid} on "):
                store.job("j").step_local(refresh)
            running.kill()  # it is known to be dead at once: nobody waits for its lease
        assert store.table("totals").history().to_pylist() == before
        assert store.verify().unreachable, "what it wrote is there, and nothing points to it"
        seen = []
        store.job("j").step_local(lambda ctx, seen=seen: (seen.append(ctx.barrier), refresh(ctx))[0])
        assert [(barrier.prev, barrier.curr) for barrier in seen] == [(prev, curr)], "the barrier was recorded"
        finish_up(store, epoch)
        check_law(store)


@pytest.mark.rule("5.4")
@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 4))])
def test_killed_at_random_moments(store: el.Store, seed: int) -> None:
    rng = random.Random(seed)
    print(f"seed {seed}")
    epoch, printed_epochs = 0, []
    for _ in range(4):
        with driver(store, "run") as running:
            for _ in range(rng.randint(1, 80)):  # the driver is at work meanwhile; when it dies is left to chance
                epoch = change(store, rng)
            printed_epochs += [int(line.split()[1]) for line in running.kill() if line.startswith("committed ")]
        check_law_if_any(store)
    finish_up(store, epoch)
    check_law(store)
    committed = store.table("totals").history().column("epoch").to_pylist()
    assert set(printed_epochs) <= set(committed), "what it said was committed is there"
    assert len(set(committed)) == len(committed)


def check_law_if_any(store: el.Store) -> None:
    if store.table("totals").info.max_committed_epoch:
        check_law(store)


@pytest.mark.rule("5.3")
def test_a_stopped_runner_that_goes_on_is_fenced(store: el.Store) -> None:
    rng = random.Random(2)
    change(store, rng)
    store.checkpoint()
    with driver(store, "hang") as old:
        old.expect("hanging")
        old.process.send_signal(signal.SIGSTOP)
        new = store.job("j")
        with pytest.raises(el.JobRunning, match=f"process {old.process.pid} on "):
            new.step_local(refresh)
        assert new.step_local(refresh, take_over=True) is not None
        epoch = change(store, rng)
        store.checkpoint()
        assert new.step_local(refresh) is not None
        before = store.table("totals").history().to_pylist(), new.info
        old.process.send_signal(signal.SIGCONT)
        old.go_on()
        assert old.expect("fenced") == ["Fenced"]
        assert old.process.wait() == 0
    assert (store.table("totals").history().to_pylist(), new.info) == before
    finish_up(store, epoch)
    check_law(store)


def test_a_stopped_runner_whose_barrier_is_still_open_is_fenced(store: el.Store) -> None:
    """The new runner has claimed the job and not committed yet: the old one must not do it either."""
    rng = random.Random(3)
    epoch = change(store, rng)
    store.checkpoint()
    with driver(store, "hang") as old:
        old.expect("hanging")
        old.process.send_signal(signal.SIGSTOP)
        new = store.job("j")
        with pytest.raises(ZeroDivisionError):
            new.step_local(lambda ctx: 1 // 0, take_over=True)
        old.process.send_signal(signal.SIGCONT)
        old.go_on()
        assert old.expect("fenced") == ["Fenced"]
        assert old.process.wait() == 0
    assert store.table("totals").history().num_rows == 0
    finish_up(store, epoch)
    check_law(store)
