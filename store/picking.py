"""Which runs of a table to merge next, and in which pieces: pure functions of what the catalog tells.

Universal compaction (size-tiered): L0, and the runs above it that are no larger than what is merged so far, become one
run. Runs above the oldest one are folded into it when they hold half as much as it does. So a row is rewritten a
logarithmic number of times, reads merge a logarithmic number of runs, and space stays within a factor.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

from .keys import Key, KeyCodec
from .records import Record, checked
from .run import Part, Run
from .version import LogEntry, Runs, TableVersion

PIECE_ROWS = 1 << 19
"""Rows of all inputs that one piece of a compaction reads, about: what is in memory at a time."""
PIECE_BYTES = 16 << 20
"""The same in bytes of (compressed) files."""
SPACE_PERCENT = 50
MAX_RUNS = 12
HISTORY_PARTS = 16
"""History parts of a task's inputs, beyond one for each live part, at which the small ones among them are merged."""


@dataclass(frozen=True, slots=True)
class Task:
    """Make one run of `runs` adjoining runs from `lo` on, and of L0 through `hi` if it is among the inputs.

    l0_after: where L0 began when the task was picked, None if the task takes runs alone. Versions that no epoch >=
    `safe_epoch` can see are not kept. `rewritten`: the history parts that are merged too; what was replaced once stays
    as it was, so the others go into the new run as they are.
    """

    reason: str
    lo: int
    hi: int
    runs: int
    l0_after: int | None
    safe_epoch: int
    rewritten: tuple[str, ...] = ()

    @property
    def bottom(self) -> bool:
        """Nothing lies below: tombstones have done their work."""
        return self.lo == 0

    def inputs(self, runs: Runs) -> Runs | None:
        """The task's runs among those of the table now; None when they have gone."""
        at = next((i for i, run in enumerate(runs) if run.lo == self.lo), len(runs))
        found = runs[at : at + self.runs]
        end = self.l0_after if self.l0_after is not None else self.hi
        whole = len(found) == self.runs and (found[-1].hi == end if found else self.lo == end)
        newest = self.l0_after is None or at + self.runs == len(runs)
        return found if whole and newest else None

    def kept(self, runs: Runs) -> tuple[Part, ...]:
        """The history parts of its runs that it takes over as they are."""
        rewritten = set(self.rewritten)
        found = (part for run in runs for part in run.history if part.path not in rewritten)
        return tuple(part for part in found if part.until > self.safe_epoch)

    def to_record(self) -> Record:
        return asdict(self)

    @classmethod
    @checked
    def from_record(cls, record: Record) -> Task:
        return cls(**{**record, "rewritten": tuple(record["rewritten"])})


@dataclass(frozen=True, slots=True)
class Piece:
    """A key range [low, high) of a task, None is open. `reused`: the one part that holds all of it, to be kept."""

    low: Key | None
    high: Key | None
    reused: str | None = None


def pick(
    version: TableVersion, runs: Runs, *, compact_segments: int, full: bool = False, l0_only: bool = False
) -> Task | None:
    """The next compaction of a table, or None.

    full: everything into one run. l0_only: L0 into a run of its own, which takes the least time.
    """
    l0 = version.l0_segments >= (1 if full or l0_only else compact_segments)
    if l0_only:
        return _task(version, runs, len(runs), "L0 is at its limit", l0=True) if l0 else None
    if full:
        return _task(version, runs, 0, "asked for in full", l0=l0) if l0 or len(runs) > 1 else None
    if not runs:
        return _task(version, runs, 0, _l0_reason(version, compact_segments), l0=True) if l0 else None
    upper = sum(run.live_bytes for run in runs[1:]) + (version.l0_bytes if l0 else 0)
    bottom = runs[0].live_bytes
    if upper and (l0 or len(runs) > 1) and upper * 100 >= bottom * SPACE_PERCENT:
        reason = f"what lies above the oldest run has {upper} bytes, {SPACE_PERCENT} % of its {bottom} are enough"
        return _task(version, runs, 0, reason, l0=l0)
    first, gathered = (len(runs), version.l0_bytes) if l0 else (len(runs) - 1, runs[len(runs) - 1].live_bytes)
    while first > 1 and runs[first - 1].live_bytes <= gathered:
        first -= 1
        gathered += runs[first].live_bytes
    if l0:
        return _task(version, runs, first, _l0_reason(version, compact_segments), l0=True)
    if first < len(runs) - 1:
        return _task(version, runs, first, f"{len(runs) - first} runs are of like size", l0=False)
    if len(runs) > MAX_RUNS:
        return _task(version, runs, 1, f"there are {len(runs)} runs, {MAX_RUNS} are the most", l0=False)
    return None


