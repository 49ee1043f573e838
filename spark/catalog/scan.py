"""Scans of a table at one epoch: pruned columns, filters, statistics, and partitions that the driver plans.

The read is Spark's own for a Python data source. The driver passes it the planned partitions and the function that
reads one, so Spark starts no process to ask the source for them.
"""

# ruff: noqa: N802  # Spark calls these methods by its own names

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow.compute as pc
from pyspark.sql.types import StructType

from epochlog.errors import InvalidInput
from epochlog.spark.batch_source import Load, cut_partitions, plan_with_lease
from epochlog.spark.micro_batch import QUERY_ID
from epochlog.spark.options import StoreLocation, Tasks, location_options
from epochlog.spark.parquet_files import OPTIONS, parquet_relation
from epochlog.spark.stream_source import batch_limits
from epochlog.spark.types import arrow_schema
from epochlog.spark.versions import from_arrow_kind, needs
from epochlog.store.changelog.change_rows import CHANGE_FIELDS
from epochlog.store.changelog.log_plan import LogPlan
from epochlog.store.changelog.plan_ranges import bytes_to_read
from epochlog.store.env.metrics import READS
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.metadata.lookups import get_table
from epochlog.store.scan.scan_plan import ScanPlan, plan_scan
from epochlog.store.session.handle import Handle
from epochlog.store.types.read_options import ReadOptions

from .condition import READ_VALUES, read_filter
from .jvm import CONNECTOR, Jvm, Proxy, answer
from .planned_query import PlannedQuery
from .planned_read import PlannedRead, planned_batch
from .query_epochs import LoadedTable, require_present_columns

SMALLEST_BYTES = 4 << 20
"""Bytes in memory of a read from which on Spark's reader saves more than its plan costs."""


class TableScanBuilder(Proxy):
    """Builder of a scan; Spark prunes its columns and pushes filters, which it evaluates again itself.

    query: the one that the scan is for, which it keeps.
    """

    class Java:
        implements = (
            f"{CONNECTOR}read.ScanBuilder",
            f"{CONNECTOR}read.SupportsPushDownRequiredColumns",
            f"{CONNECTOR}read.SupportsPushDownFilters",
        )

    def __init__(
        self,
        jvm: Jvm,
        handle: Handle,
        table: LoadedTable,
        java_schema: Any,
        stream_options: Mapping[str, str],
        query: PlannedQuery,
    ) -> None:
        super().__init__(jvm)
        self._handle = handle
        self._table = table
        self._java_schema = java_schema
        self._stream_options = stream_options
        self._query = query
        self._filters: Any = jvm.no_filters
        self._is_pruned = False

    def pushFilters(self, filters: Any) -> Any:
        """Keep Java's filters. Return those that Spark must evaluate itself, which are all of them."""
        self._filters = filters
        return filters

    def pushedFilters(self) -> Any:
        return self._filters

    def pruneColumns(self, required: Any) -> None:
        self._java_schema = self.jvm.readable(required, self._java_schema)
        self._is_pruned = True

    @answer
    def build(self) -> TableScan:
        if not self._is_pruned and reads_changes(self.jvm, self._handle, self._table.definition):
            for field in CHANGE_FIELDS:
                kind = self.jvm.spark.types.DataType.fromJson(from_arrow_kind(field.type).json())
                self._java_schema = self._java_schema.add(field.name, kind, field.nullable)
        return TableScan(
            self.jvm,
            self._handle,
            self._table,
            self._java_schema,
            self._stream_options,
            self._filters,
            self._query,
        )


def reads_changes(jvm: Jvm, handle: Handle, table: TableDef) -> bool:
    """Return True if the streaming query that this thread begins reads the change columns of a table.

    Spark before 4.2 does not name the columns of a stream to its scan. It takes the rows for the table's columns and,
    if the query names a metadata column, all metadata columns behind them.
    """
    inner: Any = jvm.session
    query_id = jvm.context.getLocalProperty(QUERY_ID)
    if query_id is None:
        return False
    queries = inner._jsparkSession.sharedState().activeStreamingQueries()
    query = queries.get(jvm.java.util.UUID.fromString(query_id))
    leaves = None if query is None else query.analyzedPlan().collectLeaves().iterator()
    asked = set[bool]()
    while leaves is not None and leaves.hasNext():
        leaf = leaves.next()
        is_stream = leaf.getClass().getSimpleName() == "StreamingRelationV2"
        if is_stream and str(leaf.table()).startswith(f"table {handle.store_id}/{table.id} at "):
            output = str(leaf.output().mkString(" "))
            asked.add(any(f"{field.name}#" in output for field in CHANGE_FIELDS))
    if len(asked) > 1:
        raise needs(f"a query of two streams of table {table.name}, one without its change columns,", "4.2")
    return True in asked


