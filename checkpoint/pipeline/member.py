"""Members: the jobs of a pipeline, with their scheduling state and their status."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from epochlog.checkpoint.job.driver import JobDriver
from epochlog.checkpoint.job.job_ddl import JobInfo
from epochlog.checkpoint.job.job_looks import UNKNOWN_JOB, CatalogState, LookRequest, WorkLook
from epochlog.checkpoint.job.runner import JobRunner
from epochlog.checkpoint.job.step_scheduler import JobStep


class HasRunner(Protocol):
    """Interface of a job with a runner."""

    _runner: JobRunner


@dataclass(frozen=True, slots=True)
class JobStatus:
    """Current status of a job of a pipeline."""

    name: str
    state: str
    """running | idle | backing off | waiting | given up | parked | finished | fenced | dropped | stopped. waiting:
    another runner is alive, and the pipeline continues when it has ended.
    """
    committed_epoch: int
    restarts: int
    """Number of tries after a failure."""
    last_error: str | None
    """Newest failure, also of a job that has recovered."""
    next_try_ms: int | None
    """Milliseconds until the next try of a job that backs off, else None."""
    lag_ms: int | None
    """See `JobInfo.lag_ms`; None if the job or the catalog is not available."""


@dataclass(slots=True)
class Member:
    """Job of the pipeline, which runs it with a driver of its own in each run. The pipeline's lock guards it."""

    driver: JobDriver
    wake: Callable[[], None]
    step: JobStep = field(default_factory=JobStep)
    committed_epoch: int = 0
    look: WorkLook = UNKNOWN_JOB  # the newest one
    idle_at: CatalogState | None = None  # the state at which the job had no work
    step_ms: int = 0  # duration of its newest step that did something
    queued: bool = False  # its step waits for the pool, or runs
    unseen: bool = False  # it has committed since the newest look
    notified: bool = False  # an upstream has committed since the newest look
    thread_id: int | None = None  # of the running step
    left: threading.Event = field(default_factory=threading.Event)  # its part in this run is over, its lease released
    halted: bool = False

    @property
    def runner(self) -> JobRunner:
        return self.driver.runner

    @property
    def request(self) -> LookRequest:
        return LookRequest(self.runner.job_id, self.runner.name, self.driver.lease, led=self.driver.led)

    @property
    def has_step(self) -> bool:
        """Return True if a step would do something, as of the newest look."""
        return self.driver.has_step(has_work=self.look.has_work)

    @property
    def isActive(self) -> bool:  # noqa: N802  # registered among the live queries, so that only one of them runs a job
        return not self.left.is_set() and not self.step.ended

    def stop(self) -> None:
        """End this job after its current barrier, for `job.stop`; the other jobs continue."""
        self.halted = True
        self.wake()
        if self.thread_id != threading.get_ident():
            self.left.wait()


def job_status(member: Member, info: JobInfo | None, now_ms: int) -> JobStatus:
    """Return the status of a job, from its catalog state if that is available."""
    step = member.step
    return JobStatus(
        name=member.runner.name,
        state=step.state,
        committed_epoch=member.committed_epoch if info is None else info.committed_epoch,
        restarts=step.restarts,
        last_error=step.last_error,
        next_try_ms=max(0, step.due_ms - now_ms) if step.state == "backing off" else None,
        lag_ms=None if info is None else info.lag_ms,
    )
