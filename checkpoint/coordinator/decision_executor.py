"""Execution of the checkpoint manager's decisions: messages to the parts, and catalog transactions.

The executor queues messages to workers under the lock, in the order of the decisions. Catalog work runs on a few
threads, one call at a time for each load or job, because the manager waits for its answer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar

from epochlog.checkpoint import control_messages as wire
from epochlog.checkpoint.control_messages import PartName
from epochlog.checkpoint.job.next_step import ENDINGS
from epochlog.checkpoint.manager import commands
from epochlog.checkpoint.manager.job_graph import JobGraph
from epochlog.checkpoint.manager.manager import CheckpointManager
from epochlog.errors import EpochlogError, JobNotFound, JobParked, OutcomeUnknown, by_name
from epochlog.exchange.transport.errors import encode_error
from epochlog.exchange.transport.message_fields import MAX_TEXT
from epochlog.store.commit.failures import DEFINITE_FAILURES
from epochlog.store.env.backoff import Backoff
from epochlog.store.env.clock import Clock
from epochlog.store.env.log_events import ATTEMPT_ABORTED, OUTCOME_UNKNOWN, RETRY
from epochlog.store.session.handle import Handle
from epochlog.store.sst.segment_writer import remove_segments

from .managed_jobs import Decided
from .metrics import Metrics
from .state import Owner, Running, injected_message, key_of, run_logged

CATALOG_THREADS = 4
BACKOFF = Backoff(first_s=0.1, limit_s=5.0)
"""Delays between attempts to resolve the outcome of a commit."""


class DecisionExecutor:
    """Executor of the manager's decisions, with the running loads and jobs and the owners of their parts.

    `lock` guards the manager and both tables. No call blocks while it holds the lock.
    """

    def __init__(self, handle: Handle, clock: Clock) -> None:
        self._handle = handle
        self._clock = clock
        self._pool = ThreadPoolExecutor(CATALOG_THREADS, thread_name_prefix="epochlog-coordinator")
        self.lock = threading.RLock()
        self.wake = threading.Condition(self.lock)
        self.closed = threading.Event()
        self.manager = CheckpointManager(clock=clock)
        self.metrics = Metrics(handle.barrier_phases)
        self.running: dict[str, Running] = {}
        self.owners: dict[PartName, Owner] = {}
        self.graph = JobGraph()
        """Jobs that were opened here, as of their newest looks."""
        self.on_commit: Callable[[Running, Collection[str]], None] = lambda running, readers: None
        """Called under the lock when a commit has landed, with the keys of the jobs that read its tables."""

    def close(self) -> None:
        """Wait for the threads. The caller has set `closed`."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def execute(self, decisions: Iterable[commands.Decision]) -> None:
        """Execute the manager's decisions in order. Call under the lock."""
        for decision in decisions:
            self.metrics.note(decision, self._clock())
            running = self.running.get(decision.job)
            if running is None:
                continue
            action = self._ACTIONS.get(type(decision))
            if action is not None:
                action(self, decision, running)
        self.wake.notify_all()

    def _decide(self, decision: commands.Decide, running: Running) -> None:
        has_changes, running.has_changes = running.has_changes or bool(self.manager.status(decision.job).carried), False
        self.submit(self._decide_barrier, decision, running, has_changes)

    def _decide_barrier(self, decision: commands.Decide, running: Running, has_changes: bool) -> None:
        key = decision.job
        try:
            decided = running.managed_job.decide(has_changes=has_changes or decision.drain, drain=decision.drain)
        except tuple(ENDINGS) as error:
            with self.lock:
                self.abandon(key, running, error)
            return
        except EpochlogError as error:
            RETRY.log(what=f"the decision of the next barrier of {key}", error=error)
            decided = Decided(None)
            with self.lock:
                running.has_changes = running.has_changes or has_changes
        with self.lock:
            settled = decided.barrier is None and not running.has_changes
            answer = partial(self.manager.decided, key, decision.barrier_id, decided.barrier)
            self.execute(answer(settled=settled, last=decided.last, renewed=decided.renewed))
            if not self.has_parts(key):  # the last one left while this call took the lease again
                self.submit(running.managed_job.leave)

    def _inject(self, inject: commands.Inject, running: Running) -> None:
        running.inject = inject
        for actor in inject.targets:
            self._inject_one(inject, actor, running)

    def _inject_one(self, inject: commands.Inject, actor: commands.Actor, running: Running) -> None:
        self.send(running.part(actor), inject.targets[actor], injected_message(inject, actor, running.part(actor)))

    def inject_again(self, actor: commands.Actor, running: Running) -> None:
        """Send the barrier of the attempt in flight to an actor that started or reconnected after the Inject."""
        owner, inject = self.owners.get(running.part(actor)), running.inject
        if owner is not None and inject is not None and inject.targets.get(actor) == owner.incarnation:
            self._inject_one(inject, actor, running)

    def _commit(self, commit: commands.CommitBarrier, running: Running) -> None:
        self.submit(self._try_commit, commit, running)

    def _try_commit(self, commit: commands.CommitBarrier, running: Running) -> None:
        key, barrier_id = commit.job, commit.barrier_id
        try:
            epoch, finished = running.managed_job.commit(commit)
        except OutcomeUnknown as error:
            OUTCOME_UNKNOWN.log(job=key, error=error)
            running.commit_error, answer = error, partial(self.manager.unknown, key, barrier_id)
        except running.managed_job.endings as error:
            with self.lock:
                self.abandon(key, running, error)
            return
        except DEFINITE_FAILURES as error:
            running.managed_job.failed(error)
            if running.managed_job.is_overtaken():
                answer = partial(self.manager.overtaken, key, barrier_id)
            else:  # the error's text is sent to the parts, so encode_error removes paths from it
                answer = partial(self.manager.refused, key, barrier_id, by_name(*encode_error(error)) or error)
        except Exception as error:  # noqa: BLE001 (a failed sync, or a defect: the outcome is unknown)
            OUTCOME_UNKNOWN.log(job=key, error=error)
            running.commit_error, answer = error, partial(self.manager.unknown, key, barrier_id)
        else:
            with self.lock:
                running.unresolved = 0
                self.execute(self.manager.committed(key, barrier_id, epoch))
                self.on_commit(running, self._note_commit(running, finished=finished))
                if finished:
                    self._finish_job(key, running, epoch)
            return
        with self.lock:
            self.execute(answer())

    def _note_commit(self, running: Running, *, finished: bool) -> list[str]:
        """Tell the graph of a commit; return the keys of the jobs that it triggers."""
        if running.looked_at is None or (job := running.looked_at.vertex.id) not in self.graph:
            return []  # of a load, or of a job that was dropped since
        readers = self.graph.finished(job) if finished else self.graph.committed(job)
        return [f"job:{self.graph.vertex(reader).name}" for reader in readers]

    def _resolve(self, resolve: commands.Resolve, running: Running) -> None:
        self.submit(self._try_resolve, resolve, running)

    def _try_resolve(self, resolve: commands.Resolve, running: Running) -> None:
        while not self.closed.is_set():
            try:
                epoch = running.managed_job.resolve()
            except running.managed_job.endings as error:
                with self.lock:
                    self.abandon(resolve.job, running, error)
                return
            except EpochlogError as error:
                RETRY.log(what=f"the resolution of a commit of {resolve.job}", error=error)
                running.unresolved += 1
                self.closed.wait(BACKOFF.delay_s(running.unresolved))
                continue
            if epoch is None and running.commit_error is not None:
                running.managed_job.failed(running.commit_error)
            with self.lock:
                self.execute(self.manager.resolved(resolve.job, resolve.barrier_id, epoch))
            return

    def decline(self, declined: wire.Declined, actor: commands.Actor, running: Running) -> None:
        """Answer the refusal of a part to report for a barrier."""
        key, overtaken = key_of(declined.part), running.managed_job.is_overtaken()
        with self.lock:
            if self.running.get(key) is not running:
                return
            if overtaken:
                self.execute(self.manager.overtaken(key, declined.barrier_id))
            else:
                reason = declined.reason
                self.execute(self.manager.decline(key, declined.barrier_id, actor, declined.incarnation, reason))

    def _announce(self, announce: commands.Announce, running: Running) -> None:
        running.inject = None
        for actor, incarnation in announce.actors.items():
            part, finished = running.part(actor), actor in announce.finished
            message = wire.Committed(part, incarnation, announce.barrier_id, announce.epoch, finished)
            owner = self.send(part, incarnation, message)
            if owner is not None:
                owner.committed = message

    def _abort(self, abort: commands.Abort, running: Running) -> None:
        running.inject, running.has_changes = None, True
        running.managed_job.aborted(abort.reason)
        ATTEMPT_ABORTED.log(job=abort.job, barrier_id=abort.barrier_id, reason=abort.reason)
        for actor, incarnation in abort.actors.items():
            part = running.part(actor)
            message = wire.Aborted(part, incarnation, abort.barrier_id, abort.reason[:MAX_TEXT])
            owner = self.send(part, incarnation, message)
            if owner is not None:
                owner.aborted = message

    def _drop(self, drop: commands.Drop, running: Running) -> None:
        segments = [segment for table_segments in drop.segments.values() for segment in table_segments]
        self.submit(remove_segments, self._handle.files, segments)

    def _restart(self, restart: commands.Restart, running: Running) -> None:
        running.has_changes = True
        for actor, incarnation in restart.actors.items():
            part = running.part(actor)
            owner = self.owners.get(part)
            if owner is None or owner.incarnation != incarnation:
                continue
            del self.owners[part]
            self.note_part_left(part, running)
            if owner.connection is not None:
                reason = restart.reason[:MAX_TEXT]
                owner.connection.send(wire.Restarted(part, owner.incarnation, False, reason))

    def _start(self, start: commands.Start, running: Running) -> None:
        self.submit(self._read_state, start, running)

    def _read_state(self, start: commands.Start, running: Running) -> None:
        part = running.part(start.actor)
        try:
            record = running.managed_job.state(part.number)
        except EpochlogError as error:
            with self.lock:
                self.send(part, start.incarnation, wire.Refused(part, *encode_error(error)))
            return
        started = wire.Started(part, start.incarnation, record.state, start.finished or record.finished)
        with self.lock:
            owner = self.owners.get(part)
            if owner is not None and owner.incarnation == start.incarnation:
                owner.started = started
            self.send(part, start.incarnation, started)
            self.inject_again(start.actor, running)

    def _failed(self, failed: commands.Failed, running: Running) -> None:
        self._stop_parts(running, failed.reason)

    def _stopped(self, stopped: commands.JobStopped, running: Running) -> None:
        self._stop_parts(running, "it was stopped")

    def _stop_parts(self, running: Running, reason: str) -> None:
        self._release_parts(running, lambda part: wire.Stopped(part, reason[:MAX_TEXT]))

    def _release_parts(self, running: Running, message: Callable[[PartName], wire.Message]) -> None:
        """Release all parts, each with the message that ends it."""
        running.inject = None
        for part in [part for part in self.owners if (part.kind, part.name) == (running.kind, running.name)]:
            owner = self.owners.pop(part)
            self.note_part_left(part, running)
            if owner.connection is not None:
                owner.connection.send(message(part))

    def _finish_job(self, key: str, running: Running, epoch: int) -> None:
        """Tell all parts that this commit ended the job's data, and unregister the job."""
        if running.kind != "job":
            return
        for part, owner in list(self.owners.items()):
            if key_of(part) == key:
                self.send(part, owner.incarnation, wire.Committed(part, owner.incarnation, 0, epoch, True))
                del self.owners[part]
        self.execute(self.manager.unregister(key))
        self.running.pop(key, None)
        self.submit(running.managed_job.leave)

    def abandon(self, key: str, running: Running, error: EpochlogError) -> None:
        """Stop the parts of a load or job that was taken over, dropped or parked, or can never commit again.

        Do nothing if it was opened again since.
        """
        if self.running.get(key) is not running:
            return
        name, text = encode_error(error)
        if running.kind == "job":  # its driver's state depends on the error
            self._release_parts(running, lambda part: wire.Refused(part, name, text))
        else:
            self._stop_parts(running, f"{name}: {text}")
        self.execute(self.manager.unregister(key))
        self.running.pop(key, None)
        if running.looked_at is not None:
            job = running.looked_at.vertex.id
            self.graph.parked(job) if isinstance(error, JobParked) else self.graph.dropped(job)
        self.submit(running.managed_job.leave)

    def note_part_left(self, part: PartName, running: Running) -> None:
        """Release the runner lease when the last part has left; the next `decide` takes it again."""
        if not self.has_parts(key_of(part)):
            self.submit(running.managed_job.leave)

    def has_parts(self, key: str) -> bool:
        """Return True if a worker owns a part of this load or job."""
        return any(key_of(part) == key for part in self.owners)

    def send(self, part: PartName, incarnation: int, message: wire.Message) -> Owner | None:
        """Send a message to the owner of the part if it has that incarnation, and return the owner.

        Return the owner also when it is disconnected: it gets the newest messages when it resumes.
        """
        owner = self.owners.get(part)
        if owner is None or owner.incarnation != incarnation:
            return None
        if owner.connection is not None:
            owner.connection.send(message)
        return owner

    def require_running(self, key: str) -> Running:
        """Return the load or job of that key; raise JobNotFound if no worker has attached to it."""
        running = self.running.get(key)
        if running is None:
            raise JobNotFound(f"{key} does not run on this coordinator; attach a worker to it first")
        return running

    def submit(self, function: Callable[..., Any], *args: Any) -> None:
        """Call the function on a catalog thread; do nothing once `closed` is set."""
        if not self.closed.is_set():
            with suppress(RuntimeError):  # the interpreter is shutting down
                self._pool.submit(run_logged, function, *args)

    _ACTIONS: ClassVar[dict[type, Callable[..., None]]] = {
        commands.Decide: _decide,
        commands.Inject: _inject,
        commands.CommitBarrier: _commit,
        commands.Resolve: _resolve,
        commands.Announce: _announce,
        commands.Abort: _abort,
        commands.Drop: _drop,
        commands.Restart: _restart,
        commands.Start: _start,
        commands.Failed: _failed,
        commands.JobStopped: _stopped,
    }
