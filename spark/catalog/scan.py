"""Scans of a table at one epoch: pruned columns, statistics, and partitions that the driver plans.

The read is Spark's own for a Python data source. The driver passes it the planned partitions and the function that
reads one, so Spark starts no process to ask the source for them.
"""

# ruff: noqa: N802  # Spark calls these methods by its own names

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from epochlog.errors import InvalidInput
from epochlog.spark.batch_source import Load, plan_partitions
from epochlog.spark.options import StoreLocation, Tasks, location_options
from epochlog.spark.stream_source import PiecePartition
from epochlog.spark.types import arrow_schema
from epochlog.store.changelog.change_rows import CHANGE_FIELDS
from epochlog.store.changelog.plan_ranges import bytes_to_read
from epochlog.store.metadata.lookups import get_table
from epochlog.store.scan.scan_plan import ScanPlan, plan_scan
from epochlog.store.session.handle import Handle
from epochlog.store.types.read_options import ReadOptions

from .jvm import CONNECTOR, Jvm, Proxy, answer
from .query_epochs import LoadedTable, require_present_columns

FORMAT = "epochlog"


class TableScanBuilder(Proxy):
    """Builder of a scan; Spark prunes its columns."""

    class Java:
        implements = (f"{CONNECTOR}read.ScanBuilder", f"{CONNECTOR}read.SupportsPushDownRequiredColumns")

    def __init__(
        self, jvm: Jvm, handle: Handle, table: LoadedTable, java_schema: Any, stream_options: Mapping[str, str]
    ) -> None:
        super().__init__(jvm)
        self._handle = handle
        self._table = table
        self._java_schema = java_schema
        self._stream_options = stream_options

    def pruneColumns(self, required: Any) -> None:
        self._java_schema = required

    @answer
    def build(self) -> TableScan:
        return TableScan(self.jvm, self._handle, self._table, self._java_schema, self._stream_options)


class TableScan(Proxy):
    """Scan of some columns of a table at one epoch. Its files are planned, and held, when Spark asks for the batch."""

    class Java:
        implements = (f"{CONNECTOR}read.Scan", f"{CONNECTOR}read.SupportsReportStatistics")

    def __init__(
        self, jvm: Jvm, handle: Handle, table: LoadedTable, java_schema: Any, stream_options: Mapping[str, str]
    ) -> None:
        super().__init__(jvm)
        self._handle = handle
        self._table = table
        self._java_schema = java_schema
        self._stream_options = stream_options
        self._schema = arrow_schema(StructType.fromJson(json.loads(java_schema.json())))
        self._statistics: TableStatistics | None = None
        self._inner: Any = None
        self._batch: Any = None

    def readSchema(self) -> Any:
        return self._java_schema

    def description(self) -> str:
        table = self._table
        return f"epochlog {table.definition.name} at epoch {table.epoch} [{', '.join(self._schema.names)}]"

    def estimateStatistics(self) -> TableStatistics:
        return self._estimated()

    def estimateSizeInBytes(self) -> Any:
        return self._estimated().sizeInBytes()

    def reflectsFullyPushedDownFilters(self) -> bool:
        return False

    @answer
    def _estimated(self) -> TableStatistics:
        if self._statistics is None:
            definition, epoch = self._table.definition, self._table.epoch

            def plan(view: Any) -> ScanPlan:
                current = get_table(view, definition.id, definition.name)
                return plan_scan(view, current, epoch, definition.schema.with_lineage(current.schema.lineage))

            self._statistics = TableStatistics(self.jvm, self._handle.catalog.read(plan), self._schema.names)
        return self._statistics

    @answer
    def toBatch(self) -> Any:
        """Return Spark's batch over the planned partitions; Spark asks once for each copy of the scan's plan."""
        if self._batch is None:
            self._refuse_of_streams()
            self._batch = self._plan_batch()
        return self._batch

    def _plan_batch(self) -> Any:
        load = Load(
            location=StoreLocation(self._handle.root, self._handle.catalog_url, self._table.definition.name),
            table_id=self._table.definition.id,
            table=self._table.definition.schema,
            columns=tuple(self._schema.names),
            epoch=self._table.epoch,
            feed=False,
            start=None,
            mode="epochs",
            pre_images=False,
            filter_text=None,
            tasks=Tasks(self.jvm.context.defaultParallelism()),
        )
        return self._python_scan(encode_read(plan_partitions(self._handle, load, self._schema), self._schema)).toBatch()

    def _refuse_of_streams(self) -> None:
        """Raise InvalidInput for a batch with an option or a column of streams."""
        table, names = self._table.definition, [field.name for field in CHANGE_FIELDS]
        columns = [name for name in self._schema.names if name in names]
        if columns or self._stream_options:
            raise InvalidInput(
                f"table {table.name}: {(*columns, *self._stream_options)[0]} is of streams; read the changes by "
                "spark.readStream.table(…), or with format('epochlog') and .option('readChangeFeed', 'true')"
            )

    @answer
    def toMicroBatchStream(self, checkpoint: str) -> Any:
        """Return Spark's stream of the source of `format("epochlog")`, with the columns of the query."""
        if self._table.fixed:
            raise InvalidInput(
                f"table {self._table.definition.name}: a stream reads changes, not one moment; leave out "
                "VERSION, TIMESTAMP and the tag, and set startingVersion"
            )
        require_present_columns(self._handle, self._table.definition)
        options = {**location_options(self._handle), "table": self._table.definition.name, **self._stream_options}
        located = self.jvm.spark.util.CaseInsensitiveStringMap(self.jvm.map({**options, "readChangeFeed": "true"}))
        return self.jvm.python_table(self._java_schema).newScanBuilder(located).build().toMicroBatchStream(checkpoint)

    def toContinuousStream(self, checkpoint: str) -> Any:
        return self._python_scan().toContinuousStream(checkpoint)

    def supportedCustomMetrics(self) -> Any:
        return self._python_scan().supportedCustomMetrics()

    def reportDriverMetrics(self) -> Any:
        return self._python_scan().reportDriverMetrics()

    def columnarSupportMode(self) -> Any:
        return self._python_scan().columnarSupportMode()

    def _python_scan(self, read: bytes | None = None) -> Any:
        """Return Spark's scan of a Python source; `read` gives it the planned read (see `encode_read`)."""
        if self._inner is None or read is not None:
            table = self.jvm.python_table(self._java_schema, read)
            self._inner = table.newScanBuilder(self.jvm.no_options).build()
        return self._inner


