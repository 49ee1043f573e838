"""Rounds of a log source: what it reads after one look at the catalog, divided at the barriers."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import merge
from typing import TypeVar

import numpy as np

from epochlog.checkpoint.job.next_barrier import Barrier
from epochlog.store.changelog.log_plan import LogPlan, schema_changed
from epochlog.store.metadata.version import groups_through
from epochlog.store.types.epoch_set import FAR, Ints, ints

LOOK_ROWS = 1 << 16
"""Rows of the logs, of all tables, that the barriers of a round cover; the first barrier may have more."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LogRound:
    """Barriers in order, and for each table the plan of its changes up to the last of them."""

    barriers: tuple[Barrier, ...]
    plans: tuple[LogPlan, ...]
    ends: tuple[tuple[int, ...], ...]
    """For each table the newest log epoch up to each barrier. An alter at which the plan ends counts as the first
    change after it.
    """

    def ordered(self, rows: Sequence[Iterator[tuple[int, T]]]) -> Iterator[T | Barrier]:
        """Yield the items of all tables and the barriers, in order. rows: for each table its items with their log
        epochs. Raises SchemaChanged where a plan ends at an alter.
        """
        barriers = ((place, FAR, 0, barrier) for place, barrier in enumerate(self.barriers))
        tables = [self._of_table(index, items) for index, items in enumerate(rows)]
        for _, epoch, _, item in merge(barriers, *tables, key=lambda entry: entry[:3]):
            if isinstance(item, LogPlan):
                raise schema_changed(item.table.name, epoch)
            yield item

    def _of_table(self, index: int, items: Iterator[tuple[int, T]]) -> Iterator[tuple[int, int, int, T | LogPlan]]:
        """Yield the items of a table by (barrier, epoch, index of the table). An alter that ends the plan comes before
        the items of all tables at its epoch.
        """
        plan, ends = self.plans[index], self.ends[index]
        for epoch, item in items:
            yield bisect_left(ends, epoch), epoch, index, item
        if plan.altered is not None:
            yield bisect_left(ends, plan.altered), plan.altered, -1, plan


def cut_round(barriers: Sequence[Barrier], plans: Sequence[LogPlan], changes: Sequence[Ints]) -> LogRound:
    """Return the round of the first barriers that have LOOK_ROWS rows together, at least one. plans: those of all
    barriers. changes: the epochs of each table's commits with changes.

    A commit belongs to the first barrier at or above its own epoch, with all its log epochs.
    """
    boundaries, rows = ints([barrier.curr for barrier in barriers]), np.zeros(len(barriers), np.int64)
    divided = list[tuple[LogPlan, Ints, Ints]]()
    for plan, commits in zip(plans, changes, strict=True):
        changed = [group.changes for group in plan.groups]
        altered = ints(() if plan.altered is None else (plan.altered,))
        epochs = np.concatenate([*(labels for labels, _ in changed), altered])
        place = boundaries.searchsorted(commits[commits.searchsorted(epochs)])
        sizes = np.concatenate([ints(()), *(counts for _, counts in changed)])
        np.add.at(rows, place[: len(sizes)], sizes)
        divided.append((plan, epochs, place.searchsorted(np.arange(len(barriers)), "right")))
    count = max(int(rows.cumsum().searchsorted(LOOK_ROWS, "right")), 1)
    cut = [_first_epochs(plan, epochs, int(counts[count - 1])) for plan, epochs, counts in divided]
    ends = [np.insert(epochs, 0, 0)[counts[:count]].tolist() for _, epochs, counts in divided]
    return LogRound(tuple(barriers[:count]), tuple(cut), tuple(map(tuple, ends)))


def rows_round(barrier: Barrier, plans: Sequence[LogPlan]) -> LogRound:
    """Return the round of a barrier whose plans read the tables' rows at it."""
    return LogRound((barrier,), tuple(plans), ((barrier.curr,),) * len(plans))


def _first_epochs(plan: LogPlan, epochs: Ints, count: int) -> LogPlan:
    """Return the part of a plan with its first log epochs; the alter at which it ends counts as the last one."""
    if count >= len(epochs):
        return plan
    last = int(epochs[count - 1]) if count else -1
    return replace(plan, groups=tuple(groups_through(plan.groups, last)), altered=None)
