"""Looks of a coordinator at its jobs: a job with work gets a checkpoint, as a pipeline steps it.

A look is one read of the catalog for all idle jobs. It comes ten times a second and when a boundary passes; the jobs
that read what another job has just committed are looked at immediately.
"""

from __future__ import annotations

from collections.abc import Collection

from epochlog.checkpoint.job.job_looks import CatalogState, WorkLook, look_at, next_look_ms
from epochlog.errors import EpochlogError
from epochlog.store.env.clock import monotonic_s
from epochlog.store.session.handle import Handle

from .decision_executor import DecisionExecutor
from .managed_jobs import LookedAt
from .state import Running


class JobLooker:
    """Looker at the running jobs of a coordinator. Call all methods under the executor's lock.

    One look runs at a time, on a catalog thread of the executor.
    """

    def __init__(self, handle: Handle, executor: DecisionExecutor) -> None:
        self._handle = handle
        self._executor = executor
        self._soon: set[str] = set()  # jobs to look at immediately
        self._due_ms = 0  # monotonic time of the next look at all jobs
        self._looking = False
        self._idle_at: dict[int, CatalogState] = {}  # by job id: the state at which the job had no work
        executor.on_commit = self._note_commit

    def add(self, key: str, job: LookedAt) -> None:
        """Note a job that has been opened here."""
        self._executor.graph.created(job.vertex)
        self.look_soon(key)

    def look_soon(self, key: str) -> None:
        """Look at this job immediately."""
        self._soon.add(key)
        self._executor.wake.notify_all()

    def due_in_ms(self) -> int | None:
        """Return the time until the next look; None without a job, or while a look runs."""
        if self._looking or not any(running.looked_at is not None for running in self._executor.running.values()):
            return None
        return 0 if self._soon else max(0, self._due_ms - _now_ms())

    def tick(self) -> None:
        """Start a look if it is due."""
        if self.due_in_ms() != 0:
            return
        every = _now_ms() >= self._due_ms
        keys = self._executor.running.keys() if every else self._soon
        jobs = {key: running for key in keys if (running := self._idle(key)) is not None}
        self._soon, self._looking = set(), True
        self._executor.submit(self._look, jobs, every)

    def _idle(self, key: str) -> Running | None:
        """Return the running job of that key if it waits for its next checkpoint."""
        running = self._executor.running.get(key)
        if running is None or running.looked_at is None or not self._executor.manager.idle(key):
            return None
        return running

    def _note_commit(self, running: Running, readers: Collection[str]) -> None:
        """Look at the readers of the job's outputs immediately; at the job too, as it may have more to take in."""
        if running.looked_at is not None:
            self._soon |= {running.key, *readers}

    def _look(self, jobs: dict[str, Running], every: bool) -> None:
        """Look at these jobs, without the lock. every: they are all idle jobs."""
        began_ms, boundary_ms = _now_ms(), None
        looks: dict[int, WorkLook] = {}
        try:
            requests = [running.looked_at.request for running in jobs.values() if running.looked_at is not None]
            seen = look_at(self._handle, requests, None, self._idle_at)
            looks, boundary_ms = dict(seen.by_job), began_ms + seen.boundary_in_ms
        except EpochlogError:  # the next look tries again
            pass
        finally:
            with self._executor.lock:
                self._looking = False
                if every:
                    self._due_ms = next_look_ms(_now_ms(), boundary_ms)
                for key, running in jobs.items():
                    self._apply(key, running, looks)
                self._executor.wake.notify_all()

    def _apply(self, key: str, running: Running, looks: dict[int, WorkLook]) -> None:
        """Force a checkpoint of a job with work, if it still waits for one."""
        assert running.looked_at is not None
        job_id = running.looked_at.request.job_id
        look = looks.get(job_id)
        if look is None or self._idle(key) is not running:
            return
        if look.vertex is not None:
            self._executor.graph.created(look.vertex)
        if look.state is None:
            self._idle_at.pop(job_id, None)
        else:
            self._idle_at[job_id] = look.state
        if look.has_work:
            self._executor.execute(self._executor.manager.inject(key))


def _now_ms() -> int:
    return int(monotonic_s() * 1000)
