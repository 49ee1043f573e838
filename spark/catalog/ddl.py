"""Tables that SQL creates and alters: columns, primary key and changelog of CREATE TABLE, columns of ALTER TABLE."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
from pyspark.sql.types import IntegralType, StructType

from epochlog.errors import InvalidInput, NotWritable
from epochlog.spark.options import parse_names
from epochlog.store.commit.table_ddl import alter_schema, create_table
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.metadata.lookups import find_table
from epochlog.store.metadata.schema_change import SchemaChange
from epochlog.store.metadata.table_settings import Settings
from epochlog.store.session.handle import Handle
from epochlog.store.types.schema import TableSchema

from .jvm import Jvm
from .sql_columns import stored_columns

_SPARKS_OWN = {"owner", "is_managed_location"}
_CLAUSES = {
    "comment": "COMMENT of the table: columns have comments, a table has none",
    **dict.fromkeys(
        ("external", "location"),
        "EXTERNAL and LOCATION: tables are always managed by their store, which keeps their files",
    ),
    "collation": "DEFAULT COLLATION: a table compares texts by their bytes",
}
"""Clauses that Spark passes as properties, with the reason for which a table has none."""
_ORDERS = {"cluster_by": "CLUSTER BY", "bucket": "CLUSTERED BY", "sorted_bucket": "CLUSTERED BY"}
"""Clauses that Spark passes as transforms of the partitions, by the name of the transform."""
_NO_DEFAULT = (
    "a column that an INSERT does not name is NULL, also in a row that was there; name it in the INSERT with its "
    "value, or write the other columns alone with format('epochlog') and partial=true"
)


class SeparateInfo:
    """Description of a new table from Spark 4.0, which has no TableInfo and no constraints."""

    def __init__(self, jvm: Jvm, columns: Any, partitions: Any, properties: Any) -> None:
        self._jvm = jvm
        self._columns = columns
        self._partitions = partitions
        self._properties = properties

    def columns(self) -> Any:
        return self._columns

    def schema(self) -> Any:
        return self._jvm.spark.connector.catalog.CatalogV2Util.v2ColumnsToStructType(self._columns)

    def partitions(self) -> Any:
        return self._partitions

    def properties(self) -> Any:
        return self._properties

    def constraints(self) -> Any:
        return ()


def create_from_sql(handle: Handle, name: str, info: Any) -> TableDef:
    """Create a root table by Java's TableInfo. Raises InvalidInput for clauses that a table does not have, InvalidName,
    InvalidSchema, TableExists.
    """
    properties = {str(key): str(value) for key, value in dict(info.properties()).items() if key not in _SPARKS_OWN}
    provider = properties.pop("provider", "epochlog")
    key, changelog = properties.pop("primary_key", ""), properties.pop("changelog", None)
    sequence_by = properties.pop("sequence_by", None)
    for clause, reason in _CLAUSES.items():
        if clause in properties:
            raise InvalidInput(f"CREATE TABLE {name}: leave out {reason}")
    if provider != "epochlog":
        raise InvalidInput(
            f"CREATE TABLE {name} … USING {provider}: leave out USING, the catalog has tables of a store only; "
            f"write CREATE TABLE {name} (…) TBLPROPERTIES (primary_key = 'id')"
        )
    if properties:
        raise InvalidInput(
            f"a table has no property {min(properties)!r}; TBLPROPERTIES takes primary_key, sequence_by and changelog, "
            f"and store.table({name!r}).alter(options=…) the others"
        )
    for transform in info.partitions():
        clause = _ORDERS.get(transform.name(), "PARTITIONED BY")
        raise InvalidInput(f"leave out {clause}: the rows of {name!r} are sorted by the primary key")
    columns = StructType.fromJson(json.loads(info.schema().json()))
    _refuse_values(name, columns, info)
    declared = _declared_key(name, info.constraints())
    if not key and not declared:
        raise InvalidInput(
            f"CREATE TABLE {name} needs its primary key: … TBLPROPERTIES (primary_key = 'id'), or PRIMARY KEY (id) "
            "among the columns"
        )
    declared = tuple(meant_column(columns, column) for column in declared)
    names = tuple(meant_column(columns, column) for column in parse_names("primary_key", key)) if key else declared
    if declared and names != declared:
        raise InvalidInput(f"CREATE TABLE {name}: PRIMARY KEY and primary_key name different columns; leave one out")
    if sequence_by is not None:
        sequence_by = meant_column(columns, sequence_by)
    schema = stored_columns(name, columns)
    return create_table(handle, TableSchema(name, schema, names, sequence_by), changelog)


def _refuse_values(table: str, columns: StructType, info: Any) -> None:
    """Raise InvalidInput for a column whose values a table would have to make. Of IDENTITY, and before Spark 4.2 of
    GENERATED, only Java's columns tell.
    """
    for field, java_column in zip(columns, info.columns(), strict=True):
        if "CURRENT_DEFAULT" in field.metadata:
            raise InvalidInput(f"CREATE TABLE {table}: leave out DEFAULT of {field.name!r}: {_NO_DEFAULT}")
        is_integer = isinstance(field.dataType, IntegralType)
        if java_column.generationExpression() is not None or (
            is_integer and java_column.identityColumnSpec() is not None
        ):
            raise InvalidInput(
                f"CREATE TABLE {table}: leave out GENERATED of {field.name!r}: a table keeps the values that it is "
                "given; compute them in the INSERT, or in a view of the table, store.create_view(…)"
            )


def meant_column(columns: StructType, name: str) -> str:
    """Return the name of the column that SQL means: that of these letters, else the only one that differs by case
    alone, else the name itself.
    """
    matching = [column for column in columns.names if column.lower() == name.lower()]
    return matching[0] if len(matching) == 1 and name not in matching else name


def _declared_key(table: str, constraints: Any) -> tuple[str, ...]:
    """Return the columns of PRIMARY KEY; none without it. Raises InvalidInput for Java's other constraints."""
    key: tuple[str, ...] = ()
    for constraint in constraints:
        kind = constraint.getClass().getSimpleName()
        if kind != "PrimaryKey":
            raise InvalidInput(f"CREATE TABLE {table}: leave out {_constraint_advice(table, kind)}")
        key = tuple(str(column.fieldNames()[0]) for column in constraint.columns())
    return key


