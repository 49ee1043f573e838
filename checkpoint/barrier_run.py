"""What the refresh of one barrier reads and writes, planned from one state of the catalog: all of it, or one piece."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ..errors import InvalidInput
from ..store.catalog import View
from ..store.clock import monotonic_s
from ..store.definitions import Cursor, JobRecord, TableDef, get_table
from ..store.epoch import show_epoch
from ..store.handle import Handle
from ..store.log import LogPlan, plan_backfill, plan_changes
from ..store.made import made_of
from ..store.scan import EVERYTHING, KeyRange, ScanPlan, plan_scan
from ..store.writer import WriteTarget, write_target
from .barrier import Barrier
from .snapshot_pieces import cut_piece, nothing_of, taken_in


@dataclass(frozen=True, slots=True)
class Upstream:
    """One input of a barrier (prev, curr]: its changes, of these keys, and its rows at either end."""

    table: TableDef
    changes: LogPlan
    current: ScanPlan
    previous: ScanPlan
    keys: KeyRange = EVERYTHING


@dataclass(frozen=True, slots=True)
class Output:
    """One output of a barrier: its rows so far, and where its new segments go.

    replaced: in a rebuild, the rows of old, whose place the new ones take. Else None.
    """

    table: TableDef
    previous: ScanPlan
    target: WriteTarget
    replaced: ScanPlan | None = None


@dataclass(frozen=True, slots=True)
class BarrierRun:
    """A barrier that has been decided and is to be refreshed: everything a refresh reads, fixed. Tables by name.

    ended: of a piece of a snapshot, the cursor after it. Without one the refresh is followed by the commit. began_s:
    when it was planned, in monotonic time.
    """

    job: JobRecord
    barrier: Barrier
    upstreams: Mapping[str, Upstream]
    outputs: Mapping[str, Output]
    ended: Cursor | None = None
    began_s: float = field(default_factory=monotonic_s)

    @property
    def taken_in(self) -> bool:
        """Whether there is nothing to refresh any more: pieces have taken in everything, and it is to be committed."""
        return taken_in(self.job)

    def upstream(self, name: str) -> Upstream:
        if name not in self.upstreams:
            raise InvalidInput(f"job {self.job.name!r} has no upstream {name!r}; it reads {sorted(self.upstreams)}")
        return self.upstreams[name]

    def output(self, name: str) -> Output:
        if name not in self.outputs:
            raise InvalidInput(f"job {self.job.name!r} has no output {name!r}; it writes {sorted(self.outputs)}")
        return self.outputs[name]

    def late_write(self) -> InvalidInput:
        """What a context raises for a write after its refresh has ended."""
        return InvalidInput(
            f"the refresh of job {self.job.name!r} at {show_epoch(self.barrier.curr)} is over; what is written to its "
            "context now "
            "could never be committed. Write inside the refresh function"
        )


def barrier_of(job: JobRecord) -> Barrier:
    """The barrier recorded for a job, as its refresh sees it: one that makes the outputs anew begins at nothing."""
    assert job.barrier is not None
    prev = 0 if job.anew else job.position
    return Barrier(prev, job.barrier[1], "checkpoint" if prev else "initial")


def plan_barrier(view: View, handle: Handle, job: JobRecord) -> BarrierRun:
    """What a refresh of the job's recorded barrier reads and writes, from one state of the catalog."""
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
    outputs: dict[str, Output] = {}
    for table_id in job.outputs:
        table = get_table(view, table_id, f"output of {job.name}")
        old, target = plan_scan(view, table, job.position), write_target(handle, table)
        if job.anew:
            made = ScanPlan(table.schema, curr, (), made_of(view, table_id))
            outputs[table.name] = Output(table, made, target, old if job.replacing else None)
        else:
            outputs[table.name] = Output(table, old, target)
    return BarrierRun(job, barrier, upstreams, outputs)


def plan_piece(handle: Handle, run: BarrierRun) -> BarrierRun:
    """The same for the next piece of the job's snapshot alone, if it is taken in pieces and not all of it is."""
    job = run.job
    if job.snapshot_rows is None or not job.anew or run.taken_in:
        return run
    upstreams = {name: replace(up, changes=nothing_of(up.changes)) for name, up in run.upstreams.items()}
    name = list(upstreams)[(job.cursor or Cursor()).place]
    keys, ended = cut_piece(job, handle.files, run.upstreams[name].current)
    return replace(run, upstreams={**upstreams, name: replace(run.upstreams[name], keys=keys)}, ended=ended)
