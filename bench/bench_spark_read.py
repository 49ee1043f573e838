"""P7: a batch read into Spark's noop sink, beside Spark's own Parquet reader on the same rows: 5 M of them, 20 M with
the memory of the workers that read them, and those of other shapes.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from bench_spark import Driver, Sessions
from contenders import same_rows
from data import OTHERS, PLAIN, Shape
from memory_driver import Watch, resident_mib
from pairs import ReplayClock, Samples, turned
from report import LARGE, WIDE, Book, Figure, Target, text_of

import epochlog as el

ROWS = 5_000_000
OWN, USERS = "epochlog, el.spark()", "epochlog, user's session"
SNAPSHOT = "epochlog, a snapshot"
PARQUET, PARQUET_USERS = "Spark's Parquet, el.spark()", "Spark's Parquet, user's session"
LEGS = {
    OWN: ("epochlog", "read"),
    SNAPSHOT: ("epochlog", "read_snapshot"),
    PARQUET: ("epochlog", "read_parquet"),
    USERS: ("user", "read"),
    PARQUET_USERS: ("user", "read_parquet"),
}
OF_SNAPSHOT = Target(SNAPSHOT, PARQUET, 1, "≤ 1")
TARGETS = (Target(OWN, PARQUET, 1.3, "≤ 1.3"), Target(USERS, PARQUET_USERS, 1.3, "≤ 1.3"), OF_SNAPSHOT)
WARM_UP, FEW = 2, 1  # rounds that are left out, at the full size and below
LARGER = replace(PLAIN, name=LARGE)
LARGER_ROWS = 20_000_000
EVERY_S = 0.05
BOUND = Target("epochlog", None, 512, "≤ 512 MiB")


class Filled:
    """A store with a compacted table of so many rows."""

    def __init__(self, folder: Path, shape: Shape, rows: int) -> None:
        chance = np.random.default_rng(1)
        with el.open(folder / "store") as store:
            table = store.create_table("rows", shape.schema, primary_key=list(shape.primary_key))
            table.upsert(shape.make(np.arange(rows) * 64, chance))
            store.compact("rows", full=True)
            assert table.count() == rows
            self.root = store.root
        self.folder, self.rows, self._shape = folder, rows, shape

    def measure(self, driver: Driver, kind: str, rounds: int, warm_up: int) -> Samples:
        """Milliseconds of the session's legs, in turns. What one read and the other writes is compared before."""
        parquet = str(self.folder / f"{kind}.parquet")
        driver.order(query="write_parquet", store=self.root, into=parquet)
        legs = [name for name, (whose, _) in LEGS.items() if whose == kind]
        with el.open(self.root) as store:
            wanted = store.table("rows").to_arrow()
        assert same_rows(self._shape.in_key_order(pq.read_table(parquet)), wanted), "Spark wrote other rows"
        del wanted
        return self.timed(driver, legs, rounds, warm_up, [])

    def timed(self, driver: Driver, legs: list[str], rounds: int, warm_up: int, columns: list[str]) -> Samples:
        """Milliseconds of these legs, in turns, each of these columns; of all if there are none."""
        parquet = str(self.folder / f"{LEGS[legs[0]][0]}.parquet")
        samples: Samples = {name: [] for name in legs}
        for place in range(-warm_up, rounds):
            for name in turned(legs, place):
                took = driver.order(query=LEGS[name][1], store=self.root, parquet=parquet, columns=columns)
                if place >= 0:
                    samples[name] += took
        return samples


def measured_figures(factory: pytest.TempPathFactory, scale: float, sessions: Sessions) -> list[Figure]:
    rows = max(1000, round(ROWS * scale))
    rounds, warm_up = (5, WARM_UP) if scale >= 1 else (1, FEW)
    folder = factory.mktemp("spark_read")
    plain, samples = Filled(folder / "plain", PLAIN, rows), {}
    others = {shape: Filled(folder / shape.name, shape, max(1000, round(shape.base_rows * scale))) for shape in OTHERS}
    others[LARGER] = Filled(folder / LARGE, LARGER, max(1000, round(LARGER_ROWS * scale)))
    further = []
    for kind in ("epochlog", "user"):  # one session at a time: each keeps its workers and its cores busy
        driver = sessions.of(kind)
        try:
            samples |= plain.measure(driver, kind, rounds, warm_up)
            for shape, filled in others.items() if kind == "epochlog" else ():
                few = min(rounds, 3 if shape is LARGER else 5)
                took = filled.measure(driver, kind, few, warm_up)
                what = f"Spark batch read of {filled.rows / 1e6:g} M rows into noop"
                further.append(Figure("P7", what, took, (TARGETS[0], OF_SNAPSHOT), shape=shape.name))
                if shape.name == WIDE:
                    two = shape.schema.names[1:3]
                    took = filled.timed(driver, [OWN, SNAPSHOT, PARQUET], few, warm_up, two)
                    further.append(Figure("P7", "two of its columns", took, (OF_SNAPSHOT,), shape=WIDE))
            if kind == "epochlog":
                with Watch(partial(workers_mib, driver.process.pid), EVERY_S) as watch:
                    driver.order(query="read", store=others[LARGER].root)
                assert watch.peak[0], "no Python worker was seen"
                peak = {"epochlog": [watch.peak[0]]}
                further.append(Figure("P7", "peak memory of a Python worker that reads", peak, (BOUND,), "MiB", LARGE))
        finally:
            sessions.done()
    return [Figure("P7", f"Spark batch read of {rows / 1e6:g} M rows into noop", samples, TARGETS), *further]


def workers_mib(driver: int) -> tuple[float, float]:
    """Pages of the largest of Spark's Python workers: below the driver's JVM, a daemon and its children."""
    workers = [pid for pid in descendants(driver) if name_of(pid).startswith("python")]
    return max((resident_mib(pid) for pid in workers), default=(0.0, 0.0))


def descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        if stat := text_of(path):
            parent = int(stat.rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(path.parent.name))
    pids = [pid]
    for each in pids:  # it grows meanwhile
        pids.extend(children.get(each, []))
    return pids[1:]


def name_of(pid: int) -> str:
    return text_of(Path(f"/proc/{pid}/comm"))


@pytest.fixture(scope="module")
def measured(
    tmp_path_factory: pytest.TempPathFactory, scale: float, book: Book, sessions: Sessions
) -> dict[str, Figure]:
    figures = measured_figures(tmp_path_factory, scale, sessions)
    for figure in figures:
        book.add(figure)
    return {figure.shape: figure for figure in reversed(figures)}  # of two of a shape, the one of all columns


@pytest.mark.parametrize("who", LEGS)
def test_p7_batch_read(who: str, clock: ReplayClock, benchmark, measured: dict[str, Figure]) -> None:
    clock.play(benchmark, measured[PLAIN.name].samples[who])


@pytest.mark.parametrize("who", [OWN, SNAPSHOT, PARQUET])
@pytest.mark.parametrize("shape", [*(shape.name for shape in OTHERS), LARGE])
def test_p7_batch_read_of_a_shape(shape: str, who: str, clock: ReplayClock, benchmark, measured) -> None:
    clock.play(benchmark, measured[shape].samples[who])
