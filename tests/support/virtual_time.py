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
            self._changed.wait_for(lambda: event.is_set() or self._now_ms >= due_ms)
            del self._waiting[me]
            self._changed.notify_all()
        return event.is_set()

    def settle(self, threads: Callable[[], int]) -> None:
        """Until so many threads wait, and none of them has a reason to go on."""

        def settled() -> bool:
            going = [event.is_set() or self._now_ms >= due_ms for due_ms, event in self._waiting.values()]
            if any(going):
                self._changed.notify_all()
            return len(going) == threads() and not any(going)

        with self._changed:
            self._changed.wait_for(settled)

    def advance(self, ms: int, threads: Callable[[], int]) -> None:
        """Let time pass and all that becomes due be done, for so many threads that wait between their steps."""
        self.settle(threads)
        with self._changed:
            self._now_ms += ms
            self._lab.now_ms += ms
            self._changed.notify_all()
        self.settle(threads)

    def let_go(self) -> None:
        """Threads look at their events again."""
        with self._changed:
            self._changed.notify_all()
