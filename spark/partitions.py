"""Partitions of a read, one for each Spark task. The driver cuts, tasks read; no task opens the catalog, nothing
imports pyspark.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil

import pyarrow as pa

from epochlog.errors import Corrupt, SnapshotExpired
from epochlog.store.changelog.log_plan import LogPlan
from epochlog.store.changelog.plan_ranges import narrowed, spans_of
from epochlog.store.env.files import Files
from epochlog.store.scan.scan_plan import ScanPlan
from epochlog.store.scan.size_splits import split_evenly
from epochlog.store.types.read_options import ReadOptions

from .options import Tasks
from .types import to_spark
from .worker_gc import settle

SMALLEST_PIECE_BYTES, LARGEST_PIECE_BYTES = 4 << 20, 128 << 20
"""In memory, of all that is read for a piece; so much as Spark's own readers take of files."""
BATCH_ROWS = 1 << 16


@dataclass(frozen=True, slots=True)
class ReadPartition:
    """Read of one Spark task: a plan, what to read of it, and the exact schema that Spark expects. Picklable."""

    files: Files
    plan: ScanPlan | LogPlan
    wanted: pa.Schema
    options: ReadOptions  # its columns are the table's; the change columns come by themselves
    mode: str = "epochs"
    pre_images: bool = False

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in Spark's types. Raises SnapshotExpired when a file has gone since the plan was made."""
        settle()
        name = self.plan.table.name
        try:
            for batch in self._batches():
                yield from to_spark(name, batch, self.wanted).to_batches(max_chunksize=BATCH_ROWS)
        except Corrupt as error:
            if "gone" not in error.what:
                raise
            raise SnapshotExpired(
                f"table {name!r}: {error.path} has gone since this read was planned, longer ago than its lease; "
                "load it again"
            ) from error

    def _batches(self) -> Iterator[pa.RecordBatch]:
        if isinstance(self.plan, ScanPlan):
            return self.plan.batches(self.files, self.options)
        return self.plan.batches(self.files, self.mode, pre_images=self.pre_images, options=self.options)


def cut(piece: ReadPartition, tasks: Tasks) -> list[ReadPartition]:
    """Cut a read in key order into pieces that read like numbers of bytes: one for each task that the session runs at a
    time, fewer when they would be small, more when they would be large, or when more are wanted; none for an empty
    plan. Raises Corrupt.
    """
    table, spans = piece.plan.table, spans_of(piece.plan, piece.options)
    size = sum(span.bytes for span in spans)
    if not spans:
        return []
    worth_while = min(tasks.parallelism, int(size // SMALLEST_PIECE_BYTES))
    count = max(tasks.at_least, worth_while, ceil(size / LARGEST_PIECE_BYTES))
    columns = table.schema.names if piece.options.columns is None else piece.options.columns
    ranges = split_evenly(piece.files, table, spans, columns, count, piece.options.key_range)
    return [
        replace(piece, plan=narrowed(piece.plan, keys), options=replace(piece.options, key_range=keys))
        for keys in ranges
    ]
