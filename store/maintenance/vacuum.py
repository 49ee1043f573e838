"""Vacuum: deletes unreachable files when no reader or writer can have them open.

The order of the steps makes it safe. Files are listed *before* the catalog is read, so files that appear later are not
considered. An intent is revoked in a transaction, and a commit requires the intents of its segments in its own; so an
unreachable file without an intent can never be reached again. It is first noted as unreachable, and deleted after the
grace, for readers without a hold; a file that a snapshot, a job or another lease may have planned to read waits until
that hold ends. A note is removed after its file, so a crash in between only repeats the deletion. Any number of vacuums
may run at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from epochlog.errors import ReadFailed, WriteFailed
from epochlog.store.backup.incremental import ship
from epochlog.store.catalog.keys import USED_PREFIX, bound_key, intent_key, unreachable_key
from epochlog.store.catalog.protocol import ReadTxn, Txn, scan_prefix
from epochlog.store.catalog.registry import EMBEDDED, kind_of_url
from epochlog.store.commit.idempotency import forget_unused
from epochlog.store.env.clock import monotonic_s, seconds
from epochlog.store.env.failpoints import hit
from epochlog.store.env.files import FileInfo
from epochlog.store.env.log_events import FILE_CONTRADICTION, VACUUM
from epochlog.store.env.metrics import VACUUM_SECONDS, VACUUMED_BYTES, VACUUMED_FILES
from epochlog.store.env.paths import intent_of, table_of
from epochlog.store.metadata.consumer_record import all_consumers
from epochlog.store.metadata.counters import move_counters
from epochlog.store.metadata.definitions import Counters
from epochlog.store.metadata.exchange_records import end_expired
from epochlog.store.metadata.lookups import all_jobs, all_tables
from epochlog.store.metadata.reachable_files import all_files
from epochlog.store.metadata.unreachable_files import UnreachableFile, list_unreachable, mark_unreachable
from epochlog.store.retention.holds import all_holds, all_leases, holds_of
from epochlog.store.session.write_intents import Intent, all_intents
from epochlog.store.types.epoch import from_unix_ms

from .vacuum_plan import REACHED_AND_UNREACHABLE, FileDecision, FileState, Known, classify_files, pins

if TYPE_CHECKING:
    from epochlog.store.session.handle import Handle

GRACE = timedelta(minutes=15)
"""How long a file stays after it has become unreachable: reads without a hold must end within it."""
BATCH = 500
"""Files that one transaction notes, and that are deleted between two reads of the catalog."""
DELETES_AT_ONCE = 16
"""Concurrent delete requests to an object store."""

Progress = Callable[[int, int], None]
"""Called with the number of deleted files and the number of all files to delete."""


@dataclass(frozen=True, slots=True)
class VacuumedFile:
    """File that vacuum came across."""

    path: str
    bytes: int
    reason: str
    """Why it is (or would be) deleted, or why it stays."""
    since_ms: int | None = None
    """Time at which the file became unreachable."""
    until_ms: int | None = None
    """Earliest time at which the file may be deleted. Both times are Unix ms; None if unknown."""


@dataclass(frozen=True, slots=True)
class VacuumReport:
    """Result of `vacuum`: the files deleted (with `dry_run`: those that it would delete) and kept."""

    deleted: tuple[VacuumedFile, ...] = ()
    """Unreachable files."""
    kept: tuple[VacuumedFile, ...] = ()
    """Unreachable files that stay for now; `noted` of them were not known before this run."""
    foreign: tuple[VacuumedFile, ...] = ()
    """Files in the store's folder that do not belong to the store; vacuum leaves them alone."""
    revoked: tuple[Intent, ...] = ()
    """Write intents of dead writers."""
    noted: int = 0
    data_files: int = 0
    """Number of files that the catalog reaches."""
    dry_run: bool = False

    @property
    def bytes_freed(self) -> int:
        return sum(file.bytes for file in self.deleted)

    def __repr__(self) -> str:
        verb = "would delete" if self.dry_run else "deleted"
        return (
            f"<VacuumReport: {verb} {len(self.deleted)} files, {self.bytes_freed:,} bytes; kept {len(self.kept)} "
            f"unreachable, {self.noted} of them new; {len(self.foreign)} foreign; {len(self.revoked)} dead writers>"
        )