def _constraint_advice(table: str, kind: str) -> str:
    if kind == "Check":
        return f"CHECK, and write store.table({table!r}).alter(checks={{'positive': 'n > 0'}}) after it"
    if kind == "ForeignKey":
        return "REFERENCES: a table does not look into others; a view that joins both leaves rows without a partner out"
    return f"{kind.upper()}: only the primary key is unique"


def alter_from_sql(handle: Handle, name: str, changes: Any) -> TableDef:
    """Change the columns of a root table by Java's TableChanges, in one alter; return the table. Raises InvalidInput
    or NotWritable for a change that a table does not have, and the errors of `alter`.
    """
    table = handle.catalog.read(lambda view: find_table(view, name))
    present = set(table.schema.schema.names)
    added: list[pa.Field] = []
    dropped: list[str] = []
    renamed: dict[str, str] = {}
    widened: dict[str, pa.DataType] = {}
    for change in changes:
        kind = change.getClass().getSimpleName()
        if kind not in ("AddColumn", "DeleteColumn", "RenameColumn", "UpdateColumnType"):
            raise NotWritable(_advice(name, kind))
        path = [str(part) for part in change.fieldNames()]
        column = path[0]
        if len(path) > 1:
            kinds = widened.get(column) or _present_type(table, column)
            widened[column] = _changed_inside(name, path, kinds, change, kind)
        elif kind == "AddColumn":
            if change.position() is not None or change.defaultValue() is not None:
                raise InvalidInput(
                    f"ALTER TABLE {name}: a new column is the last one; leave out FIRST, AFTER and DEFAULT. For a "
                    f"value in the rows so far write store.table({name!r}).alter(add=[…], defaults={{{column!r}: …}})"
                )
            added.append(_field(name, column, change.dataType(), change.comment(), nullable=bool(change.isNullable())))
        elif kind == "DeleteColumn":
            if column in present or not change.ifExists():
                dropped.append(column)
        elif kind == "RenameColumn":
            renamed[column] = str(change.newName())
        else:
            widened[column] = _field(name, column, change.newDataType()).type
    requested = SchemaChange.of(name, added, dropped, renamed, widened)
    return alter_schema(handle, table, requested, Settings()) if requested else table


