"""Difference of two states of a table, written as segments that turn the one into the other."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from epochlog.store.changelog.log_plan import LogPlan
from epochlog.store.scan.scan_plan import BATCH_ROWS, ScanPlan
from epochlog.store.sst.merge import Rows, lookup
from epochlog.store.sst.segment import Segment
from epochlog.store.sst.segment_writer import SegmentWriter, WriteTarget
from epochlog.store.types.null_safe_equal import same_rows
from epochlog.store.types.read_options import ReadOptions


def difference(target: WriteTarget, old: ScanPlan, new: ScanPlan) -> list[Segment]:
    """Write segments that turn the rows of `old` into those of `new`: deletes, inserts and updates.

    Hold a bounded number of rows in memory. Discard the segments on an error.
    """
    merged = old.extended(new.segments)
    with SegmentWriter(target) as writer:
        for key_range in merged.splits(max(1, merged.rows_at_most // BATCH_ROWS)):
            options = ReadOptions(target.schema.schema.names, None, key_range)
            _write_changes(writer, target, old.rows(target.files, options), new.rows(target.files, options))
        return writer.finish()


def difference_of_keys(target: WriteTarget, old: ScanPlan, new: ScanPlan, log: LogPlan) -> list[Segment]:
    """Write segments that turn the rows of `old` into those of `new` for the keys in `log`, and discard them on an
    error.

    Reads only the blocks that may hold these keys.
    """
    names, key_columns = target.schema.schema.names, list(target.schema.primary_key)
    with SegmentWriter(target) as writer:
        for batch in log.batches(target.files, "net", options=ReadOptions(key_columns)):  # sorted, each key once
            keys = old.codec.encode(pa.table(batch.select(key_columns)))
            _write_changes(
                writer, target, old.rows_of(target.files, keys, names), new.rows_of(target.files, keys, names)
            )
        return writer.finish()


def _write_changes(writer: SegmentWriter, target: WriteTarget, before: Rows, after: Rows) -> None:
    """Write what turns `before` into `after`: the rows that are new or differ, and deletes of the missing ones, with
    the sequences of their rows.
    """
    names = target.schema.schema.names
    deleted = lookup(after.keys, before.keys) < 0
    writer.delete(before.data.filter(pa.array(deleted)).select(list(target.schema.delete_columns)))
    positions = lookup(before.keys, after.keys)
    common = np.flatnonzero(positions >= 0)
    changed = np.ones(len(after), np.bool_)
    old_rows = before.data.take(pa.array(positions[common])).select(names).combine_chunks()
    new_rows = after.data.take(pa.array(common)).select(names).combine_chunks()
    changed[common] = ~same_rows(old_rows, new_rows)
    writer.upsert(after.data.filter(pa.array(changed)).select(names))
