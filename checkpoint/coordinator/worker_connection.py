"""Connection of a coordinator to one worker: a queue of messages, and a thread that sends them.

A worker that does not read blocks only that thread.
"""

from __future__ import annotations

import threading
from collections import deque

from epochlog.checkpoint.control_messages import FIELD_NAMES, MAX_FRAME, VERSION, Hello, Message, decode, encode
from epochlog.errors import BadMessage
from epochlog.exchange.transport.duplex import DuplexStream
from epochlog.store.env.clock import monotonic_s

MOST_WAITING = 16 << 20
"""Most bytes of memory that the messages queued for a worker may take; above it the worker is disconnected."""
FRAME = 256
"""Most messages that are sent in one frame."""
assert FRAME <= MAX_FRAME
_MESSAGE_BYTES = 512


class WorkerConnection:
    """Connection that sends queued messages in order, several in a frame. Safe for several threads."""

    def __init__(self, stream: DuplexStream, worker: str) -> None:
        self.worker = worker
        self.heard_s = monotonic_s()
        self._sending_s: float | None = None
        """Time at which the running send began; None while none runs."""
        self._stream = stream
        self._queue: deque[Message] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name=f"epochlog-to-{worker[-8:]}", daemon=True)
        self._thread.start()

    @property
    def peer(self) -> str:
        return self._stream.peer

    def send(self, message: Message) -> None:
        """Queue a message; it is lost if the connection ends first.

        Disconnect a worker that leaves too many messages unread, even while the sending thread is blocked.
        """
        with self._changed:
            if self._ended:
                return
            self._queue.append(message)
            self._bytes += memory_bytes(message)
            if self._bytes > MOST_WAITING:
                self._ended = True
                self._queue.clear()
                threading.Thread(target=self._stream.abort, name="epochlog-cut", daemon=True).start()
            self._changed.notify()

    def heard(self) -> None:
        self.heard_s = monotonic_s()

    def silent_s(self) -> float:
        """Return the seconds since the worker's last message, or those that the running send has taken, if these are
        more: a connection whose one direction stands still is of no use, though the worker is heard.
        """
        sending_s = self._sending_s
        return monotonic_s() - (self.heard_s if sending_s is None else min(self.heard_s, sending_s))

    def end(self) -> None:
        """Stop sending and abort the connection."""
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._stream.abort()

    def join(self, timeout_s: float) -> None:
        """Stop sending, and wait until the sending thread has ended."""
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ended or self._queue)
                if self._ended:
                    return
                frame = [self._queue.popleft() for _ in range(min(FRAME, len(self._queue)))]
                self._bytes -= sum(map(memory_bytes, frame))
            self._sending_s = monotonic_s()
            if not self._stream.send(encode(frame)):
                break
            self._sending_s = None
        self._stream.abort()


def memory_bytes(message: Message) -> int:
    """Estimate the bytes of memory that a message takes."""
    values = (getattr(message, name) for name in FIELD_NAMES[type(message)])
    return _MESSAGE_BYTES + sum(len(value) for value in values if isinstance(value, str | bytes))


def accept_worker(stream: DuplexStream) -> WorkerConnection | None:
    """Read the worker's Hello and return its connection; None if the worker has left. Raises BadMessage."""
    first_frame = stream.read_first()
    if first_frame is None:
        return None
    hello = next(iter(decode(first_frame)), None)
    if not isinstance(hello, Hello) or hello.version != VERSION:
        raise BadMessage(f"a worker begins with Hello of version {VERSION}; use one version everywhere")
    return WorkerConnection(stream, hello.worker)
