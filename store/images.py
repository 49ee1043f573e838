"""Old rows of a table with changelog="full", stored at commit: the row before it of every key that is touched.

They are computed against the newest commit and outside of any transaction. The commit that takes them requires that it
still is the newest; else they are made again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from .changes import by_key, end_to_end, replaced, stacked
from .definitions import TableDef
from .files import Files
from .intents import file_name, intent_of
from .keys import KeyCodec
from .merge import Rows, newest_wins
from .ranges import cost, key_pieces
from .scan import EVERYTHING, KeyRange, ScanPlan
from .schema import TableSchema
from .segment import Segment, SegmentReader, write_segment
from .threads import each
from .writer import remove_segments

if TYPE_CHECKING:
    from .handle import Handle

PIECE_ROWS = 1 << 19
"""Touched rows whose old rows are looked up, and held in memory, together."""
Images = tuple[tuple[Segment, ...], ...]


def write_images(handle: Handle, table: TableDef, before: ScanPlan, epochs: Sequence[Sequence[Segment]]) -> Images:
    """For each log epoch of a commit, oldest first, files with the rows before it; durable on return.

    epochs: their segments. They bear the name of the intent of the first of them: as long as that may be committed,
    the files stay. Whatever fails leaves no file behind.
    """
    segments = [segment for epoch in epochs for segment in epoch]
    written: list[list[Segment]] = [[] for _ in epochs]
    pieces = key_pieces(handle.files, table.schema, segments, cost(segments) // PIECE_ROWS, EVERYTHING)
    try:
        for key_range in pieces:
            for place, rows in _old_rows(handle.files, table.schema, before, epochs, key_range):
                path = f"{handle.table_folder(table.id)}/{file_name(intent_of(segments[0].path), '.arrow')}"
                codec = KeyCodec(table.schema.schema, table.schema.primary_key)
                file = write_segment(handle.files, path, table.id, table.schema, codec, rows)
                written[place].append(file)
    except BaseException:
        remove_segments(handle.files, (file for files in written for file in files))
        raise
    return tuple(tuple(files) for files in written)


def _old_rows(
    files: Files, table: TableSchema, before: ScanPlan, epochs: Sequence[Sequence[Segment]], key_range: KeyRange
) -> list[tuple[int, Rows]]:
    """For the epochs (by place) that replace rows of the key range, these rows."""
    names = table.schema.names if len(epochs) > 1 else list(table.primary_key)  # what later epochs replace, or none
    found = [read_epoch(files, table, epoch, names, key_range) for epoch in epochs]
    touched = [(place, rows) for place, rows in enumerate(found) if rows is not None]
    if not touched:
        return []
    touches = end_to_end(touched)
    order = by_key(touches)
    keys = touches.keys.take(pa.array(order.oldest))
    state = before.rows_of(files, keys, table.schema.names)
    if len(epochs) == 1:
        return [(0, state)] if len(state) else []
    places, pool = replaced(touches, order, state), stacked([state.data, touches.data]).combine_chunks()
    old: list[tuple[int, Rows]] = []
    for place, rows in touched:
        at = places[touches.labels == place]
        known = pa.array(at >= 0)
        if known.true_count:
            old.append((place, Rows(rows.keys.filter(known), pool.take(pa.array(at[at >= 0])))))
    return old


def read_epoch(
    files: Files, table: TableSchema, segments: Sequence[Segment], columns: Sequence[str], key_range: KeyRange
) -> Rows | None:
    """The newest change of each key of the range in one log epoch; None if there is none."""
    codec = KeyCodec(table.schema, table.primary_key)
    found = each(
        lambda segment: SegmentReader(files, segment, table, codec).read(columns, key_range),
        segments,
        sum(segment.rows for segment in segments),
    )
    found = [rows for rows in found if len(rows)]
    return newest_wins(found) if found else None
