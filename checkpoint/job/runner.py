"""Running a job: decide its next barrier once, refresh its outputs from what changed, commit them together.

`JobRunner` is the part without Spark: `begin` a barrier, `commit` or `fail` it; `step_local` does all three with
pyarrow tables. The catalog is the only truth: a runner keeps nothing but its claim.

Rules: docs/SEMANTICS.md, 5.1 to 5.15.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

from epochlog.errors import EpochlogError, Fenced, InvalidInput, JobNotFound, JobParked, JobRunning, UpstreamIncomplete
from epochlog.store.catalog.keys import job_key
from epochlog.store.catalog.protocol import Txn, View
from epochlog.store.commit.backfill import JobPiece, discard_refused, forget_pieces, record_piece
from epochlog.store.commit.boundaries import seal
from epochlog.store.commit.edits import TableEdit
from epochlog.store.commit.job_commit import JobCommit, check_incarnation, commit_job, require_unparked
from epochlog.store.env.clock import monotonic_s
from epochlog.store.env.failpoints import hit
from epochlog.store.epochs.view import EpochView
from epochlog.store.epochs.view_reader import forced_boundaries
from epochlog.store.metadata.definitions import Counters, Cursor, JobRecord
from epochlog.store.metadata.lookups import get_job, get_version
from epochlog.store.session.handle import Handle
from epochlog.store.session.job_runners import new_runner, require_free
from epochlog.store.sst.segment import Segment
from epochlog.store.sst.segment_writer import remove_segments
from epochlog.store.types.epoch import show_epoch
from epochlog.store.types.epoch_set import FAR

from .barrier import Barrier, lag_in_boundaries, next_barrier
from .claims import JobClaims, Tenure, inputs_of
from .local_context import LocalRefreshContext
from .rebuild import ask_for_rebuild, difference
from .refresh_context import RefreshContext
from .refresh_plan import RefreshPlan, plan_barrier, plan_piece

LocalRefresh = Callable[[LocalRefreshContext], None]
_log = logging.getLogger("epochlog")


class Door(Protocol):
    """Adapter for one kind of refresh: it makes contexts, checks writes and translates errors."""

    def context(self, run: RefreshPlan) -> RefreshContext[Any]:
        """Make the context for the refresh of a barrier."""
        ...

    def check(self, job: str) -> None:
        """Raise an EpochlogError if the writes of the refresh that has just ended must not be committed."""
        ...

    def known(self, error: BaseException, job: str) -> BaseException:
        """Return the typed error behind an error of a refresh; return `error` itself if there is none."""
        ...


@dataclass(frozen=True, slots=True)
class LocalDoor:
    """Refreshes with pyarrow tables, in this process."""

    handle: Handle

    def context(self, run: RefreshPlan) -> LocalRefreshContext:
        return LocalRefreshContext(self.handle, run)

    def check(self, job: str) -> None:
        """Accept the writes: they were made in this process."""

    def known(self, error: BaseException, job: str) -> BaseException:
        return error


class JobRunner(JobClaims):
    """One handle's way to run one job: a barrier is begun, then committed or failed; `step` does all of it.

    A job has one barrier in flight, so of several threads one steps it and the others get JobRunning.
    """

    def __init__(self, handle: Handle, job_id: int, name: str) -> None:
        super().__init__(handle, job_id, name)
        self.again: Callable[[], int | None] | None = None
        """One more step as this runner was last run; None before it has been."""
        self.refreshing: dict[str, int] = {}
        """The threads in which steps of this runner are at work, by holder."""
        self._lock = threading.Lock()
        self._stepping = self.tenure("step")

    def begin(
        self, *, whole: bool = False, tenure: Tenure | None = None, take_over: bool = False
    ) -> RefreshPlan | None:
        """Decide and record the job's next barrier; return None if there is nothing to do or the job is finished.

        whole: take a snapshot at once, even where the job was made to take it in pieces; pieces so far are dropped.
        tenure: the one that this is a step of; by itself a step is one. Raises JobRunning when another runner is alive
        (take_over: fences it), Fenced when another took over, JobParked when the job let go of its logs.
        """
        tenure = tenure or self._stepping
        run = None
        try:
            job = self._entered(tenure, take_over=take_over)
            run = self._planned(job, tenure, whole=whole)
        finally:
            if run is None and tenure.kind == "step":
                self.leave(tenure)
        return run

    def _entered(self, tenure: Tenure, *, take_over: bool) -> JobRecord:
        """Return the job for this tenure to step.

        A step of a handle that has claimed the job enters when there is a barrier: looking for one writes nothing.
        """
        if tenure.kind == "step":
            tenure.incarnation = self.incarnation
        claimed = tenure.incarnation is not None and (tenure.kind == "step" or self.entered(tenure))
        job = self.enter(tenure, take_over=take_over) if take_over or not claimed else self.record()
        self.check(job, tenure)
        return job

    def _planned(self, job: JobRecord, tenure: Tenure, *, whole: bool) -> RefreshPlan | None:
        if job.state == "finished":
            return None
        if job.barrier is None:
            decided = self._next(job, tenure)
            if decided is None:
                return None
            job = decided
        elif not _names(job, tenure):
            job = self.enter(tenure)
        if whole and job.cursor is not None:
            job = forget_pieces(self.handle, job, job.incarnation)
        self.handle.intents.own()  # registered before the look at the catalog that its writers are planned in
        run = self.handle.catalog.read(lambda view: plan_barrier(view, self.handle, job))
        return run if whole else plan_piece(self.handle, run)

    def _left(self, run: RefreshPlan) -> None:
        """Note that the transaction that ended this step has said so on the job's record."""
        runner = run.job.runner
        if runner is not None and runner.kind == "step":
            self.handle.runners.forget(runner.holder)

    def commit(self, run: RefreshPlan, outputs: Mapping[str, Sequence[Segment]], *, keep: bool = False) -> int:
        """Commit all outputs at the barrier, those without segments as empty entries; returns the epoch.

        Of a piece of a snapshot: record what it has made, and return 0. What is refused leaves no file behind, unless
        the caller will try to commit it again (`keep`).
        """
        edits = [
            TableEdit(output.table.id, name, tuple(outputs.get(name, ())), operation="refresh")
            for name, output in run.outputs.items()
        ]
        try:
            if run.ended is not None:
                return self._record_piece(run, run.ended, edits)
            if run.job.replacing:
                return self._replace(run, edits)
            return self._commit(run, edits)
        except EpochlogError as error:
            if not keep:
                discard_refused(self.handle, error, edits)
            raise

    def _commit(self, run: RefreshPlan, edits: Sequence[TableEdit]) -> int:
        (state, caught_up), job = self._state_after(run), run.job
        commit = JobCommit(self.job_id, self.name, job.incarnation, job.position, run.barrier.curr, state, caught_up)
        done = commit_job(self.handle, commit, edits)
        self._left(run)
        took_ms = round((monotonic_s() - run.began_s) * 1000)
        _log.info(
            "job %r: committed epoch %s: %d rows written, %d unchanged, in %d ms",
            self.name,
            show_epoch(done.epoch),
            done.rows,
            done.unchanged,
            took_ms,
        )
        return done.epoch

    def _record_piece(self, run: RefreshPlan, ended: Cursor, edits: Sequence[TableEdit]) -> int:
        job, curr = run.job, run.barrier.curr
        piece = JobPiece(self.job_id, self.name, job.incarnation, job.position, curr, job.cursor, ended)
        record_piece(self.handle, piece, edits)
        self._left(run)
        return 0

    def _replace(self, run: RefreshPlan, made: Sequence[TableEdit]) -> int:
        """Commit what differs between the rows of old and those that were made; that is all that readers see of it."""
        edits: list[TableEdit] = []
        try:
            for edit in made:
                output = run.outputs[edit.name]
                assert output.replaced is not None
                written = difference(output.target, output.replaced, output.previous.extended(edit.segments))
                edits.append(replace(edit, segments=tuple(written), operation="rebuild"))
            hit("rebuild:before-commit")
            done = self._commit(run, edits)
        except EpochlogError as error:
            discard_refused(self.handle, error, edits)
            raise
        hit("rebuild:after-commit")
        remove_segments(self.handle.files, (segment for edit in made for segment in edit.segments))
        return done

    def rebuild(self) -> None:
        """Have the next barrier make all outputs anew, whoever runs the job. Raises TableFinished."""
        ask_for_rebuild(self.handle, self.job_id, self.name)

    def fail(self, error: BaseException, run: RefreshPlan | None = None) -> None:
        """Note the error of its failed barrier on the job; a runner that was fenced leaves no mark."""
        incarnation = self.incarnation if run is None else run.job.incarnation

        def body(tx: Txn) -> None:
            job = get_job(tx, self.job_id, self.name)
            if job.incarnation == incarnation:
                since = self.handle.catalog.now_ms() if job.failed_ms is None else job.failed_ms
                why = f"{type(error).__name__}: {error}"
                failed = replace(job, last_error=why, failed_ms=since, runner=job.runner_after_step)
                tx.put(job_key(job.id), failed.to_record())

        with suppress(EpochlogError):  # the refresh's own error is the one to tell
            self.handle.catalog.transact(body)
            if run is not None:
                self._left(run)

    def _cause(self, error: BaseException, run: RefreshPlan) -> BaseException:
        """Return the cause of a failed refresh: JobNotFound, JobParked or Fenced if the job says so, else `error`."""
        if not isinstance(error, EpochlogError):
            return error
        try:
            job = self.record()
            check_incarnation(job, run.job.incarnation)
            require_unparked(job)
        except (JobNotFound, JobParked, Fenced) as known:
            return known
        return error

    # ---- a whole step --------------------------------------------------------------------------------------------

    def step_local(self, refresh: LocalRefresh, *, tenure: Tenure | None = None, take_over: bool = False) -> int | None:
        """Run one barrier with pyarrow tables; return the committed epoch, or None if there is nothing to do."""
        return self.step(refresh, LocalDoor(self.handle), tenure=tenure, take_over=take_over)

    def step(
        self, refresh: Callable[[Any], Any], door: Door, *, tenure: Tenure | None = None, take_over: bool = False
    ) -> int | None:
        """Run one barrier through this door; `tenure` and `take_over` as in `begin`.

        Raises JobRunning also while another thread steps the job by this runner, or its own refresh does.
        """
        self.check_refresh(refresh)
        self.again = lambda: self.step(refresh, door)
        if tenure is None:
            if take_over and self._stepping.holder in self.refreshing:  # which is fenced like any other
                self._stepping = self.tenure("step")
            tenure = self._stepping
        with self._at_work(tenure):
            try:
                run = self.begin(tenure=tenure, take_over=take_over)
                if run is None:
                    return None
                return self.commit(run, {}) if run.fully_loaded else self._refresh(run, refresh, door)
            finally:
                if tenure.kind == "step":
                    self.leave(tenure)

    def check_refresh(self, refresh: object) -> None:
        """Raises InvalidInput for what cannot be called."""
        if not callable(refresh):
            raise InvalidInput(f"job {self.name!r}: refresh is a function of one argument, not {refresh!r}")

    @contextmanager
    def _at_work(self, tenure: Tenure) -> Iterator[None]:
        with self._lock:
            if tenure.holder in self.refreshing:
                raise JobRunning(
                    f"job {self.name!r} is being refreshed by this runner, and has one barrier at a time; step it "
                    "again when that has returned"
                )
            self.refreshing[tenure.holder] = threading.get_ident()
        try:
            yield
        finally:
            del self.refreshing[tenure.holder]

    def _refresh(self, run: RefreshPlan, refresh: Callable[[Any], Any], door: Door) -> int:
        """Refresh and commit. Whatever the refresh raises is noted on the job."""
        context = door.context(run)
        try:
            try:
                refresh(context)
                segments = context._finish()
                door.check(self.name)
            except BaseException as error:
                context._discard()
                known = door.known(error, self.name)
                self.fail(known, run)
                known = self._cause(known, run)
                if known is error:
                    raise
                raise known from error
            finally:
                context._over = True
            return self.commit(run, segments)
        finally:
            context._end()

    def _next(self, job: JobRecord, tenure: Tenure) -> JobRecord | None:
        """Record the job's next barrier and return the job; None if there is nothing to do."""
        if self._has_news(job):
            seal(self.handle, job.interval)
            if self.handle.catalog.read(self._decide) is not None:
                recorded = self._record(tenure)
                if recorded.barrier is not None:
                    return recorded
        self._settle(job, job.incarnation)
        return None

    def _has_news(self, job: JobRecord) -> bool:
        """Return True if sealing a boundary could give the job a barrier.

        It could if a change is not reflected, or if the first commit, a rebuild or the end of a drain is due.
        """
        if not job.position or job.rebuilding or job.drain is not None:
            return True
        epochs = self._view(job)
        return any(epochs.table(upstream).first_change(job.position) < FAR for upstream in job.upstreams)

    def _decide(self, view: View) -> Barrier | None:
        handle = self.handle
        job = get_job(view, self.job_id, self.name)
        epochs = inputs_of(view, handle, job)
        return next_barrier(
            epochs,
            job.upstreams,
            job.position,
            interval_ms=handle.interval_ms,
            job_interval=job.interval,
            forced=forced_boundaries(view, job.position, epochs.last_epoch),
            max_lag=job.max_lag,
            first=job.anew or job.position == 0,
            snapshot=job.anew,
            logs_from=max(
                job.rebuild or 0,
                *(get_version(view, up, f"upstream of {job.name}").log_start for up in job.upstreams),
            ),
            drain=job.drain,
        )

    def _record(self, tenure: Tenure) -> JobRecord:
        """Decide and record the barrier in one transaction; whoever decides later gets the barrier recorded first.

        Once it is recorded the job holds what it needs of its upstreams; before, compaction might have let it go.
        """

        def body(tx: Txn) -> JobRecord:
            job = get_job(tx, self.job_id, self.name)
            assert tenure.incarnation is not None
            check_incarnation(job, tenure.incarnation)
            require_free(tx, self.handle, job, tenure.holder)
            barrier = None if job.barrier else self._decide(tx)
            if barrier is not None:
                planned = Counters.read(tx).version
                job = replace(job, barrier=(barrier.prev, barrier.curr, barrier.kind), planned_version=planned)
            if job.barrier is not None and not _names(job, tenure):
                job = replace(job, runner=new_runner(tx, self.handle, tenure.holder, tenure.kind))
            tx.put(job_key(job.id), job.to_record())
            return job

        self.handle.runners.share(tenure.holder, [job_key(self.job_id)], at_end="vacate", alive=tenure.alive)
        return self.handle.catalog.transact(body)

    def _settle(self, job: JobRecord, incarnation: int) -> None:
        """Let a creating job that has nothing to do run, once its upstreams do, and one that stood outside of `global`
        take part again: no commit of its own would say so.
        """
        waiting = job.state == "creating" or job.outside_ms is not None
        if not waiting or not job.position or job.rebuilding or not self._caught_up(job, job.position):
            return

        def body(tx: Txn) -> None:
            found = get_job(tx, self.job_id, self.name)
            check_incarnation(found, incarnation)
            if found.state in ("creating", "running") and found.position == job.position:
                tx.put(job_key(job.id), replace(found, state="running", outside_ms=None).to_record())

        self.handle.catalog.transact(body)

    def _view(self, job: JobRecord) -> EpochView:
        return self.handle.catalog.read(lambda view: inputs_of(view, self.handle, job))

    def _state_after(self, run: RefreshPlan) -> tuple[str, bool]:
        """Return the job's state once the barrier is committed, and True if it has caught up then.

        The job is finished if the barrier takes in the last change there will ever be.
        """
        job, handle = run.job, self.handle
        epochs, outside = handle.catalog.read(  # the mark may have been set since the barrier was recorded
            lambda view: (inputs_of(view, handle, job), get_job(view, job.id, job.name).outside_ms is not None)
        )
        tables = [epochs.table(upstream) for upstream in job.upstreams]
        for table in tables:
            if not epochs.complete(table.table_id, run.barrier.curr):
                raise UpstreamIncomplete(
                    f"job {job.name!r} cannot commit at {show_epoch(run.barrier.curr)}: its upstream {table.name!r} "
                    "is complete "
                    f"only through {show_epoch(epochs.complete_through(table.table_id))}; step the job again once it is"
                )
        if all(table.state == "finished" and table.position <= run.barrier.curr for table in tables):
            return "finished", True
        caught_up = (outside or job.state == "creating") and self._caught_up(job, run.barrier.curr)
        if job.replacing:  # it was running before
            return "running", caught_up
        return "running" if job.state == "creating" and caught_up else job.state, caught_up

    def _caught_up(self, job: JobRecord, position: int) -> bool:
        """Return True if no upstream is creating, and the job's lag at epoch `position` is within its `max_lag`."""
        handle = self.handle

        def lag(view: View) -> tuple[EpochView, int]:
            epochs = inputs_of(view, handle, job)
            return epochs, lag_in_boundaries(
                epochs,
                job.upstreams,
                position,
                interval_ms=handle.interval_ms,
                job_interval=job.interval,
                forced=forced_boundaries(view, position, epochs.last_epoch),
            )

        epochs, behind = handle.catalog.read(lag)
        return behind <= job.max_lag and all(epochs.table(up).state != "creating" for up in job.upstreams)


def _names(job: JobRecord, tenure: Tenure) -> bool:
    return job.runner is not None and job.runner.holder == tenure.holder
