"""Running many jobs in one process: a thread steps each, and a failure, a wait or an end of one is its own affair."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from epochlog.checkpoint.job.claims import Tenure
from epochlog.checkpoint.job.job_ddl import JobInfo, list_jobs
from epochlog.checkpoint.job.runner import JobRunner
from epochlog.checkpoint.job.running_queries import live
from epochlog.errors import EpochlogError, InvalidInput, JobRunning
from epochlog.store.catalog.protocol import View
from epochlog.store.commit.boundaries import force_boundary
from epochlog.store.env.clock import monotonic_s
from epochlog.store.env.process_local import OneProcess
from epochlog.store.epochs.view_reader import read_epoch_view
from epochlog.store.metadata.lookups import get_job, get_table
from epochlog.store.session.handle import HasHandle

from .step_scheduler import TRIES, JobStep, failed, notified, quiescent, started, succeeded, waiting

_log = logging.getLogger("epochlog")


class HasRunner(Protocol):
    """A job, as far as it is asked here."""

    _runner: JobRunner


class Pauses(Protocol):
    """Clock and waiting of the pipeline's threads; a test gives one of its own."""

    def now_ms(self) -> int:
        """Return the milliseconds of a clock that never jumps."""
        ...

    def wait(self, event: threading.Event, timeout_ms: int) -> bool:
        """Wait until the event is set (True) or the time is over (False)."""
        ...


class RealPauses:
    """Real monotonic time."""

    def now_ms(self) -> int:
        return int(monotonic_s() * 1000)

    def wait(self, event: threading.Event, timeout_ms: int) -> bool:
        return event.wait(timeout_ms / 1000)


