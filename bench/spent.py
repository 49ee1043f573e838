"""CPU time and wall time: of this process, and of another one until it has nothing more to do."""

from __future__ import annotations

import time
from dataclasses import dataclass

TICK_S = 0.1
IDLE_SHARE = 0.1
"""Share of one core below which a process waits for more."""
IDLE_S = 2.5
"""Time for which it must wait: a mini-batch of Flink may wait for half a second."""


@dataclass(frozen=True, slots=True)
class Spent:
    """Milliseconds of CPU, of all threads, and of the clock on the wall."""

    cpu_ms: float = 0.0
    wall_ms: float = 0.0

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.cpu_ms + other.cpu_ms, self.wall_ms + other.wall_ms)

    def __sub__(self, other: Spent) -> Spent:
        return Spent(self.cpu_ms - other.cpu_ms, self.wall_ms - other.wall_ms)

    def by(self, count: int) -> Spent:
        """Return the mean of so many."""
        return Spent(self.cpu_ms / count, self.wall_ms / count)


def spent() -> Spent:
    """Return what this process has spent; the difference of two is what was spent between them."""
    return Spent(1000 * time.process_time(), 1000 * time.perf_counter())


def spent_by(pid: int) -> Spent:
    """Return what another process has spent, with threads that have ended."""
    clock = ~pid << 3 | 2  # its CPU clock, as clock_getcpuclockid(3) makes it
    return Spent(1000 * time.clock_gettime(clock), 1000 * time.perf_counter())


def settled(pid: int) -> Spent:
    """Wait until a process has nothing more to do; return all that it has spent, at the time when it last was busy."""
    busy_ms, before = time.perf_counter() * 1000, spent_by(pid)
    while before.wall_ms - busy_ms < 1000 * IDLE_S:
        time.sleep(TICK_S)
        now = spent_by(pid)
        since = now - before
        if since.cpu_ms > IDLE_SHARE * since.wall_ms:
            busy_ms = now.wall_ms
        before = now
    return Spent(before.cpu_ms, busy_ms)
