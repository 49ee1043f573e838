"""What each policy chooses, by its definition: every epoch that could be chosen is tried, newest first.

Answers are the epochs by table, or the class of the error. Nothing here is shared with the library but its errors and
the arithmetic of epochs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from epochlog.errors import (
    EpochExpired,
    EpochlogError,
    EpochNotCommitted,
    NoConsistentEpoch,
    StalenessExceeded,
    TableNotReadable,
)
from epochlog.store.epoch import to_unix_ms
from model.history import History

Answer = dict[str, int] | type[EpochlogError]


@dataclass(frozen=True)
class Question:
    """One moment of a history: which tables a query reads, which are creating or parked, and the clock."""

    history: History
    tables: list[str]
    away: frozenset[str]
    clock_ms: int
    known: dict[tuple[str, int], bool] = field(default_factory=dict)

    def valid(self, table: str, epoch: int) -> bool:
        if (table, epoch) not in self.known:
            self.known[table, epoch] = self.history.valid(table, epoch)
        return self.known[table, epoch]

    @property
    def floor(self) -> int:
        return max(self.history.safe_epoch.get(table, 0) for table in self.tables)

    def largest(self, members: Iterable[str], until: int) -> int | None:
        """The largest epoch up to there at which all members are valid and the tables of the query still readable."""
        history, members = self.history, list(members)
        floor = self.floor
        tried = sorted({min(until, history.last_epoch), *history.marks()}, reverse=True)
        within = (epoch for epoch in tried if floor <= epoch <= until)
        return next((epoch for epoch in within if all(self.valid(table, epoch) for table in members)), None)

    def same(self, epoch: int | None, error: type[EpochlogError]) -> Answer:
        return error if epoch is None else dict.fromkeys(self.tables, epoch)


def global_(question: Question, *, include_creating: bool) -> Answer:
    history = question.history
    left_out = set() if include_creating else {table for table in history.names if _cut_off(question, table)}
    if left_out.intersection(question.tables):
        return TableNotReadable
    members = [table for table in history.names if table not in left_out]
    return question.same(question.largest(members, history.last_epoch), NoConsistentEpoch)


def _cut_off(question: Question, table: str) -> bool:
    """Whether it is creating or parked, or descends from one that is."""
    return table in question.away or any(_cut_off(question, up) for up in question.history.upstreams(table))


def aligned(question: Question) -> Answer:
    return question.same(question.largest(question.tables, question.history.last_epoch), NoConsistentEpoch)


def latest(question: Question) -> Answer:
    return {table: question.history.position(table) for table in question.tables}


def as_of(question: Question, until: int) -> Answer:
    if until < question.floor:
        return EpochExpired
    return question.same(question.largest(question.tables, until), NoConsistentEpoch)


def at_least(question: Question, epoch: int) -> Answer:
    found = question.largest(question.tables, question.history.last_epoch)
    return question.same(found if found is not None and found >= epoch else None, NoConsistentEpoch)


def bounded(question: Question, max_lag_ms: float) -> Answer:
    found = question.largest(question.tables, question.history.last_epoch)
    if found is None or any(lag_ms(question, table, found) > max_lag_ms for table in question.tables):
        return StalenessExceeded
    return question.same(found, StalenessExceeded)


def exact(question: Question, epochs: Mapping[str, int]) -> Answer:
    for table in question.tables:
        if epochs[table] < question.history.safe_epoch.get(table, 0):
            return EpochExpired
        if not question.history.complete(table, epochs[table]):
            return EpochNotCommitted
    return {table: epochs[table] for table in question.tables}


# ---- lag -----------------------------------------------------------------------------------------------------------


def lag_ms(question: Question, table: str, epoch: int) -> int:
    """The age of the oldest change that a read of the table at the epoch does not reflect; 0 when there is none."""
    lacking = _lacking(question.history, table, epoch)
    return max(0, question.clock_ms - to_unix_ms(min(lacking))) if lacking else 0


def _lacking(history: History, table: str, epoch: int) -> set[int]:
    """Its own changes past the epoch, what its commit there had not taken in, and what is still on its way to it; each
    put back to the changes that caused it.
    """
    own = set().union(*(_causes(history, table, change) for change in _changes(history, table, epoch)))
    return own | _untaken(history, table, history.commit_at(table, epoch)) | _on_the_way(history, table)


def _on_the_way(history: History, table: str) -> set[int]:
    """What the newest state of the table lacks, and the newest states of all that it is made of."""
    if table in history.roots or history.ended(table):
        return set()
    ups = (_on_the_way(history, up) for up in history.upstreams(table))
    return _untaken(history, table, history.position(table)).union(*ups)


def _untaken(history: History, table: str, commit: int) -> set[int]:
    """Changes of its upstreams past one of its commits; none past the last commit of a table whose data has ended."""
    if history.ended(table) and commit == history.position(table):
        return set()
    ups = history.upstreams(table)
    return set().union(*(_causes(history, up, change) for up in ups for change in _changes(history, up, commit)))


def _causes(history: History, table: str, change: int) -> set[int]:
    """A change of a table, and all changes above it that went into it."""
    before = history.commit_at(table, change - 1)
    found = {change}
    for up in history.upstreams(table):
        for cause in _changes(history, up, before, change):
            found |= _causes(history, up, cause)
    return found


def _changes(history: History, table: str, after: int, until: int | None = None) -> list[int]:
    return [
        entry.epoch
        for entry in history.log[table]
        if entry.changed and after < entry.epoch and (until is None or entry.epoch <= until)
    ]
