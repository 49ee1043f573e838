"""Key ranges that cut a read into splits of similar bytes.

The catalog has the sizes of the blocks of all files; a block's bytes are spread evenly over its keys. Where a cut may
be off by more than TOLERANCE of a split, the uncertain blocks are read and replaced by many small slices, and the cuts
are computed again. If many blocks lie over one cut, as a log's small segments do, a sample of them is read.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import numpy as np
import pyarrow as pa

from epochlog.store.env.files import Files
from epochlog.store.env.parallel import parallel_map
from epochlog.store.sst.file_columns import column_map
from epochlog.store.sst.segment import BATCH_ROWS, Segment, SegmentReader
from epochlog.store.sst.sorted_run import RunFile, read_blocks
from epochlog.store.types.arrays import from_numpy
from epochlog.store.types.key_codec import Key, KeyCodec
from epochlog.store.types.key_range import KeyRange
from epochlog.store.types.row_size import row_bytes, split_widths, varying_bytes
from epochlog.store.types.schema import TableSchema

TOLERANCE = 0.05
"""Largest error of either end of a split, as a share of the split."""
LARGEST, LOOKS = 4, 8
"""Blocks read for a cut at a time: the LARGEST largest, and at most LOOKS of the others as a sample."""
_SLICES = 64
_ROUNDS = 4

Source = Segment | RunFile


@dataclass(frozen=True, slots=True)
class Span:
    """Rows of `bytes` bytes with keys in [low, end); the last span of a file includes `end`."""

    low: Key
    end: Key
    bytes: float
    source: Source | None = None  # None for a slice of a block that was read
    block: int = 0


@dataclass(frozen=True, slots=True)
class SizeHistogram:
    """Histogram of a read's bytes over its keys."""

    spans: tuple[Span, ...]
    lows: tuple[list[Key], list[float]] = field(init=False)
    ends: tuple[list[Key], list[float]] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "lows", _summed((span.low, span.bytes) for span in self.spans))
        object.__setattr__(self, "ends", _summed((span.end, span.bytes) for span in self.spans))

    @property
    def bytes(self) -> float:
        return self.lows[1][-1]

    def below(self, key: Key) -> tuple[float, float]:
        """Return the least and the most bytes that keys below this one may have."""
        (lows, begun), (ends, ended) = self.lows, self.ends
        least, most = ended[bisect_right(ends, key)], begun[bisect_left(lows, key)]
        return min(least, most), most

    def cut(self, share: float) -> Key:
        """Return the key with about `share` bytes below it."""
        keys = self.lows[0]
        at = bisect_left(keys, share, key=lambda key: sum(self.below(key)) / 2)
        near = keys[max(0, at - 1) : at + 1] or keys[-1:]
        return min(near, key=lambda key: abs(sum(self.below(key)) / 2 - share))

    def vague(self, key: Key, share: float, most: float) -> list[Span]:
        """List the blocks, largest first, that keep the cut at this key from being within `most` bytes of `share`."""
        least, greatest = self.below(key)
        off = abs((least + greatest) / 2 - share) + (greatest - least) / 2
        through = [span for span in self.spans if span.source and span.low < key < span.end]
        beside = [span for span in self.spans if span.source and key in (span.low, span.end)]
        blocks: list[Span] = []
        for span in sorted([*through, *beside], key=lambda span: -span.bytes):
            if off <= most:
                break
            blocks.append(span)
            off -= span.bytes / 2
        return blocks


def estimate_sizes(table: TableSchema, sources: Iterable[Source], columns: Sequence[str]) -> list[Span]:
    """List the blocks of these files with their bytes in memory, of these columns and the key."""
    fixed, varying = split_widths(_fields(table, columns))
    return [span for source in sources for span in _blocks(source, fixed, _names_in(table, source, varying))]


def _names_in(table: TableSchema, source: Source, names: Sequence[str]) -> Sequence[str]:
    """Return the names that these columns have in a file, without those that it lacks."""
    columns = column_map(table, source)
    return names if columns is None else sorted(columns.physical(names))


def split_evenly(
    files: Files, table: TableSchema, spans: Sequence[Span], columns: Sequence[str], count: int, within: KeyRange
) -> list[KeyRange]:
    """Return at most `count` key ranges that tile `within`, with similar sums of the spans' bytes. Raises Corrupt."""
    low, high = within
    inside = [span for span in spans if within.overlaps(span.low, span.end)]
    if count < 2 or not inside:
        return [within]
    histogram = SizeHistogram(tuple(inside))
    for _ in range(_ROUNDS):
        groups = list(_vague(histogram, count))
        if not groups:
            break
        histogram = _read_slices(files, table, columns, histogram, groups)
    low = histogram.lows[0][0] if low is None else max(low, histogram.lows[0][0])
    cuts = sorted({key for _, key in _cuts(histogram, count) if key > low and (high is None or key < high)})
    return [KeyRange(*ends) for ends in pairwise([within.low, *cuts, high])]


