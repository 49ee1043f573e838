"""Commits of jobs: all outputs of a job at its recorded barrier, in one catalog transaction.

The transaction checks the runner's incarnation and the barrier. Rules: docs/SEMANTICS.md, 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from epochlog.errors import BarrierChanged, Fenced, InvalidInput, JobParked
from epochlog.store.catalog.keys import job_key, pace_key
from epochlog.store.catalog.protocol import Txn
from epochlog.store.compaction.write_stall import apply_backpressure
from epochlog.store.env.clock import monotonic_s
from epochlog.store.env.failpoints import hit
from epochlog.store.metadata.counters import move_counters
from epochlog.store.metadata.definitions import Counters, JobRecord, TableDef
from epochlog.store.metadata.lookups import get_job, get_table
from epochlog.store.metadata.staged_segments import discard_staged, forget_staged, list_staged
from epochlog.store.metadata.step_times import StepTime, read_step_times
from epochlog.store.metadata.version import TableVersion
from epochlog.store.types.epoch import show_epoch

from .edits import CommitConflict, TableEdit, Unprepared, append_entry, check_segments, count_commit
from .failures import DEFINITE_JOB_FAILURES
from .preparation import job_edits, remove_prepared, remove_rewritten

if TYPE_CHECKING:
    from epochlog.store.session.handle import Handle


@dataclass(frozen=True, slots=True)
class JobCommit:
    """Records that a job's commit requires in the catalog: its runner's incarnation and the barrier (prev, curr]."""

    job_id: int
    name: str
    incarnation: int
    prev: int
    curr: int
    state: str  # the state after the commit, unless the job ends with it
    caught_up: bool = False  # a job outside of `global` takes part in it again
    step_time: StepTime | None = None  # of a step of a view that counts for its stride


@dataclass(frozen=True, slots=True)
class JobDone:
    """Result of a job's commit: its epoch, the written rows, and the omitted rows that change nothing. Deletes count as
    rows.
    """

    epoch: int
    rows: int
    unchanged: int

    @classmethod
    def of(cls, epoch: int, edits: Sequence[TableEdit]) -> JobDone:
        """Count the rows of these edits, as committed."""
        rewrites = [rewrite for edit in edits for rewrite in edit.rewrites]
        unchanged = sum(
            original.rows - (0 if replacement is None else replacement.rows) for original, replacement in rewrites
        )
        return cls(epoch, sum(segment.rows for edit in edits for segment in edit.segments), unchanged)


def commit_job(handle: Handle, commit: JobCommit, edits: Sequence[TableEdit]) -> JobDone:
    """Commit all outputs of a job at its barrier; a repeated commit of the barrier by this runner is a no-op."""
    for edit in edits:
        check_segments(handle, edit)
        if any(segment.updates is not None for segment in edit.segments):
            raise InvalidInput(f"table {edit.name!r} is the output of a job, which writes whole rows, no updates")
    job = handle.catalog.read(lambda view: get_job(view, commit.job_id, commit.name))
    check_incarnation(job, commit.incarnation)
    if job.position == commit.curr:
        return JobDone.of(commit.curr, edits)
    check_runner(job, commit.incarnation, commit.prev, commit.curr)
    began_s = monotonic_s()
    while True:
        attempt = handle.intents.run_commit(lambda: job_edits(handle, edits, replacing=job.replacing))
        try:
            landed_now = _transact_job(handle, commit, attempt)
        except (CommitConflict, Unprepared):  # the changelog was altered, or the staged segments have changed
            remove_prepared(handle, attempt)
        except DEFINITE_JOB_FAILURES:
            remove_prepared(handle, attempt)
            raise
        else:
            if landed_now:
                remove_rewritten(handle, attempt)
                count_commit(handle, attempt, commit.curr, began_s)
            else:
                remove_prepared(handle, attempt)
            return JobDone.of(commit.curr, attempt)


def _transact_job(handle: Handle, commit: JobCommit, edits: Sequence[TableEdit]) -> bool:
    """Run the transaction of a job's commit; return True if it landed now, False if it had landed before."""
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
        labels = {commit.curr: commit.curr}  # the segments that parts report carry this label
        for edit in edits:
            table, edit = get_table(tx, edit.table_id, edit.name), replace(edit, end=state == "finished")
            if not job.replacing:
                if list_staged(tx, table.id) != edit.staged:
                    raise CommitConflict(f"the staged segments of table {table.name!r} have changed; retry")
                forget_staged(tx, table.id)
            written.append((table, append_entry(tx, table, edit, commit.curr, labels, now_ms, txn=None, job=job.name)))
        if job.replacing:  # the staged segments were only the input of the difference
            discard_staged(tx, job.outputs, now_ms)
        late = job.rebuild is not None and commit.curr > job.rebuild
        after = replace(
            job.without_rebuild() if late else job,  # the views of one replacement change at its boundary
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
        if commit.step_time is not None:
            tx.put(pace_key(job.id), commit.step_time.after(read_step_times(tx, job.id)).to_record())
        move_counters(tx, Counters.read(tx), commit.curr)
        return True

    hit("job:before-commit")
    landed_now = handle.intents.run_commit(lambda: handle.catalog.transact(body))
    hit("job:after-commit")
    apply_backpressure(handle, written)
    return landed_now


def check_incarnation(job: JobRecord, incarnation: int) -> None:
    if job.incarnation != incarnation:
        raise Fenced(
            f"job {job.name!r} was taken over by incarnation {job.incarnation}; this runner is {incarnation} and has "
            "no effect any more. Get the job again with store.job(name) to take it back"
        )


def check_runner(job: JobRecord, incarnation: int, prev: int, curr: int) -> None:
    """Raise Fenced, JobParked or BarrierChanged unless this runner may commit the barrier (prev, curr] of the job."""
    check_incarnation(job, incarnation)
    require_unparked(job)
    if job.barrier is None and job.rebuilding:
        raise BarrierChanged(
            f"a rebuild of job {job.name!r} was requested while {_show_barrier((prev, curr, ''))} was running, so that "
            "barrier is discarded. Step the job again"
        )
    if job.barrier is None or job.barrier[:2] != (prev, curr) or job.position != prev:
        raise BarrierChanged(
            f"job {job.name!r} is at {show_epoch(job.position)} with {_show_barrier(job.barrier)}; "
            f"{_show_barrier((prev, curr, ''))} cannot be committed. Step the job again"
        )


def _show_barrier(barrier: tuple[int, int, str] | None) -> str:
    """Format a job's recorded barrier for a message."""
    return f"the barrier ({show_epoch(barrier[0])}, {show_epoch(barrier[1])}]" if barrier else "no barrier"


def require_unparked(job: JobRecord) -> None:
    if job.state == "parked":
        raise JobParked(
            f"job {job.name!r} was parked at epoch {show_epoch(job.position)}: "
            f"{job.lost or 'the logs it needs are gone'}. Its "
            f"tables stay readable; rebuild them with store.job({job.name!r}).rebuild() and run the job again"
        )
