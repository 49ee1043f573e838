"""Admission control of the calls that move rows through a server: bounded memory over all calls, and bounded time of
each.

Before a call reads, it acquires the bytes of memory that one split of its reading takes; it releases them when its
reading ends. Each lane has byte and call limits of its own: reads by the read token, reads by the token that may write,
and puts. So readers cannot use up the memory of writers. `slow_clients.py` aborts the connection of a client that moves
too little.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import Self

import pyarrow as pa

from epochlog.errors import CallTimedOut, LimitExceeded, ServerUnavailable
from epochlog.store.changelog.footprint import Footprint
from epochlog.store.env.clock import monotonic_s
from epochlog.store.types.row_size import bounded_slices

from .services import Call
from .slow_clients import Clock, SlowClientWatchdog, WatchedCall

MESSAGE_BYTES = 8 << 20
MESSAGE_ROWS = 1 << 16
_POLL_S = 0.1
"""How often a call that waits for memory checks that its client is still connected."""


class Lane(Enum):
    """Group of calls that share byte and call limits."""

    READERS = "the read token"
    OWNERS = "readers that may write"
    PUTS = "puts"


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """Limits of one server."""

    in_flight_bytes: int = 256 << 20
    """Rows in memory over all calls of a lane (a single larger split is admitted alone)."""
    calls: int = 1_000
    """Most calls of a lane."""
    stall_s: float = 60.0
    """Longest time for which a client may keep a call waiting for each `least_bytes` that it takes or gives."""
    least_bytes: int = 1 << 20
    call_s: float = 3600.0
    """Longest time of a call."""
    flights: int = 256
    """Most flights that are open or planned."""
    flights_of_one: int = 64
    """Most flights over one connection."""
    flight_s: float = 300.0
    """Longest time for which a flight is held without a renewal."""


@dataclass(slots=True)
class _LaneState:
    """Calls of a lane, those of them that wait for memory, and the bytes that the lane has acquired."""

    acquired_bytes: int = 0
    queue: deque[CallSlot] = field(default_factory=deque)
    slots: set[CallSlot] = field(default_factory=set)


class AdmissionController:
    """Controller of all calls that move rows now. `clock` returns monotonic seconds."""

    def __init__(self, limits: AdmissionLimits, clock: Clock = monotonic_s) -> None:
        self.limits = limits
        self._clock = clock
        self._watchdog = SlowClientWatchdog(self._all_slots, clock, min(limits.stall_s / 4, limits.call_s))
        self._changed = self._watchdog.changed
        self._lanes = {lane: _LaneState() for lane in Lane}
        self._ending = False

    @property
    def calls(self) -> int:
        """Count the calls under way."""
        return sum(len(lane.slots) for lane in self._lanes.values())

    @property
    def acquired_bytes(self) -> int:
        """Return the bytes of rows that all calls have acquired now."""
        return sum(lane.acquired_bytes for lane in self._lanes.values())

    def admit(self, call: Call, lane: Lane | None = None, *, lasting: bool = False) -> CallSlot:
        """Return a slot for one call, as a context manager. The default lane is that of a reader with the call's token.

        lasting: the call has no time limit.
        """
        chosen = lane or (Lane.OWNERS if call.may_write else Lane.READERS)
        return CallSlot(self, call, self._clock, chosen, lasting=lasting)

    def end(self) -> None:
        """End every call at its next check, and abort those that wait for their clients."""
        with self._changed:
            self._ending = True
            self._changed.notify_all()
            waiting = [slot for slot in self._all_slots() if slot.waiting_since_s is not None]
        for slot in waiting:
            slot.abort()

    def close(self) -> None:
        """End every call, and the watchdog thread."""
        self.end()
        self._watchdog.close()

    # ---- for slots -----------------------------------------------------------------------------------------------

    def add(self, slot: CallSlot) -> None:
        """Add a call to its lane. Raises LimitExceeded when the lane has reached its limit of calls."""
        with self._changed:
            slots = self._lanes[slot.lane].slots
            if len(slots) >= self.limits.calls:
                raise LimitExceeded(
                    f"this server has {len(slots)} calls of {slot.lane.value} under way; end some, or try later"
                )
            slots.add(slot)
            self._watchdog.start()
            self._changed.notify_all()

    def remove(self, slot: CallSlot) -> None:
        with self._changed:
            self._lanes[slot.lane].slots.discard(slot)
            self._changed.notify_all()

    def check(self, slot: CallSlot) -> None:
        """Raise ServerUnavailable or CallTimedOut if the call must end."""
        if self._ending:
            raise ServerUnavailable(
                "this server is shutting down; call again when it is back, with the same txn if rows were put"
            )
        if self._clock() >= slot.ends_s:
            raise CallTimedOut(
                f"this call has taken {self.limits.call_s:g} s, which is the limit for one call; request less at a time"
            )
        if slot.call.cancelled():
            raise ServerUnavailable("the client has cancelled this call, or its deadline has passed")

    def acquire(self, slot: CallSlot, size: int, *, wait: bool, on_poll: Callable[[], None] = lambda: None) -> bool:
        """Acquire `size` bytes for the call, in the order of requests within its lane; return False if they are not
        free now and `wait` is False. on_poll: called at each poll while the call waits.
        """
        lane = self._lanes[slot.lane]
        with self._changed:
            if not lane.queue and self._fits(lane, size):
                lane.acquired_bytes += size
                return True
            if not wait:
                return False
            slot.is_polling = True
            lane.queue.append(slot)
        try:
            while True:
                self.check(slot)
                on_poll()
                with self._changed:
                    slot.is_polling = False
                    first = next(queued for queued in lane.queue if not queued.is_polling)
                    if first is slot and self._fits(lane, size):
                        lane.acquired_bytes += size
                        return True
                    self._changed.wait(_POLL_S)
                    slot.is_polling = True  # on_poll may wait for its client; the calls behind go first meanwhile
        finally:
            with self._changed:
                slot.is_polling = False
                lane.queue.remove(slot)
                self._changed.notify_all()

    def release(self, slot: CallSlot, size: int) -> None:
        if size:
            with self._changed:
                self._lanes[slot.lane].acquired_bytes -= size
                self._changed.notify_all()

    def has_waiters(self, slot: CallSlot) -> bool:
        """Return True if other calls wait for memory in the call's lane."""
        return bool(self._lanes[slot.lane].queue)

    def _fits(self, lane: _LaneState, size: int) -> bool:
        return not lane.acquired_bytes or lane.acquired_bytes + size <= self.limits.in_flight_bytes

    def _all_slots(self) -> list[CallSlot]:
        return [slot for lane in self._lanes.values() for slot in lane.slots]


