"""A read cut into pieces, one per Spark task. The driver cuts, tasks read; no task opens the catalog, nothing imports
pyspark.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil

import pyarrow as pa
import pyarrow.compute as pc

from ..errors import Corrupt, SnapshotExpired
from ..store.balance import Source, Span, balanced, weigh
from ..store.files import Files
from ..store.keys import Key
from ..store.log import LogPlan
from ..store.prune import key_prunes
from ..store.run import Part, Run
from ..store.scan import EVERYTHING, KeyRange, ScanPlan
from ..store.segment import Segment
from .spark_options import Tasks
from .spark_types import to_spark
from .worker import settle

SMALLEST_PIECE_BYTES, LARGEST_PIECE_BYTES = 4 << 20, 128 << 20
"""In memory, of all that is read for a piece; so much as Spark's own readers take of files."""
BATCH_ROWS = 1 << 16


@dataclass(frozen=True, slots=True)
class Piece:
    """One task's share: a plan, the keys of it to read, and the exact schema that Spark expects. Picklable."""

    files: Files
    plan: ScanPlan | LogPlan
    wanted: pa.Schema
    columns: tuple[str, ...]  # of the table; the change columns come by themselves
    filter: pc.Expression | None = None
    mode: str = "epochs"
    pre_images: bool = False
    key_range: KeyRange = EVERYTHING

    def read(self) -> Iterator[pa.RecordBatch]:
        """The rows in Spark's types. SnapshotExpired when a file has gone since the plan was made."""
        settle()
        name = self.plan.table.name
        try:
            for batch in self._batches():
                yield from to_spark(name, batch, self.wanted).to_batches(max_chunksize=BATCH_ROWS)
        except Corrupt as error:
            if "gone" not in error.what:
                raise
            raise SnapshotExpired(
                f"table {name!r}: {error.path} has gone since this read was planned, longer ago than its lease; "
                "load it again"
            ) from error

    def _batches(self) -> Iterator[pa.RecordBatch]:
        if isinstance(self.plan, ScanPlan):
            return self.plan.batches(self.files, self.columns, self.filter, self.key_range)
        return self.plan.batches(
            self.files,
            self.mode,
            pre_images=self.pre_images,
            columns=self.columns,
            filter=self.filter,
            key_range=self.key_range,
        )


def cut(piece: Piece, tasks: Tasks) -> list[Piece]:
    """The same rows in key order, in pieces that read like numbers of bytes: one for each task that the session runs at
    a time, fewer when they would be small, more when they would be large, or when more are wanted; none for an empty
    plan. Raises Corrupt.
    """
    table, spans = piece.plan.table, _spans(piece.plan, piece.columns, piece.filter)
    size = sum(span.bytes for span in spans)
    if not spans:
        return []
    worth_while = min(tasks.parallelism, int(size // SMALLEST_PIECE_BYTES))
    count = max(tasks.at_least, worth_while, ceil(size / LARGEST_PIECE_BYTES))
    ranges = balanced(piece.files, table, spans, piece.columns, count, piece.key_range)
    return [replace(piece, plan=narrowed(piece.plan, keys), key_range=keys) for keys in ranges]


def bytes_to_read(plan: ScanPlan | LogPlan, columns: Sequence[str], filter: pc.Expression | None = None) -> float:
    """What these columns (and the key) take in memory, at most: of the files that the filter does not rule out by their
    keys.
    """
    return sum(span.bytes for span in _spans(plan, columns, filter))


def _spans(plan: ScanPlan | LogPlan, columns: Sequence[str], filter: pc.Expression | None) -> list[Span]:
    ruled_out = key_prunes(plan.table, filter)
    return weigh(plan.table, [file for file in sources_of(plan) if not ruled_out(file.stats)], columns)


def sources_of(plan: ScanPlan | LogPlan) -> Sequence[Source]:
    """The files that hold the rows to give out, and those that hide some of them."""
    if isinstance(plan, LogPlan) and not plan.backfill:
        return [segment for group in plan.groups for segment in group.segments]
    scan = plan.before if isinstance(plan, LogPlan) else plan
    assert scan is not None
    return scan.files


def source_of(plan: ScanPlan | LogPlan) -> ScanPlan:
    """The files that hold the rows to give out: what sizes and key ranges are judged by."""
    if isinstance(plan, ScanPlan):
        return plan
    if plan.backfill and plan.before is not None:
        return plan.before
    return ScanPlan(plan.table, 0, (), tuple(segment for group in plan.groups for segment in group.segments))


def narrowed(plan: ScanPlan | LogPlan, keys: KeyRange) -> ScanPlan | LogPlan:
    """The plan without the files that hold none of these keys."""
    if keys == EVERYTHING:
        return plan
    if isinstance(plan, ScanPlan):
        return replace(
            plan, runs=tuple(_narrow_run(run, keys) for run in plan.runs), segments=_within(plan.segments, keys)
        )
    before = None if plan.before is None else narrowed(plan.before, keys)
    groups = tuple(
        replace(group, segments=_within(group.segments, keys), images=_within(group.images, keys))
        for group in plan.groups
    )
    return replace(plan, before=before, groups=groups)


def _narrow_run(run: Run, keys: KeyRange) -> Run:
    def within(parts: Sequence[Part]) -> tuple[Part, ...]:
        return tuple(part for part in parts if _overlaps(part.key_min, part.key_max, keys))

    return replace(run, parts=within(run.parts), history=within(run.history))


def _within(segments: Sequence[Segment], keys: KeyRange) -> tuple[Segment, ...]:
    return tuple(segment for segment in segments if _overlaps(segment.key_min, segment.key_max, keys))


def _overlaps(low: Key, high: Key, keys: KeyRange) -> bool:
    return (keys[0] is None or high >= keys[0]) and (keys[1] is None or low < keys[1])
