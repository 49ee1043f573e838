"""Watchdog of slow clients: it aborts the connection of a call that waits for its client for too long.

gRPC has no way to end a call that waits for its client.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from .services import Call

Clock = Callable[[], float]
"""Monotonic seconds."""


class WatchedCall:
    """Call that may wait for its client for `stall_s` seconds until the client has moved `least_bytes`, and so on."""

    def __init__(self, call: Call, clock: Clock, ends_s: float, stall_s: float, least_bytes: int) -> None:
        """Watch nothing yet. ends_s: the time at which the call must end."""
        self.call = call
        self.ends_s = ends_s
        self.waiting_since_s: float | None = None
        self._clock = clock
        self._stall_s, self._least_bytes = stall_s, least_bytes
        self._waited_s, self._moved_bytes = 0.0, 0  # since the client last completed least_bytes

    @property
    def stall_deadline_s(self) -> float:
        """Return the time until which the call may wait for its client; infinity if it does not wait."""
        since_s = self.waiting_since_s
        return float("inf") if since_s is None else min(since_s + self._stall_s - self._waited_s, self.ends_s)

    def abort(self) -> None:
        """Abort the connection of a client that has kept the call waiting for too long."""
        self.waiting_since_s, self._waited_s = self._clock(), 0.0  # aborts again if the call stays
        self.call.abort_connection()

    @contextmanager
    def waiting_for_client(self) -> Iterator[None]:
        """Count the time inside of the block as waiting for the client; report the bytes with `record_transfer`
        afterwards.
        """
        since_s = self.waiting_since_s = self._clock()
        try:
            yield
        finally:
            self.waiting_since_s = None
            self._waited_s += self._clock() - since_s

    def record_transfer(self, size: int) -> None:
        """Record that the client took or gave `size` bytes; every least_bytes restart its waiting time."""
        self._moved_bytes += size
        if self._moved_bytes >= self._least_bytes:
            self._waited_s, self._moved_bytes = 0.0, 0


class SlowClientWatchdog:
    """Thread that aborts each call at its stall deadline. `changed` is the lock that it shares with its owner."""

    def __init__(self, calls: Callable[[], Iterable[WatchedCall]], clock: Clock, poll_s: float) -> None:
        """Prepare the thread. calls: lists the calls under way, under the lock; its owner notifies of each change.
        poll_s: the longest time between two looks while there are calls, because a call may begin to wait meanwhile.
        """
        self.changed = threading.Condition()
        self._calls = calls
        self._clock = clock
        self._poll_s = poll_s
        self._closed = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, unless it was started or closed; the caller holds the lock."""
        if self._thread is None and not self._closed:
            self._thread = threading.Thread(target=self._run, name="epochlog-admission", daemon=True)
            self._thread.start()

    def close(self) -> None:
        with self.changed:
            self._closed = True
            self.changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self.changed:
                if self._closed:
                    return
                now = self._clock()
                deadlines = [(call, call.stall_deadline_s) for call in self._calls()]
                stalled = [call for call, deadline in deadlines if deadline <= now]
                if not stalled:
                    next_s = min((deadline for _, deadline in deadlines), default=None)
                    self.changed.wait(None if next_s is None else min(next_s - now, self._poll_s))
            for call in stalled:
                call.abort()
