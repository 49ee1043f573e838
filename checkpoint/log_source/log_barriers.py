"""Choice of the next barrier of some tables' logs: derived from the logs, or repeated from the commits of a job.

The functions depend on one state of the catalog, so a reader that was away finds exactly the barriers that it missed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from epochlog.checkpoint.job.next_barrier import Barrier, BarrierKind, InputPosition, next_barrier
from epochlog.errors import JobParked, LogTruncated
from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.epochs.view import EpochView
from epochlog.store.epochs.view_reader import forced_boundaries, read_epoch_view
from epochlog.store.metadata.lookups import get_job, get_table
from epochlog.store.session.handle import Handle
from epochlog.store.types.epoch import show_epoch
from epochlog.store.types.epoch_set import first_after

NEVER_MERGE = 1 << 62


@dataclass(frozen=True, slots=True)
class EndOfData:
    """Mark of the end of the data: no table of the log source will have another change."""


@dataclass(frozen=True, slots=True)
class ReaderPosition:
    """Position of a reader of these tables (id and name each), past the barrier at epoch `after`."""

    handle: Handle
    tables: Sequence[tuple[int, str]]
    after: int
    snapshot: bool
    """True if the reader reads the tables' rows at its next barrier."""

    def epochs(self, view: ReadTxn) -> EpochView:
        """Read the epochs of all tables; raise TableDropped if one of the reader's tables was dropped."""
        for table_id, name in self.tables:
            get_table(view, table_id, name)
        return read_epoch_view(view, self.handle.memory, self.handle.catalog.now_ms())


def barrier_of_log(view: ReadTxn, reader: ReaderPosition) -> Barrier | EndOfData | None:
    """Return a barrier at the first sealed boundary by which a table has changed, EndOfData, or None if none yet."""
    epochs, after = reader.epochs(view), reader.after
    position = InputPosition(
        [table_id for table_id, _ in reader.tables],
        after,
        reader.handle.interval_ms,
        forced=forced_boundaries(view, after, epochs.last_epoch),
        reads_states=reader.snapshot,
    )
    barrier = next_barrier(epochs, position, max_lag=NEVER_MERGE, first=reader.snapshot, snapshot=reader.snapshot)
    return end_of_data(view, reader) if barrier is None else Barrier(barrier.prev, barrier.curr, _kind(after))


def end_of_data(view: ReadTxn, reader: ReaderPosition) -> EndOfData | None:
    """Return EndOfData if all tables have ended at or below the position, else None."""
    epochs = reader.epochs(view)
    tables = [epochs.table(table_id) for table_id, _ in reader.tables]
    all_ended = all(table.state == "finished" and table.position <= reader.after for table in tables)
    return EndOfData() if all_ended and not reader.snapshot else None


def barrier_of_job(view: ReadTxn, reader: ReaderPosition, job_id: int, name: str) -> Barrier | EndOfData | None:
    """Return a barrier at the job's first commit past the position, else the barrier that the job has recorded."""
    job, epochs, after = get_job(view, job_id, name), reader.epochs(view), reader.after
    output, kind = epochs.table(job.outputs[0]), _kind(after)
    if job.position > after:
        if output.known_from > after:
            raise LogTruncated(
                f"the commits of job {job.name!r} are recorded only past epoch {show_epoch(output.known_from)}, and "
                f"those after {show_epoch(after)} are deleted. Start again with after={job.position}"
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
