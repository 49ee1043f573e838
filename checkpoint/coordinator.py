"""Runs the checkpoint manager for real: workers' lines give it events, its decisions go to them and to the catalog.

One lock guards the manager and all tables here; nothing that waits is done under it. Messages to workers are queued
under it, in the order of the decisions; catalog work goes to a few threads, one piece at a time for each load or job,
because the manager waits for its answer. One timer thread wakes at `next_due` and looks for silent workers.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar

from ..errors import BadMessage, EpochlogError, Fenced, JobNotFound, JobParked, LoadNotFound, OutcomeUnknown
from ..exchange.line import Line
from ..store.clock import Clock, SystemClock, monotonic_s
from ..store.commit import REFUSALS
from ..store.handle import Handle
from ..store.writer import remove_segments
from . import control as wire
from . import decisions as to
from .control import Part
from .manager import CheckpointManager
from .metrics import Metrics
from .running import CoordinatorSettings, Owner, Running, actor_of, injected, key_of, logged
from .session import Session, greeted
from .tasks import HOPELESS, make_task

_log = logging.getLogger("epochlog")

CATALOG_THREADS = 4
WATCH_S = 0.25
"""How often the timer looks for silent workers at the least."""
MAX_RETRY_S = 5.0
OVER = ("failed", "stopped")


class Coordinator:
    """The coordinator of a store's loads and of the jobs that workers run in parts. `close` ends its threads."""

    def __init__(
        self, handle: Handle, settings: CoordinatorSettings | None = None, *, clock: Clock | None = None
    ) -> None:
        """clock: Unix ms, for intervals and timeouts of checkpoints; None: the machine's."""
        self._handle = handle
        self.settings = settings or CoordinatorSettings()
        self.metrics = Metrics()
        self._manager = CheckpointManager(clock=clock or SystemClock())
        self._clock = clock or SystemClock()
        self._run_name = handle.new_holder("coordinator")
        self._lock = threading.RLock()
        self._wake = threading.Condition(self._lock)
        self._opening = threading.Lock()
        self._checked_s = monotonic_s()
        self._running: dict[str, Running] = {}
        self._owners: dict[Part, Owner] = {}
        self._sessions: set[Session] = set()
        self._closed = threading.Event()
        self._pool = ThreadPoolExecutor(CATALOG_THREADS, thread_name_prefix="epochlog-coordinator")
        self._timer = threading.Thread(target=self._keep_time, name="epochlog-timer", daemon=True)
        self._timer.start()

    # ---- for users -----------------------------------------------------------------------------------------------

    def checkpoint(self, kind: wire.Kind, name: str) -> None:
        """Force a checkpoint of a load or job that runs here. Raises JobNotFound."""
        with self._lock:
            self._known(f"{kind}:{name}").news = True
            self._carry(self._manager.inject(f"{kind}:{name}"))

    def stop(self, kind: wire.Kind, name: str, *, drain: bool) -> None:
        """End a load here: with drain its parts end their data and commit it, without they are cancelled at once."""
        with self._lock:
            self._known(f"{kind}:{name}").news = True
            self._carry(self._manager.stop(f"{kind}:{name}", drain=drain))

    def status(self) -> list[to.JobStatus]:
        """All loads and jobs that run here, by name."""
        with self._lock:
            return [self._manager.status(name) for name in self._manager.jobs()]

    @property
    def workers(self) -> int:
        """How many workers are connected."""
        with self._lock:
            return len(self._sessions)

    def close(self, timeout_s: float = 5.0) -> None:
        """End all threads; workers look for another coordinator. A second call does nothing."""
        with self._lock:
            if self._closed.is_set():
                return
            self._closed.set()
            self._wake.notify_all()
            sessions = list(self._sessions)
        for session in sessions:
            session.end()
        self._timer.join(timeout_s)
        self._pool.shutdown(wait=True, cancel_futures=True)

    # ---- one worker's line ---------------------------------------------------------------------------------------

    def serve(self, line: Line, rest: bytes) -> None:
        """Serve a worker's line until it ends."""
        session = greeted(line)
        if session is None:
            return
        try:
            with self._lock:
                self._sessions.add(session)
            times = self.settings
            session.send(wire.Welcome(wire.VERSION, self._run_name, times.heartbeat_ms, times.timeout_ms))
            while not self._closed.is_set() and (frame := line.read()) is not None:
                session.heard()
                self._take(session, wire.decode(frame))
        finally:
            self._leave(session)
            session.join(self.settings.timeout_ms / 1000)

    def _take(self, session: Session, messages: Iterable[wire.Message]) -> None:
        with self._lock:
            for message in messages:
                if isinstance(message, wire.Ping):
                    session.send(wire.Pong(message.number))
                elif isinstance(message, wire.Attach):
                    self._submit(self._attach, session, message)
                elif isinstance(message, (*wire.DOWN, wire.Hello)):
                    raise BadMessage("a worker sends no such message")
                else:
                    self._from_part(session, message)

    def _from_part(
        self, session: Session, message: wire.Reported | wire.Declined | wire.Ended | wire.Progress | wire.Detached
    ) -> None:
        """A message of a part counts while its worker owns it under that incarnation; else it changes nothing."""
        part, key, actor = message.part, key_of(message.part), actor_of(message.part)
        owner, running = self._owners.get(part), self._running.get(key)
        mine = (session.worker, message.incarnation)
        if owner is None or running is None or (owner.worker, owner.incarnation) != mine:
            self.metrics.ignored(key)
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
            self._carry(self._manager.collect(report))
        elif isinstance(message, wire.Declined):
            running.news = True
            self._carry(self._manager.decline(key, message.barrier_id, actor, message.incarnation, message.reason))
        elif isinstance(message, wire.Ended):
            running.news = True
            self._carry(self._manager.ended(key, actor, message.incarnation))
        elif isinstance(message, wire.Progress):
            running.news = True
        else:
            self._lose(part, owner, message.reason)

    def _leave(self, session: Session) -> None:
        """The line has ended; the worker may come back with a new one within the timeout."""
        with self._lock:
            self._sessions.discard(session)
            for owner in self._owners.values():
                if owner.session is session:
                    owner.session, owner.lost_s = None, monotonic_s()

    # ---- attaching -----------------------------------------------------------------------------------------------

    def _attach(self, session: Session, asked: wire.Attach) -> None:
        part, key = asked.part, key_of(asked.part)
        if asked.incarnation:
            with self._lock:
                self._resume(session, asked)
            return
        try:
            with self._opening:
                self._open(key, asked)
            with self._lock:
                self._known(key).task.same(asked)
                incarnation, decided = self._manager.attach(key, actor_of(part))
                before = self._owners.get(part)
                self._owners[part] = Owner(session.worker, incarnation, session)
                if before is not None and before.session is not None and before.worker != session.worker:
                    before.session.send(
                        wire.Restarted(part, before.incarnation, True, "another worker has attached as this part")
                    )
                self._carry(decided)
        except EpochlogError as error:
            session.send(wire.Refused(part, type(error).__name__, str(error)[: wire.MAX_TEXT]))

    def _resume(self, session: Session, asked: wire.Attach) -> None:
        """Go on as the same incarnation over another line, or be told that it has ended."""
        part, owner, running = asked.part, self._owners.get(asked.part), self._running.get(key_of(asked.part))
        mine = owner is not None and (owner.worker, owner.incarnation) == (session.worker, asked.incarnation)
        if running is not None and self._manager.status(key_of(part)).state in OVER:
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
        self._inject_again(actor_of(part), running)

    def _open(self, key: str, asked: wire.Attach) -> None:
        """Have the manager know the load or job: claimed in the catalog first."""
        with self._lock:
            found = self._running.get(key)
            over = found is not None and self._manager.status(key).state in OVER
            again = over or (found is not None and self._idle(key) and found.parts != asked.parts)
            if found is not None and not again:
                return
        task = make_task(self._handle, asked, self.settings.checkpoints)
        opened = task.open()
        with self._lock:
            if found is not None:
                self._carry(self._manager.unregister(key))
            finished = [(asked.part.name, index) for index in opened.finished]
            self._running[key] = Running(task, opened.parts, asked.part.kind, asked.part.name)
            vertices = {asked.part.name: opened.parts}
            incarnation, settings = opened.incarnation, opened.settings
            self._carry(
                self._manager.register(key, vertices, incarnation=incarnation, settings=settings, finished=finished)
            )

    def _idle(self, key: str) -> bool:
        """Whether nobody is a part of it now: then it may be run by another number of parts."""
        return not any(key_of(part) == key for part in self._owners)

    # ---- decisions -----------------------------------------------------------------------------------------------

    def _carry(self, decisions: Iterable[to.Decision]) -> None:
        """Carry out what the manager has decided, under the lock."""
        for decision in decisions:
            self.metrics.note(decision, self._clock())
            running = self._running.get(decision.job)
            if running is None:
                continue
            act = self._ACTS.get(type(decision))
            if act is not None:
                act(self, decision, running)
        self._wake.notify_all()

    def _decide(self, decision: to.Decide, running: Running) -> None:
        news, running.news = running.news or bool(self._manager.status(decision.job).carried), False
        self._submit(self._ask, decision, running, news)

    def _ask(self, decision: to.Decide, running: Running, news: bool) -> None:
        key = decision.job
        try:
            barrier, last = running.task.decide(news=news or decision.drain, drain=decision.drain)
        except (Fenced, JobNotFound, JobParked) as error:
            with self._lock:
                self._give_up(key, running, error)
            return
        except EpochlogError as error:
            _log.warning("%s: its next barrier could not be decided: %s", key, error)
            barrier, last = None, False
            with self._lock:
                running.news = running.news or news
        with self._lock:
            settled = barrier is None and not running.news
            self._carry(self._manager.decided(key, decision.barrier_id, barrier, settled=settled, last=last))

    def _inject(self, inject: to.Inject, running: Running) -> None:
        running.inject = inject
        for actor in inject.targets:
            self._inject_one(inject, actor, running)

    def _inject_one(self, inject: to.Inject, actor: to.Actor, running: Running) -> None:
        self._tell(running.part(actor), inject.targets[actor], injected(inject, actor, running.part(actor)))

    def _inject_again(self, actor: to.Actor, running: Running) -> None:
        """Tell an actor that has begun since, or has come back, of the attempt in flight."""
        owner, inject = self._owners.get(running.part(actor)), running.inject
        if owner is not None and inject is not None and inject.targets.get(actor) == owner.incarnation:
            self._inject_one(inject, actor, running)

    def _commit(self, commit: to.Commit, running: Running) -> None:
        self._submit(self._try_commit, commit, running)

    def _try_commit(self, commit: to.Commit, running: Running) -> None:
        key, barrier_id = commit.job, commit.barrier_id
        try:
            epoch, over = running.task.commit(commit)
        except OutcomeUnknown:
            answer = partial(self._manager.unknown, key, barrier_id)
        except HOPELESS as error:
            with self._lock:
                self._give_up(key, running, error)
            return
        except REFUSALS as error:
            answer = partial(self._manager.refused, key, barrier_id, error)
        except Exception as error:  # noqa: BLE001 (a sync that failed, a defect: whether it has landed is not known)
            _log.warning("%s: whether its commit has landed is not known: %s", key, error)
            answer = partial(self._manager.unknown, key, barrier_id)
        else:
            with self._lock:
                running.retry_s = 0.1
                self._carry(self._manager.committed(key, barrier_id, epoch))
                if over:
                    self._over(key, running, epoch)
            return
        with self._lock:
            self._carry(answer())

    def _resolve(self, resolve: to.Resolve, running: Running) -> None:
        self._submit(self._try_resolve, resolve, running)

    def _try_resolve(self, resolve: to.Resolve, running: Running) -> None:
        while not self._closed.is_set():
            try:
                epoch = running.task.resolve()
            except EpochlogError as error:
                _log.warning("%s: the outcome of its commit cannot be found out yet: %s", resolve.job, error)
                self._closed.wait(running.retry_s)
                running.retry_s = min(running.retry_s * 2, MAX_RETRY_S)
                continue
            with self._lock:
                self._carry(self._manager.resolved(resolve.job, resolve.barrier_id, epoch))
            return

    def _announce(self, announce: to.Announce, running: Running) -> None:
        running.inject = None
        for actor, incarnation in announce.actors.items():
            part, gone = running.part(actor), actor in announce.finished
            told = wire.Committed(part, incarnation, announce.barrier_id, announce.epoch, gone)
            owner = self._tell(part, incarnation, told)
            if owner is not None:
                owner.committed = told

    def _abort(self, abort: to.Abort, running: Running) -> None:
        running.inject, running.news = None, True
        for actor, incarnation in abort.actors.items():
            part = running.part(actor)
            told = wire.Aborted(part, incarnation, abort.barrier_id, abort.reason[: wire.MAX_TEXT])
            owner = self._tell(part, incarnation, told)
            if owner is not None:
                owner.aborted = told

    def _drop(self, drop: to.Drop, running: Running) -> None:
        segments = [segment for found in drop.segments.values() for segment in found]
        self._submit(remove_segments, self._handle.files, segments)

    def _restart(self, restart: to.Restart, running: Running) -> None:
        running.news = True
        for actor, incarnation in restart.actors.items():
            part = running.part(actor)
            owner = self._owners.get(part)
            if owner is None or owner.incarnation != incarnation:
                continue
            del self._owners[part]
            if owner.session is not None:
                reason = restart.reason[: wire.MAX_TEXT]
                owner.session.send(wire.Restarted(part, owner.incarnation, False, reason))

    def _start(self, start: to.Start, running: Running) -> None:
        self._submit(self._read_state, start, running)

    def _read_state(self, start: to.Start, running: Running) -> None:
        part = running.part(start.actor)
        try:
            found = running.task.state(part.number)
        except EpochlogError as error:
            with self._lock:
                self._tell(part, start.incarnation, wire.Refused(part, type(error).__name__, str(error)))
            return
        started = wire.Started(part, start.incarnation, found.state, start.finished or found.finished)
        with self._lock:
            owner = self._owners.get(part)
            if owner is not None and owner.incarnation == start.incarnation:
                owner.started = started
            self._tell(part, start.incarnation, started)
            self._inject_again(start.actor, running)

    def _failed(self, failed: to.Failed, running: Running) -> None:
        self._send_off(running, failed.reason)

    def _stopped(self, stopped: to.Stopped, running: Running) -> None:
        self._send_off(running, "it was stopped")

    def _send_off(self, running: Running, reason: str) -> None:
        running.inject = None
        for part in [part for part in self._owners if (part.kind, part.name) == (running.kind, running.name)]:
            owner = self._owners.pop(part)
            if owner.session is not None:
                owner.session.send(wire.Stopped(part, reason[: wire.MAX_TEXT]))

    def _over(self, key: str, running: Running, epoch: int) -> None:
        """The job's data has ended with this commit, whatever its parts have said: tell all of them."""
        if running.kind != "job":
            return
        for part, owner in list(self._owners.items()):
            if key_of(part) == key:
                self._tell(part, owner.incarnation, wire.Committed(part, owner.incarnation, 0, epoch, True))
                del self._owners[part]
        self._carry(self._manager.unregister(key))
        self._running.pop(key, None)

    def _give_up(self, key: str, running: Running, error: EpochlogError) -> None:
        """It is somebody else's now, gone or parked, or can never commit again: its parts end here."""
        self._send_off(running, f"{type(error).__name__}: {error}")
        self._carry(self._manager.unregister(key))
        self._running.pop(key, None)

    _ACTS: ClassVar[dict[type, Callable[..., None]]] = {
        to.Decide: _decide,
        to.Inject: _inject,
        to.Commit: _commit,
        to.Resolve: _resolve,
        to.Announce: _announce,
        to.Abort: _abort,
        to.Drop: _drop,
        to.Restart: _restart,
        to.Start: _start,
        to.Failed: _failed,
        to.Stopped: _stopped,
    }

    # ---- time ----------------------------------------------------------------------------------------------------

    def _keep_time(self) -> None:
        while not self._closed.is_set():
            with self._lock:
                self._carry(self._manager.tick())
                self._watch()
                due = self._manager.next_due()
                wait_s = WATCH_S if due is None else min(max(due - self._clock(), 1) / 1000, WATCH_S)
                if not self._closed.is_set():
                    self._wake.wait(wait_s)

    def _watch(self) -> None:
        """Cut off workers that are silent; give up parts whose worker did not come back."""
        timeout_s = self.settings.timeout_ms / 1000
        for session in list(self._sessions):
            if session.silent_s() > timeout_s:
                _log.warning("worker %s was silent for %.1f s and is cut off", session.worker, session.silent_s())
                self._leave(session)
                self._submit(session.end)
                for part, owner in list(self._owners.items()):
                    if owner.worker == session.worker and owner.session is None:
                        self._lose(part, owner, "its worker was silent")
        now_s = monotonic_s()
        for part, owner in list(self._owners.items()):
            if owner.lost_s is not None and now_s - owner.lost_s > timeout_s:
                self._lose(part, owner, "its worker was lost")
        if now_s - self._checked_s > timeout_s:
            self._checked_s = now_s
            for key, running in self._running.items():
                self._submit(self._check, key, running)

    def _check(self, key: str, running: Running) -> None:
        """Another coordinator may have taken it over while parts are missing here, and no commit was tried."""
        try:
            running.task.check()
        except (Fenced, JobNotFound, LoadNotFound) as error:
            with self._lock:
                if self._running.get(key) is running:
                    self._give_up(key, running, error)

    def _lose(self, part: Part, owner: Owner, reason: str) -> None:
        running = self._running.get(key_of(part))
        self._owners.pop(part, None)
        if running is not None:
            running.news = True
            self._carry(self._manager.fail(key_of(part), actor_of(part), owner.incarnation, reason))

    # ---- helpers -------------------------------------------------------------------------------------------------

    def _tell(self, part: Part, incarnation: int, message: wire.Message) -> Owner | None:
        """To whoever is the part under that incarnation; when it is not connected, it is told as it comes back."""
        owner = self._owners.get(part)
        if owner is None or owner.incarnation != incarnation:
            return None
        if owner.session is not None:
            owner.session.send(message)
        return owner

    def _known(self, key: str) -> Running:
        running = self._running.get(key)
        if running is None:
            raise JobNotFound(f"{key} does not run here; its workers attach to it first")
        return running

    def _submit(self, work: Callable[..., Any], *given: Any) -> None:
        if not self._closed.is_set():
            with suppress(RuntimeError):  # the interpreter is going down
                self._pool.submit(logged, work, *given)
