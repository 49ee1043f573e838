"""Retention of a table: its options and holds decide which rows, log entries and remembered commits are released.

Pure functions decide from one view of the catalog (`plan_release`); nothing to release means no write. A large release
takes several transactions, each of which leaves the table consistent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING

from epochlog.store.catalog.keys import (
    compact_key,
    head_key,
    kept_history_key,
    runs_key,
)
from epochlog.store.catalog.protocol import ReadTxn, Txn
from epochlog.store.env.log_events import FILES_RELEASED, JOB_PARKED
from epochlog.store.metadata.commit_log import (
    commit_epochs,
    delete_commits,
    delete_entry,
    entry_epochs,
    last_epochs,
    newest_logged,
    whole_entries,
)
from epochlog.store.metadata.counters import move_counters
from epochlog.store.metadata.definitions import Counters, JobRecord, TableDef
from epochlog.store.metadata.kept_deletes import forget_kept, forgettable
from epochlog.store.metadata.lookups import get_runs, get_table, get_version, jobs_of
from epochlog.store.metadata.table_options import TableOptions
from epochlog.store.metadata.unreachable_files import mark_unreachable
from epochlog.store.metadata.version import (
    LogEntry,
    Runs,
    TableVersion,
    apply_forgetting,
    apply_runs,
    apply_safe_epoch,
    apply_truncation,
    runs_to_record,
)
from epochlog.store.sst.segment import Segment
from epochlog.store.sst.sorted_run import RunFile
from epochlog.store.types.epoch import from_unix_ms

from .holds import Hold, holds_of, job_holder
from .kept_history import KeptHistory, read_history, turned
from .stalled_jobs import StalledJob, park, stalled_jobs

if TYPE_CHECKING:
    from epochlog.store.session.handle import Handle


BATCH = 64
"""Most log entries, and most remembered commits, that one transaction releases."""


@dataclass(frozen=True, slots=True)
class RetentionLimits:
    """Lowest epochs that a table's options and holds keep; everything below may be released."""

    states: int
    """Lowest epoch whose rows are kept."""
    log: int
    """Lowest epoch after which the changes are kept."""
    commits: int
    """Lowest epoch from which on commits are remembered, as long as rows or log need them."""
    single: frozenset[int] = frozenset()
    """Epochs whose rows are kept by themselves, without those of the epochs between them."""


def limits(
    options: TableOptions, holds: Sequence[Hold], now_ms: int, safe_epoch: int = 0, history: KeptHistory | None = None
) -> RetentionLimits:
    """Return the limits that a table's options and holds give at `now_ms` (Unix ms). safe_epoch: the table's. history:
    of a table without a history_retention.
    """

    def epoch_before(ms: int) -> int:
        return from_unix_ms(now_ms - ms)

    history_ms = _ms(options.least_history) if history is None else now_ms - history.edge_at(now_ms)
    log_ms = _ms(options.log_retention)
    single = {hold.holder: epoch for hold in holds if (epoch := hold.single_epoch(safe_epoch)) is not None}
    states = [hold.read_epoch for hold in holds if hold.read_epoch is not None and hold.holder not in single]
    return RetentionLimits(
        states=min([epoch_before(history_ms), *states]),
        log=min([epoch_before(log_ms), *(hold.log_epoch for hold in holds if hold.log_epoch is not None)]),
        commits=epoch_before(max(history_ms, log_ms)),
        single=frozenset(single.values()),
    )


@dataclass(frozen=True, slots=True)
class Released:
    """Everything that one transaction releases: the table's version after it, its runs if they change, log entries to
    delete with their files, history files, and the epochs of commits to forget.
    """

    version: TableVersion
    runs: Runs | None = None
    entries: tuple[LogEntry, ...] = ()
    parts: tuple[RunFile, ...] = ()
    commits: tuple[int, ...] = ()
    kept: tuple[bytes, ...] = ()
    """Keys of records of kept deletes to forget."""
    parked: tuple[StalledJob, ...] = ()
    """Jobs that still needed some of it."""
    history: KeptHistory | None = None
    """New direction of the table's history, if it changes."""
    more: bool = False
    """True if another transaction has more to release."""


def apply_retention(handle: Handle, table: TableDef) -> None:
    """Release the rows, log entries and commits that the table need not keep; TableDropped if it was dropped."""

    def body(tx: Txn) -> Released | None:
        released = plan_release(handle, tx, table)
        if released is not None:
            current = get_table(tx, table.id, table.name)
            for stalled in released.parked:
                park(handle, tx, current, stalled, handle.catalog.now_ms())
            _write_release(tx, table.id, released, handle.catalog.now_ms())
        return released

    releases: list[Released] = []
    try:
        while handle.catalog.read(lambda view: plan_release(handle, view, table)) is not None:
            released = handle.catalog.transact(body)
            if released is not None:
                releases.append(released)
            if released is None or not released.more:
                return
    finally:
        _log_release(handle, table, releases)


