"""Which barrier of some tables' logs is next: made from the logs themselves, or repeated from what a job has committed.

Functions of one state of the catalog, so a reader that was away finds exactly the barriers it missed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import JobParked, LogTruncated
from ..store.catalog import View
from ..store.definitions import get_job, get_table
from ..store.epoch import show_epoch
from ..store.handle import Handle
from ..store.history import forced_boundaries, read_epoch_view
from ..store.intervals import first_after
from ..store.lineage import EpochView
from .barrier import Barrier, BarrierKind, next_barrier

NEVER_MERGE = 1 << 62


@dataclass(frozen=True, slots=True)
class EndOfData:
    """Nothing more will come of any of the tables."""


@dataclass(frozen=True, slots=True)
class Stand:
    """Where a reader of these tables (id and name each) is: past the barrier `after`. snapshot: its next barrier is the
    one that it reads the tables' rows at.
    """

    handle: Handle
    tables: Sequence[tuple[int, str]]
    after: int
    snapshot: bool

    def epochs(self, view: View) -> EpochView:
        """TableDropped when one of the tables is gone."""
        for table_id, name in self.tables:
            get_table(view, table_id, name)
        return read_epoch_view(view, self.handle.memory, self.handle.catalog.now_ms())


def barrier_of_log(view: View, stand: Stand) -> Barrier | EndOfData | None:
    """The first sealed boundary by which one of the tables has changed; None while there is none."""
    epochs, after = stand.epochs(view), stand.after
    found = next_barrier(
        epochs,
        [table_id for table_id, _ in stand.tables],
        after,
        interval_ms=stand.handle.interval_ms,
        forced=forced_boundaries(view, after, epochs.last_epoch),
        max_lag=NEVER_MERGE,
        first=stand.snapshot,
        snapshot=stand.snapshot,
        states=stand.snapshot,
    )
    return ended(view, stand) if found is None else Barrier(found.prev, found.curr, _kind(after))


def ended(view: View, stand: Stand) -> EndOfData | None:
    """Whether all tables have ended, at or below the position."""
    epochs = stand.epochs(view)
    tables = [epochs.table(table_id) for table_id, _ in stand.tables]
    over = all(table.state == "finished" and table.position <= stand.after for table in tables)
    return EndOfData() if over and not stand.snapshot else None


def barrier_of_job(view: View, stand: Stand, job_id: int, name: str) -> Barrier | EndOfData | None:
    """The job's first commit past the position; else the barrier that is recorded for it."""
    job, epochs, after = get_job(view, job_id, name), stand.epochs(view), stand.after
    output, kind = epochs.table(job.outputs[0]), _kind(after)
    if job.position > after:
        if output.known_from > after:
            raise LogTruncated(
                f"the barriers of job {job.name!r} are remembered only past epoch {show_epoch(output.known_from)}; "
                "those after "
                f"{show_epoch(after)} are forgotten. Start anew with after={job.position}"
            )
        return Barrier(after, int(first_after(output.commits, after)), kind)
    if job.state == "parked":
        raise JobParked(
            f"job {job.name!r} was parked at epoch {show_epoch(job.position)} and has no barriers; rebuild it first"
        )
    if job.state == "finished":
        return EndOfData()
    if job.barrier is not None and job.barrier[0] == after:
        return Barrier(after, job.barrier[1], kind)
    return None


def _kind(after: int) -> BarrierKind:
    return "checkpoint" if after else "initial"
