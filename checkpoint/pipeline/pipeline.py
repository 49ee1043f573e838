"""Pipeline: runs many jobs in one process, each in its own thread and unaffected by failures of the others."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from epochlog.checkpoint.job.claims import RunnerLease
from epochlog.checkpoint.job.job_ddl import JobInfo, list_jobs
from epochlog.checkpoint.job.runner import JobRunner
from epochlog.checkpoint.job.running_queries import live
from epochlog.errors import EpochlogError, InvalidInput, JobRunning
from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.commit.boundaries import force_boundary
from epochlog.store.env.clock import monotonic_s
from epochlog.store.env.process_local import OneProcess
from epochlog.store.epochs.view_reader import read_epoch_view
from epochlog.store.metadata.lookups import get_job, get_table
from epochlog.store.session.handle import HasHandle

from .step_scheduler import TRIES, JobStep, failed, notified, quiescent, started, succeeded, waiting

_log = logging.getLogger("epochlog")


class HasRunner(Protocol):
    """Interface of a job with a runner."""

    _runner: JobRunner


class Pauses(Protocol):
    """Interface of the clock and the waits of the pipeline's threads; tests replace it."""

    def now_ms(self) -> int:
        """Return the milliseconds of a clock that never jumps."""
        ...

    def wait(self, event: threading.Event, timeout_ms: int) -> bool:
        """Wait until the event is set (True) or the time is over (False)."""
        ...


class RealPauses:
    """Pauses in real monotonic time."""

    def now_ms(self) -> int:
        return int(monotonic_s() * 1000)

    def wait(self, event: threading.Event, timeout_ms: int) -> bool:
        return event.wait(timeout_ms / 1000)


@dataclass(frozen=True, slots=True)
class JobStatus:
    """Current status of a job of a pipeline.

    state: running | idle | backing off | waiting | given up | parked | finished | fenced | dropped | stopped. waiting:
    another runner is alive, and the pipeline continues when it has ended. restarts: number of tries after a failure.
    last_error: the newest failure, also of a job that has recovered. next_try_ms: milliseconds until the next try of a
    job that backs off, else None. lag_ms: that of JobInfo; None if the job or the catalog is not available.
    """

    name: str
    state: str
    committed_epoch: int
    restarts: int
    last_error: str | None
    next_try_ms: int | None
    lag_ms: int | None


@dataclass(slots=True)
class _Member:
    """Job of the pipeline, with the state of its thread."""

    runner: JobRunner
    refresh: Callable[[Any], Any]
    upstreams: frozenset[int]
    outputs: frozenset[int]
    take_over: bool
    lease: RunnerLease
    step: JobStep = field(default_factory=JobStep)
    committed_epoch: int = 0
    wake: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None
    halted: bool = False
    logged_wait: bool = False  # the wait for another runner is in the log

    @property
    def isActive(self) -> bool:  # noqa: N802  # registered among the live queries, so that only one of them runs a job
        return self.thread is not None and self.thread.is_alive() and not self.step.ended

    def stop(self) -> None:
        """End this job after its current barrier, for `job.stop`; the other jobs continue."""
        self.halted = True
        self.wake.set()
        if self.thread is not None and self.thread is not threading.current_thread():
            self.thread.join()


