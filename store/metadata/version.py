"""Table versions: the catalog's head record of a table, its log entries, and their pure edits.

A commit is one edit per table. Each `apply_*` function checks the named invariants of this file and returns the next
version. No other code makes a TableVersion.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from epochlog.errors import EpochlogError, EpochRegressed, TableFinished
from epochlog.store.catalog.records import Record, checked, require_checksum, unpack
from epochlog.store.sst.segment import Segment
from epochlog.store.sst.sorted_run import SortedRun
from epochlog.store.types.epoch import show_epoch

from .packed_epochs import PackedEpochs


class InvariantBroken(EpochlogError, AssertionError):
    """Error: an edit would make an invalid version. It is a defect of the library, never of its input."""


@dataclass(frozen=True, slots=True)
class LabelGroup:
    """Segments of one log epoch, oldest first: later segments win. Or a part of a pack: one segment with the changes of
    several commits.
    """

    label: int
    """Log epoch; of a part of a pack, that of its last commit."""
    segments: tuple[Segment, ...]
    images: tuple[Segment, ...] = ()
    """Segments with the pre-images of the group's keys (changelog="full"), oldest first; a tombstone means that the key
    had no row.
    """
    stores_images: bool | None = None
    """True if the group stores pre-images, also if it replaced no row; None: an entry of version 0.1, for which the
    table's first changelog decides.
    """
    packed: PackedEpochs | None = None
    """Commits of a part of a pack; None: a log epoch of its own."""

    @property
    def changes(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the log epochs with changes, int64, rising, and the number of changes of each."""
        if self.packed is None:
            return np.array([self.label]), np.array([sum(segment.rows for segment in self.segments)])
        changed = self.packed.rows > 0
        return self.packed.epochs[changed], self.packed.rows[changed]

    @property
    def first(self) -> int:
        """Return the first log epoch."""
        return self.label if self.packed is None else int(self.packed.epochs[0])

    def cut(self, after: int, until: int) -> LabelGroup | None:
        """Return the commits in (after, until] of a part of a pack; None if there are none."""
        assert self.packed is not None
        first, end = self.packed.span(after, until)
        if end == first:
            return None
        if end - first == len(self.packed):
            return self
        packed = self.packed.slice(first, end)
        skipped = self.packed.slice(0, first)
        segments = _cut(self.segments, int(skipped.rows.sum()), int(packed.rows.sum()), int(packed.deletes.sum()))
        images = _cut(self.images, int(skipped.images.sum()), int(packed.images.sum()), 0)
        return LabelGroup(int(packed.epochs[-1]), segments, images, self.stores_images, packed)


def describe_group(group: LabelGroup) -> str:
    """Describe what a file of the group has, for messages."""
    if group.packed is None:
        return f"the changes at log epoch {show_epoch(group.label)}"
    return (
        f"the changes of the {len(group.packed)} commits from {show_epoch(group.first)} to {show_epoch(group.label)}, "
        "and no rows that the table needs"
    )


def groups_through(groups: Iterable[LabelGroup], until: int) -> Iterator[LabelGroup]:
    """Yield the groups through a log epoch."""
    for group in groups:
        if group.packed is None:
            if group.label <= until:
                yield group
        elif (part := group.cut(-1, until)) is not None:
            yield part


def _cut(files: tuple[Segment, ...], first: int, rows: int, deletes: int) -> tuple[Segment, ...]:
    return tuple(file.part(first, rows, deletes) for file in files if rows)


