"""Preparation of a commit before its transaction, from the newest state of its tables: pre-images are looked up, and
unchanged rows of a job are left out.

The transaction checks that no other commit has landed since (CommitConflict); otherwise the preparation is repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from epochlog.errors import SegmentUnknown
from epochlog.store.catalog.protocol import ReadTxn
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
    """Return the edits; those of tables with changelog="full" with the current pre-images of all keys that they touch.

    tried: the edits as the last try prepared them. Only keys that were touched since are looked up again, so a large
    commit succeeds however many small ones land meanwhile.
    """
    prepared: list[TableEdit] = []
    try:
        prepared.extend(
            retry_stale_plan(handle, lambda edit=edit, last=last: _root_edit(handle, edits, edit, last, epoch))
            for edit, last in zip(edits, tried, strict=True)
        )
    except BaseException:
        remove_prepared(handle, [*tried, *prepared])
        raise
    return prepared


def job_edits(handle: Handle, edits: Sequence[TableEdit], *, replacing: bool) -> list[TableEdit]:
    """Return a job's edits as they are committed: with the staged segments of its backfill chunks, without unchanged
    rows, and with pre-images.

    replacing: the edits are the difference of a rebuild, which includes the staged segments. Raises SegmentUnknown when
    a file that was written for them is missing.
    """
    prepared: list[TableEdit] = []
    try:
        prepared.extend(
            retry_stale_plan(handle, lambda edit=edit: _job_edit(handle, edit, replacing=replacing)) for edit in edits
        )
    except BaseException:
        remove_prepared(handle, prepared)
        raise
    return prepared


def remove_prepared(handle: Handle, edits: Iterable[TableEdit]) -> None:
    """Delete the files that were written while these edits were prepared; the edits will not land."""
    files = {file.path: file for edit in edits for file in edit.prepared}
    remove_segments(handle.files, files.values())


def remove_rewritten(handle: Handle, edits: Iterable[TableEdit]) -> None:
    """Delete the files that the committed edits have replaced; the commit has noted them for vacuum."""
    for edit in edits:
        staged = {segment.path for segment in edit.staged}
        remove_segments(handle.files, (original for original, _ in edit.rewrites if original.path not in staged))


def _root_edit(
    handle: Handle, edits: Sequence[TableEdit], edit: TableEdit, tried: TableEdit, epoch: int | None
) -> TableEdit:
    table, before, since = handle.catalog.read(lambda view: (*_newest_plan(view, edit), _segments_since(view, tried)))
    if edit.base is not None and edit.base != before.epoch:
        raise CommitConflict(
            f"table {table.name!r} has a newer commit at {show_epoch(before.epoch)} than {show_epoch(edit.base)}, on "
            "which this one is based; retry"
        )
    if table.changelog != "full" or not edit.segments:
        remove_prepared(handle, [tried])
        return edit
    epochs = log_epochs(edits, edit, epoch)
    if tried.images is None or since is None:
        remove_prepared(handle, [tried])
        return _with_pre_images(handle, table, edit, before, epochs)
    intent = _write_intent(handle, edit, epochs[0][0])
    images = patched_images(handle, table, before, since, epochs, tried.images, intent)
    return replace(edit, images=images, base=before.epoch)


def _segments_since(view: ReadTxn, tried: TableEdit) -> list[Segment] | None:
    """Return the segments that were committed after the edit's pre-images were looked up; None if the log
    lacks some.
    """
    version = get_version(view, tried.table_id, tried.name)
    if tried.base is None or tried.base < version.log_start:
        return None
    entries = get_entries(view, tried.table_id, tried.base, version.max_committed_epoch)
    return [segment for entry in entries for segment in entry.segments]


def _job_edit(handle: Handle, edit: TableEdit, *, replacing: bool) -> TableEdit:
    def read_inputs(view: ReadTxn) -> tuple[TableDef, ScanPlan, tuple[Segment, ...]]:
        require_intents(view, edit.name, (segment.path for segment in edit.written))
        check_unused(view, edit)  # vacuum may have deleted the files of a used or discarded segment
        return *_newest_plan(view, edit), list_staged(view, edit.table_id)

    table, before, staged = handle.catalog.read(read_inputs)
    prepared = replace(edit, base=before.epoch)
    if not replacing:
        prepared = replace(prepared, segments=(*staged, *edit.segments), staged=staged)
    try:
        if table.drop_unchanged and not replacing:  # a difference contains no unchanged rows
            prepared = _without_unchanged(handle, prepared, before)
        if table.changelog == "full" and prepared.segments:
            prepared = _with_pre_images(handle, table, prepared, before, [prepared.segments])
    except BaseException as error:
        remove_prepared(handle, [prepared])
        if isinstance(error, FileGone) and error.path in {segment.path for segment in edit.segments}:
            raise SegmentUnknown(
                f"segment {error.path} of table {edit.name!r} is gone; write its rows again"
            ) from error
        raise
    return prepared


def _without_unchanged(handle: Handle, edit: TableEdit, before: ScanPlan) -> TableEdit:
    rewrites = without_unchanged(
        handle.files, before, edit.segments, lambda segment: _write_intent(handle, edit, segment)
    )
    replacements = {original.path: replacement for original, replacement in rewrites}
    segments = (replacements.get(segment.path, segment) for segment in edit.segments)
    return replace(edit, segments=tuple(segment for segment in segments if segment is not None), rewrites=rewrites)


def _with_pre_images(
    handle: Handle, table: TableDef, edit: TableEdit, before: ScanPlan, epochs: Sequence[Sequence[Segment]]
) -> TableEdit:
    intent = _write_intent(handle, edit, epochs[0][0])
    return replace(edit, images=write_images(handle, table, before, epochs, intent), base=before.epoch)


def _write_intent(handle: Handle, edit: TableEdit, segment: Segment) -> str:
    """Return the write intent for a file made from a segment: the segment's, or this process's if the segment is
    staged.
    """
    is_staged = segment.path in {staged.path for staged in edit.staged}  # the writer's intent may have ended
    return handle.intents.store_intent() if is_staged else intent_of(segment.path)


def _newest_plan(view: ReadTxn, edit: TableEdit) -> tuple[TableDef, ScanPlan]:
    table = get_table(view, edit.table_id, edit.name)
    return table, plan_scan(view, table, None)
