"""Refresh plan: the reads and writes of one barrier or backfill chunk, from one state of the catalog."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from epochlog.errors import InvalidInput
from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.changelog.log_plan import Columns, LogPlan, plan_changes
from epochlog.store.env.clock import monotonic_s
from epochlog.store.env.files import Files
from epochlog.store.metadata.definitions import Cursor, JobRecord, TableDef
from epochlog.store.metadata.job_columns import read_by
from epochlog.store.metadata.lookups import get_table
from epochlog.store.metadata.staged_segments import list_staged
from epochlog.store.metadata.state_tables import ViewState, read_state
from epochlog.store.metadata.step_times import StepTime
from epochlog.store.scan.scan_plan import ScanPlan, plan_scan, read_files
from epochlog.store.session.handle import Handle
from epochlog.store.sst.segment_writer import WriteTarget
from epochlog.store.types.epoch import show_epoch
from epochlog.store.types.key_range import ALL_KEYS, KeyRange

from .backfill_chunks import cut_chunk, empty_plan, fully_loaded
from .next_barrier import Barrier


@dataclass(frozen=True, slots=True)
class Upstream:
    """Upstream of a barrier (prev, curr]: its changes within a key range, and its rows at curr and at prev.

    table: with the columns that the job reads, in which all its rows and changes are.
    """

    table: TableDef
    changes: LogPlan
    current: ScanPlan
    previous: ScanPlan
    keys: KeyRange = ALL_KEYS


@dataclass(frozen=True, slots=True)
class PlannedOutput:
    """Output of a barrier: its rows so far, and the target of its new segments.

    replaced: the old rows that a rebuild replaces, else None. state: of a view, the one of its newest commit, if it
    has one.
    """

    table: TableDef
    previous: ScanPlan
    target: WriteTarget
    replaced: ScanPlan | None = None
    state: ViewState | None = None


@dataclass(frozen=True, slots=True)
class RefreshPlan:
    """Plan of the refresh of a recorded barrier: its inputs and outputs, by table name.

    next_cursor: the cursor after this backfill chunk. None if the commit follows the refresh. by_chunks: False if the
    refresh must take in a backfill whole. began_s: monotonic time of the planning, in seconds. engine: the name of the
    adapter that refreshes it.
    """

    job: JobRecord
    barrier: Barrier
    upstreams: Mapping[str, Upstream]
    outputs: Mapping[str, PlannedOutput]
    next_cursor: Cursor | None = None
    by_chunks: bool = False
    began_s: float = field(default_factory=monotonic_s)
    engine: str = ""

    def step_time(self) -> StepTime | None:
        """Return the time of the step so far if it counts for the stride of a view: no backfill, rebuild or retry."""
        counts = self.job.view is not None and self.barrier.kind == "checkpoint" and self.job.last_error is None
        if not counts or self.job.rebuilding:
            return None
        return StepTime(self.engine, round((monotonic_s() - self.began_s) * 1000))

    @property
    def fully_loaded(self) -> bool:
        """Return True if chunks have taken in the whole backfill, so that only the commit is left."""
        return fully_loaded(self.job)

    def is_overtaken(self, job: JobRecord) -> bool:
        """Return True if a view got a new query, or a request for a rebuild, after the barrier was planned.

        The view's next barrier takes the place of this one, whose commit is refused.
        """
        return job.view is not None and job.rebuild is not None and job.rebuild != self.job.rebuild

    def upstream(self, name: str) -> Upstream:
        if name not in self.upstreams:
            raise InvalidInput(f"job {self.job.name!r} has no upstream {name!r}; it reads {sorted(self.upstreams)}")
        return self.upstreams[name]

    def output(self, name: str) -> PlannedOutput:
        if name not in self.outputs:
            raise InvalidInput(f"job {self.job.name!r} has no output {name!r}; it writes {sorted(self.outputs)}")
        return self.outputs[name]

    def late_write(self) -> InvalidInput:
        """Build the error for a write to a context whose refresh has ended."""
        return InvalidInput(
            f"the refresh of job {self.job.name!r} at {show_epoch(self.barrier.curr)} is over, so its context takes no "
            "more writes. Write inside the refresh function"
        )


def barrier_of(job: JobRecord) -> Barrier:
    """Return the recorded barrier of a job for its refresh. In a backfill or rebuild its prev is 0."""
    assert job.barrier is not None
    prev = 0 if job.reads_all_rows else job.position
    return Barrier(prev, job.barrier[1], "checkpoint" if prev else "initial")


def plan_barrier(view: ReadTxn, handle: Handle, job: JobRecord) -> RefreshPlan:
    """Plan the refresh of the job's recorded barrier from one state of the catalog."""
    barrier = barrier_of(job)
    prev, curr = barrier.prev, barrier.curr
    upstreams: dict[str, Upstream] = {}
    for table_id in job.upstreams:
        current = get_table(view, table_id, f"upstream of {job.name}")
        table = read_by(job, current)
        columns, files = Columns(table.schema, whole=True), read_files(view, table, curr)
        rows = files.plan(table, curr, table.schema)
        changes = (
            LogPlan(rows.table, rows, (), backfill=True)
            if job.reads_all_rows
            else plan_changes(view, current, prev, curr, by_commit=True, columns=columns, files=files)
        )
        previous = files.plan(table, prev, table.schema) if prev else ScanPlan(table.schema, 0)
        upstreams[table.name] = Upstream(table, changes, rows, previous)
    outputs: dict[str, PlannedOutput] = {}
    for table_id in job.outputs:
        table = get_table(view, table_id, f"output of {job.name}")
        previous_rows, target = plan_scan(view, table, job.position), handle.write_target(table)
        if job.reads_all_rows:
            rebuilt = ScanPlan(table.schema, curr, (), list_staged(view, table_id))
            outputs[table.name] = PlannedOutput(table, rebuilt, target, previous_rows if job.replacing else None)
        else:
            state = read_state(view, table_id) if job.view is not None else None
            state = state if state is not None and (state.without or state.epoch == job.position) else None
            outputs[table.name] = PlannedOutput(table, previous_rows, target, state=state)
    return RefreshPlan(job, barrier, upstreams, outputs)


