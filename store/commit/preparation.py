"""Preparation of a commit before its transaction, from the newest state of its tables: pre-images are looked up, rows
that lose by the table's sequence are left out, and so are unchanged rows of a job.

The transaction checks that no other commit has landed since (CommitConflict); otherwise the preparation is repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from epochlog.errors import InvalidInput, SegmentUnknown
from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.changelog.pre_images import patched_images, write_images
from epochlog.store.env.paths import SEGMENT_ENDING, file_name, intent_of
from epochlog.store.metadata.definitions import Counters, TableDef
from epochlog.store.metadata.kept_deletes import KeptFiles, expired_epoch, kept_deletes
from epochlog.store.metadata.lookups import get_entries, get_table, get_version
from epochlog.store.metadata.staged_segments import list_staged
from epochlog.store.retention.stale_reads import retry_stale_plan
from epochlog.store.scan.scan_plan import ScanPlan, plan_scan
from epochlog.store.session.write_intents import require_intents
from epochlog.store.sst.data_file import FileGone
from epochlog.store.sst.segment import Segment, SegmentReader
from epochlog.store.sst.segment_writer import remove_segments
from epochlog.store.types.epoch import from_unix_ms, show_epoch
from epochlog.store.types.key_codec import KeyCodec

from .edits import CommitConflict, TableEdit, check_unused, log_epochs, refuse_old_updates
from .merged_updates import UpdateMerge
from .row_checks import check_committed
from .unchanged_rows import rewrite_segment, without_unchanged
from .verdict import Judge, Verdict, distinct_keys

if TYPE_CHECKING:
    from epochlog.store.session.handle import Handle


def prepared_edits(
    handle: Handle, edits: Sequence[TableEdit], tried: Sequence[TableEdit], epoch: int | None
) -> list[TableEdit]:
    """Return the edits as they can be committed now: those of tables with a sequence decided by it, and those of tables
    with changelog="full" with the pre-images of all keys that they touch.

    tried: the edits as the last try prepared them. Only keys that were touched since are decided and looked up again,
    so a large commit succeeds however many small ones land meanwhile.
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
    kept = {file.path for edit in prepared for file in edit.prepared}
    remove_segments(handle.files, [file for edit in tried for file in edit.prepared if file.path not in kept])
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
    state = handle.catalog.read(lambda view: _read_state(handle, view, edit, tried, epoch))
    before = state.before
    if edit.base is not None and edit.base != before.epoch:
        raise CommitConflict(
            f"table {state.table.name!r} has a newer commit at {show_epoch(before.epoch)} than "
            f"{show_epoch(edit.base)}, on which this one is based; retry"
        )
    if not edit.segments:
        return edit
    decided = edit
    if any(segment.updates is not None for segment in edit.segments):
        decided = _merged(handle, state, edit, tried, log_epochs(edits, edit, epoch))
    elif state.table.schema.sequence_by is not None and edit.sequence != "given":
        decided = _decided(handle, state, edit, tried, log_epochs(edits, edit, epoch))
    try:
        if state.table.checks and decided.segments:
            if tried.checks != state.table.checks or tried.segments != decided.segments:
                newest = [segment for label in log_epochs(edits, decided, epoch) for segment in label]
                check_committed(handle.files, state.table.schema, dict(state.table.checks), newest)
            decided = replace(decided, checks=state.table.checks)
        if state.table.changelog == "full" and decided.segments:
            epochs = log_epochs(edits, decided, epoch)
            unchanged = tried.segments == decided.segments or (tried.merged and decided.merged)
            if tried.images is None or state.since is None or not unchanged:
                return _with_pre_images(handle, state.table, decided, before, epochs)
            intent = _write_intent(handle, decided, epochs[0][0])
            images = patched_images(handle, state.table, before, state.since, epochs, tried.images, intent)
            return replace(decided, images=images, base=before.epoch)
    except BaseException:
        _remove_new(handle, decided, tried)
        raise
    return decided


def _remove_new(handle: Handle, edit: TableEdit, tried: TableEdit) -> None:
    """Delete the files that were written for an edit after the last try."""
    earlier = {file.path for file in tried.prepared}
    remove_segments(handle.files, [file for file in edit.prepared if file.path not in earlier])


@dataclass(frozen=True, slots=True)
class _State:
    """State of a table before a commit. since: the segments that were committed after the last try; None if the log
    lacks some, or there was none. kept: the kept deletes. expired: the newest epoch whose deletes are no longer known.
    """

    table: TableDef
    before: ScanPlan
    since: list[Segment] | None
    kept: KeptFiles
    expired: int


def _read_state(handle: Handle, view: ReadTxn, edit: TableEdit, tried: TableEdit, epoch: int | None) -> _State:
    table, before = _newest_plan(view, edit)
    if epoch is None:
        epoch = max(Counters.read(view).last_epoch + 1, from_unix_ms(handle.catalog.now_ms()))
    kept = kept_deletes(view, table.id) if table.schema.sequence_by is not None else ()
    expired = expired_epoch(epoch, table.options.tombstone_retention)
    return _State(table, before, _segments_since(view, tried), kept, expired)


