"""Overwrite of a table's whole content in one epoch: the new rows, and a delete for every key that is not among
them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochlog.errors import LogTruncated
from epochlog.store.catalog.protocol import View
from epochlog.store.changelog.log_plan import plan_changes
from epochlog.store.commit.edits import CommitConflict, TableEdit
from epochlog.store.commit.failures import DEFINITE_FAILURES
from epochlog.store.commit.idempotency import TxnPair, find_committed_epoch
from epochlog.store.commit.root_commit import commit_root
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
    handle: Handle, table: TableDef, edit: TableEdit, *, txn: TxnPair | None = None, ending: Collection[str] = ()
) -> int:
    """Commit `edit` as the whole content of the table; return the epoch. `txn`, `ending`: as in commit_root.

    The keys to delete are found at the newest commit. When other commits land meanwhile, deletes of their keys are
    added, so an overwrite comes to an end however busy the table is.
    """
    if find_committed_epoch(handle, txn, [table.id]) is not None:
        return commit_root(handle, [edit], txn=txn, ending=ending)
    target = handle.write_target(table)
    deletes: list[Segment] = []
    base: int | None = None
    try:
        while True:
            base, more = retry_stale_plan(
                handle, lambda base=base: _deletes(handle, target, table, edit.segments, base)
            )
            deletes += more
            whole = replace(edit, segments=(*deletes, *edit.segments), operation="overwrite", base=base)
            with suppress(CommitConflict):
                return commit_root(handle, [whole], txn=txn, ending=ending)
    except DEFINITE_FAILURES:
        remove_segments(handle.files, deletes)
        raise


def _deletes(
    handle: Handle, target: WriteTarget, table: TableDef, new: Sequence[Segment], since: int | None
) -> tuple[int, list[Segment]]:
    """Write tombstones for the keys that the table holds, or has got after `since`, and `new` does not name; return the
    table's newest commit and their segments.

    A bounded number of keys is in memory at a time.
    """

    def plan(view: View) -> ScanPlan:
        require_intents(view, table.name, (segment.path for segment in new))  # else their files may be gone as well
        return _held(view, table, since)

    old = handle.catalog.read(plan)
    writer = SegmentWriter(target)
    try:
        for part in old.splits(max(1, old.rows_at_most // BATCH_ROWS)):
            before = old.rows(target.files, ReadOptions(table.schema.primary_key, None, part))
            writer.delete(before.data.filter(pa.array(~_named(target, new, before.keys, part))))
        return old.epoch, writer.finish()
    except BaseException:
        writer.discard()
        raise


def _held(view: View, table: TableDef, since: int | None) -> ScanPlan:
    """Plan a scan of the table's newest rows; only of those committed after `since`, if the log still reaches back to
    it.
    """
    if since is not None:
        with suppress(LogTruncated):
            found = get_table(view, table.id, table.name)
            groups = plan_changes(view, found, since, by_commit=True).groups
            newest = plan_scan(view, found, None).epoch
            return ScanPlan(table.schema, newest, (), tuple(segment for group in groups for segment in group.segments))
    return plan_scan(view, get_table(view, table.id, table.name), None)


def _named(target: WriteTarget, new: Sequence[Segment], keys: pa.Array, part: KeyRange) -> np.ndarray:
    """Return a mask of the keys that any of the segments names, to upsert or to delete them."""
    found = np.zeros(len(keys), np.bool_)
    if not len(keys):
        return found
    for named in _keys_of(target, new, (keys[0].as_py(), keys[len(keys) - 1].as_py()), part):
        found |= pc.is_in(keys, value_set=named).to_numpy(zero_copy_only=False)
    return found


def _keys_of(
    target: WriteTarget, segments: Sequence[Segment], within: tuple[Key, Key], part: KeyRange
) -> Iterator[pa.Array]:
    """Yield the keys of the segments in the key range, about BATCH_ROWS at a time."""
    codec = ScanPlan(target.schema, 0).codec
    held: list[pa.Array] = []
    for segment in segments:
        if segment.key_max < within[0] or segment.key_min > within[1]:
            continue
        held.append(SegmentReader(target.files, segment, target.schema, codec).read((), part).keys)
        if sum(map(len, held)) >= BATCH_ROWS:
            yield pa.concat_arrays(held)
            held = []
    if held:
        yield pa.concat_arrays(held)
