"""Table versions: the catalog's head record of a table, its log entries, and the pure edits of them.

One commit is one edit per table, applied by `apply_commit` or `apply_runs`: a function of two values that
checks the named invariants in this file and returns the next value. Nothing else makes a TableVersion.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from epochlog.errors import EpochlogError, EpochRegressed, TableFinished
from epochlog.store.catalog.records import Record, checked
from epochlog.store.sst.segment import Segment
from epochlog.store.sst.sorted_run import SortedRun
from epochlog.store.types.epoch import show_epoch


class InvariantBroken(EpochlogError, AssertionError):
    """Error: an edit would make a version that must not exist. It is a defect of the library, never of its input."""


@dataclass(frozen=True, slots=True)
class LabelGroup:
    """The segments of one log epoch, in the order in which later wins.

    images: if the group stores them (changelog="full"), segments with the rows before that epoch of the keys that it
    touches, in the order in which later wins; a delete says that there was none. stores_images: whether it does, though
    it may have replaced no row; None: an entry of version 0.1, of which the table's first changelog tells.
    """

    label: int
    segments: tuple[Segment, ...]
    images: tuple[Segment, ...] = ()
    stores_images: bool | None = None


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
    def files(self) -> tuple[Segment, ...]:
        """Return all files of the entry: its segments and their images."""
        return tuple(file for group in self.groups for file in (*group.segments, *group.images))

    @property
    def changed(self) -> bool:
        """Return False for an entry without rows, which blocks nothing and wakes nobody; True for the end of data."""
        return self.end or any(segment.rows for segment in self.segments)

    def to_record(self) -> Record:
        groups = [
            [group.label, [file.to_record() for file in group.segments], [file.to_record() for file in group.images]]
            for group in self.groups
        ]
        record = {"epoch": self.epoch, "groups": groups, "end": self.end}
        marks = {group.stores_images for group in self.groups} - {None}
        return {**record, "images": marks.pop()} if marks else record

    @classmethod
    @checked
    def from_record(cls, record: Record) -> LogEntry:
        stored = record.get("images")
        groups = tuple(
            LabelGroup(
                label, tuple(map(Segment.from_record, segments)), tuple(map(Segment.from_record, images)), stored
            )
            for label, segments, images in record["groups"]
        )
        return cls(record["epoch"], groups, record["end"])


@dataclass(frozen=True, slots=True)
class Commit:
    """Record of a commit that outlives the commit's files: one row of `history()`."""

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
    @checked
    def from_record(cls, record: Record) -> Commit:
        txn = (record["txn"][0], record["txn"][1]) if record["txn"] else None
        return cls(**{**record, "txn": txn, "labels": tuple(record["labels"])})


@dataclass(frozen=True, slots=True)
class TableVersion:
    """The moving part of a table: epochs, and how far the log has been folded into sorted runs.

    L0 for reads is the log entries with an epoch above `compacted_epoch`; the log itself begins after `log_start`.
    The runs are a record of their own, so that a commit costs the same however large the table is.
    """

    max_committed_epoch: int = 0
    safe_epoch: int = 0
    log_start: int = 0  # the truncation mark: changes after any epoch >= this are still in the log
    end_epoch: int | None = None
    compacted_epoch: int = 0
    known_from: int = 0  # the newest commit that has been forgotten; all after it are remembered
    log_segments: int = 0
    log_bytes: int = 0
    l0_segments: int = 0
    l0_bytes: int = 0
    runs: int = 0
    run_bytes: int = 0

    def to_record(self) -> Record:
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    @checked
    def from_record(cls, record: Record) -> TableVersion:
        return cls(**record)


Runs = tuple[SortedRun, ...]
"""A table's sorted runs, oldest first: they adjoin, and cover the epochs (0, compacted_epoch]."""


def runs_to_record(runs: Runs) -> Record:
    return {"runs": [run.to_record() for run in runs]}


def runs_from_record(record: Record | None) -> Runs:
    return tuple(SortedRun.from_record(run) for run in record["runs"]) if record else ()


def broken_invariants(version: TableVersion) -> Iterator[str]:
    """List the names of the invariants that a version breaks. No version that a store holds breaks any."""
    if version.safe_epoch > version.max_committed_epoch:
        yield (
            f"safe-epoch-within-committed: {show_epoch(version.safe_epoch)} > {show_epoch(version.max_committed_epoch)}"
        )
    if version.compacted_epoch > version.max_committed_epoch:
        yield (
            f"runs-within-committed: {show_epoch(version.compacted_epoch)} > {show_epoch(version.max_committed_epoch)}"
        )
    if version.end_epoch is not None and version.end_epoch != version.max_committed_epoch:
        yield f"nothing-after-end-of-data: {show_epoch(version.end_epoch)} != {show_epoch(version.max_committed_epoch)}"
    if version.known_from and version.known_from >= version.max_committed_epoch:
        yield f"newest-commit-known: {show_epoch(version.known_from)} > {show_epoch(version.max_committed_epoch)}"
    for name in ("log_segments", "log_bytes", "l0_segments", "l0_bytes", "runs", "run_bytes"):
        if getattr(version, name) < 0:
            yield f"counts-not-negative: {name} is {getattr(version, name)}"


