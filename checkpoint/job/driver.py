"""Drivers: how a pipeline or a query runs a job from step to step, until it leaves the job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from epochlog.errors import JobRunning
from epochlog.store.env.log_events import JOB_ENDED, JOB_RETRIED, RUNNER_WAITS

from .claims import Kind, RunnerLease
from .refresh_adapter import RefreshAdapter
from .runner import JobRunner
from .step_scheduler import JobStep, backoff_ms, failed, waiting


class JobDriver:
    """Driver of one job, from its first step to `leave`. Use it from one thread at a time.

    Its caller keeps the schedule of the job (`JobStep`), and steps the job when a step is due.
    """

    def __init__(
        self, runner: JobRunner, refresh: Callable[[Any], Any], kind: Kind, *, take_over: bool = False
    ) -> None:
        """Build it without entering. take_over: fence the job's runner at the first step."""
        self.runner = runner
        self.refresh = refresh
        self.lease: RunnerLease = runner.new_lease(kind)
        self.take_over = take_over
        self._logged_wait = False

    @property
    def holds(self) -> bool:
        """Return True while this driver itself is the job's runner."""
        return self.runner.holds(self.lease)

    @property
    def led(self) -> bool:
        """Return True while a coordinator decides and commits the barriers."""
        return False

    def has_step(self, *, has_work: bool) -> bool:
        """Return True if a step would do something now. has_work: the result of the newest look at the catalog."""
        return has_work

    def found_no_work(self) -> bool:
        """Return True if the job has no work, after a step that returned None."""
        return True

    def enter(self) -> None:
        """Become the job's runner, if this driver is not yet. Raises JobRunning while another runner is alive."""
        if not self.holds:
            self.runner.acquire(self.lease, take_over=self.take_over)
            self.take_over = self._logged_wait = False

    def step(self, adapter: RefreshAdapter) -> int | None:
        """Run the next barrier; return its epoch, 0 for a backfill chunk, or None if there was nothing to do."""
        return self.runner.step(self.refresh, adapter, lease=self.lease)

    def after_error(self, schedule: JobStep, error: BaseException, now_ms: int, tries: int | None) -> JobStep:
        """Return the schedule after an error of `enter` or `step`, and log it; leave a job that takes no more steps.

        The job waits for another runner of it that is alive. tries: see `failed`.
        """
        handle, name = self.runner.handle, self.runner.name
        if isinstance(error, JobRunning) and not self.holds:
            if not self._logged_wait:
                handle.log(RUNNER_WAITS, job=name, reason=error)
            self._logged_wait = True
            return waiting(schedule, now_ms)
        after = failed(schedule, error, now_ms, tries)
        if after.ended:  # leave before the caller shows the state, so that another runner may enter
            handle.log(JOB_ENDED, job=name, error=error)
            self.leave()
        else:
            retry_ms = backoff_ms(after.failures)
            handle.log(JOB_RETRIED, job=name, failures=after.failures, retry_ms=retry_ms, error=error)
        return after

    def leave(self) -> None:
        """Release the job for other runners. A second call does nothing."""
        self.runner.release(self.lease)
