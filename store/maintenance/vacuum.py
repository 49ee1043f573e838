"""Vacuum: deletes unreachable files when no reader or writer can have them open.

Order is everything here. Files are listed *before* the catalog is asked what it reaches: what appears later is not
looked at. An intent is revoked in a transaction, and a commit requires the intents of its segments in its own; so a
file without an intent that nothing reaches can never be reached again. It is noted as gone first, and deleted when it
has been so for the grace, for readers that hold nothing; what an open snapshot, a job or another lease may have
planned to read waits for that to end. A note is removed after its file, so a crash in between is repeated harmlessly;
and any number of vacuums may run at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from epochlog.errors import ReadFailed, WriteFailed
from epochlog.store.backup.incremental import ship
from epochlog.store.catalog.keys import after_prefix, gone_key, intent_key
from epochlog.store.catalog.protocol import Txn, View
from epochlog.store.catalog.registry import EMBEDDED, kind_of_url
from epochlog.store.commit.idempotency import forget_unused
from epochlog.store.env.clock import seconds
from epochlog.store.env.failpoints import hit
from epochlog.store.env.files import FileInfo
from epochlog.store.env.paths import intent_of, table_of
from epochlog.store.metadata.counters import move_counters
from epochlog.store.metadata.definitions import Counters
from epochlog.store.metadata.exchange_records import end_expired
from epochlog.store.metadata.reachable_files import all_files
from epochlog.store.metadata.unreachable_files import list_unreachable, mark_unreachable
from epochlog.store.retention.holds import all_holds, all_leases, holds_of
from epochlog.store.session.write_intents import Intent, all_intents

from .vacuum_plan import REACHED_AND_GONE, FileDecision, FileState, Known, classify_files, pins

if TYPE_CHECKING:
    from epochlog.store.session.handle import Handle

GRACE = timedelta(minutes=15)
"""How long a file stays after it has become unreachable: reads that hold nothing must end within it."""
BATCH = 500
"""Files that one transaction notes, and that are deleted between two looks at the catalog."""
DELETES_AT_ONCE = 16
"""Requests to an object store that are under way at the same time."""
_log = logging.getLogger("epochlog")

Progress = Callable[[int, int], None]
"""Is told how many files are deleted, of how many."""


@dataclass(frozen=True, slots=True)
class VacuumedFile:
    """A file that vacuum came across. `reason`: why it is (or would be) deleted, or why it stays; `since_ms`: when it
    became unreachable; `until_ms`: when it may go at the earliest. Both are Unix ms, None where nobody knows.
    """

    path: str
    bytes: int
    reason: str
    since_ms: int | None = None
    until_ms: int | None = None


@dataclass(frozen=True, slots=True)
class VacuumReport:
    """Result of `vacuum`: the files deleted (with `dry_run`: those that it would delete) and kept.

    deleted: files that nothing reached. kept: files that nothing reaches either and that stay for now; `noted` of them
    were not known before this run. foreign: files in the store's folder that are none of its own: left alone. revoked:
    intents of writers that had died. data_files: files that the catalog reaches.
    """

    deleted: tuple[VacuumedFile, ...] = ()
    kept: tuple[VacuumedFile, ...] = ()
    foreign: tuple[VacuumedFile, ...] = ()
    revoked: tuple[Intent, ...] = ()
    noted: int = 0
    data_files: int = 0
    dry_run: bool = False

    @property
    def bytes_freed(self) -> int:
        return sum(file.bytes for file in self.deleted)

    def __repr__(self) -> str:
        verb = "would delete" if self.dry_run else "deleted"
        return (
            f"<VacuumReport: {verb} {len(self.deleted)} files, {self.bytes_freed:,} bytes; kept {len(self.kept)} that "
            f"nothing reaches, {self.noted} of them new; {len(self.foreign)} foreign; {len(self.revoked)} dead writers>"
        )


def vacuum(
    handle: Handle,
    *,
    dry_run: bool = False,
    grace: float | timedelta = GRACE,
    progress: Progress = lambda done, total: None,
    stop: Callable[[], bool] = lambda: False,
) -> VacuumReport:
    """Delete files unreachable for `grace` (seconds or a timedelta). `dry_run` writes nothing. `stop`: asked between
    batches.
    """
    grace_ms = round(seconds(grace, "grace") * 1000)
    if not dry_run:
        end_expired(handle.catalog, handle.leases.live)
    listed = handle.files.list(handle.store_id)
    dead = handle.catalog.read(lambda view: _dead(handle, view))
    if dead and not dry_run:
        dead = handle.catalog.transact(lambda tx: _revoke(handle, tx))
    known = handle.catalog.read(lambda view: _look(handle, view, listed, dead))
    verdicts = list(classify_files(listed, known, grace_ms))
    for verdict in verdicts:
        if verdict.reason == REACHED_AND_GONE:
            _log.error("vacuum keeps %s: %s", verdict.path, REACHED_AND_GONE)
    done, failed = [verdict for verdict in verdicts if verdict.fate is FileState.DUE], []
    if not dry_run:
        _note(handle, [verdict for verdict in verdicts if verdict.fresh])
        done, failed = _delete(handle, done, progress, stop)
        _tidy(handle, {info.path for info in listed}, grace_ms)
    kept = [verdict for verdict in verdicts if verdict.fate is FileState.KEPT and verdict.listed]
    return VacuumReport(
        deleted=_told(verdict for verdict in done if verdict.listed),
        kept=_told([*kept, *failed]),
        foreign=_told(verdict for verdict in verdicts if verdict.fate is FileState.FOREIGN),
        revoked=tuple(dead),
        noted=sum(verdict.fresh for verdict in kept),
        data_files=sum(verdict.path in known.reached for verdict in verdicts if verdict.fate is FileState.REACHED),
        dry_run=dry_run,
    )


def _batches(verdicts: Sequence[FileDecision]) -> Iterator[Sequence[FileDecision]]:
    return (verdicts[at : at + BATCH] for at in range(0, len(verdicts), BATCH))


def _told(verdicts: Iterator[FileDecision] | Sequence[FileDecision]) -> tuple[VacuumedFile, ...]:
    return tuple(VacuumedFile(one.path, one.bytes, one.reason, one.since_ms or None, one.until_ms) for one in verdicts)


# ---- looking -----------------------------------------------------------------------------------------------------


def _dead(handle: Handle, view: View) -> list[Intent]:
    """Return the write intents that have expired and are not live in this process."""
    now_ms, live = handle.catalog.now_ms(), handle.leases.live
    return [intent for intent in all_intents(view) if intent.expires_ms <= now_ms and intent.id not in live]


def _revoke(handle: Handle, tx: Txn) -> list[Intent]:
    dead = _dead(handle, tx)
    for intent in dead:
        tx.delete(intent_key(intent.id))
    return dead


def _look(handle: Handle, view: View, listed: Sequence[FileInfo], dead: Sequence[Intent]) -> Known:
    """Read from one view of the catalog all records that decide on the listed files."""
    ended = {intent.id: intent.expires_ms for intent in dead}
    gone = {one.path: one for one in list_unreachable(view)}
    tables = {table_of(handle.store_id, info.path) for info in listed} | {one.table_id for one in gone.values()}
    now_ms, live = handle.catalog.now_ms(), handle.leases.live
    return Known(
        store_id=handle.store_id,
        now_ms=now_ms,
        reached=all_files(view),
        gone=gone,
        intents={intent.id: intent for intent in all_intents(view) if intent.id not in ended},
        holds={table: holds_of(view, table, now_ms, live) for table in tables if table is not None},
        ended=ended,
    )


# ---- noting and deleting -----------------------------------------------------------------------------------------


def _note(handle: Handle, fresh: Sequence[FileDecision]) -> None:
    """Note files as unreachable, unless they have a write intent by now or another process has noted them."""
    for some in _batches(fresh):

        def body(tx: Txn, some: Sequence[FileDecision] = some) -> None:
            for verdict in some:
                known = tx.get(gone_key(verdict.table_id, verdict.path)) is not None
                if not known and tx.get(intent_key(intent_of(verdict.path))) is None:
                    mark_unreachable(tx, verdict.table_id, [(verdict.path, verdict.bytes)], verdict.since_ms)
            move_counters(tx, Counters.read(tx))

        handle.catalog.transact(body)
        hit("vacuum:marked")


def _delete(
    handle: Handle, due: Sequence[FileDecision], progress: Progress, stop: Callable[[], bool]
) -> tuple[list[FileDecision], list[FileDecision]]:
    """Delete files, then their notes; return the deleted ones, and those that resist or turned out to be in use."""
    done: list[FileDecision] = []
    kept: list[FileDecision] = []
    if due and kind_of_url(handle.catalog_url) is EMBEDDED:
        handle.catalog.check()  # a damaged page must not hide what is reached
    # Always: a store without maintenance has no other copy. And first: no copy is left that reaches what goes now.
    ship(handle)
    if not due:
        return done, kept
    data = handle.catalog.read(all_files)
    for some in _batches(due):
        if stop():
            break
        certain = handle.catalog.read(lambda view, some=some: _still_due(handle, view, some))
        wrong = [verdict for verdict in certain if verdict.path in data]
        kept += [replace(verdict, fate=FileState.KEPT, reason=REACHED_AND_GONE) for verdict in wrong]
        results = _delete_files(handle, [verdict for verdict in certain if verdict.path not in data])
        removed = [verdict for verdict, error in results if error is None]
        kept += [
            replace(verdict, fate=FileState.KEPT, reason=str(error)) for verdict, error in results if error is not None
        ]

        def forget(tx: Txn, removed: Sequence[FileDecision] = removed) -> None:
            for verdict in removed:
                tx.delete(gone_key(verdict.table_id, verdict.path))

        handle.catalog.transact(forget)
        done += removed
        progress(len(done) + len(kept), len(due))
    return done, kept


def _still_due(handle: Handle, view: View, some: Sequence[FileDecision]) -> list[FileDecision]:
    """Return the decisions whose files are still noted as unreachable and that no hold pins."""
    now_ms, live = handle.catalog.now_ms(), handle.leases.live
    holds = {table_id: holds_of(view, table_id, now_ms, live) for table_id in {one.table_id for one in some}}
    found = []
    for verdict in some:
        note = view.get(gone_key(verdict.table_id, verdict.path))
        if note is not None and not any(pins(hold, note["version"]) for hold in holds[verdict.table_id]):
            found.append(verdict)
    return found


def _delete_files(handle: Handle, some: Sequence[FileDecision]) -> list[tuple[FileDecision, Exception | None]]:
    def delete(verdict: FileDecision) -> tuple[FileDecision, Exception | None]:
        hit("vacuum:before-delete")
        try:
            handle.files.delete(verdict.path)
        except (WriteFailed, ReadFailed) as error:
            return verdict, error
        hit("vacuum:deleted")
        return verdict, None

    if not handle.files.remote or len(some) < 2:
        return [delete(verdict) for verdict in some]
    with ThreadPoolExecutor(DELETES_AT_ONCE) as pool:
        return list(pool.map(delete, some))


# ---- records that outlive what they tell of ----------------------------------------------------------------------


def _tidy(handle: Handle, listed: set[str], grace_ms: int) -> None:
    """Remove what is told of files and holders that are no more: which segments were committed, leases of the dead;
    and outcomes that nobody will ask for.
    """

    def dead_leases(view: View) -> list[bytes]:
        now_ms, live = handle.catalog.now_ms(), handle.leases.live
        return [
            key
            for key, hold in all_holds(view)
            if hold.expires_ms is not None and hold.expires_ms + grace_ms <= now_ms and hold.holder not in live
        ] + [key for key, ends_ms in all_leases(view) if ends_ms + grace_ms <= now_ms]

    def spent(view: View) -> list[bytes]:
        return [
            key
            for key, path in _used(handle, view)
            if path not in listed and view.get(intent_key(intent_of(path))) is None
        ]

    for which in (dead_leases, spent):
        if handle.catalog.read(which):

            def remove(tx: Txn, which: Callable[[View], list[bytes]] = which) -> None:
                for key in which(tx):
                    tx.delete(key)

            handle.catalog.transact(remove)
    forget_unused(handle)


def _used(handle: Handle, view: View) -> Iterator[tuple[bytes, str]]:
    """Return the keys of the records of committed segments, and the paths of these."""
    for key, _ in view.scan(b"used/", after_prefix(b"used/")):
        _, table_id, name = key.decode().split("/", 2)
        yield key, f"{handle.table_folder(int(table_id, 16))}/{name}"
