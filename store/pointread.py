"""Reading the rows of given keys: of each file only the blocks that can hold one are decoded, nothing is merged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from .datafile import KeyRange
from .files import Files
from .keys import Key, search
from .merge import Rows, lookup
from .scan import ScanPlan, run_rows
from .segment import SegmentReader
from .threads import each

BLOCKS_TOGETHER = 8
"""Neighbouring blocks that are decoded at once."""
WAVE_ROWS = 1 << 22
"""Rows of the sources that are looked at together; what is found in them is not looked for in older ones."""


@dataclass(frozen=True, slots=True)
class _Source:
    """A run or a segment: the first keys of its blocks, in order, and how to read a key range of it."""

    rows: int
    blocks: Sequence[Key]
    read: Callable[[KeyRange], Rows]


@dataclass(frozen=True, slots=True)
class _Hits:
    """What a source has of some keys: their places among all keys looked for, and the rows."""

    places: np.ndarray
    data: pa.Table
    deleted: np.ndarray


def rows_of(plan: ScanPlan, files: Files, keys: pa.Array, columns: Sequence[str]) -> Rows:
    """The rows of these keys (sorted, each once) that are there at the plan's epoch."""
    waves: list[list[_Hits]] = []
    left = np.arange(len(keys))
    for wave in _waves(_sources(plan, files, columns)):
        jobs = [job for source in wave for job in _jobs(plan, source, keys, left)]
        found = each(lambda job: job(), jobs, sum(source.rows for source in wave))
        waves.append([hits for hits in found if len(hits.places)])
        seen = np.zeros(len(keys), np.bool_)
        for hits in waves[-1]:
            seen[hits.places] = True
        left = left[~seen[left]]
        if not len(left):
            break
    return _newest(plan, keys, columns, [hits for found in waves for hits in found])


def _sources(plan: ScanPlan, files: Files, columns: Sequence[str]) -> Iterator[_Source]:
    """Newest first."""
    codec = plan.codec
    for segment in reversed(plan.segments):
        reader = SegmentReader(files, segment, plan.table, codec)
        yield _Source(segment.rows, segment.blocks, lambda keys, reader=reader: reader.read(columns, keys))
    for run in reversed(plan.runs):
        blocks = sorted({key for part in (*run.parts, *run.history) for key in part.blocks})
        yield _Source(
            sum(part.rows for part in run.parts),
            blocks,
            lambda keys, run=run: run_rows(files, plan.table, codec, run, plan.epoch, columns, None, keys),
        )


def _waves(sources: Iterator[_Source]) -> Iterator[list[_Source]]:
    wave: list[_Source] = []
    for source in sources:
        wave.append(source)
        if sum(source.rows for source in wave) >= WAVE_ROWS:
            yield wave
            wave = []
    if wave:
        yield wave


def _jobs(plan: ScanPlan, source: _Source, keys: pa.Array, left: np.ndarray) -> Iterator[Callable[[], _Hits]]:
    """One for each few neighbouring blocks that may hold some of the keys that are left."""
    if not source.blocks or not len(left):
        return
    needles = keys if len(left) == len(keys) else keys.take(pa.array(left))
    block = search(plan.codec.array(source.blocks), needles, "right") - 1  # -1: below all that the source holds
    at = int(np.searchsorted(block, 0))
    while at < len(needles):
        first, end = at, int(np.searchsorted(block, block[at] + 1))
        while end < len(needles) and block[end] < block[first] + BLOCKS_TOGETHER and block[end] <= block[end - 1] + 1:
            end = int(np.searchsorted(block, block[end] + 1))
        yield lambda first=first, end=end: _found(plan, source, needles.slice(first, end - first), left[first:end])
        at = end


def _found(plan: ScanPlan, source: _Source, needles: pa.Array, places: np.ndarray) -> _Hits:
    rows = source.read((needles[0].as_py(), plan.codec.above(needles[len(needles) - 1].as_py())))
    at = lookup(rows, needles)
    hit = at >= 0
    at = at[hit]
    deleted = np.zeros(len(at), np.bool_) if rows.deleted is None else rows.deleted[at]
    return _Hits(places[hit], rows.data.take(pa.array(at)), deleted)


def _newest(plan: ScanPlan, keys: pa.Array, columns: Sequence[str], found: Sequence[_Hits]) -> Rows:
    """`found`: newest first."""
    schema = pa.schema([plan.table.schema.field(name).with_nullable(True) for name in columns])
    if not found:
        return Rows(keys.slice(0, 0), schema.empty_table())
    winner = np.full(len(keys), -1)
    starts = np.cumsum([0, *(len(hits.places) for hits in found)])
    for hits, start in zip(reversed(found), reversed(starts[:-1].tolist()), strict=True):
        winner[hits.places] = np.where(hits.deleted, -1, np.arange(start, start + len(hits.places)))
    there = winner >= 0
    data = pa.concat_tables([pa.Table.from_arrays(hits.data.columns, schema=schema) for hits in found])
    present = keys if there.all() else keys.filter(pa.array(there))
    picks = winner[there]
    if len(picks) == data.num_rows and (picks[1:] > picks[:-1]).all():
        return Rows(present, data)
    return Rows(present, data.combine_chunks().take(pa.array(picks)))