def plan_chunk(files: Files, plan: RefreshPlan) -> RefreshPlan:
    """Narrow the plan to the next backfill chunk; return `plan` unchanged if no chunk is left. The refresh of a view
    does that by `plan_view_chunk`.
    """
    job = plan.job
    if job.snapshot_rows is None or not job.reads_all_rows or plan.fully_loaded:
        return plan
    if job.view is not None:
        return replace(plan, by_chunks=True)
    return _narrowed(files, plan, job.cursor or Cursor())


def plan_view_chunk(files: Files, plan: RefreshPlan, tables: Collection[str]) -> RefreshPlan | None:
    """Narrow the plan of a view to the next backfill chunk; return None if the refresh must take in all rows.

    tables: the upstreams that chunks can take in; the largest of them is. A table of fewer rows than a chunk needs
    none. Chunks of an earlier release hold the whole view: a refresh of all rows replaces them.
    """
    job, names = plan.job, list(plan.upstreams)
    if not plan.by_chunks or not tables:
        return None
    assert job.snapshot_rows is not None
    cursor = job.cursor
    if cursor is None:
        name = max(tables, key=lambda table: plan.upstreams[table].current.rows_at_most)
        if plan.upstreams[name].current.rows_at_most <= job.snapshot_rows:
            return None
        chunk = _narrowed(files, plan, Cursor(place=names.index(name), of_view=True))
        assert chunk.next_cursor is not None
        return chunk if chunk.next_cursor.low is not None else None
    return _narrowed(files, plan, cursor) if cursor.of_view and names[cursor.place] in tables else None


def _narrowed(files: Files, plan: RefreshPlan, cursor: Cursor) -> RefreshPlan:
    """Narrow the plan to the backfill chunk that begins at a cursor."""
    upstreams = {name: replace(up, changes=empty_plan(up.changes)) for name, up in plan.upstreams.items()}
    name = list(upstreams)[cursor.place]
    keys, next_cursor = cut_chunk(plan.job, cursor, files, plan.upstreams[name].current)
    return replace(
        plan, upstreams={**upstreams, name: replace(plan.upstreams[name], keys=keys)}, next_cursor=next_cursor
    )