def _l0_reason(version: TableVersion, compact_segments: int) -> str:
    return f"L0 has {version.l0_segments} segments, {compact_segments} are enough"


def _task(version: TableVersion, runs: Runs, first: int, reason: str, *, l0: bool) -> Task:
    """Merge the runs from `first` on, and L0 on top of them if `l0`."""
    lo = runs[first].lo if first < len(runs) else version.compacted_epoch
    hi = version.max_committed_epoch if l0 else version.compacted_epoch
    l0_after = version.compacted_epoch if l0 else None
    return Task(reason, lo, hi, len(runs) - first, l0_after, version.safe_epoch, _rewritten(version, runs[first:]))


def _rewritten(version: TableVersion, runs: Runs) -> tuple[str, ...]:
    """The small ones of too many history parts, each no larger than those below it together."""
    past = [part for run in runs for part in run.history if part.until > version.safe_epoch]
    if len(past) < HISTORY_PARTS + sum(len(run.parts) for run in runs):
        return ()
    chosen: list[Part] = []
    for part in sorted(past, key=lambda part: part.bytes):
        if len(chosen) >= HISTORY_PARTS // 2 and part.bytes > sum(one.bytes for one in chosen):
            break
        chosen.append(part)
    return tuple(part.path for part in chosen)


# ---- pieces --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Span:
    """The keys of one input file, with the weight of its blocks."""

    low: Key
    high: Key
    blocks: tuple[Key, ...]
    rows: int
    bytes: int
    path: str
    keepable: bool


def pieces(codec: KeyCodec, task: Task, runs: Sequence[Run], entries: Sequence[LogEntry]) -> list[Piece]:
    """Key ranges that tile a task, in key order, each read and written by itself.

    A part that no other input reaches into stays as it is: a table that only grows at its end is not written again.
    """
    spans = list(_spans(task, runs, entries))
    kept = [span for span in spans if span.keepable and not _touched(span, spans)]
    found: list[Piece] = []
    low: Key | None = None
    for span in sorted(kept, key=lambda span: span.low):
        found += _split(spans, low, span.low)
        low = codec.above(span.high)
        found.append(Piece(span.low, low, span.path))
        if low is None:
            return found
    return found + _split(spans, low, None)


def _spans(task: Task, runs: Sequence[Run], entries: Sequence[LogEntry]) -> Iterable[_Span]:
    rewritten = set(task.rewritten)
    for run in runs:
        for part in (*run.parts, *(part for part in run.history if part.path in rewritten)):
            keepable = not part.history and not (task.bottom and part.deletes)
            yield _Span(part.key_min, part.key_max, part.blocks, part.rows, part.bytes, part.path, keepable)
    for entry in entries:
        for segment in entry.segments:
            low, high, blocks = segment.key_min, segment.key_max, segment.blocks
            yield _Span(low, high, blocks, segment.rows, segment.bytes, segment.path, keepable=False)


def _touched(span: _Span, spans: Sequence[_Span]) -> bool:
    """Whether another input holds keys between the span's least and greatest."""
    return any(other is not span and other.low <= span.high and other.high >= span.low for other in spans)


def _split(spans: Sequence[_Span], low: Key | None, high: Key | None) -> list[Piece]:
    """Pieces of [low, high) of about PIECE_ROWS rows or PIECE_BYTES each; none where there are no keys."""
    inside = [span for span in spans if (high is None or span.low < high) and (low is None or span.high >= low)]
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
        if (rows >= PIECE_ROWS or size >= PIECE_BYTES) and (not cuts or key > cuts[-1]):
            cuts.append(key)
            rows = size = 0.0
        rows, size = rows + more_rows, size + more_bytes
    return [Piece(start, end) for start, end in pairwise([low, *cuts, high])]