def _log_release(handle: Handle, table: TableDef, releases: Sequence[Released]) -> None:
    """Log the released files and the parked jobs of a table. Releases without files are not logged."""
    files = [file for released in releases for file in _released_files(released)]
    if files:
        begins, size = releases[-1].version.log_start, sum(file.bytes for file in files)
        handle.log(FILES_RELEASED, table=table.name, files=len(files), bytes=size, log_start=begins)
    for stalled in (stalled for released in releases for stalled in released.parked):
        job = stalled.job
        handle.log(JOB_PARKED, job=job.name, epoch=job.position, table=table.name, change=stalled.change)


def _released_files(released: Released) -> list[RunFile | Segment]:
    return [*released.parts, *(file for entry in released.entries for file in entry.files)]


def raise_safe_epoch(handle: Handle, table: TableDef) -> None:
    """Raise the safe epoch before a compaction, so that it does not rewrite versions that no reader can read. Where no
    retention runs, this alone decides the direction of the table's history.
    """

    def raised(view: ReadTxn) -> tuple[TableVersion, KeptHistory | None] | None:
        current = get_table(view, table.id, table.name)  # `table` may be older than the last alter
        options = current.options
        version, now_ms = get_version(view, table.id, table.name), handle.clock_guard.slowest_ms(view)
        holds = holds_of(view, table.id, now_ms, handle.leases.live)
        history = read_history(view, current, version, now_ms)
        allowed = limits(options, holds, now_ms, version.safe_epoch, history)
        after = apply_safe_epoch(version, allowed.states, allowed.single)
        direction = turned(view, table.id, history)
        return (after, direction) if after != version or direction is not None else None

    def body(tx: Txn) -> None:
        if (after := raised(tx)) is not None:
            version, direction = after
            tx.put(head_key(table.id), version.to_record())
            if direction is not None:
                tx.put(kept_history_key(table.id), direction.to_record())

    if handle.catalog.read(raised) is not None:
        handle.catalog.transact(body)


def plan_release(handle: Handle, view: ReadTxn, table: TableDef) -> Released | None:
    """Decide, by the table's current options, what one transaction can release; None if there is nothing."""
    table = get_table(view, table.id, table.name)
    jobs, before = jobs_of(view, table.id), get_version(view, table.id, table.name)
    now_ms = handle.clock_guard.slowest_ms(view)
    history = read_history(view, table, before, now_ms)
    allowed, parked = _current_limits(handle, view, table, jobs, before.safe_epoch, history, now_ms)
    mark = _truncation_epoch(view, table.id, before, allowed.log)
    released = truncated(view, table.id, apply_safe_epoch(before, allowed.states, allowed.single), mark)
    released = replace(released, parked=parked, history=turned(view, table.id, history))
    released = _release_history(view, table.id, released, now_ms)
    released = _forget_commits(view, table, jobs, released, allowed.commits)
    if table.schema.sequence_by is not None:
        kept = forgettable(view, table.id, released.version, BATCH)
        released = replace(released, kept=tuple(kept), more=released.more or len(kept) == BATCH)
    return released if released != Released(before) else None


def _current_limits(
    handle: Handle,
    view: ReadTxn,
    table: TableDef,
    jobs: Sequence[JobRecord],
    safe_epoch: int,
    history: KeptHistory | None,
    now_ms: int,
) -> tuple[RetentionLimits, tuple[StalledJob, ...]]:
    """Return the table's limits, and the stalled jobs that they park. A stalled job that would lose nothing keeps its
    holds.
    """
    holds = holds_of(view, table.id, now_ms, handle.leases.live, jobs=jobs)
    stalled = tuple(stalled_jobs(handle, view, table, jobs, now_ms))
    if stalled:
        allowed = limits(table.options, _without_jobs(holds, stalled), now_ms, safe_epoch, history)
        stalled = tuple(
            stalled_job for stalled_job in stalled if stalled_job.change <= max(allowed.states, allowed.log)
        )
    return limits(table.options, _without_jobs(holds, stalled), now_ms, safe_epoch, history), stalled


def _without_jobs(holds: Sequence[Hold], stalled: Sequence[StalledJob]) -> list[Hold]:
    holders = {job_holder(stalled_job.job) for stalled_job in stalled}
    return [hold for hold in holds if hold.holder not in holders]


def _write_release(tx: Txn, table_id: int, released: Released, now_ms: int) -> None:
    tx.put(head_key(table_id), released.version.to_record())
    if released.runs is not None:
        tx.put(runs_key(table_id), runs_to_record(released.runs))
    for entry in released.entries:
        delete_entry(tx, table_id, entry.epoch)
    for epoch in released.commits:
        delete_commits(tx, table_id, epoch)
    mark_unreachable(tx, table_id, [(file.path, file.bytes) for file in _released_files(released)], now_ms)
    if released.history is not None:
        tx.put(kept_history_key(table_id), released.history.to_record())
    if released.kept:
        forget_kept(tx, table_id, released.kept, now_ms)
    move_counters(tx, Counters.read(tx))