class CallSlot(WatchedCall):
    """Slot of one call in its lane, with the bytes that the call has acquired."""

    def __init__(self, admission: AdmissionController, call: Call, clock: Clock, lane: Lane, *, lasting: bool) -> None:
        limits = admission.limits
        ends_s = float("inf") if lasting else clock() + limits.call_s
        super().__init__(call, clock, ends_s, limits.stall_s, limits.least_bytes)
        self._admission = admission
        self._acquired_bytes = 0
        self.lane = lane
        self.is_polling = False  # in check or on_poll, so unable to take memory

    def __enter__(self) -> Self:
        self._admission.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
        self._admission.remove(self)

    def check(self) -> None:
        """Raise ServerUnavailable or CallTimedOut if the call must end."""
        self._admission.check(self)

    def acquire(self, size: int, *, wait: bool = True, on_poll: Callable[[], None] = lambda: None) -> bool:
        """Acquire `size` more bytes, and wait for them unless `wait` is False; return False if they are not free.
        on_poll: called at each poll while the call waits.
        """
        acquired = self._admission.acquire(self, size, wait=wait, on_poll=on_poll)
        self._acquired_bytes += size if acquired else 0
        return acquired

    @property
    def acquired_bytes(self) -> int:
        """Return the bytes that this call has acquired."""
        return self._acquired_bytes

    @property
    def has_waiters(self) -> bool:
        """Return True if other calls wait for memory in this call's lane."""
        return self._admission.has_waiters(self)

    def release(self) -> None:
        """Release all bytes that this call has acquired."""
        self._admission.release(self, self._acquired_bytes)
        self._acquired_bytes = 0

    def resize(self, size: int) -> None:
        """Set this call's acquired bytes to the `size` that is in memory, in one step: no other call can acquire the
        difference in between.
        """
        self._admission.release(self, self._acquired_bytes - size)
        self._acquired_bytes = size

    def stream_batches(self, batches: Iterator[pa.RecordBatch], footprint: Footprint) -> Iterator[pa.RecordBatch]:
        """Yield the batches for the client, in messages of bounded size; read the next batch after the client has taken
        the last one.

        The call acquires memory once and keeps it to the end: between two batches the reader holds the rest of its
        split, and the blocks across the split's borders.
        """
        self.acquire(footprint.making)
        while True:
            self.check()
            batch = next(batches, None)
            if batch is None:
                return
            self.resize(max(footprint.making, batch.get_total_buffer_size()))
            slices = bounded_slices(batch, MESSAGE_ROWS, MESSAGE_BYTES)
            del batch
            for message in slices:
                with self.waiting_for_client():
                    yield message
                self.record_transfer(message.nbytes)
                del message
                self.check()
            del slices  # keeps no reference to the split while the next one is read
