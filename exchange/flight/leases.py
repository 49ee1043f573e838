"""Leases of flights: the epochs that a flight's endpoints read are held until it is cancelled, expires or the server
ends.

A flight whose parts are being read ends when the last reader has; nothing new is read of it then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow as pa

from epochlog.errors import LimitExceeded, TicketRefused
from epochlog.store.changelog.footprint import Footprint
from epochlog.store.env.clock import Clock


@dataclass(frozen=True, slots=True)
class FlightPart:
    """Part of a flight. batches: reads it from its beginning; faults of its files are raised by the iterator.
    footprint: the memory that reading takes.
    """

    batches: Callable[[], Iterator[pa.RecordBatch]]
    footprint: Footprint


@dataclass(frozen=True, slots=True)
class LeasedFlight:
    """Leased content of a flight: the columns of all its parts, the parts in order, the function that gives its lease
    back, the newest epoch that is in it, and the number of rows of all parts together (None: not known before they are
    read).
    """

    schema: pa.Schema
    parts: tuple[FlightPart, ...]
    release: Callable[[], None]
    epoch: int
    rows: int | None


@dataclass(slots=True)
class _Flight:
    held: LeasedFlight
    ends_ms: int
    may_write: bool
    readers: int = 0
    over: bool = False
    read: set[int] = field(default_factory=set)  # the parts that somebody has read to their end

    @property
    def done(self) -> bool:
        """Return True if every part was read to its end and nobody reads one now, so the client needs no more."""
        return not self.readers and len(self.read) == len(self.held.parts)


class FlightLeases:
    """Registry of at most `limit` flights, fewer of clients that may only read. `now_ms` gives Unix milliseconds.

    Flights that were read to their end stay, for a part may be read again, until they expire or their place is needed.
    """

    def __init__(self, limit: int, now_ms: Clock) -> None:
        self._limit = limit
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._flights: dict[bytes, _Flight] = {}
        self._coming = {True: 0, False: 0}  # by whether their token may write

    def __len__(self) -> int:
        """Count the flights that hold something now."""
        return len(self._flights)

    def add(
        self, flight: bytes, hold: Callable[[], LeasedFlight], lasting_ms: int, *, may_write: bool = True
    ) -> tuple[LeasedFlight, int]:
        """Hold the epochs of a new flight for `lasting_ms`; return the leased flight and its end in Unix milliseconds.
        Raises LimitExceeded when there are too many flights.
        """
        self.sweep()
        while not self._reserve(may_write):
            with self._lock:
                done = (name for name, found in self._flights.items() if found.done and may_write >= found.may_write)
                spare = next(done, None)
            if spare is None:
                raise LimitExceeded(
                    f"{len(self)} flights are open at this server, none of them read to its end: cancel those that "
                    "are not needed (CancelFlightInfo), or wait until they expire"
                )
            self.cancel(spare)
        try:
            held = hold()
            with self._lock:
                ends_ms = self._now_ms() + lasting_ms
                self._flights[flight] = _Flight(held, ends_ms, may_write)
            return held, ends_ms
        finally:
            with self._lock:
                self._coming[may_write] -= 1

    def renew(self, flight: bytes, lasting_ms: int) -> int:
        """Extend a flight's lease to `lasting_ms` from now, if that is later than its end; return the end in Unix
        milliseconds. Raises TicketRefused.
        """
        with self._lock:
            found = self._open(flight)
            found.ends_ms = max(found.ends_ms, self._now_ms() + lasting_ms)
            return found.ends_ms

    def _reserve(self, may_write: bool) -> bool:
        """Reserve a place for one flight; return False if none is free. Readers leave a quarter of the places to
        callers that may write.
        """
        with self._lock:
            of_readers = sum(not found.may_write for found in self._flights.values()) + self._coming[False]
            free = len(self._flights) + sum(self._coming.values()) < self._limit
            free = free and (may_write or of_readers < max(1, self._limit * 3 // 4))
            self._coming[may_write] += free
            return free

    @contextmanager
    def reading(self, flight: bytes, part: int) -> Iterator[FlightPart]:
        """Read a part of the flight inside of the block; the part stays held there even if the flight is cancelled.
        Raises TicketRefused.
        """
        with self._lock:
            found = self._open(flight)
            found.readers += 1
        try:
            yield found.held.parts[part]
            found.read.add(part)
        finally:
            with self._lock:
                found.readers -= 1
            self._let_go(flight, found)

    def schema(self, flight: bytes) -> pa.Schema:
        """Return the columns of the flight's parts. Raises TicketRefused."""
        with self._lock:
            return self._open(flight).held.schema

    def cancel(self, flight: bytes) -> bool:
        """End a flight; return False when there is none of that name."""
        with self._lock:
            found = self._flights.get(flight)
            if found is None or found.over:
                return False
            found.over = True
        self._let_go(flight, found)
        return True

    def sweep(self) -> None:
        """End the flights whose leases have expired."""
        with self._lock:
            now_ms = self._now_ms()
            late = [flight for flight, found in self._flights.items() if found.ends_ms <= now_ms and not found.over]
        for flight in late:
            self.cancel(flight)

    def close(self) -> None:
        """End all flights, also those that are still being read."""
        with self._lock:
            left, self._flights = self._flights, {}
        for found in left.values():
            found.held.release()

    def _open(self, flight: bytes) -> _Flight:
        found = self._flights.get(flight)
        if found is None or found.over:
            raise TicketRefused("this flight has been cancelled, or has ended; ask for it again (get_flight_info)")
        return found

    def _let_go(self, flight: bytes, found: _Flight) -> None:
        with self._lock:
            done = found.over and not found.readers and self._flights.pop(flight, None) is not None
        if done:
            found.held.release()
