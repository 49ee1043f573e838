"""Producer's side of one channel: sends batches to the server, and sends them again until each has its answer.

One thread sends; another reads answers and reopens the stream after it was aborted. Unanswered batches are then sent
again, in order. The server recognizes a repeated batch, so a lost answer does not duplicate it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from epochlog.errors import BadMessage, EpochlogError, ServerUnavailable
from epochlog.exchange.transport.duplex import ClientStream
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
        self._changed = threading.Condition()
        self._unanswered: dict[int, Sent] = {}  # by number, in order
        self._unanswered_bytes = 0
        self._last_number = 0
        self._stream: ClientStream | None = None
        self._to_send: deque[int] = deque()  # numbers, in the order of sending on this stream
        self._to_resend: deque[tuple[float, int]] = deque()  # (time, number)
        self._received_s = 0.0  # time of the last message of the server
        self._last_error: EpochlogError | None = None
        self._unreported: EpochlogError | None = None  # refusal of a push whose caller did not wait
        self._closed = False
        self._threads = [
            threading.Thread(target=self._read_all, name="epochlog-push-reads", daemon=True),
            threading.Thread(target=self._send_all, name="epochlog-push-sends", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

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
        with self._changed:
            self._closed = True
            stream = self._stream
            self._changed.notify_all()
        if stream is not None:
            stream.abort()
        for thread in self._threads:
            thread.join()

    # ---- under the lock ------------------------------------------------------------------------------------------

    def _wait(self, until: Callable[[], bool], deadline: Deadline) -> None:
        while not until():
            if self._closed:
                raise ServerUnavailable("this client is closed; open another one")
            if deadline.passed:
                raise self._last_error or ServerUnavailable(
                    f"{self._location} did not answer in time; the batch may have been stored, and may be pushed again"
                )
            if self._stream is not None and monotonic_s() - self._received_s > SILENT_S:
                self._stream.abort()
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
        while self._stream is not None and self._to_send:
            sent = self._unanswered.get(self._to_send[0])
            if sent is not None:
                return sent
            self._to_send.popleft()  # answered or given up
        return None

    # ---- threads -------------------------------------------------------------------------------------------------

    def _send_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._next_to_send() is not None, 0.2)
                sent, stream = self._next_to_send(), self._stream
                if self._closed:
                    return
                if sent is None or stream is None:
                    continue
                self._to_send.popleft()
            stream.send_rows(sent.rows, sent.message)

    def _read_all(self) -> None:
        failures = 0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._unanswered)
                if self._closed:
                    return
            try:
                stream = self._open_stream()
            except EpochlogError as error:
                self._handle_error(error)
            else:
                if self._read_answers(stream):
                    failures = 0
            failures += 1
            with self._changed:
                self._changed.wait_for(lambda: self._closed, BACKOFF.delay_s(failures))

    def _read_answers(self, stream: ClientStream) -> bool:
        """Read answers until the stream ends; return True if there was an answer."""
        answered = False
        stream.begin(messages.FILE_SCHEMA)
        stream.send(messages.pack(query=self._query))
        with self._changed:
            self._stream, self._received_s = stream, monotonic_s()
            self._to_send, self._to_resend = deque(self._unanswered), deque()
            if self._closed:
                stream.abort()
            self._changed.notify_all()
        try:
            while (message := stream.read()) is not None:
                self._handle_answer(messages.unpack(message, messages.ANSWER))
                answered = True
        except BadMessage as error:
            stream.reason = error
        with self._changed:
            self._stream = None
        if isinstance(stream.reason, EpochlogError):
            self._handle_error(stream.reason)
        stream.close()
        return answered

    def _handle_answer(self, answer: messages.Fields) -> None:
        with self._changed:
            self._received_s = monotonic_s()
            self._last_error = None
            sent = self._unanswered.get(answer["id"])
            if sent is None:
                return
            if not answer["final"]:
                self._last_error = messages.error_from_fields(answer["error"] or "", answer["text"] or "")
                return
            if answer["error"] in RETRIED and not sent.deadline.passed:
                self._to_resend.append((monotonic_s() + RESEND_S, answer["id"]))
                self._last_error = messages.error_from_fields(answer["error"], answer["text"] or "")
                return
            self._remove(answer["id"])
            sent.done = True
            if answer["error"] is not None:
                self._refuse(sent, messages.error_from_fields(answer["error"], answer["text"] or ""))
            self._changed.notify_all()

    def _handle_error(self, error: EpochlogError) -> None:
        """Record a stream's error. A final error refuses every unanswered batch. After a temporary error the stream is
        reopened, and only batches past their deadlines are refused.
        """
        with self._changed:
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
            self._changed.notify_all()
