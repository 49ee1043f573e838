"""Columns that a table had under a name in the past, for errors that name the alter (pure)."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from epochlog.store.types.epoch import show_epoch
from epochlog.store.types.schema import TableSchema


def change_of(column: str, tables: Iterable[TableSchema]) -> str:
    """Return the alter after which a table has no column of this name any more, for an error; empty if none."""
    for table in tables:
        for before, after in reversed(list(pairwise(table.lineage))):
            id_ = _id_of(column, before)
            if id_ is None or _id_of(column, after) == id_:
                continue
            if id_ not in table.ids:
                return (
                    f"; table {table.name!r} had such a column, which was dropped at epoch {show_epoch(after.version)}"
                )
            now = table.schema.names[table.ids.index(id_)]
            at = show_epoch(after.version)
            return (
                f"; table {table.name!r} has it under the name {now!r} since it was renamed at epoch {at}: write {now}"
            )
    return ""


def _id_of(column: str, table: TableSchema) -> int | None:
    ids = {name.lower(): id_ for name, id_ in zip(table.schema.names, table.ids, strict=True)}
    return ids.get(column.lower())
