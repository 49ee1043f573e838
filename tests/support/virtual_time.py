"""Virtual time that advances when all threads wait for it, so that each run of a pipeline is equal."""

from __future__ import annotations

import threading
from collections.abc import Callable

from lab import Lab


class VirtualTime:
    """The pauses of a pipeline, and the clock of its lab with it."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._now_ms = 0
        self._changed = threading.Condition()
        self._waiting: dict[int, tuple[int, threading.Event]] = {}

    def now_ms(self) -> int:
        return self._now_ms

    def wait(self, event: threading.Event, timeout_ms: int) -> bool:
        due_ms, me = self._now_ms + timeout_ms, threading.get_ident()
        with self._changed:
            self._waiting[me] = due_ms, event
            self._changed.notify_all()
            while not event.is_set() and self._now_ms < due_ms:
                self._changed.wait(0.001)  # an event is set without a word to this condition
            del self._waiting[me]
            self._changed.notify_all()
        return event.is_set()

    def settle(self, resting: Callable[[], bool]) -> None:
        """Until a thread waits that has no reason to go on, while nothing else is at work."""

        def settled() -> bool:
            going = [event.is_set() or self._now_ms >= due_ms for due_ms, event in self._waiting.values()]
            if any(going):
                self._changed.notify_all()
            return (
                len(going) == 1
                and resting()
                and not any(event.is_set() or self._now_ms >= due_ms for due_ms, event in self._waiting.values())
            )

        with self._changed:
            while not settled():
                self._changed.wait(0.001)

    def advance(self, ms: int, resting: Callable[[], bool]) -> None:
        """Let time pass and all that becomes due be done; `resting` says if no step is at work."""
        self.settle(resting)
        self.pass_ms(ms)
        self.settle(resting)

    def pass_ms(self, ms: int) -> None:
        """Let time pass."""
        with self._changed:
            self._now_ms += ms
            self._lab.now_ms += ms
            self._changed.notify_all()

    def let_go(self) -> None:
        """Threads look at their events again."""
        with self._changed:
            self._changed.notify_all()


class StandingTime:
    """Pauses whose clock stands still: no idle job is looked at again, and no step is long."""

    def now_ms(self) -> int:
        return 0

    def wait(self, event: threading.Event, timeout_ms: int) -> bool:
        return event.wait(timeout_ms / 1000)