@dataclass(frozen=True, slots=True)
class LogEntry:
    """Commit of one table, or a pack of several."""

    epoch: int
    """Commit's epoch, at which it becomes visible; of a pack, that of its last commit."""
    groups: tuple[LabelGroup, ...] = ()
    """Changes of the commit by log epoch (labels <= epoch); of a pack one group, also if no commit of it has rows."""
    end: bool = False  # the table's end-of-data

    @property
    def packed(self) -> PackedEpochs | None:
        """Return the commits of a pack; None for the entry of one commit."""
        return self.groups[0].packed if self.groups else None

    @property
    def epochs(self) -> np.ndarray:
        """Return the epochs of its commits, int64, rising."""
        return np.array([self.epoch]) if self.packed is None else self.packed.epochs

    @property
    def first(self) -> int:
        """Return the epoch of its first commit."""
        return self.epoch if self.packed is None else int(self.packed.epochs[0])

    @property
    def commits(self) -> int:
        """Return the number of commits."""
        return 1 if self.packed is None else len(self.packed)

    @property
    def first_change(self) -> int | None:
        """Return the epoch of the first commit with rows; None if there is none."""
        if not self.segments:
            return None
        return self.epoch if self.packed is None else int(self.packed.epochs[self.packed.committed_rows > 0][0])

    @property
    def last_change(self) -> int:
        """Return the epoch of the last commit with rows, of an entry that has one."""
        return self.epoch if self.packed is None else int(self.packed.epochs[self.packed.committed_rows > 0][-1])

    def cut(self, after: int, until: int) -> LogEntry | None:
        """Return the entry with the commits in (after, until]; None if there are none."""
        if self.packed is None:
            return self if after < self.epoch <= until else None
        group = self.groups[0].cut(after, until)
        return None if group is None else LogEntry(group.label, (group,))

    @property
    def segments(self) -> tuple[Segment, ...]:
        return tuple(segment for group in self.groups for segment in group.segments)

    @property
    def files(self) -> tuple[Segment, ...]:
        """Return all files of the entry: its segments and their pre-images."""
        return tuple(file for group in self.groups for file in (*group.segments, *group.images))

    @property
    def changed(self) -> bool:
        """Return True for an entry with rows or with the end of data. Other entries block no job and wake no reader."""
        return self.end or any(segment.rows for segment in self.segments)

    def to_record(self) -> Record:
        if self.packed is not None:
            (group,) = self.groups
            return {
                "pack": 1,
                "epoch": self.epoch,
                "commits": len(self.packed),
                "columns": self.packed.to_bytes(),
                "file": [file.to_record() for file in group.segments],
                "image_file": [file.to_record() for file in group.images],
                "images": group.stores_images,
            }
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
        if "pack" in record:
            return cls(record["epoch"], (_packed_group(record),))
        groups = tuple(
            LabelGroup(
                label, tuple(map(Segment.from_record, segments)), tuple(map(Segment.from_record, images)), stored
            )
            for label, segments, images in record["groups"]
        )
        return cls(record["epoch"], groups, record["end"])


def _packed_group(record: Record) -> LabelGroup:
    """Decode the group of a pack. Raises ValueError for columns that do not fit its files."""
    if record["pack"] != 1:
        raise ValueError(f"a pack of the format {record['pack']!r:.20}")
    packed = PackedEpochs.from_bytes(record["columns"], record["commits"])
    segments, images = (tuple(map(Segment.from_record, record[name])) for name in ("file", "image_file"))
    segments, images = (tuple(replace(file, file_rows=file.rows) for file in files) for files in (segments, images))
    for files, rows in ((segments, packed.rows), (images, packed.images)):
        if sum(file.rows for file in files) != rows.sum() or len(files) > 1:
            raise ValueError("a pack's files have other rows than its commits")
    if record["epoch"] != packed.epochs[-1]:
        raise ValueError(f"the last commit of a pack is {packed.epochs[-1]}, not {record['epoch']!r:.20}")
    return LabelGroup(record["epoch"], segments, images, record["images"], packed)


@dataclass(frozen=True, slots=True)
class Commit:
    """Record of a commit, one row of `history()`. It outlives the commit's files."""

    epoch: int
    at_ms: int
    operation: str
    """Operation as it is stored: that of a job's refresh has the engine behind a colon, as in `refresh:spark`."""
    txn: tuple[str, int] | None
    job: str | None
    rows_upserted: int
    rows_deleted: int
    segments: int
    bytes: int
    changed: bool
    labels: tuple[int, ...]  # log epochs other than `epoch` itself

    @property
    def kind(self) -> str:
        """Return the operation without an engine."""
        return self.operation.partition(":")[0]

    @property
    def engine(self) -> str | None:
        """Return the engine that has refreshed the job's outputs; None of other commits and earlier releases."""
        return self.operation.partition(":")[2] or None

    def to_record(self) -> Record:
        record = {name: getattr(self, name) for name in self.__slots__}
        return {**record, "txn": list(self.txn) if self.txn else None, "labels": list(self.labels)}

    @classmethod
    @checked
    def from_record(cls, record: Record) -> Commit:
        txn = (record["txn"][0], record["txn"][1]) if record["txn"] else None
        return cls(**{**record, "txn": txn, "labels": tuple(record["labels"])})


_ENDS = {bytes((*b"\xa7changed", 0xC2 + changed, *b"\xa6labels\x90")): changed for changed in (False, True)}
"""Last bytes of packed Commits without labels, by `changed`. No text ends with them: they are no UTF-8."""
_END_BYTES = len(next(iter(_ENDS)))


