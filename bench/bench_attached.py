"""P13, P14 and P16 with Spark: jobs of drivers in processes of their own, under the coordinator of a served store."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from time import perf_counter, time

import numpy as np
import pytest
from bench_isolation import FLOOD_ROWS, Kind, wait_until, windows
from crowd import FEED_PAUSE_S, FEED_ROWS, KEYS, Commits, Took, rows
from data import SCHEMA
from pairs import ReplayClock, Samples, turned
from report import Book, Figure, Target

import epochlog as el
from epochlog.checkpoint.manager import commands
from epochlog.store.types.epoch import to_unix_ms

JOBS, PAIRS = 8, 4
BASE_ROWS, PIECE_ROWS = 500_000, 100_000
INTERVAL_MS = 2500
STALLED, CREATED, FLOODED, WITHOUT = "one stalled", "a view created", "all rows of one job", "without it"
UNDER, ALONE = "under a coordinator", "each driver alone"
DRIVER = Path(__file__).with_name("attached_driver.py")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Driver:
    """Process of a Spark driver and of its JVM and workers: one process group."""

    def __init__(self, root: Path, location: str, work: str, names: Sequence[str] = ()) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(DRIVER), str(root), location, work, *names],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
        )  # fmt: skip

    def hear(self, word: str) -> None:
        assert self._process.stdout is not None
        said = self._process.stdout.readline().strip()
        assert said == word, f"the driver said {said!r}, not {word!r}"

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def cpu_s(self) -> float:
        """CPU time of all processes of the group, those that have ended too."""
        ticks = 0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):  # the process has ended meanwhile
                fields = stat.read_text().rpartition(")")[2].split()
                if int(fields[2]) == self._process.pid:
                    ticks += sum(map(int, fields[11:15]))
        return ticks / TICKS_PER_S

    def end(self) -> None:
        self._process.communicate()


class Served(Commits):
    """A served store with root tables r0 and r1 and jobs that copy their changes, refreshed by Spark drivers.

    The commits are timed where the coordinator makes them.
    """

    def __init__(self, folder: Path, interval_ms: int) -> None:
        super().__init__(interval_ms)
        self._chance = np.random.default_rng(13)
        self.root = folder / "store"
        self.store = el.open(self.root, checkpoint_interval_ms=interval_ms, maintenance=True)
        self.server = el.serve(self.store)
        self._stack = ExitStack()
        self._stack.callback(self.store.close)
        self._stack.callback(self.server.shutdown)
        for root in ("r0", "r1"):
            self.store.create_table(root, SCHEMA, primary_key=["id"])
        self.feed()
        self._time_commits()

    def jobs(self, prefix: str, count: int) -> list[str]:
        names = [f"{prefix}{number}" for number in range(count)]
        for number, name in enumerate(names):
            self.store.create_job(name, [f"r{number % 2}"], {f"{name}_out": (SCHEMA, ["id"])})
        return names

    def driver(self, work: str, names: Sequence[str] = (), location: str | None = None) -> Driver:
        """Start a driver; its end belongs to that of the store."""
        driver = Driver(self.root, location or self.server.location, work, names)
        self._stack.callback(driver.end)
        return driver

    def await_all(self, names: Sequence[str]) -> None:
        """Make a boundary, and wait until each job has committed all changes so far of the tables that it reads."""
        newest = {name: max(map(self._newest, self.store.job(name).info.upstreams)) for name in names}
        self.store.checkpoint()
        while any(self.store.job(name).info.committed_epoch < newest[name] for name in names):
            wait_until(time() + 0.01)

    def _newest(self, table: str) -> int:
        return self.store.table(table).info.max_committed_epoch

    @contextmanager
    def window(self, names: Sequence[str]) -> Iterator[None]:
        """Write to the root tables ten times a second. At the end wait until these jobs have caught up, so that none
        works on in the next window.
        """
        closing = threading.Event()

        def feed() -> None:
            while not closing.wait(FEED_PAUSE_S):
                self.feed()

        thread = threading.Thread(target=feed)
        thread.start()
        try:
            yield
        finally:
            closing.set()
            thread.join()
        self.await_all(names)

    def feed(self) -> None:
        with self.store.transaction() as tx:
            for root in ("r0", "r1"):
                tx.upsert(root, rows(self._chance.choice(KEYS, FEED_ROWS, replace=False), self._chance))

    def close(self) -> None:
        self._stack.close()

    def _time_commits(self) -> None:
        metrics = self.server.coordinator.metrics
        note, going = metrics.note, dict[tuple[str, int], int]()

        def timed(decision: commands.Decision, now_ms: int) -> None:
            note(decision, now_ms)
            if isinstance(decision, commands.CommitBarrier):
                going[decision.job, decision.barrier_id] = decision.barrier.curr
            elif isinstance(decision, commands.Announce):
                epoch = going.pop((decision.job, decision.barrier_id), None)
                if epoch is not None:
                    name = decision.job.removeprefix("job:")
                    self.took.append(Took(name, epoch, time() * 1000 - to_unix_ms(epoch) - 1))

        metrics.note = timed


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory, scale: float, book: Book) -> dict[str, Figure]:
    """Return the figures of one driver's jobs beside the work of each of three other drivers, in turns with none."""
    crowd = Served(tmp_path_factory.mktemp("served"), INTERVAL_MS if scale >= 1 else 500)
    names = crowd.jobs("j", max(2, round(JOBS * scale)))
    chance, size = np.random.default_rng(14), max(100, round(BASE_ROWS * scale))
    flood_size, pieces = max(100, round(FLOOD_ROWS * scale)), max(50, round(PIECE_ROWS * scale))
    tables = {"base": size, "facts": flood_size, "rate": 1}
    for table, count in tables.items():
        crowd.store.create_table(table, SCHEMA, primary_key=["id"]).upsert(rows(np.arange(count) * 64, chance))
        crowd.store.compact(table, full=True)
    rate = crowd.store.table("rate")
    crowd.store.create_job("flood", ["rate", "facts"], {"flood_out": (SCHEMA, ["id"])})
    slow = crowd.jobs("slow", 1)
    stalling, viewing = crowd.driver("stalls", slow), crowd.driver("views")
    for driver in (stalling, viewing, crowd.driver("copies", names), crowd.driver("flood", ["flood"])):
        driver.hear("ready")
    crowd.await_all([*names, *slow, "flood"])

    def stall(end: float) -> None:
        stalling.tell("stall")
        wait_until(end)
        stalling.tell("go")

    def create(end: float) -> None:
        """Create views of all rows, one after the other, each from nothing to its first commit."""
        while time() < end:
            viewing.tell(f"create {pieces}")
            viewing.hear("created")

    def flood(end: float) -> None:
        while time() < end:
            rate.upsert(rows(np.array([0]), chance))
            wait_until(time() + crowd.interval_ms / 1000)

    kinds = {
        WITHOUT: Kind(wait_until),
        STALLED: Kind(stall, slow),
        CREATED: Kind(create),
        FLOODED: Kind(flood, ["flood"]),
    }
    samples = windows(crowd, names, kinds, scale)
    assert crowd.store.table("flood_out").count() == flood_size
    crowd.close()
    says = {
        STALLED: ("P13", "a job of another driver", 1.2),
        CREATED: ("P14", f"views of {size:,} rows that another creates", 1.3),
        FLOODED: ("P14", f"{flood_size:,} rows changed by another in each epoch", 1.3),
    }
    figures = {}
    for name, (number, what, at_most) in says.items():
        target = Target(name, WITHOUT, at_most, f"≤ {at_most}")
        taken = {who: samples[who] for who in (name, WITHOUT)}
        what = f"boundary to commit, {len(names)} jobs of a Spark driver, beside {what}"
        figures[name] = Figure(number, what, taken, (target,))
        book.add(figures[name])
    return figures


