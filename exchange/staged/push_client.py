"""Producer's side of one channel: batches on their way to the server, sent again until each has its answer.

Two threads keep the line: one sends, one reads answers and opens the line again when it was cut. Batches without an
answer are sent again then, in order; the server recognizes those that it has. So an answer that is lost doubles
nothing.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from epochlog.errors import BadMessage, EpochlogError, ServerUnavailable
from epochlog.exchange.transport.duplex import ClientLine
from epochlog.store.env.backoff import Backoff
from epochlog.store.env.clock import Deadline, monotonic_s

from . import messages

WINDOW = 48 << 20
"""Bytes on their way: then a push waits for answers."""
SILENT_S = 10.0
"""After so long without a word of the server, while it owes one, its line is given up."""
BACKOFF = Backoff(first_s=0.02, limit_s=1.0)
"""Delays before a line is opened, or a call is made, again."""
AGAIN_S = 0.1
RETRIED = ("CatalogUnavailable", "OutcomeUnknown", "StoreClosed", "ServerUnavailable", "SegmentUnknown", "ReadFailed")
"""Answers after which the same may be asked again."""


@dataclass(slots=True)
class Sent:
    """Batch on its way. awaited: the caller of its push waits for it. error: the server's refusal."""

    message: bytes
    rows: pa.RecordBatch
    deadline: Deadline
    awaited: bool
    done: bool = False
    error: EpochlogError | None = None


