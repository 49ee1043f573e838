"""Removal of a commit's unchanged rows: rows that the table has already, and deletes of keys that it lacks.

The net effect of all segments on each key is compared with the table's row before the commit, so a change that a later
segment undoes counts as unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from epochlog.store.changelog.change_rows import Pool
from epochlog.store.env.files import Files
from epochlog.store.env.parallel import parallel_map
from epochlog.store.env.paths import SEGMENT_ENDING, file_name, folder_of
from epochlog.store.scan.key_ranges import cost, key_splits
from epochlog.store.scan.scan_plan import ScanPlan
from epochlog.store.sst.merge import Rows, lookup, newest_wins
from epochlog.store.sst.segment import Segment, SegmentReader, write_segment
from epochlog.store.sst.segment_writer import remove_segments
from epochlog.store.types.key_codec import KeyCodec
from epochlog.store.types.key_range import ALL_KEYS, KeyRange
from epochlog.store.types.schema import TableSchema

SPLIT_ROWS = 1 << 19
"""Written rows that are compared, and held in memory, at a time."""
Rewrites = tuple[tuple[Segment, Segment | None], ...]
"""Segments with unchanged rows, each with its replacement; None if no row remains."""


def without_unchanged(
    files: Files, before: ScanPlan, segments: Sequence[Segment], intent_for: Callable[[Segment], str]
) -> Rewrites:
    """Return the segments that contain unchanged rows, oldest first, each with its replacement.

    before: the table's plan before the commit. intent_for: returns the write intent of a replacement. Reads the written
    rows and the blocks of `before` that may hold their keys. A failure deletes the new files.
    """
    if not before.rows_at_most and not any(segment.deletes for segment in segments):
        return ()
    masks = _changed_rows(files, before, segments)
    rewrites: list[tuple[Segment, Segment | None]] = []
    try:
        for segment, mask in zip(segments, masks, strict=True):
            if not mask.all():
                rewrites.append((segment, rewrite_segment(files, before.table, segment, mask, intent_for)))
    except BaseException:
        remove_segments(files, (replacement for _, replacement in rewrites if replacement is not None))
        raise
    return tuple(rewrites)


def _changed_rows(files: Files, before: ScanPlan, segments: Sequence[Segment]) -> list[np.ndarray]:
    """Return, for each segment, a bool for each row: True if the commit changes its key."""
    masks: list[list[np.ndarray]] = [[] for _ in segments]
    splits = key_splits(files, before.table, segments, cost(segments) // SPLIT_ROWS, ALL_KEYS)
    for key_range in splits:
        written = _read_range(files, before.table, segments, key_range)
        filled = [rows for rows in written if len(rows)]
        if not filled:
            continue
        net = newest_wins(filled)
        changed = _changed(files, before, net)
        for index, rows in enumerate(written):
            masks[index].append(changed if rows is net else changed[lookup(net.keys, rows.keys)])
    return [np.concatenate(parts) for parts in masks]


def _read_range(files: Files, table: TableSchema, segments: Sequence[Segment], key_range: KeyRange) -> list[Rows]:
    codec = KeyCodec(table.schema, table.primary_key)
    return parallel_map(
        lambda segment: SegmentReader(files, segment, table, codec).read(None, key_range),
        segments,
        sum(segment.rows for segment in segments),
    )


def _changed(files: Files, before: ScanPlan, net: Rows) -> np.ndarray:
    """Return, for each key, True if the commit adds, alters or deletes its row."""
    names = before.table.schema.names
    old = before.rows_of(files, net.keys, names)
    positions = lookup(old.keys, net.keys)
    deleted = np.zeros(len(net), np.bool_) if net.deleted is None else net.deleted
    changed = (positions >= 0) | ~deleted
    (updated,) = ((positions >= 0) & ~deleted).nonzero()
    pool = Pool([old.data.select(names), net.data.select(names)])
    changed[updated] = pool.differing(positions[updated], updated + len(old), before.table.primary_key)
    return changed


def rewrite_segment(
    files: Files, table: TableSchema, segment: Segment, mask: np.ndarray, intent_for: Callable[[Segment], str]
) -> Segment | None:
    """Write a segment with the rows of `mask`; return None if there are none."""
    if not mask.any():
        return None
    codec, mask = KeyCodec(table.schema, table.primary_key), pa.array(mask)
    rows = SegmentReader(files, segment, table, codec).read()
    deleted = None if rows.deleted is None or not rows.deleted[mask].any() else rows.deleted[mask]
    remaining = Rows(rows.keys.filter(mask), rows.data.filter(mask), deleted)
    path = f"{folder_of(segment.path)}/{file_name(intent_for(segment), SEGMENT_ENDING)}"
    return write_segment(files, path, segment.table_id, table, codec, remaining, segment.label)
