"""Consumer's side of the staged exchange: the items of its incarnation, in stage order, over as many lines as it takes.

A thread reads the line, compares checksums and puts what comes through a gate of its own: repeats are dropped, and
nothing comes out before its turn, whatever the server says. The line is opened again where the gate stands. At most a
window of bytes waits here to be taken.
"""

from __future__ import annotations

import threading
import uuid
import zlib
from collections import deque
from collections.abc import Callable, Mapping
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from epochlog.errors import BadMessage, Corrupt, EpochlogError, Fenced, InvalidInput, ServerUnavailable
from epochlog.exchange.stage_gate import StageGate
from epochlog.exchange.transport.duplex import ClientLine, Frame
from epochlog.store.env.clock import Deadline, monotonic_s
from epochlog.store.env.os_refusals import undecodable

from . import messages
from .batch_file import decode_batch
from .push_client import BACKOFF, RETRIED, SILENT_S

if TYPE_CHECKING:
    from .state import Cursor

WINDOW = 64 << 20
"""Bytes that wait at a consumer to be taken."""
Delivery = tuple[str, int, pa.RecordBatch]


class StageReader:
    """Iterator of (channel, sequence, RecordBatch): all of a lower stage before anything of a higher one, each once. It
    waits while no batch has come, and ends after the last channel's end.

    Call `ack` once all that was given out is covered by the consumer's durable state. Close it, or use it in a `with`
    block; `close` may come from another thread, and ends the iteration. One thread iterates.
    """

    def __init__(
        self,
        open_line: Callable[[], ClientLine],
        acknowledge: Callable[[Cursor], None],
        hello: Mapping[str, Any],
        patience_s: float,
    ) -> None:
        self._open_line = open_line
        self._acknowledge = acknowledge
        self._hello = {**hello, "mail": uuid.uuid4().hex}
        self._lines = 0
        self._patience_s = patience_s
        self._changed = threading.Condition()
        self._gate: StageGate | None = None
        self._ready: deque[tuple[str, int, pa.RecordBatch, int]] = deque()
        self._here = 0  # bytes that wait to be taken
        self._owed = 0  # bytes that were taken, and the server does not know
        self._given: dict[str, int] = {}
        self._line: ClientLine | None = None
        self._heard_s = monotonic_s()
        self._down = Deadline.after(patience_s)
        self._error: EpochlogError | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="epochlog-mail", daemon=True)
        self._thread.start()

    def begin(self) -> None:
        """Wait until the server has accepted this incarnation. Raises the server's refusal, or ServerUnavailable."""
        with self._changed:
            while self._gate is None:
                self._look()
                self._changed.wait(0.2)

    # ---- for users -----------------------------------------------------------------------------------------------

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Delivery:
        found = self.poll(None)
        if found is None:
            raise StopIteration
        return found

    def poll(self, timeout: float | timedelta | None = 0) -> Delivery | None:
        """Return the next delivery; None when none has come in time, or there will be none.

        timeout: seconds or a timedelta; None waits for as long as producers take. Raises Fenced once another
        incarnation has come, Corrupt for a damaged or missing file, QueryNotFound once the query was dropped,
        ServerUnavailable when the server is away for longer than the client's timeout.
        """
        deadline = None if timeout is None else Deadline.after(timeout)
        with self._changed:
            while not self._ready:
                if self._closed or self.done:
                    return None
                self._look()
                if deadline is not None and deadline.passed:
                    return None
                self._changed.wait(1.0 if deadline is None else min(1.0, deadline.left_s))
            name, seq, batch, size = self._ready.popleft()
            self._here -= size
            self._owed += size
            self._given[name] = seq + 1
            line, owed = self._line, self._owed
            if line is None or (self._ready and owed < WINDOW // 8):
                return name, seq, batch
            self._owed = 0
        line.send(messages.pack(bytes=owed))
        return name, seq, batch

    @property
    def done(self) -> bool:
        """Return True if all channels have ended and all of their batches were given out."""
        return self._gate is not None and self._gate.done and not self._ready

    @property
    def cursor(self) -> dict[str, int]:
        """Return the next sequence that will be given out of each channel."""
        with self._changed:
            return dict(self._given)

    def ack(self, cursor: Cursor | None = None) -> None:
        """Acknowledge that the consumer's durable state covers all batches given out so far, or all below `cursor`
        ({channel: next sequence}).

        Durable on return; batches that every consumer has acknowledged are deleted. The acknowledged cursor never goes
        back. Raises Fenced once another incarnation has come, InvalidInput beyond the batches given out,
        ServerUnavailable.
        """
        with self._changed:
            if isinstance(self._error, Fenced):
                raise self._error
            given = dict(self._given)
        for name, seq in (cursor or {}).items():
            if seq > given.get(name, seq):
                raise InvalidInput(
                    f"channel {name!r}: sequences below {given[name]} were given out here, so {seq} cannot be covered; "
                    "acknowledge what was given out, no more"
                )
        self._acknowledge(given if cursor is None else cursor)

    def close(self) -> None:
        """End the iteration; a second call does nothing."""
        with self._changed:
            self._closed = True
            line = self._line
            self._changed.notify_all()
        if line is not None:
            line.abort()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<epochlog mail of {self._hello['consumer']!r}, incarnation {self._hello['incarnation']}: {self._gate}>"

    # ---- the line ------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Raise the error that has ended the reader, and cut a silent line; the caller holds the lock."""
        if self._error is not None:
            raise self._error
        if self._line is not None and monotonic_s() - self._heard_s > SILENT_S:
            self._line.abort()

    def _run(self) -> None:
        failures = 0
        while not self._closed and not (self._gate is not None and self._gate.done):
            reason: Exception | None = None
            try:
                line = self._open_line()
                if self._keep(line):
                    failures = 0
                reason = line.reason
            except EpochlogError as error:
                reason = error
            failures += 1
            with self._changed:
                self._line = None
                if isinstance(reason, EpochlogError) and self._is_final(reason):
                    self._error = reason
                self._changed.notify_all()
                if self._error is not None:
                    return
                self._changed.wait_for(lambda: self._closed, BACKOFF.delay_s(failures))

    def _is_final(self, reason: EpochlogError) -> bool:
        again = type(reason) is EpochlogError or type(reason).__name__ in RETRIED
        return not again or self._down.passed

    def _keep(self, line: ClientLine) -> bool:
        """Read a line until it ends; return True if the server had accepted this incarnation on it."""
        with self._changed:
            cursor = self._hello["cursor"] if self._gate is None else self._gate.cursor
            self._owed, self._line, self._heard_s = 0, line, monotonic_s()
            self._lines += 1
            now = {"cursor": cursor, "window": max(0, WINDOW - self._here), "line": self._lines}
            line.send(messages.pack(**{**self._hello, **now}))
            if self._closed:
                line.abort()
        taken = False
        try:
            while (parcel := line.read_frame()) is not None:
                taken = self._take(parcel) or taken
                if self._gate is not None and self._gate.done:
                    break
        except EpochlogError as error:  # a message that is none, or damage
            line.reason = error
        finally:
            if line.reason is None:
                line.reason = ServerUnavailable(f"{line.peer} has ended the line; is `epochlog serve` running?")
            line.close()
        return taken

    def _take(self, parcel: Frame) -> bool:
        """Take in one message; return True if it says that the server has accepted this incarnation."""
        letter = messages.decode_reader_message(parcel.message or b"")
        kind, batch, size = letter["kind"], None, 0
        if kind == "damaged":
            raise Corrupt(letter["path"], letter["what"])
        if kind == "refused":
            raise messages.error_from_fields(letter["error"], letter["text"])
        if kind == "item":
            data = messages.file_from_rows(parcel.rows)
            batch, size = _checked(data, letter), data.size
        with self._changed:
            self._heard_s = monotonic_s()
            if kind != "started":
                self._down = Deadline.after(self._patience_s)
            if kind == "started" and self._gate is None:
                self._gate = StageGate(letter["stages"], letter["cursor"])
                self._given = dict(letter["cursor"])
            gate = self._gate
            if gate is None:
                raise BadMessage("the server sends before it has begun")
            if kind == "ended":
                gate.end(letter["channel"], letter["last"])
            elif batch is not None:
                gate.offer(letter["channel"], letter["seq"], (batch, size), digest=letter["crc32"])
            for name, seq, (found, length) in gate.take():
                self._ready.append((name, seq, found, length))
                self._here += length
            self._changed.notify_all()
        return kind == "started"


def _checked(data: pa.Buffer, letter: messages.Fields) -> pa.RecordBatch:
    found = zlib.crc32(data)
    if found != letter["crc32"]:
        raise Corrupt(letter["path"], f"its checksum is {found:08x}, not {letter['crc32']:08x}")
    try:
        return decode_batch(data, aligned=True)
    except (pa.ArrowException, OSError, MemoryError, ValueError) as error:
        raise undecodable(letter["path"], error) from None
