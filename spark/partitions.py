"""Partitions of a read, one for each Spark task. The driver cuts, tasks read; no task opens the catalog, nothing
imports pyspark.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil

import pyarrow as pa
import pyarrow.compute as pc

from epochlog.errors import Corrupt, SnapshotExpired
from epochlog.store.changelog.log_plan import LogPlan
from epochlog.store.changelog.plan_ranges import narrowed, spans_of
from epochlog.store.env.files import Files
from epochlog.store.scan.scan_plan import EVERYTHING, KeyRange, ScanPlan
from epochlog.store.scan.size_splits import split_evenly

from .options import Tasks
from .types import to_spark
from .worker_gc import settle

SMALLEST_PIECE_BYTES, LARGEST_PIECE_BYTES = 4 << 20, 128 << 20
"""In memory, of all that is read for a piece; so much as Spark's own readers take of files."""
BATCH_ROWS = 1 << 16


@dataclass(frozen=True, slots=True)
class ReadPartition:
    """Read of one task: a plan, the keys of it to read, and the exact schema that Spark expects. Picklable."""

    files: Files
    plan: ScanPlan | LogPlan
    wanted: pa.Schema
    columns: tuple[str, ...]  # of the table; the change columns come by themselves
    filter: pc.Expression | None = None
    mode: str = "epochs"
    pre_images: bool = False
    key_range: KeyRange = EVERYTHING

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
            return self.plan.batches(self.files, self.columns, self.filter, self.key_range)
        return self.plan.batches(
            self.files,
            self.mode,
            pre_images=self.pre_images,
            columns=self.columns,
            filter=self.filter,
            key_range=self.key_range,
        )


def cut(piece: ReadPartition, tasks: Tasks) -> list[ReadPartition]:
    """Cut a read in key order into pieces that read like numbers of bytes: one for each task that the session runs at a
    time, fewer when they would be small, more when they would be large, or when more are wanted; none for an empty
    plan. Raises Corrupt.
    """
    table, spans = piece.plan.table, spans_of(piece.plan, piece.columns, piece.filter)
    size = sum(span.bytes for span in spans)
    if not spans:
        return []
    worth_while = min(tasks.parallelism, int(size // SMALLEST_PIECE_BYTES))
    count = max(tasks.at_least, worth_while, ceil(size / LARGEST_PIECE_BYTES))
    ranges = split_evenly(piece.files, table, spans, piece.columns, count, piece.key_range)
    return [replace(piece, plan=narrowed(piece.plan, keys), key_range=keys) for keys in ranges]
