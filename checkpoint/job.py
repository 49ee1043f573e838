"""Running a job: decide its next barrier once, refresh its outputs from what changed, commit them together.

`JobRunner` is the part without Spark: claim an incarnation, `begin` a barrier, `commit` or `fail` it; `step_local`
does all three with pyarrow tables. The catalog is the only truth: a runner keeps nothing but its incarnation. Rules:
docs/SEMANTICS.md, 5.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from ..errors import EpochlogError, Fenced, JobNotFound, JobParked, JobRunning, UpstreamIncomplete
from ..store.catalog import Txn, View
from ..store.commit import JobCommit, TableEdit, check_incarnation, commit_job, require_unparked
from ..store.definitions import Counters, Cursor, JobRecord, get_job, get_version
from ..store.failpoints import reached
from ..store.handle import Handle
from ..store.history import forced_boundaries, read_epoch_view
from ..store.intervals import FAR
from ..store.job_pieces import JobPiece, discard_refused, forget_pieces, record_piece
from ..store.lineage import EpochView
from ..store.records import job_key
from ..store.sealing import seal
from ..store.segment import Segment
from ..store.standing import require_standing
from ..store.writer import SegmentWriter, remove_segments
from .barrier import Barrier, lag_in_boundaries, next_barrier
from .barrier_run import BarrierRun, plan_barrier, plan_piece
from .context import RefreshContext
from .rebuild import ask_for_rebuild, difference

LocalRefresh = Callable[["LocalContext"], None]


class JobRunner:
    """One runner of one job. Its first `begin` claims an incarnation, which fences every earlier runner.

    Not thread-safe: a job has one barrier in flight.
    """

    def __init__(self, handle: Handle, job_id: int, name: str) -> None:
        self.handle = handle
        self.job_id = job_id
        self.name = name
        self.incarnation: int | None = None
        self.again: Callable[[], int | None] | None = None
        """One more step as this runner was last run; None before it has been."""
        self.refreshing: int | None = None
        """The thread in which a refresh of this runner is at work."""

    def record(self) -> JobRecord:
        """The job as the catalog has it now; JobNotFound when it was dropped."""
        return self.handle.catalog.read(lambda view: get_job(view, self.job_id, self.name))

    def begin(self, *, whole: bool = False) -> BarrierRun | None:
        """The job's next barrier, decided and recorded; None when there is nothing to do or the job is finished.

        whole: take a snapshot at once, even where the job was made to take it in pieces; pieces so far are dropped.
        Raises Fenced when another runner took over, JobParked when the job let go of its logs, JobRunning when this
        runner is refreshing it already: in the refresh that asks, or in another thread.
        """
        if self.refreshing is not None:
            raise JobRunning(
                f"job {self.name!r} is being refreshed by this runner, and has one barrier at a time; step it again "
                "when that has returned"
            )
        incarnation = self._claim()
        job = self._checked(self.record(), incarnation)
        if job.state == "finished":
            return None
        if job.barrier is None:
            decided = self._next(job, incarnation)
            if decided is None:
                return None
            job = decided
        if whole and job.cursor is not None:
            job = forget_pieces(self.handle, job, incarnation)
        self.handle.intents.own()  # registered before the look at the catalog that its writers are planned in
        run = self.handle.catalog.read(lambda view: plan_barrier(view, self.handle, job))
        return run if whole else plan_piece(self.handle, run)

    def commit(self, run: BarrierRun, outputs: Mapping[str, Sequence[Segment]], *, keep: bool = False) -> int:
        """Commit all outputs at the barrier, those without segments as empty entries; returns the epoch.

        Of a piece of a snapshot: record what it has made, and return 0. What is refused leaves no file behind, unless
        the caller will try to commit it again (`keep`).
        """
        written = {name: [*outputs.get(name, ())] for name in run.outputs}
        try:
            if run.ended is not None:
                return self._record_piece(run, run.ended, written)
            if run.job.replacing:
                return self._replace(run, written)
            return self._commit(run, written, "refresh")
        except EpochlogError as error:
            if not keep:
                discard_refused(self.handle, error, self._edits(run, written))
            raise

    def _edits(
        self, run: BarrierRun, written: Mapping[str, Sequence[Segment]], how: str = "refresh"
    ) -> list[TableEdit]:
        return [
            TableEdit(output.table.id, name, tuple(written[name]), operation=how)
            for name, output in run.outputs.items()
        ]

    def _commit(self, run: BarrierRun, written: Mapping[str, Sequence[Segment]], how: str) -> int:
        assert self.incarnation is not None
        state, job = self._state_after(run), run.job
        commit = JobCommit(self.job_id, self.name, self.incarnation, job.position, run.barrier.curr, state)
        return commit_job(self.handle, commit, self._edits(run, written, how))

    def _record_piece(self, run: BarrierRun, ended: Cursor, written: Mapping[str, Sequence[Segment]]) -> int:
        assert self.incarnation is not None
        job, curr = run.job, run.barrier.curr
        piece = JobPiece(self.job_id, self.name, self.incarnation, job.position, curr, job.cursor, ended)
        record_piece(self.handle, piece, self._edits(run, written))
        return 0

    def _replace(self, run: BarrierRun, made: Mapping[str, Sequence[Segment]]) -> int:
        """Commit what differs between the rows of old and those that were made; that is all that readers see of it."""
        written: dict[str, list[Segment]] = {name: [] for name in run.outputs}
        try:
            for name, output in run.outputs.items():
                assert output.replaced is not None
                written[name] = difference(output.target, output.replaced, output.previous.extended(made[name]))
            reached("rebuild:before-commit")
            done = self._commit(run, written, "rebuild")
        except EpochlogError as error:
            discard_refused(self.handle, error, self._edits(run, written))
            raise
        reached("rebuild:after-commit")
        remove_segments(self.handle.files, (segment for segments in made.values() for segment in segments))
        return done

    def rebuild(self) -> None:
        """The next barrier makes all outputs anew from the upstreams' rows; this runner takes the job over.

        Raises Fenced, TableFinished.
        """
        self.incarnation = ask_for_rebuild(self.handle, self.job_id, self.name, self.incarnation)

    def cause(self, error: BaseException) -> BaseException:
        """Why a refresh failed, in the end: the job was dropped, parked or taken over, or else its own error."""
        if not isinstance(error, EpochlogError) or self.incarnation is None:
            return error
        try:
            self._checked(self.record(), self.incarnation)
        except (JobNotFound, JobParked, Fenced) as known:
            return known
        return error

    def fail(self, error: BaseException) -> None:
        """Note on the job why its barrier failed; a runner that was fenced leaves no mark."""

        def body(tx: Txn) -> None:
            job = get_job(tx, self.job_id, self.name)
            if job.incarnation == self.incarnation:
                since = self.handle.catalog.now_ms() if job.failed_ms is None else job.failed_ms
                told = replace(job, last_error=f"{type(error).__name__}: {error}", failed_ms=since)
                tx.put(job_key(job.id), told.to_record())

        try:
            self.handle.catalog.transact(body)
        except EpochlogError:  # the refresh's own error is the one to tell
            return

    def step_local(self, refresh: LocalRefresh) -> int | None:
        """One barrier with pyarrow tables: the committed epoch, or None when there is nothing to do."""
        self.again = lambda: self.step_local(refresh)
        run = self.begin()
        if run is None:
            return None
        if run.taken_in:
            return self.commit(run, {})
        context = LocalContext(self.handle, run)
        self.refreshing = threading.get_ident()
        try:
            refresh(context)
            segments = context._finish()
        except BaseException as error:
            context._discard()
            self.fail(error)
            cause = self.cause(error)
            if cause is error:
                raise
            raise cause from error
        finally:
            context._over, self.refreshing = True, None
        return self.commit(run, segments)

    def _claim(self) -> int:
        """This runner's incarnation, claimed at the first call.

        A fenced runner keeps its old one and never claims again. RestoreRejected when the catalog contradicts itself.
        """
        if self.incarnation is None:
            self.handle.catalog.read(self._check_standing)

            def body(tx: Txn) -> int:
                job = get_job(tx, self.job_id, self.name)
                tx.put(job_key(job.id), replace(job, incarnation=job.incarnation + 1).to_record())
                return job.incarnation + 1

            self.incarnation = self.handle.catalog.transact(body)
        return self.incarnation

    def _check_standing(self, view: View) -> None:
        job = get_job(view, self.job_id, self.name)
        require_standing(view, job, inputs_of(view, self.handle, job))

    def _checked(self, job: JobRecord, incarnation: int) -> JobRecord:
        check_incarnation(job, incarnation)
        require_unparked(job)
        return job

    def _next(self, job: JobRecord, incarnation: int) -> JobRecord | None:
        """The job with its next barrier recorded; None when there is nothing to do."""
        if self._has_news(job):
            seal(self.handle, job.interval)
            if self.handle.catalog.read(self._decide) is not None:
                recorded = self._record(incarnation)
                if recorded.barrier is not None:
                    return recorded
        self._settle(job, incarnation)
        return None

    def _has_news(self, job: JobRecord) -> bool:
        """Whether there is a change that no commit reflects, or no first or last commit yet; else no boundary is worth
        sealing.
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

    def _record(self, incarnation: int) -> JobRecord:
        """Decide and record the barrier in one transaction; whoever decides later gets the barrier recorded first.

        Once it is recorded the job holds what it needs of its upstreams; before, compaction might have let it go.
        """

        def body(tx: Txn) -> JobRecord:
            job = get_job(tx, self.job_id, self.name)
            check_incarnation(job, incarnation)
            barrier = None if job.barrier else self._decide(tx)
            if barrier is not None:
                planned = Counters.read(tx).version
                job = replace(job, barrier=(barrier.prev, barrier.curr, barrier.kind), planned_version=planned)
                tx.put(job_key(job.id), job.to_record())
            return job

        return self.handle.catalog.transact(body)

    def _settle(self, job: JobRecord, incarnation: int) -> None:
        """Let a creating job that has nothing to do run, once its upstreams do: no commit of its own would say so."""
        if job.state != "creating" or not job.position or job.rebuilding or not self._caught_up(job, job.position):
            return

        def body(tx: Txn) -> None:
            found = get_job(tx, self.job_id, self.name)
            check_incarnation(found, incarnation)
            if (found.state, found.position) == ("creating", job.position):
                tx.put(job_key(job.id), replace(found, state="running").to_record())

        self.handle.catalog.transact(body)

    def _view(self, job: JobRecord) -> EpochView:
        return self.handle.catalog.read(lambda view: inputs_of(view, self.handle, job))

    def _state_after(self, run: BarrierRun) -> str:
        """The job's state once the barrier is committed; finished if it takes in the last change there will ever be."""
        job, epochs = run.job, self._view(run.job)
        tables = [epochs.table(upstream) for upstream in job.upstreams]
        for table in tables:
            if not epochs.complete(table.table_id, run.barrier.curr):
                raise UpstreamIncomplete(
                    f"job {job.name!r} cannot commit at {run.barrier.curr}: its upstream {table.name!r} is complete "
                    f"only through {epochs.complete_through(table.table_id)}; step the job again once it is"
                )
        if all(table.state == "finished" and table.position <= run.barrier.curr for table in tables):
            return "finished"
        if job.replacing:  # it was running before
            return "running"
        return "running" if job.state == "creating" and self._caught_up(job, run.barrier.curr) else job.state

    def _caught_up(self, job: JobRecord, position: int) -> bool:
        """Whether none of the upstreams is creating, and at `position` the job lags no more than it may."""
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


