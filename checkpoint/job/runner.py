"""Runner of a job: decides the next barrier, refreshes the outputs and commits them in one transaction.

`JobRunner` needs no Spark. It can `begin` a barrier and `commit` or `fail` it; `step_local` does all three with pyarrow
tables. All state is in the catalog; a runner keeps only its claim. Rules: docs/SEMANTICS.md, 5.1 to 5.15.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any

from epochlog.errors import (
    EpochlogError,
    Fenced,
    InvalidInput,
    JobNotFound,
    JobParked,
    JobRunning,
    UpstreamIncomplete,
)
from epochlog.store.catalog.keys import job_key
from epochlog.store.catalog.protocol import ReadTxn, Txn
from epochlog.store.commit.backfill import BackfillChunk, discard_chunks, discard_refused, record_chunk
from epochlog.store.commit.boundaries import may_seal, seal_now
from epochlog.store.commit.change import TableChange
from epochlog.store.commit.difference import difference
from epochlog.store.commit.job_commit import JobCommit, JobEnd, check_incarnation, count_rows, require_unparked
from epochlog.store.commit.transaction import CommitResult, commit_changes
from epochlog.store.env.clock import monotonic_s
from epochlog.store.env.failpoints import hit
from epochlog.store.env.log_events import BARRIER, JOB_FINISHED, REFRESH_FAILED, REFRESH_RESTARTED, RUNNER_FENCED
from epochlog.store.metadata.counters import move_counters
from epochlog.store.metadata.definitions import Counters, Cursor, JobRecord
from epochlog.store.metadata.lookups import get_job
from epochlog.store.metadata.staged_segments import discard_staged
from epochlog.store.metadata.state_tables import NO_STATE, StateWrites
from epochlog.store.session.handle import Handle
from epochlog.store.session.job_runners import new_runner, require_free
from epochlog.store.sst.segment import Segment
from epochlog.store.sst.segment_writer import remove_segments
from epochlog.store.types.epoch import show_epoch

from .backfill_chunks import KEEPS_CHUNKS
from .claims import JobClaims, RunnerLease
from .local_context import LocalRefreshContext
from .next_barrier import BARRIER_PHASES
from .next_step import JobState, depends_on_time, read_job_state
from .rebuild import request_rebuild
from .refresh_adapter import LocalRefreshAdapter, RefreshAdapter
from .refresh_context import RefreshContext
from .refresh_plan import RefreshPlan, plan_barrier, plan_chunk
from .refresh_run import refresh_run
from .step_work import NO_WORK, CommittedStep

LocalRefresh = Callable[[LocalRefreshContext], None]


class JobRunner(JobClaims):
    """Runner of one job for one handle. Begins a barrier, then commits or fails it; `step` does all of it.

    A job has one barrier in flight. While one thread steps the job, other threads get JobRunning.
    """

    def __init__(self, handle: Handle, job_id: int, name: str) -> None:
        super().__init__(handle, job_id, name)
        self.repeat_step: Callable[[], int | None] | None = None
        """Steps once more with the refresh of the newest step; None before the first step."""
        self.refreshing: dict[str, int] = {}
        """Ids of the threads that run a step of this runner, by holder."""
        self._lock = threading.Lock()
        self._stepping = self.new_lease("step")

    def begin(
        self,
        *,
        unchunked: bool = False,
        keep_chunks: bool = False,
        lease: RunnerLease | None = None,
        take_over: bool = False,
    ) -> RefreshPlan | None:
        """Decide and record the job's next barrier; return None if there is nothing to do or the job is finished.

        unchunked: backfill in one step, even if the job has snapshot_rows; drop the chunks made so far. keep_chunks:
        plan the barrier whole, and keep these chunks, for a part that takes in the others (`plan_chunk`). lease: the
        lease of the query, pipeline or coordinator that steps; None: the step takes its own lease. Raises JobRunning if
        another runner is alive (take_over: fences it), Fenced if another runner took over, JobParked if the job is
        parked.
        """
        lease = lease or self._stepping
        plan = None
        try:
            job = self._with_barrier(self._enter(lease, take_over=take_over), lease)
            if job is not None:
                if unchunked and job.cursor is not None:
                    job = discard_chunks(self.handle, job, job.incarnation)
                plan = self.plan(job)
                plan = plan if unchunked or keep_chunks else plan_chunk(self.handle.files, plan)
        finally:
            if plan is None and lease.kind == "step":
                self.release(lease)
        return plan

    def _enter(self, lease: RunnerLease, *, take_over: bool) -> JobState:
        """Return the job's state for a step of this lease, which is acquired if needed.

        A single step of a handle that has claimed the job enters only once there is a barrier: looking for a barrier
        writes nothing.
        """
        if lease.kind == "step":
            lease.incarnation = self.incarnation
        if take_over or lease.incarnation is None or not (lease.kind == "step" or self.holds(lease)):
            self.acquire(lease, take_over=take_over)
        state = self._read_state()
        self.require_lease(state.job, lease)
        return state

    def _with_barrier(self, state: JobState, lease: RunnerLease) -> JobRecord | None:
        """Return the job with a recorded barrier, of this lease; None if there is nothing to do."""
        job, last_epoch = state.job, state.epochs.last_epoch
        if job.state == "finished":
            return None
        if job.barrier is not None:
            return job if _is_runner(job, lease) else self.acquire(lease)
        if depends_on_time(state.epochs, job):
            decided = state.sealed()
            if may_seal(self.handle, last_epoch, sealed=state.clockwork.is_commit_boundary(last_epoch, job)):
                seal_now(self.handle)
            recorded = self._record_barrier(lease) if decided.refreshes else job
            if recorded.barrier is not None:
                return recorded
        else:
            decided = state.next
        if decided.kind == "caught_up":
            self._mark_caught_up(job)
        return None

    def plan(self, job: JobRecord) -> RefreshPlan:
        """Plan the refresh of the job's recorded barrier, whole."""
        self.handle.intents.store_intent()  # the write intent must exist before the catalog read that plans the writers
        return self.handle.catalog.read(lambda view: plan_barrier(view, self.handle, job))

    def _forget_runner(self, plan: RefreshPlan) -> None:
        """Forget the runner lease of a single step: the transaction that ended the step has removed it."""
        runner = plan.job.runner
        if runner is not None and runner.kind == "step":
            self.handle.runners.forget(runner.holder)

    def commit(
        self,
        plan: RefreshPlan,
        outputs: Mapping[str, Sequence[Segment]],
        *,
        keep: bool = False,
        operation: str = "refresh",
        state: StateWrites = NO_STATE,
    ) -> int:
        """Commit all outputs at the barrier and return the epoch. Outputs without segments get empty log entries.

        For a backfill chunk, record its segments and return 0. A refused commit deletes its files; keep: it does not.
        """
        named = _stored(operation, plan.engine)
        refreshed = [
            TableChange(output.table, tuple(outputs.get(name, ())), named) for name, output in plan.outputs.items()
        ]
        changes, job, ends = refreshed, plan.job, list[JobEnd]()

        def end_of(view: ReadTxn, current: JobRecord) -> JobEnd:
            ends.append(self._state_after(view, plan, current))
            return ends[-1]

        try:
            if plan.next_cursor is not None:
                return self._record_chunk(plan, plan.next_cursor, changes)
            if job.replacing:
                changes = self._differences(plan, refreshed)
            fence = (self.job_id, self.name, job.incarnation, job.position, plan.barrier.curr)
            committed = commit_changes(self.handle, changes, JobCommit(*fence, end_of, plan.step_time(), state.kept))
        except EpochlogError as error:
            if changes is not refreshed:
                discard_refused(self.handle, error, changes)
            if not keep:
                discard_refused(self.handle, error, refreshed, state.segments)
            self._log_failure(error, plan)
            raise
        self._forget_runner(plan)
        is_last = committed.is_new and ends[-1].state == "finished"
        self._log_commit(plan, committed, is_last=is_last)
        if committed.is_new:
            remove_segments(self.handle.files, state.unrecorded(is_last=is_last))
        if changes is not refreshed:
            hit("rebuild:after-commit")
            remove_segments(self.handle.files, (segment for change in refreshed for segment in change.segments))
        return committed.epoch

    def _log_failure(self, error: BaseException, plan: RefreshPlan) -> None:
        """Log a failed refresh or commit, unless its step begins again, or another event tells it."""
        if not isinstance(error, Fenced) and not self.is_overtaken(plan):
            self.handle.log(REFRESH_FAILED, job=self.name, epoch=plan.barrier.curr, error=error)

    def _log_commit(self, plan: RefreshPlan, committed: CommitResult, *, is_last: bool) -> None:
        took_ms, epoch = round((monotonic_s() - plan.began_s) * 1000), committed.epoch
        rows, unchanged = count_rows(committed.changes)
        self.handle.log(BARRIER, job=self.name, epoch=epoch, rows=rows, unchanged=unchanged, took_ms=took_ms)
        if is_last:
            self.handle.log(JOB_FINISHED, job=self.name, epoch=epoch)

    def _record_chunk(self, plan: RefreshPlan, next_cursor: Cursor, changes: Sequence[TableChange]) -> int:
        job, curr = plan.job, plan.barrier.curr
        chunk = BackfillChunk(self.job_id, self.name, job.incarnation, job.position, curr, job.cursor, next_cursor)
        record_chunk(self.handle, chunk, changes)
        self._forget_runner(plan)
        return 0

    def _differences(self, plan: RefreshPlan, rebuilt: Sequence[TableChange]) -> list[TableChange]:
        """Write the differences between the old rows and the rebuilt ones. Readers see these alone."""
        changes: list[TableChange] = []
        try:
            for change in rebuilt:
                output = plan.outputs[change.name]
                assert output.replaced is not None
                written = difference(output.target, output.replaced, output.previous.extended(change.segments))
                named = _stored("rebuild", plan.engine)
                changes.append(replace(change, segments=tuple(written), operation=named, is_difference=True))
        except EpochlogError as error:
            discard_refused(self.handle, error, changes)
            raise
        hit("rebuild:before-commit")
        return changes

    def rebuild(self) -> None:
        """Request that the next barrier, by any runner, rebuilds all outputs. Raises TableFinished."""
        request_rebuild(self.handle, self.job_id, self.name)

    def fail(self, error: BaseException, plan: RefreshPlan | None = None, *, keep_barrier: bool = False) -> None:
        """Record the error of a failed barrier on the job, unless this runner is fenced or the view was replaced.

        A view's barrier is dropped, with its backfill chunks: its query may have no valid rows at that epoch, and may
        have them at a later one. Chunks outlive an error that is not of the rows. keep_barrier: True for a refresh that
        is done, and whose commit has failed.
        """
        incarnation = self.incarnation if plan is None else plan.job.incarnation

        def body(tx: Txn) -> None:
            job = get_job(tx, self.job_id, self.name)
            if job.incarnation == incarnation and not (plan and plan.is_overtaken(job)):
                failed_ms = self.handle.catalog.now_ms() if job.failed_ms is None else job.failed_ms
                message = f"{type(error).__name__}: {error}"
                failed = replace(job, last_error=message, failed_ms=failed_ms, runner=job.runner_after_step)
                of_chunk = job.cursor is not None and isinstance(error, KEEPS_CHUNKS)
                if job.view is not None and not keep_barrier and not of_chunk:
                    failed = replace(failed, barrier=None, cursor=None)
                    if job.cursor is not None:
                        discard_staged(tx, job.outputs, self.handle.catalog.now_ms())
                        move_counters(tx, Counters.read(tx))
                tx.put(job_key(job.id), failed.to_record())

        with suppress(EpochlogError):  # the caller raises the refresh's error
            self.handle.catalog.transact(body)
            if plan is not None:
                self._forget_runner(plan)

    def find_cause(self, error: BaseException, plan: RefreshPlan) -> BaseException:
        """Return JobNotFound, JobParked or Fenced if the job's record shows that cause of a failed refresh.

        Else return `error`.
        """
        if not isinstance(error, EpochlogError):
            return error
        try:
            job = self.record()
            check_incarnation(job, plan.job.incarnation)
            require_unparked(job)
        except (JobNotFound, JobParked, Fenced) as job_error:
            return job_error
        return error

    # ---- a whole step --------------------------------------------------------------------------------------------

    def step_local(
        self, refresh: LocalRefresh, *, lease: RunnerLease | None = None, take_over: bool = False
    ) -> int | None:
        """Run one barrier with pyarrow tables; return the committed epoch, or None if there is nothing to do."""
        return self.step(refresh, LocalRefreshAdapter(self.handle), lease=lease, take_over=take_over)

    def step(
        self,
        refresh: Callable[[Any], Any],
        adapter: RefreshAdapter,
        *,
        lease: RunnerLease | None = None,
        take_over: bool = False,
    ) -> int | None:
        """Run one barrier with this adapter; `lease` and `take_over` are those of `begin`.

        Raises JobRunning also while another thread, or the refresh itself, steps the job with this runner.
        """
        self.handle.require_writable()
        self.check_refresh(refresh)
        self.repeat_step = lambda: self.step(refresh, adapter)
        if lease is None:
            if take_over and self._stepping.holder in self.refreshing:  # fence that step too
                self._stepping = self.new_lease("step")
            lease = self._stepping
        with self.exclusive_step(lease):
            try:
                while True:
                    began_s = monotonic_s()
                    plan = self.begin(lease=lease, take_over=take_over)
                    if plan is None:
                        return None
                    try:
                        return self._run_barrier(plan, refresh, adapter, [began_s, monotonic_s()])
                    except EpochlogError as error:
                        if not self.is_overtaken(plan):
                            raise
                        take_over = False
                        self.handle.log(REFRESH_RESTARTED, job=self.name, reason=error)
            except Fenced as error:
                self.handle.log(RUNNER_FENCED, job=self.name, error=error)
                raise
            finally:
                if lease.kind == "step":
                    self.release(lease)

    def _run_barrier(
        self, plan: RefreshPlan, refresh: Callable[[Any], Any], adapter: RefreshAdapter, times: list[float]
    ) -> int:
        """Refresh and commit a barrier; return its epoch. times: of the begin and end of its decision."""
        plan, operation, work = replace(plan, engine=adapter.engine), "refresh", NO_WORK
        segments: dict[str, list[Segment]] = {}
        with refresh_run(self.handle, plan) as run:
            if plan.fully_loaded:
                times.append(monotonic_s())
                run.epoch = epoch = self.commit(plan, {})
            else:
                context = adapter.context(plan)
                context.keeps_state = True
                try:
                    segments = self.run_refresh(plan, context, refresh, adapter)
                    times.append(monotonic_s())
                    plan, operation, work = context.plan, context.operation, context.work
                    run.epoch = epoch = self.commit(plan, segments, operation=operation, state=context.state)
                finally:
                    context._end()
        if epoch:
            self._note_phases([*times, monotonic_s()])
        adapter.committed(CommittedStep.of(plan, epoch, segments, operation, work))
        return epoch

    def is_overtaken(self, plan: RefreshPlan) -> bool:
        """Return True if this is a view that got a new query, or a request for a rebuild, since the plan was made."""
        try:
            job = self.record()
        except EpochlogError:  # the caller raises the step's error
            return False
        return job.incarnation == plan.job.incarnation and plan.is_overtaken(job)

    def _note_phases(self, times: Sequence[float]) -> None:
        """Record the phases of a barrier that has committed. times: of its begin and of the end of each phase."""
        for phase, (begin_s, end_s) in zip(BARRIER_PHASES, pairwise(times), strict=True):
            self.handle.barrier_phases.observe((f"job:{self.name}", phase), end_s - begin_s)

    def check_refresh(self, refresh: object) -> None:
        """Raise InvalidInput if the refresh cannot be called."""
        if not callable(refresh):
            raise InvalidInput(f"job {self.name!r}: refresh is a function of one argument, not {refresh!r}")

    @contextmanager
    def exclusive_step(self, lease: RunnerLease) -> Iterator[None]:
        """Mark this thread as the one that steps the job under the lease. Raises JobRunning if there is one already."""
        with self._lock:
            if lease.holder in self.refreshing:
                raise JobRunning(
                    f"job {self.name!r} is being refreshed by this runner already, and a job has one barrier at a "
                    "time; step it again when that step has returned"
                )
            self.refreshing[lease.holder] = threading.get_ident()
        try:
            yield
        finally:
            del self.refreshing[lease.holder]

    def run_refresh(
        self,
        plan: RefreshPlan,
        context: RefreshContext[Any, Any, Any],
        refresh: Callable[[Any], Any],
        adapter: RefreshAdapter,
    ) -> dict[str, list[Segment]]:
        """Refresh and return the segments by output; the caller commits them, and then ends the context.

        Record an error of the refresh on the job, discard its writes, and raise its typed error.
        """
        try:
            refresh(context)
            segments = context._finish()
            adapter.check(self.name)
        except BaseException as error:
            context._discard()
            typed_error = adapter.translate_error(error, self.name)
            self.fail(typed_error, plan)
            typed_error = self.find_cause(typed_error, plan)
            self._log_failure(typed_error, plan)
            if typed_error is error:
                raise
            raise typed_error from error
        finally:
            context._ended = True
        return segments

    def has_work(self) -> bool:
        """Return True if the job has a barrier in flight, or would get one at the boundaries that are past."""
        return self._read_state().sealed().refreshes

    def _read_state(self) -> JobState:
        return self.handle.catalog.read(
            lambda view: read_job_state(view, self.handle, get_job(view, self.job_id, self.name))
        )

    def _record_barrier(self, lease: RunnerLease) -> JobRecord:
        """Decide and record the barrier in one transaction. A runner that comes later gets the recorded barrier.

        The recorded barrier holds the logs and rows of the upstreams that its refresh reads.
        """

        def body(tx: Txn) -> JobRecord:
            job = get_job(tx, self.job_id, self.name)
            assert lease.incarnation is not None
            check_incarnation(job, lease.incarnation)
            require_free(tx, self.handle, job, lease.holder)
            barrier = read_job_state(tx, self.handle, job).next.barrier
            if barrier is not None:
                planned = Counters.read(tx).version
                job = replace(job, barrier=(barrier.prev, barrier.curr, barrier.kind), planned_version=planned)
            if job.barrier is not None and not _is_runner(job, lease):
                job = replace(job, runner=new_runner(tx, self.handle, lease.holder, lease.kind))
            tx.put(job_key(job.id), job.to_record())
            return job

        self.handle.runners.share(lease.holder, [job_key(self.job_id)], at_end="vacate", alive=lease.alive)
        return self.handle.catalog.transact(body)

    def _mark_caught_up(self, job: JobRecord) -> None:
        """Set a caught-up job without a barrier to running, and inside of `global`.

        A job that has nothing to commit would stay creating, or outside of `global`.
        """

        def body(tx: Txn) -> None:
            current = get_job(tx, self.job_id, self.name)
            check_incarnation(current, job.incarnation)
            if current.state in ("creating", "running") and current.position == job.position:
                tx.put(job_key(job.id), replace(current, state="running", outside_ms=None).to_record())

        self.handle.catalog.transact(body)

    def _state_after(self, view: ReadTxn, plan: RefreshPlan, current: JobRecord) -> JobEnd:
        """Return the job's state after the commit of the barrier: finished if it is drained by then, or all upstreams
        end at or below it. current: the job's record now; it may have been marked outside since the plan.
        """
        job, state = plan.job, read_job_state(view, self.handle, current)
        tables = [state.epochs.table(upstream) for upstream in job.upstreams]
        for table in tables:
            if not state.epochs.complete(table.table_id, plan.barrier.curr):
                raise UpstreamIncomplete(
                    f"job {job.name!r} cannot commit at {show_epoch(plan.barrier.curr)}: its upstream {table.name!r} "
                    f"is complete only through {show_epoch(state.epochs.complete_through(table.table_id))}; step the "
                    "job again when the upstream has reached that epoch"
                )
        ended = all(table.state == "finished" and table.position <= plan.barrier.curr for table in tables)
        if ended or current.ends_at(plan.barrier.curr):
            return JobEnd("finished", caught_up=True)
        caught_up = (current.outside_ms is not None or job.state == "creating") and state.has_caught_up(
            plan.barrier.curr
        )
        if job.replacing:  # a rebuild of a running job
            return JobEnd("running", caught_up)
        return JobEnd("running" if job.state == "creating" and caught_up else job.state, caught_up)


def _is_runner(job: JobRecord, lease: RunnerLease) -> bool:
    return job.runner is not None and job.runner.holder == lease.holder


def _stored(operation: str, engine: str) -> str:
    """Return the operation of a refresh as a commit stores it. engine: "" if it is not known."""
    return f"{operation}:{engine}" if engine else operation
