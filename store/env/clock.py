"""Clocks: wall time in Unix ms for epochs, monotonic time for waiting. No other module reads the machine's clock."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Protocol, runtime_checkable

from epochlog.errors import InvalidInput

Clock = Callable[[], int]
"""Function that returns Unix milliseconds. It drives epochs, boundaries, retention, leases and lag; it may jump."""


@dataclass(frozen=True, slots=True)
class BootTime:
    """Reading of a machine's boot clock: milliseconds since its boot. It never jumps."""

    boot: str
    """Id of the boot."""
    ms: int


@runtime_checkable
class HasBootTime(Protocol):
    """Protocol of a Clock whose machine has a boot clock, by which a jump of the Clock is detected."""

    def __call__(self) -> int:
        """Return Unix milliseconds."""
        ...

    def boot_time(self) -> BootTime | None:
        """Return the reading of the boot clock now; None if the machine has none."""
        ...


@dataclass(frozen=True, slots=True)
class SystemClock:
    """Wall clock of this machine. A call returns Unix milliseconds."""

    def __call__(self) -> int:
        return time.time_ns() // 1_000_000

    def boot_time(self) -> BootTime | None:
        boot = _boot_id()
        return BootTime(boot, time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000) if boot else None


@cache
def _boot_id() -> str:
    """Return the id of the machine's boot and of the process's time namespace; "" where the system has none."""
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return ""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.stat('/proc/self/ns/time').st_ino}"
    except OSError:
        return ""


UNITS_S = {"": 1, "ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}
"""Seconds of each unit of a length of time, as text."""

FOR_EVER = timedelta(days=365_000)
"""The longest span that is accepted: a thousand years."""


def monotonic_s() -> float:
    """Return the seconds of a clock that never jumps. Only differences between two values have a meaning."""
    return time.monotonic()


def seconds(value: float | timedelta, argument: str) -> float:
    """Return the seconds of a number or a timedelta, at most FOR_EVER. Raise InvalidInput for other values; it names
    the `argument`.
    """
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise InvalidInput(f"{argument} must be seconds >= 0 or a timedelta, not {value!r}")
    return float(min(value, FOR_EVER.total_seconds()))


@dataclass(frozen=True, slots=True)
class Deadline:
    """Point in monotonic time after which a call stops waiting."""

    at_s: float

    @classmethod
    def after(cls, timeout: float | timedelta) -> Deadline:
        """Return the deadline that is `timeout` (seconds or a timedelta) from now."""
        return cls(monotonic_s() + seconds(timeout, "timeout"))

    @property
    def remaining_s(self) -> float:
        """Return the seconds until the deadline; 0.0 once it has passed."""
        return max(0.0, self.at_s - monotonic_s())

    @property
    def passed(self) -> bool:
        return self.remaining_s == 0.0


CHECK_S = 0.1
"""Time between two checks of a wait that a check may end."""


def wait_with_checks(wait: Callable[[float], bool], timeout_s: float, check: Callable[[], None] | None) -> None:
    """Call `wait` until it returns True or the timeout has passed, with a check before each CHECK_S. The check raises
    an error to end the wait.
    """
    deadline = Deadline.after(timeout_s)
    while True:
        if check is not None:
            check()
        if wait(deadline.remaining_s if check is None else min(deadline.remaining_s, CHECK_S)) or deadline.passed:
            return


def parse_seconds(text: str) -> float:
    """Parse a length of time into seconds: a decimal number and a unit of UNITS_S (default: seconds), without a sign.
    At most FOR_EVER. Raises InvalidInput.
    """
    match = re.fullmatch(r"(\d+\.?\d*)([a-z]*)", text, re.ASCII)
    value = float(match[1]) * UNITS_S.get(match[2], math.nan) if match else math.nan
    if not 0 <= value < math.inf:
        raise InvalidInput(f"a length of time is needed, such as 30 (seconds), 500ms, 30m, 12h or 7d, not {text!r}")
    return min(value, FOR_EVER.total_seconds())
