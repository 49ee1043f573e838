"""Tables that SQL creates: columns, primary key and changelog of CREATE TABLE."""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql.types import StructType

from epochlog.errors import InvalidInput
from epochlog.spark.types import arrow_schema
from epochlog.store.commit.table_ddl import create_table
from epochlog.store.metadata.definitions import TableDef
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
