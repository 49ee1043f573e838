"""Worker: one control stream to the coordinator, shared by any number of parts.

One thread reads, and reconnects with backoff after a disconnection. Another thread sends, at least once in each
heartbeat. A disconnection loses no state: every part repeats its state after a reconnection. A part writes and reports
in the thread that uses it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from types import TracebackType
from typing import Any, Self

from epochlog.checkpoint import control_messages as wire
from epochlog.checkpoint.control_messages import PartName
from epochlog.errors import AccessDenied, BadMessage, EpochlogError, InvalidInput, ServerUnavailable
from epochlog.exchange.transport.duplex import (
    ClientStream,
    Frame,
    Pem,
    check_destination,
    connect,
    read_pem,
    run_action,
)
from epochlog.exchange.transport.reconnecting_stream import ReconnectingStream
from epochlog.store.commit.loads import MOST_PARTS
from epochlog.store.env.backoff import Backoff
from epochlog.store.env.clock import Deadline, monotonic_s
from epochlog.store.env.log_events import COORDINATOR_REFUSED, COORDINATOR_SILENT
from epochlog.store.session.handle import Handle
from epochlog.store.types.schema import check_name

from .actor import LoadPart, Part
from .job_part import JobPart

CONTROL = b"control"
"""Name of the exchange."""
BACKOFF = Backoff(first_s=0.05, limit_s=2.0)
"""Delays before the stream is opened again."""
ATTACH_S = 30.0
PARTING_S = 1.0
"""Longest time in seconds that `close` waits until the coordinator has read the last messages."""
FRAME = 64
"""Most messages that are sent in one frame."""


class Worker:
    """Client of a coordinator for a process that ingests rows or refreshes a share of a job.

    Close it, or use it in a `with` block.

    with el.Worker(location, store, token=token) as worker:
        part = worker.attach("clicks_load", index=0, of=4, tables=["clicks"])
        if not part.finished:  # in an earlier run
            writer = part.writer("clicks")
            for offset, batch in source(start=part.state):
                writer.upsert(batch)
                if not part.poll(state=offset):
                    break
            part.finish()
    """

    def __init__(
        self,
        location: str,
        store: Any,
        *,
        token: str | None = None,
        tls_roots: Pem | None = None,
        insecure: bool = False,
    ) -> None:
        """Connect in the background. store: the coordinator's store, opened in this process. tls_roots: PEM, or its
        path. insecure: send the token to another host without TLS.

        Raises InvalidInput for a bad location or token, InsecureServer. `attach` raises if the coordinator does not
        answer.
        """
        check_destination(location, token, insecure=insecure)
        self.handle: Handle = store if isinstance(store, Handle) else store._handle
        self.location = location
        self._token = token
        self._roots = None if tls_roots is None else read_pem(tls_roots)
        self._name = self.handle.new_holder("worker")
        self._link = ReconnectingStream(
            "epochlog-worker-reads", BACKOFF, self._connect, self._handle_frame, self._handle_loss
        )
        self.changed = self._link.changed
        self._parts: dict[PartName, Part] = {}
        self._queue: deque[wire.Message] = deque()
        self._coordinator_run: str | None = None
        self._previous_run: str | None = None
        self._heartbeat_s, self._timeout_s = 1.0, 10.0
        self._error: EpochlogError | None = None
        self._pings = 0
        self._closed = threading.Event()
        self._sending = threading.Thread(target=self._send_loop, name="epochlog-worker-sends", daemon=True)
        self._link.start()
        self._sending.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close("it was closed" if error is None else f"{type(error).__name__}: {error}")

    def __repr__(self) -> str:
        return f"<epochlog.Worker of {self.location}>"

    # ---- for users -----------------------------------------------------------------------------------------------

    def attach(
        self,
        load: str | None = None,
        *,
        index: int,
        of: int,
        tables: Sequence[str] = (),
        finish_tables: bool = False,
        job: str | None = None,
        timeout: float = ATTACH_S,
    ) -> Any:
        """Attach part `index` of `of` parts of a load, or of a job (`job=`). The first attach declares the load.

        tables: the root tables that the load writes; finish_tables: they end with the load. Fences the earlier owner of
        the part. Returns a LoadPart or JobPart as soon as the part may begin. timeout: seconds. Raises
        ServerUnavailable, AccessDenied, InvalidInput, TableNotFound, JobNotFound.
        """
        kind, name = check_target(load, job)
        are_integers = type(of) is int and type(index) is int
        if not are_integers or not 0 <= index < of <= MOST_PARTS:
            raise InvalidInput(f"index and of are whole numbers, 0 <= index < of <= {MOST_PARTS}")
        if isinstance(tables, str):
            raise InvalidInput(f"tables is a list of table names, not {tables!r}")
        part_name = PartName(kind, name, index)
        if kind == "job":
            part: Part = JobPart(self, part_name, of)
        else:
            part = LoadPart(self, part_name, of, tuple(tables), finish_tables=finish_tables)
        self._add(part, timeout)
        return part

    def checkpoint(self, load: str | None = None, *, job: str | None = None, timeout: float = ATTACH_S) -> None:
        """Request a checkpoint of a load or job, whose parts may belong to other workers.

        Raises JobNotFound if it does not run on the coordinator, ServerUnavailable, AccessDenied, InvalidInput.
        """
        self._call("checkpoint", load, job, False, timeout)

    def stop(
        self, load: str | None = None, *, job: str | None = None, drain: bool = False, timeout: float = ATTACH_S
    ) -> None:
        """Request the end of a load or job, whose parts may belong to other workers; return without waiting for it.

        Without drain, its parts raise Cancelled and uncommitted rows are dropped. With drain, its parts end their data
        (`poll` returns False), and the commit of that is the last one. Raises JobNotFound if it does not run on the
        coordinator, ServerUnavailable, AccessDenied, InvalidInput.
        """
        self._call("stop", load, job, drain, timeout)

    @property
    def connected(self) -> bool:
        """Return True if the coordinator has welcomed this worker on the current stream."""
        with self.changed:
            return self._link.stream is not None and self._coordinator_run is not None

    def close(self, reason: str = "it was closed") -> None:
        """Detach all parts that have not finished, and disconnect. A second call does nothing."""
        with self.changed:
            if self._closed.is_set():
                return
            for part in self._parts.values():
                part.detach(reason)
            self._closed.set()
            self.changed.notify_all()
        self._sending.join(self._timeout_s)
        with self.changed:
            stream = self._link.stream
        if stream is not None:
            stream.finish(PARTING_S)
        self._link.close(self._timeout_s)

    def _call(self, action: str, load: str | None, job: str | None, drain: bool, timeout: float) -> None:
        kind, name = check_target(load, job)
        client: Any = connect(self.location, self._roots)
        with closing(client):
            body = wire.encode_request(kind, name, drain=drain)
            run_action(client, self.location, action, body, token=self._token, timeout_s=timeout)

    # ---- for drivers of whole jobs -------------------------------------------------------------------------------

    def attach_driver(
        self,
        job: str,
        *,
        alive: Callable[[], bool],
        gives_up: Callable[[], bool],
        take_over: bool,
        notify: Callable[[], None],
    ) -> JobPart:
        """Attach the only part of a job for a driver, and return it as soon as it may begin.

        alive: returns False once nobody steps the part any more; the worker then detaches it. gives_up: returns True to
        end a wait for the coordinator. notify: called after each message for the part. Raises JobRunning if the part
        belongs to another worker, unless take_over, and the errors of `attach`.
        """
        part = JobPart(self, PartName("job", job, 0), 1, take_over=take_over)
        part.alive, part.gives_up, part.notify = alive, gives_up, notify
        with self.changed:
            earlier = self._parts.get(part.name)
            if take_over and earlier is not None:
                earlier.fence()
        self._add(part, ATTACH_S)
        return part

    def _add(self, part: Part, timeout_s: float) -> None:
        """Attach a new part; keep it only if it may begin."""
        with self.changed:
            if part.name in self._parts and not self._parts[part.name].over:
                raise InvalidInput(f"this worker has attached {self._parts[part.name]!r} already; attach it once")
            self._parts[part.name] = part
        try:
            part.attach(Deadline.after(timeout_s))
        except BaseException:
            self.forget(part, "its attach failed")
            raise

    def forget(self, part: Part, reason: str) -> None:
        """Detach a part, whose uncommitted work is then dropped. A second call does nothing."""
        with self.changed:
            if self._parts.get(part.name) is part:
                del self._parts[part.name]
                part.detach(reason)

    def await_answer(self, timeout: float = ATTACH_S) -> None:
        """Wait until the coordinator has answered, or cannot be reached now. Raises AccessDenied."""
        with self.changed:
            with suppress(ServerUnavailable):
                self.wait(lambda: self.connected or self._error is not None, Deadline.after(timeout), "the connection")
            self.check_access()

    def check_access(self) -> None:
        """Raise AccessDenied if the coordinator has refused this worker's token."""
        if isinstance(self._error, AccessDenied):
            raise self._error

    # ---- for parts, under `changed` ------------------------------------------------------------------------------

    def send(self, message: wire.Message) -> None:
        """Queue a message. Drop it while disconnected: the part repeats its state after a reconnection."""
        if self._link.stream is not None and self._coordinator_run is not None:
            self._queue.append(message)
            self.changed.notify_all()

    def wait(self, condition: Callable[[], object], deadline: Deadline | None, awaited: str) -> None:
        """Wait until a message makes the condition true. Raises ServerUnavailable after the deadline, AccessDenied.

        awaited: names the event in the error.
        """
        while not condition():
            if self._closed.is_set():
                raise ServerUnavailable("this worker was closed; open another one")
            if isinstance(self._error, AccessDenied):
                raise self._error
            if deadline is not None and deadline.passed:
                raise ServerUnavailable(f"{self.location} did not answer in time: {awaited}") from self._error
            self.changed.wait(None if deadline is None else deadline.remaining_s)

    # ---- threads -------------------------------------------------------------------------------------------------

    def _connect(self) -> ClientStream:
        stream = ClientStream(self.location, CONTROL, token=self._token, tls_roots=self._roots)
        with self.changed:
            self._previous_run, self._coordinator_run = self._coordinator_run, None
            self._queue.clear()
        stream.send(wire.encode([wire.Hello(wire.VERSION, self._name)]))
        return stream

    def _handle_frame(self, _: ClientStream, frame: Frame) -> bool:
        messages = wire.decode(frame.without_rows())
        with self.changed:
            welcomed = [self._handle(message) for message in messages]
            self.changed.notify_all()
        return any(welcomed)

    def _handle_loss(self, reason: EpochlogError) -> bool:
        """Return True if the worker was closed meanwhile."""
        if isinstance(reason, BadMessage):
            COORDINATOR_REFUSED.log(location=self.location, error=reason)
        self._error, self._coordinator_run = reason, self._coordinator_run or self._previous_run
        return self._closed.is_set()

    def _handle(self, message: wire.Message) -> bool:
        if isinstance(message, wire.Welcome):
            self._heartbeat_s, self._timeout_s = message.heartbeat_ms / 1000, message.timeout_ms / 1000
            same_coordinator = self._previous_run in (None, message.run)
            self._coordinator_run, self._error = message.run, None
            for part in self._parts.values():
                part.reconnected(same_coordinator=same_coordinator)
            return True
        if not isinstance(message, wire.Pong):
            part = self._parts.get(getattr(message, "part", None))  # pyright: ignore[reportArgumentType]: None is no key
            if part is not None:
                part.handle_message(message)
                part.notify()
        return False

    def _send_loop(self) -> None:
        while True:
            with self.changed:
                if not self._queue and not self._closed.is_set():
                    self.changed.wait(self._heartbeat_s)
                stream, welcomed = self._link.stream, self._coordinator_run is not None
                silent_s = monotonic_s() - self._link.heard_s
                frame = [self._queue.popleft() for _ in range(min(FRAME, len(self._queue)))]
                if not frame and self._closed.is_set():
                    return
            if stream is None:
                if self._closed.is_set():
                    return
                continue
            for part in [] if frame else [part for part in list(self._parts.values()) if not part.alive()]:
                self.forget(part, "nobody steps it any more")
            if silent_s > self._timeout_s:
                COORDINATOR_SILENT.log(location=self.location, silent_s=silent_s)
                stream.abort()
            elif frame or welcomed:
                self._pings += 1
                stream.send(wire.encode(frame or [wire.Ping(self._pings)]))


def check_target(load: str | None, job: str | None) -> tuple[wire.Kind, str]:
    """Return the kind and name of the load or job; raise InvalidInput for both or none, InvalidName for a bad name."""
    if (load is None) == (job is None):
        raise InvalidInput("give either the name of a load or job=, not both")
    return ("job", check_name("job", job)) if load is None else ("load", check_name("load", load))
