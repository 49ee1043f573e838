"""Limits on the connections that a server has accepted: their number, and how long one may make no call or stand still.

gRPC accepts every connection and offers no bound. So a thread looks at this process's sockets and cuts those that have
made no call in time, those on which nothing has moved for long, and, when there are too many, those that have called
least.
"""

from __future__ import annotations

import logging
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from epochlog.errors import LimitExceeded
from epochlog.store.env.clock import monotonic_s

from .sockets import Connection, abort_connections, accepted_connections, open_files

_log = logging.getLogger("epochlog")

LOOK_S, COUNT_S = 1.0, 0.1
"""How often connections are looked at, and how often only the number of open files is."""


@dataclass(frozen=True, slots=True)
class Patience:
    """Limits of connections. most: connections at a time (None: half of the files that this process may open, 4,096 at
    most); hello_s: how long one may be open without a call that a token lets in; idle_s: how long nothing may move on
    it. calls: the most calls of clients that may only read, and again of all others; calls_of_one: of one connection.
    """

    most: int | None = None
    hello_s: float = 20.0
    idle_s: float = 600.0
    calls: int = 1_000
    calls_of_one: int = 256


class Callers:
    """Registry of the calls under way and of the connections that have called."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._lock = threading.Lock()
        self._calls: dict[str, int] = {}
        self._of = {True: 0, False: 0}  # calls by whether their token may write
        self._known: dict[str, bool] = {}

    @contextmanager
    def calling(self, peer: str, may_write: bool) -> Iterator[None]:
        """Count a call of the peer as under way inside of the block. Raises LimitExceeded when there are too many."""
        with self._lock:
            own = self._calls.get(peer, 0)
            if self._of[may_write] >= self._patience.calls or own >= self._patience.calls_of_one:
                raise LimitExceeded(
                    f"this server has {self._of[may_write]} such calls under way, {own} of them over this connection; "
                    "end some, or try again later"
                )
            self._known[peer] = may_write or self._known.get(peer, False)
            self._calls[peer] = own + 1
            self._of[may_write] += 1
        try:
            yield
        finally:
            with self._lock:
                self._of[may_write] -= 1
                left = self._calls[peer] - 1
                if left:
                    self._calls[peer] = left
                else:
                    del self._calls[peer]

    def rank(self, peer: str) -> int:
        """Return the rank of a connection: 0 if it has made no call, 1 if it has read, 2 if it may write."""
        known = self._known.get(peer)
        return 0 if known is None else 1 + known

    def forget_all_but(self, peers: set[str]) -> None:
        """Forget connections that are gone; another one may come from their ports."""
        with self._lock:
            for peer in self._known.keys() - peers - self._calls.keys():
                del self._known[peer]


class Keeper:
    """Thread that looks after the connections of one port until `close`."""

    def __init__(
        self, port: int, callers: Callers, patience: Patience, clock: Callable[[], float] = monotonic_s
    ) -> None:
        self._port = port
        self._callers = callers
        self._patience = patience
        self._clock = clock
        self._most = patience.most or most_connections()
        self._since: dict[str, float] = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="epochlog-connections", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread; connections stay as they are."""
        self._closed.set()
        self._thread.join()

    def look(self) -> set[str]:
        """Cut the connections past their limits, and return their peers."""
        now, found = self._clock(), accepted_connections(self._port)
        self._since = {one.peer: self._since.get(one.peer, now) for one in found}
        ages = {peer: now - since for peer, since in self._since.items()}
        cut = choose_cuts(found, ages, self._callers.rank, self._most, self._patience)
        self._callers.forget_all_but(set(ages))
        if cut:
            abort_connections(self._port, cut)
        return cut

    def _run(self) -> None:
        looked = self._clock()
        often = min(LOOK_S, self._patience.hello_s / 4, self._patience.idle_s / 4)
        while not self._closed.wait(min(COUNT_S, often)):
            try:
                if self._clock() - looked >= often or open_files() > self._most:
                    looked = self._clock()
                    self.look()
            except Exception:  # noqa: BLE001 (a defect, or a system that refuses; the thread goes on)
                _log.exception("this server cannot look at its connections")


def most_connections() -> int:
    """Return the number of connections that leaves the store half of the files that this process may open; at most
    4,096.
    """
    return min(4_096, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)


def allow_open_files(most: int = 1 << 16) -> None:
    """Let this process open as many files as the system lets it, `most` at most: each connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most if hard == resource.RLIM_INFINITY else min(most, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def choose_cuts(
    found: list[Connection], ages: dict[str, float], rank: Callable[[str], int], most: int, patience: Patience
) -> set[str]:
    """Choose the connections to cut (pure): those that made no call in time, those where nothing moves, and of too many
    those that have called least, the oldest first. Connections that may write are never cut for others.
    """
    cut = {
        one.peer
        for one in found
        if (rank(one.peer) == 0 and ages[one.peer] >= patience.hello_s) or one.still_s >= patience.idle_s
    }
    left = [one for one in found if one.peer not in cut]
    spare = [one for one in left if rank(one.peer) < 2]
    spare.sort(key=lambda one: (rank(one.peer), -one.still_s if rank(one.peer) else -ages[one.peer]))
    return cut | {one.peer for one in spare[: max(0, len(left) - most)]}
