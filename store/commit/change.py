"""Change of one table by a commit, as its caller asks for it, and the log epochs of its segments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from epochlog.errors import EpochlogError, InvalidInput, SegmentUnknown
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.sst.segment import Segment

if TYPE_CHECKING:
    from epochlog.store.session.handle import Handle


class CommitConflict(EpochlogError):
    """Commit conflict: after a change was prepared, another commit of its table landed, or a setting was altered."""


@dataclass(frozen=True, slots=True)
class TableChange:
    """Change of one table by a commit: segments, of which later ones win, or the end of its data."""

    table: TableDef
    """The table as the caller has read it. The commit follows the settings that it has at the transaction."""
    segments: tuple[Segment, ...] = ()
    operation: str = "upsert"
    """Operation of the commit in the table's history."""
    end: bool = False
    """True if the table's data ends with this commit."""
    base: int | None = None
    """The newest commit of the table, which the change presumes; CommitConflict if another one is. None: any."""
    sequence: Literal["compare", "replace", "given"] = "compare"
    """In a table with a sequence: "compare" lets a row take effect only over smaller sequences, "replace" compares the
    rows of the commit among themselves only, and "given" takes them as they are, with the kept deletes of an epoch."""
    base_deletes: int | None = None
    """That epoch of "given"."""
    by_ttl: bool = False
    """True if the rows were chosen by the ttl of `table`, which must still be the table's."""
    is_difference: bool = False
    """True if the segments hold all that a rebuild changes, the staged segments included."""

    @property
    def table_id(self) -> int:
        return self.table.id

    @property
    def name(self) -> str:
        return self.table.name


def sealed_labels(changes: Sequence[TableChange]) -> list[int]:
    """Return the labels that were assigned at sealing, in rising order."""
    return sorted({segment.label for change in changes for segment in change.segments if segment.label is not None})


def grouped(segments: Sequence[Segment], epoch: int, labels: Mapping[int, int]) -> dict[int, list[Segment]]:
    """Group segments by log epoch. labels: the final epoch of each label assigned at sealing."""
    groups: dict[int, list[Segment]] = {}
    for segment in segments:
        label = epoch if segment.label is None else labels[segment.label]
        groups.setdefault(label, []).append(replace(segment, label=label))
    return groups


def log_epochs(changes: Sequence[TableChange], segments: Sequence[Segment], epoch: int | None) -> list[list[Segment]]:
    """Return the segments of each log epoch that a table of the commit will have, oldest first. The epochs themselves
    need not be known.
    """
    sealed = sealed_labels(changes)
    if epoch is None:
        last_label, labels = max(len(sealed) - 1, 0), {label: index for index, label in enumerate(sealed)}
    else:
        last_label, labels = epoch, {label: label for label in sealed}
    groups = grouped(segments, last_label, labels)
    return [groups[label] for label in sorted(groups)]


def check_segments(handle: Handle, change: TableChange) -> None:
    """Check a change's segments before its transaction.

    Raises InvalidInput for an object that is not a segment, and SegmentUnknown for a segment of another store or table,
    a repeated one, or a sealed one whose file is missing.
    """
    folder, paths = handle.table_folder(change.table_id), set[str]()
    for segment in change.segments:
        if not isinstance(segment, Segment):
            raise InvalidInput(f"table {change.name!r}: a commit takes segments returned by seal(), not {segment!r}")
        if segment.path in paths:
            raise SegmentUnknown(f"segment {segment.path} of table {change.name!r} occurs twice in one commit")
        paths.add(segment.path)
        if segment.table_id != change.table_id or not segment.path.startswith(folder + "/"):
            raise SegmentUnknown(f"segment {segment.path} was not written for table {change.name!r} of this store")
        if segment.label is not None and not handle.files.exists(segment.path):  # vacuum may have deleted it since
            raise SegmentUnknown(f"segment {segment.path} of table {change.name!r} is gone; write its rows again")
