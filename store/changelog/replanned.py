"""Reads of changes without a hold: after a stale read, the rest comes from a new plan.

The log is immutable, so the changes that a plan has yet to return are in other files if vacuum has deleted its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from epochlog.errors import EpochlogError, SnapshotExpired
from epochlog.store.retention.stale_reads import translate_stale_reads
from epochlog.store.session.handle import Handle
from epochlog.store.types.arrays import to_numpy

from .change_rows import COMMIT_VERSION
from .epoch_batches import past_rows


@dataclass(frozen=True, slots=True)
class Returned:
    """Part of a range of changes that was returned: all rows before `epoch`, and `rows` rows of it."""

    by_epoch: bool
    """True if the changes come in order of epoch, False if they come in order of key: then `epoch` stays 0, and `rows`
    counts all rows.
    """
    epoch: int = 0
    rows: int = 0

    def and_batch(self, batch: pa.RecordBatch) -> Returned:
        """Return the part with a further batch."""
        if not self.by_epoch or not batch.num_rows:
            return replace(self, rows=self.rows + batch.num_rows)
        epochs = to_numpy(batch.column(COMMIT_VERSION))
        last = int(epochs[-1])
        rows = len(epochs) - int(epochs.searchsorted(last))
        return replace(self, epoch=last, rows=rows + (self.rows if last == self.epoch else 0))


def read_replanned(
    handle: Handle,
    batches: Iterator[pa.RecordBatch],
    plan_from: Callable[[int], Iterator[pa.RecordBatch]],
    *,
    by_epoch: bool,
) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a read of changes; after each stale read the rest of them, from a new plan.

    plan_from: plans the range from a log epoch on (0: the whole range), and returns its batches. by_epoch: as in
    Returned. Raises SnapshotExpired if the range cannot be planned any more.
    """
    returned = Returned(by_epoch)
    while True:
        try:
            for batch in translate_stale_reads(handle, batches):
                returned = returned.and_batch(batch)
                yield batch
            return
        except SnapshotExpired as stale:
            try:
                batches = past_rows(plan_from(returned.epoch), returned.rows)
            except EpochlogError as refused:
                raise stale from refused
