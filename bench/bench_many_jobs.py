"""P17: a round of 1,000 jobs of one pipeline, beside a round of 100."""

from __future__ import annotations

import gc
import time
from pathlib import Path

import numpy as np
import pytest
from crowd import KEYS, copy, rows
from data import SCHEMA
from pairs import ReplayClock, Samples, turned
from report import Book, Figure, Target

import epochlog as el

MANY, FEW = 1_000, 100
ROUNDS = 2
COUNTS = (f"{MANY:,} jobs", f"{FEW} jobs")


class Jobs:
    """Jobs of one pipeline that all copy the changes of one table."""

    def __init__(self, folder: Path, count: int) -> None:
        self._chance = np.random.default_rng(17)
        self.store = el.open(folder / "store")
        self.store.create_table("r", SCHEMA, primary_key=["id"])
        self._pipe = el.Pipeline(self.store)
        for number in range(count):
            job = self.store.create_job(f"j{number}", ["r"], {f"j{number}_out": (SCHEMA, ["id"])})
            self._pipe.add(job, copy("r"))
        self.round()

    def round(self) -> float:
        """CPU ms from a change to the commit of all jobs."""
        self.store.table("r").upsert(rows(self._chance.choice(KEYS, 100, replace=False), self._chance))
        gc.collect()
        start_s = time.process_time()
        self._pipe.run(until="idle")
        took_ms = (time.process_time() - start_s) * 1000
        assert {row.state for row in self._pipe.status()} == {"idle"}
        return took_ms


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory, scale: float, book: Book) -> Figure:
    counts = (MANY, FEW) if scale >= 1 else (50, 5)
    groups = {who: Jobs(tmp_path_factory.mktemp("jobs"), count) for who, count in zip(COUNTS, counts, strict=True)}
    samples: Samples = {who: [] for who in COUNTS}
    for place in range(ROUNDS if scale >= 1 else 2):
        for who in turned(list(groups), place):
            samples[who].append(groups[who].round())
    for group in groups.values():
        group.store.close()
    what = "CPU time of a round of one pipeline, from a change to the commits of all jobs"
    result = Figure("P17", what, samples, (Target(*COUNTS, 12, "≤ 12"),))
    book.add(result)
    return result


@pytest.mark.parametrize("who", COUNTS)
def test_p17_many_jobs(who: str, clock: ReplayClock, benchmark, many: Figure) -> None:
    clock.play(benchmark, many.samples[who])
