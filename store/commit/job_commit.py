"""Commits of jobs: all outputs of a job at its recorded barrier, in one catalog transaction.

The transaction checks the runner's incarnation and the barrier. Rules: docs/SEMANTICS.md, 5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from epochlog.errors import BarrierChanged, Fenced, InvalidInput, JobParked
from epochlog.store.catalog.keys import job_key, step_times_key
from epochlog.store.catalog.protocol import ReadTxn, Txn
from epochlog.store.env.failpoints import hit
from epochlog.store.metadata.counters import move_counters
from epochlog.store.metadata.definitions import Counters, JobRecord
from epochlog.store.metadata.lookups import get_job, get_table
from epochlog.store.metadata.staged_segments import discard_staged, forget_staged, list_staged
from epochlog.store.metadata.state_tables import ViewState, read_state, replace_state
from epochlog.store.metadata.step_times import StepTime, read_step_times
from epochlog.store.session.write_intents import require_intents
from epochlog.store.types.epoch import show_epoch

from .change import CommitConflict, TableChange
from .failures import DEFINITE_JOB_FAILURES
from .preparation import prepare_outputs
from .prepared import Prepared, remove_new_files
from .transaction import Written, append_entry

if TYPE_CHECKING:
    from epochlog.store.session.handle import Handle


@dataclass(frozen=True, slots=True)
class JobEnd:
    """State of a job after a commit."""

    state: str
    caught_up: bool = False
    """True if a job outside of `global` takes part in it again; so does one that has finished."""


@dataclass(frozen=True, slots=True)
class JobCommit:
    """Commit of all outputs of a job at its barrier (prev, curr]; repeated by its runner, it has no further effect.

    Raises Fenced, JobParked, BarrierChanged, JobNotFound.
    """

    job_id: int
    name: str
    incarnation: int
    """The runner's; the catalog must have no newer one."""
    prev: int
    curr: int
    end_of: Callable[[ReadTxn, JobRecord], JobEnd]
    """Returns the state of the job after the commit; raises UpstreamIncomplete."""
    step_time: StepTime | None = None
    """Time of a step of a view that counts for its stride."""
    state: ViewState | None = None
    """State of a view, which gets the epoch `curr`; None if it keeps none."""

    failures: ClassVar[tuple[type[BaseException], ...]] = DEFINITE_JOB_FAILURES

    def prepare(
        self, handle: Handle, changes: Sequence[TableChange], tried: Sequence[Prepared] | None
    ) -> Sequence[Prepared]:
        remove_new_files(handle, tried or ())
        for change in changes:
            if any(segment.updates is not None for segment in change.segments):
                raise InvalidInput(f"table {change.name!r} is the output of a job, which writes whole rows, no updates")

        def begin(view: ReadTxn) -> bool | None:
            job = get_job(view, self.job_id, self.name)
            check_incarnation(job, self.incarnation)
            if job.position == self.curr:
                return None
            check_runner(job, self.incarnation, self.prev, self.curr)
            return not job.replacing

        with handle.intents.required():
            return prepare_outputs(handle, changes, begin)

    def before_transaction(self) -> None:
        hit("job:before-commit")

    def after_transaction(self) -> None:
        hit("job:after-commit")

    def record(self, handle: Handle, tx: Txn, changes: Sequence[Prepared]) -> tuple[int, list[Written] | None]:
        job = get_job(tx, self.job_id, self.name)
        check_incarnation(job, self.incarnation)
        if job.position == self.curr:
            return self.curr, None
        check_runner(job, self.incarnation, self.prev, self.curr)
        if sorted(prepared.change.table_id for prepared in changes) != sorted(job.outputs):
            raise InvalidInput(f"job {job.name!r} must commit all its outputs together")
        now_ms, written = handle.catalog.now_ms(), list[Written]()
        ending = self.end_of(tx, job)
        labels, end = {self.curr: self.curr}, ending.state == "finished"  # segments that parts report have this label
        for prepared in changes:
            table = get_table(tx, prepared.change.table_id, prepared.change.name)
            if not job.replacing:
                if list_staged(tx, table.id) != prepared.staged:
                    raise CommitConflict(f"the staged segments of table {table.name!r} have changed; retry")
                forget_staged(tx, table.id)
            version = append_entry(tx, table, prepared, self.curr, labels, now_ms, txn=None, job=job.name, end=end)
            written.append((table, version))
        if job.replacing:  # the staged segments were only the input of the difference
            discard_staged(tx, job.outputs, now_ms)
        late = job.rebuild is not None and self.curr > job.rebuild
        after = replace(
            job.without_rebuild() if late else job,  # the views of one replacement change at its boundary
            position=self.curr,
            barrier=None,
            state=ending.state,
            last_error=None,
            failed_ms=None,
            cursor=None,
            rebuild=None,
            unread=None,
            progress_ms=now_ms,
            outside_ms=None if ending.caught_up else job.outside_ms,
            runner=job.runner_after_step,
        )
        tx.put(job_key(job.id), after.to_record())
        if self.step_time is not None:
            tx.put(step_times_key(job.id), self.step_time.after(read_step_times(tx, job.id)).to_record())
        if job.view is not None:
            state, output = None if self.state is None or end else replace(self.state, epoch=self.curr), job.outputs[0]
            if state is not None:
                new = state.new_segments(read_state(tx, output))
                require_intents(tx, job.name, (segment.path for segment in new))
            replace_state(tx, output, state, now_ms)
        move_counters(tx, Counters.read(tx), self.curr)
        return self.curr, written


def count_rows(changes: Sequence[Prepared]) -> tuple[int, int]:
    """Return the rows of a commit, deletes included, and the rows that it left out because they change nothing."""
    rewrites = [rewrite for prepared in changes for rewrite in prepared.rewrites]
    unchanged = sum(
        original.rows - (0 if replacement is None else replacement.rows) for original, replacement in rewrites
    )
    return sum(segment.rows for prepared in changes for segment in prepared.segments), unchanged


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
