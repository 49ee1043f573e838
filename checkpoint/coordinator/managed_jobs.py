"""Catalog transactions of the loads and jobs of a coordinator: open, decide, commit and resolve.

One thread at a time uses each object; different threads may use different objects.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from epochlog.checkpoint.control_messages import Attach, RefreshReport
from epochlog.checkpoint.job.drain import record_drain
from epochlog.checkpoint.job.job_looks import LookRequest
from epochlog.checkpoint.job.next_barrier import Barrier
from epochlog.checkpoint.job.next_step import ENDINGS
from epochlog.checkpoint.job.refresh_plan import RefreshPlan
from epochlog.checkpoint.job.runner import JobRunner
from epochlog.checkpoint.manager.commands import CommitBarrier, JobSettings
from epochlog.checkpoint.manager.job_graph import JobVertex, vertex_of
from epochlog.errors import (
    Cancelled,
    EpochlogError,
    InvalidInput,
    LoadNotFound,
    NotWritable,
    TableDropped,
    TableFinished,
)
from epochlog.store.catalog.keys import job_key
from epochlog.store.catalog.protocol import ReadTxn, Txn
from epochlog.store.commit.change import TableChange
from epochlog.store.commit.idempotency import has_outcome, resolve
from epochlog.store.commit.job_commit import check_incarnation
from epochlog.store.commit.loads import (
    LoadCommit,
    LoadRecord,
    PartRecord,
    claim_load,
    declare_load,
    get_load,
    load_parts,
    load_txn,
    require_incarnation,
)
from epochlog.store.commit.root_commit import RootCommit
from epochlog.store.commit.transaction import commit_changes
from epochlog.store.metadata.definitions import JobRecord
from epochlog.store.metadata.lookups import find_job, get_job, get_table
from epochlog.store.metadata.state_tables import StateWrites
from epochlog.store.session.handle import Handle
from epochlog.store.session.run_listener import Run
from epochlog.store.sst.segment import Segment

UNWRITABLE = (TableFinished, TableDropped, NotWritable)
"""Errors of a commit to tables that no commit can write any more."""


@dataclass(frozen=True, slots=True)
class Opened:
    """Catalog state of a claimed load or job: its incarnation, number of parts, and finished parts."""

    incarnation: int
    parts: int
    finished: frozenset[int]
    settings: JobSettings


@dataclass(frozen=True, slots=True)
class Decided:
    """Answer to a Decide."""

    barrier: Barrier | None
    """Next one, or None if there is nothing to do."""
    last: bool = False
    """True if a drain ends with this barrier."""
    renewed: bool = False
    """True if this is not the barrier of the attempts before, whose segments are no part of it."""


@dataclass(frozen=True, slots=True)
class LookedAt:
    """Job whose barriers looks at the catalog trigger: the request to look at it, and its vertex in the graph."""

    request: LookRequest
    vertex: JobVertex


class ManagedJob(Protocol):
    """Interface of one load or job under a coordinator."""

    @property
    def tables(self) -> Collection[str]:
        """Return the tables that its parts may write."""
        ...

    @property
    def endings(self) -> tuple[type[EpochlogError], ...]:
        """Return the errors of a commit, or of its resolution, that every later commit would raise too."""
        ...

    @property
    def looked_at(self) -> LookedAt | None:
        """Return how to look at the job; None for a load, whose parts say what they have."""
        ...

    def require_match(self, request: Attach) -> None:
        """Raise InvalidInput if a part's Attach does not match the settings of this load or job."""
        ...

    def open(self) -> Opened:
        """Claim the load or job, which fences every earlier coordinator.

        Raises JobRunning while another runner of the job is alive.
        """
        ...

    def check(self) -> None:
        """Raise Fenced if another coordinator has claimed it since, JobNotFound or LoadNotFound if it was dropped."""
        ...

    def leave(self) -> None:
        """Release the runner lease; `decide` takes it again."""
        ...

    def decide(self, *, has_changes: bool, drain: bool) -> Decided:
        """Decide the next barrier. has_changes: its parts have something to commit."""
        ...

    def commit(self, commit: CommitBarrier) -> tuple[int, bool]:
        """Commit; return the epoch, and True if the load or job has finished with this commit."""
        ...

    def resolve(self) -> int | None:
        """Resolve the outcome of the last commit: return its epoch, or None if it has not landed and never will."""
        ...

    def failed(self, error: BaseException) -> None:
        """Record the error of a commit that has not landed, for those who look at the load or job."""
        ...

    def aborted(self, reason: str) -> None:
        """Note that the attempt in flight was aborted."""
        ...

    def is_overtaken(self) -> bool:
        """Return True if a view got a new query, or a request for a rebuild, after its newest barrier was decided."""
        ...

    def state(self, index: int) -> PartRecord:
        """Return the record from which a part resumes."""
        ...


