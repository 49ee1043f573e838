"""Bytes, files and key ranges of the plans that read a table or its log (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from epochlog.store.scan.pruning import key_prunes
from epochlog.store.scan.scan_plan import ScanPlan
from epochlog.store.scan.size_splits import Source, Span, estimate_sizes
from epochlog.store.sst.segment import Segment
from epochlog.store.sst.sorted_run import RunFile, SortedRun
from epochlog.store.types.key_range import ALL_KEYS, KeyRange
from epochlog.store.types.read_options import ReadOptions

from .log_plan import LogPlan


def bytes_to_read(plan: ScanPlan | LogPlan, options: ReadOptions) -> float:
    """Return an upper bound, in bytes of memory, of the columns and the key in the files that the filter does not
    exclude.
    """
    return sum(span.bytes for span in spans_of(plan, options))


def spans_of(plan: ScanPlan | LogPlan, options: ReadOptions) -> list[Span]:
    """List the blocks of the files that the filter does not exclude by their keys, with the bytes of the columns."""
    excluded = key_prunes(plan.table, options.filter)
    return estimate_sizes(
        plan.table, [file for file in sources_of(plan) if not excluded(file)], options.column_names(plan.table)
    )


def sources_of(plan: ScanPlan | LogPlan) -> Sequence[Source]:
    """Return the files with the rows of the result, and those whose newer rows hide some of them."""
    if isinstance(plan, LogPlan) and not plan.backfill:
        return [segment for group in plan.groups for segment in group.segments]
    scan = plan.before if isinstance(plan, LogPlan) else plan
    assert scan is not None
    return scan.files


def source_of(plan: ScanPlan | LogPlan) -> ScanPlan:
    """Return a plan of the files with the rows of the result; sizes and key ranges are computed from them."""
    if isinstance(plan, ScanPlan):
        return plan
    if plan.backfill and plan.before is not None:
        return plan.before
    return ScanPlan(plan.table, 0, (), tuple(segment for group in plan.groups for segment in group.segments))


def narrowed(plan: ScanPlan | LogPlan, keys: KeyRange) -> ScanPlan | LogPlan:
    """Return the plan without the files that hold none of these keys."""
    if keys == ALL_KEYS:
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
        return tuple(part for part in parts if keys.overlaps(part.key_min, part.key_max))

    return replace(run, parts=within(run.parts), history=within(run.history))


def _within(segments: Sequence[Segment], keys: KeyRange) -> tuple[Segment, ...]:
    return tuple(segment for segment in segments if keys.overlaps(segment.key_min, segment.key_max))
