"""Differences between an existing table and a requested one, in words, for `exist_ok=True`."""

from __future__ import annotations

from dataclasses import fields

import pyarrow as pa

from epochlog.store.types.schema import TableSchema

from .definitions import TableDef
from .table_options import LEAST_HISTORY, TableOptions
from .table_settings import Settings, show_option


def table_differences(table: TableDef, schema: TableSchema, settings: Settings) -> list[str]:
    """List the differences between an existing table and the requested schema and settings, one phrase each."""
    differences = _column_differences(table.schema.schema, schema.schema)
    if table.schema.primary_key != schema.primary_key:
        differences.append(f"its primary key is {list(table.schema.primary_key)}, not {list(schema.primary_key)}")
    if table.schema.sequence_by != schema.sequence_by:
        differences.append(f"its sequence_by is {table.schema.sequence_by!r}, not {schema.sequence_by!r}")
    for setting in ("changelog", "drop_unchanged"):
        actual, expected = getattr(table, setting), getattr(settings, setting)
        if expected is not None and actual != expected:
            differences.append(f"its {setting} is {actual!r}, not {expected!r}")
    if settings.checks is not None and dict(table.checks) != dict(settings.checks):
        differences.append(f"its checks are {dict(table.checks)}, not {dict(settings.checks)}")
    if settings.options is not None:
        options = TableOptions.from_record(settings.options.to_record())  # rounded to milliseconds, as in the catalog
        for option in fields(TableOptions):
            actual, expected = getattr(table.options, option.name), getattr(options, option.name)
            left_out = expected is None and option.name == "history_retention"
            if actual != expected and not (left_out and actual == LEAST_HISTORY):
                difference = f"{show_option(actual, expected)}, not {show_option(expected, actual)}"
                differences.append(f"its option {option.name} is {difference}")
    return differences


def _column_differences(columns: pa.Schema, expected: pa.Schema) -> list[str]:
    present, requested = ({field.name: field for field in schema} for schema in (columns, expected))
    differences = [f"it has no column {name!r}" for name in requested if name not in present]
    differences += [f"it has a column {name!r} that was not requested" for name in present if name not in requested]
    for name, field in requested.items():
        if name in present and not present[name].equals(field):
            differences.append(f"its column {name!r} is {_field_difference(present[name], field)}")
    if not differences and columns.names != expected.names:
        differences.append(f"its columns are in the order {columns.names}, not {expected.names}")
    return differences


def _field_difference(field: pa.Field, expected: pa.Field) -> str:
    if field.type != expected.type:
        return f"{field.type}, not {expected.type}"
    return (
        "nullable, and was requested without nulls" if field.nullable else "not nullable, and was requested with nulls"
    )
