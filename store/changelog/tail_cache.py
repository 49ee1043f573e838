"""Tail cache: the most recently decoded log batches of this process, shared by all readers of its logs.

It is a cache of the log and nothing else: whoever follows a log plans from the catalog what to read, and what is not
here is read from the files. So it may be dropped at any moment, and nobody notices but by the time it takes.
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

from .log_plan import LogPlan
from .raw_replay import replay

LIMIT_BYTES = 32 << 20
LOCK_STRIPES = 16
"""Log epochs that are decoded side by side at most."""
NEAR_EPOCHS, NEAR_ROWS = 16, 1 << 18
"""A reader that lacks more than that replays: its changes are not what others read now."""

_doors: list[threading.Lock] = []


def _make_doors() -> None:
    _doors[:] = [threading.Lock() for _ in range(LOCK_STRIPES)]


_make_doors()
os.register_at_fork(after_in_child=_make_doors)  # another thread may have been behind one
tail: LRUCache[tuple[pa.RecordBatch, ...]] = LRUCache(
    LIMIT_BYTES, lambda batches: sum(batch.nbytes for batch in batches)
)


def follow(plan: LogPlan, files: Files, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the changes of the plan without old images, as its `batches` does, but in batches of another size."""
    if not is_near(plan):
        yield from replay(plan, files, columns)
        return
    for group in plan.groups:
        yield from _decoded(replace(plan, groups=(group,)), files, columns)


def is_near(plan: LogPlan) -> bool:
    """Return True if the plan has few enough epochs and rows to be decoded epoch by epoch into the tail cache."""
    return len(plan.groups) <= NEAR_EPOCHS and plan.rows <= NEAR_ROWS


def _decoded(plan: LogPlan, files: Files, columns: Sequence[str] | None) -> tuple[pa.RecordBatch, ...]:
    """Return the changes of one log epoch; readers that wake up for it together wait for the one that decodes it."""
    name = _name(files, plan.groups[0], columns)
    with _doors[hash(name) % len(_doors)]:
        batches = tail.get(name)
        if batches is None:
            batches = tuple(replay(plan, files, columns))
            tail.put(name, batches)
    return batches


def _name(files: Files, group: LabelGroup, columns: Sequence[str] | None) -> tuple[object, ...]:
    """Return the cache key of a log epoch's changes: its files with their sizes and checksums, and the columns."""
    parts = ((segment.path, segment.bytes, segment.crc32) for segment in group.segments)
    return (files.place, group.label, None if columns is None else tuple(columns), *parts)
