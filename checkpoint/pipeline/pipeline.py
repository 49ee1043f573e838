"""Pipeline: runs many jobs in one process, on a bounded pool of threads, each unaffected by failures of the others.

One thread schedules. It looks at all due jobs with one read of the catalog, and gives those with work to the pool. So a
job without work needs no step.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from epochlog.checkpoint.job.claims import release_all
from epochlog.checkpoint.job.drain import record_drains
from epochlog.checkpoint.job.driver import JobDriver
from epochlog.checkpoint.job.job_ddl import list_jobs
from epochlog.checkpoint.job.job_looks import UNKNOWN_JOB, look_at
from epochlog.checkpoint.job.refresh_adapter import LocalRefreshAdapter, RefreshAdapter
from epochlog.checkpoint.job.runner import JobRunner
from epochlog.checkpoint.job.running_queries import live
from epochlog.checkpoint.job.step_scheduler import TRIES, JobStep, notified, quiescent, started, succeeded, waiting
from epochlog.checkpoint.manager.job_graph import JobGraph, vertex_of
from epochlog.errors import CatalogUnavailable, EpochlogError, InvalidInput, SparkLost, StoreClosed
from epochlog.store.commit.boundaries import force_boundary
from epochlog.store.compaction.write_stall import compact_outputs
from epochlog.store.env.process_local import OneProcess
from epochlog.store.session.handle import HasHandle

from .member import HasRunner, JobStatus, Member, job_status
from .pauses import Pauses, RealPauses
from .step_pool import StepPool, checked_threads

if TYPE_CHECKING:
    from epochlog.checkpoint.worker.worker import Worker

IDLE_WAIT_MS = 60_000
"""Longest wait of the scheduler, which every end of a step ends."""


class PipelineRunner(OneProcess):
    """Runner of several jobs in parallel. threads: short steps at a time. pauses: a clock for tests. coordinator: a
    served store that decides the jobs' barriers.

    A job that raises is tried again after a delay that doubles each time, up to 30 seconds; the other jobs are not
    affected. A job that finishes, is parked or dropped, or is taken over by another runner ends, and `status` shows its
    state; the pipeline does not claim it again. Safe to use from several threads.
    """

    _instead = "send store.root, open the store there, and add its jobs to a new Pipeline"

    def __init__(
        self,
        store: HasHandle,
        *,
        threads: int | None = None,
        pauses: Pauses | None = None,
        coordinator: str | Worker | None = None,
    ) -> None:
        store._handle.require_writable()
        self._handle = store._handle
        self._coordinator = coordinator
        self._worker: Worker | None = None  # in a run under a coordinator
        self._heard: deque[int] = deque()  # ids of the jobs for which the worker has got a message
        if coordinator is not None:
            from epochlog.checkpoint.worker.attached_job import check_coordinator

            check_coordinator(coordinator, self._handle, "Pipeline")
        self._threads = checked_threads(threads)
        self._pauses: Pauses = pauses or RealPauses()
        self._lock = threading.Lock()
        self._members: dict[int, Member] = {}
        self._graph = JobGraph()  # of the members, as of their newest looks
        self._running = False
        self._stopping = False
        self._lost: SparkLost | None = None
        """Error of the first job that has found the session of the run lost: no job can take another step."""
        self._target: int | None = None  # the epoch that a run until idle waits for
        self._boundary_ms: int | None = None  # monotonic time of the boundary after the newest look
        self._wake = threading.Event()
        self._over = threading.Event()  # the threads of the run have ended
        self._pool = StepPool(self._threads, self._pauses.now_ms)

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
        driver = JobDriver(runner, refresh, "pipeline", take_over=take_over)
        member = Member(driver, self._wake.set)
        member.committed_epoch = record.position
        member.left.set()
        with self._lock:
            existing = self._members.get(runner.job_id)
            if existing is not None and not (existing.step.ended and self._running):
                raise InvalidInput(f"job {runner.name!r} is in this pipeline already; add it once")
            if self._running and not self._stopping:
                self._start(member)
            self._members[runner.job_id] = member
            self._graph.created(vertex_of(record))
        self._wake.set()

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
            self._running, self._stopping, self._target, self._lost = True, False, target, None
            self._pool = StepPool(self._threads, self._pauses.now_ms)
            self._over.clear()
        errors: list[BaseException] = []
        scheduler = threading.Thread(target=self._schedule, args=(errors,), name="epochlog pipeline", daemon=True)
        try:
            self._reach_coordinator()
            with self._lock:
                for member in self._members.values():
                    self._start(member)
            scheduler.start()
            self._over.wait()  # an interrupted `join` would count the thread as ended
        finally:
            self._end_run(scheduler)
        if errors:
            raise errors[0]

    def stop(self, drain: bool = False) -> None:
        """Let `run` return after the barriers in flight, without waiting for it. It ends no job's data.

        drain: end the data of all jobs instead, at one epoch, as `job.stop(drain=True)` does for one job. The jobs take
        in all changes so far, and `run` (or the next one) returns when all have finished, which `status` shows. A job
        that fails is tried again; `stop()` ends the run without it, and its end stays recorded. Jobs that were dropped,
        parked or taken over by another runner are left as they are. Raises the errors of the catalog; then no job ends.
        """
        if drain:
            self._drain()
            return
        with self._lock:
            self._stopping = True
        self._wake.set()

    def status(self) -> tuple[JobStatus, ...]:
        """Return the status of each job, in the order in which they were added."""
        try:
            infos = {info.name: info for info in list_jobs(self._handle)}
        except EpochlogError:
            infos = {}
        with self._lock:
            now_ms = self._pauses.now_ms()
            return tuple(job_status(member, infos.get(member.runner.name), now_ms) for member in self._members.values())

    def _drain(self) -> None:
        """Record one boundary as the end of all jobs; a run until idle then waits for that boundary."""
        with self._lock:
            runners = [member.runner for member in self._members.values()]
        end = record_drains(self._handle, runners)
        with self._lock:
            if self._target is not None and end is not None:
                self._target = max(self._target, end)
            for member in self._members.values():
                member.idle_at, member.look = None, replace(member.look, reached=False)
                member.step = notified(replace(member.step, settled=False), self._pauses.now_ms())
        self._wake.set()

    # ---- a run -----------------------------------------------------------------------------------------------------

    def _start(self, member: Member) -> None:
        """Let the job take part in the run. Call under the lock. Only restarts and last_error outlive a run."""
        live.claim(member.runner, take_over=member.driver.take_over)
        member.halted, member.driver = False, self._new_driver(member.driver)
        member.step = JobStep(
            due_ms=self._pauses.now_ms(), restarts=member.step.restarts, last_error=member.step.last_error
        )
        member.look, member.idle_at, member.notified = UNKNOWN_JOB, None, False
        member.left.clear()
        live.set(member.runner, member)

    def _new_driver(self, former: JobDriver) -> JobDriver:
        """Return the driver of a job for this run: under the coordinator, if there is one."""
        runner, refresh, take_over = former.runner, former.refresh, former.take_over
        if self._worker is None:
            return JobDriver(runner, refresh, "pipeline", take_over=take_over)
        from epochlog.checkpoint.worker.attached_job import AttachedJob

        notify = partial(self._hear, runner.job_id)
        return AttachedJob(runner, refresh, "pipeline", self._worker, take_over=take_over, wait_s=0.0, notify=notify)

    def _hear(self, job_id: int) -> None:
        """Note a message for a job, in a thread of the worker."""
        self._heard.append(job_id)
        self._wake.set()

    def _reach_coordinator(self) -> None:
        if self._coordinator is not None:
            from epochlog.checkpoint.worker.attached_job import reach_coordinator

            self._worker = reach_coordinator(self._coordinator, self._handle)

    def _end_run(self, scheduler: threading.Thread) -> None:
        self.stop()
        if scheduler.ident is not None:
            self._over.wait()
            scheduler.join()
        worker, self._worker = self._worker, None
        if worker is not None and worker is not self._coordinator:
            worker.close()
        with self._lock:
            for member in self._members.values():
                member.left.set()
            self._running = False

    def _schedule(self, errors: list[BaseException]) -> None:
        """Schedule the steps of all jobs until the run is over, in a thread of its own. errors: gets those of the
        scheduler itself, which `run` raises.
        """
        try:
            try:
                while self._advance():
                    pass
            finally:
                self._close_run()
        except BaseException as error:  # noqa: BLE001  # `run` waits in another thread, and raises it there
            errors.append(error)
        finally:
            self._over.set()

    def _advance(self) -> bool:
        """Look at the due jobs, or wait for one; return False when the run is over."""
        self._wake.clear()
        wait_ms = self._pool.release_long()
        with self._lock:
            if self._is_done():
                return False
            due: list[Member] = []
            halted = self._take_halted()
            self._notify_heard()
            if wait_ms is None:  # no step waits for a slot
                now_ms = self._pauses.now_ms()
                active = [m for m in self._members.values() if not (m.queued or m.halted or m.step.ended)]
                due = [member for member in active if member.step.due_ms <= now_ms]
                wait_ms = min((m.step.due_ms for m in active), default=now_ms + IDLE_WAIT_MS) - now_ms
            for member in due:
                member.notified = False
        self._end(halted)
        if due:
            self._look(due)
        elif not halted:
            self._pauses.wait(self._wake, wait_ms)
        return True

    def _notify_heard(self) -> None:
        """Let the jobs that got a message from the coordinator be due. Call under the lock."""
        while self._heard:
            member = self._members[self._heard.popleft()]
            member.notified, member.step = True, notified(member.step, self._pauses.now_ms())

    def _is_done(self) -> bool:
        """Return True if the run is over. Call under the lock."""
        jobs = {job_id: member.step for job_id, member in self._members.items()}
        idle = self._target is not None and quiescent(self._graph, jobs)
        return self._stopping or idle or all(step.ended for step in jobs.values())

    def _take_halted(self) -> list[Member]:
        """Return the jobs that `job.stop` ends and that are not in a step. Call under the lock."""
        halted = [m for m in self._members.values() if m.halted and not m.left.is_set()]
        for member in halted:
            member.queued = member.queued and not self._pool.cancel(member.runner.job_id)
        return [member for member in halted if not member.queued]

    def _end(self, members: Collection[Member]) -> None:
        """End the part of jobs that `job.stop` ends, as finished if their data has ended."""
        self._finish_unseen(members)
        with self._lock:
            for member in members:
                if not member.step.ended:
                    member.step = replace(member.step, state="stopped")
        self._leave(members)

    def _close_run(self) -> None:
        """End the run: release the jobs that are not in a step at once, the others after it."""
        with self._lock:
            self._stopping = True
            for job_id in self._pool.close():
                assert isinstance(job_id, int)
                self._members[job_id].queued = False
            members = [member for member in self._members.values() if not member.queued and not member.left.is_set()]
            for member in members:
                self._end_part(member)
        self._leave(members)
        self._pool.join()
        self._finish_unseen([member for member in self._members.values() if not member.halted])
        self._end([member for member in self._members.values() if member.halted])

    def _finish_unseen(self, members: Collection[Member]) -> None:
        """Finish those of the jobs that have finished with a commit since their newest look."""
        unseen = [member for member in members if member.unseen and not member.step.ended]
        requests = [m.request for m in unseen]
        with suppress(EpochlogError):
            looks = look_at(self._handle, requests, None, {}).by_job if requests else {}
            self._finish([member for member in unseen if looks[member.runner.job_id].finished])

    def _end_part(self, member: Member) -> None:
        """Settle the state of a job whose part in the run is over. Call under the lock."""
        if member.step.state == "running":  # the next run continues it
            member.step = replace(member.step, state="idle")

    def _leave(self, members: Collection[Member]) -> None:
        """Release the jobs, all in one transaction."""
        if members:
            release_all(self._handle, [member.driver.lease for member in members])
            for member in members:
                member.driver.leave()
                member.left.set()

    # ---- looks -----------------------------------------------------------------------------------------------------

    def _look(self, due: Collection[Member]) -> None:
        """Look at the due jobs, and queue the steps of those with work, beginning with those whose last step was short.

        A long step would take the processor, and the interpreter's lock, from the short ones.
        """
        if self._lost is not None:
            for member in due:
                self._delay(member, self._lost)
            return
        target = self._target
        requests = [m.request for m in due]
        unchanged = {m.runner.job_id: m.idle_at for m in due if m.idle_at is not None}
        try:
            now_ms = self._pauses.now_ms()
            seen = look_at(self._handle, requests, target, unchanged)
            looks, self._boundary_ms = seen.by_job, now_ms + seen.boundary_in_ms
        except (CatalogUnavailable, StoreClosed) as error:
            for member in due:
                self._delay(member, error)
            return
        except Exception:  # noqa: BLE001  # each job's own step raises its own error
            looks = dict.fromkeys((m.runner.job_id for m in due), UNKNOWN_JOB)
        with self._lock:
            current = [m for m in due if target == self._target and not m.step.ended]
            current.sort(key=lambda member: member.step_ms)
            for member in current:
                member.look, member.unseen = looks.get(member.runner.job_id, member.look), False
            finished = [member for member in current if self._apply_look(member)]
        self._finish(finished)

    def _apply_look(self, member: Member) -> bool:
        """Queue the job's step, or leave it idle; return True for a job that has finished. Call under the lock."""
        look, driver = member.look, member.driver
        if look.vertex is not None:
            self._graph.created(look.vertex)
        led = driver.led
        holds = led or driver.holds
        member.idle_at = look.state if holds else None
        if look.finished and led:
            return True
        if look.blocked and member.step.state == "waiting" and not driver.take_over:
            member.step = replace(
                waiting(member.step, self._pauses.now_ms()), settled=look.settled(idle=False), missing=look.missing
            )
        elif member.has_step or not holds:
            member.queued, member.step = True, started(member.step)
            self._pool.submit(member.runner.job_id, partial(self._run_step, member))
        elif look.finished:
            return True
        else:
            self._idle(member)
        return False

    def _finish(self, members: Collection[Member]) -> None:
        """End the part of jobs that have finished."""
        self._leave(members)
        with self._lock:
            for member in members:
                step = succeeded(member.step, None, self._pauses.now_ms(), finished=True)
                member.step = replace(step, settled=step.settled or member.look.reached)
                self._notify(self._graph.finished(member.runner.job_id))

    def _idle(self, member: Member) -> None:
        """Leave a job without work idle until the next look. Call under the lock."""
        now_ms, look = self._pauses.now_ms(), member.look
        step = succeeded(started(member.step), None, now_ms, finished=False, boundary_ms=self._boundary_ms)
        led = member.driver.led
        settled = step.settled or look.settled(idle=not led)  # a coordinator ends the creation later
        failures = member.step.failures if led else 0  # it waits for the coordinator's next try
        member.step = replace(step, failures=failures, settled=settled, missing=look.missing)
        if member.notified:
            member.step = notified(member.step, now_ms)

    # ---- steps -----------------------------------------------------------------------------------------------------

    def _run_step(self, member: Member) -> None:
        """Step the job in a thread of the pool, and wake the scheduler if the pool has nothing else to do."""
        threading.current_thread().name = f"epochlog {member.runner.name}"
        member.thread_id = threading.get_ident()
        try:
            if not self._stopping and not member.halted:
                self._step(member)
        finally:
            with self._lock:
                member.thread_id, member.queued = None, False
                leaves = self._stopping
                if leaves:
                    self._end_part(member)
            if leaves:
                self._leave([member])
            if leaves or member.halted or not self._pool.queued:
                self._wake.set()

    def _step(self, member: Member) -> None:
        """Enter the job and step it once, and schedule its next step by the outcome."""
        epoch = None
        try:
            member.driver.enter()
            if member.look.finished:
                self._finish([member])
                return
            if member.has_step:
                began_ms = self._pauses.now_ms()
                epoch = member.driver.step(self._begin_step(member.runner))
                member.step_ms = self._pauses.now_ms() - began_ms
        except BaseException as error:  # noqa: BLE001  # any error ends or delays this job alone
            self._delay(member, error)
            return
        with self._lock:
            now_ms = self._pauses.now_ms()
            if epoch is None:
                self._idle(member)
                return
            member.unseen = True
            settled = member.step.settled or member.look.settled(idle=False)
            member.step = replace(succeeded(member.step, epoch, now_ms, finished=False), settled=settled)
            outputs = self._graph.vertex(member.runner.job_id).writes
            if epoch:
                member.committed_epoch = epoch
                self._notify(self._graph.committed(member.runner.job_id))
        if epoch:
            self._wake.set()  # the jobs that read the outputs do not wait for the compaction
            compact_outputs(self._handle, outputs)

    def _delay(self, member: Member, error: BaseException) -> None:
        """Schedule the next try of a job whose step raised, or end its part in the run."""
        tries, look = TRIES if self._target is not None else None, member.look
        after = member.driver.after_error(member.step, error, self._pauses.now_ms(), tries)
        if after.ended:
            member.left.set()
        with self._lock:
            if after.state == "waiting":
                settled = member.step.settled or look.settled(idle=False)
                after = replace(after, settled=settled, missing=look.missing)
            member.step = after
            if isinstance(error, SparkLost) and self._lost is None:
                self._lost = error
                for other in self._members.values():
                    other.step = replace(other.step, due_ms=self._pauses.now_ms())
            if after.state == "parked":
                self._graph.parked(member.runner.job_id)
            elif after.state == "dropped":
                self._graph.dropped(member.runner.job_id)

    def _notify(self, jobs: Collection[int]) -> None:
        """Let these jobs be due, because an upstream has committed or finished. Call under the lock."""
        for job_id in jobs:
            member = self._members[job_id]
            member.notified, member.step = True, notified(member.step, self._pauses.now_ms())

    def _begin_step(self, runner: JobRunner) -> RefreshAdapter:
        """Prepare this thread for a step of the job, and return the adapter of its refresh."""
        return LocalRefreshAdapter(runner.handle)
