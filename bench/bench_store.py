"""P1, P2, P3 and P8: durable commits, whole reads, reads of the past and point reads, beside the peers."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from contenders import Contender, Delta, Epochlog, ParquetFile, Rocks, same_rows
from data import COMMITS, Workload, expected, make_workload
from pairs import ReplayClock, Samples, joined, measure, timed, turned
from report import Book, Figure, Target

OURS = "epochlog"
PARQUET, PARQUET_DEFAULTS = "parquet", "parquet (defaults)"
STORES = (OURS, "deltalake", "rocksdict")
READERS = (*STORES, PARQUET, PARQUET_DEFAULTS)
BEFORE, AFTER, AGAIN = "before compaction", "after compaction", "20 commits after compaction"

COMMIT_TARGETS = (
    Target(OURS, "deltalake", 1 / 40, "≤ 1/40"),
    Target(OURS, "rocksdict", 1 / 2, "≤ 1/2"),
)
READ_TARGETS = {
    BEFORE: (Target(OURS, "deltalake", 1 / 2, "≤ 1/2"), Target(OURS, PARQUET, 2, "≤ 2")),
    AFTER: (Target(OURS, "deltalake", 1 / 3, "≤ 1/3"), Target(OURS, PARQUET, 2, "≤ 2")),
    AGAIN: (Target(OURS, "deltalake", 1 / 2, "≤ 1/2"), Target(OURS, PARQUET, 2, "≤ 2")),
}
PAST_TARGETS = (Target(OURS, "deltalake", 1 / 2, "≤ 1/2"),)
BACK = 15
WARM_ROUNDS = 4
"""Rounds of point reads before those that count: all contenders have caches."""
POINTS = (1, 1_000, 100_000)
POINT_TARGETS = {1: Target(OURS, None, 1, "≤ 1 ms"), 100_000: Target(OURS, "rocksdict", 1, "≤ 1")}


class Course:
    """The way that all contenders go side by side: load, 20 commits, reads, compaction, reads, 20 commits, reads."""

    def __init__(self, folder: Path, scale: float) -> None:
        self._folder = folder
        self._rounds = 15 if scale >= 1 else 7 if scale >= 0.1 else 2
        self._work: Workload = make_workload(scale, 2 * COMMITS)
        self._ours, self._delta, self._rocks = Epochlog(folder / "e"), Delta(folder / "d"), Rocks(folder / "r")
        self._stores: list[Contender] = [self._ours, self._delta, self._rocks]
        self.figures: list[Figure] = []

    def run(self) -> None:
        """Go the whole way; what was measured is in `figures`."""
        first, second = self._work.commits[:COMMITS], self._work.commits[COMMITS:]
        for store in self._stores:
            store.load(self._work.base)
        commits = self._commits(first)
        self._looks(BEFORE, first)
        for store in self._stores:
            store.compact()
        self._looks(AFTER, first)
        commits = joined(commits, self._commits(second))
        self._note("P2", f"read the whole table {AGAIN}", self._reads(self._work.commits), READ_TARGETS[AGAIN])
        self._note("P1", "durable commit of 20 k upserts", commits, COMMIT_TARGETS)

    def _looks(self, state: str, commits: tuple[pa.Table, ...]) -> None:
        self._note("P2", f"read the whole table {state}", self._reads(commits), READ_TARGETS[state])
        self._note("P3", f"read {BACK} commits back, {state}", self._past(commits), PAST_TARGETS)
        for count in POINTS:
            targets = (POINT_TARGETS[count],) if count in POINT_TARGETS else ()
            self._note("P8", f"get {count:,} keys {state}", self._gets(count), targets)

    def _note(self, name: str, what: str, samples: Samples, targets: tuple[Target, ...]) -> None:
        self.figures.append(Figure(name, what, samples, targets))

    def _past(self, commits: tuple[pa.Table, ...]) -> Samples:
        at = len(commits) - BACK
        wanted = expected(self._work.base, commits[:at])
        work = {who.name: partial(who.read_at, at) for who in (self._ours, self._delta)}
        for who in (self._ours, self._delta):
            assert same_rows(who.as_arrow(work[who.name]()), wanted), f"{who.name} returned other rows of the past"
        return measure(work, self._rounds)

    def _gets(self, count: int) -> Samples:
        """Other keys in every call, the same for both; all are there. Of single keys many make a sample."""
        chance, ids = np.random.default_rng(count), self._work.base.column("id").to_numpy()
        calls = 50 if count == 1 else 1
        samples: Samples = {OURS: [], "rocksdict": []}
        for place in range(-WARM_ROUNDS, self._rounds):
            asked = [chance.choice(ids, min(count, len(ids)), replace=False) for _ in range(calls)]
            tables = [pa.table({"id": keys}) for keys in asked]
            packed = [[struct.pack(">Q", key) for key in keys.tolist()] for keys in asked]
            assert all(self._ours.get(keys).num_rows == keys.num_rows for keys in tables[: place + WARM_ROUNDS == 0])
            work = {OURS: partial(_each, self._ours.get, tables), "rocksdict": partial(_each, self._rocks.get, packed)}
            for name in turned(list(work), place):
                took = timed(work[name]) / calls
                if place >= 0:
                    samples[name].append(took)
        return samples

    def close(self) -> None:
        for store in self._stores:
            store.close()

    def _commits(self, commits: tuple[pa.Table, ...]) -> Samples:
        stores = {store.name: store for store in self._stores}
        samples: Samples = {name: [] for name in stores}
        for place, rows in enumerate(commits):
            for name in turned(list(stores), place):
                prepared = stores[name].prepare(rows)
                samples[name].append(timed(lambda store=stores[name], taken=prepared: store.commit(taken)))
        return samples

    def _reads(self, commits: tuple[pa.Table, ...]) -> Samples:
        wanted = expected(self._work.base, commits)
        for store in self._stores:
            assert same_rows(store.as_arrow(store.read()), wanted), f"{store.name} returned other rows"
        files = [ParquetFile(self._folder / f"p{tuned:d}", tuned=tuned) for tuned in (True, False)]
        for file in files:
            file.write(wanted)
            assert same_rows(file.read(), wanted)
        return measure({who.name: who.read for who in (*self._stores, *files)}, self._rounds)


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory, scale: float, book: Book) -> list[Figure]:
    course = Course(tmp_path_factory.mktemp("store"), scale)
    try:
        course.run()
    finally:
        course.close()
    for figure in course.figures:
        book.add(figure)
    return course.figures


def _each(work: Callable[[Any], Any], items: list[Any]) -> None:
    for item in items:
        work(item)


def one(figures: list[Figure], what: str) -> Figure:
    return next(figure for figure in figures if figure.what == what)


@pytest.mark.parametrize("who", STORES)
def test_p1_commit(who: str, clock: ReplayClock, benchmark, figures: list[Figure]) -> None:
    clock.play(benchmark, one(figures, "durable commit of 20 k upserts").samples[who])


@pytest.mark.parametrize("who", READERS)
@pytest.mark.parametrize("state", READ_TARGETS)
def test_p2_read(state: str, who: str, clock: ReplayClock, benchmark, figures: list[Figure]) -> None:
    clock.play(benchmark, one(figures, f"read the whole table {state}").samples[who])


@pytest.mark.parametrize("who", [OURS, "deltalake"])
@pytest.mark.parametrize("state", [BEFORE, AFTER])
def test_p3_read_of_the_past(state: str, who: str, clock: ReplayClock, benchmark, figures: list[Figure]) -> None:
    clock.play(benchmark, one(figures, f"read {BACK} commits back, {state}").samples[who])


@pytest.mark.parametrize("who", [OURS, "rocksdict"])
@pytest.mark.parametrize("count", POINTS)
@pytest.mark.parametrize("state", [BEFORE, AFTER])
def test_p8_get(state: str, count: int, who: str, clock: ReplayClock, benchmark, figures: list[Figure]) -> None:
    clock.play(benchmark, one(figures, f"get {count:,} keys {state}").samples[who])
