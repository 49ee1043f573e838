"""Changes of a table, read from its log: `SELECT … FROM lake.orders CHANGES FROM VERSION a TO VERSION b`."""

# ruff: noqa: N802  # Spark calls these methods by its own names

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from epochlog.errors import InvalidInput
from epochlog.spark.options import location_options, refuse_catalog_options
from epochlog.spark.types import spark_schema
from epochlog.store.changelog.change_rows import CHANGE_FIELDS
from epochlog.store.session.handle import Handle
from epochlog.store.types.epoch import from_unix_ms

from .jvm import CONNECTOR, Jvm, Proxy, answer
from .query_epochs import LoadedTable

RANGE = ("startingVersion", "endingVersion")
"""Options of `spark.read.changes` that Spark itself turns into the versions of CHANGES."""


@dataclass(frozen=True, slots=True)
class ChangeRange:
    """Epochs of a change feed, both included. start: None for the oldest change that the log has."""

    start: int | None
    end: int


def read_range(context: Any, newest: int) -> ChangeRange:
    """Read Java's ChangelogContext. newest: the epoch at which the query reads the table, the end if it names none.

    Raises InvalidInput for a version that is no epoch.
    """
    bounds = context.range()
    kind = bounds.getClass().getSimpleName()
    if kind == "VersionRange":
        start, end = _epoch(bounds.startingVersion()), bounds.endingVersion()
        last = _epoch(end.get()) if end.isPresent() else newest
    elif kind == "TimestampRange":
        start, end = max(0, from_unix_ms(-(-bounds.startingTimestamp() // 1_000))), bounds.endingTimestamp()
        last = min(newest, from_unix_ms(end.get() // 1_000 + 1) - 1) if end.isPresent() else newest
    else:
        return ChangeRange(None, newest)
    first = start if bounds.startingBoundInclusive() else start + 1
    return ChangeRange(first, last if bounds.endingBoundInclusive() or not end.isPresent() else last - 1)


def _epoch(version: str) -> int:
    if not version.isdecimal():
        raise InvalidInput(
            f"CHANGES takes epochs, as _commit_version and `epochlog history` show them, not {version!r}"
        )
    return int(version)


class TableChanges(Proxy):
    """Change feed of a table in a range of epochs, with the rows before and after each update."""

    class Java:
        implements = (f"{CONNECTOR}catalog.Changelog",)

    def __init__(self, jvm: Jvm, handle: Handle, label: str, loaded: LoadedTable, context: Any) -> None:
        super().__init__(jvm)
        self._handle = handle
        self._label = label
        self._loaded = loaded
        self._range = read_range(context, loaded.epoch)
        modes = jvm.spark.connector.catalog.ChangelogContext.DeduplicationMode
        self._net = context.deduplicationMode().equals(modes.NET_CHANGES)
        table = loaded.definition.schema.at(self._range.end)
        fields = [*(field.with_nullable(True) for field in table.schema), *CHANGE_FIELDS]
        text = spark_schema(table.name, pa.schema(fields)).json()
        self._java_schema = jvm.spark.types.DataType.fromJson(text)

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
        key = self._loaded.definition.schema.at(self._range.end).primary_key
        kind = self.jvm.spark.connector.expressions
        return self.jvm.array(kind.NamedReference, [kind.Expressions.column(name) for name in key])

    def rowVersion(self) -> Any:
        return self.jvm.spark.connector.expressions.Expressions.column("_commit_version")

    @answer
    def newScanBuilder(self, options: Any) -> Any:
        refuse_catalog_options([str(name) for name in options.keySet().toArray()], self._label, RANGE)
        span = self._range
        read = {
            **location_options(self._handle),
            "table": self._loaded.definition.name,
            "readChangeFeed": "true",
            "startingVersion": "earliest" if span.start is None else str(span.start),
            "endingVersion": str(span.end),
            "preImages": "true",
            "changeMode": "net" if self._net else "epochs",
        }
        located = self.jvm.spark.util.CaseInsensitiveStringMap(self.jvm.map(read))
        return self.jvm.python_table(self._java_schema).newScanBuilder(located)
