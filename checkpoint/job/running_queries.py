"""The streaming queries that run jobs in this process: at most one for each job of a store."""

from __future__ import annotations

import threading
from typing import Protocol

from epochlog.errors import EpochlogError, JobRunning
from epochlog.store.session.job_runners import describe_runner

from .runner import JobRunner


class RunningQuery(Protocol):
    """Interface of a StreamingQuery, as far as this module uses it."""

    @property
    def isActive(self) -> bool: ...  # noqa: N802  # Spark's own name

    def stop(self) -> None: ...


class LiveQueries:
    """Live queries of this process by store and job. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queries: dict[tuple[str, int], RunningQuery | None] = {}

    def claim(self, runner: JobRunner, *, take_over: bool = False) -> None:
        """Raise JobRunning if the job has a live query here, unless it is to be taken over."""
        key = _key(runner)
        with self._lock:
            busy = not take_over and key in self._queries and is_active(self._queries[key])
            if not busy:
                self._queries[key] = None
        if busy:
            raise JobRunning(
                f"job {runner.name!r} is run already in this process, by {_told(runner)}, and that one goes on. Stop "
                "it first, or take the job over with take_over=True, which fences it"
            )

    def set(self, runner: JobRunner, query: RunningQuery | None) -> None:
        with self._lock:
            if query is None:
                self._queries.pop(_key(runner), None)
            else:
                self._queries[_key(runner)] = query

    def get(self, runner: JobRunner) -> RunningQuery | None:
        with self._lock:
            return self._queries.get(_key(runner))

    def running(self, runner: JobRunner) -> bool:
        """Return True if a query of this process runs the job, or is being started for it."""
        with self._lock:
            return _key(runner) in self._queries and is_active(self._queries[_key(runner)])

    def stop(self, runner: JobRunner) -> None:
        """Stop the job's query here, if there is one; waits for the barrier at hand."""
        query = self.get(runner)
        if query is not None:
            query.stop()
            self.set(runner, None)


def _key(runner: JobRunner) -> tuple[str, int]:
    return runner.handle.store_id, runner.job_id


def _told(runner: JobRunner) -> str:
    """Describe the runner that the job's record names; a query that is being started is not in the record yet."""
    try:
        found = runner.record().runner
    except EpochlogError:
        found = None
    return "a query or a pipeline" if found is None else describe_runner(found, runner.handle.catalog.now_ms())


def is_active(query: RunningQuery | None) -> bool:
    """Return True if the query is active, or is being started (None)."""
    try:
        return query is None or query.isActive  # None: it is being started
    except Exception:  # noqa: BLE001  # its JVM is gone, and with it the query
        return False


live = LiveQueries()
