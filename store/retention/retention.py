"""Retention of a table: its options and holds decide which rows, log entries and remembered commits are released.

What may go is decided from one look at the catalog (`look`), by pure functions; a look that finds nothing writes
nothing. What much has gathered goes in several transactions, each of which leaves the table as it must be.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING

from epochlog.store.catalog.keys import after_prefix, compact_key, head_key, hist_key, key_epoch, log_key, runs_key
from epochlog.store.catalog.protocol import Txn, View
from epochlog.store.metadata.counters import move_counters
from epochlog.store.metadata.definitions import Counters, TableDef, TableOptions
from epochlog.store.metadata.lookups import all_jobs, get_runs, get_table, get_version
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
from epochlog.store.sst.sorted_run import RunFile
from epochlog.store.types.epoch import from_unix_ms, show_epoch

from .holds import Hold, holds_of, job_holder
from .stalled_jobs import StalledJob, late_jobs, park

if TYPE_CHECKING:
    from epochlog.store.session.handle import Handle

_log = logging.getLogger("epochlog")

BATCH = 256
"""Log entries, and remembered commits, that one transaction lets go of at most."""


@dataclass(frozen=True, slots=True)
class RetentionLimits:
    """Lowest epochs that a table's options and holds keep; everything below may be released.

    states: its states; log: its changes; memory: its remembered commits, which are needed for as long as either.
    """

    states: int
    log: int
    memory: int


def limits(options: TableOptions, holds: Sequence[Hold], now_ms: int) -> RetentionLimits:
    """Return the limits that a table's options and holds give at `now_ms` (Unix ms)."""

    def past(ms: int) -> int:
        return from_unix_ms(now_ms - ms)

    history_ms, log_ms = (_ms(span) for span in (options.history_retention, options.log_retention))
    return RetentionLimits(
        states=min([past(history_ms), *(hold.read_epoch for hold in holds if hold.read_epoch is not None)]),
        log=min([past(log_ms), *(hold.log_epoch for hold in holds if hold.log_epoch is not None)]),
        memory=past(max(history_ms, log_ms)),
    )


@dataclass(frozen=True, slots=True)
class Released:
    """Everything that one transaction releases: the table's version after it, its runs if they change, log entries to
    delete with their files, parts, and the epochs of commits to forget. parked: jobs that needed some of it. more:
    there is more to release, in another transaction.
    """

    version: TableVersion
    runs: Runs | None = None
    entries: tuple[LogEntry, ...] = ()
    parts: tuple[RunFile, ...] = ()
    commits: tuple[int, ...] = ()
    parked: tuple[StalledJob, ...] = ()
    more: bool = False


def apply_retention(handle: Handle, table: TableDef) -> None:
    """Release the rows, log entries and commits that the table need not keep; TableDropped if it was dropped."""

    def body(tx: Txn) -> Released | None:
        found = look(handle, tx, table)
        if found is not None:
            now = get_table(tx, table.id, table.name)
            for late in found.parked:
                park(handle, tx, now, late, handle.catalog.now_ms())
            _write(tx, table.id, found, handle.catalog.now_ms())
        return found

    done: list[Released] = []
    try:
        while handle.catalog.read(lambda view: look(handle, view, table)) is not None:
            found = handle.catalog.transact(body)
            if found is not None:
                done.append(found)
            if found is None or not found.more:
                return
    finally:
        _log_release(table, done)


def _log_release(table: TableDef, done: Sequence[Released]) -> None:
    """Log the files that a table has released and the jobs that it parked. Forgotten commits, and marks alone, are not
    logged.
    """
    files = [
        file for found in done for file in (*found.parts, *(one for entry in found.entries for one in entry.files))
    ]
    if files:
        begins, size = show_epoch(done[-1].version.log_start), sum(file.bytes for file in files)
        _log.info(
            "table %r: let go of %d files of the past, %d bytes; its log begins after epoch %s",
            table.name,
            len(files),
            size,
            begins,
        )
    for late in (late for found in done for late in found.parked):
        _log.info(
            "job %r: parked at epoch %s: the changes of %r from %s on were let go of, and it had made no headway since",
            late.job.name,
            show_epoch(late.job.position),
            table.name,
            show_epoch(late.change),
        )


