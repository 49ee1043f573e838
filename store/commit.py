"""The one door through which a table gets new data: every commit is one catalog transaction, whole or not at all.

Root commits get their epoch inside the transaction, so nothing lands at or below an epoch already issued or sealed. Job
commits land at their recorded barrier and are checked against the runner's incarnation. Rules: docs/SEMANTICS.md, 1
and 5.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..errors import (
    BarrierChanged,
    CatalogFull,
    CatalogUnavailable,
    ClockSkew,
    EpochlogError,
    EpochRegressed,
    Fenced,
    InvalidInput,
    JobParked,
    NotWritable,
    SegmentUnknown,
    StoreClosed,
    TableDropped,
    TableFinished,
    TxnAborted,
    TxnMismatch,
    TxnOutcomeForgotten,
)
from .catalog import Txn, View
from .definitions import Counters, JobRecord, TableDef, get_job, get_table, get_version, move_counters
from .epoch import as_epoch, from_unix_ms
from .expiry import planned_anew
from .failpoints import reached
from .images import Images, write_images
from .intents import end_intents, require_intents
from .loads import LoadCommit, advance_load
from .made import discard_made, forget_made, made_of
from .outcomes import TxnPair, check_pair, landed, outcome_of, record_outcome
from .pressure import relieve
from .records import gone_key, head_key, hist_key, job_key, log_key, used_key
from .scan import ScanPlan, plan_scan
from .sealing import check_skew
from .segment import Segment
from .version import Commit, LabelGroup, LogEntry, TableVersion, apply_commit, require_open
from .writer import remove_segments

if TYPE_CHECKING:
    from .handle import Handle

REFUSALS = (
    BarrierChanged,
    CatalogFull,
    CatalogUnavailable,
    ClockSkew,
    Fenced,
    InvalidInput,
    SegmentUnknown,
    StoreClosed,
    TableDropped,
    TableFinished,
    TxnAborted,
    TxnMismatch,
    TxnOutcomeForgotten,
)
"""Errors after which a commit has certainly not landed; after any other (a sync that failed) it may have."""


@dataclass(frozen=True, slots=True)
class TableEdit:
    """What a commit does to one table: segments in the order in which later wins, or its end-of-data.

    made: segments that the catalog reaches already (store/made.py); they come before the others.
    """

    table_id: int
    name: str
    segments: tuple[Segment, ...] = ()
    operation: str = "upsert"
    end: bool = False
    base: int | None = None  # the newest commit that the edit was made from, where it must still be the newest
    images: Images | None = None  # old rows for each of its log epochs, as of `base`; for changelog="full"
    made: tuple[Segment, ...] = ()


class BaseMoved(EpochlogError):
    """Another commit landed in a table while an edit was made from its earlier state; make the edit again."""


class _ImagesMissing(EpochlogError):
    """A table with changelog="full" takes no rows without the ones that they replace."""


@dataclass(frozen=True, slots=True)
class JobCommit:
    """What a job's commit must find in the catalog: its runner's incarnation and the barrier (prev, curr) recorded
    for it.
    """

    job_id: int
    name: str
    incarnation: int
    prev: int
    curr: int
    state: str  # the state after the commit, unless the job was told to end with it


# ---- root commits ------------------------------------------------------------------------------------------------


def commit_root(
    handle: Handle,
    edits: Sequence[TableEdit],
    *,
    epoch: int | None = None,
    txn: TxnPair | None = None,
    ending: Collection[str] = (),
    load: LoadCommit | None = None,
) -> int:
    """Commit to root tables at one epoch (given, or the catalog's next).

    The same `txn` again returns the first outcome. `ending`: writer intents that end with this commit, also when it
    had landed before. `load`: a load whose checkpoint this is; its fence is checked and its parts' states are written
    in the same transaction.
    """
    return _commit_root(handle, edits, epoch, txn, ending, load)[0]


def commit_own(
    handle: Handle, edits: Sequence[TableEdit], *, epoch: int | None = None, txn: TxnPair | None = None
) -> int:
    """`commit_root` of segments that nobody else knows of: refused, or landed before, they leave no file behind."""
    own = [segment for edit in edits for segment in edit.segments]
    try:
        at, fresh = _commit_root(handle, edits, epoch, txn)
    except REFUSALS:
        remove_segments(handle.files, own)
        raise
    if not fresh:
        remove_segments(handle.files, own)
    return at


def _commit_root(
    handle: Handle,
    edits: Sequence[TableEdit],
    epoch: int | None,
    txn: TxnPair | None,
    ending: Collection[str] = (),
    load: LoadCommit | None = None,
) -> tuple[int, bool]:
    """The commit's epoch, and whether it landed now (else earlier, under the same `txn`)."""
    check_pair(txn)
    if epoch is not None and (epoch := as_epoch("epoch", epoch)) < 1:
        raise InvalidInput("epoch must be at least 1; leave it out to be given the next")
    tables = sorted(edit.table_id for edit in edits)
    done = landed(handle, txn, tables)
    if done is not None:
        handle.intents.end(ending)
        return done, False
    for edit in edits:
        check_segments(handle, edit)

    attempt = edits
    while True:
        try:
            done = _land(handle, attempt, epoch, txn, ending, load)
        except (BaseMoved, _ImagesMissing):  # each round again means that somebody else has landed a commit
            _remove_images(handle, attempt)
            attempt = _with_images(handle, edits, epoch)
        except REFUSALS:
            _remove_images(handle, attempt)
            raise
        else:
            if not done[1]:
                _remove_images(handle, attempt)
            return done


def _land(
    handle: Handle,
    edits: Sequence[TableEdit],
    epoch: int | None,
    txn: TxnPair | None,
    ending: Collection[str],
    load: LoadCommit | None,
) -> tuple[int, bool]:
    """The transaction of a root commit: its epoch, and whether it landed now."""
    tables = sorted(edit.table_id for edit in edits)
    written: list[tuple[TableDef, TableVersion]] = []

    def body(tx: Txn) -> tuple[int, bool]:
        done = outcome_of(tx, txn, tables)
        if done is not None:
            end_intents(tx, ending)
            return done, False
        if load is not None:
            advance_load(tx, load)
        written.clear()
        targets = [get_table(tx, edit.table_id, edit.name) for edit in edits]
        for table in targets:
            refuse_unwritable(tx, table)
        counters, now_ms = Counters.read(tx), handle.catalog.now_ms()
        at, labels = _choose_epochs(edits, epoch, counters.last_epoch, now_ms)
        for table, edit in zip(targets, edits, strict=True):
            written.append((table, _append(tx, table, edit, at, labels, now_ms, txn=txn, job=None)))
        move_counters(tx, counters, at)
        if txn is not None:
            record_outcome(tx, txn, tables, at, now_ms)
        end_intents(tx, ending)
        return at, True

    reached("commit:segments-written")
    done = handle.intents.checked(lambda: handle.catalog.transact(body))
    reached("commit:after-transaction")
    relieve(handle, written)
    return done


def _with_images(handle: Handle, edits: Sequence[TableEdit], epoch: int | None) -> list[TableEdit]:
    """The edits; those of tables with changelog="full" with the old rows of all that they touch, as of now."""
    done: list[TableEdit] = []
    try:
        done.extend(
            planned_anew(handle, lambda edit=edit: _with_its_images(handle, edits, edit, epoch)) for edit in edits
        )
    except BaseException:
        _remove_images(handle, done)
        raise
    return done


def _with_its_images(handle: Handle, edits: Sequence[TableEdit], edit: TableEdit, epoch: int | None) -> TableEdit:
    table, before = handle.catalog.read(lambda view: _newest(view, edit))
    if edit.base is not None and edit.base != before.epoch:
        raise BaseMoved(f"table {table.name!r} was committed to at {before.epoch}, after {edit.base}; retry")
    if table.changelog != "full" or not edit.segments:
        return edit
    images = write_images(handle, table, before, _log_epochs(edits, edit, epoch))
    return replace(edit, images=images, base=before.epoch)


def _newest(view: View, edit: TableEdit) -> tuple[TableDef, ScanPlan]:
    table = get_table(view, edit.table_id, edit.name)
    return table, plan_scan(view, table, None)


def _log_epochs(edits: Sequence[TableEdit], edit: TableEdit, epoch: int | None) -> list[list[Segment]]:
    """The segments of each log epoch that the edit will have, oldest first, before the epochs themselves are known."""
    sealed = _sealed(edits)
    if epoch is None:
        at, labels = max(len(sealed) - 1, 0), {label: place for place, label in enumerate(sealed)}
    else:
        at, labels = epoch, {label: label for label in sealed}
    groups = _grouped(edit, at, labels)
    return [groups[label] for label in sorted(groups)]


def _remove_images(handle: Handle, edits: Sequence[TableEdit]) -> None:
    """Nobody else knows of them."""
    remove_segments(handle.files, (file for edit in edits for files in edit.images or () for file in files))


def refuse_unwritable(view: View, table: TableDef) -> None:
    """Refuse a write before any file is made, where the catalog tells already: TableDropped, NotWritable,
    TableFinished.
    """
    found = get_table(view, table.id, table.name)
    if found.derived:
        raise NotWritable(f"table {found.name!r} is the output of a job and is written by that job alone")
    require_open(found.name, get_version(view, found.id, found.name))


def _choose_epochs(
    edits: Sequence[TableEdit], epoch: int | None, last_epoch: int, now_ms: int
) -> tuple[int, Mapping[int, int]]:
    """The commit's epoch, and what each label given at sealing becomes."""
    sealed = _sealed(edits)
    if epoch is None:  # labels are handed out anew, in order; the last one is the commit's own epoch
        first = max(from_unix_ms(now_ms), last_epoch + 1)
        at = first + max(len(sealed) - 1, 0)
        labels = {label: first + place for place, label in enumerate(sealed)}
    else:
        at, labels = epoch, {label: label for label in sealed}
        low = min([epoch, *sealed])
        if low <= last_epoch:
            what = f"epoch {epoch}" if low == epoch else f"label {low}"
            raise EpochRegressed(
                f"{what} must exceed {last_epoch}, the newest epoch issued or sealed; leave epoch out to be given "
                "the next"
            )
        if sealed and sealed[-1] > epoch:
            raise EpochRegressed(f"label {sealed[-1]} lies above the commit's epoch {epoch}; labels must not exceed it")
    check_skew(at, now_ms)
    return at, labels


def _sealed(edits: Sequence[TableEdit]) -> list[int]:
    """The labels that were given at sealing, rising."""
    return sorted({segment.label for edit in edits for segment in edit.segments if segment.label is not None})


def _grouped(edit: TableEdit, epoch: int, labels: Mapping[int, int]) -> dict[int, list[Segment]]:
    """The edit's segments by log epoch."""
    groups: dict[int, list[Segment]] = {}
    for segment in (*edit.made, *edit.segments):
        label = epoch if segment.label is None else labels[segment.label]
        groups.setdefault(label, []).append(replace(segment, label=label))
    return groups


def _append(
    tx: Txn,
    table: TableDef,
    edit: TableEdit,
    epoch: int,
    labels: Mapping[int, int],
    now_ms: int,
    *,
    txn: TxnPair | None,
    job: str | None,
) -> TableVersion:
    """Add one log entry to one table, with the row of history that outlives it; returns its version after that."""
    use_up(tx, edit)
    before = get_version(tx, table.id, table.name)
    if edit.base is not None and edit.base != before.max_committed_epoch:
        raise BaseMoved(
            f"table {table.name!r} was committed to at {before.max_committed_epoch}, after {edit.base}; retry"
        )
    if table.changelog == "full" and edit.segments and edit.images is None:
        raise _ImagesMissing(f"table {table.name!r} stores old rows with each commit, and this one has none")
    groups = _grouped(edit, epoch, labels)
    images = edit.images or ((),) * len(groups)
    found = (LabelGroup(at, tuple(groups[at]), old) for at, old in zip(sorted(groups), images, strict=True))
    entry = LogEntry(epoch, tuple(found), edit.end)
    version = apply_commit(table.name, before, entry)
    rows, deletes = sum(s.rows for s in entry.segments), sum(s.deletes for s in entry.segments)
    commit = Commit(
        epoch=epoch,
        at_ms=now_ms,
        operation=edit.operation,
        txn=txn,
        job=job,
        rows_upserted=rows - deletes,
        rows_deleted=deletes,
        segments=len(entry.segments),
        bytes=sum(s.bytes for s in entry.segments),
        changed=entry.changed,
        labels=tuple(label for label in sorted(groups) if label != epoch),
    )
    tx.put(head_key(table.id), version.to_record())
    tx.put(log_key(table.id, epoch), entry.to_record())
    tx.put(hist_key(table.id, epoch), commit.to_record())
    reached("commit:before-transaction")
    return version


def check_segments(handle: Handle, edit: TableEdit) -> None:
    """Refuse what is not a segment of this store and table, is there twice, or whose file has gone."""
    folder, seen = handle.table_folder(edit.table_id), set[str]()
    for segment in edit.segments:
        if not isinstance(segment, Segment):
            raise InvalidInput(f"table {edit.name!r}: a commit takes the segments that seal() gave, not {segment!r}")
        if segment.path in seen:
            raise SegmentUnknown(f"segment {segment.path} of table {edit.name!r} is there twice in one commit")
        seen.add(segment.path)
        if segment.table_id != edit.table_id or not segment.path.startswith(folder + "/"):
            raise SegmentUnknown(f"segment {segment.path} was not written for table {edit.name!r} of this store")
        if segment.label is not None and not handle.files.exists(segment.path):  # sealed, perhaps long ago
            raise SegmentUnknown(f"segment {segment.path} of table {edit.name!r} is gone; write its rows again")


def use_up(tx: Txn, edit: TableEdit) -> None:
    """Take segments whose writer may still write, and sealed ones once: whoever sealed them may try to commit them
    again when an answer was lost.
    """
    old = (file for files in edit.images or () for file in files)
    require_intents(tx, edit.name, (file.path for file in (*edit.segments, *old)))
    for segment in edit.segments:
        if tx.get(gone_key(segment.table_id, segment.path)) is not None:
            raise SegmentUnknown(f"segment {segment.path} of table {edit.name!r} was let go; write its rows again")
        if segment.label is not None:
            key = used_key(segment.table_id, segment.path)
            if tx.get(key) is not None:
                raise SegmentUnknown(
                    f"segment {segment.path} of table {edit.name!r} has been committed already; "
                    "give the commit a txn=(application, id), and its repetition returns the first outcome"
                )
            tx.put(key, {})


# ---- job commits -------------------------------------------------------------------------------------------------


def commit_job(handle: Handle, commit: JobCommit, edits: Sequence[TableEdit]) -> int:
    """Commit all outputs of a job at its barrier; the same barrier committed again by the same runner is a no-op."""
    for edit in edits:
        check_segments(handle, edit)

    written: list[tuple[TableDef, TableVersion]] = []

    def body(tx: Txn) -> int:
        written.clear()
        job = get_job(tx, commit.job_id, commit.name)
        check_incarnation(job, commit.incarnation)
        if job.position == commit.curr:
            return commit.curr
        check_runner(job, commit.incarnation, commit.prev, commit.curr)
        if sorted(edit.table_id for edit in edits) != sorted(job.outputs):
            raise InvalidInput(f"job {job.name!r} must commit all its outputs together")
        now_ms = handle.catalog.now_ms()
        state = "finished" if job.ends_at(commit.curr) else commit.state
        for edit in edits:
            table, edit = get_table(tx, edit.table_id, edit.name), replace(edit, end=state == "finished")
            if not job.replacing:
                edit = replace(edit, made=made_of(tx, table.id))
                forget_made(tx, table.id)
            written.append((table, _append(tx, table, edit, commit.curr, {}, now_ms, txn=None, job=job.name)))
        if job.replacing:  # what was made of it is no more than what its difference was taken of
            discard_made(tx, job.outputs, now_ms)
        after = replace(
            job,
            position=commit.curr,
            barrier=None,
            state=state,
            last_error=None,
            failed_ms=None,
            cursor=None,
            rebuild=None,
            unread=None,
            progress_ms=now_ms,
        )
        tx.put(job_key(job.id), after.to_record())
        move_counters(tx, Counters.read(tx), commit.curr)
        return commit.curr

    reached("job:before-commit")
    done = handle.intents.checked(lambda: handle.catalog.transact(body))
    reached("job:after-commit")
    relieve(handle, written)
    return done


def check_incarnation(job: JobRecord, incarnation: int) -> None:
    if job.incarnation != incarnation:
        raise Fenced(
            f"job {job.name!r} was taken over by incarnation {job.incarnation}; this runner is {incarnation} and "
            "has no effect "
            "any more. Get the job anew with store.job(name) to take it back"
        )


def check_runner(job: JobRecord, incarnation: int, prev: int, curr: int) -> None:
    """Whether this runner may go on with the barrier (prev, curr] of the job; Fenced, JobParked, BarrierChanged."""
    check_incarnation(job, incarnation)
    require_unparked(job)
    if job.barrier is None or job.barrier[:2] != (prev, curr) or job.position != prev:
        raise BarrierChanged(
            f"job {job.name!r} stands at {job.position} with barrier {job.barrier}; "
            f"({prev}, {curr}] is not the one to commit"
        )


def require_unparked(job: JobRecord) -> None:
    if job.state == "parked":
        raise JobParked(
            f"job {job.name!r} was parked at epoch {job.position}: {job.lost or 'the logs it needs are gone'}. Its "
            f"tables stay readable as they are; make them anew with store.job({job.name!r}).rebuild() and run it again"
        )
