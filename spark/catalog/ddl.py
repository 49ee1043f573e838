"""Tables that SQL creates: columns, primary key and changelog of CREATE TABLE."""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql.types import StructType

from epochlog.errors import InvalidInput
from epochlog.store.commit.table_ddl import create_table
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.session.handle import Handle
from epochlog.store.types.schema import TableSchema

from .sql_columns import stored_columns

_SPARKS_OWN = {"owner", "is_managed_location"}
_CLAUSES = {
    "comment": "COMMENT of the table: columns have comments, a table has none",
    "location": "LOCATION: the files of a table lie in its store",
    "collation": "DEFAULT COLLATION: a table compares texts by their bytes",
}
"""Clauses that Spark passes as properties, with the reason for which a table has none."""
_ORDERS = {"cluster_by": "CLUSTER BY", "bucket": "CLUSTERED BY", "sorted_bucket": "CLUSTERED BY"}
"""Clauses that Spark passes as transforms of the partitions, by the name of the transform."""


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
    for clause, reason in _CLAUSES.items():
        if clause in properties:
            raise InvalidInput(f"CREATE TABLE {name}: leave out {reason}")
    if properties:
        raise InvalidInput(
            f"a table has no property {min(properties)!r}; TBLPROPERTIES takes primary_key, sequence_by and changelog, "
            f"and store.table({name!r}).alter(options=…) the others"
        )
    for transform in info.partitions():
        clause = _ORDERS.get(transform.name(), "PARTITIONED BY")
        raise InvalidInput(f"leave out {clause}: the rows of {name!r} are sorted by the primary key")
    if not key:
        raise InvalidInput(f"CREATE TABLE {name} needs its primary key: … TBLPROPERTIES (primary_key = 'id')")
    schema = stored_columns(name, StructType.fromJson(json.loads(info.schema().json())))
    names = tuple(part.strip() for part in key.split(","))
    return create_table(handle, TableSchema(name, schema, names, sequence_by), changelog)
