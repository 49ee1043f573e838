"""Attached jobs: one driver's runs of a job under a coordinator, and alone while the coordinator is gone.

The coordinator decides and commits the barriers; the driver refreshes. Whoever of the two runs the job holds the job's
runner lease, and every claim raises the job's incarnation, which each commit checks. So a driver runs the job alone
only after the coordinator's lease has ended, and a coordinator that wakes up later commits nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from epochlog.checkpoint.job.claims import Kind
from epochlog.checkpoint.job.driver import JobDriver
from epochlog.checkpoint.job.refresh_adapter import RefreshAdapter
from epochlog.checkpoint.job.runner import JobRunner
from epochlog.errors import EpochlogError, InvalidInput, RolledBack, ServerUnavailable
from epochlog.exchange.transport.duplex import check_destination
from epochlog.store.env.log_events import COORDINATOR_BACK, COORDINATOR_LOST, STEP_ABANDONED
from epochlog.store.env.log_line import LogEvent
from epochlog.store.session.handle import Handle

from .job_part import JobPart
from .worker import Worker

LOOK_S = 0.5
"""Longest time in seconds that a step waits for the coordinator's next barrier."""


class AttachedJob(JobDriver):
    """Driver of a job under a coordinator, which decides and commits its barriers. Alone, it is a `JobDriver`."""

    def __init__(
        self,
        runner: JobRunner,
        refresh: Callable[[Any], Any],
        kind: Kind,
        worker: Worker,
        *,
        take_over: bool = False,
        owns_worker: bool = False,
        wait_s: float = LOOK_S,
        notify: Callable[[], None] = lambda: None,
    ) -> None:
        """Build it without attaching.

        take_over: fence the job's runner. owns_worker: `leave` closes it. wait_s: longest wait in seconds of a step for
        the coordinator's next barrier. notify: called in a thread of the worker after each message for the job; it
        must not block.
        """
        super().__init__(runner, refresh, kind, take_over=take_over)
        self._worker = worker
        self._owns_worker = owns_worker
        self._wait_s = wait_s
        self._notify = notify
        self._part: JobPart | None = None

    @property
    def led(self) -> bool:
        return self._worker.connected and not self.holds

    def has_step(self, *, has_work: bool) -> bool:
        if not self._worker.connected:
            return has_work or not self.holds
        return self.holds or self._part is None or self._part.has_step

    def found_no_work(self) -> bool:
        return not self.runner.has_work()

    def enter(self) -> None:
        """Do nothing: `step` attaches to the coordinator, or enters the job alone."""

    def step(self, adapter: RefreshAdapter) -> int | None:
        """Run the next barrier; return its epoch, or None if there is none now or the coordinator begins again.

        Raises JobRunning while another runner of the job is alive: another driver's, or the coordinator that cannot be
        reached now. Raises Cancelled if the job was stopped at the coordinator, Fenced if another driver has taken it
        over, JobParked, JobNotFound, AccessDenied, and the errors of the refresh.
        """
        epoch = self._step_led(adapter) if self._worker.connected else self._step_alone(adapter)
        self._logged_wait = False
        return epoch

    def leave(self) -> None:
        """Detach from the coordinator, and release the job for other runners."""
        self._detach("its driver has ended")
        super().leave()
        if self._owns_worker:
            self._worker.close()

    def _step_led(self, adapter: RefreshAdapter) -> int | None:
        if self.holds:
            self._log(COORDINATOR_BACK, location=self._worker.location)
            self.runner.give_back(self.lease)
        try:
            part = self._part = self._part or self._attach()
            with self.runner.exclusive_step(self.lease):  # so that a refresh can drain its own job
                return part.step_with(self.refresh, adapter, self._wait_s)
        except EpochlogError as error:
            is_lost = isinstance(error, ServerUnavailable) and not self._worker.connected
            if is_lost or isinstance(error, RolledBack):  # the next step goes on from the catalog
                self._log(STEP_ABANDONED, reason=error)
                return None
            if self._part is not None and self._part.over:
                self._detach("its work here has ended")
            raise

    def _step_alone(self, adapter: RefreshAdapter) -> int | None:
        self._worker.check_access()
        if not self.holds:
            super().enter()
            self._detach("its driver runs the job alone")
            self._log(COORDINATOR_LOST, location=self._worker.location)
        return super().step(adapter)

    def _log(self, event: LogEvent, **values: object) -> None:
        self.runner.handle.log(event, job=self.runner.name, **values)

    def _attach(self) -> JobPart:
        worker = self._worker
        if self.take_over:
            self._fence_other_runner()
        try:
            part = worker.attach_driver(
                self.runner.name,
                alive=self.lease.alive,
                gives_up=lambda: not worker.connected,
                take_over=self.take_over,
                notify=self._notify,
            )
        except ServerUnavailable:  # the coordinator may have claimed the job before its answer was lost
            self.runner.give_back(self.lease)
            raise
        self.take_over = False
        self.runner.give_back(self.lease)  # the coordinator's claim follows an earlier step's, and fences nobody
        return part

    def _fence_other_runner(self) -> None:
        """Fence a live runner that is no coordinator; the attach fences the worker of one that is."""
        runner = self.runner.record().runner
        if runner is not None and runner.kind != "coordinator":
            self.runner.acquire(self.lease, take_over=True)
            self.runner.give_back(self.lease)

    def _detach(self, reason: str) -> None:
        part, self._part = self._part, None
        if part is not None:
            self._worker.forget(part, reason)
            part.end_context()


def check_coordinator(coordinator: object, handle: Handle, subject: str) -> None:
    """Raise InvalidInput unless `coordinator` is a location, or a worker for this store; InsecureServer."""
    if isinstance(coordinator, str):
        check_destination(coordinator, None, insecure=False)
    elif not isinstance(coordinator, Worker):
        raise InvalidInput(
            f"{subject}: coordinator is the location of a served store, as 'grpc://host:port', or an "
            f"epochlog.Worker of it, not {coordinator!r}"
        )
    elif coordinator.handle.store_id != handle.store_id:
        raise InvalidInput(f"{subject}: {coordinator!r} is a worker of another store")


def reach_coordinator(coordinator: str | Worker, handle: Handle) -> Worker:
    """Return a worker that the coordinator has answered, or that cannot reach it now.

    The caller closes it if it is not `coordinator` itself. Raises AccessDenied if the coordinator wants a token.
    """
    worker = Worker(coordinator, handle) if isinstance(coordinator, str) else coordinator
    try:
        worker.await_answer()
    except BaseException:
        if worker is not coordinator:
            worker.close()
        raise
    return worker