class LoadTask:
    """Load under a coordinator: its barriers are checkpoint numbers, and it commits by root commits."""

    endings = (*UNWRITABLE, LoadNotFound)
    looked_at: LookedAt | None = None

    def __init__(self, handle: Handle, request: Attach, settings: JobSettings) -> None:
        self._handle = handle
        self._request = request
        self._settings = settings
        self._load: LoadRecord | None = None
        self._number = 0  # the highest checkpoint number that a commit has used
        self.tables: Collection[str] = tuple(sorted(request.tables))

    def require_match(self, request: Attach) -> None:
        ours = self._request
        if (request.parts, sorted(request.tables), request.finish_tables) != (
            ours.parts,
            sorted(ours.tables),
            ours.finish_tables,
        ):
            raise InvalidInput(
                f"load {ours.part.name!r} runs with of={ours.parts}, tables={sorted(ours.tables)} and "
                f"finish_tables={ours.finish_tables}; attach every part of it with these"
            )
        if request.part.number >= ours.parts:
            raise InvalidInput(
                f"load {ours.part.name!r} has the parts 0 to {ours.parts - 1}, not {request.part.number}"
            )

    def open(self) -> Opened:
        request, name = self._request, self._request.part.name
        declare_load(self._handle, name, request.tables, request.parts, finish_tables=request.finish_tables)
        self._load = load = claim_load(self._handle, name)
        self._number = self._handle.catalog.read(lambda view: _last_number(view, load))
        parts = self._handle.catalog.read(lambda view: load_parts(view, name))
        finished = frozenset(index for index, part in parts if part.finished)
        return Opened(load.incarnation, load.parts, finished, self._settings)

    def check(self) -> None:
        assert self._load is not None
        incarnation, name = self._load.incarnation, self._load.name
        require_incarnation(self._handle.catalog.read(lambda view: get_load(view, name)), incarnation)

    def leave(self) -> None:
        """Do nothing: only coordinators claim loads."""

    def decide(self, *, has_changes: bool, drain: bool) -> Decided:
        assert self._load is not None
        if not has_changes and not drain:
            return Decided(None)
        before = self._load.checkpoint
        return Decided(Barrier(before, self._number + 1, "checkpoint" if before else "initial"), drain)

    def commit(self, commit: CommitBarrier) -> tuple[int, bool]:
        assert self._load is not None
        load, name = self._load, self._load.name
        self._number = commit.barrier.curr

        def find_changes(view: ReadTxn) -> list[TableChange]:
            changes = []
            for table_id in load.tables:
                table = get_table(view, table_id, f"table of load {name}")
                segments = tuple(segment.labelled(1) for segment in commit.segments.get(table.name, ()))
                end = commit.final and load.finish_tables
                if segments or end:
                    changes.append(TableChange(table, segments, "load", end=end))
            return changes

        target = RootCommit(
            txn=load_txn(name, self._number),
            load=LoadCommit(
                name,
                load.incarnation,
                load.checkpoint,
                self._number,
                {index: state for (_, index), state in commit.states.items() if state},
                frozenset(index for _, index in commit.finished),
                commit.final,
            ),
        )
        epoch = commit_changes(self._handle, self._handle.catalog.read(find_changes), target).epoch
        self._advance_checkpoint()
        return epoch, commit.final

    def resolve(self) -> int | None:
        assert self._load is not None
        epoch = resolve(self._handle, load_txn(self._load.name, self._number))
        if epoch is not None:
            self._advance_checkpoint()
        return epoch

    def failed(self, error: BaseException) -> None:
        """Do nothing: a load has no record of errors; its parts get them."""

    def aborted(self, reason: str) -> None:
        """Do nothing: a load has no runs."""

    def is_overtaken(self) -> bool:
        return False

    def state(self, index: int) -> PartRecord:
        name = self._request.part.name
        return dict(self._handle.catalog.read(lambda view: load_parts(view, name))).get(index, PartRecord())

    def _advance_checkpoint(self) -> None:
        assert self._load is not None
        self._load = replace(self._load, checkpoint=self._number)


