"""Producer's side of one channel: sends batches to the server, and sends them again until each has its answer.

One thread sends; another reads answers and reopens the stream after it was lost. Unanswered batches are then sent
again, in order. The server recognizes a repeated batch, so a lost answer does not duplicate it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from epochlog.errors import EpochlogError, ServerUnavailable
from epochlog.exchange.transport.duplex import ClientStream, Frame
from epochlog.exchange.transport.reconnecting_stream import ReconnectingStream
from epochlog.store.env.backoff import Backoff
from epochlog.store.env.clock import Deadline, monotonic_s

from . import messages

WINDOW = 48 << 20
"""Unanswered bytes above which a push waits for answers."""
SILENT_S = 10.0
"""Seconds without a message of the server after which its stream is aborted, while answers are due."""
BACKOFF = Backoff(first_s=0.02, limit_s=1.0)
"""Delays before a stream is reopened, or a call is repeated."""
RESEND_S = 0.1
"""Delay before a push is sent again after a temporary error."""
RETRIED = ("CatalogUnavailable", "OutcomeUnknown", "StoreClosed", "ServerUnavailable", "SegmentUnknown", "ReadFailed")
"""Errors after which a call is repeated."""


@dataclass(slots=True)
class Sent:
    """Batch without an answer."""

    message: bytes
    rows: pa.RecordBatch
    deadline: Deadline
    awaited: bool
    """True if the caller of the push waits for the answer."""
    done: bool = False
    error: EpochlogError | None = None
    """Server's refusal."""


class Pusher:
    """Sender of the pushes of one channel. Any number of threads may push; batches are sent in order of the calls."""

    def __init__(self, open_stream: Callable[[], ClientStream], query: str, location: str) -> None:
        self._open_stream = open_stream
        self._query = query
        self._location = location
        self._link = ReconnectingStream(
            "epochlog-push-reads", BACKOFF, self._connect, self._handle_answer, self._handle_error,
            wanted=lambda: bool(self._unanswered),
        )  # fmt: skip
        self._changed = self._link.changed
        self._unanswered: dict[int, Sent] = {}  # by number, in order
        self._unanswered_bytes = 0
        self._last_number = 0
        self._to_send: deque[int] = deque()  # numbers, in the order of sending on this stream
        self._to_resend: deque[tuple[float, int]] = deque()  # (time, number)
        self._last_error: EpochlogError | None = None
        self._unreported: EpochlogError | None = None  # refusal of a push whose caller did not wait
        self._sending = threading.Thread(target=self._send_all, name="epochlog-push-sends", daemon=True)
        self._link.start()
        self._sending.start()

    def push(self, message: Callable[[int], bytes], rows: pa.RecordBatch, deadline: Deadline, *, wait: bool) -> None:
        """Send a batch's file with its message, which `message` builds for a number. Raises the server's refusal, or
        ServerUnavailable.
        """
        with self._changed:
            self._raise_unreported()
            self._wait(lambda: not self._unanswered or self._unanswered_bytes + rows.num_rows <= WINDOW, deadline)
            self._last_number += 1
            number = self._last_number
            sent = Sent(message(number), rows, deadline, wait)
            self._unanswered[number] = sent
            self._to_send.append(number)
            self._unanswered_bytes += rows.num_rows
            self._changed.notify_all()
            if not wait:
                return
            try:
                self._wait(lambda: sent.done, deadline)
            finally:
                self._remove(number)
            if sent.error is not None:
                raise sent.error

    def flush(self, deadline: Deadline) -> None:
        """Wait until every batch has its answer. Raises the first refusal."""
        with self._changed:
            self._wait(lambda: not self._unanswered, deadline)
            self._raise_unreported()

    def close(self) -> None:
        """Close the stream and give up the unanswered batches."""
        self._link.close()
        self._sending.join()

    # ---- under the lock ------------------------------------------------------------------------------------------

    def _wait(self, until: Callable[[], bool], deadline: Deadline) -> None:
        while not until():
            if self._link.closed:
                raise ServerUnavailable("this client is closed; open another one")
            if deadline.passed:
                raise self._last_error or ServerUnavailable(
                    f"{self._location} did not answer in time; the batch may have been stored, and may be pushed again"
                )
            self._link.abort_if_silent(SILENT_S)
            self._changed.wait(min(deadline.remaining_s, 1.0))

    def _raise_unreported(self) -> None:
        error, self._unreported = self._unreported, None
        if error is not None:
            raise error

    def _refuse(self, sent: Sent, error: EpochlogError) -> None:
        """Record a refusal. The push raises it if its caller waits; otherwise the next push or flush raises it."""
        sent.error = error
        if not sent.awaited:
            self._unreported = self._unreported or error

    def _remove(self, number: int) -> Sent | None:
        sent = self._unanswered.pop(number, None)
        if sent is not None:
            self._unanswered_bytes -= sent.rows.num_rows
            self._changed.notify_all()
        return sent

    def _next_to_send(self) -> Sent | None:
        """Return the next batch to send, and leave it in the queue; None if there is none."""
        while self._to_resend and self._to_resend[0][0] <= monotonic_s():
            self._to_send.append(self._to_resend.popleft()[1])
        while self._link.stream is not None and self._to_send:
            sent = self._unanswered.get(self._to_send[0])
            if sent is not None:
                return sent
            self._to_send.popleft()  # answered or given up
        return None

    # ---- threads -------------------------------------------------------------------------------------------------

    def _send_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._link.closed or self._next_to_send() is not None, 0.2)
                sent, stream = self._next_to_send(), self._link.stream
                if self._link.closed:
                    return
                if sent is None or stream is None:
                    continue
                self._to_send.popleft()
            stream.send_rows(sent.rows, sent.message)

    def _connect(self) -> ClientStream:
        stream = self._open_stream()
        stream.begin(messages.FILE_SCHEMA)
        stream.send(messages.pack(query=self._query))
        with self._changed:
            self._to_send, self._to_resend = deque(self._unanswered), deque()
        return stream

    def _handle_answer(self, _: ClientStream, frame: Frame) -> bool:
        answer = messages.unpack(frame.without_rows(), messages.ANSWER)
        with self._changed:
            self._last_error = None
            sent = self._unanswered.get(answer["id"])
            if sent is None:
                return True
            if not answer["final"]:
                self._last_error = messages.error_from_fields(answer["error"] or "", answer["text"] or "")
                return True
            if answer["error"] in RETRIED and not sent.deadline.passed:
                self._to_resend.append((monotonic_s() + RESEND_S, answer["id"]))
                self._last_error = messages.error_from_fields(answer["error"], answer["text"] or "")
                return True
            self._remove(answer["id"])
            sent.done = True
            if answer["error"] is not None:
                self._refuse(sent, messages.error_from_fields(answer["error"], answer["text"] or ""))
            self._changed.notify_all()
        return True

    def _handle_error(self, error: EpochlogError) -> bool:
        """Record a stream's error. A final error refuses every unanswered batch. After a temporary error the stream is
        reopened, and only batches past their deadlines are refused.
        """
        self._last_error = error
        for number, sent in list(self._unanswered.items()):
            if type(error).__name__ not in RETRIED and type(error) is not EpochlogError:
                self._refuse(sent, error)
            elif sent.deadline.passed:
                self._refuse(sent, ServerUnavailable(f"{self._location} did not answer in time"))
            else:
                continue
            self._remove(number)
            sent.done = True
        return False
