"""CPU time and wall time: of this process, and of another one until it has nothing more to do."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

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
    """Return what another process has spent."""
    user, system = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[11:13]
    ticks = os.sysconf("SC_CLK_TCK")
    return Spent(1000 * (int(user) + int(system)) / ticks, 1000 * time.perf_counter())


def settled(pid: int) -> Spent:
    """Wait until a process has nothing more to do; return what it had spent when it last did something."""
    last = before = spent_by(pid)
    while before.wall_ms - last.wall_ms < 1000 * IDLE_S:
        time.sleep(TICK_S)
        now = spent_by(pid)
        since = now - before
        if since.cpu_ms > IDLE_SHARE * since.wall_ms + 10:  # a tick of the kernel is 10 ms
            last = now
        before = now
    return last