def _last_number(view: ReadTxn, load: LoadRecord) -> int:
    """Return the highest checkpoint number with a recorded outcome; numbers past the load's checkpoint were aborted."""
    number = load.checkpoint
    while has_outcome(view, load_txn(load.name, number + 1)):
        number += 1
    return number


class JobTask:
    """Job under a coordinator: each part refreshes its share, and the job commits at its recorded barriers."""

    endings = (*UNWRITABLE, *ENDINGS)

    def __init__(self, handle: Handle, request: Attach, settings: JobSettings) -> None:
        record = handle.catalog.read(lambda view: find_job(view, request.part.name))
        self._handle = handle
        self._parts = request.parts
        self._settings = replace(settings, interval_ms=None)  # looks at the catalog trigger its checkpoints
        self._runner = JobRunner(handle, record.id, record.name)
        self._lease = self._runner.new_lease("coordinator")
        self._plan: RefreshPlan | None = None
        self._run: Run | None = None
        self._barrier: Barrier | None = None  # of the newest attempt
        request_to_look = LookRequest(record.id, record.name, self._lease)
        self.looked_at: LookedAt | None = LookedAt(request_to_look, vertex_of(record))
        self.tables: Collection[str] = handle.catalog.read(
            lambda view: tuple(get_table(view, table, f"output of {record.name}").name for table in record.outputs)
        )

    def require_match(self, request: Attach) -> None:
        if request.parts != self._parts:
            raise InvalidInput(
                f"job {self._runner.name!r} runs in {self._parts} parts now, not in {request.parts}; attach with "
                f"of={self._parts}, or close its workers first"
            )
        if request.part.number >= self._parts:
            raise InvalidInput(
                f"job {self._runner.name!r} has the parts 0 to {self._parts - 1}, not {request.part.number}"
            )

    def open(self) -> Opened:
        record = self._runner.record()
        if record.state == "finished":  # It needs no runner, and nobody would release it.
            self._lease.incarnation = record.incarnation
            return Opened(record.incarnation, self._parts, frozenset(range(self._parts)), self._settings)
        has_coordinator = record.runner is not None and record.runner.kind == "coordinator"
        # The job's parts attach to this coordinator now, so the earlier one may be fenced.
        record = self._runner.acquire(self._lease, take_over=has_coordinator)
        return Opened(record.incarnation, self._parts, frozenset(), self._settings)

    def check(self) -> None:
        assert self._lease.incarnation is not None
        check_incarnation(self._runner.record(), self._lease.incarnation)

    def leave(self) -> None:
        self._end_run(Cancelled("its parts have left"))
        self._runner.release(self._lease)

    def decide(self, *, has_changes: bool, drain: bool) -> Decided:
        if drain:
            record_drain(self._runner)
        alone = self._parts == 1
        self._plan = self._runner.begin(unchunked=not alone, keep_chunks=alone, lease=self._lease)
        self._end_run(Cancelled("its attempt was given up"))
        if self._plan is None:
            return Decided(None)
        if self._handle.run_listener is not None:
            self._run = self._handle.run_listener.began(self._plan)
        barrier, earlier = self._plan.barrier, self._barrier
        self._barrier = barrier
        # Barriers at earlier boundaries may precede the barrier that ends the drain.
        return Decided(barrier, drain and self._plan.job.ends_at(barrier.curr), renewed=barrier != earlier)

    def commit(self, commit: CommitBarrier) -> tuple[int, bool]:
        assert self._plan is not None and self._plan.barrier == commit.barrier
        if self._takes_chunks(self._plan.job):
            job = self._runner.record()
            if job.cursor is not None and job.barrier == self._plan.job.barrier:  # the part has recorded chunks since
                self._plan = self._runner.plan(replace(job, incarnation=self._plan.job.incarnation))
        label = commit.barrier.curr
        # The label marks segments as committed if a part reports them again.
        outputs: Mapping[str, tuple[Segment, ...]] = {
            name: tuple(segment.labelled(label) for segment in segments) for name, segments in commit.segments.items()
        }
        reports = [report for report in commit.states.values() if isinstance(report, RefreshReport)]
        report = reports[0] if reports else RefreshReport("refresh", "")
        state = StateWrites(report.state if self._parts == 1 else None)
        plan = replace(self._plan, engine=report.engine)
        try:  # the next attempt commits refused segments
            epoch = self._runner.commit(plan, outputs, keep=True, operation=report.operation, state=state)
        except TableDropped as error:  # with its job, which is the cause to name
            raise self._runner.find_cause(error, self._plan) from None
        self._completed(epoch)
        return epoch, self._runner.record().state == "finished"

    def _takes_chunks(self, job: JobRecord) -> bool:
        """Return True if the only part of the job takes in its backfill by chunks."""
        return self._parts == 1 and job.snapshot_rows is not None and job.reads_all_rows

    def resolve(self) -> int | None:
        """Return the commit's epoch if it has landed. Else fence it with a newer incarnation and return None."""
        runner, lease, plan = self._runner, self._lease, self._plan
        assert plan is not None

        def body(tx: Txn) -> tuple[int | None, int | None]:
            job = get_job(tx, runner.job_id, runner.name)
            if job.position == plan.barrier.curr:
                return job.position, lease.incarnation
            if job.incarnation != lease.incarnation:
                return None, lease.incarnation
            tx.put(job_key(job.id), replace(job, incarnation=job.incarnation + 1).to_record())
            return None, job.incarnation + 1

        epoch, incarnation = self._handle.catalog.transact(body)
        runner.incarnation = lease.incarnation = incarnation
        self._plan = replace(plan, job=replace(plan.job, incarnation=incarnation))
        if epoch is not None:
            self._completed(epoch)
        return epoch

    def failed(self, error: BaseException) -> None:
        self._runner.fail(error, self._plan, keep_barrier=True)

    def is_overtaken(self) -> bool:
        return self._plan is not None and self._runner.is_overtaken(self._plan)

    def aborted(self, reason: str) -> None:
        self._end_run(reason)

    def _end_run(self, error: EpochlogError | str) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.failed(error)

    def _completed(self, epoch: int) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.completed(epoch)

    def state(self, index: int) -> PartRecord:
        return PartRecord(None, self._runner.record().state == "finished")


def make_managed_job(handle: Handle, request: Attach, settings: JobSettings) -> ManagedJob:
    """Return the load or job of an Attach. Raises JobNotFound, InvalidInput."""
    managed_job: ManagedJob = (LoadTask if request.part.kind == "load" else JobTask)(handle, request, settings)
    managed_job.require_match(request)
    return managed_job
