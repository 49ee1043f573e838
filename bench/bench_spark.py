"""P6: micro-batches of 20,000 rows from source to sink on Spark, beside Spark's own rate source and Parquet sink."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from contenders import same_rows
from data import SCHEMA, expected, make_workload
from pairs import ReplayClock, Samples, turned
from report import Book, Figure, Target

import epochlog as el

DRIVER = Path(__file__).with_name("spark_driver.py")
WARM_UP, BATCHES = 3, 8  # micro-batches of a query: left out, and counted
FEW = 2, 4  # the same, below the full size

OWN, USERS = "epochlog, el.spark()", "epochlog, user's session"
RATE, RATE_OWN = "rate → parquet, defaults", "rate → parquet, el.spark()"
LEGS = {
    OWN: ("epochlog", "epochlog"),
    USERS: ("user", "epochlog"),
    RATE: ("user", "parquet"),
    RATE_OWN: ("epochlog", "parquet"),
}
TARGETS = (Target(OWN, RATE, 0.7, "≤ 0.7"), Target(USERS, RATE, 1.1, "≤ 1.1"))


@dataclass(slots=True)
class Driver:
    """One Spark session in one process."""

    process: subprocess.Popen[str]
    log: Path

    @classmethod
    def start(cls, kind: str, folder: Path, python: Path = Path(sys.executable)) -> Driver:
        folder.mkdir()
        log = folder / "spark.log"
        with log.open("w") as errors:
            command = [str(python), str(DRIVER), kind, str(folder)]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True)
        return cls(process, log)

    def order(self, **order: Any) -> list[float]:
        assert self.process.stdin is not None and self.process.stdout is not None
        print(json.dumps(order), file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the Spark driver has ended:\n{self.log.read_text()[-4000:]}")
        return json.loads(answer)["samples"]

    def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


class Sessions:
    """Drivers by their kind, each started when it is asked for. Below the full size the bench files share them: a start
    takes longer than what is measured then.
    """

    def __init__(self, folder: Path, *, shared: bool) -> None:
        self._folder, self._shared, self._started = folder, shared, 0
        self._drivers: dict[str, Driver] = {}

    def of(self, kind: str) -> Driver:
        if kind not in self._drivers:
            self._started += 1
            self._drivers[kind] = Driver.start(kind, self._folder / f"{kind}-{self._started}")
        return self._drivers[kind]

    def done(self) -> None:
        """Stop the sessions unless they are shared; the next caller gets new ones."""
        if not self._shared:
            self.stop()

    def stop(self) -> None:
        for driver in self._drivers.values():
            driver.stop()
        self._drivers.clear()


class Course:
    """Two sessions that stay up; each round runs all four queries, one after another, each from its beginning."""

    def __init__(self, folder: Path, scale: float, sessions: Sessions) -> None:
        self._folder, self._sessions = folder, sessions
        self._rounds = 3 if scale >= 1 else 1
        self._warm_up, self._batches = (WARM_UP, BATCHES) if scale >= 1 else FEW
        work = make_workload(scale, self._warm_up + self._batches + 1)
        self._rows = work.commits[0].num_rows
        self._wanted = expected(SCHEMA.empty_table(), work.commits[:-1])
        self._store = el.open(folder / "store")
        table = self._store.create_table("rows", SCHEMA, primary_key=["id"])
        for rows in work.commits[:-1]:
            table.upsert(rows)

    def run(self) -> Samples:
        for kind in ("user", "epochlog"):
            self._sessions.of(kind)  # both start meanwhile
        samples: Samples = {name: [] for name in LEGS}
        for place in range(-1 if self._rounds > 1 else 0, self._rounds):  # the first of several rounds warms up
            for name in turned(list(LEGS), place):
                took = self._leg(name, f"{place + 1}-{list(LEGS).index(name)}")
                if place >= 0:
                    samples[name] += took
        return samples

    def _leg(self, name: str, label: str) -> list[float]:
        kind, query = LEGS[name]
        checkpoint = str(self._folder / f"checkpoint-{label}")
        order = {"query": query, "rows": self._rows, "batches": self._batches, "warm_up": self._warm_up}
        order["checkpoint"] = checkpoint
        if query == "epochlog":
            out = self._store.create_table(f"out_{label.replace('-', '_')}", SCHEMA, primary_key=["id"])
            took = self._sessions.of(kind).order(**order, store=self._store.root, into=out.name)
            assert same_rows(out.to_arrow(), self._wanted), f"{name} wrote other rows"
        else:
            into = self._folder / f"out-{label}"
            took = self._sessions.of(kind).order(**order, into=str(into))
            rows = sum(pq.read_metadata(path).num_rows for path in committed_files(into))
            assert rows % self._rows == 0 and rows >= (self._warm_up + self._batches) * self._rows
        return took

    def close(self) -> None:
        self._sessions.done()
        self._store.close()


def committed_files(folder: Path) -> list[Path]:
    """The files that the log of Spark's own sink names; beside them lie those of the batch cut off at the end."""
    entries = [
        json.loads(line)
        for log in (folder / "_spark_metadata").iterdir()
        if not log.name.startswith(".")
        for line in log.read_text().splitlines()
        if line.startswith("{")
    ]
    return sorted({folder / Path(entry["path"]).name for entry in entries if entry["action"] == "add"})


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory, scale: float, book: Book, sessions: Sessions) -> Samples:
    course = Course(tmp_path_factory.mktemp("spark"), scale, sessions)
    try:
        samples = course.run()
    finally:
        course.close()
    book.add(Figure("P6", "Spark micro-batch of 20 k rows, source to sink", samples, TARGETS))
    return samples


@pytest.mark.parametrize("who", LEGS)
def test_p6_micro_batch(who: str, clock: ReplayClock, benchmark, measured) -> None:
    clock.play(benchmark, measured[who])
