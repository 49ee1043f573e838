"""Many jobs in one process over tables that are written to all the time, and how long each barrier takes to commit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import time
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from data import SCHEMA

import epochlog as el
from epochlog.store.types.epoch import from_unix_ms, to_unix_ms

KEYS = 5_000
FEED_ROWS = 100
FEED_PAUSE_S = 0.1


@dataclass(frozen=True, slots=True)
class Took:
    """One commit of one job: its barrier's boundary, and how long after that it was there."""

    job: str
    boundary: int
    ms: float


class Commits:
    """Commits of jobs as they come, in a store whose boundaries are `interval_ms` apart."""

    def __init__(self, interval_ms: int) -> None:
        self.interval_ms = interval_ms
        self.took: list[Took] = []

    def all_past(self, end: float, names: Sequence[str]) -> bool:
        """Return True if each job has committed at the last boundary before `end` (Unix seconds), or later."""
        last = from_unix_ms(int(end * 1000) - self.interval_ms)
        return {commit.job for commit in self.took if commit.boundary >= last} >= set(names)

    def since(self, start: float, end: float, names: Sequence[str]) -> list[float]:
        """ms of the commits of these jobs whose boundaries lie between these times (Unix seconds)."""
        return [
            commit.ms
            for commit in self.took
            if commit.job in names and start * 1000 <= to_unix_ms(commit.boundary) <= end * 1000
        ]


class Crowd(Commits):
    """A store with root tables r0, r1, …, each with its share of the jobs j0, j1, …, which copy what changed in it.

    A thread writes a transaction over all root tables ten times a second while a window is open.
    """

    def __init__(self, folder: Path, count: int, *, roots: int = 5, interval_ms: int = 1000) -> None:
        super().__init__(interval_ms)
        self._chance = np.random.default_rng(13)
        self.roots = roots
        self.store = el.open(folder, checkpoint_interval_ms=interval_ms, maintenance=True)
        self.jobs = {}
        for root in range(self.roots):
            self.store.create_table(f"r{root}", SCHEMA, primary_key=["id"])
        self._feed()
        for number in range(count):
            self.add(f"j{number}", [f"r{number % self.roots}"], copy(f"r{number % self.roots}"))
        self.run(self.jobs, until="idle")

    def add(self, name: str, upstreams: Sequence[str], refresh: Callable[[Any], None], **options: Any) -> el.Job:
        """One more job, with an output of its name; its commits are timed from now on."""
        job = self.store.create_job(name, upstreams, {f"{name}_out": (SCHEMA, ["id"])}, **options)
        self._time(job)
        self.jobs[name] = (job, refresh)
        return job

    def drop(self, name: str) -> None:
        del self.jobs[name]
        self.store.drop_job(name)

    def run(self, names: Sequence[str] | dict[str, Any], until: Any = None) -> None:
        pipe = self._pipeline(names)
        pipe.run(until=until)
        self._healthy(pipe)

    @contextmanager
    def window(self, names: Sequence[str]) -> Iterator[None]:
        """These jobs run, in a thread each, and the root tables are written to."""
        pipe, closing = self._pipeline(names), threading.Event()
        threads = [threading.Thread(target=pipe.run), threading.Thread(target=self._feed_until, args=(closing,))]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            closing.set()
            pipe.stop()
            for thread in threads:
                thread.join()
            self._healthy(pipe)

    def close(self) -> None:
        self.store.close()

    def _time(self, job: el.Job) -> None:
        runner = job._runner
        commit = runner.commit

        def timed(plan: Any, outputs: Any, *, keep: bool = False, operation: str = "refresh") -> int:
            epoch = commit(plan, outputs, keep=keep, operation=operation)
            if plan.barrier.prev:
                self.took.append(Took(runner.name, epoch, time() * 1000 - to_unix_ms(epoch) - 1))
            return epoch

        runner.commit = timed

    def _pipeline(self, names: Sequence[str] | dict[str, Any]) -> el.Pipeline:
        pipe = el.Pipeline(self.store)
        for name in names:
            pipe.add(*self.jobs[name])
        return pipe

    def _healthy(self, pipe: el.Pipeline) -> None:
        failed = [row for row in pipe.status() if row.last_error]
        assert not failed, failed

    def _feed(self) -> None:
        with self.store.transaction() as tx:
            for root in range(self.roots):
                tx.upsert(f"r{root}", rows(self._chance.choice(KEYS, FEED_ROWS, replace=False), self._chance))

    def _feed_until(self, closing: threading.Event) -> None:
        while not closing.wait(FEED_PAUSE_S):
            self._feed()


def rows(ids: np.ndarray, chance: np.random.Generator) -> pa.Table:
    values = chance.random(len(ids))
    return pa.table([pa.array(ids), pa.array(values), pa.array(values).cast(pa.string())], schema=SCHEMA)


def copy(source: str) -> Callable[[Any], None]:
    """A refresh that writes what changed into the job's only output, its values doubled; nothing is ever deleted."""

    def refresh(ctx: Any) -> None:
        changed = ctx.changes(source, mode="net", columns=SCHEMA.names).select(SCHEMA.names)
        (output,) = ctx.plan.outputs
        ctx.upsert(output, changed.set_column(1, SCHEMA.field(1), pc.multiply(changed["value"], 2.0)))

    return refresh
