"""Actor of the simulation: it makes rows or answers, works at barriers, reports, and may die and become a zombie."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from epochlog.checkpoint import CheckpointManager, Outbox, Report
from epochlog.checkpoint.manager.commands import Actor, Decision, Inject, Start

from .catalog import DataPiece, SimulatedCatalog
from .shapes import QUIET_MS, START_MS, JobShape

REPEAT_MS = 1_000


class Surroundings(Protocol):
    """Interface of the world to its actors; times in ms."""

    now: int
    until: int
    catalog: SimulatedCatalog

    def at(self, when: int, action: Callable[[], object]) -> None: ...
    def to_core(self, shape: JobShape, call: Callable[[CheckpointManager], list[Decision]]) -> None: ...
    def send_report(self, shape: JobShape, report: Report) -> None: ...
    def work_ms(self, shape: JobShape) -> int: ...
    def declines(self, shape: JobShape) -> bool: ...
    def piece(
        self, shape: JobShape, actor: Actor, incarnation: int, changes: Mapping[Any, int | None]
    ) -> DataPiece: ...


class Process:
    """Process of an actor, from its attach to its restart."""

    def __init__(self, world: Surroundings, shape: JobShape, actor: Actor) -> None:
        self.world, self.shape, self.actor = world, shape, actor
        self.incarnation = 0
        self.started = self.finished = False
        self.alive_until = 1 << 62
        self.outbox = Outbox()
        self.offset = 0
        self.limit: int | None = None
        self.written: dict[Any, int] = {}
        self.position = 0
        self.seen = self.reported = 0
        self.last: Report | None = None

    @property
    def lives(self) -> bool:
        return self.world.now < self.alive_until

    # ---- start ---------------------------------------------------------------------------------------------------

    def start(self, start: Start, state: bytes) -> None:
        if not self.lives or self.started or start.incarnation != self.incarnation:
            return
        self.started, self.finished = True, start.finished
        self.offset = int(state or b"0")
        if self.shape.derived:
            table = self.world.catalog.tables[self.shape.table]
            self.position = self.world.catalog.records[self.shape.name].position
            self.written = self._share(table.at(self.position))
        elif not self.finished:
            self.limit = self.shape.rows[self.actor[1]]
            if self.limit is not None:
                ends = START_MS + -(-self.limit * 1_000 // self.shape.per_second)
                self.world.at(max(ends, self.world.now + 1), self.report_end)

    def report_end(self) -> None:
        """Report the end of data to the coordinator, repeatedly, because messages get lost."""
        if self.lives and not self.finished and self.world.now < self.world.until:
            self.world.to_core(self.shape, lambda core: core.ended(self.shape.name, self.actor, self.incarnation))
            self.world.at(self.world.now + REPEAT_MS, self.report_end)

    # ---- barriers ------------------------------------------------------------------------------------------------

    def inject(self, inject: Inject) -> None:
        """Take a barrier from the coordinator, which may come twice or out of order."""
        if not self.lives or not self.started or self.finished:
            return
        if inject.barrier_id == self.reported and self.last is not None:
            self.world.send_report(self.shape, self.last)
        if inject.barrier_id <= self.seen:
            return
        self.seen = inject.barrier_id
        self.world.at(self.world.now + self.world.work_ms(self.shape), lambda: self.work(inject))

    def work(self, inject: Inject) -> None:
        if not self.lives or self.seen != inject.barrier_id:
            return
        if self.world.declines(self.shape):
            self.world.to_core(
                self.shape,
                lambda core: core.decline(self.shape.name, inject.barrier_id, self.actor, self.incarnation, "full"),
            )
            return
        rows = {} if self.shape.derived else self._make_rows()
        self.report(inject, self._changes(inject, rows), self._ended(inject))

    def report(self, inject: Inject, changes: dict[Any, int | None], ended: bool) -> None:
        self.reported = inject.barrier_id
        sealed = {}
        if changes:
            piece = self.world.piece(self.shape, self.actor, self.incarnation, changes)
            sealed = {self.shape.table: [piece]}
        segments = self.outbox.report(inject.barrier_id, inject.taken[self.actor], sealed)
        state = b"" if self.shape.derived else str(self.offset).encode()
        self.last = Report(self.shape.name, inject.barrier_id, self.actor, self.incarnation, segments, state, ended)
        self.world.send_report(self.shape, self.last)

    # ---- work ----------------------------------------------------------------------------------------------------

    def _make_rows(self) -> dict[Any, int]:
        """Make the rows up to now, `per_second` in each second; row n of source i is (i, n)."""
        due = (min(self.world.now, QUIET_MS) - START_MS) * self.shape.per_second // 1_000
        target = max(self.offset, due if self.limit is None else min(due, self.limit))
        rows = {(self.actor[1], n): 1 + n % 5 for n in range(self.offset, target)}
        self.offset = target
        return rows

    def _ended(self, inject: Inject) -> bool:
        if self.shape.derived:
            return self.world.catalog.inputs_ended(self.shape, inject.barrier.curr)
        return inject.drain or (self.limit is not None and self.offset >= self.limit)

    def _changes(self, inject: Inject, rows: dict[Any, int]) -> dict[Any, int | None]:
        """Return a load's rows; for a job the difference of this actor's part of the answer since its last write."""
        if not self.shape.derived:
            return dict(rows)
        if inject.barrier.curr == self.position:
            return {}  # written for an aborted attempt
        self.position = inject.barrier.curr
        new = self._share(self.world.catalog.answer(self.shape, self.position))
        out: dict[Any, int | None] = {key: value for key, value in new.items() if self.written.get(key) != value}
        out.update({key: None for key in self.written if key not in new})
        self.written = new
        return out

    def _share(self, state: dict[Any, int]) -> dict[Any, int]:
        return {key: value for key, value in state.items() if ord(key[-1]) % self.shape.parts == self.actor[1]}