class TableStatistics(Proxy):
    """Sizes of a scan, from the catalog: an upper bound of its rows, and the bytes in memory of its columns."""

    class Java:
        implements = (f"{CONNECTOR}read.Statistics",)

    def __init__(self, jvm: Jvm, plan: ScanPlan, columns: Sequence[str]) -> None:
        super().__init__(jvm)
        self._rows = plan.rows_at_most
        self._bytes = round(bytes_to_read(plan, ReadOptions(tuple(columns))))

    def sizeInBytes(self) -> Any:
        return self.jvm.optional_long(self._bytes)

    def numRows(self) -> Any:
        return self.jvm.optional_long(self._rows)

    def columnStats(self) -> Any:
        return self.jvm.no_entries


# ---- the read --------------------------------------------------------------------------------------------------------


class PlannedReader(DataSourceReader):
    """Reader whose partitions are planned. The function that tasks run has the class only, and no partition."""

    def __init__(self, partitions: Sequence[InputPartition]) -> None:
        self._partitions = partitions

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def partitions(self) -> Sequence[InputPartition]:
        return self._partitions

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, PiecePartition)
        return partition.read_partition.read()


class PlannedSource(DataSource):
    """Source that a planned read names in its errors."""

    @classmethod
    def name(cls) -> str:
        return FORMAT


def encode_read(partitions: Sequence[InputPartition], schema: pa.Schema) -> bytes:
    """Return the message with which PySpark's planning process would answer: the read function and the partitions."""
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.worker.plan_data_source_read import write_read_func_and_partitions

    message = io.BytesIO()
    write_read_func_and_partitions(
        message,
        reader=PlannedReader(list(partitions)),
        data_source=PlannedSource({}),
        schema=from_arrow_schema(schema),
        max_arrow_batch_size=1,  # of rows as tuples, which no read of a table returns
        binary_as_bytes=True,
    )
    return message.getvalue()