def _cuts(histogram: SizeHistogram, count: int) -> Iterator[tuple[float, Key]]:
    for place in range(1, count):
        share = histogram.bytes * place / count
        yield share, histogram.cut(share)


def _vague(histogram: SizeHistogram, count: int) -> Iterator[list[Span]]:
    """Yield the blocks that make each cut uncertain, without those of earlier cuts."""
    named: set[int] = set()
    for share, key in _cuts(histogram, count):
        vague = [
            span for span in histogram.vague(key, share, histogram.bytes / count * TOLERANCE) if id(span) not in named
        ]
        named |= {id(span) for span in vague}
        if vague:
            yield vague


def _read_slices(
    files: Files, table: TableSchema, columns: Sequence[str], histogram: SizeHistogram, groups: Sequence[list[Span]]
) -> SizeHistogram:
    """Replace the blocks of `groups` by slices, read from the files."""
    sliced = {id(span) for group in groups for span in group}
    chosen: list[tuple[Span, float]] = []
    for group in groups:
        large, small = group[:LARGEST], group[LARGEST:]
        some = [small[place * len(small) // LOOKS] for place in range(LOOKS)] if len(small) > LOOKS else small
        worth = sum(span.bytes for span in small) / max(1.0, sum(span.bytes for span in some))
        chosen += [*((span, span.bytes) for span in large), *((span, span.bytes * worth) for span in some)]
    read = parallel_map(lambda block: list(_slices(files, table, columns, *block)), chosen, BATCH_ROWS * len(chosen))
    left = [span for span in histogram.spans if id(span) not in sliced]
    return SizeHistogram(tuple(left + [span for spans in read for span in spans]))


def _slices(files: Files, table: TableSchema, columns: Sequence[str], span: Span, worth: float) -> Iterator[Span]:
    """Cut a block into slices of its rows with similar bytes, `worth` bytes together."""
    codec, source = KeyCodec(table.schema, table.primary_key), span.source
    fixed, names = split_widths(_fields(table, columns))
    if isinstance(source, RunFile):
        (rows,) = read_blocks(files, source, table, codec, names, [span.block])
    else:
        assert source is not None
        (rows,) = SegmentReader(files, source, table, codec).read_blocks(names, [span.block])
    taken = np.cumsum(np.full(len(rows), max(1.0, fixed)) + (row_bytes(rows.data) if names else 0.0))
    places = np.unique(np.searchsorted(taken, taken[-1] * np.arange(_SLICES) / _SLICES))
    keys = rows.keys.take(from_numpy(places)).to_pylist()
    edges = [0.0, *taken[places[1:] - 1].tolist(), float(taken[-1])]
    for (low, end), (before, after) in zip(pairwise([*keys, span.end]), pairwise(edges), strict=True):
        yield Span(low, end, worth * (after - before) / edges[-1])


def _fields(table: TableSchema, columns: Sequence[str]) -> list[pa.Field]:
    return [table.schema.field(name) for name in dict.fromkeys([*columns, *table.primary_key])]


def _blocks(source: Source, fixed: int, varying: Sequence[str]) -> Iterator[Span]:
    count = len(source.blocks)
    rows = _block_rows(source.rows, count)
    sizes = varying_bytes(source.sizes, varying, count)
    if varying and not source.sizes:  # written by one of the first builds
        sizes = [source.bytes // count] * count
    ends = [*source.blocks[1:], source.key_max]
    for place, (low, end) in enumerate(zip(source.blocks, ends, strict=True)):
        yield Span(low, end, rows[place] * fixed + sizes[place], source, place)


def _block_rows(rows: int, count: int) -> list[float]:
    """Return the rows of each block of a file: all but the last are full, unless another build wrote the file."""
    for full in (BATCH_ROWS >> shift for shift in range(4)):
        if count == -(-rows // full):
            return [float(min(full, rows - place * full)) for place in range(count)]
    return [rows / count] * count


def _summed(marks: Iterable[tuple[Key, float]]) -> tuple[list[Key], list[float]]:
    """Return the keys in order, and the sums of all values before each of them, and before the end."""
    ordered = sorted(marks, key=lambda mark: mark[0])
    return [key for key, _ in ordered], [0.0, *accumulate(worth for _, worth in ordered)]
