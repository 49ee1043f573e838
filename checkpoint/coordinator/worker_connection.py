"""One worker's line at its coordinator: messages are queued for it and sent by a thread of its own, so that a worker
that does not read keeps nobody waiting.
"""

from __future__ import annotations

import threading
from collections import deque

from epochlog.checkpoint.control_messages import MAX_FRAME, VERSION, Hello, Message, decode, encode
from epochlog.errors import BadMessage
from epochlog.exchange.transport.duplex import DuplexStream
from epochlog.store.env.clock import monotonic_s

MOST_WAITING = 16 << 20
"""Bytes of messages that may wait for a worker, as they lie in memory; one that leaves more unread is cut off."""
FRAME = 256
"""Messages of a frame at most: reports may be large."""
assert FRAME <= MAX_FRAME
_OWN_BYTES = 512


class WorkerConnection:
    """Sends messages in order, several in a frame when they have gathered. Safe for several threads."""

    def __init__(self, line: DuplexStream, worker: str) -> None:
        self.worker = worker
        self.heard_s = monotonic_s()
        self._line = line
        self._waiting: deque[Message] = deque()
        self._bytes = 0
        self._more = threading.Condition()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name=f"epochlog-to-{worker[-8:]}", daemon=True)
        self._thread.start()

    @property
    def peer(self) -> str:
        return self._line.peer

    def send(self, message: Message) -> None:
        """Queue a message; it is lost when the line ends first. A worker that leaves too many unread is cut off, also
        while the thread that sends is held up by it.
        """
        with self._more:
            if self._ended:
                return
            self._waiting.append(message)
            self._bytes += weight(message)
            if self._bytes > MOST_WAITING:
                self._ended = True
                self._waiting.clear()
                threading.Thread(target=self._line.abort, name="epochlog-cut", daemon=True).start()
            self._more.notify()

    def heard(self) -> None:
        self.heard_s = monotonic_s()

    def silent_s(self) -> float:
        """Return the seconds since the worker was heard."""
        return monotonic_s() - self.heard_s

    def end(self) -> None:
        """Send nothing more and cut the line."""
        with self._more:
            self._ended = True
            self._more.notify()
        self._line.abort()

    def join(self, timeout_s: float) -> None:
        """Wait until nothing is being sent any more."""
        with self._more:
            self._ended = True
            self._more.notify()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            with self._more:
                self._more.wait_for(lambda: self._ended or self._waiting)
                if self._ended:
                    return
                frame = [self._waiting.popleft() for _ in range(min(FRAME, len(self._waiting)))]
                self._bytes -= sum(map(weight, frame))
            if not self._line.send(encode(frame)):
                break
        self._line.abort()


def weight(message: Message) -> int:
    """Estimate the bytes of memory that a message takes."""
    given = (getattr(message, name) for name in message.__slots__)
    return _OWN_BYTES + sum(len(value) for value in given if isinstance(value, str | bytes))


def greeted(line: DuplexStream) -> WorkerConnection | None:
    """Return the session of a worker that has said Hello; None when it has left again. Raises BadMessage."""
    first = line.read_first()
    if first is None:
        return None
    hello = next(iter(decode(first)), None)
    if not isinstance(hello, Hello) or hello.version != VERSION:
        raise BadMessage(f"a worker begins with Hello of version {VERSION}; use one version everywhere")
    return WorkerConnection(line, hello.worker)