def vacuum(
    handle: Handle,
    *,
    dry_run: bool = False,
    grace: float | timedelta = GRACE,
    progress: Progress = lambda done, total: None,
    stop: Callable[[], bool] = lambda: False,
) -> VacuumReport:
    """Delete files unreachable for `grace` (seconds or a timedelta). `dry_run` writes nothing. `stop` ends the run
    between batches when it returns True.
    """
    grace_ms, began_s = round(seconds(grace, "grace") * 1000), monotonic_s()
    if not dry_run:
        handle.require_writable()
        end_expired(handle.catalog, handle.leases.live, handle.clock_guard.slowest_ms)
    listed = handle.files.list(handle.store_id)
    expired = handle.catalog.read(lambda view: _dead_intents(handle, view))
    if expired and not dry_run:
        expired = handle.catalog.transact(lambda tx: _revoke(handle, tx))
    known = handle.catalog.read(lambda view: _read_known(handle, view, listed, expired))
    decisions = list(classify_files(listed, known, grace_ms))
    for decision in decisions:
        if decision.reason == REACHED_AND_UNREACHABLE:
            handle.log(FILE_CONTRADICTION, path=decision.path, reason=REACHED_AND_UNREACHABLE)
    deleted, failed = [decision for decision in decisions if decision.state is FileState.DUE], []
    if not dry_run:
        _note_unreachable(handle, [decision for decision in decisions if decision.is_new])
        deleted, failed = _delete(handle, deleted, progress, stop)
        _delete_stale_records(handle, {info.path for info in listed}, grace_ms)
    kept = [decision for decision in decisions if decision.state is FileState.KEPT and decision.listed]
    deleted_files = _report(decision for decision in deleted if decision.listed)
    report = VacuumReport(
        deleted=deleted_files,
        kept=_report([*kept, *failed]),
        foreign=_report(decision for decision in decisions if decision.state is FileState.FOREIGN),
        revoked=tuple(expired),
        noted=sum(decision.is_new for decision in kept),
        data_files=sum(decision.path in known.reached for decision in decisions if decision.state is FileState.REACHED),
        dry_run=dry_run,
    )
    if not dry_run:
        _count(handle, report, monotonic_s() - began_s)
    return report


def _count(handle: Handle, report: VacuumReport, took_s: float) -> None:
    """Count and log a vacuum that has ended."""
    handle.recorder.add(VACUUMED_FILES, by=len(report.deleted))
    handle.recorder.add(VACUUMED_BYTES, by=report.bytes_freed)
    handle.recorder.observe(VACUUM_SECONDS, seconds=took_s)
    handle.log(
        VACUUM,
        deleted_files=len(report.deleted),
        deleted_bytes=report.bytes_freed,
        kept_files=len(report.kept),
        dead_writers=len(report.revoked),
        took_ms=round(took_s * 1000),
    )


def _batches(decisions: Sequence[FileDecision]) -> Iterator[Sequence[FileDecision]]:
    return (decisions[at : at + BATCH] for at in range(0, len(decisions), BATCH))


def _report(decisions: Iterator[FileDecision] | Sequence[FileDecision]) -> tuple[VacuumedFile, ...]:
    return tuple(
        VacuumedFile(decision.path, decision.bytes, decision.reason, decision.since_ms or None, decision.until_ms)
        for decision in decisions
    )


# ---- looking -----------------------------------------------------------------------------------------------------


