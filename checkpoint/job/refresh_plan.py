"""Plan of one refresh: its reads and writes for a barrier or a piece of it, from one state of the catalog."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from epochlog.errors import InvalidInput
from epochlog.store.catalog.protocol import View
from epochlog.store.changelog.log_plan import LogPlan, plan_backfill, plan_changes
from epochlog.store.env.clock import monotonic_s
from epochlog.store.metadata.definitions import Cursor, JobRecord, TableDef
from epochlog.store.metadata.lookups import get_table
from epochlog.store.metadata.staged_segments import list_staged
from epochlog.store.scan.scan_plan import EVERYTHING, KeyRange, ScanPlan, plan_scan
from epochlog.store.session.handle import Handle
from epochlog.store.sst.segment_writer import WriteTarget
from epochlog.store.types.epoch import show_epoch

from .backfill_chunks import cut_piece, fully_loaded, nothing_of
from .barrier import Barrier


@dataclass(frozen=True, slots=True)
class Upstream:
    """One input of a barrier (prev, curr]: its changes, of these keys, and its rows at either end."""

    table: TableDef
    changes: LogPlan
    current: ScanPlan
    previous: ScanPlan
    keys: KeyRange = EVERYTHING


@dataclass(frozen=True, slots=True)
class PlannedOutput:
    """One output of a barrier: its rows so far, and where its new segments go.

    replaced: in a rebuild, the rows of old, whose place the new ones take. Else None.
    """

    table: TableDef
    previous: ScanPlan
    target: WriteTarget
    replaced: ScanPlan | None = None


@dataclass(frozen=True, slots=True)
class RefreshPlan:
    """A barrier that has been decided and is to be refreshed: everything a refresh reads, fixed. Tables by name.

    ended: of a piece of a snapshot, the cursor after it. Without one the refresh is followed by the commit. began_s:
    when it was planned, in monotonic time.
    """

    job: JobRecord
    barrier: Barrier
    upstreams: Mapping[str, Upstream]
    outputs: Mapping[str, PlannedOutput]
    ended: Cursor | None = None
    began_s: float = field(default_factory=monotonic_s)

    @property
    def fully_loaded(self) -> bool:
        """Return True if pieces have taken in the whole snapshot, so that only the commit is left."""
        return fully_loaded(self.job)

    def upstream(self, name: str) -> Upstream:
        if name not in self.upstreams:
            raise InvalidInput(f"job {self.job.name!r} has no upstream {name!r}; it reads {sorted(self.upstreams)}")
        return self.upstreams[name]

    def output(self, name: str) -> PlannedOutput:
        if name not in self.outputs:
            raise InvalidInput(f"job {self.job.name!r} has no output {name!r}; it writes {sorted(self.outputs)}")
        return self.outputs[name]

    def late_write(self) -> InvalidInput:
        """Make the error for a write to a context whose refresh has ended."""
        return InvalidInput(
            f"the refresh of job {self.job.name!r} at {show_epoch(self.barrier.curr)} is over; what is written to its "
            "context now "
            "could never be committed. Write inside the refresh function"
        )


def barrier_of(job: JobRecord) -> Barrier:
    """Return the barrier recorded for a job, for its refresh: one that makes the outputs anew begins at nothing."""
    assert job.barrier is not None
    prev = 0 if job.anew else job.position
    return Barrier(prev, job.barrier[1], "checkpoint" if prev else "initial")


def plan_barrier(view: View, handle: Handle, job: JobRecord) -> RefreshPlan:
    """Plan the reads and writes of a refresh of the job's recorded barrier, from one state of the catalog."""
    barrier = barrier_of(job)
    prev, curr = barrier.prev, barrier.curr
    upstreams: dict[str, Upstream] = {}
    for table_id in job.upstreams:
        table = get_table(view, table_id, f"upstream of {job.name}")
        changes = (
            plan_backfill(view, table, curr) if job.anew else plan_changes(view, table, prev, curr, by_commit=True)
        )
        previous = plan_scan(view, table, prev) if prev else ScanPlan(table.schema, 0)
        upstreams[table.name] = Upstream(table, changes, plan_scan(view, table, curr), previous)
    outputs: dict[str, PlannedOutput] = {}
    for table_id in job.outputs:
        table = get_table(view, table_id, f"output of {job.name}")
        old, target = plan_scan(view, table, job.position), handle.write_target(table)
        if job.anew:
            made = ScanPlan(table.schema, curr, (), list_staged(view, table_id))
            outputs[table.name] = PlannedOutput(table, made, target, old if job.replacing else None)
        else:
            outputs[table.name] = PlannedOutput(table, old, target)
    return RefreshPlan(job, barrier, upstreams, outputs)


def plan_piece(handle: Handle, run: RefreshPlan) -> RefreshPlan:
    """Narrow the plan to the next piece of the job's snapshot; return `run` unless a piece is still to be taken."""
    job = run.job
    if job.snapshot_rows is None or not job.anew or run.fully_loaded:
        return run
    upstreams = {name: replace(up, changes=nothing_of(up.changes)) for name, up in run.upstreams.items()}
    name = list(upstreams)[(job.cursor or Cursor()).place]
    keys, ended = cut_piece(job, handle.files, run.upstreams[name].current)
    return replace(run, upstreams={**upstreams, name: replace(run.upstreams[name], keys=keys)}, ended=ended)
