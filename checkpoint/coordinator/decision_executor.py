"""Carries out what the checkpoint manager decides: tells the parts, and works at the catalog.

Messages to workers are queued under the lock, in the order of the decisions; catalog work goes to a few threads, one
piece at a time for each load or job, because the manager waits for its answer.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar

from epochlog.checkpoint import control_messages as wire
from epochlog.checkpoint.control_messages import PartName
from epochlog.checkpoint.manager import commands as to
from epochlog.checkpoint.manager.manager import CheckpointManager
from epochlog.errors import EpochlogError, Fenced, JobNotFound, JobParked, OutcomeUnknown, by_name
from epochlog.exchange.transport.errors import encode_error
from epochlog.store.commit.failures import DEFINITE_FAILURES
from epochlog.store.env.backoff import Backoff
from epochlog.store.env.clock import Clock
from epochlog.store.session.handle import Handle
from epochlog.store.sst.segment_writer import remove_segments

from .managed_jobs import HOPELESS
from .metrics import Metrics
from .state import Owner, Running, injected, key_of, logged

_log = logging.getLogger("epochlog")

CATALOG_THREADS = 4
BACKOFF = Backoff(first_s=0.1, limit_s=5.0)
"""Delays before the outcome of a commit is asked for again."""


class DecisionExecutor:
    """The manager, what runs under it and who is a part of that. `lock` guards all of them; nothing waits under it."""

    def __init__(self, handle: Handle, clock: Clock) -> None:
        self._handle = handle
        self._clock = clock
        self._pool = ThreadPoolExecutor(CATALOG_THREADS, thread_name_prefix="epochlog-coordinator")
        self.lock = threading.RLock()
        self.wake = threading.Condition(self.lock)
        self.closed = threading.Event()
        self.manager = CheckpointManager(clock=clock)
        self.metrics = Metrics()
        self.running: dict[str, Running] = {}
        self.owners: dict[PartName, Owner] = {}

    def close(self) -> None:
        """Wait for the threads; `closed` has been set."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def carry(self, decisions: Iterable[to.Decision]) -> None:
        """Carry out what the manager has decided, under the lock."""
        for decision in decisions:
            self.metrics.note(decision, self._clock())
            running = self.running.get(decision.job)
            if running is None:
                continue
            act = self._ACTS.get(type(decision))
            if act is not None:
                act(self, decision, running)
        self.wake.notify_all()

    def _decide(self, decision: to.Decide, running: Running) -> None:
        news, running.news = running.news or bool(self.manager.status(decision.job).carried), False
        self.submit(self._ask, decision, running, news)

    def _ask(self, decision: to.Decide, running: Running, news: bool) -> None:
        key = decision.job
        try:
            barrier, last = running.task.decide(news=news or decision.drain, drain=decision.drain)
        except (Fenced, JobNotFound, JobParked) as error:
            with self.lock:
                self.give_up(key, running, error)
            return
        except EpochlogError as error:
            _log.warning("%s: its next barrier could not be decided: %s", key, error)
            barrier, last = None, False
            with self.lock:
                running.news = running.news or news
        with self.lock:
            self.manager.pace(key, running.task.interval_ms)
            settled = barrier is None and not running.news
            self.carry(self.manager.decided(key, decision.barrier_id, barrier, settled=settled, last=last))

    def _inject(self, inject: to.Inject, running: Running) -> None:
        running.inject = inject
        for actor in inject.targets:
            self._inject_one(inject, actor, running)

    def _inject_one(self, inject: to.Inject, actor: to.Actor, running: Running) -> None:
        self.tell(running.part(actor), inject.targets[actor], injected(inject, actor, running.part(actor)))

    def inject_again(self, actor: to.Actor, running: Running) -> None:
        """Tell an actor that has begun since, or has come back, of the attempt in flight."""
        owner, inject = self.owners.get(running.part(actor)), running.inject
        if owner is not None and inject is not None and inject.targets.get(actor) == owner.incarnation:
            self._inject_one(inject, actor, running)

    def _commit(self, commit: to.CommitBarrier, running: Running) -> None:
        self.submit(self._try_commit, commit, running)

    def _try_commit(self, commit: to.CommitBarrier, running: Running) -> None:
        key, barrier_id = commit.job, commit.barrier_id
        try:
            epoch, over = running.task.commit(commit)
        except OutcomeUnknown:
            answer = partial(self.manager.unknown, key, barrier_id)
        except HOPELESS as error:
            with self.lock:
                self.give_up(key, running, error)
            return
        except DEFINITE_FAILURES as error:
            # its text goes on to the parts
            answer = partial(self.manager.refused, key, barrier_id, by_name(*encode_error(error)) or error)
        except Exception as error:  # noqa: BLE001 (a sync that failed, a defect: whether it has landed is not known)
            _log.warning("%s: whether its commit has landed is not known: %s", key, error)
            answer = partial(self.manager.unknown, key, barrier_id)
        else:
            with self.lock:
                running.unresolved = 0
                self.carry(self.manager.committed(key, barrier_id, epoch))
                if over:
                    self._over(key, running, epoch)
            return
        with self.lock:
            self.carry(answer())

    def _resolve(self, resolve: to.Resolve, running: Running) -> None:
        self.submit(self._try_resolve, resolve, running)

    def _try_resolve(self, resolve: to.Resolve, running: Running) -> None:
        while not self.closed.is_set():
            try:
                epoch = running.task.resolve()
            except EpochlogError as error:
                _log.warning("%s: the outcome of its commit cannot be found out yet: %s", resolve.job, error)
                running.unresolved += 1
                self.closed.wait(BACKOFF.delay_s(running.unresolved))
                continue
            with self.lock:
                self.carry(self.manager.resolved(resolve.job, resolve.barrier_id, epoch))
            return

    def _announce(self, announce: to.Announce, running: Running) -> None:
        running.inject = None
        for actor, incarnation in announce.actors.items():
            part, gone = running.part(actor), actor in announce.finished
            message = wire.Committed(part, incarnation, announce.barrier_id, announce.epoch, gone)
            owner = self.tell(part, incarnation, message)
            if owner is not None:
                owner.committed = message

    def _abort(self, abort: to.Abort, running: Running) -> None:
        running.inject, running.news = None, True
        for actor, incarnation in abort.actors.items():
            part = running.part(actor)
            message = wire.Aborted(part, incarnation, abort.barrier_id, abort.reason[: wire.MAX_TEXT])
            owner = self.tell(part, incarnation, message)
            if owner is not None:
                owner.aborted = message

    def _drop(self, drop: to.Drop, running: Running) -> None:
        segments = [segment for found in drop.segments.values() for segment in found]
        self.submit(remove_segments, self._handle.files, segments)

    def _restart(self, restart: to.Restart, running: Running) -> None:
        running.news = True
        for actor, incarnation in restart.actors.items():
            part = running.part(actor)
            owner = self.owners.get(part)
            if owner is None or owner.incarnation != incarnation:
                continue
            del self.owners[part]
            self.rest(part, running)
            if owner.session is not None:
                reason = restart.reason[: wire.MAX_TEXT]
                owner.session.send(wire.Restarted(part, owner.incarnation, False, reason))

    def _start(self, start: to.Start, running: Running) -> None:
        self.submit(self._read_state, start, running)

    def _read_state(self, start: to.Start, running: Running) -> None:
        part = running.part(start.actor)
        try:
            found = running.task.state(part.number)
        except EpochlogError as error:
            with self.lock:
                self.tell(part, start.incarnation, wire.Refused(part, *encode_error(error)))
            return
        started = wire.Started(part, start.incarnation, found.state, start.finished or found.finished)
        with self.lock:
            owner = self.owners.get(part)
            if owner is not None and owner.incarnation == start.incarnation:
                owner.started = started
            self.tell(part, start.incarnation, started)
            self.inject_again(start.actor, running)

    def _failed(self, failed: to.Failed, running: Running) -> None:
        self._send_off(running, failed.reason)

    def _stopped(self, stopped: to.JobStopped, running: Running) -> None:
        self._send_off(running, "it was stopped")

    def _send_off(self, running: Running, reason: str) -> None:
        running.inject = None
        for part in [part for part in self.owners if (part.kind, part.name) == (running.kind, running.name)]:
            owner = self.owners.pop(part)
            self.rest(part, running)
            if owner.session is not None:
                owner.session.send(wire.Stopped(part, reason[: wire.MAX_TEXT]))

    def _over(self, key: str, running: Running, epoch: int) -> None:
        """Tell all parts that the job's data has ended with this commit."""
        if running.kind != "job":
            return
        for part, owner in list(self.owners.items()):
            if key_of(part) == key:
                self.tell(part, owner.incarnation, wire.Committed(part, owner.incarnation, 0, epoch, True))
                del self.owners[part]
        self.carry(self.manager.unregister(key))
        self.running.pop(key, None)
        self.submit(running.task.leave)

    def give_up(self, key: str, running: Running, error: EpochlogError) -> None:
        """End the parts of a load or job that was taken over, dropped or parked, or can never commit again."""
        self._send_off(running, ": ".join(encode_error(error)))
        self.carry(self.manager.unregister(key))
        self.running.pop(key, None)
        self.submit(running.task.leave)

    def rest(self, part: PartName, running: Running) -> None:
        """Note that a part has gone; after the last one nobody runs the job here, until one comes back."""
        if not any(key_of(other) == key_of(part) for other in self.owners):
            self.submit(running.task.leave)

    def tell(self, part: PartName, incarnation: int, message: wire.Message) -> Owner | None:
        """Send a message to the part's worker of that incarnation; it gets the message later if it has no line now."""
        owner = self.owners.get(part)
        if owner is None or owner.incarnation != incarnation:
            return None
        if owner.session is not None:
            owner.session.send(message)
        return owner

    def known(self, key: str) -> Running:
        running = self.running.get(key)
        if running is None:
            raise JobNotFound(f"{key} does not run here; its workers attach to it first")
        return running

    def submit(self, work: Callable[..., Any], *given: Any) -> None:
        if not self.closed.is_set():
            with suppress(RuntimeError):  # the interpreter is going down
                self._pool.submit(logged, work, *given)

    _ACTS: ClassVar[dict[type, Callable[..., None]]] = {
        to.Decide: _decide,
        to.Inject: _inject,
        to.CommitBarrier: _commit,
        to.Resolve: _resolve,
        to.Announce: _announce,
        to.Abort: _abort,
        to.Drop: _drop,
        to.Restart: _restart,
        to.Start: _start,
        to.Failed: _failed,
        to.JobStopped: _stopped,
    }
