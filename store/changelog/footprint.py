"""Estimates of a read's memory in bytes, made before the read from the block sizes in the catalog (pure).

Files are decoded in whole blocks, and a split stays in memory until its last row is returned, also in small slices. So
the estimate is that of the split and of the blocks across its borders, not of the rows that the caller holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from epochlog.store.scan.key_ranges import ROW_BYTES
from epochlog.store.scan.scan_plan import ScanPlan
from epochlog.store.scan.size_splits import Source, estimate_sizes
from epochlog.store.sst.segment import BATCH_ROWS
from epochlog.store.types.schema import TableSchema

from .change_reader import SPLIT_ROWS
from .log_plan import LogPlan
from .raw_replay import is_single_file
from .tail_cache import is_near

FED_BYTES = SPLIT_ROWS * ROW_BYTES
"""Bytes of files that `LogPlan.batches` reads at a time."""
CHANGE_BYTES = 32
"""Bytes of a row's change columns."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """Upper estimate of a read's memory in bytes."""

    making: int
    """While a split is read."""
    kept: int
    """While its rows are returned."""


@dataclass(frozen=True, slots=True)
class _Weight:
    """Decoded bytes of files: the total, and the largest block of each file."""

    total: float
    blocks: tuple[float, ...]


def of_scan(plan: ScanPlan, columns: Sequence[str] | None, split_bytes: int) -> Footprint:
    """Estimate a read of `plan.batches` in splits of `split_bytes` bytes."""
    names = plan.schema(columns).names
    weight = _weight(plan.table, plan.files, names)
    borders = sum(max(_weight(plan.table, level, names).blocks, default=0.0) for level in _levels(plan))
    split = min(weight.total, 2 * split_bytes + borders)  # no cut is made before two splits are full
    if plan.is_lone_run:
        return Footprint(round(1.5 * split), round(split))
    beside = min(weight.total - split, borders)
    return Footprint(round(2 * split + beside), round(split + beside))


def _levels(plan: ScanPlan) -> list[Sequence[Source]]:
    """Return groups of files; a border between two splits cuts through at most one block of each group."""
    return [*(run.parts for run in plan.runs), *([file] for run in plan.runs for file in run.history),
            *([file] for file in plan.segments)]  # fmt: skip


def of_replay(plan: LogPlan, columns: Sequence[str] | None) -> Footprint:
    """Estimate a `replay`: it reads epochs of one file block by block, and other epochs by `LogPlan.batches`."""
    files = [group.segments[0] for group in plan.groups if is_single_file(group)]
    block = max(_weight(plan.table, files, _column_names(plan, columns)).blocks, default=0.0)
    block += CHANGE_BYTES * min(BATCH_ROWS, max((file.rows for file in files), default=0))
    small = LogPlan(plan.table, None, tuple(group for group in plan.groups if not is_single_file(group)))
    fed = of_feed(small, columns)
    return Footprint(max(round(1.5 * block), fed.making), max(round(block), fed.kept))


def of_follow(plan: LogPlan, columns: Sequence[str] | None) -> Footprint:
    """Estimate a `follow`: near the end of the log it decodes whole epochs into the tail cache."""
    replayed = of_replay(plan, columns)
    if not is_near(plan):
        return replayed
    epochs = [_weight(plan.table, group.segments, _column_names(plan, columns)).total for group in plan.groups]
    epochs = [size + CHANGE_BYTES * sum(file.rows for file in group.segments)
              for size, group in zip(epochs, plan.groups, strict=True)]  # fmt: skip
    kept = round(max(epochs, default=0.0))
    return Footprint(kept + replayed.making, max(kept, replayed.kept))


def of_feed(plan: LogPlan, columns: Sequence[str] | None, *, images: bool = False) -> Footprint:
    """Estimate a read by `LogPlan.batches`: it merges rows of several files, with `images` also pre-images."""
    groups = plan.groups
    files = [file for group in groups for file in (*group.segments, *(group.images if images else ()))]
    names = plan.table.schema.names if images else _column_names(plan, columns)
    weight = _weight(plan.table, files, names)
    total = weight.total + CHANGE_BYTES * sum(file.rows for file in files)
    decoded = total / max(1, sum(file.bytes for file in files))
    split = min(total, decoded * FED_BYTES + sum(weight.blocks))
    if images and plan.before is not None and not plan.stored:
        before = _weight(plan.table, plan.before.files, names)
        split += min(before.total, split + sum(before.blocks))
    return Footprint(round((4 if images else 3) * split), round((2 if images else 1) * split))


def _column_names(plan: LogPlan, columns: Sequence[str] | None) -> list[str]:
    return plan.table.schema.names if columns is None else list(columns)


def _weight(table: TableSchema, files: Iterable[Source], columns: Sequence[str]) -> _Weight:
    totals, largest = 0.0, []
    for file in files:
        sizes = [span.bytes for span in estimate_sizes(table, [file], columns)]
        totals += sum(sizes)
        largest.append(max(sizes, default=0.0))
    return _Weight(totals, tuple(largest))
