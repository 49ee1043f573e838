"""Subcompactions: key ranges of bounded size that tile a compaction task, and the parts that the new run reuses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from epochlog.store.metadata.version import LogEntry
from epochlog.store.sst.sorted_run import SortedRun
from epochlog.store.types.key_codec import Key, KeyCodec
from epochlog.store.types.key_range import KeyRange

from .strategy import CompactionTask

SUBCOMPACTION_ROWS = 1 << 19
"""About the most rows of all inputs that one subcompaction reads, and so has in memory."""
SUBCOMPACTION_BYTES = 16 << 20
"""About the most bytes of (compressed) files that one subcompaction reads."""


@dataclass(frozen=True, slots=True)
class Subcompaction:
    """Part of a compaction task that is read and written by itself: the keys in [low, high), None is open."""

    low: Key | None
    high: Key | None
    reused: str | None = None
    """One part that holds them all and is kept."""

    @property
    def key_range(self) -> KeyRange:
        return KeyRange(self.low, self.high)


@dataclass(frozen=True, slots=True)
class _Span:
    """Key interval of one input file, with the weight of its blocks."""

    low: Key
    high: Key
    blocks: tuple[Key, ...]
    rows: int
    bytes: int
    path: str
    keepable: bool


def cut_task(
    codec: KeyCodec, task: CompactionTask, runs: Sequence[SortedRun], entries: Sequence[LogEntry]
) -> list[Subcompaction]:
    """Cut a task into subcompactions, which tile its keys in order; each is read and written by itself.

    A part that overlaps no other input is reused, so that a table that only grows at its end is not rewritten.
    """
    spans = list(_spans(task, runs, entries))
    if task.past_only:
        return _split(spans, None, None)
    kept = [span for span in spans if span.keepable and not _touched(span, spans)]
    tiles: list[Subcompaction] = []
    low: Key | None = None
    for span in sorted(kept, key=lambda span: span.low):
        tiles += _split(spans, low, span.low)
        low = codec.above(span.high)
        tiles.append(Subcompaction(span.low, low, span.path))
        if low is None:
            return tiles
    return tiles + _split(spans, low, None)


def _spans(task: CompactionTask, runs: Sequence[SortedRun], entries: Sequence[LogEntry]) -> Iterable[_Span]:
    rewritten = set(task.rewritten)
    for run in runs:
        live = () if task.past_only else run.parts
        past = (part for part in run.history if part.path in rewritten or run.at is not None)
        for part in (*live, *past):
            keepable = run.at is None and not part.history and not (task.bottom and part.deletes)
            yield _Span(part.key_min, part.key_max, part.blocks, part.rows, part.bytes, part.path, keepable)
    for entry in entries:
        for segment in entry.segments:
            low, high, blocks = segment.key_min, segment.key_max, segment.blocks
            yield _Span(low, high, blocks, segment.rows, segment.bytes, segment.path, keepable=False)


def _touched(span: _Span, spans: Sequence[_Span]) -> bool:
    """Return True if another input has keys between the span's least and greatest."""
    return any(other is not span and other.low <= span.high and other.high >= span.low for other in spans)


def _split(spans: Sequence[_Span], low: Key | None, high: Key | None) -> list[Subcompaction]:
    """Return subcompactions of [low, high) of about SUBCOMPACTION_ROWS rows or SUBCOMPACTION_BYTES each; none where
    there are no keys.
    """
    within = KeyRange(low, high)
    inside = [span for span in spans if within.overlaps(span.low, span.high)]
    if not inside:
        return []
    marks = sorted(
        (key, span.rows / len(span.blocks), span.bytes / len(span.blocks))
        for span in inside
        for key in span.blocks
        if key == key and (low is None or key > low) and (high is None or key < high)
    )
    cuts: list[Key] = []
    rows = size = 0.0
    for key, more_rows, more_bytes in marks:
        if (rows >= SUBCOMPACTION_ROWS or size >= SUBCOMPACTION_BYTES) and (not cuts or key > cuts[-1]):
            cuts.append(key)
            rows = size = 0.0
        rows, size = rows + more_rows, size + more_bytes
    return [Subcompaction(start, end) for start, end in pairwise([low, *cuts, high])]
