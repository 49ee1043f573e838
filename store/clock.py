"""The one place that asks the machine for the time: wall time in Unix ms for epochs, monotonic time for waiting."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from ..errors import InvalidInput

Clock = Callable[[], int]
"""Returns Unix milliseconds. It drives epochs, boundaries, retention, leases and lag; it may jump."""


@dataclass(frozen=True, slots=True)
class SystemClock:
    """The wall clock of this machine; calling it gives Unix milliseconds."""

    def __call__(self) -> int:
        return time.time_ns() // 1_000_000


def monotonic_s() -> float:
    """Seconds of a clock that never jumps; only differences mean anything."""
    return time.monotonic()


def seconds(value: float | timedelta, what: str) -> float:
    """Seconds of a number or a timedelta. `what` names the argument in the InvalidInput for anything else."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise InvalidInput(f"{what} must be seconds >= 0 or a timedelta, not {value!r}")
    return float(value)


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment in monotonic time after which a call stops waiting."""

    at_s: float

    @classmethod
    def after(cls, timeout: float | timedelta) -> Deadline:
        """The moment `timeout` (seconds or a timedelta) from now."""
        return cls(monotonic_s() + seconds(timeout, "timeout"))

    @property
    def left_s(self) -> float:
        """Seconds left; 0.0 once it has passed."""
        return max(0.0, self.at_s - monotonic_s())

    @property
    def passed(self) -> bool:
        return self.left_s == 0.0
