"""Key ranges that cut work into splits of similar size, so that memory stays bounded for a log of any length."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from epochlog.store.env.files import Files
from epochlog.store.sst.segment import Segment, SegmentReader
from epochlog.store.types.arrays import from_numpy
from epochlog.store.types.key_codec import Key, KeyCodec
from epochlog.store.types.key_range import KeyRange
from epochlog.store.types.schema import TableSchema

ROW_BYTES = 64
"""Bytes of an ordinary row in a file; a wider row counts as several."""
_ENOUGH_BLOCKS = 8
_SAMPLED_KEYS = 64


def cost(segments: Iterable[Segment]) -> int:
    """Return the memory cost of segments, counted in rows of ordinary width."""
    return sum(max(segment.rows, own_bytes(segment) // ROW_BYTES) for segment in segments)


def own_bytes(segment: Segment) -> int:
    """Return the bytes of a segment, or about those of a part of a pack."""
    return segment.bytes if segment.file_rows is None else segment.bytes * segment.rows // max(1, segment.file_rows)


def split_by_weight(marks: Iterable[tuple[Key, float]], count: int, within: KeyRange) -> list[KeyRange]:
    """Return at most `count` key ranges that tile `within`. marks: keys in any order, with the rows following each."""
    low, high = within
    inside = sorted((key, rows) for key, rows in marks if (low is None or key > low) and (high is None or key < high))
    total, cuts, seen = sum(rows for _, rows in inside), [], 0
    for key, rows in inside:
        if len(cuts) < count - 1 and seen >= total * (len(cuts) + 1) / count and (not cuts or key > cuts[-1]):
            cuts.append(key)
        seen += rows
    return [KeyRange(*ends) for ends in pairwise([low, *cuts, high])]


def key_splits(
    files: Files, table: TableSchema, segments: Sequence[Segment], count: int, within: KeyRange
) -> list[KeyRange]:
    """Return at most `count` key ranges that tile `within`, with similar numbers of the segments' rows.

    The blocks of large segments weigh by their rows; of segments with few blocks, a sample of keys is read.
    """
    if count < 2 or not segments:
        return [within]
    codec = KeyCodec(table.schema, table.primary_key)
    large = [segment for segment in segments if len(segment.blocks) >= _ENOUGH_BLOCKS]
    small = [segment for segment in segments if len(segment.blocks) < _ENOUGH_BLOCKS]
    marks = [(key, segment.rows // len(segment.blocks)) for segment in large for key in segment.blocks]
    chosen = _spread(small, 4 * count + 8)
    share = max(1, sum(segment.rows for segment in small) // max(1, len(chosen) * _SAMPLED_KEYS))
    for segment in chosen:
        keys = SegmentReader(files, segment, table, codec).read((), within).keys  # of a pack, each key once
        places = from_numpy(np.array(_evenly(len(keys), _SAMPLED_KEYS), np.int64))
        marks += [(key, share) for key in keys.take(places).to_pylist()]
    return split_by_weight(marks, count, within)


def _spread(segments: Sequence[Segment], most: int) -> list[Segment]:
    return [segments[place] for place in _evenly(len(segments), most)]


def _evenly(length: int, most: int) -> list[int]:
    """Return at most `most` indices, spread evenly over `length`."""
    count = min(length, most)
    return [place * length // count for place in range(count)]
