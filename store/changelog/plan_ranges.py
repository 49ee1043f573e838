"""Plans of reads, of a table or its log: the bytes that they read, and the part of them within a key range (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow.compute as pc

from epochlog.store.scan.pruning import key_prunes
from epochlog.store.scan.scan_plan import EVERYTHING, KeyRange, ScanPlan
from epochlog.store.scan.size_splits import Source, Span, estimate_sizes
from epochlog.store.sst.segment import Segment
from epochlog.store.sst.sorted_run import RunFile, SortedRun
from epochlog.store.types.key_codec import Key

from .log_plan import LogPlan


def bytes_to_read(plan: ScanPlan | LogPlan, columns: Sequence[str], filter: pc.Expression | None = None) -> float:
    """Return an upper bound, in bytes of memory, on these columns and the key in the files that the filter's keys do
    not exclude.
    """
    return sum(span.bytes for span in spans_of(plan, columns, filter))


def spans_of(plan: ScanPlan | LogPlan, columns: Sequence[str], filter: pc.Expression | None) -> list[Span]:
    ruled_out = key_prunes(plan.table, filter)
    return estimate_sizes(plan.table, [file for file in sources_of(plan) if not ruled_out(file.stats)], columns)


def sources_of(plan: ScanPlan | LogPlan) -> Sequence[Source]:
    """Return the files that hold the rows to give out, and those that hide some of them."""
    if isinstance(plan, LogPlan) and not plan.backfill:
        return [segment for group in plan.groups for segment in group.segments]
    scan = plan.before if isinstance(plan, LogPlan) else plan
    assert scan is not None
    return scan.files


def source_of(plan: ScanPlan | LogPlan) -> ScanPlan:
    """Return a plan of the files that hold the rows to give out; sizes and key ranges are computed from them."""
    if isinstance(plan, ScanPlan):
        return plan
    if plan.backfill and plan.before is not None:
        return plan.before
    return ScanPlan(plan.table, 0, (), tuple(segment for group in plan.groups for segment in group.segments))


def narrowed(plan: ScanPlan | LogPlan, keys: KeyRange) -> ScanPlan | LogPlan:
    """Return the plan without the files that hold none of these keys."""
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


def _narrow_run(run: SortedRun, keys: KeyRange) -> SortedRun:
    def within(parts: Sequence[RunFile]) -> tuple[RunFile, ...]:
        return tuple(part for part in parts if _overlaps(part.key_min, part.key_max, keys))

    return replace(run, parts=within(run.parts), history=within(run.history))


def _within(segments: Sequence[Segment], keys: KeyRange) -> tuple[Segment, ...]:
    return tuple(segment for segment in segments if _overlaps(segment.key_min, segment.key_max, keys))


def _overlaps(low: Key, high: Key, keys: KeyRange) -> bool:
    return (keys[0] is None or high >= keys[0]) and (keys[1] is None or low < keys[1])
