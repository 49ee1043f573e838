"""Limits on the connections that a server has accepted: their number, their time to a first call, and their idle time.

gRPC accepts every connection and offers no limit. So a thread lists this process's sockets and aborts the connections
without a call in time, those that are idle for too long, and, when there are too many, the least entitled ones.
"""

from __future__ import annotations

import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from epochlog.errors import LimitExceeded
from epochlog.store.env.clock import monotonic_s
from epochlog.store.env.log_events import DEFECT

from .sockets import Connection, abort_connections, accepted_connections, open_files

CHECK_S, COUNT_S = 1.0, 0.1
"""Seconds between two checks of all connections, and between two counts of the open files."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of connections."""

    most: int | None = None
    """Connections at a time (None: half of the files that this process may open, at most 4,096)."""
    hello_s: float = 20.0
    """Seconds until a connection makes a call with a valid token."""
    idle_s: float = 600.0
    """Seconds without data in either direction."""
    calls: int = 1_000
    """Most calls of clients that may only read, and as many of all others."""
    calls_of_one: int = 256
    """Most calls of one connection."""


class Callers:
    """Registry of the calls under way and of the connections that have made calls."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._calls: dict[str, int] = {}  # peer -> its calls under way
        self._total = {True: 0, False: 0}  # may_write -> calls under way
        self._may_write: dict[str, bool] = {}  # of each peer that has made a call

    @contextmanager
    def calling(self, peer: str, may_write: bool) -> Iterator[None]:
        """Count a call of the peer as under way inside of the block. Raises LimitExceeded above the limits of calls."""
        with self._lock:
            calls = self._calls.get(peer, 0)
            if self._total[may_write] >= self._limits.calls or calls >= self._limits.calls_of_one:
                kind = "writing" if may_write else "reading"
                raise LimitExceeded(
                    f"this server has {self._total[may_write]} calls under way by {kind} tokens, {calls} of them over "
                    "this connection; end some, or try again later"
                )
            self._may_write[peer] = may_write or self._may_write.get(peer, False)
            self._calls[peer] = calls + 1
            self._total[may_write] += 1
        try:
            yield
        finally:
            with self._lock:
                self._total[may_write] -= 1
                self._calls[peer] -= 1
                if not self._calls[peer]:
                    del self._calls[peer]

    def rank(self, peer: str) -> int:
        """Return the rank of a connection: 0 if it has made no call, 1 if it has read, 2 if it may write."""
        may_write = self._may_write.get(peer)
        return 0 if may_write is None else 1 + may_write

    def forget_all_but(self, peers: set[str]) -> None:
        """Forget closed connections, because a new connection may come from the same port."""
        with self._lock:
            for peer in self._may_write.keys() - peers - self._calls.keys():
                del self._may_write[peer]


class ConnectionLimiter:
    """Thread that enforces the limits of the connections of one port until `close`."""

    def __init__(
        self,
        port: int,
        callers: Callers,
        limits: ConnectionLimits,
        clock: Callable[[], float] = monotonic_s,
        host: str = "",
    ) -> None:
        """Start the thread. host: the address that the server listens at; "" for all."""
        self._port, self._host = port, host
        self._callers = callers
        self._limits = limits
        self._clock = clock
        self._max_connections = limits.most or most_connections()
        self._first_seen: dict[str, float] = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="epochlog-connections", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread; the connections stay open."""
        self._closed.set()
        self._thread.join()

    def enforce(self) -> set[str]:
        """Abort the connections past their limits, and return their peers."""
        now, connections = self._clock(), accepted_connections(self._port, self._host)
        self._first_seen = {connection.peer: self._first_seen.get(connection.peer, now) for connection in connections}
        ages = {peer: now - first_seen for peer, first_seen in self._first_seen.items()}
        excess = choose_excess(connections, ages, self._callers.rank, self._max_connections, self._limits)
        self._callers.forget_all_but(set(ages))
        if excess:
            abort_connections(self._port, excess, self._host)
        return excess

    def _run(self) -> None:
        checked = self._clock()
        check_s = min(CHECK_S, self._limits.hello_s / 4, self._limits.idle_s / 4)
        while not self._closed.wait(min(COUNT_S, check_s)):
            try:
                if self._clock() - checked >= check_s or open_files() > self._max_connections:
                    checked = self._clock()
                    self.enforce()
            except Exception as error:  # noqa: BLE001 (a defect, or a refusal of the system; the thread goes on)
                DEFECT.log(what="listing the connections, whose limits are not enforced now", error=error)


def most_connections() -> int:
    """Return half of the number of files that this process may open, at most 4,096; the other half is the store's."""
    return min(4_096, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)


def allow_open_files(most: int = 1 << 16) -> None:
    """Raise this process's limit of open files as far as the system allows, to at most `most`: each connection is an
    open file.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = most if hard == resource.RLIM_INFINITY else min(most, hard)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def choose_excess(
    connections: list[Connection],
    ages: dict[str, float],
    rank: Callable[[str], int],
    most: int,
    limits: ConnectionLimits,
) -> set[str]:
    """Choose the connections to abort (pure): those without a call in time, those that are idle for too long, and above
    `most` those without a call, the oldest first, then readers, the longest idle first. A connection that may write is
    never aborted in favor of others.
    """
    expired = {
        connection.peer
        for connection in connections
        if (rank(connection.peer) == 0 and ages[connection.peer] >= limits.hello_s)
        or connection.idle_s >= limits.idle_s
    }
    remaining = [connection for connection in connections if connection.peer not in expired]
    expendable = [connection for connection in remaining if rank(connection.peer) < 2]

    def order(connection: Connection) -> tuple[int, float]:
        called = rank(connection.peer)
        return called, -connection.idle_s if called else -ages[connection.peer]

    expendable.sort(key=order)
    return expired | {connection.peer for connection in expendable[: max(0, len(remaining) - most)]}
