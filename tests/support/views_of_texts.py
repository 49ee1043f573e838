"""Rows of views on DuckDB over small tables, held against the answers that Spark has given to their texts."""

from __future__ import annotations

import pyarrow as pa

from confirmed import Reply, SparkAnswer, SparkRefusal, compare, kept
from corner_tables import schemas_of_set, tables_of_set
from epochlog.views import duckdb_engine
from epochlog.views.derivation import NOW, derive
from plan_rows import rows_of
from view_texts import Text


def rows_of_view(text: Text, reply: Reply) -> pa.Table:
    """Return the rows of a view of the text, of which DuckDB computes all. Raises InvalidInput."""
    schemas, tables = schemas_of_set(text.tables), tables_of_set(text.tables)
    key = list(text.key) or [reply.columns[0][0] if isinstance(reply, SparkAnswer) else "id"]
    plan = derive(text.sql, schemas, key)
    schema = duckdb_engine.output_schema(plan, schemas)
    with duckdb_engine._connected() as connection:
        for name in plan.tables:
            connection.register(NOW + name, tables[name])
        return rows_of(connection, plan).cast(schema)


def difference(text: Text) -> str:
    """Describe how a view of the text differs from Spark's answer; "" if it does not. Raises InvalidInput."""
    reply = kept(text.tables).reply(text.asked)
    if isinstance(reply, SparkRefusal):
        return f"Spark refuses it: {reply.name}"
    return compare(reply, rows_of_view(text, reply), text.asked, with_types=True)
