"""Registry of the streaming queries and pipelines that run jobs in this process: one for each job of a store."""

from __future__ import annotations

import threading
from typing import Protocol

from epochlog.errors import EpochlogError, JobRunning
from epochlog.store.session.job_runners import describe_runner

from .runner import JobRunner


class RunningQuery(Protocol):
    """Interface of a StreamingQuery, or of a pipeline's job."""

    @property
    def isActive(self) -> bool: ...  # noqa: N802  # Spark's own name

    def stop(self) -> None: ...


class LiveQueries:
    """Thread-safe registry of the live queries of this process, by store and job."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queries: dict[tuple[str, int], RunningQuery | None] = {}

    def claim(self, runner: JobRunner, *, take_over: bool = False) -> None:
        """Reserve the job for a new query; raise JobRunning if it has a live one here. take_over: replace that one."""
        key = _key(runner)
        with self._lock:
            busy = not take_over and key in self._queries and is_active(self._queries[key])
            if not busy:
                self._queries[key] = None
        if busy:
            raise JobRunning(
                f"job {runner.name!r} is run already in this process, by {_describe_query(runner)}. Stop that one "
                "first, or take the job over with take_over=True, which fences it"
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
        """Return True if a query of this process runs the job, or is starting."""
        with self._lock:
            return _key(runner) in self._queries and is_active(self._queries[_key(runner)])

    def stop(self, runner: JobRunner) -> None:
        """Stop the job's query in this process, if any; wait for its barrier in flight."""
        query = self.get(runner)
        if query is not None:
            query.stop()
            self.set(runner, None)


def _key(runner: JobRunner) -> tuple[str, int]:
    return runner.handle.store_id, runner.job_id


def _describe_query(runner: JobRunner) -> str:
    """Describe the runner that the job's record names; a starting query is not in the record yet."""
    try:
        live_runner = runner.record().runner
    except EpochlogError:
        live_runner = None
    return (
        "a query or a pipeline" if live_runner is None else describe_runner(live_runner, runner.handle.catalog.now_ms())
    )


def is_active(query: RunningQuery | None) -> bool:
    """Return True if the query is active, or is starting (None)."""
    try:
        return query is None or query.isActive
    except Exception:  # noqa: BLE001  # the query's JVM has died
        return False


live = LiveQueries()
