"""The live tail: the newest changes of logs as they were decoded last, for all who follow them in this process.

It is a cache of the log and nothing else: whoever follows a log plans from the catalog what to read, and what is not
here is read from the files. So it may be dropped at any moment, and nobody notices but by the time it takes.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from .files import Files
from .kept import Kept
from .log import LogPlan
from .replay import replay
from .version import LabelGroup

LIMIT_BYTES = 32 << 20
DOORS = 16
"""Log epochs that are decoded side by side at most."""
NEAR_EPOCHS, NEAR_ROWS = 16, 1 << 18
"""A reader that lacks more than that replays: its changes are not what others read now."""

_doors: list[threading.Lock] = []


def _make_doors() -> None:
    _doors[:] = [threading.Lock() for _ in range(DOORS)]


_make_doors()
os.register_at_fork(after_in_child=_make_doors)  # another thread may have been behind one
tail: Kept[tuple[pa.RecordBatch, ...]] = Kept(LIMIT_BYTES, lambda batches: sum(batch.nbytes for batch in batches))


def follow(plan: LogPlan, files: Files, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The changes of the plan as its `batches` gives them without old images, in batches of another size."""
    if not is_near(plan):
        yield from replay(plan, files, columns)
        return
    for group in plan.groups:
        yield from _decoded(replace(plan, groups=(group,)), files, columns)


def is_near(plan: LogPlan) -> bool:
    """Whether these changes are decoded epoch by epoch, and kept for others."""
    return len(plan.groups) <= NEAR_EPOCHS and plan.rows <= NEAR_ROWS


def _decoded(plan: LogPlan, files: Files, columns: Sequence[str] | None) -> tuple[pa.RecordBatch, ...]:
    """The changes of one log epoch; readers that wake up for it together wait for the one who decodes it."""
    name = _name(files, plan.groups[0], columns)
    with _doors[hash(name) % len(_doors)]:
        batches = tail.get(name)
        if batches is None:
            batches = tuple(replay(plan, files, columns))
            tail.put(name, batches)
    return batches


def _name(files: Files, group: LabelGroup, columns: Sequence[str] | None) -> tuple[object, ...]:
    """What the changes of a log epoch are made of: its files, as they were when they were verified."""
    parts = ((segment.path, segment.bytes, segment.crc32) for segment in group.segments)
    return (files.place, group.label, None if columns is None else tuple(columns), *parts)
