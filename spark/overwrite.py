"""Overwrite of a table in one epoch: the new rows, and a delete for every existing key without a new row."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochlog.errors import LogTruncated
from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.changelog.log_plan import Columns, plan_changes
from epochlog.store.commit.change import CommitConflict, TableChange
from epochlog.store.commit.failures import DEFINITE_FAILURES
from epochlog.store.commit.idempotency import CommitTxn, find_committed_epoch
from epochlog.store.commit.root_commit import RootCommit
from epochlog.store.commit.transaction import commit_changes
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.metadata.lookups import get_table
from epochlog.store.retention.stale_reads import retry_stale_plan
from epochlog.store.scan.scan_plan import BATCH_ROWS, ScanPlan, plan_scan
from epochlog.store.session.handle import Handle
from epochlog.store.session.write_intents import require_intents
from epochlog.store.sst.segment import Segment, SegmentReader
from epochlog.store.sst.segment_writer import SegmentWriter, WriteTarget, remove_segments
from epochlog.store.types.key_codec import Key
from epochlog.store.types.key_range import KeyRange
from epochlog.store.types.read_options import ReadOptions


def commit_overwrite(
    handle: Handle, change: TableChange, *, txn: CommitTxn | None = None, ending: Collection[str] = ()
) -> int:
    """Replace all rows of a table by those of the change; return the epoch. `txn` and `ending`: as in `RootCommit`.

    The keys to delete are read at the newest commit. If other commits land meanwhile, the next attempt adds deletes for
    their keys only, so the overwrite ends however busy the table is.
    """
    table, commit_target = change.table, RootCommit(txn=txn, ending=ending)
    if find_committed_epoch(handle, txn, [table.id]) is not None:
        return commit_changes(handle, [change], commit_target).epoch
    target = handle.write_target(table)
    deletes: list[Segment] = []
    base: int | None = None
    try:
        while True:
            base, new_deletes = retry_stale_plan(
                handle, lambda base=base: _write_deletes(handle, target, table, change.segments, base)
            )
            deletes += new_deletes
            overwrite = replace(change, segments=(*deletes, *change.segments), operation="overwrite", base=base)
            overwrite = replace(overwrite, sequence="replace")
            with suppress(CommitConflict):
                return commit_changes(handle, [overwrite], commit_target).epoch
    except DEFINITE_FAILURES:
        remove_segments(handle.files, deletes)
        raise


def _write_deletes(
    handle: Handle, target: WriteTarget, table: TableDef, new_segments: Sequence[Segment], since: int | None
) -> tuple[int, list[Segment]]:
    """Write tombstones for the table's keys without a row in `new_segments`; return the table's newest commit and the
    tombstones' segments. since: only keys committed after it; None for all keys.

    A bounded number of keys is in memory at a time.
    """

    def plan(view: ReadTxn) -> ScanPlan:
        # Without their intent, vacuum may have deleted the new files too.
        require_intents(view, table.name, (segment.path for segment in new_segments))
        return _plan_existing(view, table, since)

    rows_plan = handle.catalog.read(plan)
    target = replace(target, schema=rows_plan.table)
    with SegmentWriter(target) as writer:
        for key_range in rows_plan.splits(max(1, rows_plan.rows_at_most // BATCH_ROWS)):
            before = rows_plan.rows(target.files, ReadOptions(table.schema.delete_columns, None, key_range))
            writer.delete(before.data.filter(pa.array(~mask_of_keys_in(target, new_segments, before.keys, key_range))))
        return rows_plan.epoch, writer.finish()


def _plan_existing(view: ReadTxn, table: TableDef, since: int | None) -> ScanPlan:
    """Plan a scan of the table's newest rows; only of those committed after `since` if the log reaches back to it."""
    current = get_table(view, table.id, table.name)
    schema = table.schema.with_lineage(current.schema.lineage)  # the names of the key when the overwrite began
    if since is not None:
        with suppress(LogTruncated):
            groups = plan_changes(view, current, since, by_commit=True, columns=Columns(schema, whole=True)).groups
            newest = plan_scan(view, current, None).epoch
            return ScanPlan(schema, newest, (), tuple(segment for group in groups for segment in group.segments))
    return plan_scan(view, current, None, schema)


def mask_of_keys_in(
    target: WriteTarget, new_segments: Sequence[Segment], keys: pa.Array, key_range: KeyRange
) -> np.ndarray:
    """Return a mask of the keys that any of the segments upserts or deletes."""
    mask = np.zeros(len(keys), np.bool_)
    if not len(keys):
        return mask
    for segment_keys in _keys_of(target, new_segments, (keys[0].as_py(), keys[len(keys) - 1].as_py()), key_range):
        mask |= pc.is_in(keys, value_set=segment_keys).to_numpy(zero_copy_only=False)
    return mask


def _keys_of(
    target: WriteTarget, segments: Sequence[Segment], bounds: tuple[Key, Key], key_range: KeyRange
) -> Iterator[pa.Array]:
    """Yield the keys of the segments in the key range, about BATCH_ROWS at a time."""
    codec = ScanPlan(target.schema, 0).codec
    pending: list[pa.Array] = []
    for segment in segments:
        if segment.key_max < bounds[0] or segment.key_min > bounds[1]:
            continue
        pending.append(SegmentReader(target.files, segment, target.schema, codec).read((), key_range).keys)
        if sum(map(len, pending)) >= BATCH_ROWS:
            yield pa.concat_arrays(pending)
            pending = []
    if pending:
        yield pa.concat_arrays(pending)
