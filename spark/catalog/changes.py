"""Changes of a table, read from its log: `SELECT … FROM lake.orders CHANGES FROM VERSION a TO VERSION b`."""

# ruff: noqa: N802  # Spark calls these methods by its own names

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from epochlog.errors import InvalidInput
from epochlog.spark.batch_source import Load
from epochlog.spark.column_names import quoted
from epochlog.spark.options import refuse_catalog_options
from epochlog.spark.types import spark_schema
from epochlog.store.changelog.change_rows import CHANGE_FIELDS
from epochlog.store.env.whole_number import whole_number
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.session.handle import Handle
from epochlog.store.types.epoch import MAX_EPOCH, from_unix_ms

from .jvm import CONNECTOR, Jvm, Proxy, answer, option_names
from .planned_query import PlannedQuery
from .query_epochs import LoadedTable, require_present_columns
from .scan import PlannedScan

RANGE = ("startingVersion", "endingVersion")
"""Options of `spark.read.changes` that Spark itself turns into the versions of CHANGES."""


@dataclass(frozen=True, slots=True)
class ChangeRange:
    """Epochs of a change feed, both included."""

    start: int | None = None
    """First epoch; None for the oldest change that the log has."""
    end: int | None = None
    """None for the epoch at which the query reads the table; `at_most` for that epoch, or an earlier end."""
    at_most: int | None = None
    by_time: bool = False
    """True for a range of times, whose start may lie after all commits."""

    def start_at(self, end: int) -> int | None:
        """Return the first epoch to read, if the last is `end`: the one after it for times that are still to come."""
        if self.start is None or not self.by_time:
            return self.start
        inverted = self.at_most is not None and self.start > self.at_most + 1  # as the query has it: an error
        return self.start if inverted else min(self.start, end + 1)

    def end_at(self, newest: Callable[[], int]) -> int:
        """Return the last epoch to read. newest: returns the epoch at which the query reads the table."""
        if self.end is not None:
            return self.end
        return newest() if self.at_most is None else min(newest(), self.at_most)


def read_range(context: Any) -> ChangeRange:
    """Read Java's ChangelogContext. Raises InvalidInput for a version that is no epoch."""
    bounds = context.range()
    kind = bounds.getClass().getSimpleName()
    if kind == "VersionRange":
        start, end = _epoch(bounds.startingVersion()), bounds.endingVersion()
        first = start if bounds.startingBoundInclusive() else start + 1
        if not end.isPresent():
            return ChangeRange(first)
        return ChangeRange(first, _epoch(end.get()) - (0 if bounds.endingBoundInclusive() else 1))
    if kind != "TimestampRange":
        return ChangeRange()
    start = _epochs_at(bounds.startingTimestamp())
    first = _in_range(start.start if bounds.startingBoundInclusive() else start.stop)
    end = bounds.endingTimestamp()
    if not end.isPresent():
        return ChangeRange(first, by_time=True)
    last = _epochs_at(end.get())
    at_most = _in_range((last.stop if bounds.endingBoundInclusive() else last.start) - 1)
    return ChangeRange(first, at_most=at_most, by_time=True)


def _in_range(epoch: int) -> int:
    """Return the nearest epoch that there can be: times before 2025 have none, nor have those of a far future."""
    return min(max(0, epoch), MAX_EPOCH)