class Pusher:
    """Sender of the pushes of one channel. Any number of threads may push; batches are sent in the order of the
    calls.
    """

    def __init__(self, open_line: Callable[[], ClientLine], query: str, location: str) -> None:
        self._open_line = open_line
        self._query = query
        self._location = location
        self._changed = threading.Condition()
        self._waiting: dict[int, Sent] = {}  # by number, in order
        self._bytes = 0
        self._numbers = 0
        self._line: ClientLine | None = None
        self._queue: deque[int] = deque()  # numbers, in the order in which they are sent on this line
        self._later: deque[tuple[float, int]] = deque()  # when they are to be sent again
        self._heard_s = 0.0
        self._trouble: EpochlogError | None = None
        self._failed: EpochlogError | None = None  # of a push that nobody waits for
        self._closed = False
        self._threads = [
            threading.Thread(target=self._read_all, name="epochlog-push-reads", daemon=True),
            threading.Thread(target=self._send_all, name="epochlog-push-sends", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def push(self, message: Callable[[int], bytes], rows: pa.RecordBatch, deadline: Deadline, *, wait: bool) -> None:
        """Send a batch's file, with the message that `message` makes for its number. Raises the server's refusal, or
        ServerUnavailable.
        """
        with self._changed:
            self._raise_failed()
            self._wait(lambda: not self._waiting or self._bytes + rows.num_rows <= WINDOW, deadline)
            self._numbers += 1
            number = self._numbers
            sent = Sent(message(number), rows, deadline, wait)
            self._waiting[number] = sent
            self._queue.append(number)
            self._bytes += rows.num_rows
            self._changed.notify_all()
            if not wait:
                return
            try:
                self._wait(lambda: sent.done, deadline)
            finally:
                self._forget(number)
            if sent.error is not None:
                raise sent.error

    def flush(self, deadline: Deadline) -> None:
        """Wait until every batch has its answer. Raises the first refusal."""
        with self._changed:
            self._wait(lambda: not self._waiting, deadline)
            self._raise_failed()

    def close(self) -> None:
        """Close the line and give up the batches that have no answer."""
        with self._changed:
            self._closed = True
            line = self._line
            self._changed.notify_all()
        if line is not None:
            line.abort()
        for thread in self._threads:
            thread.join()

    # ---- under the lock ------------------------------------------------------------------------------------------

    def _wait(self, until: Callable[[], bool], deadline: Deadline) -> None:
        while not until():
            if self._closed:
                raise ServerUnavailable("this client was closed; make another")
            if deadline.passed:
                raise self._trouble or ServerUnavailable(
                    f"{self._location} did not answer in time; the batch may have been kept, and may be pushed again"
                )
            if self._line is not None and monotonic_s() - self._heard_s > SILENT_S:
                self._line.abort()
            self._changed.wait(min(deadline.left_s, 1.0))

    def _raise_failed(self) -> None:
        error, self._failed = self._failed, None
        if error is not None:
            raise error

    def _refuse(self, sent: Sent, error: EpochlogError) -> None:
        """Record a refusal. The caller that waits for the push raises it; if none waits, the next push or flush
        does.
        """
        sent.error = error
        if not sent.awaited:
            self._failed = self._failed or error

    def _forget(self, number: int) -> Sent | None:
        sent = self._waiting.pop(number, None)
        if sent is not None:
            self._bytes -= sent.rows.num_rows
            self._changed.notify_all()
        return sent

    def _unsent(self) -> Sent | None:
        """Return the next batch for the line, still in its queue."""
        while self._later and self._later[0][0] <= monotonic_s():
            self._queue.append(self._later.popleft()[1])
        while self._line is not None and self._queue:
            sent = self._waiting.get(self._queue[0])
            if sent is not None:
                return sent
            self._queue.popleft()  # nobody waits for it any more
        return None

    # ---- threads -------------------------------------------------------------------------------------------------

    def _send_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._unsent() is not None, 0.2)
                sent, line = self._unsent(), self._line
                if self._closed:
                    return
                if sent is None or line is None:
                    continue
                self._queue.popleft()
            line.send_rows(sent.rows, sent.message)

    def _read_all(self) -> None:
        failures = 0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._waiting)
                if self._closed:
                    return
            try:
                line = self._open_line()
            except EpochlogError as error:
                self._in_trouble(error)
            else:
                if self._keep(line):
                    failures = 0
            failures += 1
            with self._changed:
                self._changed.wait_for(lambda: self._closed, BACKOFF.delay_s(failures))

    def _keep(self, line: ClientLine) -> bool:
        """Read answers until the line ends; return True if there was any."""
        heard = False
        line.begin(messages.FILE_SCHEMA)
        line.send(messages.pack(query=self._query))
        with self._changed:
            self._line, self._heard_s = line, monotonic_s()
            self._queue, self._later = deque(self._waiting), deque()
            if self._closed:
                line.abort()
            self._changed.notify_all()
        try:
            while (message := line.read()) is not None:
                self._take(messages.unpack(message, messages.ANSWER))
                heard = True
        except BadMessage as error:
            line.reason = error
        with self._changed:
            self._line = None
        if isinstance(line.reason, EpochlogError):
            self._in_trouble(line.reason)
        line.close()
        return heard

    def _take(self, answer: messages.Fields) -> None:
        with self._changed:
            self._heard_s = monotonic_s()
            self._trouble = None
            sent = self._waiting.get(answer["id"])
            if sent is None:
                return
            if not answer["final"]:
                self._trouble = messages.error_from_fields(answer["error"] or "", answer["text"] or "")
                return
            if answer["error"] in RETRIED and not sent.deadline.passed:
                self._later.append((monotonic_s() + AGAIN_S, answer["id"]))
                self._trouble = messages.error_from_fields(answer["error"], answer["text"] or "")
                return
            self._forget(answer["id"])
            sent.done = True
            if answer["error"] is not None:
                self._refuse(sent, messages.error_from_fields(answer["error"], answer["text"] or ""))
            self._changed.notify_all()

    def _in_trouble(self, error: EpochlogError) -> None:
        """Record a line's error. A final one ends every waiting batch; after another one the line is opened again, and
        only batches past their deadlines are refused.
        """
        with self._changed:
            self._trouble = error
            for number, sent in list(self._waiting.items()):
                if type(error).__name__ not in RETRIED and type(error) is not EpochlogError:
                    self._refuse(sent, error)
                elif sent.deadline.passed:
                    self._refuse(sent, ServerUnavailable(f"{self._location} did not answer in time"))
                else:
                    continue
                self._forget(number)
                sent.done = True
            self._changed.notify_all()
