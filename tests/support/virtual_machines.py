"""Machines on virtual time, each with a wall clock that can be wrong and a boot clock that never jumps."""

from __future__ import annotations

from dataclasses import dataclass, field

from epochlog.store.env.clock import BootTime

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
START_MS = 1_800_000_000_000


@dataclass
class TrueTime:
    """The true time, in Unix ms."""

    now_ms: int = START_MS


@dataclass
class Machine:
    """A clock for `el.open`: the true time and an error. `reboot` begins another boot, `jump` changes the error."""

    world: TrueTime
    name: str
    error_ms: int = 0
    boots: int = 0
    booted_ms: int = field(default=START_MS - HOUR_MS)

    def __call__(self) -> int:
        return self.world.now_ms + self.error_ms

    def boot_time(self) -> BootTime:
        return BootTime(f"{self.name}-{self.boots}", self.world.now_ms - self.booted_ms)

    def jump(self, ms: int) -> None:
        self.error_ms += ms

    def reboot(self) -> None:
        self.boots += 1
        self.booted_ms = self.world.now_ms
