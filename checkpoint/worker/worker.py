"""A worker process's side of the control stream: one line to the coordinator, and on it any number of parts.

The line is kept by two threads: one reads, and opens it again with growing pauses when it was cut; one sends, and
is heard at least every heartbeat. Nothing is lost with a line: every part repeats what it stands for when it comes
back. What a part writes and reports is done by the thread that uses it.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing
from types import TracebackType
from typing import Any, Self

from epochlog.checkpoint import control_messages as wire
from epochlog.checkpoint.control_messages import PartName
from epochlog.errors import AccessDenied, BadMessage, EpochlogError, InvalidInput, ServerUnavailable
from epochlog.exchange.transport.duplex import ClientLine, Pem, check_destination, connect, read_pem, run_action
from epochlog.store.commit.loads import MOST_PARTS
from epochlog.store.env.backoff import Backoff
from epochlog.store.env.clock import Deadline, monotonic_s
from epochlog.store.session.handle import Handle
from epochlog.store.types.schema import check_name

from .actor import JobPart, LoadPart, Part

_log = logging.getLogger("epochlog")

CONTROL = b"control"
"""The name of the exchange."""
BACKOFF = Backoff(first_s=0.05, limit_s=2.0)
"""Delays before the line is opened again."""
ATTACH_S = 30.0
PARTING_S = 1.0
"""How long a worker that is closed waits until its last words are read."""
FRAME = 64


class Worker:
    """Client of a coordinator for a process that ingests rows or refreshes a share of a job.

    Close it, or use it in a `with` block.

    with el.Worker(location, store, token=token) as worker:
        part = worker.attach("clicks_load", index=0, of=4, tables=["clicks"])
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
        """store: the same store as the coordinator's, opened in this process. tls_roots: PEM, or where it lies.
        insecure: send the token to another host without TLS.

        Raises InvalidInput for what is no location or token, InsecureServer; whether the coordinator answers is told by
        `attach`.
        """
        check_destination(location, token, insecure=insecure)
        self.handle: Handle = store if isinstance(store, Handle) else store._handle
        self.location = location
        self._token = token
        self._roots = None if tls_roots is None else read_pem(tls_roots)
        self._name = self.handle.new_holder("worker")
        self.changed = threading.Condition()
        self._parts: dict[PartName, Part] = {}
        self._out: deque[wire.Message] = deque()
        self._line: ClientLine | None = None
        self._run: str | None = None
        self._heard_s = monotonic_s()
        self._heartbeat_s, self._timeout_s = 1.0, 10.0
        self._trouble: EpochlogError | None = None
        self._pings = 0
        self._closed = threading.Event()
        self._reading = threading.Thread(target=self._read, name="epochlog-worker-reads", daemon=True)
        self._sending = threading.Thread(target=self._send, name="epochlog-worker-sends", daemon=True)
        self._reading.start()
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
        """Attach part `index` of `of`: of a load, which is declared by that, or of a job (`job=`).

        tables: the root tables that the load writes; finish_tables: they end with it. Whoever was that part before is
        fenced. Returns when the part may begin, a LoadPart or JobPart. timeout: seconds. Raises ServerUnavailable,
        AccessDenied, InvalidInput, TableNotFound, JobNotFound.
        """
        kind, name = named(load, job)
        whole = type(of) is int and type(index) is int
        if not whole or not 0 <= index < of <= MOST_PARTS:
            raise InvalidInput(f"index and of are whole numbers, 0 <= index < of <= {MOST_PARTS}")
        if isinstance(tables, str):
            raise InvalidInput(f"tables is a list of table names, not {tables!r}")
        given = PartName(kind, name, index)
        if kind == "job":
            part: Part = JobPart(self, given, of)
        else:
            part = LoadPart(self, given, of, tuple(tables), finish_tables=finish_tables)
        with self.changed:
            if part.name in self._parts and not self._parts[part.name].over:
                raise InvalidInput(f"this worker is part {index} of {part.name.name!r} already")
            self._parts[part.name] = part
        try:
            part.begin(Deadline.after(timeout))
        except BaseException:
            with self.changed:
                self._parts.pop(part.name, None)
            raise
        return part

    def checkpoint(self, load: str | None = None, *, job: str | None = None, timeout: float = ATTACH_S) -> None:
        """Have the coordinator take a checkpoint of a load or job as soon as it can, whoever its parts are.

        Raises JobNotFound when it does not run there, ServerUnavailable, AccessDenied, InvalidInput.
        """
        self._ask("checkpoint", load, job, False, timeout)

    def stop(
        self, load: str | None = None, *, job: str | None = None, drain: bool = False, timeout: float = ATTACH_S
    ) -> None:
        """Have the coordinator end a load or job, whoever its parts are; returns once that is on its way.

        Without drain its parts raise Cancelled, and what is not committed is dropped. With drain they are told to end
        their data (`poll` returns False), and the commit of that is the last. Raises what `checkpoint` raises.
        """
        self._ask("stop", load, job, drain, timeout)

    @property
    def connected(self) -> bool:
        """Return True if the coordinator has welcomed this worker on the line that is open now."""
        with self.changed:
            return self._line is not None and self._run is not None

    def close(self, reason: str = "it was closed") -> None:
        """Give up all parts that have not finished, and the line; a second call does nothing."""
        with self.changed:
            if self._closed.is_set():
                return
            for part in self._parts.values():
                part.give_up(reason)
            self._closed.set()
            self.changed.notify_all()
        self._sending.join(self._timeout_s)
        with self.changed:
            line = self._line
        if line is not None:
            line.finish(PARTING_S)
            line.close()
        self._reading.join(self._timeout_s)

    def _ask(self, action: str, load: str | None, job: str | None, drain: bool, timeout: float) -> None:
        kind, name = named(load, job)
        client: Any = connect(self.location, self._roots)
        with closing(client):
            body = wire.encode_request(kind, name, drain=drain)
            run_action(client, self.location, action, body, token=self._token, timeout_s=timeout)

    # ---- for parts, under `changed` ------------------------------------------------------------------------------

    def send(self, message: wire.Message) -> None:
        """Queue a message; without a line it is let go, for the part repeats itself when there is one again."""
        if self._line is not None and self._run is not None:
            self._out.append(message)
            self.changed.notify_all()

    def wait(self, until: Callable[[], object], deadline: Deadline | None, what: str) -> None:
        """Wait for something that a message brings. Raises ServerUnavailable after the deadline."""
        while not until():
            if self._closed.is_set():
                raise ServerUnavailable("this worker was closed; make another")
            if isinstance(self._trouble, AccessDenied):
                raise self._trouble
            if deadline is not None and deadline.passed:
                raise ServerUnavailable(f"{self.location} did not answer in time: {what}") from self._trouble
            self.changed.wait(None if deadline is None else deadline.left_s)

    # ---- threads -------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        failures = 0
        while not self._closed.is_set():
            try:
                line = ClientLine(self.location, CONTROL, token=self._token, tls_roots=self._roots)
            except EpochlogError as error:
                self._in_trouble(error)
            else:
                if self._serve(line):
                    failures = 0
            failures += 1
            self._closed.wait(BACKOFF.delay_s(failures))

    def _serve(self, line: ClientLine) -> bool:
        """Read the line until it ends; whether the coordinator had welcomed this worker on it."""
        with self.changed:
            closed = self._closed.is_set()  # while the line was opened: `close` has not seen it
            if not closed:
                self._line, self._run_before, self._run = line, self._run, None
                self._heard_s = monotonic_s()
                self._out.clear()
        if closed:
            line.close()
            return False
        welcomed = False
        try:
            line.send(wire.encode([wire.Hello(wire.VERSION, self._name)]))
            while (frame := line.read()) is not None:
                messages = wire.decode(frame)
                with self.changed:
                    self._heard_s = monotonic_s()
                    for message in messages:
                        welcomed = self._take(message) or welcomed
                    self.changed.notify_all()
        except BadMessage as error:
            _log.warning("the coordinator at %s: %s", self.location, error)
        finally:
            with self.changed:
                self._line = None
                self._run = self._run or self._run_before
            if line.reason is not None:
                self._in_trouble(line.reason)
            line.close()
        return welcomed

    def _take(self, message: wire.Message) -> bool:
        if isinstance(message, wire.Welcome):
            self._heartbeat_s, self._timeout_s = message.heartbeat_ms / 1000, message.timeout_ms / 1000
            same = self._run_before in (None, message.run)
            self._run, self._trouble = message.run, None
            for part in self._parts.values():
                part.come_back(same=same)
            return True
        if not isinstance(message, wire.Pong):
            part = self._parts.get(getattr(message, "part", None))  # pyright: ignore[reportArgumentType]
            if part is not None:
                part.take(message)
        return False

    def _in_trouble(self, error: Exception) -> None:
        with self.changed:
            self._trouble = error if isinstance(error, EpochlogError) else EpochlogError(str(error))
            self.changed.notify_all()

    def _send(self) -> None:
        while True:
            with self.changed:
                if not self._out and not self._closed.is_set():
                    self.changed.wait(self._heartbeat_s)
                line, welcomed = self._line, self._run is not None
                silent_s = monotonic_s() - self._heard_s
                frame = [self._out.popleft() for _ in range(min(FRAME, len(self._out)))]
                if not frame and self._closed.is_set():
                    return
            if line is None:
                if self._closed.is_set():
                    return
                continue
            if silent_s > self._timeout_s:
                _log.warning("the coordinator at %s was silent for %.1f s", self.location, silent_s)
                line.abort()
            elif frame or welcomed:
                self._pings += 1
                line.send(wire.encode(frame or [wire.Ping(self._pings)]))


def named(load: str | None, job: str | None) -> tuple[wire.Kind, str]:
    """Return the kind and name of the load or job; raise InvalidInput for both or none, InvalidName for a bad name."""
    if (load is None) == (job is None):
        raise InvalidInput("give the name of a load, or job=, and not both")
    return ("job", check_name("job", job)) if load is None else ("load", check_name("load", load))
