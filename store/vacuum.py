"""Vacuum: deletes files that nothing reaches, once nobody can be writing or reading them any more.

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

from ..errors import ReadFailed, WriteFailed
from .catalog import Txn, View
from .clock import seconds
from .definitions import Counters, move_counters
from .exchanges import end_expired
from .failpoints import reached
from .files import FileInfo
from .garbage import all_gone, let_go
from .holds import all_holds, all_leases, holds_of
from .intents import Intent, all_intents
from .outcomes import forget_unused
from .paths import intent_of, table_of
from .reach import all_files
from .records import after_prefix, gone_key, intent_key
from .shipping import ship
from .verdicts import REACHED_AND_GONE, Fate, Known, Verdict, judge, pins

if TYPE_CHECKING:
    from .handle import Handle

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
    """What `vacuum` did, or with `dry_run` would do now.

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
    """Delete what nothing has reached for `grace`. `dry_run` writes nothing at all. `stop`: asked between batches."""
    grace_ms = round(seconds(grace, "grace") * 1000)
    if not dry_run:
        end_expired(handle)
    listed = handle.files.list(handle.store_id)
    dead = handle.catalog.read(lambda view: _dead(handle, view))
    if dead and not dry_run:
        dead = handle.catalog.transact(lambda tx: _revoke(handle, tx))
    known = handle.catalog.read(lambda view: _look(handle, view, listed, dead))
    verdicts = list(judge(listed, known, grace_ms))
    for verdict in verdicts:
        if verdict.reason == REACHED_AND_GONE:
            _log.error("vacuum keeps %s: %s", verdict.path, REACHED_AND_GONE)
    done, failed = [verdict for verdict in verdicts if verdict.fate is Fate.DUE], []
    if not dry_run:
        _note(handle, [verdict for verdict in verdicts if verdict.fresh])
        done, failed = _delete(handle, done, progress, stop)
        _tidy(handle, {info.path for info in listed}, grace_ms)
    kept = [verdict for verdict in verdicts if verdict.fate is Fate.KEPT and verdict.listed]
    return VacuumReport(
        deleted=_told(verdict for verdict in done if verdict.listed),
        kept=_told([*kept, *failed]),
        foreign=_told(verdict for verdict in verdicts if verdict.fate is Fate.FOREIGN),
        revoked=tuple(dead),
        noted=sum(verdict.fresh for verdict in kept),
        data_files=sum(verdict.path in known.reached for verdict in verdicts if verdict.fate is Fate.REACHED),
        dry_run=dry_run,
    )


def _batches(verdicts: Sequence[Verdict]) -> Iterator[Sequence[Verdict]]:
    return (verdicts[at : at + BATCH] for at in range(0, len(verdicts), BATCH))


def _told(verdicts: Iterator[Verdict] | Sequence[Verdict]) -> tuple[VacuumedFile, ...]:
    return tuple(VacuumedFile(one.path, one.bytes, one.reason, one.since_ms or None, one.until_ms) for one in verdicts)


# ---- looking -----------------------------------------------------------------------------------------------------


def _dead(handle: Handle, view: View) -> list[Intent]:
    """The intents that have run out and are nobody's in this process."""
    now_ms, live = handle.catalog.now_ms(), handle.leases.live
    return [intent for intent in all_intents(view) if intent.expires_ms <= now_ms and intent.id not in live]


def _revoke(handle: Handle, tx: Txn) -> list[Intent]:
    dead = _dead(handle, tx)
    for intent in dead:
        tx.delete(intent_key(intent.id))
    return dead


def _look(handle: Handle, view: View, listed: Sequence[FileInfo], dead: Sequence[Intent]) -> Known:
    """What the catalog says of everything that was listed, at one moment."""
    ended = {intent.id: intent.expires_ms for intent in dead}
    gone = {one.path: one for one in all_gone(view)}
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


def _note(handle: Handle, fresh: Sequence[Verdict]) -> None:
    """Note files as gone, unless a writer's intent has come to be there or somebody else has noted them."""
    for some in _batches(fresh):

        def body(tx: Txn, some: Sequence[Verdict] = some) -> None:
            for verdict in some:
                known = tx.get(gone_key(verdict.table_id, verdict.path)) is not None
                if not known and tx.get(intent_key(intent_of(verdict.path))) is None:
                    let_go(tx, verdict.table_id, [(verdict.path, verdict.bytes)], verdict.since_ms)
            move_counters(tx, Counters.read(tx))

        handle.catalog.transact(body)
        reached("vacuum:marked")


def _delete(
    handle: Handle, due: Sequence[Verdict], progress: Progress, stop: Callable[[], bool]
) -> tuple[list[Verdict], list[Verdict]]:
    """Delete files, then their notes; those deleted, and those that resist or were seen to be in use after all."""
    done: list[Verdict] = []
    kept: list[Verdict] = []
    if due and handle.catalog_url is None:
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
        kept += [replace(verdict, fate=Fate.KEPT, reason=REACHED_AND_GONE) for verdict in wrong]
        results = _delete_files(handle, [verdict for verdict in certain if verdict.path not in data])
        removed = [verdict for verdict, error in results if error is None]
        kept += [replace(verdict, fate=Fate.KEPT, reason=str(error)) for verdict, error in results if error is not None]

        def forget(tx: Txn, removed: Sequence[Verdict] = removed) -> None:
            for verdict in removed:
                tx.delete(gone_key(verdict.table_id, verdict.path))

        handle.catalog.transact(forget)
        done += removed
        progress(len(done) + len(kept), len(due))
    return done, kept


def _still_due(handle: Handle, view: View, some: Sequence[Verdict]) -> list[Verdict]:
    """Those that are still noted as gone and that nobody holds."""
    now_ms, live = handle.catalog.now_ms(), handle.leases.live
    holds = {table_id: holds_of(view, table_id, now_ms, live) for table_id in {one.table_id for one in some}}
    found = []
    for verdict in some:
        note = view.get(gone_key(verdict.table_id, verdict.path))
        if note is not None and not any(pins(hold, note["version"]) for hold in holds[verdict.table_id]):
            found.append(verdict)
    return found


def _delete_files(handle: Handle, some: Sequence[Verdict]) -> list[tuple[Verdict, Exception | None]]:
    def delete(verdict: Verdict) -> tuple[Verdict, Exception | None]:
        reached("vacuum:before-delete")
        try:
            handle.files.delete(verdict.path)
        except (WriteFailed, ReadFailed) as error:
            return verdict, error
        reached("vacuum:deleted")
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
    """The keys of the records of committed segments, and the paths of these."""
    for key, _ in view.scan(b"used/", after_prefix(b"used/")):
        _, table_id, name = key.decode().split("/", 2)
        yield key, f"{handle.table_folder(int(table_id, 16))}/{name}"
