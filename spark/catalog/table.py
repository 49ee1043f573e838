"""Tables of a catalog, as Spark sees them: columns, version (the epoch), scans, and writes by the source's sink."""

# ruff: noqa: N802  # Spark calls these methods by its own names

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.types import ArrayType, MapType, StructField, StructType

from epochlog.errors import NotWritable
from epochlog.spark.delete_where import commit_delete
from epochlog.spark.options import STREAM, WRITE, location_options, refuse_catalog_options, show_names
from epochlog.spark.overwrite import commit_overwrite
from epochlog.spark.types import spark_schema
from epochlog.spark.versions import from_arrow_kind, java_member
from epochlog.store.changelog.change_rows import CHANGE_FIELDS
from epochlog.store.commit.change import TableChange
from epochlog.store.commit.root_commit import refuse_unwritable
from epochlog.store.metadata.lookups import get_version
from epochlog.store.session.handle import Handle
from epochlog.store.types.epoch import show_epoch
from epochlog.store.types.schema import TableSchema

from .advice import no_partitions, no_replace
from .condition import read_condition, require_expressions
from .jvm import CONNECTOR, Jvm, Proxy, answer, option_names, thrown_by_java
from .planned_query import PlannedQuery
from .query_epochs import LoadedTable
from .scan import TableScanBuilder

TRAVEL = ("versionAsOf", "timestampAsOf")
"""Options of a read that Spark itself turns into VERSION AS OF and TIMESTAMP AS OF."""
OF_STREAMS = ("startingVersion", "preImages", *STREAM)
"""Options of `spark.readStream.table`."""
WRITE_OF_CATALOG = tuple(name for name in WRITE if name != "mergeSchema")
"""Options of a write by the catalog. Spark itself compares the columns, so `mergeSchema` would have no effect."""
_STREAM_NAMES = {name.lower(): name for name in OF_STREAMS}


@dataclass(frozen=True, slots=True)
class JavaShape:
    """Java objects that depend on a table's schema alone."""

    schema: Any
    columns: Any
    compared: Any
    """Columns by which Spark compares the table with that of an earlier analysis; it refuses names that differ by case
    alone, also where a query names neither of them.
    """


class JavaShapes:
    """Java's schemas and columns of tables, made once for each schema of a table."""

    def __init__(self, jvm: Jvm) -> None:
        self._jvm = jvm
        self._shapes: dict[int, tuple[TableSchema, JavaShape]] = {}
        self.no_transforms = jvm.no_transforms
        constraint = java_member(jvm.spark.connector.catalog, "constraints.Constraint")  # from Spark 4.1 on
        self.no_constraints = None if constraint is None else jvm.gateway.new_array(constraint, 0)
        self.capabilities = jvm.java.util.HashSet()
        kinds = jvm.spark.connector.catalog.TableCapability
        of_streams = (kinds.MICRO_BATCH_READ, kinds.STREAMING_WRITE)
        refused = (kinds.OVERWRITE_BY_FILTER, kinds.OVERWRITE_DYNAMIC)  # by the builder, which says what to write
        for kind in (kinds.BATCH_READ, kinds.BATCH_WRITE, kinds.TRUNCATE, *of_streams, *refused):
            self.capabilities.add(kind)
        self.change_columns = jvm.gateway.new_array(jvm.spark.connector.catalog.MetadataColumn, len(CHANGE_FIELDS))
        for place, field in enumerate(CHANGE_FIELDS):
            jvm.java.lang.reflect.Array.set(self.change_columns, place, ChangeColumn(jvm, field))

    def shape(self, table_id: int, schema: TableSchema) -> JavaShape:
        known = self._shapes.get(table_id)
        if known is not None and known[0] == schema:
            return known[1]
        columns = spark_schema(schema.name, schema.schema, schema.primary_key)
        java_schema, java_columns = self._java(columns)
        apart = told_apart(columns)
        shape = JavaShape(java_schema, java_columns, java_columns if apart is columns else self._java(apart)[1])
        self._shapes[table_id] = (schema, shape)
        return shape

    def _java(self, columns: StructType) -> tuple[Any, Any]:
        java_schema = self._jvm.spark.types.DataType.fromJson(columns.json())
        return java_schema, self._jvm.python_table(java_schema).columns()


def told_apart(kind: StructType) -> StructType:
    """Return the columns with names that no case joins, at any depth: the first of several names that differ by case
    alone stays. Return `kind` itself if there are none.
    """
    apart = _told_apart(kind)
    return kind if apart == kind else apart


