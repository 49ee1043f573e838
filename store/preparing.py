"""What commits work out before their transaction, from the newest state of their tables: the old rows that they store,
and what a job has written that changes nothing.

The transaction requires that nothing has landed since (BaseMoved); then it is worked out again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..errors import SegmentUnknown
from .catalog import View
from .datafile import FileGone
from .definitions import TableDef, get_entries, get_table, get_version
from .edits import BaseMoved, TableEdit, check_unused, log_epochs
from .epoch import show_epoch
from .expiry import planned_anew
from .images import patched_images, write_images
from .intents import require_intents
from .made import made_of
from .paths import intent_of
from .scan import ScanPlan, plan_scan
from .segment import Segment
from .unchanged import without_unchanged
from .writer import remove_segments

if TYPE_CHECKING:
    from .handle import Handle


def with_images(
    handle: Handle, edits: Sequence[TableEdit], tried: Sequence[TableEdit], epoch: int | None
) -> list[TableEdit]:
    """The edits; those of tables with changelog="full" with the old rows of all that they touch, as of now.

    tried: the same edits as they were tried to commit before. Of their old rows only those of keys that were touched
    since are looked up again: so a large commit comes to its end however many small ones land meanwhile.
    """
    done: list[TableEdit] = []
    try:
        done.extend(
            planned_anew(handle, lambda edit=edit, one=one: _root_edit(handle, edits, edit, one, epoch))
            for edit, one in zip(edits, tried, strict=True)
        )
    except BaseException:
        remove_prepared(handle, [*tried, *done])
        raise
    return done


def job_edits(handle: Handle, edits: Sequence[TableEdit], *, replacing: bool) -> list[TableEdit]:
    """A job's edits as they are committed: with what its pieces have made, without what changes nothing, with the old
    rows of the rest.

    replacing: the edits are what differs from the rows of old, and what pieces have made is in them. SegmentUnknown
    when a file that was written for them is gone.
    """
    done: list[TableEdit] = []
    try:
        done.extend(
            planned_anew(handle, lambda edit=edit: _job_edit(handle, edit, replacing=replacing)) for edit in edits
        )
    except BaseException:
        remove_prepared(handle, done)
        raise
    return done


def remove_prepared(handle: Handle, edits: Iterable[TableEdit]) -> None:
    """Remove the files that were made for these edits, which will not land."""
    files = {file.path: file for edit in edits for file in edit.prepared}
    remove_segments(handle.files, files.values())


def remove_rewritten(handle: Handle, edits: Iterable[TableEdit]) -> None:
    """Remove the files that the landed edits have put others in the place of; the commit has noted them for vacuum."""
    for edit in edits:
        made = {segment.path for segment in edit.made}
        remove_segments(handle.files, (old for old, _ in edit.rewrites if old.path not in made))


def _root_edit(
    handle: Handle, edits: Sequence[TableEdit], edit: TableEdit, tried: TableEdit, epoch: int | None
) -> TableEdit:
    table, before, since = handle.catalog.read(lambda view: (*_newest(view, edit), _since(view, tried)))
    if edit.base is not None and edit.base != before.epoch:
        raise BaseMoved(
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
    """The segments that were committed after the old rows of an edit were looked up; None if the log lacks some."""
    version = get_version(view, tried.table_id, tried.name)
    if tried.base is None or tried.base < version.log_start:
        return None
    entries = get_entries(view, tried.table_id, tried.base, version.max_committed_epoch)
    return [segment for entry in entries for segment in entry.segments]


def _job_edit(handle: Handle, edit: TableEdit, *, replacing: bool) -> TableEdit:
    def look(view: View) -> tuple[TableDef, ScanPlan, tuple[Segment, ...]]:
        require_intents(view, edit.name, (segment.path for segment in edit.written))
        check_unused(view, edit)  # else its files may have gone
        return *_newest(view, edit), made_of(view, edit.table_id)

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
    """What a file that is made from a segment is written under: what that was, as it may be committed for as long."""
    made = segment.path in {one.path for one in edit.made}  # perhaps its writer has ended long ago
    return handle.intents.own() if made else intent_of(segment.path)


def _newest(view: View, edit: TableEdit) -> tuple[TableDef, ScanPlan]:
    table = get_table(view, edit.table_id, edit.name)
    return table, plan_scan(view, table, None)
