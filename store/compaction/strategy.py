"""Protocol of a compaction strategy: the choice of the next runs of a table to merge, from its version in the catalog.

`executor.STRATEGY` is the strategy of all tables. Another one is a module of its own and a change of that line
(docs/howto/add-a-compaction-strategy.md).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Protocol

from epochlog.store.catalog.records import Record, checked
from epochlog.store.metadata.version import Runs, TableVersion
from epochlog.store.sst.sorted_run import RunFile

HISTORY_PARTS = 16
"""History parts of a task's inputs, beyond one for each live part, at which the small ones among them are merged."""


@dataclass(frozen=True, slots=True)
class CompactionTask:
    """Task to merge `runs` adjoining runs from `lo` on, and L0 through `hi` if it is among the inputs, into one run.

    l0_after: the epoch at which L0 began when the task was picked; None if the task merges runs only. Versions that no
    epoch >= `safe_epoch` can see are dropped. rewritten: the history parts to merge too; the new run takes the others
    over unchanged.
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
        """Return True if no run lies below the task's inputs, so that tombstones can be dropped."""
        return self.lo == 0

    def inputs(self, runs: Runs) -> Runs | None:
        """Return the task's runs among the current runs of the table; None if they are not there any more."""
        at = next((i for i, run in enumerate(runs) if run.lo == self.lo), len(runs))
        inputs = runs[at : at + self.runs]
        end = self.l0_after if self.l0_after is not None else self.hi
        complete = len(inputs) == self.runs and (inputs[-1].hi == end if inputs else self.lo == end)
        newest = self.l0_after is None or at + self.runs == len(runs)
        return inputs if complete and newest else None

    def kept(self, runs: Runs) -> tuple[RunFile, ...]:
        """Return the history parts of its runs that the new run takes over unchanged."""
        rewritten = set(self.rewritten)
        unchanged = (part for run in runs for part in run.history if part.path not in rewritten)
        return tuple(part for part in unchanged if part.until > self.safe_epoch)

    def to_record(self) -> Record:
        return asdict(self)

    @classmethod
    @checked
    def from_record(cls, record: Record) -> CompactionTask:
        return cls(**{**record, "rewritten": tuple(record["rewritten"])})


class CompactionStrategy(Protocol):
    """Compaction strategy: a pure function of a table's version and runs. Any process may call it at any time."""

    def pick(
        self, version: TableVersion, runs: Runs, *, compact_segments: int, full: bool = False, l0_only: bool = False
    ) -> CompactionTask | None:
        """Pick the next task of a table, made by `task_from`; None while nothing is due.

        compact_segments: the number of L0 segments that makes a task due. full: merge everything into one run. l0_only:
        merge L0 into a run of its own, which takes the least time. A task has adjoining runs; with L0, the newest ones.
        """
        ...


def task_from(version: TableVersion, runs: Runs, first: int, reason: str, *, l0: bool) -> CompactionTask:
    """Merge the runs from `first` on, and L0 on top of them if `l0`."""
    lo = runs[first].lo if first < len(runs) else version.compacted_epoch
    hi = version.max_committed_epoch if l0 else version.compacted_epoch
    l0_after = version.compacted_epoch if l0 else None
    return CompactionTask(
        reason, lo, hi, len(runs) - first, l0_after, version.safe_epoch, _rewritten(version, runs[first:])
    )


def _rewritten(version: TableVersion, runs: Runs) -> tuple[str, ...]:
    """Return the paths of the smallest history parts, to be merged; none while there are few history parts."""
    past = [part for run in runs for part in run.history if part.until > version.safe_epoch]
    if len(past) < HISTORY_PARTS + sum(len(run.parts) for run in runs):
        return ()
    chosen: list[RunFile] = []
    for part in sorted(past, key=lambda part: part.bytes):
        if len(chosen) >= HISTORY_PARTS // 2 and part.bytes > sum(smaller.bytes for smaller in chosen):
            break
        chosen.append(part)
    return tuple(part.path for part in chosen)