def _epochs_at(unix_us: int) -> range:
    """Return the epochs of a time: those of its millisecond, and none between two milliseconds."""
    return range(from_unix_ms(-(-unix_us // 1_000)), from_unix_ms(unix_us // 1_000 + 1))


def _at_end(loaded: LoadedTable, span: ChangeRange) -> TableDef:
    """Return the table with the columns of the end of the range, as far as the analysis of the query knows it."""
    end = span.end_at(lambda: loaded.rows_at)
    return replace(loaded.definition, schema=loaded.definition.schema.at(end))


def _epoch(version: str) -> int:
    epoch = whole_number(version)
    if epoch is None:
        raise InvalidInput(
            f"CHANGES takes epochs, as _commit_version and `epochlog history` show them, not {version!r}"
        )
    return epoch


class TableChanges(Proxy):
    """Change feed of a table in a range of epochs, with the rows before and after each update.

    scanning: called when Spark builds a scan of it; returns the query of the scan.
    """

    class Java:
        implements = (f"{CONNECTOR}catalog.Changelog",)

    def __init__(
        self,
        jvm: Jvm,
        handle: Handle,
        label: str,
        loaded: LoadedTable,
        context: Any,
        scanning: Callable[[], PlannedQuery],
    ) -> None:
        super().__init__(jvm)
        self._handle = handle
        self._label = label
        self._changed = loaded.changed
        self._scanning = scanning
        self._range = read_range(context)
        self._table = table = _at_end(loaded, self._range)
        modes = jvm.spark.connector.catalog.ChangelogContext.DeduplicationMode
        self._net = context.deduplicationMode().equals(modes.NET_CHANGES)
        fields = [*(field.with_nullable(True) for field in table.schema.schema), *CHANGE_FIELDS]
        text = spark_schema(table.name, pa.schema(fields)).json()
        self._java_schema = jvm.spark.types.DataType.fromJson(text)

    def identity(self) -> str:
        """Return the identity of the changes as the frame was analysed: later commits make others."""
        source = f"{self._handle.store_id}/{self._table.id} at {self._changed}, columns of {self._table.schema.version}"
        return f"changes of {source}: {self._range}, net={self._net}"

    def name(self) -> str:
        return f"{self._label} CHANGES"

    def columns(self) -> Any:
        return self.jvm.python_table(self._java_schema).columns()

    def containsCarryoverRows(self) -> bool:
        return False

    def containsIntermediateChanges(self) -> bool:
        return not self._net

    def representsUpdateAsDeleteAndInsert(self) -> bool:
        return False

    def rowId(self) -> Any:
        key = self._table.schema.primary_key
        kind = self.jvm.spark.connector.expressions
        return self.jvm.array(kind.NamedReference, [kind.Expressions.column(quoted(name)) for name in key])

    def rowVersion(self) -> Any:
        return self.jvm.spark.connector.expressions.Expressions.column("_commit_version")

    @answer
    def newScanBuilder(self, options: Any) -> ChangesScan:
        refuse_catalog_options(option_names(options), self._label, RANGE)
        query = self._scanning()
        return ChangesScan(self.jvm, self._handle, self._table, self._java_schema, query, self._range, self._net)


class ChangesScan(PlannedScan):
    """Scan of the changes of a table, and its builder. Their end is chosen when Spark asks for the batch."""

    class Java:
        implements = (f"{CONNECTOR}read.ScanBuilder", f"{CONNECTOR}read.Scan")

    def __init__(
        self,
        jvm: Jvm,
        handle: Handle,
        table: TableDef,
        java_schema: Any,
        query: PlannedQuery,
        span: ChangeRange,
        net: bool,
    ) -> None:
        super().__init__(jvm, handle, table, java_schema, query)
        self._range = span
        self._net = net

    def identity(self) -> str:
        return f"changes of {self._definition.id}: {self._range}, net={self._net}, for query {id(self._query)}"

    def build(self) -> ChangesScan:
        return self

    def description(self) -> str:
        return f"epochlog changes of {self._definition.name}"

    def _load(self) -> Load:
        columns, epoch = self._definition.schema.schema.names, self._range.end_at(self._newest)
        mode = "net" if self._net else "epochs"
        return self._load_of(columns, epoch, feed=True, start=self._start(epoch), mode=mode)

    def _newest(self) -> int:
        return self._query.newest().epoch_of(self._definition)

    def _start(self, end: int = MAX_EPOCH) -> str | int:
        start = self._range.start_at(end)
        return "earliest" if start is None else start

    @answer
    def toMicroBatchStream(self, checkpoint: str) -> Any:
        require_present_columns(self._handle, self._definition)
        return self._stream({"startingVersion": str(self._start()), "preImages": "true"}, checkpoint)
