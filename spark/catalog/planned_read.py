"""Reads that the driver has planned: the function that tasks run, and their partitions, as Spark's Python source takes
them.

It is what a process of PySpark's would answer that is asked to plan the read; the driver has no need to start one.
"""

# ruff: noqa: N802  # Spark calls these methods by its own names

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.types import StructType

from epochlog.spark.partitions import ReadPartition

from .jvm import CONNECTOR, Jvm, Proxy

_SERIALIZER = CloudPickleSerializer()


@dataclass(frozen=True, slots=True)
class PlannedRead:
    """Read of a batch, as Spark passes it to its workers."""

    function: bytes
    """The function that tasks run, with the columns that it returns."""
    partitions: tuple[bytes, ...]

    @classmethod
    def of(cls, partitions: Sequence[ReadPartition], columns: StructType) -> PlannedRead:
        """Return the read of partitions with these columns."""
        return cls(_SERIALIZER.dumps((read_planned, columns)), tuple(map(_SERIALIZER.dumps, partitions)))

    def message(self) -> bytes:
        """Return the read as PySpark's planning process sends it to the JVM."""
        count = struct.pack(">i", len(self.partitions))
        return b"".join([_with_size(self.function), count, *map(_with_size, self.partitions)])


def _with_size(part: bytes) -> bytes:
    return struct.pack(">i", len(part)) + part


def read_planned(partitions: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of partitions, each the only value of a batch."""
    for batch in partitions:
        partition: ReadPartition = _SERIALIZER.loads(batch.column(0)[0].as_py())
        yield from partition.read()


def planned_batch(jvm: Jvm, columns: Any, read: PlannedRead) -> Any:
    """Return Spark's batch of a planned read. columns: Java's."""
    if jvm.receive_read is None:
        return PlannedBatch(jvm, columns, read)
    source = jvm.python_source()
    source.setReadInfo(jvm.receive_read(jvm.data_stream(jvm.byte_stream(read.message()))))
    table = source.getTable(columns, jvm.no_transforms, jvm.no_entries)
    return table.newScanBuilder(jvm.no_options).build().toBatch()


class PlannedBatch(Proxy):
    """Batch of a planned read in Spark 4.0, whose source takes no read that was planned elsewhere."""

    class Java:
        implements = (f"{CONNECTOR}read.Batch",)

    def __init__(self, jvm: Jvm, columns: Any, read: PlannedRead) -> None:
        super().__init__(jvm)
        self._columns = columns
        self._read = read

    def planInputPartitions(self) -> Any:
        kind = self.jvm.spark.execution.datasources.v2.python.PythonInputPartition
        parts = [kind(place, part) for place, part in enumerate(self._read.partitions)]
        return self.jvm.array(self.jvm.spark.connector.read.InputPartition, parts)

    def createReaderFactory(self) -> Any:
        factory = self.jvm.spark.execution.datasources.v2.python.PythonPartitionReaderFactory
        nothing = self.jvm.root.scala.Option.empty()
        return factory(self.jvm.python_source().source(), self._read.function, self._columns, nothing)
