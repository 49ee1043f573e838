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
    """Task to merge `runs` adjoining runs from `lo` on, and L0 through `hi` if it is among the inputs, into one run."""

    reason: str
    lo: int
    hi: int
    runs: int
    l0_after: int | None
    """Epoch at which L0 began when the task was picked; None if the task merges runs only."""
    safe_epoch: int
    """Oldest epoch that can be read, but for `kept_epochs`: versions that only older epochs can see are dropped."""
    rewritten: tuple[str, ...] = ()
    """History parts to merge too; the new run takes the others over unchanged."""
    kept_epochs: tuple[int, ...] = ()
    """Epochs below `safe_epoch` that can still be read, because tags keep their rows."""
    past_only: bool = False
    """True if the task only copies the rows that `kept_epochs` need out of the history parts `rewritten` of one run."""

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
        return tuple(part for part in unchanged if part.needed_at(self.safe_epoch, self.kept_epochs))

    def to_record(self) -> Record:
        """Return the catalog's record; only a task of a table with tags has the last two fields."""
        record = asdict(self)
        return {name: value for name, value in record.items() if value or name not in ("kept_epochs", "past_only")}

    @classmethod
    @checked
    def from_record(cls, record: Record) -> CompactionTask:
        return cls(
            **{**record, "rewritten": tuple(record["rewritten"]), "kept_epochs": tuple(record.get("kept_epochs", ()))}
        )


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
    rewritten = _rewritten(version, runs[first:])
    return CompactionTask(reason, lo, hi, len(runs) - first, l0_after, version.safe_epoch, rewritten, version.kept)


def past_task(version: TableVersion, runs: Runs) -> CompactionTask | None:
    """Copy the rows that tags keep out of one run's history parts below the safe epoch; None where there are no others.

    A part has others if it was written before the safe epoch passed it, or if one of its tags was dropped since.
    """
    for run in runs:
        due = [part.path for part in run.history if _has_other_rows(part, version)]
        if due:
            reason = f"{len(due)} history parts have rows that no tag keeps"
            return CompactionTask(
                reason, run.lo, run.hi, 1, None, version.safe_epoch, tuple(due), version.kept, past_only=True
            )
    return None


def _has_other_rows(part: RunFile, version: TableVersion) -> bool:
    if part.until > version.safe_epoch or not part.needed_at(version.safe_epoch, version.kept):
        return False
    return not part.kept or not set(part.kept) <= set(version.kept)


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