def broken_runs(version: TableVersion, runs: Runs) -> Iterator[str]:
    """List the names of the invariants that a table's sorted runs break."""
    at = 0
    for run in runs:
        if run.lo != at or run.lo >= run.hi:
            yield f"runs-adjoin: ({run.lo}, {run.hi}] after {show_epoch(at)}"
        at = run.hi
        for left, right in zip(run.parts, run.parts[1:], strict=False):
            if not left.key_max < right.key_min:
                yield f"parts-disjoint: {left.path} and {right.path}"
        if run.lo == 0 and any(part.deletes for part in run.parts):
            yield f"no-tombstones-at-the-bottom: ({run.lo}, {run.hi}]"
    if at != version.compacted_epoch:
        yield f"runs-reach-compacted-epoch: {show_epoch(at)} != {show_epoch(version.compacted_epoch)}"
    if (len(runs), sum(run.bytes for run in runs)) != (version.runs, version.run_bytes):
        yield f"runs-counted: {len(runs)} runs, not {version.runs}"


def apply_commit(table: str, version: TableVersion, entry: LogEntry) -> TableVersion:
    """Return the version after a commit; EpochRegressed or TableFinished when it must be refused."""
    require_open(table, version)
    labels = [group.label for group in entry.groups]
    if entry.epoch <= version.max_committed_epoch:
        raise EpochRegressed(
            f"table {table!r} is committed through epoch {show_epoch(version.max_committed_epoch)}; "
            f"{show_epoch(entry.epoch)} must exceed it"
        )
    if labels != sorted(set(labels)) or (
        labels and not version.max_committed_epoch < labels[0] <= labels[-1] <= entry.epoch
    ):
        raise EpochRegressed(
            f"table {table!r}: labels {labels} must rise, lie above {show_epoch(version.max_committed_epoch)} and not "
            "above "
            f"{show_epoch(entry.epoch)}"
        )
    return _checked(
        replace(
            version,
            max_committed_epoch=entry.epoch,
            end_epoch=entry.epoch if entry.end else None,
            log_segments=version.log_segments + len(entry.segments),
            log_bytes=version.log_bytes + sum(file.bytes for file in entry.files),
            l0_segments=version.l0_segments + len(entry.segments),
            l0_bytes=version.l0_bytes + sum(segment.bytes for segment in entry.segments),
        )
    )


def require_open(table: str, version: TableVersion) -> None:
    if version.end_epoch is not None:
        raise TableFinished(
            f"table {table!r} was finished at epoch {show_epoch(version.end_epoch)} and takes no further writes"
        )


def apply_runs(version: TableVersion, runs: Runs, folded: Sequence[LogEntry] = ()) -> TableVersion:
    """Return the version after a compaction: `runs` replace the runs before them and the L0 entries `folded`."""
    after = replace(
        version,
        compacted_epoch=runs[-1].hi if runs else 0,
        l0_segments=version.l0_segments - sum(len(entry.segments) for entry in folded),
        l0_bytes=version.l0_bytes - sum(segment.bytes for entry in folded for segment in entry.segments),
        runs=len(runs),
        run_bytes=sum(run.bytes for run in runs),
    )
    broken = list(broken_runs(after, runs))
    if broken:
        raise InvariantBroken("; ".join(broken))
    return _checked(after)


def apply_safe_epoch(version: TableVersion, safe_epoch: int) -> TableVersion:
    """Raise the safe epoch; it never falls, and never passes the newest commit."""
    raised = max(version.safe_epoch, min(safe_epoch, version.max_committed_epoch))
    return _checked(replace(version, safe_epoch=raised))


def apply_forgetting(version: TableVersion, newest: int) -> TableVersion:
    """Forget the commits up to `newest`, which is not the table's newest."""
    return _checked(replace(version, known_from=max(version.known_from, newest)))


def apply_truncation(version: TableVersion, before: int, dropped: Sequence[LogEntry]) -> TableVersion:
    """Raise the log's truncation mark; `dropped` are the entries that the log lets go of."""
    return _checked(
        replace(
            version,
            log_start=max(version.log_start, before),
            log_segments=version.log_segments - sum(len(entry.segments) for entry in dropped),
            log_bytes=version.log_bytes - sum(file.bytes for entry in dropped for file in entry.files),
        )
    )


def _checked(version: TableVersion) -> TableVersion:
    problems = list(broken_invariants(version))
    if problems:
        raise InvariantBroken("; ".join(problems))
    return version