@pytest.fixture(scope="module")
def decided(tmp_path_factory: pytest.TempPathFactory, scale: float, book: Book) -> list[Figure]:
    """A barrier of each job of two drivers, under the coordinator and without it."""
    count, pairs = (JOBS // 2, PAIRS) if scale >= 1 else (1, 2)
    crowds: dict[str, tuple[Served, list[str], list[Driver]]] = {}
    for variant in (UNDER, ALONE):
        crowd = Served(tmp_path_factory.mktemp("decided"), 60_000)
        shares = [crowd.jobs(prefix, count) for prefix in ("a", "b")]
        location = None if variant == UNDER else "alone"
        drivers = [crowd.driver("copies", share, location) for share in shares]
        for driver in drivers:
            driver.hear("ready")
        names = [name for share in shares for name in share]
        crowd.await_all(names)
        crowds[variant] = crowd, names, drivers
    latency: Samples = {variant: [] for variant in crowds}
    cpu: Samples = {variant: [] for variant in crowds}
    for place in range(-1, pairs):
        for variant in turned(list(crowds), place):
            crowd, names, drivers = crowds[variant]
            crowd.feed()
            gc.collect()
            before_s, start = sum(driver.cpu_s() for driver in drivers), perf_counter()
            crowd.await_all(names)
            took_ms = (perf_counter() - start) * 1000
            cpu_ms = (sum(driver.cpu_s() for driver in drivers) - before_s) * 1000
            if place >= 0:
                latency[variant].append(took_ms)
                cpu[variant].append(cpu_ms)
    for crowd, _, _ in crowds.values():
        crowd.close()
    what, target = f"{2 * count} jobs of two Spark drivers, one barrier each", (Target(UNDER, ALONE, 1.2, "≤ 1.2"),)
    result = [
        Figure("P16", f"from the boundary to the last commit, {what}", latency, target),
        Figure("P16", f"CPU time of the drivers, {what}", cpu, target),
    ]
    for figure in result:
        book.add(figure)
    return result


@pytest.mark.parametrize("who", [0, 1], ids=["beside", "without"])
@pytest.mark.parametrize("what", [STALLED, CREATED, FLOODED])
def test_p13_p14_work_of_other_drivers(
    what: str, who: int, clock: ReplayClock, benchmark, beside: dict[str, Figure]
) -> None:
    clock.play(benchmark, [*beside[what].samples.values()][who])


@pytest.mark.parametrize("who", [UNDER, ALONE])
@pytest.mark.parametrize("place", [0, 1], ids=["latency", "cpu"])
def test_p16_barriers_of_drivers(who: str, place: int, clock: ReplayClock, benchmark, decided: list[Figure]) -> None:
    clock.play(benchmark, decided[place].samples[who])
