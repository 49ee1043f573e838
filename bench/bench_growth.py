"""P9: what commits and reads cost after 10, 1,000 and 10,000 commits, and what opening costs after a long life."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from time import perf_counter
from typing import Literal, Self

import numpy as np
import pyarrow as pa
import pytest
from data import SCHEMA
from pairs import ReplayClock, Samples, timed, turned
from plots import Panel, Plot
from report import Book, Figure, Target, quartiles

import epochlog as el
from epochlog.store.catalog.keys import head_key, hist_key, log_key
from epochlog.store.catalog.protocol import Txn
from epochlog.store.metadata.counters import move_counters
from epochlog.store.metadata.definitions import Counters
from epochlog.store.metadata.lookups import all_tables, get_version
from epochlog.store.metadata.version import Commit, LabelGroup, LogEntry, apply_commit
from epochlog.store.session.handle import Handle, open_handle
from epochlog.store.sst.segment import Segment
from epochlog.store.types.epoch import from_unix_ms

STAGES = (10, 1_000, 10_000)
POINTS = (10, 100, 1_000, 5_000, 10_000)
"""Where the oldest table is looked at on its way."""
FLAT = 1.5
KEYS, COMMIT_ROWS = 100_000, 1_000
COMPACT_EVERY = 8
TABLES, ENTRIES = 1_000, 100
START_MS = 1_767_225_600_000


class Ticking:
    """A clock that a test moves: a second goes by with each commit, so that retention has work to do."""

    def __init__(self) -> None:
        self.now_ms = START_MS

    def __call__(self) -> int:
        return self.now_ms


def label(commits: int) -> str:
    return f"after {commits:,} commits"


class Grown:
    """A table of one size whose rows are replaced again and again, compacted at every eighth commit."""

    def __init__(self, folder: Path, scale: float) -> None:
        self._chance, self._clock, self._done = np.random.default_rng(9), Ticking(), 0
        self._folder, self._keys = folder, np.arange(sized(KEYS, scale)) * 64
        self._replaced = sized(COMMIT_ROWS, scale)
        self._store = el.open(folder, durability="os", clock=self._clock)
        # a short memory beside so many commits: its files are those of a store that has run for days
        options = el.TableOptions(history_retention=timedelta(minutes=1), log_retention=timedelta(minutes=10))
        self._table = self._store.create_table("t", SCHEMA, primary_key=["id"], options=options)
        self._table.upsert(self._rows(self._keys))

    def grow(self, commits: int) -> Self:
        """Until it has so many commits, to a multiple of eight and two more: all ages have as much to compact."""
        self._reopen("os")
        while self._done < commits // COMPACT_EVERY * COMPACT_EVERY + 2:
            self.commit()
        self._reopen("disk")
        return self

    def _reopen(self, durability: Literal["os", "disk"]) -> None:
        self._store.close()
        self._store = el.open(self._folder, durability=durability, clock=self._clock)
        self._table = self._store.table("t")

    def _rows(self, ids: np.ndarray) -> pa.Table:
        values = self._chance.random(len(ids))
        return pa.table([pa.array(ids), pa.array(values), pa.array(values).cast(pa.string())], schema=SCHEMA)

    def commit(self) -> float:
        """One commit, and compaction when it is due; ms of the commit alone."""
        rows = self._rows(self._chance.choice(self._keys, self._replaced, replace=False))
        self._clock.now_ms += 1000
        start = perf_counter()
        self._table.upsert(rows)
        took = (perf_counter() - start) * 1000
        self._done += 1
        if self._done % COMPACT_EVERY == 0:
            self._store.compact("t")
        return took

    def read(self) -> pa.Table:
        return self._table.to_arrow()

    def close(self) -> None:
        assert self._table.count() == len(self._keys)
        self._store.close()


def sized(rows: int, scale: float) -> int:
    return max(100, round(rows * scale))


@dataclass(frozen=True, slots=True)
class Growth:
    """ms of commits and reads: of tables of different ages in turns, and of the oldest on its way."""

    commits: Samples
    reads: Samples
    way: dict[int, tuple[list[float], list[float]]]

    def plot(self) -> Plot:
        panels, worst = [], 0.0  # the latter leaves the first point out
        for place, says in enumerate(("ms of a commit", "ms of a whole read")):
            cuts = [(commits, quartiles(took[place])) for commits, took in self.way.items()]
            first = cuts[0][1][1]
            worst = max(worst, *(middle / first for _, (_, middle, _) in cuts[1:]))
            points = [(float(commits), *cut) for commits, cut in cuts]
            panels.append(Panel(f"{says} (median, quartiles)", points, FLAT * first, f"{FLAT} × the first"))
        title = f"One table up to {max(self.way):,} commits: later medians are at most {worst:.2f} × the first"
        return Plot("growth", title, "commits before it", panels, log_x=True)


def growth(folder: Path, stages: Sequence[int], points: Sequence[int], scale: float) -> Growth:
    """Grow the oldest, look at it on its way, then at all ages in turns."""
    sampled = COMPACT_EVERY * (3 if scale >= 1 else 2)
    grown = {label(stage): Grown(folder / str(stage), scale).grow(stage) for stage in stages[:-1]}
    oldest, way = Grown(folder / "oldest", scale), {}
    for point in points:
        oldest.grow(point)
        took = [(oldest.commit(), timed(oldest.read)) for _ in range(sampled)]
        way[point] = ([commit for commit, _ in took], [read for _, read in took])
    grown[label(stages[-1])] = oldest.grow(stages[-1])
    commits: Samples = {name: [] for name in grown}
    reads: Samples = {name: [] for name in grown}
    for place in range(sampled):
        for name in turned(list(grown), place):
            commits[name].append(grown[name].commit())
            reads[name].append(timed(grown[name].read))
    for table in grown.values():
        table.close()
    return Growth(commits, reads, way)


def fill(handle: Handle, template: Segment, entries: int) -> None:
    """Many commits of all tables, straight into the catalog: what opening meets after a long life."""
    tables = handle.catalog.read(lambda view: list(all_tables(view)))

    def body(tx: Txn) -> None:
        for table in tables:
            version = get_version(tx, table.id, table.name)
            for place in range(entries):
                epoch = from_unix_ms(START_MS + 1000 * place) + table.id
                entry = LogEntry(epoch, (LabelGroup(epoch, (template.labelled(epoch),)),))
                version = apply_commit(table.name, version, entry)
                commit = Commit(epoch, START_MS, "upsert", None, None, 1, 0, 1, template.bytes, True, ())
                tx.put(log_key(table.id, epoch), entry.to_record())
                tx.put(hist_key(table.id, epoch), commit.to_record())
            tx.put(head_key(table.id), version.to_record())
        move_counters(tx, Counters.read(tx), from_unix_ms(START_MS + 1000 * entries) + len(tables))

    handle.catalog.transact(body)


def opening(folder: Path, scale: float) -> Samples:
    """ms to open a store with one record of each kind and one with many."""
    samples: Samples = {}
    many = max(2, round(TABLES * scale))
    for tables, entries in ((1, 1), (many, ENTRIES)):
        root = folder / f"{tables}"
        with el.open(root, durability="os") as store:
            made = [store.create_table(f"t{place}", SCHEMA, primary_key=["id"]) for place in range(tables)]
            writer = made[0].writer()
            writer.upsert(pa.table([pa.array([1]), pa.array([0.5]), pa.array(["x"])], schema=SCHEMA))
            template = writer.seal(1)[0]
        handle = open_handle(root, durability="os")
        fill(handle, template, entries)
        handle.close()
        name = f"{tables:,} tables, {tables * entries:,} log entries"
        samples[name] = [timed(lambda root=root: el.open(root).close()) for _ in range(15)]
    return samples


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory, scale: float, book: Book) -> dict[str, Figure]:
    stages = [max(round(stage * scale), 10 * place) for place, stage in enumerate(STAGES, 1)]
    points = sorted({max(round(point * scale), 10) for point in POINTS})
    course = growth(tmp_path_factory.mktemp("growth"), stages, points, scale)
    targets = tuple(Target(label(stage), label(stages[0]), FLAT, f"≤ {FLAT}") for stage in stages[1:])
    opened = opening(tmp_path_factory.mktemp("opening"), scale)
    by_name = {
        "commit": Figure("P9", f"commit of {sized(COMMIT_ROWS, scale):,} rows, compaction on", course.commits, targets),
        "read": Figure("P9", f"read of {sized(KEYS, scale):,} rows, compaction on", course.reads, targets),
        "open": Figure("P9", "opening a store", opened, (Target([*opened][-1], None, 100, "≤ 100 ms"),)),
    }
    for figure in by_name.values():
        book.add(figure)
    book.plot(course.plot())
    return by_name


@pytest.mark.parametrize("stage", range(len(STAGES)))
@pytest.mark.parametrize("what", ["commit", "read"])
def test_p9_growth(what: str, stage: int, clock: ReplayClock, benchmark, figures: dict[str, Figure]) -> None:
    clock.play(benchmark, [*figures[what].samples.values()][stage])


@pytest.mark.parametrize("size", [0, 1], ids=["empty", "large"])
def test_p9_open(size: int, clock: ReplayClock, benchmark, figures: dict[str, Figure]) -> None:
    clock.play(benchmark, [*figures["open"].samples.values()][size])
