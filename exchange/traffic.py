"""The traffic of rows through a server: bounded memory over all calls, bounded time of each, and no waiting for ever.

A call asks for room before it reads a batch, and gives it back when the batch has been taken. One whose client takes or
gives nothing for too long is cut off, with the client's connection: gRPC has no way to end a call that waits for it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import pyarrow as pa

from ..errors import CallTimedOut, ServerUnavailable
from ..store.clock import monotonic_s
from .server import Call

GUESS_BYTES = 8 << 20
"""Room for a call's first batch, before its size is known."""
MESSAGE_BYTES = 8 << 20
MESSAGE_ROWS = 1 << 16
_LOOK_S = 0.1
"""How often a call that waits for room looks whether its client is still there."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one server. in_flight_bytes: rows in memory over all its calls (a single larger batch goes alone).

    stall_s: how long a client may take or give nothing; call_s: how long a call may last; flights: how many may be
    open; flight_s: how long one is held unless it is renewed.
    """

    in_flight_bytes: int = 256 << 20
    stall_s: float = 60.0
    call_s: float = 3600.0
    flights: int = 256
    flight_s: float = 300.0


class Traffic:
    """All calls that move rows now. `clock` gives seconds that only rise."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = monotonic_s) -> None:
        self._limits = limits
        self._clock = clock
        self._changed = threading.Condition()
        self._queue: deque[Passage] = deque()
        self._passages: set[Passage] = set()
        self._taken = 0
        self._ending = False
        self._closed = False
        self._guard: threading.Thread | None = None

    @property
    def calls(self) -> int:
        """Calls under way."""
        return len(self._passages)

    @property
    def taken_bytes(self) -> int:
        """Bytes of rows in memory now, as far as they are known."""
        return self._taken

    def enter(self, call: Call) -> Passage:
        """A way through for one call, as a context manager."""
        return Passage(self, call, self._clock() + self._limits.call_s)

    def end(self) -> None:
        """From now on every call ends as soon as it looks, and those that wait for their clients are cut off."""
        with self._changed:
            self._ending = True
            self._changed.notify_all()
            waiting = [passage for passage in self._passages if passage.waits_since is not None]
        for passage in waiting:
            passage.cut()

    def close(self) -> None:
        """`end`, and end the thread that looks after slow clients."""
        self.end()
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            guard = self._guard
        if guard is not None:
            guard.join()

    # ---- for passages --------------------------------------------------------------------------------------------

    def add(self, passage: Passage) -> None:
        with self._changed:
            self._passages.add(passage)
            if self._guard is None and not self._closed:
                self._guard = threading.Thread(target=self._look_after, name="epochlog-traffic", daemon=True)
                self._guard.start()
            self._changed.notify_all()

    def remove(self, passage: Passage) -> None:
        with self._changed:
            self._passages.discard(passage)
            self._changed.notify_all()

    def check(self, passage: Passage) -> None:
        """Raise why this call must end, if it must."""
        if self._ending:
            raise ServerUnavailable(
                "this server is ending; ask again when it is back, with the same txn if rows were put"
            )
        if self._clock() >= passage.ends_s:
            raise CallTimedOut(
                f"this call has taken {self._limits.call_s:g} s, which is as long as one may; ask for less at a time"
            )
        if passage.call.cancelled():
            raise ServerUnavailable("the client has cancelled this call, or its deadline has passed")

    def take(self, passage: Passage, size: int, *, wait: bool) -> bool:
        """Give the call room for so many bytes, in the order in which calls ask; False without room and `wait`."""
        with self._changed:
            if not self._queue and self._fits(size):
                self._taken += size
                return True
            if not wait:
                return False
            self._queue.append(passage)
            try:
                while not (self._queue[0] is passage and self._fits(size)):
                    self.check(passage)
                    self._changed.wait(_LOOK_S)
                self._taken += size
                return True
            finally:
                self._queue.remove(passage)
                self._changed.notify_all()

    def give(self, size: int) -> None:
        with self._changed:
            self._taken -= size
            self._changed.notify_all()

    def _fits(self, size: int) -> bool:
        return not self._taken or self._taken + size <= self._limits.in_flight_bytes

    # ---- slow clients --------------------------------------------------------------------------------------------

    def _look_after(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    return
                now = self._clock()
                ends = [(passage, self._patience_ends(passage)) for passage in self._passages]
                late = [passage for passage, at in ends if at <= now]
                if not late:
                    next_s = min((at for _, at in ends), default=None)
                    often_s = min(self._limits.stall_s / 4, self._limits.call_s)  # a call may begin to wait meanwhile
                    self._changed.wait(None if next_s is None else min(next_s - now, often_s))
            for passage in late:
                passage.cut()

    def _patience_ends(self, passage: Passage) -> float:
        """Until when a call may wait for its client; for ever if it does not."""
        since = passage.waits_since
        return float("inf") if since is None else min(since + self._limits.stall_s, passage.ends_s)

    def now_s(self) -> float:
        return self._clock()


class Passage:
    """One call's way through the traffic."""

    def __init__(self, traffic: Traffic, call: Call, ends_s: float) -> None:
        self._traffic = traffic
        self._held = 0
        self.call = call
        self.ends_s = ends_s
        self.waits_since: float | None = None

    def __enter__(self) -> Self:
        self._traffic.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.free()
        self._traffic.remove(self)

    def check(self) -> None:
        """Raises ServerUnavailable or CallTimedOut when the call must end."""
        self._traffic.check(self)

    def room(self, size: int, *, wait: bool = True) -> bool:
        """Room for so many bytes more; waits until there is some, unless told not to."""
        done = self._traffic.take(self, size, wait=wait)
        self._held += size if done else 0
        return done

    def free(self) -> None:
        """Give back all room that this call has."""
        self._traffic.give(self._held)
        self._held = 0

    def cut(self) -> None:
        """The client has kept the call waiting for too long: cut it off."""
        self.waits_since = self._traffic.now_s()  # once more after the same time, if it did not help
        self.call.hang_up()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Inside, the call waits for its client."""
        self.waits_since = self._traffic.now_s()
        try:
            yield
        finally:
            self.waits_since = None

    def outward(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches for the client, in messages of bounded size; the next is read when the last has been taken."""
        size = GUESS_BYTES
        while True:
            self.free()
            self.check()
            self.room(size)
            batch = next(batches, None)
            if batch is None:
                return
            size = batch.nbytes
            self._hold(size)
            for message in messages(batch):
                with self.waiting():
                    yield message
                self.check()

    def _hold(self, size: int) -> None:
        """So much is in memory, whatever room was asked for; nobody else gets the difference in between."""
        self._traffic.give(self._held - size)
        self._held = size


def messages(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Slices of a batch that are small enough to be sent one by one."""
    each = max(1, min(MESSAGE_ROWS, MESSAGE_BYTES * batch.num_rows // max(1, batch.nbytes)))
    if batch.num_rows <= each:
        yield batch
        return
    for start in range(0, batch.num_rows, each):
        yield batch.slice(start, each)
