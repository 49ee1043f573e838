"""Clocks that the catalog knows: wall clock and boot clock of each of the newest boots, in a record of its own.

Rules: docs/SEMANTICS.md, 1.60, 1.65 and 1.68. A note is renewed by commits, once it is a minute old.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace

from epochlog.store.catalog.keys import CLOCKS
from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.catalog.records import Record, checked
from epochlog.store.types.epoch import to_unix_ms

KEPT = 8
"""Boots whose clocks are known: those that committed last."""
MAX_JUMP_MS = 3_600_000
"""Longest time by which a wall clock may move ahead of the boot clock between two commits."""
NOTE_MS = 60_000
"""Age of a note after which a commit renews it. Clocks that differ by less are taken as equal."""


@dataclass(frozen=True, slots=True)
class ClockReading:
    """Wall clock and boot clock at one moment, in ms."""

    host: str
    """Name of the machine."""
    boot: str
    """Id of the boot."""
    boot_ms: int
    wall_ms: int

    def jump_ms(self, before: ClockReading | KnownClock) -> int:
        """Return the time by which the wall clock has moved ahead of the boot clock since then; negative: back."""
        return (self.wall_ms - before.wall_ms) - (self.boot_ms - before.boot_ms)


@dataclass(frozen=True, slots=True)
class KnownClock:
    """Note of a clock."""

    host: str
    boot: str
    boot_ms: int
    wall_ms: int
    ahead_ms: Mapping[str, int] = field(default_factory=dict)
    """By how much it leads slower clocks at most, by their boots."""
    behind_ms: int = 0
    """By how much it is behind the latest time that it has shown in this boot, counted on by the boot clock."""

    def behind_at(self, now: ClockReading) -> int:
        """Return `behind_ms` as of a later reading."""
        return max(0, self.behind_ms - now.jump_ms(self))

    def jumped_ms(self, now: ClockReading, last_epoch: int) -> int:
        """Return the time by which the clock has jumped ahead since the note; 0 if it has not, or if the newest epoch
        shows that the time has passed.
        """
        jump_ms = now.jump_ms(self)
        is_ahead = now.wall_ms > to_unix_ms(last_epoch) + MAX_JUMP_MS
        return jump_ms if jump_ms > MAX_JUMP_MS and is_ahead else 0

    def is_fresh(self, now: ClockReading) -> bool:
        """Return True if the note needs no renewal."""
        return 0 <= now.boot_ms - self.boot_ms < NOTE_MS and abs(now.jump_ms(self)) < NOTE_MS

    @classmethod
    @checked
    def from_record(cls, record: Record) -> KnownClock:
        ahead_ms = {str(boot): int(ms) for boot, ms in record["ahead_ms"].items()}
        behind_ms = record.get("behind_ms", 0)  # absent in notes of earlier releases
        return cls(record["host"], record["boot"], record["boot_ms"], record["wall_ms"], ahead_ms, behind_ms)


@dataclass(frozen=True, slots=True)
class KnownClocks:
    """Notes of clocks, one of each boot, the newest last."""

    clocks: tuple[KnownClock, ...] = ()

    def of(self, boot: str) -> KnownClock | None:
        """Return the note of a boot; None if there is none."""
        return next((clock for clock in self.clocks if clock.boot == boot), None)

    def noted(self, now: ClockReading) -> KnownClocks:
        """Return the notes with one of this reading."""
        others = tuple(clock for clock in self.clocks if clock.boot != now.boot)[1 - KEPT :]
        kept = {clock.boot for clock in others}
        ahead_ms = {boot: ms for boot, ms in self._ahead_ms(now).items() if boot in kept}
        before = self.of(now.boot)
        behind_ms = 0 if before is None else before.behind_at(now)
        return KnownClocks((*others, KnownClock(now.host, now.boot, now.boot_ms, now.wall_ms, ahead_ms, behind_ms)))

    def _ahead_ms(self, now: ClockReading) -> dict[str, int]:
        """Return by how much this clock leads slower ones at most. A clock that noted an earlier time after this
        clock's own note is slower, and showed at least that time.
        """
        before = self.of(now.boot)
        if before is None:
            return {}
        jump_ms = now.jump_ms(before)
        ahead_ms = {boot: ms + jump_ms for boot, ms in before.ahead_ms.items() if ms + jump_ms > 0}
        for other in self.clocks[self.clocks.index(before) + 1 :]:
            ahead_ms.pop(other.boot, None)
            if other.wall_ms < before.wall_ms + jump_ms - NOTE_MS:
                ahead_ms[other.boot] = now.wall_ms - other.wall_ms
        return ahead_ms

    def slowest_ms(self, now: ClockReading) -> int:
        """Return the time of the slowest clock: this one, less by how much it leads others. After a jump it is counted
        by the boot clock.
        """
        now = self._without_jump(now)
        return now.wall_ms - max(self._ahead_ms(now).values(), default=0)

    def latest_ms(self, now: ClockReading) -> int:
        """Return the latest time that it can be: that of this clock, or the time that the boot clock counts from the
        latest one that it has shown in this boot. After a jump it is counted by the boot clock.
        """
        before, now = self.of(now.boot), self._without_jump(now)
        return now.wall_ms + (0 if before is None else before.behind_at(now))

    def _without_jump(self, now: ClockReading) -> ClockReading:
        """Return the reading; after a jump, with the time that the boot clock counts from the note."""
        before = self.of(now.boot)
        jump_ms = 0 if before is None else now.jump_ms(before)
        return replace(now, wall_ms=now.wall_ms - jump_ms) if jump_ms > MAX_JUMP_MS else now

    def to_record(self) -> Record:
        return {"clocks": [{**asdict(clock), "ahead_ms": dict(clock.ahead_ms)} for clock in self.clocks]}

    @classmethod
    @checked
    def from_record(cls, record: Record) -> KnownClocks:
        return cls(tuple(map(KnownClock.from_record, record["clocks"])))


def read_clocks(view: ReadTxn) -> KnownClocks:
    """Return the clocks that the catalog knows; none in a store of an earlier release."""
    record = view.get(CLOCKS)
    return KnownClocks() if record is None else KnownClocks.from_record(record)
