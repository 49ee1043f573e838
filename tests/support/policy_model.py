"""Reference model of the consistency policies: it tries every candidate epoch, newest first.

Answers are the epochs by table, or the class of the error. Nothing here is shared with the library but its errors and
the arithmetic of epochs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from epoch_histories import INTERVAL_MS, History
from epochlog.errors import (
    EpochExpired,
    EpochlogError,
    EpochNotCommitted,
    NoConsistentEpoch,
    StalenessExceeded,
    TableNotReadable,
)
from epochlog.store.types.epoch import to_unix_ms

Answer = dict[str, int] | type[EpochlogError]


@dataclass(frozen=True)
class Question:
    """One moment of a history: which tables a query reads, which are creating or parked, and the clock.

    Of `global`: the bound, which jobs are marked as late, and whose history is kept for twice the bound.
    """

    history: History
    tables: list[str]
    away: frozenset[str]
    clock_ms: int
    bound_ms: int = 600_000
    parked: frozenset[str] = frozenset()
    marked: frozenset[str] = frozenset()
    long_kept: frozenset[str] = frozenset()
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
    if include_creating:
        return question.same(question.largest(history.names, history.last_epoch), NoConsistentEpoch)
    members, epoch = taking_part(question)
    if not members.issuperset(question.tables):
        return TableNotReadable
    return question.same(epoch if epoch >= question.floor else None, NoConsistentEpoch)


def taking_part(question: Question) -> tuple[set[str], int]:
    """The tables that take part in `global`, and the largest epoch valid for all of them: the rules one by one."""
    history = question.history
    alone = {job for job in history.jobs if job in question.away or stands_outside(question, job)}
    members = without(history, alone | meeting_too_rarely(question))
    while (epoch := common(question, members)) is None:
        jobs = [name for name in members if name in history.jobs and not history.ended(name)]
        leaving = max(jobs, key=lambda job: (-first_lack(history, job), history.jobs[job].interval, age(history, job)))
        alone = alone | {leaving}
        members = without(history, alone | meeting_too_rarely(question))
    return members, epoch


def age(history: History, job: str) -> int:
    """Its place in the order in which the jobs were made."""
    return history.names.index(job)


def stands_outside(question: Question, job: str) -> bool:
    """Return True if the job is marked or its lag exceeds the bound, apart from its upstreams."""
    lag_ms = question.clock_ms - to_unix_ms(first_lack(question.history, job))
    return job in question.marked or lag_ms > question.bound_ms


def first_lack(history: History, job: str) -> int:
    """The oldest change that the newest commit of a job lacks, put back to what caused it; a far epoch for none.

    What is forgotten may have been a change, as late as it can have been.
    """
    position = history.position(job)
    forgotten = {history.known_from[up] for up in history.upstreams(job) if not history.remembers(up, position)}
    return min(_untaken(history, job, position) | forgotten, default=1 << 60)


def without(history: History, out: set[str]) -> set[str]:
    """All tables but these and what descends from them; whoever has finished stays, and holds what descends from it."""

    def stays(table: str) -> bool:
        if table in history.roots or history.ended(table):
            return True
        return table not in out and all(stays(up) for up in history.upstreams(table))

    return {table for table in history.names if stays(table)}


def meeting_too_rarely(question: Question) -> set[str]:
    """Jobs of long intervals that have too few boundaries in common with those before them: counted one by one."""
    history, half = question.history, question.bound_ms // 2
    counted = [job for job in history.jobs if not history.ended(job) and job not in question.parked]
    out = {job for job in counted if history.jobs[job].interval * INTERVAL_MS > half}
    reached = without(history, out)
    together: list[int] = []
    for job in sorted(counted, key=lambda job: (history.jobs[job].interval, age(history, job))):
        step = history.jobs[job].interval
        if job not in reached:
            continue
        steps = [*together, step]
        if any(all(k % interval == 0 for interval in steps) for k in range(1, half // INTERVAL_MS + 1)):
            together.append(step)
        else:
            out.add(job)
    return out


def common(question: Question, members: set[str]) -> int | None:
    """The largest epoch valid for all members, unless it is too old, or too old for a member that is kept for long."""
    history = question.history
    floor = max([history.safe_epoch.get(table, 0) for table in members if table in question.long_kept], default=0)
    marks = sorted({*history.marks(), history.last_epoch}, reverse=True)
    epoch = next(
        (e for e in marks if e <= history.last_epoch and all(question.valid(table, e) for table in members)), None
    )
    if epoch is None or epoch < floor:
        return None
    too_old = epoch < history.last_epoch and question.clock_ms - to_unix_ms(epoch + 1) > question.bound_ms
    return None if too_old else epoch


def default(question: Question, *, all_tables: bool, store_default: str | None) -> Answer:
    """A read that names no policy: that of the store, else by the tables that it names. One is read at its newest valid
    epoch, several at that of all, unless a change that one of them lacks there is older than the bound.
    """
    if store_default is not None:
        return {"aligned": aligned, "latest": latest}.get(store_default, shared)(question)
    if all_tables:
        return shared(question)
    answer = aligned(question)
    several = len(question.tables) > 1
    if several and isinstance(answer, dict):
        oldest_ms = max(lag_ms(question, table, epoch) for table, epoch in answer.items())
        return TableNotReadable if oldest_ms > question.bound_ms else answer
    return answer


def shared(question: Question) -> Answer:
    return global_(question, include_creating=False)


def aligned(question: Question) -> Answer:
    return question.same(question.largest(question.tables, question.history.last_epoch), NoConsistentEpoch)


def aligned_of_all(question: Question) -> Answer:
    """`aligned` of a read that names no tables: over those of the question that have a valid epoch by themselves."""
    return aligned(replace(question, tables=[table for table in question.tables if has_valid_epoch(question, table)]))


def has_valid_epoch(question: Question, table: str) -> bool:
    return replace(question, tables=[table]).largest([table], question.history.last_epoch) is not None


def latest(question: Question) -> Answer:
    return {table: question.history.position(table) for table in question.tables}


def as_of(question: Question, until: int) -> Answer:
    if until < question.floor:
        return EpochExpired
    return question.same(question.largest(question.tables, until), NoConsistentEpoch)


def at_least(question: Question, epoch: int) -> Answer:
    newest = question.largest(question.tables, question.history.last_epoch)
    return question.same(newest if newest is not None and newest >= epoch else None, NoConsistentEpoch)


def bounded(question: Question, max_lag_ms: float) -> Answer:
    newest = question.largest(question.tables, question.history.last_epoch)
    if newest is None or any(lag_ms(question, table, newest) > max_lag_ms for table in question.tables):
        return StalenessExceeded
    return question.same(newest, StalenessExceeded)


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
    """Return the changes that the newest states of the table and of all its ancestors lack."""
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
    causes = {change}
    for up in history.upstreams(table):
        for cause in _changes(history, up, before, change):
            causes |= _causes(history, up, cause)
    return causes


def _changes(history: History, table: str, after: int, until: int | None = None) -> list[int]:
    return [
        entry.epoch
        for entry in history.log[table]
        if entry.changed and after < entry.epoch and (until is None or entry.epoch <= until)
        if entry.epoch > history.known_from.get(table, 0)
    ]