class PlannedScan(Proxy):
    """Scan of a table of the catalog. Its files are planned, and held, when Spark asks for the batch.

    query: the one that the scan is for. Spark asks for batches when it has built all scans of the query.
    """

    def __init__(self, jvm: Jvm, handle: Handle, table: TableDef, java_schema: Any, query: PlannedQuery) -> None:
        super().__init__(jvm)
        self._handle = handle
        self._definition = table
        self._java_schema = java_schema
        self._query = query
        self._spark_schema = StructType.fromJson(json.loads(java_schema.json()))
        self._schema = arrow_schema(self._spark_schema)
        self._batch: Any = None

    def readSchema(self) -> Any:
        return self._java_schema

    @answer
    def toBatch(self) -> Any:
        """Return Spark's batch over the planned partitions; Spark asks once for each copy of the scan's plan.

        Equal scans of a query have one batch, by which Spark sees that it can reuse what it has shuffled or broadcast.
        """
        first = self._query.first_of(self)
        if first is not self:
            return first.toBatch()
        if self._batch is None:
            load = self._load()
            plan = plan_with_lease(self._handle, load)
            self._handle.recorder.add(READS, "spark")
            self._batch = self._of_parquet(plan)
            if self._batch is None:
                filtered = replace(load, filter=self._filter())
                partitions = cut_partitions(self._handle, filtered, plan, self._schema)
                self._batch = planned_batch(self.jvm, self._java_schema, PlannedRead.of(partitions, self._spark_schema))
        return self._batch

    def _of_parquet(self, plan: ScanPlan | LogPlan) -> Any:
        """Return Spark's batch over the Parquet files of the plan; None for one that Spark cannot read alone."""
        return None

    def _load(self) -> Load:
        """Return the load of the batch, without its filter."""
        raise NotImplementedError

    def _filter(self) -> pc.Expression | None:
        """Return the filter that prunes the planned partitions. It may ask the JVM much, so only they ask for it."""
        return None

    def _load_of(
        self,
        columns: Sequence[str],
        epoch: int,
        *,
        feed: bool = False,
        start: str | int | None = None,
        mode: str = "",
    ) -> Load:
        """Return the load of columns at an epoch; with `feed` that of their changes, with pre-images."""
        return Load(
            location=StoreLocation(self._handle.root, self._handle.catalog_url, self._definition.name),
            table_id=self._definition.id,
            table=self._definition.schema,
            columns=tuple(columns),
            epoch=epoch,
            feed=feed,
            start=start,
            mode=mode or "epochs",
            pre_images=feed,
            filter=None,
            tasks=Tasks(self.jvm.context.defaultParallelism()),
        )

    def _stream(self, options: Mapping[str, str], checkpoint: str) -> Any:
        """Return Spark's stream of the source of `format("epochlog")`."""
        located = {
            **location_options(self._handle),
            "table": self._definition.name,
            **options,
            "readChangeFeed": "true",
        }
        java_options = self.jvm.spark.util.CaseInsensitiveStringMap(self.jvm.map(located))
        table = self.jvm.python_table(self._java_schema)
        return table.newScanBuilder(java_options).build().toMicroBatchStream(checkpoint)

    def toContinuousStream(self, checkpoint: str) -> Any:
        table = self.jvm.python_table(self._java_schema)
        return table.newScanBuilder(self.jvm.no_options).build().toContinuousStream(checkpoint)

    def supportedCustomMetrics(self) -> Any:
        return self.jvm.scan_answers.custom_metrics

    def reportDriverMetrics(self) -> Any:
        return self.jvm.scan_answers.driver_metrics

    def columnarSupportMode(self) -> Any:
        return self.jvm.scan_answers.columnar_mode


