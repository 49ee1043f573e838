"""Prepared change of a table: what its settings require before the transaction, what was made of it, and its files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from epochlog.store.changelog.pre_images import Images
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.sst.segment import Segment
from epochlog.store.sst.segment_writer import remove_segments

from .change import TableChange
from .unchanged_rows import Rewrites
from .verdict import Verdict

if TYPE_CHECKING:
    from epochlog.store.session.handle import Handle


@dataclass(frozen=True, slots=True)
class Requirements:
    """Requirements of a table's settings: what is done with a change before its transaction."""

    merge: bool = False
    """Updates of some columns become whole rows."""
    by_sequence: bool = False
    """The rows that lose by the table's sequence are left out."""
    changed_only: bool = False
    """Rows of an output that it has already are left out."""
    checks: tuple[tuple[str, str], ...] = ()
    """The rows are tested with these checks."""
    images: bool = False
    """The rows before the change are stored with it."""

    @classmethod
    def of(cls, table: TableDef, change: TableChange, staged: Sequence[Segment] = ()) -> Requirements:
        """Return what the table, as it is now, requires of a change, and of the staged segments that land with it."""
        if not change.segments and not staged:
            return cls()
        return cls(
            merge=any(segment.updates is not None for segment in change.segments),
            by_sequence=table.schema.sequence_by is not None and change.sequence != "given",
            changed_only=table.derived and table.drop_unchanged and not change.is_difference,
            checks=table.checks,
            images=table.changelog == "full",
        )


NO_REQUIREMENTS = Requirements()


@dataclass(frozen=True, slots=True)
class Prepared:
    """Change of a table as it can be committed, if the table still requires the same and has no newer commit."""

    change: TableChange
    segments: tuple[Segment, ...]
    """The segments to commit, of which later ones win."""
    base: int | None
    """The table's newest commit when the change was prepared; None if nothing depends on it."""
    requirements: Requirements = NO_REQUIREMENTS
    """Requirements that the preparation has met."""
    images: Images | None = None
    """The rows before the change, for each of its log epochs; None if they were not required."""
    verdict: Verdict | None = None
    """The decision by the table's sequence."""
    merged: tuple[Segment, ...] = ()
    """Segments of whole rows that were made of segments of updates."""
    rewrites: Rewrites = ()
    """Segments of the change that were replaced by ones with fewer rows, or none."""
    staged: tuple[Segment, ...] = ()
    """Segments that the catalog reaches already (store/metadata/staged_segments.py)."""

    @classmethod
    def of(cls, change: TableChange) -> Prepared:
        """Return a change as it is, with nothing done."""
        return cls(change, change.segments, change.base)

    @property
    def written(self) -> list[Segment]:
        """Return the files of the change's writers: the catalog does not reach them before the commit."""
        known = {segment.path for segment in (*self.staged, *self.new_files)}
        segments = (*self.segments, *(original for original, _ in self.rewrites))
        return [segment for segment in segments if segment.path not in known]

    @property
    def new_files(self) -> list[Segment]:
        """Return the files that the preparation has written."""
        images = [file for files in self.images or () for file in files]
        deletes = () if self.verdict is None else self.verdict.deletes
        replacements = (replacement for _, replacement in self.rewrites if replacement is not None)
        return [*images, *deletes, *self.merged, *replacements]


def remove_new_files(handle: Handle, prepared: Iterable[Prepared], keep: Iterable[Prepared] = ()) -> None:
    """Delete the files that were written to prepare these changes, which will not land so. keep: preparations whose
    files stay.
    """
    kept = {file.path for change in keep for file in change.new_files}
    files = {file.path: file for change in prepared for file in change.new_files if file.path not in kept}
    remove_segments(handle.files, files.values())


def remove_rewritten(handle: Handle, prepared: Iterable[Prepared]) -> None:
    """Delete the files that committed changes have replaced; the commit has noted them for vacuum."""
    for change in prepared:
        staged = {segment.path for segment in change.staged}
        remove_segments(handle.files, (original for original, _ in change.rewrites if original.path not in staged))
