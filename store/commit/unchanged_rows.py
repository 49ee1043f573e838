"""Removal of a commit's rows that change nothing: rows that the table has already, and deletes of keys that it lacks.

Judged is the net effect of all segments together on each key, against the table's rows before the commit: what is
written in between and undone again is no change either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from epochlog.store.changelog.change_rows import Pool
from epochlog.store.env.files import Files
from epochlog.store.env.parallel import parallel_map
from epochlog.store.env.paths import SEGMENT_ENDING, file_name, folder_of
from epochlog.store.scan.key_ranges import cost, key_pieces
from epochlog.store.scan.scan_plan import ScanPlan
from epochlog.store.sst.merge import Rows, lookup, newest_wins
from epochlog.store.sst.segment import Segment, SegmentReader, write_segment
from epochlog.store.sst.segment_writer import remove_segments
from epochlog.store.types.key_codec import KeyCodec
from epochlog.store.types.key_range import ALL_KEYS, KeyRange
from epochlog.store.types.schema import TableSchema

PIECE_ROWS = 1 << 19
"""Written rows that are compared, and held in memory, together."""
Rewrites = tuple[tuple[Segment, Segment | None], ...]
"""Segments with rows that change nothing, each with what is left of it (None: nothing)."""


def without_unchanged(
    files: Files, before: ScanPlan, segments: Sequence[Segment], intent_for: Callable[[Segment], str]
) -> Rewrites:
    """Return the segments of a commit, oldest first, that contain rows that change nothing, each with a new one in its
    place.

    before: the table as the commit finds it. intent_for: what the file that takes a segment's place is written under.
    Reads what was written and the blocks of `before` that may hold its keys. Whatever fails leaves no file behind.
    """
    if not before.rows_at_most and not any(segment.deletes for segment in segments):
        return ()
    kept = _kept(files, before, segments)
    done: list[tuple[Segment, Segment | None]] = []
    try:
        for segment, keep in zip(segments, kept, strict=True):
            if not keep.all():
                done.append((segment, _rewritten(files, before.table, segment, keep, intent_for)))
    except BaseException:
        remove_segments(files, (left for _, left in done if left is not None))
        raise
    return tuple(done)


def _kept(files: Files, before: ScanPlan, segments: Sequence[Segment]) -> list[np.ndarray]:
    """Return, for each segment, a bool for each row: True if the commit changes its key."""
    found: list[list[np.ndarray]] = [[] for _ in segments]
    pieces = key_pieces(files, before.table, segments, cost(segments) // PIECE_ROWS, ALL_KEYS)
    for key_range in pieces:
        written = _read(files, before.table, segments, key_range)
        filled = [rows for rows in written if len(rows)]
        if not filled:
            continue
        net = newest_wins(filled)
        changed = _changed(files, before, net)
        for place, rows in enumerate(written):
            found[place].append(changed if rows is net else changed[lookup(net.keys, rows.keys)])
    return [np.concatenate(marks) for marks in found]


def _read(files: Files, table: TableSchema, segments: Sequence[Segment], key_range: KeyRange) -> list[Rows]:
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
    at = lookup(old.keys, net.keys)
    deleted = np.zeros(len(net), np.bool_) if net.deleted is None else net.deleted
    changed = (at >= 0) | ~deleted
    (both,) = ((at >= 0) & ~deleted).nonzero()
    pool = Pool([old.data.select(names), net.data.select(names)])
    changed[both] = pool.differing(at[both], both + len(old), before.table.primary_key)
    return changed


def _rewritten(
    files: Files, table: TableSchema, segment: Segment, keep: np.ndarray, intent_for: Callable[[Segment], str]
) -> Segment | None:
    """Return a new segment with these rows of one; None if they are none."""
    if not keep.any():
        return None
    codec, mask = KeyCodec(table.schema, table.primary_key), pa.array(keep)
    rows = SegmentReader(files, segment, table, codec).read()
    deleted = None if rows.deleted is None or not rows.deleted[keep].any() else rows.deleted[keep]
    left = Rows(rows.keys.filter(mask), rows.data.filter(mask), deleted)
    path = f"{folder_of(segment.path)}/{file_name(intent_for(segment), SEGMENT_ENDING)}"
    return write_segment(files, path, segment.table_id, table, codec, left, segment.label)
