"""What of a commit changes nothing, and its segments without that: rows that are there already, and deletes of keys
that are not.

Judged is the net effect of all segments together on each key, against the table's rows before the commit: what is
written in between and undone again is no change either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from .changes import Pool
from .files import Files
from .keys import KeyCodec
from .merge import Rows, lookup, newest_wins
from .paths import SEGMENT_ENDING, file_name, folder_of
from .ranges import cost, key_pieces
from .scan import EVERYTHING, KeyRange, ScanPlan
from .schema import TableSchema
from .segment import Segment, SegmentReader, write_segment
from .threads import each
from .writer import remove_segments

PIECE_ROWS = 1 << 19
"""Written rows that are compared, and held in memory, together."""
Rewrites = tuple[tuple[Segment, Segment | None], ...]
"""Segments with rows that change nothing, each with what is left of it (None: nothing)."""


def without_unchanged(
    files: Files, before: ScanPlan, segments: Sequence[Segment], intent_for: Callable[[Segment], str]
) -> Rewrites:
    """The segments of a commit, oldest first, that are not as they should be, with new ones in their place.

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
    """For each segment a bool for each of its rows: whether its key is changed by the commit."""
    found: list[list[np.ndarray]] = [[] for _ in segments]
    pieces = key_pieces(files, before.table, segments, cost(segments) // PIECE_ROWS, EVERYTHING)
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
    return each(
        lambda segment: SegmentReader(files, segment, table, codec).read(None, key_range),
        segments,
        sum(segment.rows for segment in segments),
    )


def _changed(files: Files, before: ScanPlan, net: Rows) -> np.ndarray:
    """For each key whether its row is there afterwards and was not, or was not the same, or is gone and was there."""
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
    """A new segment with these rows of one; None if they are none."""
    if not keep.any():
        return None
    codec, mask = KeyCodec(table.schema, table.primary_key), pa.array(keep)
    rows = SegmentReader(files, segment, table, codec).read()
    deleted = None if rows.deleted is None or not rows.deleted[keep].any() else rows.deleted[keep]
    left = Rows(rows.keys.filter(mask), rows.data.filter(mask), deleted)
    path = f"{folder_of(segment.path)}/{file_name(intent_for(segment), SEGMENT_ENDING)}"
    return write_segment(files, path, segment.table_id, table, codec, left, segment.label)
