"""What the catalog says of a table, and the pure edits that change it.

One commit is one edit per table, applied by `apply_commit` or `apply_compaction`: a function of two values that
checks the named invariants in this file and returns the next value. Nothing else makes a TableVersion.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..errors import EpochlogError, EpochRegressed, TableFinished
from .records import Record
from .run import Run
from .segment import Segment


class InvariantBroken(EpochlogError, AssertionError):
    """An edit would make a version that must not exist; a defect of the library, never of its input."""


@dataclass(frozen=True, slots=True)
class LabelGroup:
    """The segments of one log epoch, in the order in which later wins."""

    label: int
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One commit of one table: `epoch` is where it becomes visible, its groups are the log's epochs (labels <=
    epoch).
    """

    epoch: int
    groups: tuple[LabelGroup, ...] = ()
    end: bool = False  # the table's end-of-data

    @property
    def segments(self) -> tuple[Segment, ...]:
        return tuple(segment for group in self.groups for segment in group.segments)

    @property
    def changed(self) -> bool:
        """An entry without rows is no change: it blocks nothing and wakes nobody; the end of data is one."""
        return self.end or any(segment.rows for segment in self.segments)

    def to_record(self) -> Record:
        groups = [[group.label, [segment.to_record() for segment in group.segments]] for group in self.groups]
        return {"epoch": self.epoch, "groups": groups, "end": self.end}

    @classmethod
    def from_record(cls, record: Record) -> LogEntry:
        groups = tuple(
            LabelGroup(label, tuple(Segment.from_record(segment) for segment in segments))
            for label, segments in record["groups"]
        )
        return cls(record["epoch"], groups, record["end"])


@dataclass(frozen=True, slots=True)
class Commit:
    """What is remembered of a commit when its files are long gone: one row of `history()`."""

    epoch: int
    at_ms: int
    operation: str
    txn: tuple[str, int] | None
    job: str | None
    rows_upserted: int
    rows_deleted: int
    segments: int
    bytes: int
    changed: bool
    labels: tuple[int, ...]  # log epochs other than `epoch` itself

    def to_record(self) -> Record:
        record = {name: getattr(self, name) for name in self.__slots__}
        return {**record, "txn": list(self.txn) if self.txn else None, "labels": list(self.labels)}

    @classmethod
    def from_record(cls, record: Record) -> Commit:
        txn = (record["txn"][0], record["txn"][1]) if record["txn"] else None
        return cls(**{**record, "txn": txn, "labels": tuple(record["labels"])})


@dataclass(frozen=True, slots=True)
class TableVersion:
    """The moving part of a table: epochs, sorted runs, and how far the log has been folded into them.

    L0 for reads is the log entries with an epoch above `compacted_epoch`; the log itself begins after `log_start`.
    """

    max_committed_epoch: int = 0
    safe_epoch: int = 0
    log_start: int = 0  # the truncation mark: changes after any epoch >= this are still in the log
    end_epoch: int | None = None
    runs: tuple[Run, ...] = ()
    log_segments: int = 0
    log_bytes: int = 0

    @property
    def compacted_epoch(self) -> int:
        return self.runs[-1].hi if self.runs else 0

    def to_record(self) -> Record:
        record = {name: getattr(self, name) for name in self.__slots__}
        return {**record, "runs": [run.to_record() for run in self.runs]}

    @classmethod
    def from_record(cls, record: Record) -> TableVersion:
        return cls(**{**record, "runs": tuple(Run.from_record(run) for run in record["runs"])})


def broken_invariants(version: TableVersion) -> Iterator[str]:
    """The names of the invariants that a version breaks; none, for every version that a store ever holds."""
    if version.safe_epoch > version.max_committed_epoch:
        yield f"safe-epoch-within-committed: {version.safe_epoch} > {version.max_committed_epoch}"
    if version.compacted_epoch > version.max_committed_epoch:
        yield f"runs-within-committed: {version.compacted_epoch} > {version.max_committed_epoch}"
    if version.end_epoch is not None and version.end_epoch != version.max_committed_epoch:
        yield f"nothing-after-end-of-data: {version.end_epoch} != {version.max_committed_epoch}"
    for older, newer in zip(version.runs, version.runs[1:], strict=False):
        if older.hi != newer.lo:
            yield f"runs-adjoin: ({older.lo}, {older.hi}] then ({newer.lo}, {newer.hi}]"
    for run in version.runs:
        if run.lo >= run.hi:
            yield f"run-covers-epochs: ({run.lo}, {run.hi}]"
        for left, right in zip(run.parts, run.parts[1:], strict=False):
            if not left.key_max < right.key_min:
                yield f"parts-disjoint: {left.path} and {right.path}"


def apply_commit(table: str, version: TableVersion, entry: LogEntry) -> TableVersion:
    """The version after a commit; EpochRegressed or TableFinished when it must be refused."""
    require_open(table, version)
    labels = [group.label for group in entry.groups]
    if entry.epoch <= version.max_committed_epoch:
        raise EpochRegressed(
            f"table {table!r} is committed through epoch {version.max_committed_epoch}; {entry.epoch} must exceed it"
        )
    if labels != sorted(set(labels)) or (
        labels and not version.max_committed_epoch < labels[0] <= labels[-1] <= entry.epoch
    ):
        raise EpochRegressed(
            f"table {table!r}: labels {labels} must rise, lie above {version.max_committed_epoch} and not above "
            f"{entry.epoch}"
        )
    return _checked(
        replace(
            version,
            max_committed_epoch=entry.epoch,
            end_epoch=entry.epoch if entry.end else None,
            log_segments=version.log_segments + len(entry.segments),
            log_bytes=version.log_bytes + sum(segment.bytes for segment in entry.segments),
        )
    )


def require_open(table: str, version: TableVersion) -> None:
    if version.end_epoch is not None:
        raise TableFinished(f"table {table!r} was finished at epoch {version.end_epoch} and takes no further writes")


def apply_compaction(version: TableVersion, inputs: tuple[Run, ...], output: Run) -> TableVersion | None:
    """The version in which one run has taken the place of `inputs` and of L0 through its `hi`.

    None if the inputs have gone.
    """
    if version.runs != inputs or output.hi > version.max_committed_epoch:
        return None
    return _checked(replace(version, runs=(output,)))


def apply_safe_epoch(version: TableVersion, safe_epoch: int) -> TableVersion:
    """Raise the safe epoch; it never falls, and never passes the newest commit."""
    raised = max(version.safe_epoch, min(safe_epoch, version.max_committed_epoch))
    return _checked(replace(version, safe_epoch=raised))


def apply_truncation(version: TableVersion, before: int, dropped: tuple[Segment, ...]) -> TableVersion:
    """Raise the log's truncation mark; `dropped` are the segments that the log lets go of."""
    return _checked(
        replace(
            version,
            log_start=max(version.log_start, before),
            log_segments=version.log_segments - len(dropped),
            log_bytes=version.log_bytes - sum(segment.bytes for segment in dropped),
        )
    )


def _checked(version: TableVersion) -> TableVersion:
    problems = list(broken_invariants(version))
    if problems:
        raise InvariantBroken("; ".join(problems))
    return version