class TableScan(PlannedScan):
    """Scan of some columns of a table at one epoch. filters: Java's, which prune the read; Spark evaluates them."""

    class Java:
        implements = (f"{CONNECTOR}read.Scan", f"{CONNECTOR}read.SupportsReportStatistics")

    def __init__(
        self,
        jvm: Jvm,
        handle: Handle,
        table: LoadedTable,
        java_schema: Any,
        stream_options: Mapping[str, str],
        filters: Any,
        query: PlannedQuery,
    ) -> None:
        super().__init__(jvm, handle, table.definition, java_schema, query)
        self._table = table
        self._stream_options = stream_options
        self._filters = filters
        self._filters_number = query.number_of(filters)
        self._statistics: TableStatistics | None = None
        self._is_parquet = self._is_stream = False

    def identity(self) -> str:
        table = self._table
        columns, options = ", ".join(self._schema.names), dict(self._stream_options)
        version = table.definition.schema.version
        return (
            f"scan of {self._handle.store_id}/{table.definition.id} at {table.epoch}, {version} [{columns}] {options} "
            f"filters {self._filters_number}"
        )

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
            definition, epoch = self._table.definition, self._table.rows_at

            def plan(view: Any) -> ScanPlan:
                current = get_table(view, definition.id, definition.name)
                return plan_scan(view, current, epoch, definition.schema.with_lineage(current.schema.lineage))

            known = set(definition.schema.schema.names)
            columns = [name for name in self._schema.names if name in known]
            self._statistics = TableStatistics(self.jvm, self._handle.catalog.read(plan), columns)
        return self._statistics

    @answer
    def columnarSupportMode(self) -> Any:
        """Return the mode of the batch: Spark asks for it when it has built all scans of the query."""
        if self._is_stream:
            return super().columnarSupportMode()
        first = self._query.first_of(self)
        first.toBatch()
        return self.jvm.columnar_by_partition if first._is_parquet else super().columnarSupportMode()

    def _of_parquet(self, plan: ScanPlan | LogPlan) -> Any:
        assert isinstance(plan, ScanPlan)
        if bytes_to_read(plan, ReadOptions(self._schema.names)) < SMALLEST_BYTES:
            return None
        relation = parquet_relation(self.jvm.query_session, self._handle.files, plan, self._spark_schema)
        if relation is None:
            return None
        self._is_parquet = True
        return self.jvm.parquet_batch(relation, OPTIONS, self._filters)

    def _load(self) -> Load:
        self._refuse_of_streams()
        return self._load_of(self._schema.names, self._table.rows_at)

    def _filter(self) -> pc.Expression | None:
        predicates = [each.toV2() for each in self._filters]
        return read_filter(self._table.definition.schema.schema, predicates, READ_VALUES)

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
        if self._table.moment is not None:
            raise InvalidInput(
                f"table {self._table.definition.name}: a stream reads changes, not one moment; leave out "
                "VERSION, TIMESTAMP and the tag, and set startingVersion"
            )
        if self._table.fixed:
            raise InvalidInput(
                f"table {self._table.definition.name}: a stream reads changes, and this catalog shows one moment "
                "of the past: stream through a catalog without it, el.catalog(spark, store, name=…), and set "
                "startingVersion"
            )
        require_present_columns(self._handle, self._table.definition)
        batch_limits(self._stream_options)
        self._is_stream = True
        return self._stream(self._stream_options, checkpoint)


class TableStatistics(Proxy):
    """Sizes of a scan, from the catalog: an upper bound of its rows, and the bytes in memory of its columns."""

    class Java:
        implements = (f"{CONNECTOR}read.Statistics",)

    def __init__(self, jvm: Jvm, plan: ScanPlan, columns: Sequence[str]) -> None:
        super().__init__(jvm)
        self._rows = plan.rows_at_most
        self._bytes = jvm.optional_long(round(bytes_to_read(plan, ReadOptions(tuple(columns)))))

    def sizeInBytes(self) -> Any:
        return self._bytes

    def numRows(self) -> Any:
        return self.jvm.optional_long(self._rows)

    def columnStats(self) -> Any:
        return self.jvm.no_entries
