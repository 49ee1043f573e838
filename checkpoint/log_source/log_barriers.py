"""Choice of the next barriers of some tables' logs: derived from the logs, or repeated from the commits of a job.

The functions depend on one state of the catalog, so a reader that was away finds exactly the barriers that it missed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from epochlog.checkpoint.job.next_barrier import Barrier, InputPosition, next_barrier
from epochlog.errors import JobParked, LogTruncated
from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.epochs.view import EpochView
from epochlog.store.epochs.view_reader import forced_boundaries, read_epoch_view
from epochlog.store.metadata.lookups import get_job, get_table
from epochlog.store.session.handle import Handle
from epochlog.store.types.epoch import show_epoch
from epochlog.store.types.epoch_set import FAR, Ints

NEVER_MERGE = 1 << 62
LOOK_CHANGES = 1_024
"""Largest number of commits from which one look at the catalog derives barriers."""


@dataclass(frozen=True, slots=True)
class EndOfData:
    """Mark of the end of the data: no table of the log source will have another change."""


@dataclass(frozen=True, slots=True)
class Unsealed:
    """Mark of unread changes that no sealed boundary covers yet."""


@dataclass(frozen=True, slots=True)
class ReaderPosition:
    """Position of a reader of these tables (id and name each), past the barrier at epoch `after`."""

    handle: Handle
    tables: Sequence[tuple[int, str]]
    after: int
    snapshot: bool
    """True if the reader reads the tables' rows at its next barrier."""

    @property
    def ids(self) -> list[int]:
        return [table_id for table_id, _ in self.tables]

    def epochs(self, view: ReadTxn) -> EpochView:
        """Read the epochs of the tables and their ancestors; raise TableDropped if one of the tables was dropped."""
        for table_id, name in self.tables:
            get_table(view, table_id, name)
        return self.epochs_above(view, self.ids)

    def epochs_above(self, view: ReadTxn, ids: Sequence[int]) -> EpochView:
        """Read the epochs of tables and their ancestors."""
        return read_epoch_view(view, self.handle.memory, self.handle.catalog.now_ms(), above=ids)


def barriers_of_log(
    view: ReadTxn, reader: ReaderPosition, epochs: EpochView, most: int
) -> list[Barrier] | EndOfData | Unsealed | None:
    """Return barriers at the next sealed boundaries by which a table has changed, at most `most`; without one
    EndOfData, Unsealed, or None if there are no changes.
    """
    tables, after = reader.ids, reader.after
    forced = forced_boundaries(view, after, epochs.last_epoch)
    position = InputPosition(tables, after, reader.handle.interval_ms, forced, reads_states=reader.snapshot)
    if reader.snapshot:
        barrier = next_barrier(epochs, position, max_lag=NEVER_MERGE, first=True, snapshot=True)
        return None if barrier is None else _barriers(after, [barrier.curr])
    if position.first_change(epochs) == FAR:
        return _end_of_data(epochs, reader)
    unread = [_unread(epochs.table(table).changes, after) for table in tables]
    changes = np.sort(np.append(np.concatenate(unread), position.first_change(epochs)))[:LOOK_CHANGES]
    boundaries = np.unique(position.boundaries(epochs).first_from(changes))[:most]
    return _barriers(after, boundaries[boundaries < FAR].tolist()) or Unsealed()


def barriers_of_job(
    view: ReadTxn, reader: ReaderPosition, most: int, job_id: int, name: str
) -> list[Barrier] | EndOfData | None:
    """Return barriers at the job's commits past the position, at most `most`; else the barrier that the job has
    recorded, EndOfData, or None if there is none yet.
    """
    job, after = get_job(view, job_id, name), reader.after
    output = reader.epochs_above(view, job.outputs).table(job.outputs[0])
    if job.position > after:
        if output.known_from > after:
            raise LogTruncated(
                f"the commits of job {job.name!r} are recorded only past epoch {show_epoch(output.known_from)}, and "
                f"those after {show_epoch(after)} are deleted. Start again with after={job.position}"
            )
        return _barriers(after, _unread(output.commits, after)[:most].tolist())
    if job.state == "parked":
        raise JobParked(
            f"job {job.name!r} was parked at epoch {show_epoch(job.position)} and has no barriers; rebuild it first"
        )
    if job.state == "finished":
        return EndOfData()
    if job.barrier is not None and job.barrier[0] == after:
        return _barriers(after, [job.barrier[1]])
    return None


def _end_of_data(epochs: EpochView, reader: ReaderPosition) -> EndOfData | None:
    """Return EndOfData if all tables have ended at or below the position, else None."""
    tables = [epochs.table(table_id) for table_id in reader.ids]
    all_ended = all(table.state == "finished" and table.position <= reader.after for table in tables)
    return EndOfData() if all_ended else None


def _unread(epochs: Ints, after: int) -> Ints:
    return epochs[epochs.searchsorted(after, "right") :][:LOOK_CHANGES]


def _barriers(after: int, boundaries: Iterable[int]) -> list[Barrier]:
    return [Barrier(prev, curr, "checkpoint" if prev else "initial") for prev, curr in pairwise([after, *boundaries])]