def _decided(
    handle: Handle, state: _State, edit: TableEdit, tried: TableEdit, epochs: Sequence[Sequence[Segment]]
) -> TableEdit:
    """Return the edit with only the rows that take effect by the table's sequence, and with the deletes to keep."""
    schema, intent = state.table.schema, _write_intent(handle, edit, edit.segments[0])

    def new_path() -> str:
        return f"{handle.table_folder(edit.table_id)}/{file_name(intent, SEGMENT_ENDING)}"

    judge = Judge(
        handle.files, edit.table_id, state.before, state.kept, state.expired, new_path, edit.sequence == "replace"
    )
    earlier = tried.verdict
    if earlier is not None and state.since is not None and _continues(earlier, state):
        verdict = judge.judge(epochs, earlier, _touched_since(handle, state, earlier, state.since))
    else:
        verdict = judge.judge(epochs)
    made = {original.path: (earlier, replacement) for original, replacement in tried.rewrites} if earlier else {}
    rewrites: list[tuple[Segment, Segment | None]] = []
    try:
        for segment in edit.segments:
            mask = verdict.masks[segment.path]
            if mask.all():
                continue
            before = made.get(segment.path)
            if before is not None and (before[0].masks[segment.path] == mask).all():
                rewrites.append((segment, before[1]))
            else:
                rewrites.append((segment, rewrite_segment(handle.files, schema, segment, mask, lambda _: intent)))
    except BaseException:
        _remove_new(handle, replace(edit, rewrites=tuple(rewrites), verdict=verdict), tried)
        raise
    replacements = {original.path: replacement for original, replacement in rewrites}
    segments = (replacements.get(segment.path, segment) for segment in edit.segments)
    return replace(
        edit,
        segments=tuple(segment for segment in segments if segment is not None),
        rewrites=tuple(rewrites),
        verdict=verdict,
        base=state.before.epoch,
    )


def _merged(
    handle: Handle, state: _State, edit: TableEdit, tried: TableEdit, epochs: Sequence[Sequence[Segment]]
) -> TableEdit:
    """Return the edit with whole rows in place of updates of some columns, which are merged with the newest rows."""
    if edit.sequence == "replace" or state.table.schema.sequence_by is not None:
        why = "an overwrite" if edit.sequence == "replace" else "a table with a sequence"
        raise InvalidInput(f"table {state.table.name!r}: {why} takes whole rows, no updates of some columns")
    for segment in edit.segments:
        refuse_old_updates(state.table, segment)
    intent = _write_intent(handle, edit, edit.segments[0])

    def new_path() -> str:
        return f"{handle.table_folder(edit.table_id)}/{file_name(intent, SEGMENT_ENDING)}"

    merge = UpdateMerge(handle.files, edit.table_id, state.before, new_path)
    earlier: tuple[Segment, ...] = ()
    touched = None
    if tried.merged and state.since is not None:
        earlier, touched = tried.merged, _keys_of(handle, state, state.since)
    merged = merge.merge(epochs, touched)
    labels = {segment.path: segment.label for segment in edit.segments}  # those of `epochs` are not final
    new = tuple(
        segment.labelled(labels[epoch[0].path])
        for epoch, segments in zip(epochs, merged, strict=True)
        for segment in segments
    )
    originals = [segment for epoch in epochs if any(part.updates is not None for part in epoch) for segment in epoch]
    paths = {segment.path for segment in originals}
    kept = [segment for segment in edit.segments if segment.path not in paths]
    return replace(
        edit,
        segments=(*kept, *earlier, *new),
        merged=(*earlier, *new),
        rewrites=tuple((segment, None) for segment in edit.segments if segment.path in paths),
        base=state.before.epoch,
    )


def _continues(earlier: Verdict, state: _State) -> bool:
    """Return True unless kept deletes of an earlier verdict have expired, or were merged or replaced by a restore."""
    present = {file.segment.path for file in state.kept}
    return earlier.stands_at(state.expired) and all(file.segment.path in present for file in earlier.kept)


def _touched_since(handle: Handle, state: _State, earlier: Verdict, since: Sequence[Segment]) -> pa.Array:
    """Return the encoded keys, sorted, whose row or kept delete has changed since an earlier verdict."""
    known = {file.segment.path for file in earlier.kept}
    return _keys_of(handle, state, [*since, *(file.segment for file in state.kept if file.segment.path not in known)])


def _keys_of(handle: Handle, state: _State, files: Sequence[Segment]) -> pa.Array:
    """Return the encoded keys of these files, sorted, each once."""
    schema = state.table.schema
    codec = KeyCodec(schema.schema, schema.primary_key)
    keys = [SegmentReader(handle.files, file, schema, codec).read(()).keys for file in files]
    return distinct_keys(keys, codec)


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