def _told_apart(kind: Any) -> Any:
    if isinstance(kind, StructType):
        fields, taken = list[StructField](), set[str]()
        for field in kind:
            name = f"{field.name} {field.name.encode().hex()}" if field.name.lower() in taken else field.name
            taken.add(field.name.lower())
            fields.append(StructField(name, _told_apart(field.dataType), field.nullable, field.metadata))
        return StructType(fields)
    if isinstance(kind, ArrayType):
        return ArrayType(_told_apart(kind.elementType), kind.containsNull)
    if isinstance(kind, MapType):
        return MapType(_told_apart(kind.keyType), _told_apart(kind.valueType), kind.valueContainsNull)
    return kind


class ChangeColumn(Proxy):
    """Column that a stream of a table has beside the table's own, if the query names it."""

    class Java:
        implements = (f"{CONNECTOR}catalog.MetadataColumn",)

    def __init__(self, jvm: Jvm, field: pa.Field) -> None:
        super().__init__(jvm)
        self._field = field
        self._type = jvm.spark.types.DataType.fromJson(from_arrow_kind(field.type).json())

    def name(self) -> str:
        return self._field.name

    def dataType(self) -> Any:
        return self._type

    def isNullable(self) -> bool:
        return self._field.nullable

    def comment(self) -> None:
        return None

    def transform(self) -> None:
        return None

    def metadataInJSON(self) -> None:
        return None


class TableWriteBuilder(Proxy):
    """Builder of a write by the sink of `format("epochlog")`. A stream in update mode upserts, too. It refuses to
    overwrite some of the rows.
    """

    class Java:
        implements = (
            f"{CONNECTOR}write.SupportsOverwriteV2",
            f"{CONNECTOR}write.SupportsDynamicOverwrite",
            "org.apache.spark.sql.internal.connector.SupportsStreamingUpdateAsAppend",
        )

    def __init__(self, jvm: Jvm, inner: Any, label: str, name: str) -> None:
        super().__init__(jvm)
        self._inner = inner
        self._label = label
        self._name = name

    def build(self) -> Any:
        return self._inner.build()

    def truncate(self) -> Any:
        return self._inner.truncate()

    @answer
    def canOverwrite(self, predicates: Any) -> NoReturn:
        raise no_replace(self._label, self._name)

    @answer
    def overwrite(self, predicates: Any) -> NoReturn:
        raise no_replace(self._label, self._name)

    @answer
    def overwriteDynamicPartitions(self) -> NoReturn:
        raise no_partitions(self._label)