def raise_safe_epoch(handle: Handle, table: TableDef) -> None:
    """Raise the safe epoch before a compaction, so that it does not rewrite versions that nobody can read."""

    def raised(view: View) -> TableVersion | None:
        options = get_table(view, table.id, table.name).options  # as they are now: they may have been altered
        version, now_ms = get_version(view, table.id, table.name), handle.catalog.now_ms()
        holds = holds_of(view, table.id, now_ms, handle.leases.live)
        after = apply_safe_epoch(version, limits(options, holds, now_ms).states)
        return after if after != version else None

    def body(tx: Txn) -> None:
        after = raised(tx)
        if after is not None:
            tx.put(head_key(table.id), after.to_record())

    if handle.catalog.read(raised) is not None:
        handle.catalog.transact(body)


def look(handle: Handle, view: View, table: TableDef) -> Released | None:
    """Decide what one transaction can release of a table, by its present options; None: nothing."""
    table = get_table(view, table.id, table.name)
    (may, parked), before = _limits(handle, view, table), get_version(view, table.id, table.name)
    found = truncated(view, table.id, apply_safe_epoch(before, may.states), _mark(view, table.id, before, may.log))
    found = _without_past(view, table.id, replace(found, parked=parked), handle.catalog.now_ms())
    found = _forgetting(view, table, found, may.memory)
    return found if found != Released(before) else None


def _limits(handle: Handle, view: View, table: TableDef) -> tuple[RetentionLimits, tuple[StalledJob, ...]]:
    """Return the limits of the table, and the late jobs that it parks by them. Late jobs that lose nothing keep their
    holds.
    """
    now_ms = handle.catalog.now_ms()
    holds = holds_of(view, table.id, now_ms, handle.leases.live)
    late = tuple(late_jobs(handle, view, table, now_ms))
    if late:
        may = limits(table.options, _without(holds, late), now_ms)
        late = tuple(one for one in late if one.change <= max(may.states, may.log))
    return limits(table.options, _without(holds, late), now_ms), late


def _without(holds: Sequence[Hold], late: Sequence[StalledJob]) -> list[Hold]:
    holders = {job_holder(one.job) for one in late}
    return [hold for hold in holds if hold.holder not in holders]


def _write(tx: Txn, table_id: int, found: Released, now_ms: int) -> None:
    tx.put(head_key(table_id), found.version.to_record())
    if found.runs is not None:
        tx.put(runs_key(table_id), runs_to_record(found.runs))
    for entry in found.entries:
        tx.delete(log_key(table_id, entry.epoch))
    for epoch in found.commits:
        tx.delete(hist_key(table_id, epoch))
    files = [*found.parts, *(file for entry in found.entries for file in entry.files)]
    mark_unreachable(tx, table_id, [(file.path, file.bytes) for file in files], now_ms)
    move_counters(tx, Counters.read(tx))


# ---- the log -----------------------------------------------------------------------------------------------------


def truncate(handle: Handle, tx: Txn, table_id: int, version: TableVersion, before: int) -> bool:
    """Raise the truncation mark towards `before`, past as many entries as one transaction may release. Return True if
    it got there. Part of a transaction.
    """
    found = truncated(tx, table_id, version, before)
    _write(tx, table_id, found, handle.catalog.now_ms())
    return found.version.log_start >= before


def truncated(view: View, table_id: int, version: TableVersion, before: int) -> Released:
    """Raise the mark to `before`, or as far as BATCH entries go; entries that reads need wait for their compaction."""
    start = version.log_start
    past = list(islice(_entries(view, table_id, start, max(before, start)), BATCH + 1))
    mark = past[BATCH].epoch if len(past) > BATCH else max(before, start)
    after = apply_truncation(version, mark, past[:BATCH])
    gone = list(islice(_entries(view, table_id, 0, min(mark, version.compacted_epoch + 1)), BATCH + 1))
    return Released(after, entries=tuple(gone[:BATCH]), more=len(past) > BATCH or len(gone) > BATCH)