@dataclass(frozen=True, slots=True)
class JobStatus:
    """A job of a pipeline as of now.

    state: running | idle | backing off | waiting | given up | parked | finished | fenced | dropped | stopped. waiting:
    another runner is alive, and this one goes on when it has ended. restarts: how often it was run again after a
    failure. last_error: the newest failure, also of a job that has recovered. next_try_ms:
    milliseconds until the next try of a job that backs off, else None. lag_ms as in JobInfo; None where the catalog
    does not say.
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
    """A job of the pipeline, with what its thread needs."""

    runner: JobRunner
    refresh: Callable[[Any], Any]
    upstreams: frozenset[int]
    outputs: frozenset[int]
    take_over: bool
    tenure: Tenure
    now: JobStep = field(default_factory=JobStep)
    committed_epoch: int = 0
    wake: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None
    halted: bool = False
    waits: bool = False  # for another runner, and that was logged

    @property
    def isActive(self) -> bool:  # noqa: N802  # it stands among the live queries, so that a job is run by one of them only
        return self.thread is not None and self.thread.is_alive() and not self.now.ended

    def stop(self) -> None:
        """End this job after its current barrier, for `job.stop`; the other jobs go on."""
        self.halted = True
        self.wake.set()
        if self.thread is not None and self.thread is not threading.current_thread():
            self.thread.join()


class PipelineRunner(OneProcess):
    """Jobs that are stepped side by side, each in a thread of its own. `pauses` is for tests that bring their own time.

    A job that raises is tried again after a pause that doubles each time, up to half a minute; nothing else is
    restarted, delayed or stopped by it. Jobs that finish, are parked, dropped, or taken over by another runner end, and
    `status` shows it; a job that was taken over is not claimed again. Safe to use from several threads.
    """

    _instead = "send store.root, and make a Pipeline of the store there, to which its jobs are added"

    def __init__(self, store: HasHandle, *, pauses: Pauses | None = None) -> None:
        self._handle = store._handle
        self._pauses: Pauses = pauses or RealPauses()
        self._lock = threading.Lock()
        self._members: dict[int, _Member] = {}
        self._running = False
        self._stopping = False
        self._target: int | None = None  # everything through this epoch is waited for
        self._news = threading.Event()

    def __repr__(self) -> str:
        rows = ", ".join(f"{one.name}: {one.state}" for one in self.status())
        return f"<epochlog.Pipeline of {self._handle.files.place}: {rows or 'no jobs'}>"

    def add(self, job: HasRunner, refresh: Callable[[Any], Any], *, take_over: bool = False) -> None:
        """Run this job with `refresh(ctx)`, at once where the pipeline runs already; a job that ended, anew."""
        runner = job._runner
        if runner.handle.store_id != self._handle.store_id:
            raise InvalidInput(f"job {runner.name!r} belongs to another store than this pipeline")
        runner.check_refresh(refresh)
        record = runner.record()
        tenure = runner.tenure("pipeline")
        member = _Member(runner, refresh, frozenset(record.upstreams), frozenset(record.outputs), take_over, tenure)
        member.committed_epoch = record.position
        with self._lock:
            there = self._members.get(runner.job_id)
            if there is not None and not (there.now.ended and self._running):
                raise InvalidInput(f"job {runner.name!r} is in this pipeline already")
            if self._running and not self._stopping:
                self._start(member)
            self._members[runner.job_id] = member

    def run(self, until: Literal["idle"] | None = None) -> None:
        """Step all jobs until `stop` is called or all have ended.

        until="idle": return as soon as everything that was committed before this call is in, whatever is written
        meanwhile. A job that fails five times in a row is given up then, and jobs below it are not waited for; `status`
        shows them. The next `run` tries them anew. KeyboardInterrupt ends it after the barriers at hand, a second one
        at once. Raises JobRunning when a job has a live query in this process.
        """
        if until not in ("idle", None):
            raise InvalidInput(f"until must be 'idle' or None, not {until!r}")
        target = force_boundary(self._handle) if until == "idle" else None
        with self._lock:
            if self._running:
                raise InvalidInput("this pipeline is running already; give it more jobs with add(), or stop() it first")
            self._running, self._stopping, self._target = True, False, target
        try:
            with self._lock:
                for member in self._members.values():
                    self._start(member)
            while not self._over():
                self._news.wait()
                self._news.clear()
        finally:
            self._end()

    def stop(self) -> None:
        """Let `run` return after the barriers at hand; the data of no job is ended by it. Does not wait for that."""
        with self._lock:
            self._stopping = True
            for member in self._members.values():
                member.wake.set()
        self._news.set()

    def status(self) -> tuple[JobStatus, ...]:
        """Return a row for each job, in the order in which they were added."""
        try:
            known = {info.name: info for info in list_jobs(self._handle)}
        except EpochlogError:
            known = {}
        with self._lock:
            now_ms = self._pauses.now_ms()
            return tuple(_row(member, known.get(member.runner.name), now_ms) for member in self._members.values())

    # ---- threads -------------------------------------------------------------------------------------------------

    def _start(self, member: _Member) -> None:
        """Prepare a run, under the lock. Of the run before, only the account stays."""
        live.claim(member.runner, take_over=member.take_over)
        member.halted, member.tenure = False, member.runner.tenure("pipeline")
        member.now = JobStep(
            due_ms=self._pauses.now_ms(), restarts=member.now.restarts, last_error=member.now.last_error
        )
        member.wake.clear()
        member.thread = threading.Thread(
            target=self._work, args=(member,), name=f"epochlog {member.runner.name}", daemon=True
        )
        member.thread.start()
        live.set(member.runner, member)

    def _end(self) -> None:
        self.stop()
        with self._lock:
            threads = [member.thread for member in self._members.values()]
        for thread in threads:
            if thread is not None:
                thread.join()
        with self._lock:
            self._running = False

    def _over(self) -> bool:
        with self._lock:
            jobs = {job_id: member.now for job_id, member in self._members.items()}
            idle = self._target is not None and quiescent(jobs)
            return self._stopping or idle or all(one.ended for one in jobs.values())

    def _work(self, member: _Member) -> None:
        """Step a job when it is due, in the job's own thread."""
        try:
            self._work_until_over(member)
        finally:
            member.runner.leave(member.tenure)

    def _work_until_over(self, member: _Member) -> None:
        while True:
            with self._lock:
                if member.halted and not member.now.ended:
                    member.now = replace(member.now, state="stopped")
                now_ms = self._pauses.now_ms()
                if member.wake.is_set():
                    member.wake.clear()
                    member.now = notified(member.now, now_ms)
                if self._stopping or member.now.ended:
                    if member.now.state == "running":  # it would go on, and does so in the next run
                        member.now = replace(member.now, state="idle")
                    self._news.set()
                    return
                wait_ms = member.now.due_ms - now_ms
                if wait_ms <= 0:
                    member.now = started(member.now)
            if wait_ms > 0:
                self._pauses.wait(member.wake, wait_ms)
            else:
                self._step(member)
                self._news.set()

    def _step(self, member: _Member) -> None:
        """Step the job once, and act on the outcome."""
        runner = member.runner
        try:
            if not self._enter(member):
                return
            epoch = self._run_once(member)
            finished = runner.record().state == "finished"
            settled, missing = self._look(member, idle=epoch is None)
        except BaseException as error:  # noqa: BLE001  # whatever it is, it is this job's alone
            tries = TRIES if self._target is not None else None
            one = failed(member.now, error, self._pauses.now_ms(), tries)
            if one.ended:  # who sees that it has may run it again
                runner.leave(member.tenure)
            with self._lock:
                member.now = one
            return
        if finished:
            runner.leave(member.tenure)
        with self._lock:
            one = succeeded(member.now, epoch, self._pauses.now_ms(), finished=finished)
            member.now = replace(one, settled=settled, missing=missing)
            if epoch:
                member.committed_epoch = epoch
                for other in self._members.values():
                    if other.upstreams & member.outputs:
                        other.wake.set()

    def _enter(self, member: _Member) -> bool:
        """Claim the job for the pipeline; return False if another runner has it, for whose end the pipeline waits."""
        runner = member.runner
        if runner.entered(member.tenure):
            return True
        try:
            runner.enter(member.tenure, take_over=member.take_over)
        except JobRunning as error:
            if not member.waits:
                _log.info("%s. The pipeline waits for it to end", error)
            member.waits = True
            settled, missing = self._look(member, idle=False)
            with self._lock:
                one = waiting(member.now, self._pauses.now_ms())
                member.now = replace(one, settled=settled, missing=missing)
            return False
        member.take_over = member.waits = False
        return True

    def _run_once(self, member: _Member) -> int | None:
        return self._step_runner(member.runner, member.refresh, member.tenure)

    def _step_runner(self, runner: JobRunner, refresh: Callable[[Any], Any], tenure: Tenure) -> int | None:
        return runner.step_local(refresh, tenure=tenure)

    def _look(self, member: _Member, *, idle: bool) -> tuple[bool, frozenset[int]]:
        """Return (job has taken in everything through the target, ids of the jobs above it that have not)."""
        target, runner = self._target, member.runner
        if target is None or member.now.settled:
            return member.now.settled, frozenset()

        def body(view: View) -> tuple[bool, frozenset[int]]:
            job = get_job(view, runner.job_id, runner.name)
            now_ms = self._handle.catalog.now_ms()
            epochs = read_epoch_view(view, self._handle.memory, now_ms, above=[*job.upstreams, *job.outputs])
            short = [get_table(view, up, "an upstream") for up in job.upstreams if not epochs.complete(up, target)]
            reached = all(epochs.complete(out, target) for out in job.outputs)
            settled = reached and (idle or job.state != "creating")  # an idle step is what ends the creation
            return settled, frozenset(table.job_id for table in short if table.job_id is not None)

        return self._handle.catalog.read(body)


def _row(member: _Member, info: JobInfo | None, now_ms: int) -> JobStatus:
    one = member.now
    return JobStatus(
        name=member.runner.name,
        state=one.state,
        committed_epoch=member.committed_epoch if info is None else info.committed_epoch,
        restarts=one.restarts,
        last_error=one.last_error,
        next_try_ms=max(0, one.due_ms - now_ms) if one.state == "backing off" else None,
        lag_ms=None if info is None else info.lag_ms,
    )
