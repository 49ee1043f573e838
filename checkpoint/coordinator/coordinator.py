"""Runs the checkpoint manager for real: workers' lines give it events, and its decisions are carried out.

One lock, the carrier's, guards the manager and all tables here; nothing that waits is done under it. One timer thread
wakes at `next_due` and looks for silent workers.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from epochlog.checkpoint import control_messages as wire
from epochlog.checkpoint.control_messages import PartName
from epochlog.checkpoint.manager import commands as to
from epochlog.errors import BadMessage, EpochlogError, Fenced, JobNotFound, LoadNotFound, SegmentUnknown
from epochlog.exchange.transport.duplex import DuplexStream
from epochlog.exchange.transport.errors import encode_error
from epochlog.store.commit.reported_segments import check_reported
from epochlog.store.env.clock import Clock, SystemClock, monotonic_s
from epochlog.store.session.handle import Handle

from .decision_executor import DecisionExecutor
from .managed_jobs import make_task
from .metrics import Metrics
from .state import CoordinatorSettings, Owner, Running, actor_of, key_of, logged
from .worker_connection import WorkerConnection, greeted

_log = logging.getLogger("epochlog")

WATCH_S = 0.25
"""How often the timer looks for silent workers at the least."""
OVER = ("failed", "stopped")
CHECK_THREADS = 4
"""Reports whose segments are read at the same time."""


class Coordinator:
    """The coordinator of a store's loads and of the jobs that workers run in parts. `close` ends its threads."""

    def __init__(
        self, handle: Handle, settings: CoordinatorSettings | None = None, *, clock: Clock | None = None
    ) -> None:
        """clock: Unix ms, for intervals and timeouts of checkpoints; None: the machine's."""
        self._handle = handle
        self.settings = settings or CoordinatorSettings()
        self._clock = clock or SystemClock()
        self._carrier = DecisionExecutor(handle, self._clock)
        self._run_name = handle.new_holder("coordinator")
        self._opening = threading.Lock()
        self._checked_s = monotonic_s()
        self._sessions: set[WorkerConnection] = set()
        self._checks = ThreadPoolExecutor(CHECK_THREADS, thread_name_prefix="epochlog-checks")
        self._timer = threading.Thread(target=self._keep_time, name="epochlog-timer", daemon=True)
        self._timer.start()

    # ---- for users -----------------------------------------------------------------------------------------------

    def checkpoint(self, kind: wire.Kind, name: str) -> None:
        """Force a checkpoint of a load or job that runs here. Raises JobNotFound."""
        with self._carrier.lock:
            self._carrier.known(f"{kind}:{name}").news = True
            self._carrier.carry(self._carrier.manager.inject(f"{kind}:{name}"))

    def stop(self, kind: wire.Kind, name: str, *, drain: bool) -> None:
        """End a load here: with drain its parts end their data and commit it, without they are cancelled at once."""
        with self._carrier.lock:
            self._carrier.known(f"{kind}:{name}").news = True
            self._carrier.carry(self._carrier.manager.stop(f"{kind}:{name}", drain=drain))

    def status(self) -> list[to.CheckpointStatus]:
        """List the loads and jobs that run here, by name."""
        with self._carrier.lock:
            return [self._carrier.manager.status(name) for name in self._carrier.manager.jobs()]

    @property
    def metrics(self) -> Metrics:
        return self._carrier.metrics

    @property
    def workers(self) -> int:
        """Return the number of connected workers."""
        with self._carrier.lock:
            return len(self._sessions)

    def close(self, timeout_s: float = 5.0) -> None:
        """End all threads; workers look for another coordinator. A second call does nothing."""
        with self._carrier.lock:
            if self._carrier.closed.is_set():
                return
            self._carrier.closed.set()
            self._carrier.wake.notify_all()
            sessions = list(self._sessions)
        for session in sessions:
            session.end()
        self._timer.join(timeout_s)
        self._checks.shutdown(wait=True, cancel_futures=True)
        self._carrier.close()

    # ---- one worker's line ---------------------------------------------------------------------------------------

    def serve(self, line: DuplexStream, rest: bytes) -> None:
        """Serve a worker's line until it ends."""
        session = greeted(line)
        if session is None:
            return
        try:
            with self._carrier.lock:
                self._sessions.add(session)
            times = self.settings
            session.send(wire.Welcome(wire.VERSION, self._run_name, times.heartbeat_ms, times.timeout_ms))
            while not self._carrier.closed.is_set() and (frame := line.read()) is not None:
                session.heard()
                self._take(session, wire.decode(frame))
        finally:
            self._leave(session)
            session.join(self.settings.timeout_ms / 1000)

    def _take(self, session: WorkerConnection, messages: Iterable[wire.Message]) -> None:
        with self._carrier.lock:
            for message in messages:
                if isinstance(message, wire.Ping):
                    session.send(wire.Pong(message.number))
                elif isinstance(message, wire.Attach):
                    self._carrier.submit(self._attach, session, message)
                elif isinstance(message, (*wire.DOWN, wire.Hello)):
                    raise BadMessage("a worker sends no such message")
                else:
                    self._from_part(session, message)

    def _from_part(
        self,
        session: WorkerConnection,
        message: wire.Reported | wire.Declined | wire.Ended | wire.Progress | wire.Detached,
    ) -> None:
        """Handle a message of a part; ignore it unless its worker owns the part under that incarnation."""
        part, key, actor = message.part, key_of(message.part), actor_of(message.part)
        owner, running = self._carrier.owners.get(part), self._carrier.running.get(key)
        mine = (session.worker, message.incarnation)
        if owner is None or running is None or (owner.worker, owner.incarnation) != mine:
            self._carrier.metrics.ignored(key)
            session.send(wire.Restarted(part, message.incarnation, owner is not None, "another has taken its place"))
            return
        if isinstance(message, wire.Reported):
            unknown = set(message.segments) - set(running.task.tables)
            if unknown:
                raise BadMessage(f"{key} writes no table {min(unknown)!r}")
            state = message.state or b""
            report = to.Report(
                key, message.barrier_id, actor, message.incarnation, message.segments, state, message.ended
            )
            if any(message.segments.values()):
                self._checks.submit(logged, self._check_report, running, part, report)
            else:
                self._carrier.carry(self._carrier.manager.collect(report))
        elif isinstance(message, wire.Declined):
            running.news = True
            self._carrier.carry(
                self._carrier.manager.decline(key, message.barrier_id, actor, message.incarnation, message.reason)
            )
        elif isinstance(message, wire.Ended):
            running.news = True
            self._carrier.carry(self._carrier.manager.ended(key, actor, message.incarnation))
        elif isinstance(message, wire.Progress):
            running.news = True
        else:
            self._lose(part, owner, message.reason)

    def _check_report(self, running: Running, part: PartName, report: to.Report) -> None:
        """Take a report whose segments are there as it tells them. Else its part goes back to the last commit, and is
        told which one is not; what cannot be looked at now is reported again for the next attempt.
        """
        error: EpochlogError | None = None
        try:
            check_reported(self._handle, report.segments)
        except EpochlogError as found:
            error = found
            _log.warning("%s, part %d: its report is not taken: %s", report.job, part.number, error)
        manager, who = self._carrier.manager, (report.actor, report.incarnation)
        with self._carrier.lock:
            if self._carrier.running.get(report.job) is not running:
                return
            if error is None:
                self._carrier.carry(manager.collect(report))
            elif isinstance(error, SegmentUnknown):
                reason = f"{type(error).__name__}: {error}"
                self._carrier.carry(manager.reject(report.job, report.barrier_id, *who, reason))
            else:
                reason = "its report cannot be checked now"
                self._carrier.carry(manager.decline(report.job, report.barrier_id, *who, reason))

    def _leave(self, session: WorkerConnection) -> None:
        """Note that a line has ended; its worker may come back with a new one within the timeout."""
        with self._carrier.lock:
            self._sessions.discard(session)
            for owner in self._carrier.owners.values():
                if owner.session is session:
                    owner.session, owner.lost_s = None, monotonic_s()

    # ---- attaching -----------------------------------------------------------------------------------------------

    def _attach(self, session: WorkerConnection, asked: wire.Attach) -> None:
        """Attach a part to a worker's session; ignore a session that has ended, because its worker asks again."""
        part, key = asked.part, key_of(asked.part)
        if asked.incarnation:
            with self._carrier.lock:
                if session in self._sessions:
                    self._resume(session, asked)
            return
        try:
            with self._opening:
                self._open(key, asked)
            with self._carrier.lock:
                if session not in self._sessions:
                    return
                self._carrier.known(key).task.same(asked)
                incarnation, decided = self._carrier.manager.attach(key, actor_of(part))
                before = self._carrier.owners.get(part)
                self._carrier.owners[part] = Owner(session.worker, incarnation, session)
                if before is not None and before.session is not None and before.worker != session.worker:
                    before.session.send(
                        wire.Restarted(part, before.incarnation, True, "another worker has attached as this part")
                    )
                self._carrier.carry(decided)
        except EpochlogError as error:
            session.send(wire.Refused(part, *encode_error(error)))

    def _resume(self, session: WorkerConnection, asked: wire.Attach) -> None:
        """Go on as the same incarnation over another line, or be told that it has ended."""
        part, owner, running = (
            asked.part,
            self._carrier.owners.get(asked.part),
            self._carrier.running.get(key_of(asked.part)),
        )
        mine = owner is not None and (owner.worker, owner.incarnation) == (session.worker, asked.incarnation)
        if running is not None and self._carrier.manager.status(key_of(part)).state in OVER:
            session.send(wire.Stopped(part, "it was stopped, or has failed"))
            return
        if owner is None or running is None or not mine:
            taken = owner is not None and owner.worker != session.worker
            session.send(wire.Restarted(part, asked.incarnation, taken, "it was lost, and its place given up or taken"))
            return
        owner.session, owner.lost_s = session, None
        for message in (owner.started, owner.committed, owner.aborted):
            if message is not None:
                session.send(message)
        self._carrier.inject_again(actor_of(part), running)

    def _open(self, key: str, asked: wire.Attach) -> None:
        """Have the manager know the load or job: claimed in the catalog first."""
        with self._carrier.lock:
            found = self._carrier.running.get(key)
            over = found is not None and self._carrier.manager.status(key).state in OVER
            again = over or (found is not None and self._idle(key) and found.parts != asked.parts)
            if found is not None and not again:
                return
        task = make_task(self._handle, asked, self.settings.checkpoints)
        opened = task.open()
        with self._carrier.lock:
            if found is not None:
                self._carrier.carry(self._carrier.manager.unregister(key))
                self._carrier.submit(found.task.leave)
            finished = [(asked.part.name, index) for index in opened.finished]
            self._carrier.running[key] = Running(task, opened.parts, asked.part.kind, asked.part.name)
            vertices = {asked.part.name: opened.parts}
            incarnation, settings = opened.incarnation, opened.settings
            self._carrier.carry(
                self._carrier.manager.register(
                    key, vertices, incarnation=incarnation, settings=settings, finished=finished
                )
            )

    def _idle(self, key: str) -> bool:
        """Return True if no worker owns a part of this load or job, so that the number of parts may change."""
        return not any(key_of(part) == key for part in self._carrier.owners)

    # ---- time ----------------------------------------------------------------------------------------------------

    def _keep_time(self) -> None:
        while not self._carrier.closed.is_set():
            with self._carrier.lock:
                self._carrier.carry(self._carrier.manager.tick())
                self._watch()
                due = self._carrier.manager.next_due()
                wait_s = WATCH_S if due is None else min(max(due - self._clock(), 1) / 1000, WATCH_S)
                if not self._carrier.closed.is_set():
                    self._carrier.wake.wait(wait_s)

    def _watch(self) -> None:
        """Cut off workers that are silent; give up parts whose worker did not come back."""
        timeout_s = self.settings.timeout_ms / 1000
        for session in list(self._sessions):
            if session.silent_s() > timeout_s:
                _log.warning("worker %s was silent for %.1f s and is cut off", session.worker, session.silent_s())
                self._leave(session)
                self._carrier.submit(session.end)
                for part, owner in list(self._carrier.owners.items()):
                    if owner.worker == session.worker and owner.session is None:
                        self._lose(part, owner, "its worker was silent")
        now_s = monotonic_s()
        for part, owner in list(self._carrier.owners.items()):
            if owner.lost_s is not None and now_s - owner.lost_s > timeout_s:
                self._lose(part, owner, "its worker was lost")
        if now_s - self._checked_s > timeout_s:
            self._checked_s = now_s
            for key, running in self._carrier.running.items():
                self._carrier.submit(self._check, key, running)

    def _check(self, key: str, running: Running) -> None:
        """Give up a load or job that another coordinator has taken over while parts are missing here."""
        try:
            running.task.check()
        except (Fenced, JobNotFound, LoadNotFound) as error:
            with self._carrier.lock:
                if self._carrier.running.get(key) is running:
                    self._carrier.give_up(key, running, error)

    def _lose(self, part: PartName, owner: Owner, reason: str) -> None:
        running = self._carrier.running.get(key_of(part))
        self._carrier.owners.pop(part, None)
        if running is not None:
            running.news = True
            self._carrier.rest(part, running)
            self._carrier.carry(self._carrier.manager.fail(key_of(part), actor_of(part), owner.incarnation, reason))
