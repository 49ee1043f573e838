"""Tables that SQL creates and alters: columns, primary key and changelog of CREATE TABLE, columns of ALTER TABLE."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from epochlog.errors import InvalidInput
from epochlog.spark.types import arrow_schema
from epochlog.store.commit.table_ddl import alter_schema, create_table
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.metadata.lookups import find_table
from epochlog.store.metadata.schema_change import SchemaChange
from epochlog.store.metadata.table_settings import Settings
from epochlog.store.session.handle import Handle
from epochlog.store.types.schema import TableSchema

_SPARKS_OWN = {"owner", "is_managed_location"}


def create_from_sql(handle: Handle, name: str, info: Any) -> TableDef:
    """Create a root table by Java's TableInfo. Raises InvalidInput for clauses that a table does not have, InvalidName,
    InvalidSchema, TableExists.
    """
    properties = {str(key): str(value) for key, value in dict(info.properties()).items() if key not in _SPARKS_OWN}
    provider = properties.pop("provider", "epochlog")
    key, changelog = properties.pop("primary_key", ""), properties.pop("changelog", None)
    sequence_by = properties.pop("sequence_by", None)
    if provider != "epochlog":
        raise InvalidInput(f"CREATE TABLE … USING {provider}: leave out USING, the catalog has tables of a store only")
    if properties:
        raise InvalidInput(
            f"a table has no property {min(properties)!r}; TBLPROPERTIES takes primary_key, sequence_by and changelog, "
            f"and store.table({name!r}).alter(options=…) the others"
        )
    if len(info.partitions()):
        raise InvalidInput(f"leave out PARTITIONED BY: the rows of {name!r} are sorted by the primary key")
    if not key:
        raise InvalidInput(f"CREATE TABLE {name} needs its primary key: … TBLPROPERTIES (primary_key = 'id')")
    schema = arrow_schema(StructType.fromJson(json.loads(info.schema().json())))
    names = tuple(part.strip() for part in key.split(","))
    return create_table(handle, TableSchema(name, schema, names, sequence_by), changelog)


def alter_from_sql(handle: Handle, name: str, changes: Any) -> TableDef:
    """Change the columns of a root table by Java's TableChanges, in one alter; return the table. Raises InvalidInput
    for a change that a table does not have, and the errors of `alter`.
    """
    table = handle.catalog.read(lambda view: find_table(view, name))
    added: list[pa.Field] = []
    dropped: list[str] = []
    renamed: dict[str, str] = {}
    widened: dict[str, pa.DataType] = {}
    for change in changes:
        kind = change.getClass().getSimpleName()
        if kind not in ("AddColumn", "DeleteColumn", "RenameColumn", "UpdateColumnType"):
            raise InvalidInput(
                f"ALTER TABLE {name}: {kind} is not supported; columns can be added, dropped, renamed and widened, and "
                f"store.table({name!r}).alter(options=…) changes the other settings"
            )
        path = [str(part) for part in change.fieldNames()]
        if len(path) > 1:
            raise InvalidInput(f"ALTER TABLE {name}: {'.'.join(path)} is inside of a column, which keeps its type")
        column = path[0]
        if kind == "AddColumn":
            if change.position() is not None or change.defaultValue() is not None:
                raise InvalidInput(
                    f"ALTER TABLE {name}: a new column is the last one, and null in the rows so far; leave out FIRST, "
                    "AFTER and DEFAULT"
                )
            added.append(pa.field(column, _arrow_type(change.dataType()), bool(change.isNullable())))
        elif kind == "DeleteColumn":
            if column in table.schema.schema.names or not change.ifExists():
                dropped.append(column)
        elif kind == "RenameColumn":
            renamed[column] = str(change.newName())
        else:
            widened[column] = _arrow_type(change.newDataType())
    requested = SchemaChange.of(name, added, dropped, renamed, widened)
    return alter_schema(handle, table, requested, Settings()) if requested else table


def _arrow_type(java_type: Any) -> pa.DataType:
    column = StructType.fromJson({"type": "struct", "fields": [
        {"name": "c", "type": json.loads(java_type.json()), "nullable": True, "metadata": {}}
    ]})  # fmt: skip
    return arrow_schema(column).field("c").type
