"""P1 and P2: durable commits, and reads of the whole table before and after compaction, beside the peers."""

from __future__ import annotations

from pathlib import Path

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


class Course:
    """The way that all contenders go side by side: load, 20 commits, reads, compaction, reads, 20 commits, reads."""

    def __init__(self, folder: Path, scale: float) -> None:
        self._folder = folder
        self._rounds = 15 if scale >= 1 else 7 if scale >= 0.1 else 2
        self._work: Workload = make_workload(scale, 2 * COMMITS)
        self._stores: list[Contender] = [Epochlog(folder / "e"), Delta(folder / "d"), Rocks(folder / "r")]

    def run(self) -> tuple[Samples, dict[str, Samples]]:
        """Samples of the commits, and of the reads in each state."""
        first, second = self._work.commits[:COMMITS], self._work.commits[COMMITS:]
        for store in self._stores:
            store.load(self._work.base)
        reads = {}
        commits = self._commits(first)
        reads[BEFORE] = self._reads(first)
        for store in self._stores:
            store.compact()
        reads[AFTER] = self._reads(first)
        commits = joined(commits, self._commits(second))
        reads[AGAIN] = self._reads(self._work.commits)
        return commits, reads

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
def measured(tmp_path_factory: pytest.TempPathFactory, scale: float, book: Book) -> tuple[Samples, dict[str, Samples]]:
    course = Course(tmp_path_factory.mktemp("store"), scale)
    try:
        commits, reads = course.run()
    finally:
        course.close()
    book.add(Figure("P1", "durable commit of 20 k upserts", commits, COMMIT_TARGETS))
    for state, samples in reads.items():
        book.add(Figure("P2", f"read the whole table {state}", samples, READ_TARGETS[state]))
    return commits, reads


@pytest.mark.parametrize("who", STORES)
def test_p1_commit(who: str, clock: ReplayClock, benchmark, measured) -> None:
    clock.play(benchmark, measured[0][who])


@pytest.mark.parametrize("who", READERS)
@pytest.mark.parametrize("state", READ_TARGETS)
def test_p2_read(state: str, who: str, clock: ReplayClock, benchmark, measured) -> None:
    clock.play(benchmark, measured[1][state][who])