class PipelineRunner(OneProcess):
    """Runner of several jobs in parallel, each in its own thread. pauses: a clock for tests.

    A job that raises is tried again after a delay that doubles each time, up to 30 seconds; the other jobs are not
    affected. A job that finishes, is parked or dropped, or is taken over by another runner ends, and `status` shows its
    state; the pipeline does not claim it again. Safe to use from several threads.
    """

    _instead = "send store.root, open the store there, and add its jobs to a new Pipeline"

    def __init__(self, store: HasHandle, *, pauses: Pauses | None = None) -> None:
        self._handle = store._handle
        self._pauses: Pauses = pauses or RealPauses()
        self._lock = threading.Lock()
        self._members: dict[int, _Member] = {}
        self._running = False
        self._stopping = False
        self._target: int | None = None  # the epoch that a run until idle waits for
        self._progress = threading.Event()

    def __repr__(self) -> str:
        states = ", ".join(f"{status.name}: {status.state}" for status in self.status())
        return f"<epochlog.Pipeline of {self._handle.files.place}: {states or 'no jobs'}>"

    def add(self, job: HasRunner, refresh: Callable[[Any], Any], *, take_over: bool = False) -> None:
        """Add a job with its `refresh(ctx)`, or add an ended job again; start it at once if the pipeline runs."""
        runner = job._runner
        if runner.handle.store_id != self._handle.store_id:
            raise InvalidInput(f"job {runner.name!r} belongs to another store than this pipeline")
        runner.check_refresh(refresh)
        record = runner.record()
        lease = runner.new_lease("pipeline")
        member = _Member(runner, refresh, frozenset(record.upstreams), frozenset(record.outputs), take_over, lease)
        member.committed_epoch = record.position
        with self._lock:
            existing = self._members.get(runner.job_id)
            if existing is not None and not (existing.step.ended and self._running):
                raise InvalidInput(f"job {runner.name!r} is in this pipeline already; add it once")
            if self._running and not self._stopping:
                self._start(member)
            self._members[runner.job_id] = member

    def run(self, until: Literal["idle"] | None = None) -> None:
        """Step all jobs until `stop` is called or all have ended.

        until="idle": return as soon as the jobs have taken in everything committed before this call; later writes do
        not prolong it. A job that fails five times in a row is given up then, and its descendants are not waited for;
        `status` shows them. The next `run` tries them again. KeyboardInterrupt ends the run after the barriers in
        flight, a second one at once. Raises JobRunning if a job has a live query in this process.
        """
        if until not in ("idle", None):
            raise InvalidInput(f"until must be 'idle' or None, not {until!r}")
        target = force_boundary(self._handle) if until == "idle" else None
        with self._lock:
            if self._running:
                raise InvalidInput("this pipeline is running already; add more jobs with add(), or stop() it first")
            self._running, self._stopping, self._target = True, False, target
        try:
            with self._lock:
                for member in self._members.values():
                    self._start(member)
            while not self._is_done():
                self._progress.wait()
                self._progress.clear()
        finally:
            self._join_threads()

    def stop(self) -> None:
        """Let `run` return after the barriers in flight, without waiting for it. It ends no job's data."""
        with self._lock:
            self._stopping = True
            for member in self._members.values():
                member.wake.set()
        self._progress.set()

    def status(self) -> tuple[JobStatus, ...]:
        """Return the status of each job, in the order in which they were added."""
        try:
            infos = {info.name: info for info in list_jobs(self._handle)}
        except EpochlogError:
            infos = {}
        with self._lock:
            now_ms = self._pauses.now_ms()
            return tuple(
                _job_status(member, infos.get(member.runner.name), now_ms) for member in self._members.values()
            )

    # ---- threads -------------------------------------------------------------------------------------------------

    def _start(self, member: _Member) -> None:
        """Start the job's thread. Call under the lock. Only restarts and last_error outlive an earlier run."""
        live.claim(member.runner, take_over=member.take_over)
        member.halted, member.lease = False, member.runner.new_lease("pipeline")
        member.step = JobStep(
            due_ms=self._pauses.now_ms(), restarts=member.step.restarts, last_error=member.step.last_error
        )
        member.wake.clear()
        member.thread = threading.Thread(
            target=self._run_thread, args=(member,), name=f"epochlog {member.runner.name}", daemon=True
        )
        member.thread.start()
        live.set(member.runner, member)

    def _join_threads(self) -> None:
        self.stop()
        with self._lock:
            threads = [member.thread for member in self._members.values()]
        for thread in threads:
            if thread is not None:
                thread.join()
        with self._lock:
            self._running = False

    def _is_done(self) -> bool:
        with self._lock:
            jobs = {job_id: member.step for job_id, member in self._members.items()}
            idle = self._target is not None and quiescent(jobs)
            return self._stopping or idle or all(step.ended for step in jobs.values())

    def _run_thread(self, member: _Member) -> None:
        """Step a job when it is due, in the job's own thread."""
        try:
            self._step_until_ended(member)
        finally:
            member.runner.release(member.lease)

    def _step_until_ended(self, member: _Member) -> None:
        while True:
            with self._lock:
                if member.halted and not member.step.ended:
                    member.step = replace(member.step, state="stopped")
                now_ms = self._pauses.now_ms()
                if member.wake.is_set():
                    member.wake.clear()
                    member.step = notified(member.step, now_ms)
                if self._stopping or member.step.ended:
                    if member.step.state == "running":  # the next run continues it
                        member.step = replace(member.step, state="idle")
                    self._progress.set()
                    return
                wait_ms = member.step.due_ms - now_ms
                if wait_ms <= 0:
                    member.step = started(member.step)
            if wait_ms > 0:
                self._pauses.wait(member.wake, wait_ms)
            else:
                self._step(member)
                self._progress.set()

    def _step(self, member: _Member) -> None:
        """Step the job once, and schedule its next step by the outcome."""
        runner = member.runner
        try:
            if not self._enter(member):
                return
            epoch = self._run_once(member)
            finished = runner.record().state == "finished"
            settled, missing = self._read_target_state(member, idle=epoch is None)
        except BaseException as error:  # noqa: BLE001  # any error ends or delays this job alone
            tries = TRIES if self._target is not None else None
            next_step = failed(member.step, error, self._pauses.now_ms(), tries)
            if next_step.ended:  # release before the state shows, so that another runner may enter
                runner.release(member.lease)
            with self._lock:
                member.step = next_step
            return
        if finished:
            runner.release(member.lease)
        with self._lock:
            next_step = succeeded(member.step, epoch, self._pauses.now_ms(), finished=finished)
            member.step = replace(next_step, settled=settled, missing=missing)
            if epoch:
                member.committed_epoch = epoch
                for other in self._members.values():
                    if other.upstreams & member.outputs:
                        other.wake.set()

    def _enter(self, member: _Member) -> bool:
        """Claim the job for the pipeline; return False if another live runner has it, so that the pipeline waits."""
        runner = member.runner
        if runner.holds(member.lease):
            return True
        try:
            runner.acquire(member.lease, take_over=member.take_over)
        except JobRunning as error:
            if not member.logged_wait:
                _log.info("%s. The pipeline waits for it to end", error)
            member.logged_wait = True
            settled, missing = self._read_target_state(member, idle=False)
            with self._lock:
                next_step = waiting(member.step, self._pauses.now_ms())
                member.step = replace(next_step, settled=settled, missing=missing)
            return False
        member.take_over = member.logged_wait = False
        return True

    def _run_once(self, member: _Member) -> int | None:
        return self._step_runner(member.runner, member.refresh, member.lease)

    def _step_runner(self, runner: JobRunner, refresh: Callable[[Any], Any], lease: RunnerLease) -> int | None:
        return runner.step_local(refresh, lease=lease)

    def _read_target_state(self, member: _Member, *, idle: bool) -> tuple[bool, frozenset[int]]:
        """Return (job has taken in everything through the target, ids of its upstream jobs that have not)."""
        target, runner = self._target, member.runner
        if target is None or member.step.settled:
            return member.step.settled, frozenset()

        def body(view: ReadTxn) -> tuple[bool, frozenset[int]]:
            job = get_job(view, runner.job_id, runner.name)
            now_ms = self._handle.catalog.now_ms()
            epochs = read_epoch_view(view, self._handle.memory, now_ms, above=[*job.upstreams, *job.outputs])
            incomplete = [get_table(view, up, "an upstream") for up in job.upstreams if not epochs.complete(up, target)]
            reached = all(epochs.complete(output, target) for output in job.outputs)
            settled = reached and (idle or job.state != "creating")  # an idle step ends the creation
            return settled, frozenset(table.job_id for table in incomplete if table.job_id is not None)

        return self._handle.catalog.read(body)


def _job_status(member: _Member, info: JobInfo | None, now_ms: int) -> JobStatus:
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
