"""Columns that a table's settings name: the settings follow a column, by its field id, when it is renamed (pure)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa

from epochlog.store.types.predicate import columns_of_predicate, rename_in_predicate
from epochlog.store.types.schema import TableSchema

from .definitions import TableDef


def lost_column(table: TableDef, schema: TableSchema) -> tuple[str, str] | None:
    """Return a setting of the table, `the ttl` or `check 'name'`, and the column that it names, if the column is not in
    another schema of the table, or has another type there; None if there is no such setting.
    """
    for setting, column in _named_columns(table):
        id_, kind = _identity(table.schema, column)
        if id_ not in schema.ids or schema.schema.field(schema.ids.index(id_)).type != kind:
            return setting, column
    return None


def with_schema(table: TableDef, schema: TableSchema) -> TableDef:
    """Return the table with another one of its schemas, whose settings name the same columns by their names in it. It
    must have all of them (`lost_column`).
    """
    there = dict(zip(schema.ids, schema.schema.names, strict=True))
    ids = zip(table.schema.ids, table.schema.schema.names, strict=True)
    names = {name: there[id_] for id_, name in ids if id_ in there}
    options, columns = table.options, table.schema.schema
    if options.ttl_column is not None:
        options = replace(options, ttl_column=names[options.ttl_column])
    checks = tuple((check, rename_in_predicate(text, columns, names)) for check, text in table.checks)
    return replace(table, schema=schema, options=options, checks=checks)


def _named_columns(table: TableDef) -> Iterator[tuple[str, str]]:
    """Yield the columns that the settings of a table name, each with the setting."""
    if table.options.ttl_column is not None:
        yield "the ttl", table.options.ttl_column
    for check, text in table.checks:
        for column in columns_of_predicate(text, table.schema.schema):
            yield f"check {check!r}", column


def _identity(schema: TableSchema, column: str) -> tuple[int, pa.DataType]:
    place = schema.schema.get_field_index(column)
    return schema.ids[place], schema.schema.field(place).type
