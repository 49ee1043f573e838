"""Replaces a table's whole content in one epoch: the new rows, and a delete for every key that is not among them."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from ..store.commit import BaseMoved, TableEdit, commit_root
from ..store.definitions import get_table
from ..store.handle import Handle
from ..store.merge import lookup
from ..store.outcomes import TxnPair
from ..store.scan import BATCH_ROWS, ScanPlan, plan_scan
from ..store.segment import Segment
from ..store.writer import SegmentWriter, WriteTarget, remove_segments


def commit_overwrite(handle: Handle, target: WriteTarget, edit: TableEdit, txn: TxnPair | None) -> int:
    """Commit `edit` as all that the table holds; returns the epoch.

    What there is to delete is found at the newest commit, so the work is done again when another commit lands
    meanwhile.
    """
    while True:
        old = handle.catalog.read(
            lambda view: plan_scan(view, get_table(view, target.table_id, target.schema.name), None)
        )
        deletes = _deletes(target, old, edit.segments)
        whole = replace(edit, segments=(*deletes, *edit.segments), operation="overwrite", base=old.epoch)
        try:
            return commit_root(handle, [whole], txn=txn, ending=target.intent)
        except BaseMoved:  # somebody else has landed a commit
            remove_segments(handle.files, deletes)


def _deletes(target: WriteTarget, old: ScanPlan, segments: tuple[Segment, ...]) -> list[Segment]:
    """Tombstones for the keys of `old` that are not in the segments, a bounded number of keys at a time."""
    key, new = target.schema.primary_key, ScanPlan(target.schema, 0, (), segments)
    writer = SegmentWriter(target)
    for part in old.splits(max(1, old.rows_at_most // BATCH_ROWS)):
        before = old.rows(target.files, key, key_range=part)
        after = new.rows(target.files, (), key_range=part)
        gone = lookup(after, before.keys) < 0
        writer.delete(before.data.filter(pa.array(gone)))
    return writer.finish()
