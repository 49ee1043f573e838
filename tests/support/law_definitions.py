"""Complete, valid and the largest valid epoch by their definitions, over the commits that a test itself has seen.

Nothing here looks into the store: what is asked of the library is compared with what must follow from its own commits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class LineageEntry:
    """A commit of one table. `changed`: it had rows, or was the end of the data."""

    epoch: int
    changed: bool
    ends: bool = False


@dataclass
class Lineage:
    """Commits by table, oldest first; `upstreams` of derived tables (a root has none)."""

    log: dict[str, list[LineageEntry]] = field(default_factory=dict)
    upstreams: dict[str, tuple[str, ...]] = field(default_factory=dict)
    due: dict[str, int] = field(default_factory=dict)  # from where on a job will commit whatever its upstreams do

    def add_table(self, name: str, upstreams: tuple[str, ...] = ()) -> None:
        self.log[name] = []
        self.upstreams[name] = upstreams

    def position(self, table: str) -> int:
        return self.log[table][-1].epoch if self.log[table] else 0

    def ended(self, table: str) -> bool:
        return bool(self.log[table]) and self.log[table][-1].ends

    def changed(self, table: str, after: int, until: int) -> bool:
        return any(entry.changed and after < entry.epoch <= until for entry in self.log[table])

    def at(self, last_epoch: int) -> Moment:
        """Return the lineage at this last epoch, with derived facts cached."""
        return Moment(self, last_epoch)


@dataclass
class Moment:
    """One moment of a lineage; answers are remembered."""

    lineage: Lineage
    last_epoch: int
    _complete: dict[tuple[str, int], bool] = field(default_factory=dict)
    _valid: dict[tuple[str, int], bool] = field(default_factory=dict)

    def complete(self, table: str, epoch: int) -> bool:
        """Return True if no later commit can land in the table at or below the epoch."""
        if (table, epoch) not in self._complete:
            self._complete[table, epoch] = self._is_complete(table, epoch)
        return self._complete[table, epoch]

    def valid(self, table: str, epoch: int) -> bool:
        """Reading the table at the epoch keeps the law."""
        if (table, epoch) not in self._valid:
            self._valid[table, epoch] = self._is_valid(table, epoch)
        return self._valid[table, epoch]

    def largest_valid(self, tables: Iterable[str], until: int, floor: int) -> int | None:
        """The largest epoch of [floor, until] valid for all: `until`, or one just before something came or is due."""
        tables = list(tables)
        marks = {min(until, self.last_epoch)}
        marks |= {entry.epoch - 1 for log in self.lineage.log.values() for entry in log}
        marks |= {epoch - 1 for epoch in self.lineage.due.values()}
        wanted = sorted((mark for mark in marks if floor <= mark <= until), reverse=True)
        return next((mark for mark in wanted if all(self.valid(table, mark) for table in tables)), None)

    def _is_complete(self, table: str, epoch: int) -> bool:
        if epoch > self.last_epoch:
            return False
        ups, position = self.lineage.upstreams[table], self.lineage.position(table)
        if not ups or epoch <= position or self.lineage.ended(table):
            return True
        return (
            position > 0
            and epoch < self.lineage.due.get(table, epoch + 1)
            and all(self.complete(up, epoch) and not self.lineage.changed(up, position, epoch) for up in ups)
        )

    def _is_valid(self, table: str, epoch: int) -> bool:
        if not self.complete(table, epoch):
            return False
        ups = self.lineage.upstreams[table]
        commit = max((entry.epoch for entry in self.lineage.log[table] if entry.epoch <= epoch), default=0)
        if ups and self.lineage.ended(table) and commit == self.lineage.position(table):
            return True  # what its upstreams do later is not its input
        if ups and commit == self.lineage.position(table) and epoch >= self.lineage.due.get(table, epoch + 1):
            return False
        return not ups or (
            commit > 0 and all(self.valid(up, epoch) and not self.lineage.changed(up, commit, epoch) for up in ups)
        )