# ---- the log -----------------------------------------------------------------------------------------------------


def truncate(handle: Handle, tx: Txn, table_id: int, version: TableVersion, before: int) -> bool:
    """Raise the truncation mark towards `before`, past as many entries as one transaction may release. Call inside a
    transaction.

    Return True if the mark has reached `before`.
    """
    released = truncated(tx, table_id, version, before)
    _write_release(tx, table_id, released, handle.catalog.now_ms())
    return released.version.log_start >= before


def truncated(view: ReadTxn, table_id: int, version: TableVersion, before: int) -> Released:
    """Raise the mark to `before`, or as far as BATCH entries go. Entries that reads still need are deleted after their
    compaction.
    """
    start = version.log_start
    passed = list(islice(whole_entries(view, table_id, start - 1, max(before, start) - 1), BATCH + 1))
    mark = passed[BATCH].epoch if len(passed) > BATCH else max(before, start)
    after = apply_truncation(version, mark, passed[:BATCH])
    deleted = list(islice(whole_entries(view, table_id, -1, min(mark - 1, version.compacted_epoch)), BATCH + 1))
    return Released(after, entries=tuple(deleted[:BATCH]), more=len(passed) > BATCH or len(deleted) > BATCH)


def _truncation_epoch(view: ReadTxn, table_id: int, version: TableVersion, limit: int) -> int:
    """Return the epoch to which the truncation mark may rise: that of the newest entry at or below `limit`."""
    start, end = version.log_start, min(limit, version.max_committed_epoch)
    if end <= start:
        return start
    return max(start, newest_logged(view, table_id, start - 1, end))


# ---- replaced rows -----------------------------------------------------------------------------------------------


def _release_history(view: ReadTxn, table_id: int, released: Released, now_ms: int) -> Released:
    """Release the history files that no readable epoch needs. A running compaction keeps the files that it reads, and a
    file of which a tag needs some rows stays until a compaction has copied these.
    """
    version = released.version
    compaction = view.get(compact_key(table_id))
    if not version.runs or (compaction is not None and compaction["expires_ms"] > now_ms):
        return released
    runs = get_runs(view, table_id)
    expired = [part for run in runs if run.at is None for part in run.history if _is_past(part, version)]
    if not expired:
        return released
    paths = {part.path for part in expired}
    after = tuple(replace(run, history=tuple(part for part in run.history if part.path not in paths)) for run in runs)
    return replace(released, version=apply_runs(version, after), runs=after, parts=tuple(expired))


def _is_past(part: RunFile, version: TableVersion) -> bool:
    """Return True for a history file whose rows had all been replaced at the safe epoch, and that no kept epoch
    needs.
    """
    return part.history and part.until > 0 and not part.needed_at(version.safe_epoch, version.kept)


# ---- remembered commits -----------------------------------------------------------------------------------------


def _forget_commits(
    view: ReadTxn, table: TableDef, jobs: Sequence[JobRecord], released: Released, limit: int
) -> Released:
    """Forget the commits that no read needs: those before the newest one at or below all needed epochs.

    The remembered commits then begin with the one that made the state at the lowest needed epoch.
    """
    bound = min([limit, *_needed_epochs(view, table, jobs, released)])
    first = next(commit_epochs(view, table.id, until=max(bound, 0), reverse=True), None)
    if first is None:
        return released
    older = list(islice(last_epochs(view, table.id, until=first - 1), BATCH + 1))
    if not older:
        return released
    forgotten = older[:BATCH]
    version = apply_forgetting(released.version, forgotten[-1])
    return replace(released, version=version, commits=tuple(forgotten), more=released.more or len(older) > BATCH)


def _needed_epochs(view: ReadTxn, table: TableDef, jobs: Sequence[JobRecord], released: Released) -> Iterable[int]:
    """Yield the epochs from which on commits of the table are needed."""
    yield released.version.safe_epoch
    yield released.version.log_start
    deleted = {entry.epoch for entry in released.entries}
    yield from islice((epoch for epoch in entry_epochs(view, table.id) if epoch not in deleted), 1)
    parked = {stalled.job.id for stalled in released.parked}
    for job in jobs:
        if job.state == "parked" or job.id in parked:  # no reader asks for its validity, and it may stay parked
            continue
        if table.id in job.outputs or table.id in job.upstreams:
            yield job.position or (job.barrier[1] if job.barrier else released.version.max_committed_epoch)
        if (
            table.id in job.upstreams or table.id in job.read_before
        ):  # the validity of an output depends on changes since its oldest commit
            for output in job.outputs:
                yield from islice(commit_epochs(view, output), 1)


def _ms(span: timedelta) -> int:
    return round(span.total_seconds() * 1000)
