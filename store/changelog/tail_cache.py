"""Tail cache: the most recently decoded log batches of this process, shared by all readers of its logs.

A reader plans from the catalog, and reads from the files all batches that the cache lacks. So the cache can be cleared
at any moment, and the only cost is the time to decode the files again.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from epochlog.store.env.files import Files
from epochlog.store.env.lru_cache import LRUCache
from epochlog.store.metadata.version import LabelGroup
from epochlog.store.sst.file_columns import signature

from .log_plan import LogPlan
from .raw_replay import replay

LIMIT_BYTES = 32 << 20
LOCK_STRIPES = 16
"""Largest number of log epochs that are decoded at the same time."""
NEAR_EPOCHS, NEAR_ROWS = 16, 1 << 18
"""Sizes above which a plan is replayed without the cache: readers at the end of the log do not share its changes."""

_locks: list[threading.Lock] = []


def _make_locks() -> None:
    _locks[:] = [threading.Lock() for _ in range(LOCK_STRIPES)]


_make_locks()
os.register_at_fork(after_in_child=_make_locks)  # another thread may have held one at the fork
tail: LRUCache[tuple[pa.RecordBatch, ...]] = LRUCache(
    LIMIT_BYTES, lambda batches: sum(batch.nbytes for batch in batches), name="tail"
)


def follow(plan: LogPlan, files: Files, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the changes of the plan without pre-images, in the order of `LogPlan.batches` but in other batch sizes."""
    if not is_near(plan):
        yield from replay(plan, files, columns)
        return
    for group in plan.groups:
        yield from _decode_epoch(replace(plan, groups=(group,)), files, columns)


def is_near(plan: LogPlan) -> bool:
    """Return True if the plan has few enough epochs and rows to be decoded epoch by epoch into the tail cache."""
    return len(plan.groups) <= NEAR_EPOCHS and plan.rows <= NEAR_ROWS


def _decode_epoch(plan: LogPlan, files: Files, columns: Sequence[str] | None) -> tuple[pa.RecordBatch, ...]:
    """Return the changes of one log epoch. One reader decodes it, and all readers that need it meanwhile wait."""
    name = (*_name(files, plan.groups[0], columns), signature(plan.table, columns or plan.table.schema.names))
    with _locks[hash(name) % len(_locks)]:
        batches = tail.get(name)
        if batches is None:
            batches = tuple(replay(plan, files, columns))
            tail.put(name, batches)
    return batches


def _name(files: Files, group: LabelGroup, columns: Sequence[str] | None) -> tuple[object, ...]:
    """Return the cache key of a log epoch's changes: its files with their sizes and checksums, and the columns."""
    parts = (segment.content for segment in group.segments)
    return (files.place, group.label, None if columns is None else tuple(columns), *parts)