def _dead_intents(handle: Handle, view: ReadTxn) -> list[Intent]:
    """Return the write intents that have expired and are not live in this process."""
    now_ms, live = handle.clock_guard.slowest_ms(view), handle.leases.live
    return [intent for intent in all_intents(view) if intent.expires_ms <= now_ms and intent.id not in live]


def _revoke(handle: Handle, tx: Txn) -> list[Intent]:
    expired = _dead_intents(handle, tx)
    for intent in expired:
        tx.delete(intent_key(intent.id))
    return expired


def _read_known(handle: Handle, view: ReadTxn, listed: Sequence[FileInfo], expired: Sequence[Intent]) -> Known:
    """Read all records that decide on the listed files from one view of the catalog."""
    ended = {intent.id: intent.expires_ms for intent in expired}
    unreachable = {note.path: note for note in list_unreachable(view)}
    tables = {table_of(handle.store_id, info.path) for info in listed} | {
        table_id for note in unreachable.values() for table_id in note.readers
    }
    now_ms, live = handle.clock_guard.slowest_ms(view), handle.leases.live
    return Known(
        store_id=handle.store_id,
        now_ms=now_ms,
        reached=all_files(view),
        unreachable=unreachable,
        intents={intent.id: intent for intent in all_intents(view) if intent.id not in ended},
        holds={table: holds_of(view, table, now_ms, live) for table in tables if table is not None},
        ended=ended,
    )


# ---- noting and deleting -----------------------------------------------------------------------------------------


def _note_unreachable(handle: Handle, decisions: Sequence[FileDecision]) -> None:
    """Note files as unreachable, unless they have a write intent now or another process has noted them."""
    for batch in _batches(decisions):

        def body(tx: Txn, batch: Sequence[FileDecision] = batch) -> None:
            for decision in batch:
                known = tx.get(unreachable_key(decision.table_id, decision.path)) is not None
                if not known and tx.get(intent_key(intent_of(decision.path))) is None:
                    mark_unreachable(tx, decision.table_id, [(decision.path, decision.bytes)], decision.since_ms)
            move_counters(tx, Counters.read(tx))

        handle.catalog.transact(body)
        hit("vacuum:marked")


def _delete(
    handle: Handle, due: Sequence[FileDecision], progress: Progress, stop: Callable[[], bool]
) -> tuple[list[FileDecision], list[FileDecision]]:
    """Delete files, then their notes; return the deleted ones, and those that could not be deleted or turned out to be
    in use.
    """
    deleted: list[FileDecision] = []
    kept: list[FileDecision] = []
    if due and kind_of_url(handle.catalog_url) is EMBEDDED:
        handle.catalog.verify_storage()  # a damaged page must not hide a record that reaches a file
    # In every run, since a store without maintenance has no other backup; and first, so that the newest backup does not
    # reach a file that is deleted now.
    ship(handle)
    if not due:
        return deleted, kept
    data = handle.catalog.read(all_files)
    for batch in _batches(due):
        if stop():
            break
        still_due = handle.catalog.read(lambda view, batch=batch: _still_due(handle, view, batch))
        reached = [decision for decision in still_due if decision.path in data]
        kept += [replace(decision, state=FileState.KEPT, reason=REACHED_AND_UNREACHABLE) for decision in reached]
        results = _delete_files(handle, [decision for decision in still_due if decision.path not in data])
        removed = [decision for decision, error in results if error is None]
        kept += [
            replace(decision, state=FileState.KEPT, reason=str(error))
            for decision, error in results
            if error is not None
        ]

        def forget(tx: Txn, removed: Sequence[FileDecision] = removed) -> None:
            for decision in removed:
                tx.delete(unreachable_key(decision.table_id, decision.path))

        handle.catalog.transact(forget)
        deleted += removed
        progress(len(deleted) + len(kept), len(due))
    return deleted, kept


