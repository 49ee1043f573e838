"""Compaction that somebody asks for: of one table, or of all that are due."""

from __future__ import annotations

from ..errors import EpochlogError, TableDropped
from .catalog import View
from .compaction import compact_table
from .definitions import TableDef, all_tables, find_table
from .handle import Handle
from .retention import apply_retention


def compact_tables(handle: Handle, table: str | None, *, full: bool) -> None:
    """Fold the L0 of one table (None: of all) into its runs; of all without `full` only where enough has gathered."""

    def due(view: View) -> list[TableDef]:
        return list(all_tables(view)) if table is None else [find_table(view, table)]

    failed: list[EpochlogError] = []
    for found in handle.catalog.read(due):
        try:
            apply_retention(handle, found)
            compact_table(handle, found, full=full or table is not None)
        except TableDropped:  # since: nothing to fold
            if table is not None:
                raise
        except EpochlogError as error:  # one damaged table keeps no other from being compacted
            failed.append(error)
    if failed:
        raise failed[0]
