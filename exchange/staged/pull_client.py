"""Consumer's side of the staged exchange: the batches of its incarnation, in stage order, over successive streams.

A thread reads the stream, compares checksums and passes each batch through a stage gate of its own: the gate drops
repeats and keeps the stage order independently of the server. After a stream has ended, the next one begins at the
gate's cursor. At most a window of bytes waits here for the consumer.
"""

from __future__ import annotations

import uuid
import zlib
from collections import deque
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from epochlog.errors import BadMessage, Corrupt, EpochlogError, Fenced, InvalidInput
from epochlog.exchange.stage_gate import StageGate
from epochlog.exchange.transport.duplex import ClientStream, Frame
from epochlog.exchange.transport.reconnecting_stream import ReconnectingStream
from epochlog.store.env.clock import Deadline
from epochlog.store.env.closeable import PollIterator
from epochlog.store.env.os_refusals import undecodable

from . import messages
from .batch_file import decode_batch
from .push_client import BACKOFF, RETRIED, SILENT_S

if TYPE_CHECKING:
    from .state import Cursor

WINDOW = 64 << 20
"""Bytes that wait in a reader for its consumer."""
Delivery = tuple[str, int, pa.RecordBatch]


class StageReader(PollIterator[Delivery]):
    """Iterator of (channel, sequence, RecordBatch). It returns each batch once, and all batches of a lower stage before
    any of a higher one. It waits for the next batch, and ends after the last channel's end.

    Call `ack` when the consumer's durable state covers all returned batches. Close it, or use it in a `with` block;
    another thread may call `close`, which ends the iteration. One thread iterates.
    """

    def __init__(
        self,
        open_stream: Callable[[], ClientStream],
        acknowledge: Callable[[Cursor], None],
        hello: Mapping[str, Any],
        patience_s: float,
    ) -> None:
        self._open_stream = open_stream
        self._acknowledge = acknowledge
        self._hello = {**hello, "mail": uuid.uuid4().hex}
        self._stream_count = 0
        self._patience_s = patience_s
        self._link = ReconnectingStream(
            "epochlog-stage-reader", BACKOFF, self._connect, self._handle_frame, self._handle_loss
        )
        self._changed = self._link.changed
        self._gate: StageGate | None = None
        self._ready: deque[tuple[str, int, pa.RecordBatch, int]] = deque()
        self._ready_bytes = 0
        self._unsent_credit = 0  # bytes that the consumer has taken and the server does not know of
        self._delivered: dict[str, int] = {}  # channel -> the next sequence
        self._retry_until = Deadline.after(patience_s)
        self._error: EpochlogError | None = None
        self._link.start()

    def begin(self) -> None:
        """Wait until the server has accepted this incarnation. Raises the server's refusal, or ServerUnavailable."""
        with self._changed:
            while self._gate is None:
                self._check()
                self._changed.wait(0.2)

    # ---- for users -----------------------------------------------------------------------------------------------

    def poll(self, timeout: float | timedelta | None = 0) -> Delivery | None:
        """Return the next delivery; None after the timeout, or after the end of all channels.

        timeout: seconds or a timedelta; None waits without a limit. Raises Fenced after another incarnation has claimed
        the consumer, Corrupt for a damaged or missing file, QueryNotFound after the query was dropped,
        ServerUnavailable when the server is unreachable for longer than the client's timeout.
        """
        deadline = None if timeout is None else Deadline.after(timeout)
        with self._changed:
            while not self._ready:
                if self._link.closed or self.done:
                    return None
                self._check()
                if deadline is not None and deadline.passed:
                    return None
                self._changed.wait(1.0 if deadline is None else min(1.0, deadline.remaining_s))
            name, seq, batch, size = self._ready.popleft()
            self._ready_bytes -= size
            self._unsent_credit += size
            self._delivered[name] = seq + 1
            stream, credit = self._link.stream, self._unsent_credit
            if stream is None or (self._ready and credit < WINDOW // 8):
                return name, seq, batch
            self._unsent_credit = 0
        stream.send(messages.pack(bytes=credit))
        return name, seq, batch

    @property
    def done(self) -> bool:
        """Return True if all channels have ended and all of their batches were delivered."""
        return self._gate is not None and self._gate.done and not self._ready

    @property
    def cursor(self) -> dict[str, int]:
        """Return the next sequence of each channel: {channel: sequence}."""
        with self._changed:
            return dict(self._delivered)

    def ack(self, cursor: Cursor | None = None) -> None:
        """Acknowledge as processed all delivered batches, or all below `cursor` ({channel: next sequence}).

        Durable on return; batches that every consumer has acknowledged are deleted. The acknowledged cursor never goes
        back. Raises Fenced after another incarnation has claimed the consumer, InvalidInput beyond the delivered
        batches, ServerUnavailable.
        """
        with self._changed:
            if isinstance(self._error, Fenced):
                raise self._error
            delivered = dict(self._delivered)
        for name, seq in (cursor or {}).items():
            if seq > delivered.get(name, seq):
                raise InvalidInput(
                    f"channel {name!r}: cursor {seq} is beyond the delivered sequences, which are below "
                    f"{delivered[name]}; acknowledge only batches that were delivered"
                )
        self._acknowledge(delivered if cursor is None else cursor)

    def close(self) -> None:
        """End the iteration; a second call does nothing."""
        self._link.close()

    def __repr__(self) -> str:
        consumer, incarnation = self._hello["consumer"], self._hello["incarnation"]
        return f"<epochlog StageReader of {consumer!r}, incarnation {incarnation}: {self._gate}>"

    # ---- the stream ----------------------------------------------------------------------------------------------

    def _check(self) -> None:
        """Raise the error that has ended the reader, and abort a silent stream; the caller holds the lock."""
        if self._error is not None:
            raise self._error
        self._link.abort_if_silent(SILENT_S)

    def _connect(self) -> ClientStream:
        stream = self._open_stream()
        with self._changed:
            cursor = self._hello["cursor"] if self._gate is None else self._gate.cursor
            self._unsent_credit = 0
            self._stream_count += 1
            state = {"cursor": cursor, "window": max(0, WINDOW - self._ready_bytes), "line": self._stream_count}
        stream.send(messages.pack(**{**self._hello, **state}))
        return stream

    def _handle_loss(self, reason: EpochlogError) -> bool:
        """Return True if the reader needs no other stream: it has all batches, or the error is final."""
        if self._gate is not None and self._gate.done:
            return True
        retried = type(reason) is EpochlogError or type(reason).__name__ in RETRIED
        if not retried or self._retry_until.passed:
            self._error = reason
        return self._error is not None

    def _handle_frame(self, stream: ClientStream, frame: Frame) -> bool:
        """Handle one message; return True for the message by which the server accepts this incarnation."""
        message = messages.decode_reader_message(frame.message or b"")
        kind, batch, size = message["kind"], None, 0
        if kind == "damaged":
            raise Corrupt(message["path"], message["what"])
        if kind == "refused":
            raise messages.error_from_fields(message["error"], message["text"])
        if kind == "item":
            data = messages.file_from_rows(frame.rows)
            batch, size = _decode_checked(data, message), data.size
        with self._changed:
            if kind != "started":
                self._retry_until = Deadline.after(self._patience_s)
            if kind == "started" and self._gate is None:
                self._gate = StageGate(message["stages"], message["cursor"])
                self._delivered = dict(message["cursor"])
            gate = self._gate
            if gate is None:
                raise BadMessage("the server sends a message before the first one, `started`")
            if kind == "ended":
                gate.end(message["channel"], message["last"])
            elif batch is not None:
                gate.offer(message["channel"], message["seq"], (batch, size), digest=message["crc32"])
            for name, seq, (released, length) in gate.take():
                self._ready.append((name, seq, released, length))
                self._ready_bytes += length
            self._changed.notify_all()
        if gate.done:
            stream.abort()
        return kind == "started"


def _decode_checked(data: pa.Buffer, message: messages.Fields) -> pa.RecordBatch:
    """Compare the file's checksum with its message, and decode its batch. Raises Corrupt."""
    checksum = zlib.crc32(data)
    if checksum != message["crc32"]:
        raise Corrupt(message["path"], f"its checksum is {checksum:08x}, not {message['crc32']:08x}")
    try:
        return decode_batch(data, aligned=True)
    except (pa.ArrowException, OSError, MemoryError, ValueError) as error:
        raise undecodable(message["path"], error) from None