def _still_due(handle: Handle, view: ReadTxn, batch: Sequence[FileDecision]) -> list[FileDecision]:
    """Return the decisions whose files are still noted as unreachable and not pinned."""
    now_ms, live = handle.clock_guard.slowest_ms(view), handle.leases.live
    records = [view.get(unreachable_key(decision.table_id, decision.path)) for decision in batch]
    notes = [None if record is None else UnreachableFile.from_record(record) for record in records]
    tables = {table_id for note in notes if note is not None for table_id in note.readers}
    holds = {table_id: holds_of(view, table_id, now_ms, live) for table_id in tables}
    return [
        decision
        for decision, note in zip(batch, notes, strict=True)
        if note is not None and not any(pins(hold, note.version) for table in note.readers for hold in holds[table])
    ]


def _delete_files(handle: Handle, batch: Sequence[FileDecision]) -> list[tuple[FileDecision, Exception | None]]:
    def delete(decision: FileDecision) -> tuple[FileDecision, Exception | None]:
        hit("vacuum:before-delete")
        try:
            handle.files.delete(decision.path)
        except (WriteFailed, ReadFailed) as error:
            return decision, error
        hit("vacuum:deleted")
        return decision, None

    if not handle.files.remote or len(batch) < 2:
        return [delete(decision) for decision in batch]
    with ThreadPoolExecutor(DELETES_AT_ONCE) as pool:
        return list(pool.map(delete, batch))


# ---- records that have outlived their subject --------------------------------------------------------------------


def _delete_stale_records(handle: Handle, listed: set[str], grace_ms: int) -> None:
    """Delete the records of committed segments whose files are deleted, expired leases, forced boundaries that all
    readers of logs have passed, and forgotten outcomes.
    """

    def dead_leases(view: ReadTxn) -> list[bytes]:
        now_ms, live = handle.clock_guard.slowest_ms(view), handle.leases.live
        return [
            key
            for key, hold in all_holds(view)
            if hold.expires_ms is not None and hold.expires_ms + grace_ms <= now_ms and hold.holder not in live
        ] + [key for key, ends_ms in all_leases(view) if ends_ms + grace_ms <= now_ms]

    def unlisted_segments(view: ReadTxn) -> list[bytes]:
        return [
            key
            for key, path in _committed_segments(handle, view)
            if path not in listed and view.get(intent_key(intent_of(path))) is None
        ]

    for stale_keys in (dead_leases, unlisted_segments, partial(_passed_boundaries, handle)):
        while handle.catalog.read(stale_keys):  # of the boundaries a part at a time

            def remove(tx: Txn, stale_keys: Callable[[ReadTxn], list[bytes]] = stale_keys) -> None:
                for key in stale_keys(tx):
                    tx.delete(key)

            handle.catalog.transact(remove)
    forget_unused(handle)


def _passed_boundaries(handle: Handle, view: ReadTxn) -> list[bytes]:
    """Return the keys of forced boundaries that are older than all logs are kept, and that each job and consumer has
    passed; at most BATCH.
    """
    retentions = [table.options.log_retention for table in all_tables(view)]
    limits = [job.position for job in all_jobs(view) if job.state != "finished"]
    limits += [consumer.position or 0 for consumer in all_consumers(view)]
    kept_ms = max(retentions, default=timedelta(0)) // timedelta(milliseconds=1)
    limits += [Counters.read(view).last_epoch, from_unix_ms(handle.clock_guard.slowest_ms(view) - kept_ms)]
    return [key for key, _ in islice(view.scan_packed(bound_key(0), bound_key(max(min(limits), 0))), BATCH)]


def _committed_segments(handle: Handle, view: ReadTxn) -> Iterator[tuple[bytes, str]]:
    """Yield the key of each record of a committed sealed segment, and the segment's path."""
    for key, _ in scan_prefix(view, USED_PREFIX):
        _, table_id, name = key.decode().split("/", 2)
        yield key, f"{handle.table_folder(int(table_id, 16))}/{name}"
