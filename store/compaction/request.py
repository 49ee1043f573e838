"""Compaction on request: of one table, or of all that are due."""

from __future__ import annotations

from epochlog.errors import EpochlogError, TableDropped
from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.metadata.lookups import all_tables, find_table
from epochlog.store.retention.retention import apply_retention
from epochlog.store.session.handle import Handle

from .executor import compact_table
from .piece_rewriter import RewritePieces, rewrite_in_threads
from .work import CompactionOutcome


def compact_tables(
    handle: Handle, table: str | None, *, full: bool, rewrite: RewritePieces = rewrite_in_threads
) -> None:
    """Compact the L0 of one table (None: of all) into its runs; of all without `full` only where it is due."""

    def due(view: ReadTxn) -> list[TableDef]:
        return list(all_tables(view)) if table is None else [find_table(view, table)]

    failed: list[EpochlogError] = []
    for table_def in handle.catalog.read(due):
        try:
            apply_retention(handle, table_def)
            compact_table(handle, table_def, full=full or table is not None, rewrite=rewrite)
            while compact_table(handle, table_def, past_only=True, rewrite=rewrite) is CompactionOutcome.DONE:
                continue  # one run at a time
        except TableDropped:  # since: nothing to compact
            if table is not None:
                raise
        except EpochlogError as error:  # one damaged table keeps no other from being compacted
            failed.append(error)
    if failed:
        raise failed[0]
