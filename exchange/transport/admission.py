"""Admission control of the calls that move rows through a server: bounded memory over all calls, and bounded time of
each.

A call asks for room before it reads, for the memory that a piece takes, and gives it back when its reading ends. Each
lane has room and slots of its own: reads by the read token, reads by the token that may write, and puts; so readers
cannot use up the room of writers. A call whose client takes or gives too little is cut off, with the client's
connection: gRPC has no way to end a call that waits for it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import Self

import pyarrow as pa

from epochlog.errors import CallTimedOut, LimitExceeded, ServerUnavailable
from epochlog.store.changelog.footprint import Footprint
from epochlog.store.env.clock import monotonic_s

from .services import Call

MESSAGE_BYTES = 8 << 20
MESSAGE_ROWS = 1 << 16
_LOOK_S = 0.1
"""How often a call that waits for room looks whether its client is still there."""


class Lane(Enum):
    """Lane of calls that share room and slots."""

    READERS = "the read token"
    OWNERS = "readers that may write"
    PUTS = "puts"


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """Limits of one server. in_flight_bytes: rows in memory over all calls of a lane (a single larger piece goes
    alone); calls: the most calls of a lane.

    stall_s: how long a client may keep a call waiting for each least_bytes that it takes or gives; call_s: how long a
    call may last; flights: how many may be open; flight_s: how long one is held unless it is renewed.
    """

    in_flight_bytes: int = 256 << 20
    calls: int = 1_000
    stall_s: float = 60.0
    least_bytes: int = 1 << 20
    call_s: float = 3600.0
    flights: int = 256
    flight_s: float = 300.0


@dataclass(slots=True)
class _Room:
    """Calls of a lane, and the bytes of room that they have taken."""

    taken: int = 0
    queue: deque[CallSlot] = field(default_factory=deque)
    passages: set[CallSlot] = field(default_factory=set)


class AdmissionController:
    """Controller of all calls that move rows now. `clock` gives seconds that only rise."""

    def __init__(self, limits: AdmissionLimits, clock: Callable[[], float] = monotonic_s) -> None:
        self.limits = limits
        self._clock = clock
        self._changed = threading.Condition()
        self._rooms = {lane: _Room() for lane in Lane}
        self._ending = False
        self._closed = False
        self._guard: threading.Thread | None = None

    @property
    def calls(self) -> int:
        """Count the calls under way."""
        return sum(len(room.passages) for room in self._rooms.values())

    @property
    def taken_bytes(self) -> int:
        """Return the bytes of rows in memory now, as far as they are known."""
        return sum(room.taken for room in self._rooms.values())

    def enter(self, call: Call, lane: Lane | None = None, *, lasting: bool = False) -> CallSlot:
        """Return a slot for one call, as a context manager; by default in the lane of a reader with the call's token.

        lasting: the call has no time limit.
        """
        chosen = lane or (Lane.OWNERS if call.may_write else Lane.READERS)
        return CallSlot(self, call, chosen, float("inf") if lasting else self._clock() + self.limits.call_s)

    def end(self) -> None:
        """End every call at its next check, and cut off those that wait for their clients."""
        with self._changed:
            self._ending = True
            self._changed.notify_all()
            waiting = [passage for passage in self._all() if passage.waits_since is not None]
        for passage in waiting:
            passage.cut()

    def close(self) -> None:
        """End every call, and the thread that looks after slow clients."""
        self.end()
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            guard = self._guard
        if guard is not None:
            guard.join()

    # ---- for passages --------------------------------------------------------------------------------------------

    def add(self, passage: CallSlot) -> None:
        """Add a call to its lane. Raises LimitExceeded when the lane has as many calls as it may."""
        with self._changed:
            found = self._rooms[passage.lane].passages
            if len(found) >= self.limits.calls:
                raise LimitExceeded(
                    f"this server has {len(found)} calls of {passage.lane.value} under way; end some, or try later"
                )
            found.add(passage)
            if self._guard is None and not self._closed:
                self._guard = threading.Thread(target=self._look_after, name="epochlog-traffic", daemon=True)
                self._guard.start()
            self._changed.notify_all()

    def remove(self, passage: CallSlot) -> None:
        with self._changed:
            self._rooms[passage.lane].passages.discard(passage)
            self._changed.notify_all()

    def check(self, passage: CallSlot) -> None:
        """Raise ServerUnavailable or CallTimedOut if the call must end."""
        if self._ending:
            raise ServerUnavailable(
                "this server is ending; ask again when it is back, with the same txn if rows were put"
            )
        if self._clock() >= passage.ends_s:
            raise CallTimedOut(
                f"this call has taken {self.limits.call_s:g} s, which is as long as one may; ask for less at a time"
            )
        if passage.call.cancelled():
            raise ServerUnavailable("the client has cancelled this call, or its deadline has passed")

    def take(self, passage: CallSlot, size: int, *, wait: bool, looked: Callable[[], None] = lambda: None) -> bool:
        """Give the call room for `size` bytes, in the order in which calls of its lane ask; return False if there is
        none now and `wait` is False. looked: is called now and then while the call waits.
        """
        room = self._rooms[passage.lane]
        with self._changed:
            if not room.queue and self._fits(room, size):
                room.taken += size
                return True
            if not wait:
                return False
            passage.away = True
            room.queue.append(passage)
        try:
            while True:
                self.check(passage)
                looked()
                with self._changed:
                    passage.away = False
                    first = next(one for one in room.queue if not one.away)
                    if first is passage and self._fits(room, size):
                        room.taken += size
                        return True
                    self._changed.wait(_LOOK_S)
                    passage.away = True  # it may be held up by its client; nobody waits behind it meanwhile
        finally:
            with self._changed:
                passage.away = False
                room.queue.remove(passage)
                self._changed.notify_all()

    def give(self, passage: CallSlot, size: int) -> None:
        if size:
            with self._changed:
                self._rooms[passage.lane].taken -= size
                self._changed.notify_all()

    def crowded(self, passage: CallSlot) -> bool:
        """Return True if other calls wait for room in the call's lane."""
        return bool(self._rooms[passage.lane].queue)

    def _fits(self, room: _Room, size: int) -> bool:
        return not room.taken or room.taken + size <= self.limits.in_flight_bytes

    def _all(self) -> list[CallSlot]:
        return [passage for room in self._rooms.values() for passage in room.passages]

    # ---- slow clients --------------------------------------------------------------------------------------------

    def _look_after(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    return
                now = self._clock()
                ends = [(passage, passage.patience_ends_s) for passage in self._all()]
                late = [passage for passage, at in ends if at <= now]
                if not late:
                    next_s = min((at for _, at in ends), default=None)
                    often_s = min(self.limits.stall_s / 4, self.limits.call_s)  # a call may begin to wait meanwhile
                    self._changed.wait(None if next_s is None else min(next_s - now, often_s))
            for passage in late:
                passage.cut()

    def now_s(self) -> float:
        return self._clock()


class CallSlot:
    """Slot of one call in its lane, with the room that it has."""

    def __init__(self, traffic: AdmissionController, call: Call, lane: Lane, ends_s: float) -> None:
        self._traffic = traffic
        self._held = 0
        self._waited_s, self._moved = 0.0, 0  # for the client, since it has moved least_bytes the last time
        self.call = call
        self.lane = lane
        self.ends_s = ends_s
        self.waits_since: float | None = None
        self.away = False  # not ready to take the room that it has asked for

    def __enter__(self) -> Self:
        self._traffic.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.free()
        self._traffic.remove(self)

    @property
    def patience_ends_s(self) -> float:
        """Return the time until which the call may wait for its client; infinity if it does not wait."""
        since = self.waits_since
        return (
            float("inf") if since is None else min(since + self._traffic.limits.stall_s - self._waited_s, self.ends_s)
        )

    def check(self) -> None:
        """Raise ServerUnavailable or CallTimedOut if the call must end."""
        self._traffic.check(self)

    def room(self, size: int, *, wait: bool = True, looked: Callable[[], None] = lambda: None) -> bool:
        """Take room for `size` bytes more, waiting for it unless `wait` is False; return False if there is none."""
        done = self._traffic.take(self, size, wait=wait, looked=looked)
        self._held += size if done else 0
        return done

    @property
    def held(self) -> int:
        """Return the bytes of room that this call has."""
        return self._held

    @property
    def crowded(self) -> bool:
        """Return True if other calls wait for room in this call's lane."""
        return self._traffic.crowded(self)

    def free(self) -> None:
        """Give back all room that this call has."""
        self._traffic.give(self, self._held)
        self._held = 0

    def hold(self, size: int) -> None:
        """Set this call's room to the `size` bytes that are in memory; no other call gets the difference in between."""
        self._traffic.give(self, self._held - size)
        self._held = size

    def cut(self) -> None:
        """Cut off the client, which has kept the call waiting for too long."""
        self.waits_since, self._waited_s = (
            self._traffic.now_s(),
            0.0,
        )  # once more after the same time, if it did not help
        self.call.hang_up()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time inside of the block as waiting for the client; `moved` tells then how many bytes it took or
        gave.
        """
        since = self.waits_since = self._traffic.now_s()
        try:
            yield
        finally:
            self.waits_since = None
            self._waited_s += self._traffic.now_s() - since

    def moved(self, size: int) -> None:
        """Record that the client took or gave `size` bytes: for each least_bytes it may keep the call waiting anew."""
        self._moved += size
        if self._moved >= self._traffic.limits.least_bytes:
            self._waited_s, self._moved = 0.0, 0

    def outward(self, batches: Iterator[pa.RecordBatch], footprint: Footprint) -> Iterator[pa.RecordBatch]:
        """Yield the batches for the client, in messages of bounded size; the next is read when the last has been taken.

        Room is asked for once and kept to the end: between two batches the reading has the rest of its piece, and the
        blocks across that one's borders, in memory.
        """
        self.room(footprint.making)
        while True:
            self.check()
            batch = next(batches, None)
            if batch is None:
                return
            self.hold(max(footprint.making, batch.get_total_buffer_size()))
            sent = messages(batch)
            del batch
            for message in sent:
                with self.waiting():
                    yield message
                self.moved(message.nbytes)
                del message
                self.check()
            del sent  # nothing of a piece is held here while the next one is read


def messages(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Slice a batch into messages that are small enough to be sent one by one."""
    each = max(1, min(MESSAGE_ROWS, MESSAGE_BYTES * batch.num_rows // max(1, batch.nbytes)))
    if batch.num_rows <= each:
        yield batch
        return
    for start in range(0, batch.num_rows, each):
        yield batch.slice(start, each)
