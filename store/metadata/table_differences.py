"""Differences between an existing table and the one asked for, in words, for `exist_ok=True`."""

from __future__ import annotations

from dataclasses import fields

import pyarrow as pa

from epochlog.store.types.schema import TableSchema

from .definitions import TableDef, TableOptions
from .table_settings import Settings, show_option


def table_differences(found: TableDef, asked: TableSchema, settings: Settings) -> list[str]:
    """List the differences of the table `found` from the one asked for, a phrase for each."""
    out = _column_differences(found.schema.schema, asked.schema)
    if found.schema.primary_key != asked.primary_key:
        out.append(f"its primary key is {list(found.schema.primary_key)}, not {list(asked.primary_key)}")
    for setting in ("changelog", "drop_unchanged"):
        there, wanted = getattr(found, setting), getattr(settings, setting)
        if wanted is not None and there != wanted:
            out.append(f"its {setting} is {there!r}, not {wanted!r}")
    if settings.options is not None:
        kept = TableOptions.from_record(settings.options.to_record())  # as the catalog keeps it: whole milliseconds
        for option in fields(TableOptions):
            there, wanted = getattr(found.options, option.name), getattr(kept, option.name)
            if there != wanted:
                told = f"{show_option(there, wanted)}, not {show_option(wanted, there)}"
                out.append(f"its option {option.name} is {told}")
    return out


def _column_differences(found: pa.Schema, asked: pa.Schema) -> list[str]:
    out = [f"it has no column {name!r}" for name in asked.names if name not in found.names]
    out += [f"it has a column {name!r} that was not asked for" for name in found.names if name not in asked.names]
    for field in asked:
        if field.name in found.names and not found.field(field.name).equals(field):
            out.append(f"its column {field.name!r} is {_told(found.field(field.name), field)}")
    if not out and found.names != asked.names:
        out.append(f"its columns are in the order {found.names}, not {asked.names}")
    return out


def _told(found: pa.Field, asked: pa.Field) -> str:
    if found.type != asked.type:
        return f"{found.type}, not {asked.type}"
    return (
        "nullable, and was asked for without nulls" if found.nullable else "not nullable, and was asked for with nulls"
    )
