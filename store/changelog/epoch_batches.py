"""Cuts of a feed's batches into batches that end with an epoch, or are a part of one (pure)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from epochlog.store.types.arrays import to_numpy
from epochlog.store.types.row_size import bounded_slices

from .change_rows import COMMIT_VERSION


def epoch_batches(
    batches: Iterator[pa.RecordBatch], rows: int, size: int
) -> Iterator[tuple[int, pa.RecordBatch, bool]]:
    """Cut batches of changes, in the order of their epochs, to at most `rows` rows and about `size` bytes.

    Yield (epoch, batch, last): the epoch of the batch's last row, and True if no more rows of it follow. A batch after
    which more follow has rows of that epoch alone; any other may begin with whole epochs before it.
    """
    pending: tuple[pa.RecordBatch, np.ndarray] | None = None
    for batch in batches:
        epochs = to_numpy(batch.column(COMMIT_VERSION))
        if not len(epochs):
            continue
        if pending is not None:
            yield from _before(*pending, int(epochs[0]))
            pending = None  # no reference while the next batch is made
        for part in _slices(batch, epochs, rows, size):
            if pending is not None:
                yield from _before(*pending, int(part[1][0]))
            pending = part
        del batch
    if pending is not None:
        data, epochs = pending
        yield int(epochs[-1]), data, True


def past_rows(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the batches without the first `rows` rows."""
    for batch in batches:
        if rows < batch.num_rows:
            yield batch.slice(rows)
        rows = max(rows - batch.num_rows, 0)


def _before(batch: pa.RecordBatch, epochs: np.ndarray, following: int) -> Iterator[tuple[int, pa.RecordBatch, bool]]:
    """Yield a batch that rows of the epoch `following` follow: without these, if they continue its last epoch, and then
    the part of that epoch.
    """
    newest = int(epochs[-1])
    if newest != following:
        yield newest, batch, True
        return
    start = int(epochs.searchsorted(newest))
    if start:
        yield int(epochs[start - 1]), batch.slice(0, start), True
    yield newest, batch.slice(start), False


def _slices(
    batch: pa.RecordBatch, epochs: np.ndarray, rows: int, size: int
) -> Iterator[tuple[pa.RecordBatch, np.ndarray]]:
    """Cut a batch between its epochs, and epochs that are too large between their rows."""
    most = max(1, min(rows, len(epochs) * size // max(1, batch.nbytes)))
    start = 0
    while start < len(epochs):
        end = min(start + most, len(epochs))
        if end < len(epochs):  # the begin of the epoch of the first row that is too many
            end = int(epochs.searchsorted(epochs[end]))
        if end > start:
            yield batch.slice(start, end - start), epochs[start:end]
        else:
            end = int(epochs.searchsorted(epochs[start], "right"))
            for data in bounded_slices(batch.slice(start, end - start), rows, size):
                yield data, epochs[start : start + data.num_rows]
        start = end
