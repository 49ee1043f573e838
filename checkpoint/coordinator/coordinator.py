"""Coordinator: feeds the messages of workers to the checkpoint manager and executes its decisions.

The executor's lock guards the manager and all tables here; no call blocks under it. One timer thread wakes at
`next_due` and looks for silent workers.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from epochlog.checkpoint import control_messages as wire
from epochlog.checkpoint.control_messages import PartName
from epochlog.checkpoint.manager import commands
from epochlog.errors import (
    BadMessage,
    EpochlogError,
    Fenced,
    JobNotFound,
    JobRunning,
    LoadNotFound,
    SegmentUnknown,
)
from epochlog.exchange.transport.duplex import DuplexStream
from epochlog.exchange.transport.errors import encode_error
from epochlog.store.commit.reported_segments import check_reported
from epochlog.store.env.clock import Clock, SystemClock, monotonic_s
from epochlog.store.env.log_events import REPORT_REFUSED, WORKER_SILENT
from epochlog.store.session.handle import Handle

from .decision_executor import DecisionExecutor
from .job_looker import JobLooker
from .managed_jobs import make_managed_job
from .metrics import Metrics
from .state import CoordinatorSettings, Owner, Running, actor_of, key_of, run_logged
from .worker_connection import WorkerConnection, accept_worker

WATCH_S = 0.25
"""Longest time between two looks for silent workers."""
ENDED = ("failed", "stopped")
CHECK_THREADS = 4
"""Most reports whose segments are checked in parallel."""


class Coordinator:
    """Coordinator of a store's loads, and of the jobs that workers run in parts. `close` ends its threads."""

    def __init__(
        self, handle: Handle, settings: CoordinatorSettings | None = None, *, clock: Clock | None = None
    ) -> None:
        """Start the threads. clock: Unix ms, for intervals and timeouts of checkpoints; None: the machine's clock."""
        self._handle = handle
        self.settings = settings or CoordinatorSettings()
        self._clock = clock or SystemClock()
        self._executor = DecisionExecutor(handle, self._clock)
        self._looker = JobLooker(handle, self._executor)
        self._run_name = handle.new_holder("coordinator")
        self._opening = threading.Lock()
        self._checked_s = monotonic_s()
        self._connections: set[WorkerConnection] = set()
        self._checks = ThreadPoolExecutor(CHECK_THREADS, thread_name_prefix="epochlog-checks")
        self._timer = threading.Thread(target=self._keep_time, name="epochlog-timer", daemon=True)
        self._timer.start()

    # ---- for users -----------------------------------------------------------------------------------------------

    def checkpoint(self, kind: wire.Kind, name: str) -> None:
        """Force a checkpoint of a load or job that runs here. Raises JobNotFound."""
        with self._executor.lock:
            self._executor.require_running(f"{kind}:{name}").has_changes = True
            self._executor.execute(self._executor.manager.inject(f"{kind}:{name}"))

    def stop(self, kind: wire.Kind, name: str, *, drain: bool) -> None:
        """Stop a load or job that runs here. drain: its parts end and commit their data. Else cancel them at once.

        Raises JobNotFound.
        """
        with self._executor.lock:
            self._executor.require_running(f"{kind}:{name}").has_changes = True
            self._executor.execute(self._executor.manager.stop(f"{kind}:{name}", drain=drain))

    def status(self) -> list[commands.CheckpointStatus]:
        """List the loads and jobs that run here, by name."""
        with self._executor.lock:
            return [self._executor.manager.status(name) for name in self._executor.manager.jobs()]

    @property
    def metrics(self) -> Metrics:
        return self._executor.metrics

    @property
    def workers(self) -> int:
        """Return the number of connected workers."""
        with self._executor.lock:
            return len(self._connections)

    def close(self, timeout_s: float = 5.0) -> None:
        """Disconnect the workers and end all threads. A second call does nothing."""
        with self._executor.lock:
            if self._executor.closed.is_set():
                return
            self._executor.closed.set()
            self._executor.wake.notify_all()
            connections = list(self._connections)
        for connection in connections:
            connection.end()
        self._timer.join(timeout_s)
        self._checks.shutdown(wait=True, cancel_futures=True)
        self._executor.close()
        for running in self._executor.running.values():
            running.managed_job.leave()  # so that other runners do not wait for a coordinator that has ended

    # ---- one worker's stream -------------------------------------------------------------------------------------

    def serve(self, stream: DuplexStream, descriptor: bytes) -> None:
        """Serve a worker's stream until it ends."""
        connection = accept_worker(stream)
        if connection is None:
            return
        try:
            with self._executor.lock:
                self._connections.add(connection)
            times = self.settings
            connection.send(wire.Welcome(wire.VERSION, self._run_name, times.heartbeat_ms, times.timeout_ms))
            while not self._executor.closed.is_set() and (frame := stream.read()) is not None:
                connection.heard()
                self._receive(connection, wire.decode(frame))
        finally:
            self._note_disconnection(connection)
            connection.join(self.settings.timeout_ms / 1000)

    def _receive(self, connection: WorkerConnection, messages: Iterable[wire.Message]) -> None:
        with self._executor.lock:
            for message in messages:
                if isinstance(message, wire.Ping):
                    connection.send(wire.Pong(message.number))
                elif isinstance(message, wire.Attach):
                    self._executor.submit(self._attach, connection, message)
                elif isinstance(message, (*wire.DOWN, wire.Hello)):
                    raise BadMessage(f"a worker must not send {type(message).__name__}")
                else:
                    self._handle_part_message(connection, message)

    def _handle_part_message(
        self,
        connection: WorkerConnection,
        message: wire.Reported | wire.Declined | wire.Ended | wire.Progress | wire.Detached,
    ) -> None:
        """Handle a message of a part; answer Restarted unless its worker owns the part under that incarnation."""
        part, key, actor = message.part, key_of(message.part), actor_of(message.part)
        owner, running = self._executor.owners.get(part), self._executor.running.get(key)
        sender = (connection.worker, message.incarnation)
        if owner is None or running is None or (owner.worker, owner.incarnation) != sender:
            self._executor.metrics.ignored(key)
            connection.send(wire.Restarted(part, message.incarnation, owner is not None, "this incarnation has ended"))
            return
        if isinstance(message, wire.Reported):
            unknown = set(message.segments) - set(running.managed_job.tables)
            if unknown:
                raise BadMessage(f"a report of {key} has segments of table {min(unknown)!r}, which it does not write")
            is_of_job = isinstance(message.state, wire.RefreshReport)
            if message.state is not None and is_of_job != (part.kind == "job"):
                raise BadMessage(f"a report of {key} has a state that is none of a {part.kind}")
            state = message.state or b""
            report = commands.Report(
                key, message.barrier_id, actor, message.incarnation, message.segments, state, message.ended
            )
            has_state = isinstance(message.state, wire.RefreshReport) and message.state.state is not None
            if has_state or any(message.segments.values()):
                self._checks.submit(run_logged, self._check_report, running, part, report)
            else:
                self._executor.execute(self._executor.manager.collect(report))
        elif isinstance(message, wire.Declined):
            running.has_changes = True
            self._executor.submit(self._executor.decline, message, actor, running)
        elif isinstance(message, wire.Ended):
            running.has_changes = True
            self._executor.execute(self._executor.manager.ended(key, actor, message.incarnation))
        elif isinstance(message, wire.Progress):
            running.has_changes = True
        else:
            self._fail_part(part, owner, message.reason)

    def _check_report(self, running: Running, part: PartName, report: commands.Report) -> None:
        """Accept a report whose segments match their files.

        Reject one with a segment that does not: its part rolls back to the last commit. When the files cannot be read
        now, decline: the part reports again for the next attempt.
        """
        error: EpochlogError | None = None
        try:
            (table, *_), refresh = running.managed_job.tables, report.state
            state = refresh.state if isinstance(refresh, wire.RefreshReport) else None
            check_reported(self._handle, report.segments, {} if state is None else {table: state})
        except EpochlogError as check_error:
            error = check_error
            REPORT_REFUSED.log(job=report.job, part=part.number, error=error)
        manager, reporter = self._executor.manager, (report.actor, report.incarnation)
        with self._executor.lock:
            if self._executor.running.get(report.job) is not running:
                return
            if error is None:
                self._executor.execute(manager.collect(report))
            elif isinstance(error, SegmentUnknown):
                reason = f"{type(error).__name__}: {error}"
                self._executor.execute(manager.reject(report.job, report.barrier_id, *reporter, reason))
            else:
                reason = "the segments of its report cannot be read now"
                self._executor.execute(manager.decline(report.job, report.barrier_id, *reporter, reason))

    def _note_disconnection(self, connection: WorkerConnection) -> None:
        """Note that a connection has ended; its worker may reconnect within the timeout."""
        with self._executor.lock:
            self._connections.discard(connection)
            for owner in self._executor.owners.values():
                if owner.connection is connection:
                    owner.connection, owner.lost_s = None, monotonic_s()

    # ---- attaching -----------------------------------------------------------------------------------------------

    def _attach(self, connection: WorkerConnection, request: wire.Attach) -> None:
        """Attach a part to a worker; ignore a connection that has ended, because its worker asks again."""
        part, key = request.part, key_of(request.part)
        if request.incarnation:
            with self._executor.lock:
                if connection in self._connections:
                    self._resume(connection, request)
            return
        try:
            with self._opening:
                self._open(key, request, connection.worker)
            with self._executor.lock:
                if connection not in self._connections:
                    return
                self._executor.require_running(key).managed_job.require_match(request)
                before = self._executor.owners.get(part)
                _refuse_second(request, before, connection.worker)
                incarnation, decided = self._executor.manager.attach(key, actor_of(part))
                self._executor.owners[part] = Owner(connection.worker, incarnation, connection)
                self._looker.look_soon(key)
                if before is not None and before.connection is not None and before.worker != connection.worker:
                    before.connection.send(
                        wire.Restarted(part, before.incarnation, True, "another worker has attached as this part")
                    )
                self._executor.execute(decided)
        except EpochlogError as error:
            connection.send(wire.Refused(part, *encode_error(error)))

    def _resume(self, connection: WorkerConnection, request: wire.Attach) -> None:
        """Resume an incarnation over a new connection, or answer that it has ended."""
        part, owner, running = (
            request.part,
            self._executor.owners.get(request.part),
            self._executor.running.get(key_of(request.part)),
        )
        same_owner = owner is not None and (owner.worker, owner.incarnation) == (connection.worker, request.incarnation)
        if running is not None and self._executor.manager.status(key_of(part)).state in ENDED:
            connection.send(wire.Stopped(part, f"{key_of(part)} was stopped, or has failed"))
            return
        if owner is None or running is None or not same_owner:
            taken = owner is not None and owner.worker != connection.worker
            connection.send(
                wire.Restarted(part, request.incarnation, taken, "its worker was lost, so this incarnation ended")
            )
            return
        owner.connection, owner.lost_s = connection, None
        for message in (owner.started, owner.committed, owner.aborted):
            if message is not None:
                connection.send(message)
        self._executor.inject_again(actor_of(part), running)

    def _open(self, key: str, request: wire.Attach, worker: str) -> None:
        """Claim the load or job in the catalog and register it at the manager, unless it runs here already."""
        running = self._executor.running.get(key)
        if running is not None:  # its worker may have run it alone since, while it had lost this coordinator
            self._check(key, running, attaching=worker)
        with self._executor.lock:
            running = self._executor.running.get(key)
            ended = running is not None and self._executor.manager.status(key).state in ENDED
            reopen = ended or (running is not None and self._idle(key) and running.parts != request.parts)
            if running is not None and not reopen:
                return
        managed_job = make_managed_job(self._handle, request, self.settings.checkpoints)
        opened = managed_job.open()
        with self._executor.lock:
            if running is not None:
                self._executor.execute(self._executor.manager.unregister(key))
                self._executor.submit(running.managed_job.leave)
            finished = [(request.part.name, index) for index in opened.finished]
            self._executor.running[key] = Running(managed_job, opened.parts, request.part.kind, request.part.name)
            vertices = {request.part.name: opened.parts}
            incarnation, settings = opened.incarnation, opened.settings
            self._executor.execute(
                self._executor.manager.register(
                    key, vertices, incarnation=incarnation, settings=settings, finished=finished
                )
            )
            if managed_job.looked_at is not None:
                self._looker.add(key, managed_job.looked_at)

    def _idle(self, key: str) -> bool:
        """Return True if no worker owns a part of this load or job, so that the number of parts may change."""
        return not self._executor.has_parts(key)

    # ---- time ----------------------------------------------------------------------------------------------------

    def _keep_time(self) -> None:
        while not self._executor.closed.is_set():
            with self._executor.lock:
                self._executor.execute(self._executor.manager.tick())
                self._expire_workers()
                self._looker.tick()
                due, look_in_ms = self._executor.manager.next_due(), self._looker.due_in_ms()
                wait_s = WATCH_S if due is None else min(max(due - self._clock(), 1) / 1000, WATCH_S)
                wait_s = wait_s if look_in_ms is None else min(look_in_ms / 1000, wait_s)
                if not self._executor.closed.is_set():
                    self._executor.wake.wait(wait_s)

    def _expire_workers(self) -> None:
        """Disconnect silent workers; fail the parts whose worker did not reconnect in time."""
        timeout_s = self.settings.timeout_ms / 1000
        for connection in list(self._connections):
            if connection.silent_s() > timeout_s:
                WORKER_SILENT.log(worker=connection.worker, silent_s=connection.silent_s())
                self._note_disconnection(connection)
                self._executor.submit(connection.end)
                for part, owner in list(self._executor.owners.items()):
                    if owner.worker == connection.worker and owner.connection is None:
                        self._fail_part(part, owner, "its worker was silent")
        now_s = monotonic_s()
        for part, owner in list(self._executor.owners.items()):
            if owner.lost_s is not None and now_s - owner.lost_s > timeout_s:
                self._fail_part(part, owner, "its worker was lost")
        if now_s - self._checked_s > timeout_s:
            self._checked_s = now_s
            for key, running in self._executor.running.items():
                self._executor.submit(self._check, key, running)

    def _check(self, key: str, running: Running, *, attaching: str | None = None) -> None:
        """Abandon a load or job that another runner has claimed, or that was dropped. attaching: a worker that begins
        again with a new attach, so that its part is not stopped.
        """
        try:
            running.managed_job.check()
        except (Fenced, JobNotFound, LoadNotFound) as error:
            with self._executor.lock:
                if self._executor.running.get(key) is running:
                    for part, owner in list(self._executor.owners.items()):
                        if key_of(part) == key and owner.worker == attaching:
                            del self._executor.owners[part]
                self._executor.abandon(key, running, error)

    def _fail_part(self, part: PartName, owner: Owner, reason: str) -> None:
        running = self._executor.running.get(key_of(part))
        self._executor.owners.pop(part, None)
        if running is not None:
            running.has_changes = True
            self._executor.note_part_left(part, running)
            self._executor.execute(self._executor.manager.fail(key_of(part), actor_of(part), owner.incarnation, reason))


def _refuse_second(request: wire.Attach, owner: Owner | None, worker: str) -> None:
    """Raise JobRunning if the part belongs to another worker, which the request does not take over."""
    if owner is not None and owner.worker != worker and not request.take_over:
        raise JobRunning(
            f"{request.part.kind} {request.part.name!r} is run already, by worker {owner.worker} under this "
            "coordinator. Wait for its end, or take the job over with take_over=True, which fences it"
        )
