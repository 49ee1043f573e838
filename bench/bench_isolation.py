"""P13, P14, and a flood of rows: what one job's stall, creation or work does to the barriers of the others."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from time import time
from typing import Any, Protocol

import numpy as np
import pyarrow.compute as pc
import pytest
from crowd import SCHEMA, Crowd, copy, rows
from pairs import ReplayClock, Samples, turned
from report import Book, Figure, Target

JOBS, OTHERS = 50, 10
BASE_ROWS, PIECE_ROWS, FLOOD_ROWS = 2_000_000, 100_000, 400_000
INTERVAL_MS, MANY_INTERVAL_MS = 1000, 3000
"""Between two boundaries. 50 jobs do not keep one a second on two slow cores, and would be measured waiting for it."""
ROUNDS = 3
BOUNDARIES = 2  # in a window
STALLED = ("one stalled", "without it")
CREATED = ("a view created", "without it")
FLOODED = ("400,000 rows in one job", "without it")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of window: what is done in it until that Unix time, and which jobs run in it beside those measured."""

    act: Callable[[float], None]
    beside: Sequence[str] = ()


class TimedJobs(Protocol):
    """Interface of jobs whose commits are timed while a window is open."""

    interval_ms: int

    def window(self, names: Sequence[str]) -> AbstractContextManager[None]: ...
    def all_past(self, end: float, names: Sequence[str]) -> bool: ...
    def since(self, start: float, end: float, names: Sequence[str]) -> list[float]: ...


def wait_until(end: float) -> None:
    threading.Event().wait(max(0, end - time()))


def windows(crowd: TimedJobs, names: Sequence[str], kinds: Mapping[str, Kind], scale: float) -> Samples:
    """ms from a boundary to the commit of these jobs there, the median over a window, in windows of each kind in turns.

    Only commits at boundaries that pass during the act count. A window without any is repeated.
    """
    samples: Samples = {name: [] for name in kinds}
    act_s = BOUNDARIES * crowd.interval_ms / 1000
    for place in range(-1, max(1, round(ROUNDS * scale))):
        for name in turned(list(kinds), place):
            taken: list[float] = []
            with crowd.window([*names, *kinds[name].beside]):
                while not taken:
                    wait_until(time() + crowd.interval_ms / 1000)
                    start = time()
                    kinds[name].act(start + act_s)
                    end = time()
                    while not crowd.all_past(end, names):  # slow ones count too
                        wait_until(time() + 0.01)
                    taken = crowd.since(start, end, names)
            if place >= 0:
                samples[name].append(statistics.median(taken))
    return samples


def crowded(folder: Path, jobs: int, scale: float, interval_ms: int) -> Crowd:
    return Crowd(folder / "store", max(2, round(jobs * scale)), interval_ms=interval_ms if scale >= 1 else 150)


@pytest.fixture(scope="module")
def stalled(tmp_path_factory: pytest.TempPathFactory, scale: float, book: Book) -> Figure:
    crowd = crowded(tmp_path_factory.mktemp("stalled"), JOBS - 1, scale, MANY_INTERVAL_MS)
    free, plain = threading.Event(), copy("r0")
    names = list(crowd.jobs)

    def refresh(ctx: Any) -> None:
        free.wait()
        plain(ctx)

    free.set()
    crowd.add("slow", ["r0"], refresh)
    crowd.run(["slow"], until="idle")

    def stall(end: float) -> None:
        free.clear()
        wait_until(end)
        free.set()

    samples = windows(crowd, names, {STALLED[0]: Kind(stall, ["slow"]), STALLED[1]: Kind(wait_until)}, scale)
    crowd.close()
    what = f"boundary to commit, {len(names)} jobs in one process"
    result = Figure("P13", what, samples, (Target(*STALLED, 1.2, "≤ 1.2"),))
    book.add(result)
    return result


@pytest.fixture(scope="module")
def created(tmp_path_factory: pytest.TempPathFactory, scale: float, book: Book) -> Figure:
    crowd, chance = crowded(tmp_path_factory.mktemp("created"), OTHERS, scale, INTERVAL_MS), np.random.default_rng(14)
    names, size = list(crowd.jobs), max(100, round(BASE_ROWS * scale))
    base = crowd.store.create_table("base", SCHEMA, primary_key=["id"])
    base.upsert(rows(np.arange(size) * 64, chance))
    crowd.store.compact("base", full=True)
    numbers, pieces = count(), max(50, round(PIECE_ROWS * scale))

    def create(end: float) -> None:
        """New views of all rows, one after the other, each from nothing to its first commit."""
        while time() < end:
            job = crowd.add(f"view{next(numbers)}", ["base"], copy("base"), snapshot_rows=pieces)
            while not job.info.committed_epoch:
                job.step_local(copy("base"))
            assert crowd.store.table(f"{job.name}_out").count() == size
            crowd.drop(job.name)

    samples = windows(crowd, names, {CREATED[0]: Kind(create), CREATED[1]: Kind(wait_until)}, scale)
    crowd.close()
    what = f"boundary to commit, {len(names)} jobs, beside the creation of a view of {size:,} rows"
    result = Figure("P14", what, samples, (Target(*CREATED, 1.3, "≤ 1.3"),))
    book.add(result)
    return result


@pytest.fixture(scope="module")
def flooded(tmp_path_factory: pytest.TempPathFactory, scale: float, book: Book) -> Figure:
    crowd, chance = crowded(tmp_path_factory.mktemp("flooded"), OTHERS, scale, INTERVAL_MS), np.random.default_rng(15)
    names, size = list(crowd.jobs), max(100, round(FLOOD_ROWS * scale))
    facts, rate = (crowd.store.create_table(name, SCHEMA, primary_key=["id"]) for name in ("facts", "rate"))
    facts.upsert(rows(np.arange(size) * 64, chance))
    crowd.store.compact("facts", full=True)

    def refresh(ctx: Any) -> None:
        """One row that changes changes all."""
        now, factor = ctx.table("facts"), ctx.table("rate")["value"][0]
        ctx.upsert("flood_out", now.set_column(1, "value", pc.multiply(now["value"], factor)))

    def change() -> None:
        rate.upsert(rows(np.array([1]), chance))

    def flood(end: float) -> None:
        while time() < end:
            change()
            wait_until(time() + crowd.interval_ms / 1000)

    change()
    crowd.add("flood", ["rate", "facts"], refresh)
    crowd.run(["flood"], until="idle")
    kinds = {FLOODED[0]: Kind(flood, ["flood"]), FLOODED[1]: Kind(wait_until, ["flood"])}
    samples = windows(crowd, names, kinds, scale)
    assert crowd.store.table("flood_out").count() == size
    crowd.close()
    what = f"boundary to commit, {len(names)} jobs, beside {size:,} rows changed in each epoch of another"
    result = Figure("P14", what, samples, (Target(*FLOODED, 1.3, "≤ 1.3"),))
    book.add(result)
    return result


@pytest.mark.parametrize("who", STALLED)
def test_p13_a_stalled_job(who: str, clock: ReplayClock, benchmark, stalled: Figure) -> None:
    clock.play(benchmark, stalled.samples[who])


@pytest.mark.parametrize("who", CREATED)
def test_p14_a_new_view(who: str, clock: ReplayClock, benchmark, created: Figure) -> None:
    clock.play(benchmark, created.samples[who])


@pytest.mark.parametrize("who", FLOODED)
def test_p14_a_flood_of_rows(who: str, clock: ReplayClock, benchmark, flooded: Figure) -> None:
    clock.play(benchmark, flooded.samples[who])
