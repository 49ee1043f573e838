"""Leases of flights: each holds the epochs of its flight until the flight is cancelled or expires, or the server ends.

A flight that ends while parts are being read keeps its holds until the last reader finishes; it refuses new readers.
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
    """Part of a flight. batches: starts reading the part at its beginning; the iterator raises the errors of its files.
    footprint: the memory that reading takes.
    """

    batches: Callable[[], Iterator[pa.RecordBatch]]
    footprint: Footprint


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


@dataclass(slots=True)
class _Flight:
    content: LeasedFlight
    expires_ms: int
    may_write: bool
    readers: int = 0
    ended: bool = False
    finished_parts: set[int] = field(default_factory=set)  # indexes of the parts that a client has read to their end

    @property
    def fully_read(self) -> bool:
        """Return True if every part was read to its end and no part is being read, so the flight may be evicted."""
        return not self.readers and len(self.finished_parts) == len(self.content.parts)


class FlightLeases:
    """Registry of at most `limit` flights; clients that may only read get fewer. `now_ms` returns Unix milliseconds.

    A flight that was read to its end stays readable until it expires or a new flight needs its place.
    """

    def __init__(self, limit: int, now_ms: Clock) -> None:
        self._limit = limit
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._flights: dict[bytes, _Flight] = {}
        self._reserved = {True: 0, False: 0}  # flights being planned, by may_write

    def __len__(self) -> int:
        """Count the flights with a lease."""
        return len(self._flights)

    def add(
        self, flight: bytes, plan: Callable[[], LeasedFlight], duration_ms: int, *, may_write: bool = True
    ) -> tuple[LeasedFlight, int]:
        """Plan a new flight and lease it for `duration_ms`; return it and its expiry in Unix milliseconds. Raises
        LimitExceeded when there are too many flights.
        """
        self.sweep()
        while not self._reserve(may_write):
            with self._lock:
                candidates = (
                    name for name, entry in self._flights.items() if entry.fully_read and may_write >= entry.may_write
                )
                evictable = next(candidates, None)
            if evictable is None:
                raise LimitExceeded(
                    f"this server has {len(self)} open flights, and none of them has been read to its end; cancel "
                    "those that are not needed (CancelFlightInfo), or wait until they expire"
                )
            self.cancel(evictable)
        try:
            content = plan()
            with self._lock:
                expires_ms = self._now_ms() + duration_ms
                self._flights[flight] = _Flight(content, expires_ms, may_write)
            return content, expires_ms
        finally:
            with self._lock:
                self._reserved[may_write] -= 1

    def renew(self, flight: bytes, duration_ms: int) -> int:
        """Extend a flight's lease to `duration_ms` from now, if that is later than its expiry; return the expiry in
        Unix milliseconds. Raises TicketRefused.
        """
        with self._lock:
            entry = self._get_open(flight)
            entry.expires_ms = max(entry.expires_ms, self._now_ms() + duration_ms)
            return entry.expires_ms

    def _reserve(self, may_write: bool) -> bool:
        """Reserve a place for one flight; return False if none is free. A quarter of the places is reserved for callers
        that may write.
        """
        with self._lock:
            of_readers = sum(not entry.may_write for entry in self._flights.values()) + self._reserved[False]
            free = len(self._flights) + sum(self._reserved.values()) < self._limit
            free = free and (may_write or of_readers < max(1, self._limit * 3 // 4))
            self._reserved[may_write] += free
            return free

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
