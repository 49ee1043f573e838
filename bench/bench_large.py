"""P1, P2 and P5 with ten times the rows, and the memory that reading and replaying take beyond what is asked for."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from bench_flight import OURS, RATE, RAW, LogReaderProcess, beside_raw
from contenders import Delta, Epochlog, same_rows
from course import AFTER, BEFORE, COMMIT_TARGETS, DELTA, PARQUET, READ_TARGETS
from data import COMMITS, PLAIN, expected, make_commit, make_workload
from file_peers import ParquetFile
from memory_driver import Watch
from pairs import ReplayClock, Samples, measure, timed, turned
from report import LARGE, Book, Figure, Target

import epochlog as el

LARGER = replace(PLAIN, name=LARGE, base_rows=20_000_000, commit_rows=200_000)
DRIVER = Path(__file__).with_name("large_driver.py")
COMMITTED, REPLAYED = "durable commit of 200,000 upserts", "Flight replay of the whole log, one stream"
READ = {state: f"read the whole table {state}" for state in (BEFORE, AFTER)}
BOUND = (Target(OURS, None, 512, "≤ 512 MiB"),)
DELTA_COMMITS = 5
"""Number of commits in which deltalake takes part; it gets the rows of the others at once."""
LEGS = [
    *((COMMITTED, who) for who in (OURS, DELTA)),
    *((READ[state], who) for state in READ for who in (OURS, DELTA, PARQUET)),
    *((REPLAYED, who) for who in (OURS, RAW)),
]


class Course:
    """Load, 20 commits, reads, replay, compaction, reads."""

    def __init__(self, folder: Path, scale: float, add_figure: Callable[[Figure], None]) -> None:
        self._folder, self._add_figure, self._rounds = folder, add_figure, 3 if scale >= 1 else 1
        chance, upserts = np.random.default_rng(1), max(10, round(LARGER.commit_rows * scale))
        self._base = make_workload(scale, 0, shape=LARGER).base
        self._commits = tuple(make_commit(len(self._base), upserts, place, chance) for place in range(COMMITS))
        self._wanted = expected(self._base, self._commits)
        self._ours, self._delta = Epochlog(folder / "e"), Delta(folder / "d")
        self._parquet = ParquetFile(folder, tuned=True)
        self.figures: list[Figure] = []

    def run(self) -> None:
        for store in (self._ours, self._delta):
            store.load(self._base)
        samples: Samples = {OURS: [], DELTA: []}
        for place, rows in enumerate(self._commits):
            for name in turned([OURS, DELTA] if place < DELTA_COMMITS else [OURS], place):
                store = self._ours if name == OURS else self._delta
                samples[name].append(timed(partial(store.commit, rows)))
        self._delta.commit(LARGER.newest(pa.concat_tables(self._commits[DELTA_COMMITS:]).combine_chunks()))
        self._note("P1", COMMITTED, samples, COMMIT_TARGETS[:1])
        self._parquet.write(self._wanted)
        self._reads(BEFORE)
        self._replay()
        for store in (self._ours, self._delta):
            store.compact()
        self._reads(AFTER)

    def close(self) -> None:
        self._ours.close()

    def _note(self, name: str, what: str, samples: Samples, targets: tuple[Target, ...], unit: str = "ms") -> None:
        self.figures.append(Figure(name, what, samples, targets, unit, LARGE))
        self._add_figure(self.figures[-1])

    def _reads(self, state: str) -> None:
        for who in (self._ours, self._delta):
            assert same_rows(who.as_arrow(who.read()), self._wanted), f"{who.name} returned other rows"
        at_most, says = READ_TARGETS[state]
        targets = (Target(OURS, DELTA, at_most, says), Target(OURS, PARQUET, 2, "≤ 2"))
        work = {who.name: who.read for who in (self._ours, self._delta, self._parquet)}
        self._note("P2", READ[state], measure(work, self._rounds), targets)
        for way, what in (("to_arrow", "above the table that is returned"), ("scan", "above a batch")):
            command = [sys.executable, str(DRIVER), way, self._ours.store.root, "rows"]
            report = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            assert report["rows"] == len(self._wanted)
            self._note("P2", f"peak memory of {way}() {what}, {state}", {OURS: [report["mib"]]}, BOUND, "MiB")

    def _replay(self) -> None:
        store, log = self._ours.store, self._ours.table.changes(0).read_all()
        samples, rows = beside_raw(store, "rows", log, self._rounds), log.num_rows
        self._note("P5", REPLAYED, samples, RATE)
        del log
        with el.serve(store) as server, LogReaderProcess(rows, server.location) as client, Watch() as watch:
            client_mib = client.read(server.location, "rows", watched=True)
        server_mib = max(0.0, watch.peak[0] - watch.start[0])
        for who, mib in (("server", server_mib), ("client", client_mib)):
            self._note("P5", f"peak memory of the {who}", {OURS: [mib]}, BOUND, "MiB")


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory, scale: float, book: Book) -> dict[str, Figure]:
    course = Course(tmp_path_factory.mktemp("large"), scale, book.add)
    try:
        course.run()
    finally:
        course.close()
    return {figure.what: figure for figure in course.figures}


@pytest.mark.parametrize(("what", "who"), LEGS)
def test_large(what: str, who: str, clock: ReplayClock, benchmark, figures: dict[str, Figure]) -> None:
    clock.play(benchmark, figures[what].samples[who])