def has_changed(key: bytes, value: bytes) -> bool:
    """Return the field `changed` of a packed Commit. Of one without labels it decodes no other field."""
    require_checksum(key, value)
    changed = _ENDS.get(value[-_END_BYTES:])
    return unpack(key, value)["changed"] if changed is None else changed


@dataclass(frozen=True, slots=True)
class PackingSums:
    """Sums of the packs that were made: their number, and the commits, files and bytes that they took in and have."""

    packs: int = 0
    commits: int = 0
    """Commits that packs took in; a pack of packs counts them again."""
    files_in: int = 0
    files_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0

    def plus(self, inputs: Sequence[LogEntry], pack: LogEntry) -> PackingSums:
        """Return the sums with a further pack."""
        files = [file for entry in inputs for file in entry.files]
        return PackingSums(
            packs=self.packs + 1,
            commits=self.commits + sum(entry.commits for entry in inputs),
            files_in=self.files_in + len(files),
            files_out=self.files_out + len(pack.files),
            bytes_in=self.bytes_in + sum(file.bytes for file in files),
            bytes_out=self.bytes_out + sum(file.bytes for file in pack.files),
        )


@dataclass(frozen=True, slots=True)
class TableVersion:
    """Head record of a table: its epochs, and the epoch through which its log is compacted into sorted runs.

    L0 for reads is the log entries with an epoch above `compacted_epoch`. The log itself begins after `log_start`. The
    runs are a separate record, so that the cost of a commit does not grow with the table.
    """

    max_committed_epoch: int = 0
    safe_epoch: int = 0
    log_start: int = 0  # the truncation mark: the log has all changes after it
    end_epoch: int | None = None
    compacted_epoch: int = 0
    known_from: int = 0  # the newest commit whose record was deleted; all later ones have theirs
    log_segments: int = 0
    log_bytes: int = 0
    l0_segments: int = 0
    l0_bytes: int = 0
    runs: int = 0
    run_bytes: int = 0
    kept: tuple[int, ...] = ()  # the epochs below the safe epoch that can still be read, rising
    packing: PackingSums | None = None  # packs that no trace has yet

    def keeps(self, epoch: int) -> bool:
        """Return True if the rows of the epoch have not been released: it is not below the safe epoch, or a tag
        keeps it.
        """
        return epoch >= self.safe_epoch or epoch in self.kept

    def to_record(self) -> Record:
        """Return the catalog's record; only a table with tags below its safe epoch has `kept`, and only one with packs
        that no trace has yet `packing`.
        """
        record = {name: getattr(self, name) for name in self.__slots__}
        if not self.kept:
            del record["kept"]
        del record["packing"]
        return record if self.packing is None else {**record, "packing": asdict(self.packing)}

    @classmethod
    @checked
    def from_record(cls, record: Record) -> TableVersion:
        packing = PackingSums(**record["packing"]) if "packing" in record else None
        return cls(**{**record, "kept": tuple(record.get("kept", ())), "packing": packing})


Runs = tuple[SortedRun, ...]
"""Sorted runs of a table, oldest first. They are adjacent and cover the epochs (0, compacted_epoch]."""


def runs_to_record(runs: Runs) -> Record:
    return {"runs": [run.to_record() for run in runs]}


def runs_from_record(record: Record | None) -> Runs:
    return tuple(SortedRun.from_record(run) for run in record["runs"]) if record else ()


def broken_invariants(version: TableVersion) -> Iterator[str]:
    """Yield the names of the invariants that a version breaks, each with the values."""
    if version.safe_epoch > version.max_committed_epoch:
        yield (
            f"safe-epoch-within-committed: {show_epoch(version.safe_epoch)} > {show_epoch(version.max_committed_epoch)}"
        )
    if list(version.kept) != sorted(set(version.kept)) or (version.kept and version.kept[-1] >= version.safe_epoch):
        yield f"kept-below-the-safe-epoch: {version.kept} and {show_epoch(version.safe_epoch)}"
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
    """Yield the names of the invariants that a table's sorted runs break, each with the values."""
    previous_end = 0
    for run in runs:
        if run.lo != previous_end or run.lo >= run.hi:
            yield f"runs-adjoin: ({run.lo}, {run.hi}] after {show_epoch(previous_end)}"
        previous_end = run.hi
        for part, next_part in zip(run.parts, run.parts[1:], strict=False):
            if not part.key_max < next_part.key_min:
                yield f"parts-disjoint: {part.path} and {next_part.path}"
        if run.lo == 0 and any(part.deletes for part in run.parts):
            yield f"no-tombstones-at-the-bottom: ({run.lo}, {run.hi}]"
    if previous_end != version.compacted_epoch:
        yield f"runs-reach-compacted-epoch: {show_epoch(previous_end)} != {show_epoch(version.compacted_epoch)}"
    if (len(runs), sum(run.bytes for run in runs)) != (version.runs, version.run_bytes):
        yield f"runs-counted: {len(runs)} runs, not {version.runs}"


