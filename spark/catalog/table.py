"""Tables of a catalog, as Spark sees them: their columns, their version, which is the epoch, and their scans."""

# ruff: noqa: N802  # Spark calls these methods by its own names

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from epochlog.spark.types import spark_schema
from epochlog.store.session.handle import Handle
from epochlog.store.types.schema import TableSchema

from .jvm import CONNECTOR, Jvm, Proxy, answer
from .query_epochs import LoadedTable
from .scan import TableScanBuilder


@dataclass(frozen=True, slots=True)
class JavaShape:
    """Java objects that depend on a table's schema alone."""

    schema: Any
    columns: Any


class JavaShapes:
    """Java's schemas and columns of tables, made once for each schema of a table."""

    def __init__(self, jvm: Jvm) -> None:
        self._jvm = jvm
        self._shapes: dict[int, tuple[TableSchema, JavaShape]] = {}
        self.no_transforms = jvm.no_transforms
        self.no_constraints = jvm.gateway.new_array(jvm.spark.connector.catalog.constraints.Constraint, 0)
        self.capabilities = jvm.java.util.HashSet()
        self.capabilities.add(jvm.spark.connector.catalog.TableCapability.BATCH_READ)

    def shape(self, table_id: int, schema: TableSchema) -> JavaShape:
        known = self._shapes.get(table_id)
        if known is not None and known[0] == schema:
            return known[1]
        text = spark_schema(schema.name, schema.schema, schema.primary_key).json()
        java_schema = self._jvm.spark.types.DataType.fromJson(text)
        shape = JavaShape(java_schema, self._jvm.python_table(java_schema).columns())
        self._shapes[table_id] = (schema, shape)
        return shape


class CatalogTable(Proxy):
    """Table at one epoch. scanning: called when Spark begins to build a scan of it."""

    class Java:
        implements = (f"{CONNECTOR}catalog.Table", f"{CONNECTOR}catalog.SupportsRead")

    def __init__(
        self,
        jvm: Jvm,
        handle: Handle,
        label: str,
        loaded: LoadedTable,
        shapes: JavaShapes,
        scanning: Callable[[], None],
    ) -> None:
        super().__init__(jvm)
        self._handle = handle
        self._label = label
        self._loaded = loaded
        self._shapes = shapes
        self._scanning = scanning

    def _identity(self) -> tuple[str, int, int]:
        return self._handle.store_id, self._loaded.definition.id, self._loaded.epoch

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CatalogTable) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def toString(self) -> str:
        return self._label

    def name(self) -> str:
        return self._label

    def id(self) -> str:
        return f"{self._handle.store_id}/{self._loaded.definition.id}"

    def version(self) -> str:
        return str(self._loaded.epoch)

    @answer
    def columns(self) -> Any:
        return self._shape().columns

    @answer
    def schema(self) -> Any:
        return self._shape().schema

    def partitioning(self) -> Any:
        return self._shapes.no_transforms

    def constraints(self) -> Any:
        return self._shapes.no_constraints

    def properties(self) -> Any:
        key = ", ".join(self._loaded.definition.schema.primary_key)
        return self.jvm.map({"primary_key": key, "epoch": str(self._loaded.epoch)})

    def capabilities(self) -> Any:
        return self._shapes.capabilities

    def newScanBuilder(self, options: Any) -> TableScanBuilder:
        self._scanning()
        return TableScanBuilder(self.jvm, self._handle, self._loaded, self._shape().schema)

    def _shape(self) -> JavaShape:
        definition = self._loaded.definition
        return self._shapes.shape(definition.id, definition.schema)
