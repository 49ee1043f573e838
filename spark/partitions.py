"""Partitions of a read, one for each Spark task. The driver cuts and tasks read; no task opens the catalog, and this
module does not import pyspark.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil

import pyarrow as pa

from epochlog.store.changelog.log_plan import LogPlan
from epochlog.store.changelog.plan_ranges import narrowed, spans_of
from epochlog.store.env.files import Files
from epochlog.store.retention.stale_reads import vacuumed
from epochlog.store.scan.scan_plan import ScanPlan
from epochlog.store.scan.size_splits import split_evenly
from epochlog.store.sst.data_file import FileMissing
from epochlog.store.types.read_options import ReadOptions

from .options import Tasks
from .types import to_spark
from .worker_gc import freeze_loaded_objects

SMALLEST_SPLIT_BYTES, LARGEST_SPLIT_BYTES = 4 << 20, 128 << 20
"""Bytes in memory of the data read for a partition. The upper limit is that of Spark's own file readers."""
BATCH_ROWS = 1 << 16


@dataclass(frozen=True, slots=True)
class ReadPartition:
    """Read of one task: a plan, its read options, and the exact schema that Spark expects. Picklable."""

    files: Files
    plan: ScanPlan | LogPlan
    schema: pa.Schema
    options: ReadOptions  # the columns are the table's; the change columns are not among them
    mode: str = "epochs"
    pre_images: bool = False

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in Spark's types. Raises SnapshotExpired if vacuum has deleted a file of the plan."""
        freeze_loaded_objects()
        table_name = self.plan.table.name
        try:
            for batch in self._batches():
                yield from to_spark(table_name, batch, self.schema).to_batches(max_chunksize=BATCH_ROWS)
        except FileMissing as error:
            problem = f"table {table_name!r}: vacuum has deleted {error.path}, a file of this read"
            raise vacuumed(self.files, problem, "load the table again") from error

    def _batches(self) -> Iterator[pa.RecordBatch]:
        if isinstance(self.plan, ScanPlan):
            return self.plan.batches(self.files, self.options)
        return self.plan.batches(self.files, self.mode, pre_images=self.pre_images, options=self.options)


def cut(partition: ReadPartition, tasks: Tasks) -> list[ReadPartition]:
    """Cut a read by key range into partitions of similar numbers of bytes: one for each task that the session runs at a
    time, fewer if they would be small, more if they would be large or the user wants more. An empty plan gives none.
    Raises Corrupt.
    """
    table, spans = partition.plan.table, spans_of(partition.plan, partition.options)
    size = sum(span.bytes for span in spans)
    if not spans:
        return []
    worthwhile = min(tasks.parallelism, int(size // SMALLEST_SPLIT_BYTES))
    count = max(tasks.at_least, worthwhile, ceil(size / LARGEST_SPLIT_BYTES))
    columns = partition.options.column_names(table)
    ranges = split_evenly(partition.files, table, spans, columns, count, partition.options.key_range)
    return [
        replace(partition, plan=narrowed(partition.plan, keys), options=replace(partition.options, key_range=keys))
        for keys in ranges
    ]
