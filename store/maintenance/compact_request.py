"""Compaction on request, of one table or of all that are due, after the expiry of their rows."""

from __future__ import annotations

from epochlog.errors import EpochlogError, TableDropped
from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.commit.expiry import expire_rows
from epochlog.store.compaction.executor import compact_table
from epochlog.store.compaction.packing_pass import pack_table
from epochlog.store.compaction.subcompaction_rewriter import RewriteSubcompactions, rewrite_in_threads
from epochlog.store.compaction.task_record import CompactionOutcome
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.metadata.lookups import all_tables, find_table
from epochlog.store.retention.retention import apply_retention
from epochlog.store.session.handle import Handle


def compact_tables(
    handle: Handle, table: str | None, *, full: bool, rewrite: RewriteSubcompactions = rewrite_in_threads
) -> None:
    """Compact the L0 of one table (None: of all) into its runs; of all without `full` only where it is due. Rows whose
    ttl has passed are deleted before.
    """
    handle.require_writable()

    def due(view: ReadTxn) -> list[TableDef]:
        return list(all_tables(view)) if table is None else [find_table(view, table)]

    failed: list[EpochlogError] = []
    for table_def in handle.catalog.read(due):
        try:
            if table_def.options.ttl is not None:
                failed += _expire(handle, table_def)
            apply_retention(handle, table_def)
            compact_table(handle, table_def, full=full or table is not None, rewrite=rewrite)
            while compact_table(handle, table_def, past_only=True, rewrite=rewrite) is CompactionOutcome.DONE:
                continue  # one run at a time
            pack_table(handle, table_def)
        except TableDropped:  # since: nothing to compact
            if table is not None:
                raise
        except EpochlogError as error:  # one damaged table keeps no other from being compacted
            failed.append(error)
    if failed:
        raise failed[0]


def _expire(handle: Handle, table: TableDef) -> list[EpochlogError]:
    """Delete the rows whose ttl has passed; return the error of a failure, which keeps no table from being compacted.
    Raises TableDropped.
    """
    try:
        expire_rows(handle, table)
    except TableDropped:
        raise
    except EpochlogError as error:
        return [error]
    return []
