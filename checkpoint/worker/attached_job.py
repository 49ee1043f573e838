"""Attached jobs: one driver's runs of a job under a coordinator, and alone while the coordinator is gone.

The coordinator decides and commits the barriers; the driver refreshes. Whoever of the two runs the job holds the job's
runner lease, and every claim raises the job's incarnation, which each commit checks. So a driver runs the job alone
only after the coordinator's lease has ended, and a coordinator that wakes up later commits nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from epochlog.checkpoint.job.claims import RunnerLease
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


class AttachedJob:
    """Job that a driver runs under a coordinator. Use it from one thread; `close` from the thread that has ended it."""

    def __init__(
        self,
        runner: JobRunner,
        lease: RunnerLease,
        worker: Worker,
        *,
        take_over: bool = False,
        owns_worker: bool = False,
        notify: Callable[[], None] = lambda: None,
    ) -> None:
        """Build it without attaching.

        lease: for the times without a coordinator. take_over: fence the job's runner. owns_worker: `close` closes it.
        notify: called in a thread of the worker after each message for the job; it must not block.
        """
        self._runner = runner
        self._lease = lease
        self._worker = worker
        self._take_over = take_over
        self._owns_worker = owns_worker
        self._notify = notify
        self._part: JobPart | None = None

    @property
    def alone(self) -> bool:
        """Return True while this driver decides and commits the barriers itself."""
        return self._runner.holds(self._lease)

    @property
    def led(self) -> bool:
        """Return True while the coordinator can be reached, and decides and commits the barriers."""
        return self._worker.connected and not self.alone

    def has_step(self, *, has_work: bool) -> bool:
        """Return True if a step would do something now. has_work: it would without a coordinator."""
        if not self._worker.connected:
            return has_work or not self.alone
        return self.alone or self._part is None or self._part.has_step

    def step(self, refresh: Callable[[Any], Any], adapter: RefreshAdapter, wait_s: float = LOOK_S) -> int | None:
        """Run the next barrier; return its epoch, or None if there is none now or the coordinator begins again.

        wait_s: longest wait in seconds for the coordinator's next barrier.
        Raises JobRunning while another runner of the job is alive: another driver's, or the coordinator that cannot be
        reached now. Raises Cancelled if the job was stopped at the coordinator, Fenced if another driver has taken it
        over, JobParked, JobNotFound, AccessDenied, and the errors of the refresh.
        """
        if not self._worker.connected:
            return self._step_alone(refresh, adapter)
        if self.alone:
            self._log(COORDINATOR_BACK, location=self._worker.location)
            self._runner.give_back(self._lease)
        try:
            part = self._part = self._part or self._attach()
            with self._runner.exclusive_step(self._lease):  # so that a refresh can drain its own job
                return part.step_with(refresh, adapter, wait_s)
        except EpochlogError as error:
            is_lost = isinstance(error, ServerUnavailable) and not self._worker.connected
            if is_lost or isinstance(error, RolledBack):  # the next step goes on from the catalog
                self._log(STEP_ABANDONED, reason=error)
                return None
            if self._part is not None and self._part.over:
                self._leave("its work here has ended")
            raise

    def close(self) -> None:
        """Detach from the coordinator, and release the job for other runners."""
        self._leave("its driver has ended")
        self._runner.release(self._lease)
        if self._owns_worker:
            self._worker.close()

    def _step_alone(self, refresh: Callable[[Any], Any], adapter: RefreshAdapter) -> int | None:
        self._worker.check_access()
        if not self.alone:
            self._runner.acquire(self._lease, take_over=self._take_over)
            self._take_over = False
            self._leave("its driver runs the job alone")
            self._log(COORDINATOR_LOST, location=self._worker.location)
        return self._runner.step(refresh, adapter, lease=self._lease)

    def _log(self, event: LogEvent, **values: object) -> None:
        self._runner.handle.log(event, job=self._runner.name, **values)

    def _attach(self) -> JobPart:
        worker = self._worker
        if self._take_over:
            self._fence_other_runner()
        try:
            part = worker.attach_driver(
                self._runner.name,
                alive=self._lease.alive,
                gives_up=lambda: not worker.connected,
                take_over=self._take_over,
                notify=self._notify,
            )
        except ServerUnavailable:  # the coordinator may have claimed the job before its answer was lost
            self._runner.give_back(self._lease)
            raise
        self._take_over = False
        self._runner.give_back(self._lease)  # the coordinator's claim follows an earlier step's, and fences nobody
        return part

    def _fence_other_runner(self) -> None:
        """Fence a live runner that is no coordinator; the attach fences the worker of one that is."""
        runner = self._runner.record().runner
        if runner is not None and runner.kind != "coordinator":
            self._runner.acquire(self._lease, take_over=True)
            self._runner.give_back(self._lease)

    def _leave(self, reason: str) -> None:
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
