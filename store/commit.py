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
    EpochRegressed,
    Fenced,
    InvalidInput,
    JobNotFound,
    JobParked,
    NotWritable,
    SegmentUnknown,
    StoreClosed,
    TableDropped,
    TableFinished,
    TxnAborted,
    TxnMismatch,
    TxnOutcomeForgotten,
    UpstreamIncomplete,
)
from .catalog import Txn, View
from .definitions import Counters, JobRecord, TableDef, get_job, get_table, get_version, move_counters
from .edits import BaseMoved, ImagesMissing, TableEdit, append_entry, check_segments, sealed_labels
from .epoch import as_epoch, from_unix_ms, show_epoch
from .failpoints import reached
from .intents import end_intents
from .loads import LoadCommit, advance_load
from .made import discard_made, forget_made, made_of
from .outcomes import TxnPair, check_pair, landed, outcome_of, record_outcome
from .preparing import job_edits, remove_prepared, remove_rewritten, with_images
from .pressure import relieve
from .records import job_key
from .sealing import check_skew
from .version import TableVersion, require_open
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
JOB_REFUSALS = (*REFUSALS, EpochRegressed, JobNotFound, JobParked, UpstreamIncomplete)
"""Errors after which what a job's runner has written is certainly not in the catalog because of this call."""


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
    caught_up: bool = False  # it takes part in `global` again, if it stood outside


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
        except (BaseMoved, ImagesMissing):  # each round again means that somebody else has landed a commit
            attempt = with_images(handle, edits, attempt, epoch)
        except REFUSALS:
            remove_prepared(handle, attempt)
            raise
        else:
            if not done[1]:
                remove_prepared(handle, attempt)
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
            written.append((table, append_entry(tx, table, edit, at, labels, now_ms, txn=txn, job=None)))
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
    sealed = sealed_labels(edits)
    if epoch is None:  # labels are handed out anew, in order; the last one is the commit's own epoch
        first = max(from_unix_ms(now_ms), last_epoch + 1)
        at = first + max(len(sealed) - 1, 0)
        labels = {label: first + place for place, label in enumerate(sealed)}
    else:
        at, labels = epoch, {label: label for label in sealed}
        low = min([epoch, *sealed])
        if low <= last_epoch:
            what = f"epoch {show_epoch(epoch)}" if low == epoch else f"label {show_epoch(low)}"
            raise EpochRegressed(
                f"{what} must exceed {show_epoch(last_epoch)}, the newest epoch issued or sealed; leave epoch out to "
                "be given "
                "the next"
            )
        if sealed and sealed[-1] > epoch:
            raise EpochRegressed(
                f"label {show_epoch(sealed[-1])} lies above the commit's epoch {show_epoch(epoch)}; "
                "labels must not exceed it"
            )
    check_skew(at, now_ms)
    return at, labels


# ---- job commits -------------------------------------------------------------------------------------------------


def commit_job(handle: Handle, commit: JobCommit, edits: Sequence[TableEdit]) -> int:
    """Commit all outputs of a job at its barrier; the same barrier committed again by the same runner is a no-op."""
    for edit in edits:
        check_segments(handle, edit)
    job = handle.catalog.read(lambda view: get_job(view, commit.job_id, commit.name))
    check_incarnation(job, commit.incarnation)
    if job.position == commit.curr:
        return commit.curr
    check_runner(job, commit.incarnation, commit.prev, commit.curr)
    while True:
        attempt = handle.intents.checked(lambda: job_edits(handle, edits, replacing=job.replacing))
        try:
            landed_now = _land_job(handle, commit, attempt)
        except (BaseMoved, ImagesMissing):  # the changelog was altered, or what pieces have made is another
            remove_prepared(handle, attempt)
        except JOB_REFUSALS:
            remove_prepared(handle, attempt)
            raise
        else:
            if landed_now:
                remove_rewritten(handle, attempt)
            else:
                remove_prepared(handle, attempt)
            return commit.curr


def _land_job(handle: Handle, commit: JobCommit, edits: Sequence[TableEdit]) -> bool:
    """The transaction of a job's commit: whether it landed now, not before."""
    written: list[tuple[TableDef, TableVersion]] = []

    def body(tx: Txn) -> bool:
        written.clear()
        job = get_job(tx, commit.job_id, commit.name)
        check_incarnation(job, commit.incarnation)
        if job.position == commit.curr:
            return False
        check_runner(job, commit.incarnation, commit.prev, commit.curr)
        if sorted(edit.table_id for edit in edits) != sorted(job.outputs):
            raise InvalidInput(f"job {job.name!r} must commit all its outputs together")
        now_ms = handle.catalog.now_ms()
        state = "finished" if job.ends_at(commit.curr) else commit.state
        labels = {commit.curr: commit.curr}  # of what parts have reported
        for edit in edits:
            table, edit = get_table(tx, edit.table_id, edit.name), replace(edit, end=state == "finished")
            if not job.replacing:
                if made_of(tx, table.id) != edit.made:
                    raise BaseMoved(f"what pieces have made of table {table.name!r} is not what it was; retry")
                forget_made(tx, table.id)
            written.append((table, append_entry(tx, table, edit, commit.curr, labels, now_ms, txn=None, job=job.name)))
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
            outside_ms=None if commit.caught_up or state == "finished" else job.outside_ms,
            runner=job.runner_after_step,
        )
        tx.put(job_key(job.id), after.to_record())
        move_counters(tx, Counters.read(tx), commit.curr)
        return True

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
    if job.barrier is None and job.rebuilding:
        raise BarrierChanged(
            f"the outputs of job {job.name!r} are to be made anew: somebody asked for it since "
            f"{_told((prev, curr, ''))} was begun, and that is dropped. Step the job again"
        )
    if job.barrier is None or job.barrier[:2] != (prev, curr) or job.position != prev:
        raise BarrierChanged(
            f"job {job.name!r} stands at {show_epoch(job.position)} with {_told(job.barrier)}; "
            f"{_told((prev, curr, ''))} is not the one to commit"
        )


def _told(barrier: tuple[int, int, str] | None) -> str:
    """A job's recorded barrier, in words."""
    return f"the barrier ({show_epoch(barrier[0])}, {show_epoch(barrier[1])}]" if barrier else "no barrier"


def require_unparked(job: JobRecord) -> None:
    if job.state == "parked":
        raise JobParked(
            f"job {job.name!r} was parked at epoch {show_epoch(job.position)}: "
            f"{job.lost or 'the logs it needs are gone'}. Its "
            f"tables stay readable as they are; make them anew with store.job({job.name!r}).rebuild() and run it again"
        )
