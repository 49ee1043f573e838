"""Commits of root tables, loads and jobs: the only way new data gets into a table, each in one catalog transaction.

Root commits get their epoch inside the transaction, so nothing lands at or below an epoch already issued or sealed. Job
commits land at their recorded barrier and are checked against the runner's incarnation. Rules: docs/SEMANTICS.md, 1
and 5.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from epochlog.errors import (
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
from epochlog.store.catalog.keys import job_key
from epochlog.store.catalog.protocol import Txn, View
from epochlog.store.compaction.write_stall import apply_backpressure
from epochlog.store.env.failpoints import hit
from epochlog.store.metadata.counters import move_counters
from epochlog.store.metadata.definitions import Counters, JobRecord, TableDef
from epochlog.store.metadata.lookups import get_job, get_table, get_version
from epochlog.store.metadata.staged_segments import discard_staged, forget_made, list_staged
from epochlog.store.metadata.version import TableVersion, require_open
from epochlog.store.session.write_intents import end_intents
from epochlog.store.sst.segment_writer import remove_segments
from epochlog.store.types.epoch import as_epoch, from_unix_ms, show_epoch

from .boundaries import check_skew
from .edits import CommitConflict, ImagesMissing, TableEdit, append_entry, check_segments, sealed_labels
from .idempotency import TxnPair, check_pair, find_committed_epoch, record_outcome, resolve_outcome
from .loads import LoadCommit, advance_load
from .preparation import job_edits, remove_prepared, remove_rewritten, with_images

if TYPE_CHECKING:
    from epochlog.store.session.handle import Handle

DEFINITE_FAILURES = (
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
JOB_REFUSALS = (*DEFINITE_FAILURES, EpochRegressed, JobNotFound, JobParked, UpstreamIncomplete)
"""Errors after which what a job's runner has written is certainly not in the catalog because of this call."""


@dataclass(frozen=True, slots=True)
class JobCommit:
    """Records that a job's commit requires in the catalog: its runner's incarnation and the barrier (prev, curr]."""

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


def commit_or_delete(
    handle: Handle, edits: Sequence[TableEdit], *, epoch: int | None = None, txn: TxnPair | None = None
) -> int:
    """Run `commit_root` for segments that only the caller knows: if it is refused, or landed before, delete their
    files.
    """
    own = [segment for edit in edits for segment in edit.segments]
    try:
        at, fresh = _commit_root(handle, edits, epoch, txn)
    except DEFINITE_FAILURES:
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
    """Return the commit's epoch, and True if it landed now, False if earlier under its `txn`."""
    check_pair(txn)
    if epoch is not None and (epoch := as_epoch("epoch", epoch)) < 1:
        raise InvalidInput("epoch must be at least 1; leave it out to be given the next")
    tables = sorted(edit.table_id for edit in edits)
    done = find_committed_epoch(handle, txn, tables)
    if done is not None:
        handle.intents.end(ending)
        return done, False
    for edit in edits:
        check_segments(handle, edit)

    attempt = edits
    while True:
        try:
            done = _land(handle, attempt, epoch, txn, ending, load)
        except (CommitConflict, ImagesMissing):  # each round again means that somebody else has landed a commit
            attempt = with_images(handle, edits, attempt, epoch)
        except DEFINITE_FAILURES:
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
    """Run a root commit's transaction; return its epoch, and True if it landed now."""
    tables = sorted(edit.table_id for edit in edits)
    written: list[tuple[TableDef, TableVersion]] = []

    def body(tx: Txn) -> tuple[int, bool]:
        done = resolve_outcome(tx, txn, tables)
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

    hit("commit:segments-written")
    done = handle.intents.checked(lambda: handle.catalog.transact(body))
    hit("commit:after-transaction")
    apply_backpressure(handle, written)
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
    """Return the commit's epoch, and the final epoch of each label given at sealing."""
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


@dataclass(frozen=True, slots=True)
class JobDone:
    """Result of a job's commit: its epoch, the rows that it wrote, and those left out because they change nothing.

    Deletes count as rows.
    """

    epoch: int
    rows: int
    unchanged: int

    @classmethod
    def of(cls, epoch: int, edits: Sequence[TableEdit]) -> JobDone:
        """Count the rows of these edits, as they landed."""
        rewrites = [rewrite for edit in edits for rewrite in edit.rewrites]
        unchanged = sum(original.rows - (0 if left is None else left.rows) for original, left in rewrites)
        return cls(epoch, sum(segment.rows for edit in edits for segment in edit.segments), unchanged)


def commit_job(handle: Handle, commit: JobCommit, edits: Sequence[TableEdit]) -> JobDone:
    """Commit all outputs of a job at its barrier; a repeated commit of the barrier by this runner is a no-op."""
    for edit in edits:
        check_segments(handle, edit)
    job = handle.catalog.read(lambda view: get_job(view, commit.job_id, commit.name))
    check_incarnation(job, commit.incarnation)
    if job.position == commit.curr:
        return JobDone.of(commit.curr, edits)
    check_runner(job, commit.incarnation, commit.prev, commit.curr)
    while True:
        attempt = handle.intents.checked(lambda: job_edits(handle, edits, replacing=job.replacing))
        try:
            landed_now = _land_job(handle, commit, attempt)
        except (CommitConflict, ImagesMissing):  # the changelog was altered, or what pieces have made is another
            remove_prepared(handle, attempt)
        except JOB_REFUSALS:
            remove_prepared(handle, attempt)
            raise
        else:
            if landed_now:
                remove_rewritten(handle, attempt)
            else:
                remove_prepared(handle, attempt)
            return JobDone.of(commit.curr, attempt)


def _land_job(handle: Handle, commit: JobCommit, edits: Sequence[TableEdit]) -> bool:
    """Run the transaction of a job's commit; return True if it landed now, not before."""
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
                if list_staged(tx, table.id) != edit.made:
                    raise CommitConflict(f"what pieces have made of table {table.name!r} is not what it was; retry")
                forget_made(tx, table.id)
            written.append((table, append_entry(tx, table, edit, commit.curr, labels, now_ms, txn=None, job=job.name)))
        if job.replacing:  # what was made of it is no more than what its difference was taken of
            discard_staged(tx, job.outputs, now_ms)
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

    hit("job:before-commit")
    done = handle.intents.checked(lambda: handle.catalog.transact(body))
    hit("job:after-commit")
    apply_backpressure(handle, written)
    return done


def check_incarnation(job: JobRecord, incarnation: int) -> None:
    if job.incarnation != incarnation:
        raise Fenced(
            f"job {job.name!r} was taken over by incarnation {job.incarnation}; this runner is {incarnation} and "
            "has no effect "
            "any more. Get the job anew with store.job(name) to take it back"
        )


def check_runner(job: JobRecord, incarnation: int, prev: int, curr: int) -> None:
    """Raise Fenced, JobParked or BarrierChanged unless this runner may commit the barrier (prev, curr] of the job."""
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
    """Return a job's recorded barrier in words."""
    return f"the barrier ({show_epoch(barrier[0])}, {show_epoch(barrier[1])}]" if barrier else "no barrier"


def require_unparked(job: JobRecord) -> None:
    if job.state == "parked":
        raise JobParked(
            f"job {job.name!r} was parked at epoch {show_epoch(job.position)}: "
            f"{job.lost or 'the logs it needs are gone'}. Its "
            f"tables stay readable as they are; make them anew with store.job({job.name!r}).rebuild() and run it again"
        )
