"""Merge of small files of kept deletes, by the commit that finds too many: a commit looks its keys up in all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from epochlog.errors import EpochlogError
from epochlog.store.catalog.protocol import ReadTxn, Txn
from epochlog.store.env.failpoints import hit
from epochlog.store.env.log_events import RETRY
from epochlog.store.env.paths import SEGMENT_ENDING
from epochlog.store.metadata.counters import move_counters
from epochlog.store.metadata.definitions import Counters, TableDef
from epochlog.store.metadata.kept_deletes import (
    DELETED_AT,
    KeptFile,
    KeptFiles,
    expired_epoch,
    kept_deletes,
    replace_kept,
)
from epochlog.store.metadata.lookups import get_table, get_version
from epochlog.store.retention.stale_reads import retry_stale_plan
from epochlog.store.scan.kept_lookup import kept_schema, write_kept
from epochlog.store.session.write_intents import require_intents
from epochlog.store.sst.merge import Rows, newest_wins
from epochlog.store.sst.segment import SegmentReader
from epochlog.store.sst.segment_writer import remove_segments
from epochlog.store.types.key_codec import KeyCodec
from epochlog.store.types.schema import TableSchema

if TYPE_CHECKING:
    from epochlog.store.session.handle import Handle

MOST_FILES = 8
"""Number of small files of kept deletes from which on a commit merges them."""
SMALL_ROWS = 1 << 20
"""Rows from which on a file of kept deletes is not merged any more."""


def merge_kept(handle: Handle, table: TableDef) -> None:
    """Merge the newest small files of a table's kept deletes if there are MOST_FILES; expired deletes are left out.

    The commit has landed, so errors are logged, and the next commit tries again.
    """
    if len(_newest_small(handle.catalog.read(lambda view: kept_deletes(view, table.id)))) < MOST_FILES:
        return
    try:
        retry_stale_plan(handle, lambda: _merge(handle, table))
    except EpochlogError as error:
        RETRY.log(what=f"the merge of the kept deletes of table {table.name}", error=error)


def _newest_small(kept: KeptFiles) -> KeptFiles:
    """Return the newest files without the first large one, counted from the newest, and all before it."""
    large = [place for place, file in enumerate(kept) if file.segment.rows >= SMALL_ROWS]
    return kept[large[-1] + 1 :] if large else kept


def _merge(handle: Handle, table: TableDef) -> None:
    def read(view: ReadTxn) -> tuple[TableSchema, KeptFiles, int]:
        newest = get_version(view, table.id, table.name).max_committed_epoch
        now = get_table(view, table.id, table.name)  # it may have been altered since the commit
        return now.schema, kept_deletes(view, table.id), expired_epoch(newest, now.options.tombstone_retention)

    schema, kept, expired = handle.catalog.read(read)
    merged = _chosen(_newest_small(kept))
    rows, epochs = _read(handle, schema, merged, expired)
    output: KeptFiles = ()
    if len(rows):
        path = handle.new_path(table.id, SEGMENT_ENDING)
        file = write_kept(handle.files, path, table.id, schema, rows, epochs)
        output = (KeptFile(file, merged[-1].epoch),)
    hit("kept:merged")

    def body(tx: Txn) -> bool:
        present = kept_deletes(tx, table.id)
        place = present.index(merged[0]) if merged[0] in present else -1
        if place < 0 or present[place : place + len(merged)] != merged:
            return False
        require_intents(tx, table.name, (file.segment.path for file in output))
        after = (*present[:place], *output, *present[place + len(merged) :])
        replace_kept(tx, table.id, after, handle.catalog.now_ms())
        move_counters(tx, Counters.read(tx))
        return True

    if not handle.catalog.transact(body):
        remove_segments(handle.files, (file.segment for file in output))


def _chosen(small: KeptFiles) -> KeptFiles:
    """Return the newest files to merge: each older one is included while it has at most twice the rows of those behind
    it, so that a delete is written again a few times only.
    """
    count, rows = 2, sum(file.segment.rows for file in small[-2:])
    while count < len(small) and small[-count - 1].segment.rows <= 2 * rows:
        count += 1
        rows += small[-count].segment.rows
    return small[-count:]


def _read(handle: Handle, table: TableSchema, merged: Sequence[KeptFile], expired: int) -> tuple[Rows, np.ndarray]:
    """Return the newest delete of each key that has not expired, and its epoch."""
    schema = kept_schema(table)
    codec = KeyCodec(schema.schema, schema.primary_key)
    sources: list[Rows] = []
    for file in merged:
        rows = SegmentReader(handle.files, file.segment, schema, codec).read([*schema.schema.names, DELETED_AT])
        at = rows.data.column(DELETED_AT).to_numpy()
        place = rows.data.column_names.index(DELETED_AT)
        epochs = pa.array(np.where(at == 0, file.epoch, at))
        sources.append(Rows(rows.keys, rows.data.set_column(place, DELETED_AT, epochs)))
    newest = newest_wins(sources)
    at = newest.data.column(DELETED_AT).to_numpy()
    lasting = pa.array(at > expired)
    return Rows(newest.keys.filter(lasting), newest.data.filter(lasting)), at[at > expired]
