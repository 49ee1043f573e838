"""Preparation of commits before their transaction, from the newest state of their tables: pre-images are looked up, and
rows of a job that change nothing are left out.

The transaction requires that nothing has landed since (CommitConflict); then it is worked out again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from epochlog.errors import SegmentUnknown
from epochlog.store.catalog.protocol import View
from epochlog.store.changelog.pre_images import patched_images, write_images
from epochlog.store.env.paths import intent_of
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.metadata.lookups import get_entries, get_table, get_version
from epochlog.store.metadata.staged_segments import list_staged
from epochlog.store.retention.stale_reads import retry_stale_plan
from epochlog.store.scan.scan_plan import ScanPlan, plan_scan
from epochlog.store.session.write_intents import require_intents
from epochlog.store.sst.data_file import FileGone
from epochlog.store.sst.segment import Segment
from epochlog.store.sst.segment_writer import remove_segments
from epochlog.store.types.epoch import show_epoch

from .edits import CommitConflict, TableEdit, check_unused, log_epochs
from .unchanged_rows import without_unchanged

if TYPE_CHECKING:
    from epochlog.store.session.handle import Handle


def with_images(
    handle: Handle, edits: Sequence[TableEdit], tried: Sequence[TableEdit], epoch: int | None
) -> list[TableEdit]:
    """Return the edits; those of tables with changelog="full" with the pre-images of all keys that they touch, as of
    now.

    tried: the same edits as they were tried to commit before. Of their old rows only those of keys that were touched
    since are looked up again: so a large commit comes to its end however many small ones land meanwhile.
    """
    done: list[TableEdit] = []
    try:
        done.extend(
            retry_stale_plan(handle, lambda edit=edit, one=one: _root_edit(handle, edits, edit, one, epoch))
            for edit, one in zip(edits, tried, strict=True)
        )
    except BaseException:
        remove_prepared(handle, [*tried, *done])
        raise
    return done


def job_edits(handle: Handle, edits: Sequence[TableEdit], *, replacing: bool) -> list[TableEdit]:
    """Return a job's edits as they are committed: with the segments of its backfill chunks, without rows that change
    nothing, and with the pre-images of the others.

    replacing: the edits are what differs from the rows of old, and what pieces have made is in them. SegmentUnknown
    when a file that was written for them is gone.
    """
    done: list[TableEdit] = []
    try:
        done.extend(
            retry_stale_plan(handle, lambda edit=edit: _job_edit(handle, edit, replacing=replacing)) for edit in edits
        )
    except BaseException:
        remove_prepared(handle, done)
        raise
    return done


def remove_prepared(handle: Handle, edits: Iterable[TableEdit]) -> None:
    """Delete the files that were made for these edits, which will not land."""
    files = {file.path: file for edit in edits for file in edit.prepared}
    remove_segments(handle.files, files.values())


def remove_rewritten(handle: Handle, edits: Iterable[TableEdit]) -> None:
    """Delete the files that the landed edits have replaced by others; the commit has noted them for vacuum."""
    for edit in edits:
        made = {segment.path for segment in edit.made}
        remove_segments(handle.files, (old for old, _ in edit.rewrites if old.path not in made))


def _root_edit(
    handle: Handle, edits: Sequence[TableEdit], edit: TableEdit, tried: TableEdit, epoch: int | None
) -> TableEdit:
    table, before, since = handle.catalog.read(lambda view: (*_newest(view, edit), _since(view, tried)))
    if edit.base is not None and edit.base != before.epoch:
        raise CommitConflict(
            f"table {table.name!r} was committed to at {show_epoch(before.epoch)}, after {show_epoch(edit.base)}; retry"
        )
    if table.changelog != "full" or not edit.segments:
        remove_prepared(handle, [tried])
        return edit
    epochs = log_epochs(edits, edit, epoch)
    if tried.images is None or since is None:
        remove_prepared(handle, [tried])
        return _with_old_rows(handle, table, edit, before, epochs)
    intent = _intent(handle, edit, epochs[0][0])
    images = patched_images(handle, table, before, since, epochs, tried.images, intent)
    return replace(edit, images=images, base=before.epoch)


def _since(view: View, tried: TableEdit) -> list[Segment] | None:
    """Return the segments that were committed after the pre-images of an edit were looked up; None if the log lacks
    some.
    """
    version = get_version(view, tried.table_id, tried.name)
    if tried.base is None or tried.base < version.log_start:
        return None
    entries = get_entries(view, tried.table_id, tried.base, version.max_committed_epoch)
    return [segment for entry in entries for segment in entry.segments]


def _job_edit(handle: Handle, edit: TableEdit, *, replacing: bool) -> TableEdit:
    def look(view: View) -> tuple[TableDef, ScanPlan, tuple[Segment, ...]]:
        require_intents(view, edit.name, (segment.path for segment in edit.written))
        check_unused(view, edit)  # else its files may have gone
        return *_newest(view, edit), list_staged(view, edit.table_id)

    table, before, made = handle.catalog.read(look)
    whole = replace(edit, base=before.epoch)
    if not replacing:
        whole = replace(whole, segments=(*made, *edit.segments), made=made)
    try:
        if table.drop_unchanged and not replacing:  # a difference has nothing else
            whole = _without_unchanged(handle, whole, before)
        if table.changelog == "full" and whole.segments:
            whole = _with_old_rows(handle, table, whole, before, [whole.segments])
    except BaseException as error:
        remove_prepared(handle, [whole])
        if isinstance(error, FileGone) and error.path in {segment.path for segment in edit.segments}:
            raise SegmentUnknown(
                f"segment {error.path} of table {edit.name!r} is gone; write its rows again"
            ) from error
        raise
    return whole


def _without_unchanged(handle: Handle, edit: TableEdit, before: ScanPlan) -> TableEdit:
    rewrites = without_unchanged(handle.files, before, edit.segments, lambda segment: _intent(handle, edit, segment))
    place = {original.path: left for original, left in rewrites}
    left = (place.get(segment.path, segment) for segment in edit.segments)
    return replace(edit, segments=tuple(segment for segment in left if segment is not None), rewrites=rewrites)


def _with_old_rows(
    handle: Handle, table: TableDef, edit: TableEdit, before: ScanPlan, epochs: Sequence[Sequence[Segment]]
) -> TableEdit:
    intent = _intent(handle, edit, epochs[0][0])
    return replace(edit, images=write_images(handle, table, before, epochs, intent), base=before.epoch)


def _intent(handle: Handle, edit: TableEdit, segment: Segment) -> str:
    """Return the write intent for a file made from a segment: the segment's own, or this process's if the catalog
    reaches the segment already.
    """
    made = segment.path in {one.path for one in edit.made}  # perhaps its writer has ended long ago
    return handle.intents.own() if made else intent_of(segment.path)


def _newest(view: View, edit: TableEdit) -> tuple[TableDef, ScanPlan]:
    table = get_table(view, edit.table_id, edit.name)
    return table, plan_scan(view, table, None)