def version_of_clone(begin: int, runs: Runs, entries: Sequence[LogEntry]) -> TableVersion:
    """Return the version of a clone that begins at an epoch with these runs, and L0 entries below its log."""
    segments = [segment for entry in entries for segment in entry.segments]
    version = TableVersion(
        max_committed_epoch=begin,
        safe_epoch=begin,
        log_start=begin,
        compacted_epoch=runs[-1].hi if runs else 0,
        known_from=entries[-1].epoch if entries else 0,
        l0_segments=len(segments),
        l0_bytes=sum(segment.bytes for segment in segments),
        runs=len(runs),
        run_bytes=sum(run.bytes for run in runs),
    )
    broken = list(broken_runs(version, runs))
    if broken:
        raise InvariantBroken("; ".join(broken))
    return _require_invariants(version)


def apply_commit(table: str, version: TableVersion, entry: LogEntry) -> TableVersion:
    """Return the version after a commit. Raise EpochRegressed or TableFinished for a commit that must not land."""
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
            f"table {table!r}: labels {labels} must rise, be above {show_epoch(version.max_committed_epoch)} and not "
            f"above {show_epoch(entry.epoch)}"
        )
    return _require_invariants(
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


def apply_runs(version: TableVersion, runs: Runs, compacted: Sequence[LogEntry] = ()) -> TableVersion:
    """Return the version after a compaction: `runs` replace the earlier runs and the L0 entries `compacted`."""
    after = replace(
        version,
        compacted_epoch=runs[-1].hi if runs else 0,
        l0_segments=version.l0_segments - sum(len(entry.segments) for entry in compacted),
        l0_bytes=version.l0_bytes - sum(segment.bytes for entry in compacted for segment in entry.segments),
        runs=len(runs),
        run_bytes=sum(run.bytes for run in runs),
    )
    broken = list(broken_runs(after, runs))
    if broken:
        raise InvariantBroken("; ".join(broken))
    return _require_invariants(after)


def apply_packing(version: TableVersion, inputs: Sequence[LogEntry], pack: LogEntry) -> TableVersion:
    """Return the version after a pack has replaced log entries of the same commits."""
    return _require_invariants(
        replace(
            version,
            log_segments=version.log_segments + len(pack.segments) - sum(len(entry.segments) for entry in inputs),
            log_bytes=version.log_bytes
            + sum(file.bytes for file in pack.files)
            - sum(file.bytes for entry in inputs for file in entry.files),
            packing=(version.packing or PackingSums()).plus(inputs, pack),
        )
    )


def apply_safe_epoch(version: TableVersion, safe_epoch: int, single: Iterable[int] = ()) -> TableVersion:
    """Raise the safe epoch, at most to the newest commit. It never falls. single: epochs to keep below it, those of
    them that can still be read; all others there are released.
    """
    epoch = max(version.safe_epoch, min(safe_epoch, version.max_committed_epoch))
    kept = tuple(sorted({kept for kept in single if kept < epoch and version.keeps(kept)}))
    return _require_invariants(replace(version, safe_epoch=epoch, kept=kept))


def apply_forgetting(version: TableVersion, newest: int) -> TableVersion:
    """Forget the records of the commits up to `newest`, which is not the table's newest commit."""
    return _require_invariants(replace(version, known_from=max(version.known_from, newest)))


def apply_truncation(version: TableVersion, before: int, dropped: Sequence[LogEntry]) -> TableVersion:
    """Raise the log's truncation mark. dropped: the log entries that are removed."""
    return _require_invariants(
        replace(
            version,
            log_start=max(version.log_start, before),
            log_segments=version.log_segments - sum(len(entry.segments) for entry in dropped),
            log_bytes=version.log_bytes - sum(file.bytes for entry in dropped for file in entry.files),
        )
    )


def _require_invariants(version: TableVersion) -> TableVersion:
    problems = list(broken_invariants(version))
    if problems:
        raise InvariantBroken("; ".join(problems))
    return version
