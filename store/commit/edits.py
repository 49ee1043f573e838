"""Edits of one table by a commit, and their share of its transaction: segments become a log entry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from epochlog.errors import EpochlogError, InvalidInput, SegmentUnknown
from epochlog.store.catalog.keys import gone_key, head_key, hist_key, log_key, used_key
from epochlog.store.catalog.protocol import Txn, View
from epochlog.store.changelog.pre_images import Images
from epochlog.store.env.failpoints import hit
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.metadata.lookups import get_version
from epochlog.store.metadata.unreachable_files import mark_unreachable
from epochlog.store.metadata.version import Commit, LabelGroup, LogEntry, TableVersion, apply_commit
from epochlog.store.session.write_intents import require_intents
from epochlog.store.sst.segment import Segment
from epochlog.store.types.epoch import show_epoch

from .idempotency import TxnPair
from .unchanged_rows import Rewrites

if TYPE_CHECKING:
    from epochlog.store.session.handle import Handle


@dataclass(frozen=True, slots=True)
class TableEdit:
    """Changes of a commit to one table: segments, of which later ones win, or its end-of-data.

    base: the newest commit that the edit was made from, where it must still be the newest. images: old rows for each of
    its log epochs as of `base`, for changelog="full". made: segments that the catalog reaches already (see
    store/metadata/staged_segments.py). rewrites: those in whose place others are, without the rows that change nothing.
    """

    table_id: int
    name: str
    segments: tuple[Segment, ...] = ()
    operation: str = "upsert"
    end: bool = False
    base: int | None = None
    images: Images | None = None
    made: tuple[Segment, ...] = ()
    rewrites: Rewrites = ()

    @property
    def written(self) -> list[Segment]:
        """Return the files that the edit's writers made: the catalog does not reach them before the commit."""
        others = {segment.path for segment in (*self.made, *self.prepared)}
        found = (*self.segments, *(original for original, _ in self.rewrites))
        return [segment for segment in found if segment.path not in others]

    @property
    def prepared(self) -> list[Segment]:
        """Return the files that were made for this edit alone, before its commit."""
        images = [file for files in self.images or () for file in files]
        return [*images, *(left for _, left in self.rewrites if left is not None)]


class CommitConflict(EpochlogError):
    """A commit conflict: another commit landed in a table while an edit was made from its earlier state."""


class ImagesMissing(EpochlogError):
    """An edit of a table with changelog="full" that lacks the pre-images of its rows."""


def sealed_labels(edits: Sequence[TableEdit]) -> list[int]:
    """Return the labels that were given at sealing, rising."""
    return sorted({segment.label for edit in edits for segment in edit.segments if segment.label is not None})


def grouped(edit: TableEdit, epoch: int, labels: Mapping[int, int]) -> dict[int, list[Segment]]:
    """Group the edit's segments by log epoch. labels: the final epoch of each label given at sealing."""
    groups: dict[int, list[Segment]] = {}
    for segment in edit.segments:
        label = epoch if segment.label is None else labels[segment.label]
        groups.setdefault(label, []).append(replace(segment, label=label))
    return groups


def log_epochs(edits: Sequence[TableEdit], edit: TableEdit, epoch: int | None) -> list[list[Segment]]:
    """Return the segments of each log epoch that the edit will have, oldest first, before the epochs themselves are
    known.
    """
    sealed = sealed_labels(edits)
    if epoch is None:
        at, labels = max(len(sealed) - 1, 0), {label: place for place, label in enumerate(sealed)}
    else:
        at, labels = epoch, {label: label for label in sealed}
    groups = grouped(edit, at, labels)
    return [groups[label] for label in sorted(groups)]