def inputs_of(view: View, handle: Handle, job: JobRecord) -> EpochView:
    """The epochs of all that the job reads and that comes from; the store's other tables are left out."""
    return read_epoch_view(view, handle.memory, handle.catalog.now_ms(), above=job.upstreams)


class LocalContext(RefreshContext[SegmentWriter]):
    """What a refresh function sees in `step_local`: pyarrow tables in, anything Arrow-shaped out."""

    def __init__(self, handle: Handle, run: BarrierRun) -> None:
        super().__init__(handle.files, run, SegmentWriter)

    def changes(
        self,
        upstream: str,
        mode: str = "net",
        *,
        pre_images: bool = False,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
    ) -> pa.Table:
        """What changed in the upstream in (prev, curr], with the change columns.

        In a backfill its rows at curr, as inserts.
        """
        found = self._run.upstream(upstream)
        plan, keys = found.changes, found.keys
        batches = plan.batches(self._files, mode, pre_images=pre_images, columns=columns, filter=filter, key_range=keys)
        return pa.Table.from_batches(batches, schema=plan.schema(columns))

    def table(
        self, upstream: str, *, columns: Sequence[str] | None = None, filter: pc.Expression | None = None
    ) -> pa.Table:
        """The upstream at curr."""
        return self._run.upstream(upstream).current.read(self._files, columns, filter)

    def previous(
        self, upstream: str, *, columns: Sequence[str] | None = None, filter: pc.Expression | None = None
    ) -> pa.Table:
        """The upstream at prev; empty when prev is 0."""
        return self._run.upstream(upstream).previous.read(self._files, columns, filter)

    def output(
        self, output: str, *, columns: Sequence[str] | None = None, filter: pc.Expression | None = None
    ) -> pa.Table:
        """The job's own output at prev; when prev is 0 it is empty, or what earlier pieces of the snapshot made."""
        return self._run.output(output).previous.read(self._files, columns, filter)

    def upsert(self, output: str, data: object) -> None:
        """Write rows of an output; committed with all others when the refresh returns, or not at all."""
        self._writer(output).upsert(data)

    def delete(self, output: str, keys: object) -> None:
        """Delete rows of an output by primary key; unknown keys are fine."""
        self._writer(output).delete(keys)
