"""Pauses: the clock and the waits of a pipeline."""

from __future__ import annotations

import threading
from typing import Protocol

from epochlog.store.env.clock import monotonic_s


class Pauses(Protocol):
    """Interface of the clock and the waits of the pipeline's threads; tests replace it."""

    def now_ms(self) -> int:
        """Return the milliseconds of a clock that never jumps."""
        ...

    def wait(self, event: threading.Event, timeout_ms: int) -> bool:
        """Wait until the event is set (True) or the time is over (False)."""
        ...


class RealPauses:
    """Pauses in real monotonic time."""

    def now_ms(self) -> int:
        return int(monotonic_s() * 1000)

    def wait(self, event: threading.Event, timeout_ms: int) -> bool:
        return event.wait(timeout_ms / 1000)