def _present_type(table: TableDef, column: str) -> pa.DataType:
    place = table.schema.schema.get_field_index(column)
    if place < 0:
        raise InvalidInput(f"table {table.name!r} has no column {column!r}; it has {table.schema.schema.names}")
    return table.schema.schema.field(place).type


def _changed_inside(table: str, path: list[str], kind: Any, change: Any, what: str) -> pa.DataType:
    """Return the type of a column with one more field inside, or a wider type there. path: the column, then the fields
    to the changed one, where `element` stands for a list's items, and `key` and `value` for those of a map.
    """
    if what not in ("AddColumn", "UpdateColumnType"):
        raise InvalidInput(
            f"ALTER TABLE {table}: {'.'.join(path)} is inside of a column, which can only get more fields"
        )
    outer, inner = path[0], path[1:]

    def within(field: pa.Field) -> pa.Field:
        return field.with_type(_changed_inside(table, [f"{outer}.{inner[0]}", *inner[1:]], field.type, change, what))

    if pa.types.is_struct(kind) and len(inner) == 1 and what == "AddColumn":
        if any(part is not None for part in (change.position(), change.defaultValue(), change.comment())):
            raise InvalidInput(
                f"ALTER TABLE {table}: a new field is the last one, and null so far; leave out FIRST, AFTER, DEFAULT "
                "and COMMENT"
            )
        return pa.struct([*kind, _field(table, inner[0], change.dataType(), nullable=bool(change.isNullable()))])
    if not inner:
        return _field(table, outer, change.newDataType()).type
    if pa.types.is_struct(kind) and inner[0] in kind.names:
        return pa.struct([within(field) if field.name == inner[0] else field for field in kind])
    if pa.types.is_map(kind) and inner[0] == "value":
        return pa.map_(kind.key_field, within(kind.item_field), keys_sorted=kind.keys_sorted)
    for is_kind, list_type in ((pa.types.is_list, pa.list_), (pa.types.is_large_list, pa.large_list)):
        if is_kind(kind) and inner[0] == "element":
            return list_type(within(kind.value_field))
    raise InvalidInput(f"ALTER TABLE {table}: {outer} of type {kind} has no field {inner[0]!r} that can change")


def _field(table: str, column: str, java_type: Any, comment: str | None = None, *, nullable: bool = True) -> pa.Field:
    """Return the column as a table keeps it. Raises InvalidSchema for a type that a table would change."""
    metadata = {} if comment is None else {"comment": comment}
    field = {"name": column, "type": json.loads(java_type.json()), "nullable": nullable, "metadata": metadata}
    return stored_columns(table, StructType.fromJson({"type": "struct", "fields": [field]})).field(0)


def _advice(table: str, kind: str) -> str:
    """Return the reason for which a change is refused, and what to write. kind: the class of Java's change."""
    if kind in ("SetProperty", "RemoveProperty"):
        return f"change the options of a table with store.table({table!r}).alter(…); neither it nor a comment is in SQL"
    if kind == "UpdateColumnDefaultValue":
        return f"ALTER TABLE {table}: leave out DEFAULT: {_NO_DEFAULT}"
    if kind in ("AddConstraint", "DropConstraint"):
        return (
            f"ALTER TABLE {table}: the primary key of a table is that of its creation; its checks are set, all at "
            f"once, by store.table({table!r}).alter(checks={{'positive': 'n > 0'}})"
        )
    return (
        f"ALTER TABLE {table}: {kind} is not supported; it can add, drop, rename and widen columns, which keep their "
        "comments, places and nullability"
    )