class CatalogTable(Proxy):
    """Table at one epoch. scanning: called when Spark builds a scan of it; returns the query of the scan. past: the
    reason for which the table does not change; None for one that does.
    """

    class Java:
        implements = (
            f"{CONNECTOR}catalog.SupportsRead",
            f"{CONNECTOR}catalog.SupportsWrite",
            f"{CONNECTOR}catalog.SupportsDeleteV2",
            f"{CONNECTOR}catalog.SupportsMetadataColumns",
        )

    def __init__(
        self,
        jvm: Jvm,
        handle: Handle,
        label: str,
        loaded: LoadedTable,
        shapes: JavaShapes,
        scanning: Callable[[], PlannedQuery],
        past: str | None = None,
    ) -> None:
        super().__init__(jvm)
        self._handle = handle
        self._label = label
        self._loaded = loaded
        self._shapes = shapes
        self._scanning = scanning
        self._past = past

    def identity(self) -> str:
        return f"table {self.id()} at {self._loaded.changed}, columns of {self._loaded.definition.schema.version}"

    def name(self) -> str:
        return self._label

    def id(self) -> str:
        return f"{self._handle.store_id}/{self._loaded.definition.id}"

    def version(self) -> str | None:
        """Return the epoch of the table's last change: commits of other tables do not make it another one.

        A definition has none, so Spark does not load it again to read it.
        """
        return None if self._loaded.epoch is None else str(self._loaded.changed)

    @answer
    def columns(self) -> Any:
        shape = self._shape()
        if shape.compared is shape.columns or not self.jvm.is_called_by("V2TableUtil"):
            return shape.columns
        return shape.compared

    @answer
    def schema(self) -> Any:
        return self._shape().schema

    def partitioning(self) -> Any:
        return self._shapes.no_transforms

    def constraints(self) -> Any:
        return self._shapes.no_constraints

    def properties(self) -> Any:
        """Return Java's map of properties. Those of SHOW CREATE TABLE are those that CREATE TABLE takes."""
        definition = self._loaded.definition
        shown = {"primary_key": show_names(definition.schema.primary_key)}
        if definition.schema.sequence_by is not None:
            shown["sequence_by"] = definition.schema.sequence_by
        if definition.changelog != "upsert":
            shown["changelog"] = definition.changelog
        if self._loaded.epoch is not None and not self.jvm.is_called_by("ShowCreateTable"):
            shown["epoch"] = str(self._loaded.epoch)
        return self.jvm.map(shown)

    def capabilities(self) -> Any:
        return self._shapes.capabilities

    def metadataColumns(self) -> Any:
        return self._shapes.change_columns

    def canRenameConflictingMetadataColumns(self) -> bool:
        return False

    @answer
    def newScanBuilder(self, options: Any) -> TableScanBuilder:
        query = self._scanning()
        loaded = query.take(self._loaded)
        names = option_names(options)
        refuse_catalog_options(names, self._label, (*TRAVEL, *OF_STREAMS))
        of_streams = {
            _STREAM_NAMES[name.lower()]: str(options.get(name)) for name in names if name.lower() in _STREAM_NAMES
        }
        return TableScanBuilder(self.jvm, self._handle, loaded, self._shape().schema, of_streams, query)

    @answer
    def newWriteBuilder(self, info: Any) -> Any:
        """Return the builder of a write by the sink of `format("epochlog")`, which upserts, or overwrites."""
        self._refuse_past()
        self._refuse_stale_rows()
        refuse_catalog_options(option_names(info.options()), self._label, WRITE_OF_CATALOG)
        options = self.jvm.map({})
        options.putAll(info.options().asCaseSensitiveMap())
        definition = self._loaded.definition
        own = {"table": definition.name, "schemaVersion": str(definition.schema.version)}
        options.putAll(self.jvm.map({**location_options(self._handle), **own}))
        nothing = self.jvm.java.util.Optional.empty()
        located = self.jvm.spark.connector.write.LogicalWriteInfoImpl(
            info.queryId(), info.schema(), self.jvm.spark.util.CaseInsensitiveStringMap(options), nothing, nothing
        )
        inner = self.jvm.python_table(self._shape().schema).newWriteBuilder(located)
        return TableWriteBuilder(self.jvm, inner, self._label, definition.name)

    @answer
    def canDeleteWhere(self, predicates: Any, *options: Any) -> bool:
        """Return True, or raise for a predicate that cannot be evaluated."""
        require_expressions(self.jvm, self._label, self._loaded.definition.schema, _selective(predicates))
        return True

    @answer
    def deleteWhere(self, predicates: Any, *options: Any) -> None:
        """Delete the rows for which all of Java's predicates are true, in one commit."""
        selective = _selective(predicates)
        if not selective:
            self.truncateTable()
            return
        condition = read_condition(self.jvm, self._label, self._loaded.definition.schema, selective)
        try:
            commit_delete(self._handle, self.jvm.query_session, self._loaded.definition, condition)
        except PySparkException as error:
            raise thrown_by_java(error) from error

    def _refuse_stale_rows(self) -> None:
        """Raise NotWritable for a query that reads this table before its newest commit: what it writes, made of older
        rows, would take the place of newer ones. A version that the query names is meant.
        """
        definition = self._loaded.definition
        epoch = self._scanning().read_at(definition.id)
        if epoch is None:
            return
        newest = self._handle.catalog.read(
            lambda view: get_version(view, definition.id, definition.name).max_committed_epoch
        )
        if epoch < newest:
            raise NotWritable(
                f"{self._label}: this statement writes the table and reads it at epoch {show_epoch(epoch)}, and its "
                f"commit at epoch {show_epoch(newest)} is newer: what that commit wrote could be undone. Nothing was "
                "written. Run it again when the views that read the table have caught up (`epochlog jobs` shows them), "
                "or by a catalog that reads the newest rows: el.catalog(…, consistency='latest')"
            )

    def _refuse_past(self) -> None:
        """Raise NotWritable for a table of the past: Spark names no privilege when it loads a table to truncate it, or
        for the sink of a stream.
        """
        if self._past is not None:
            raise NotWritable(self._past)

    @answer
    def truncateTable(self, *options: Any) -> bool:
        self._refuse_past()
        definition = self._loaded.definition
        self._handle.catalog.read(lambda view: refuse_unwritable(view, definition))
        commit_overwrite(self._handle, TableChange(definition))
        return True

    def supportedCustomMetrics(self) -> Any:
        return self.jvm.gateway.new_array(self.jvm.spark.connector.metric.CustomMetric, 0)

    def reportDriverMetrics(self) -> Any:
        return self.jvm.gateway.new_array(self.jvm.spark.connector.metric.CustomTaskMetric, 0)

    def _shape(self) -> JavaShape:
        definition = self._loaded.definition
        return self._shapes.shape(definition.id, definition.schema)


def _selective(predicates: Any) -> list[Any]:
    """Return those of Java's predicates of a DELETE that are not true for every row."""
    return [predicate for predicate in predicates if predicate.name() != "ALWAYS_TRUE"]
