"""Leases of flights: each holds the epochs of its flight until the flight is cancelled or expires, or the server ends.

A flight that ends while parts are being read keeps its holds until the last reader finishes; it refuses new readers.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow as pa

from epochlog.errors import LimitExceeded, TicketRefused
from epochlog.store.changelog.footprint import Footprint
from epochlog.store.env.clock import Clock


@dataclass(frozen=True, slots=True)
class FlightPart:
    """Part of a flight."""

    batches: Callable[[], Iterator[pa.RecordBatch]]
    """Starts reading the part at its beginning; the iterator raises the errors of its files."""
    footprint: Footprint
    """Memory that reading takes."""


@dataclass(frozen=True, slots=True)
class LeasedFlight:
    """Leased content of a flight: the columns of all parts, the parts in order, the function that releases the lease,
    the newest epoch in it, and the number of rows of all parts together (None: not known before they are read).
    """

    schema: pa.Schema
    parts: tuple[FlightPart, ...]
    release: Callable[[], None]
    epoch: int
    rows: int | None


@dataclass(frozen=True, slots=True)
class Caller:
    """Client of a flight."""

    peer: str
    """Connection of the client, `host:port`."""
    may_write: bool

    @property
    def host(self) -> str:
        return self.peer.rpartition(":")[0]


@dataclass(slots=True)
class _Flight:
    content: LeasedFlight
    expires_ms: int
    caller: Caller
    readers: int = 0
    ended: bool = False
    finished_parts: set[int] = field(default_factory=set)  # indexes of the parts that a client has read to their end

    @property
    def fully_read(self) -> bool:
        """Return True if every part was read to its end and no part is being read, so the flight may be evicted."""
        return not self.readers and len(self.finished_parts) == len(self.content.parts)


@dataclass(slots=True, eq=False)
class _Plan:
    """Flight that is being planned, or wait of a call without a flight."""

    caller: Caller
    waits_for: str = "an epoch"
    waits: bool = False
    """True if the flight, or a call without one, waits."""
    displaced: bool = False
    """True if another flight has its place."""

    def keep_waiting(self) -> None:
        """Record that the plan waits. Raises LimitExceeded when another flight has its place."""
        self.waits = True
        if self.displaced:
            raise self.refusal()

    def refusal(self) -> LimitExceeded:
        return LimitExceeded(
            f"this wait for {self.waits_for} has ended: this server has too many open flights and waits, and another "
            "connection that has fewer of them needed the place; wait for less at a time, or try later"
        )


class FlightLeases:
    """Registry of at most `limit` flights, and `share` of each connection; clients that may only read get 3/4 of all.
    `now_ms` returns Unix milliseconds.

    A flight that was read to its end stays readable until it expires or a new flight needs its place. A call without a
    flight has a place too while it waits. If all places are taken, a wait gives its place to a connection that has
    fewer flights and waits.
    """

    def __init__(self, limit: int, now_ms: Clock, share: int | None = None) -> None:
        self._limit = limit
        self._share = limit if share is None else share
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._flights: dict[bytes, _Flight] = {}
        self._planning: list[_Plan] = []  # the oldest first

    def __len__(self) -> int:
        """Count the flights with a lease."""
        return len(self._flights)

    def add(
        self,
        flight: bytes,
        plan: Callable[[Callable[[], None]], LeasedFlight],
        duration_ms: int,
        *,
        may_write: bool = True,
        peer: str = "",
    ) -> tuple[LeasedFlight, int]:
        """Plan a new flight and lease it for `duration_ms`; return it and its expiry in Unix milliseconds. peer: the
        connection, `host:port`. plan: gets a function to call again and again while it waits for an epoch, which raises
        LimitExceeded when the wait must end. Raises LimitExceeded when there are too many flights.
        """
        with self._place(Caller(peer, may_write)) as planned:
            content = plan(planned.keep_waiting)
            with self._lock:
                if not planned.displaced:
                    expires_ms = self._now_ms() + duration_ms
                    self._flights[flight] = _Flight(content, expires_ms, planned.caller)
                    return content, expires_ms
            content.release()
            raise planned.refusal()

    @contextmanager
    def waiting(self, caller: Caller, waits_for: str) -> Iterator[Callable[[], None]]:
        """Take a place for a wait without a flight inside of the block. Yield a function to call again and again during
        the wait, which raises LimitExceeded when the wait must end. Raises LimitExceeded when there are too many
        flights.
        """
        with self._place(caller) as planned:
            planned.waits_for = waits_for
            yield planned.keep_waiting

    @contextmanager
    def _place(self, caller: Caller) -> Iterator[_Plan]:
        """Reserve a place for one flight or wait inside of the block."""
        self.sweep()
        planned = self._reserve(caller)
        try:
            yield planned
        finally:
            with self._lock:
                if not planned.displaced:
                    self._planning.remove(planned)

    def _reserve(self, caller: Caller) -> _Plan:
        """Reserve a place for one flight; end a flight that was read to its end, or a wait, if it needs its place."""
        while True:
            with self._lock:
                rivals = self._rivals(caller)
                if rivals is None or self._displaces_wait(caller, rivals):
                    self._planning.append(_Plan(caller))
                    return self._planning[-1]
                evictable = next(
                    (
                        name
                        for name, entry in self._flights.items()
                        if entry.fully_read and entry.caller in rivals and caller.may_write >= entry.caller.may_write
                    ),
                    None,
                )
                own = self._callers().count(caller)
            if evictable is None:
                raise LimitExceeded(
                    f"this server has {len(self)} open flights, {own} of them open or planned over this connection, "
                    "and none of them has been read to its end; cancel those that are not needed (CancelFlightInfo), "
                    "or wait until they expire"
                )
            self.cancel(evictable)

    def _rivals(self, caller: Caller) -> set[Caller] | None:
        """Return the callers whose flights take the place that the caller needs; None if a place is free. A quarter of
        all places is reserved for callers that may write. The caller of this function has the lock.
        """
        callers = self._callers()
        if sum(other.peer == caller.peer for other in callers) >= self._share:
            return {other for other in callers if other.peer == caller.peer}
        readers = [other for other in callers if not other.may_write]
        if not caller.may_write and len(readers) >= max(1, self._limit * 3 // 4):
            return set(readers)
        return set(callers) if len(callers) >= self._limit else None

    def _displaces_wait(self, caller: Caller, rivals: set[Caller]) -> bool:
        """End the wait that gives its place to the caller: the oldest one of the connection that has most flights, of
        the host that has most. Return False if that is the caller's, or has as few. The caller of this function has the
        lock.
        """
        callers = self._callers()
        of_host, of_peer = Counter(other.host for other in callers), Counter(other.peer for other in callers)

        def places(of: Caller) -> tuple[int, int]:
            return of_host[of.host], of_peer[of.peer]

        waits = [
            planned
            for planned in self._planning
            if planned.waits and planned.caller in rivals and planned.caller.may_write <= caller.may_write
        ]
        chosen = max(waits, key=lambda planned: places(planned.caller), default=None)
        if chosen is None or places(chosen.caller) <= places(caller):
            return False
        chosen.displaced = True
        self._planning.remove(chosen)
        return True

    def _callers(self) -> list[Caller]:
        """List the caller of each flight that is open or planned."""
        return [entry.caller for entry in self._flights.values()] + [planned.caller for planned in self._planning]

    def renew(self, flight: bytes, duration_ms: int) -> int:
        """Extend a flight's lease to `duration_ms` from now, if that is later than its expiry; return the expiry in
        Unix milliseconds. Raises TicketRefused.
        """
        with self._lock:
            entry = self._get_open(flight)
            entry.expires_ms = max(entry.expires_ms, self._now_ms() + duration_ms)
            return entry.expires_ms

    @contextmanager
    def read_part(self, flight: bytes, part: int) -> Iterator[FlightPart]:
        """Enter a context that reads one part of the flight; the part stays held in it even if the flight is cancelled.
        Raises TicketRefused.
        """
        with self._lock:
            entry = self._get_open(flight)
            entry.readers += 1
        try:
            yield entry.content.parts[part]
            entry.finished_parts.add(part)
        finally:
            with self._lock:
                entry.readers -= 1
            self._release_if_unused(flight, entry)

    def schema(self, flight: bytes) -> pa.Schema:
        """Return the columns of the flight's parts. Raises TicketRefused."""
        with self._lock:
            return self._get_open(flight).content.schema

    def cancel(self, flight: bytes) -> bool:
        """End a flight; return False if no open flight has that name."""
        with self._lock:
            entry = self._flights.get(flight)
            if entry is None or entry.ended:
                return False
            entry.ended = True
        self._release_if_unused(flight, entry)
        return True

    def sweep(self) -> None:
        """End the flights whose leases have expired."""
        with self._lock:
            now_ms = self._now_ms()
            expired = [
                flight for flight, entry in self._flights.items() if entry.expires_ms <= now_ms and not entry.ended
            ]
        for flight in expired:
            self.cancel(flight)

    def close(self) -> None:
        """Release all flights, including those that are being read."""
        with self._lock:
            flights, self._flights = self._flights, {}
        for entry in flights.values():
            entry.content.release()

    def _get_open(self, flight: bytes) -> _Flight:
        entry = self._flights.get(flight)
        if entry is None or entry.ended:
            raise TicketRefused("this flight was cancelled or has expired; ask for it again (get_flight_info)")
        return entry

    def _release_if_unused(self, flight: bytes, entry: _Flight) -> None:
        with self._lock:
            unused = entry.ended and not entry.readers and self._flights.pop(flight, None) is not None
        if unused:
            entry.content.release()
