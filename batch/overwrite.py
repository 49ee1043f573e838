"""Replaces a table's whole content in one epoch: the new rows, and a delete for every key that is not among them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import LogTruncated
from ..store.catalog import View
from ..store.commit import REFUSALS, commit_root
from ..store.definitions import TableDef, get_table
from ..store.edits import BaseMoved, TableEdit
from ..store.expiry import planned_anew
from ..store.handle import Handle
from ..store.intents import require_intents
from ..store.keys import Key
from ..store.log import plan_changes
from ..store.outcomes import TxnPair, landed
from ..store.scan import BATCH_ROWS, KeyRange, ScanPlan, plan_scan
from ..store.segment import Segment, SegmentReader
from ..store.writer import SegmentWriter, WriteTarget, remove_segments, write_target


def commit_overwrite(
    handle: Handle, table: TableDef, edit: TableEdit, *, txn: TxnPair | None = None, ending: Collection[str] = ()
) -> int:
    """Commit `edit` as all that the table holds; returns the epoch. `txn`, `ending`: as in commit_root.

    What there is to delete is found at the newest commit. When others land meanwhile, what is to be deleted of theirs
    is added, so an overwrite comes to an end however busy the table is.
    """
    if landed(handle, txn, [table.id]) is not None:
        return commit_root(handle, [edit], txn=txn, ending=ending)
    target = write_target(handle, table)
    deletes: list[Segment] = []
    base: int | None = None
    try:
        while True:
            base, more = planned_anew(handle, lambda base=base: _deletes(handle, target, table, edit.segments, base))
            deletes += more
            whole = replace(edit, segments=(*deletes, *edit.segments), operation="overwrite", base=base)
            with suppress(BaseMoved):
                return commit_root(handle, [whole], txn=txn, ending=ending)
    except REFUSALS:
        remove_segments(handle.files, deletes)
        raise


def _deletes(
    handle: Handle, target: WriteTarget, table: TableDef, new: Sequence[Segment], since: int | None
) -> tuple[int, list[Segment]]:
    """The table's newest commit, and tombstones for what it holds, or has got after `since`, and `new` does not name.

    A bounded number of keys is in memory at a time.
    """

    def plan(view: View) -> ScanPlan:
        require_intents(view, table.name, (segment.path for segment in new))  # else their files may be gone as well
        return _held(view, table, since)

    old = handle.catalog.read(plan)
    writer = SegmentWriter(target)
    try:
        for part in old.splits(max(1, old.rows_at_most // BATCH_ROWS)):
            before = old.rows(target.files, table.schema.primary_key, key_range=part)
            writer.delete(before.data.filter(pa.array(~_named(target, new, before.keys, part))))
        return old.epoch, writer.finish()
    except BaseException:
        writer.discard()
        raise


def _held(view: View, table: TableDef, since: int | None) -> ScanPlan:
    """What the table holds now; of what it held at `since` nothing, while the log tells what has come after."""
    if since is not None:
        with suppress(LogTruncated):
            found = get_table(view, table.id, table.name)
            groups = plan_changes(view, found, since, by_commit=True).groups
            newest = plan_scan(view, found, None).epoch
            return ScanPlan(table.schema, newest, (), tuple(segment for group in groups for segment in group.segments))
    return plan_scan(view, get_table(view, table.id, table.name), None)


def _named(target: WriteTarget, new: Sequence[Segment], keys: pa.Array, part: KeyRange) -> np.ndarray:
    """Which of the keys any of the segments names, be it to delete it."""
    found = np.zeros(len(keys), np.bool_)
    if not len(keys):
        return found
    for named in _keys_of(target, new, (keys[0].as_py(), keys[len(keys) - 1].as_py()), part):
        found |= pc.is_in(keys, value_set=named).to_numpy(zero_copy_only=False)
    return found


def _keys_of(
    target: WriteTarget, segments: Sequence[Segment], within: tuple[Key, Key], part: KeyRange
) -> Iterator[pa.Array]:
    """The keys of the segments in the key range, about BATCH_ROWS at a time."""
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