def check_segments(handle: Handle, edit: TableEdit) -> None:
    """Raise InvalidInput for an object that is no segment, SegmentUnknown for a segment of another store or table, a
    repeated one, or a sealed one whose file has gone.
    """
    folder, seen = handle.table_folder(edit.table_id), set[str]()
    for segment in edit.segments:
        if not isinstance(segment, Segment):
            raise InvalidInput(f"table {edit.name!r}: a commit takes the segments that seal() gave, not {segment!r}")
        if segment.path in seen:
            raise SegmentUnknown(f"segment {segment.path} of table {edit.name!r} is there twice in one commit")
        seen.add(segment.path)
        if segment.table_id != edit.table_id or not segment.path.startswith(folder + "/"):
            raise SegmentUnknown(f"segment {segment.path} was not written for table {edit.name!r} of this store")
        if segment.label is not None and not handle.files.exists(segment.path):  # sealed, perhaps long ago
            raise SegmentUnknown(f"segment {segment.path} of table {edit.name!r} is gone; write its rows again")


def use_up(tx: Txn, edit: TableEdit) -> None:
    """Take segments whose writer may still write, and sealed ones once: whoever sealed them may try to commit them
    again when an answer was lost.
    """
    require_intents(tx, edit.name, (file.path for file in (*edit.written, *edit.prepared)))
    check_unused(tx, edit)
    for segment in edit.written:
        if segment.label is not None:
            tx.put(used_key(segment.table_id, segment.path), {})


def check_unused(view: View, edit: TableEdit) -> None:
    """Raise SegmentUnknown for a segment that was dropped, or sealed and committed already."""
    for segment in edit.written:
        if view.get(gone_key(segment.table_id, segment.path)) is not None:
            raise SegmentUnknown(f"segment {segment.path} of table {edit.name!r} was let go; write its rows again")
        if segment.label is not None and view.get(used_key(segment.table_id, segment.path)) is not None:
            raise SegmentUnknown(
                f"segment {segment.path} of table {edit.name!r} has been committed already; "
                "give the commit a txn=(application, id), and its repetition returns the first outcome"
            )


def append_entry(
    tx: Txn,
    table: TableDef,
    edit: TableEdit,
    epoch: int,
    labels: Mapping[int, int],
    now_ms: int,
    *,
    txn: TxnPair | None,
    job: str | None,
) -> TableVersion:
    """Add one log entry to one table, with the row of history that outlives it; return its version after that.

    What others are in the place of is let go of: nobody commits it again, and nothing of it stays.
    """
    use_up(tx, edit)
    before = get_version(tx, table.id, table.name)
    if edit.base is not None and edit.base != before.max_committed_epoch:
        raise CommitConflict(
            f"table {table.name!r} was committed to at {show_epoch(before.max_committed_epoch)}, after "
            f"{show_epoch(edit.base)}; retry"
        )
    if table.changelog == "full" and edit.segments and edit.images is None:
        raise ImagesMissing(f"table {table.name!r} stores old rows with each commit, and this one has none")
    groups = grouped(edit, epoch, labels)
    images = edit.images or ((),) * len(groups)
    stored = edit.images is not None
    found = (LabelGroup(at, tuple(groups[at]), old, stored) for at, old in zip(sorted(groups), images, strict=True))
    entry = LogEntry(epoch, tuple(found), edit.end)
    version = apply_commit(table.name, before, entry)
    rows, deletes = sum(s.rows for s in entry.segments), sum(s.deletes for s in entry.segments)
    commit = Commit(
        epoch=epoch,
        at_ms=now_ms,
        operation=edit.operation,
        txn=txn,
        job=job,
        rows_upserted=rows - deletes,
        rows_deleted=deletes,
        segments=len(entry.segments),
        bytes=sum(s.bytes for s in entry.segments),
        changed=entry.changed,
        labels=tuple(label for label in sorted(groups) if label != epoch),
    )
    tx.put(head_key(table.id), version.to_record())
    tx.put(log_key(table.id, epoch), entry.to_record())
    tx.put(hist_key(table.id, epoch), commit.to_record())
    mark_unreachable(tx, table.id, ((original.path, original.bytes) for original, _ in edit.rewrites), now_ms)
    hit("commit:before-transaction")
    return version
