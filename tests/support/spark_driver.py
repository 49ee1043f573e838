"""A Spark driver in a process of its own, whose tasks, executors and self die as told (tests/spark/sink_driver.py)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import epochlog as el
from sink_simulation import Later

PROGRAM = Path(__file__).parents[1] / "spark" / "sink_driver.py"
PARTS = 3
DRIVER_DIES = ("before", "after", "recorded", "tasks-done")
"""Moods in which the driver dies without an answer."""

SPECULATIVE = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "50ms",
    "spark.executorEnv.PYTHONPATH": os.environ.get("PYTHONPATH", ""),
}
"""Settings under which a slow task gets a second attempt at once."""


@dataclass(frozen=True)
class Attempts:
    """Paths that each attempt of a task has written, by "partition-attempt", and the attempt that failed."""

    paths: dict[str, list[str]]
    sick: str

    def lost(self, store: el.Store) -> set[str]:
        """Those whose files nothing reaches."""
        unreachable = set(store.verify().unreachable)
        assert all(len(unreachable & set(paths)) in (0, len(paths)) for paths in self.paths.values())
        return {name for name, paths in self.paths.items() if unreachable & set(paths)}

    def counted(self, store: el.Store) -> list[int]:
        """The partitions of the others."""
        return sorted(int(name.split("-")[0]) for name in self.paths.keys() - self.lost(store))


class Driver:
    """A Spark driver in a process of its own, that writes into the store."""

    def __init__(self, store: el.Store, notes: Path, **settings: str) -> None:
        self._place = {"path": store.root}
        if store._handle.catalog_url:
            self._place["catalog"] = store._handle.catalog_url
        self._notes, self._orders = notes, 0
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAM), json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
        )
        assert self._answer() == {"ready": True}

    def order(self, do: str, table: str, mood: str, count: int, error: str = "", **more: Any) -> Attempts:
        """Have rows 0 to `count` written, in PARTS partitions; what came of it. error: a part of the expected error."""
        assert self._process.stdin is not None
        self._orders += 1
        notes = self._notes / f"{id(self)}-{self._orders}"
        notes.mkdir(parents=True)
        place = {**self._place, "table": table}
        request = {"do": do, "place": place, "mood": mood, "rows": [0, count, PARTS], "notes": str(notes), **more}
        print(json.dumps(request), file=self._process.stdin, flush=True)
        answer = self._answer()
        if error:
            assert error in answer["error"], answer
        else:
            assert answer == ({} if mood in DRIVER_DIES else {"done": True}), answer
        notes_by_name = {path.name: path.read_text() for path in notes.iterdir()}
        sick = notes_by_name.pop("sick", "")
        return Attempts({name: json.loads(paths) for name, paths in notes_by_name.items()}, sick)

    def _answer(self) -> dict[str, Any]:
        """Return the driver's next answer; empty when the driver has died."""
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline() or "{}")

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.communicate()  # it ends with its input, and its JVM with it
        self._process.wait()


@contextmanager
def driver(store: el.Store, notes: Path, **settings: str) -> Iterator[Driver]:
    started = Driver(store, notes, **settings)
    try:
        yield started
    finally:
        started.end()


def vacuumed(store: el.Store, later_ms: int) -> int:
    """Return the number of files that vacuum deletes `later_ms` later."""
    clock = Later()
    with el.open(store.root, store._handle.catalog_url, create=False, clock=clock) as opened:
        opened.vacuum()
        clock.added_ms = later_ms
        return len(opened.vacuum().deleted)