def _mark(view: View, table_id: int, version: TableVersion, limit: int) -> int:
    """Return the epoch to which the truncation mark may rise: that of the newest entry at or below `limit`. So a reader
    at that entry loses nothing, however long the table has been at rest.
    """
    start, end = version.log_start, min(limit, version.max_committed_epoch)
    if end <= start:
        return start
    newest = next(iter(view.scan(log_key(table_id, start), log_key(table_id, end + 1), reverse=True)), None)
    return start if newest is None else key_epoch(newest[0])


def _entries(view: View, table_id: int, low: int, high: int) -> Iterable[LogEntry]:
    """Return the log entries with low <= epoch < high."""
    return (LogEntry.from_record(record) for _, record in view.scan(log_key(table_id, low), log_key(table_id, high)))


# ---- replaced rows -----------------------------------------------------------------------------------------------


def _without_past(view: View, table_id: int, found: Released, now_ms: int) -> Released:
    """Release the history files that no readable epoch sees. A compaction that reads them keeps them."""
    version = found.version
    working = view.get(compact_key(table_id))
    if not version.runs or (working is not None and working["expires_ms"] > now_ms):
        return found
    runs = get_runs(view, table_id)
    gone = [part for run in runs for part in run.history if _is_past(part, version.safe_epoch)]
    if not gone:
        return found
    after = tuple(
        replace(run, history=tuple(part for part in run.history if not _is_past(part, version.safe_epoch)))
        for run in runs
    )
    return replace(found, version=apply_runs(version, after), runs=after, parts=tuple(gone))


def _is_past(part: RunFile, safe_epoch: int) -> bool:
    """Return True if the file is of history, and all its rows had been replaced at the safe epoch."""
    return part.history and 0 < part.until <= safe_epoch


# ---- memory ------------------------------------------------------------------------------------------------------


def _forgetting(view: View, table: TableDef, found: Released, limit: int) -> Released:
    """Forget the commits that no read needs: those before the newest one at or below all epochs that need commits.

    What is kept begins with a commit, so a reader at any epoch from there on finds the one that made its state.
    """
    bound = min([limit, *_remembering(view, table, found)])
    kept = next(iter(view.scan(hist_key(table.id, 0), hist_key(table.id, max(bound, 0) + 1), reverse=True)), None)
    if kept is None:
        return found
    older = [key_epoch(key) for key, _ in islice(view.scan(hist_key(table.id, 0), kept[0]), BATCH + 1)]
    if not older:
        return found
    gone = older[:BATCH]
    version = apply_forgetting(found.version, gone[-1])
    return replace(found, version=version, commits=tuple(gone), more=found.more or len(older) > BATCH)


def _remembering(view: View, table: TableDef, found: Released) -> Iterable[int]:
    """Yield the epochs from which on commits of the table are needed."""
    yield found.version.safe_epoch
    yield found.version.log_start
    gone = {entry.epoch for entry in found.entries}
    yield from islice((epoch for epoch in _epochs(view, b"log/%08x/" % table.id) if epoch not in gone), 1)
    parked = {late.job.id for late in found.parked}
    for job in all_jobs(view):
        if job.state == "parked" or job.id in parked:  # what it is valid at is asked no more, and might take for ever
            continue
        if table.id in job.outputs or table.id in job.upstreams:
            yield job.position or (job.barrier[1] if job.barrier else found.version.max_committed_epoch)
        if table.id in job.upstreams:  # its outputs are valid by what this table did since the oldest commit of theirs
            for output in job.outputs:
                yield from islice(_epochs(view, b"hist/%08x/" % output), 1)


def _epochs(view: View, prefix: bytes) -> Iterable[int]:
    """Return the epochs of a table's log or remembered commits, oldest first."""
    return (key_epoch(key) for key, _ in view.scan(prefix, after_prefix(prefix)))


def _ms(span: timedelta) -> int:
    return round(span.total_seconds() * 1000)
