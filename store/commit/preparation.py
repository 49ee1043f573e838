"""Preparation of a commit before its transaction, from the newest state of its tables: pre-images are looked up, rows
that lose by the table's sequence are left out, and so are unchanged rows of a job.

The transaction checks that no other commit has landed since (CommitConflict); otherwise the preparation is repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from epochlog.errors import InvalidInput, SegmentUnknown
from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.changelog.pre_images import patched_images, write_images
from epochlog.store.env.paths import SEGMENT_ENDING, file_name, intent_of
from epochlog.store.metadata.commit_log import get_entries
from epochlog.store.metadata.definitions import Counters, TableDef
from epochlog.store.metadata.kept_deletes import KeptFiles, expired_epoch, kept_deletes
from epochlog.store.metadata.lookups import get_table, get_version
from epochlog.store.metadata.staged_segments import list_staged
from epochlog.store.retention.stale_reads import retry_stale_plan
from epochlog.store.scan.scan_plan import ScanPlan, plan_scan
from epochlog.store.session.write_intents import require_intents
from epochlog.store.sst.data_file import FileMissing
from epochlog.store.sst.segment import Segment, SegmentReader
from epochlog.store.types.epoch import from_unix_ms
from epochlog.store.types.key_codec import KeyCodec

from .change import TableChange, log_epochs
from .merged_updates import UpdateMerge
from .prepared import NO_REQUIREMENTS, Prepared, Requirements, remove_new_files
from .row_checks import check_committed
from .transaction import check_unused, newer_commit, refuse_old_updates
from .unchanged_rows import rewrite_segment, without_unchanged
from .verdict import Judge, Verdict, distinct_keys

if TYPE_CHECKING:
    from epochlog.store.session.handle import Handle


def prepare_root(
    handle: Handle, changes: Sequence[TableChange], tried: Sequence[Prepared] | None, epoch: int | None
) -> Sequence[Prepared]:
    """Return changes of root tables as they can be committed now: updates merged with the rows, those of tables with a
    sequence decided by it, all tested with the checks, and with the pre-images of all keys that they touch.

    tried: the preparations of the last attempt. Only keys that were touched since are decided and looked up again, so a
    large commit succeeds however many small ones land meanwhile. epoch: of the commit; None: the next one.
    """
    if tried is None:
        tried = [Prepared.of(change) for change in changes]
        if all(Requirements.of(change.table, change) == NO_REQUIREMENTS for change in changes):
            return tried
    prepared: list[Prepared] = []
    try:
        prepared.extend(
            retry_stale_plan(handle, lambda change=change, last=last: _root(handle, changes, change, last, epoch))
            for change, last in zip(changes, tried, strict=True)
        )
    except BaseException:
        remove_new_files(handle, [*tried, *prepared])
        raise
    remove_new_files(handle, tried, keep=prepared)
    return prepared


def prepare_outputs(
    handle: Handle, changes: Sequence[TableChange], begin: Callable[[ReadTxn], bool | None]
) -> Sequence[Prepared]:
    """Return the changes of a job's outputs as they are committed: without unchanged rows, and with pre-images.

    begin: looks at the job in the state of the catalog from which they are prepared; True if the staged segments of its
    backfill chunks land with them, None if they have landed before. Raises SegmentUnknown when a file that was written
    for them is missing.
    """

    def prepare() -> list[Prepared]:
        def read(view: ReadTxn) -> list[_Output]:
            staged = begin(view)
            if staged is None:
                return [_Output(change.table, Prepared.of(change), None) for change in changes]
            return [_read_output(view, change, staged=staged) for change in changes]

        prepared: list[Prepared] = []
        try:
            prepared.extend(_output(handle, output) for output in handle.catalog.read(read))
        except BaseException:
            remove_new_files(handle, prepared)
            raise
        return prepared

    return retry_stale_plan(handle, prepare)


def _root(
    handle: Handle, changes: Sequence[TableChange], change: TableChange, tried: Prepared, epoch: int | None
) -> Prepared:
    state = handle.catalog.read(lambda view: _read_state(handle, view, change, tried, epoch))
    try:
        return _decided_root(handle, changes, change, tried, epoch, state)
    except FileMissing as error:
        _require_own(change, error)
        raise


def _decided_root(
    handle: Handle,
    changes: Sequence[TableChange],
    change: TableChange,
    tried: Prepared,
    epoch: int | None,
    state: _State,
) -> Prepared:
    before = state.before
    if change.base is not None and change.base != before.epoch:
        raise newer_commit(state.table.name, before.epoch, change.base)
    required = Requirements.of(state.table, change)
    decided = replace(Prepared.of(change), requirements=required)
    if required == NO_REQUIREMENTS:
        return decided
    if required.merge:
        decided = _merged(handle, state, decided, tried, log_epochs(changes, change.segments, epoch))
    elif required.by_sequence:
        decided = _decided(handle, state, decided, tried, log_epochs(changes, change.segments, epoch))
    try:
        epochs = log_epochs(changes, decided.segments, epoch)
        tested = tried.requirements.checks == required.checks and tried.segments == decided.segments
        if required.checks and decided.segments and not tested:
            newest = [segment for label in epochs for segment in label]
            check_committed(handle.files, state.table.schema, dict(required.checks), newest)
        if required.images and decided.segments:
            unchanged = tried.segments == decided.segments or (tried.merged and decided.merged)
            if tried.images is None or state.since is None or not unchanged:
                return _with_pre_images(handle, state.table, decided, before, epochs)
            intent = _write_intent(handle, decided, epochs[0][0])
            images = patched_images(handle, state.table, before, state.since, epochs, tried.images, intent)
            return replace(decided, images=images, base=before.epoch)
    except BaseException:
        remove_new_files(handle, [decided], keep=[tried])
        raise
    return decided


@dataclass(frozen=True, slots=True)
class _State:
    """State of a table before a commit."""

    table: TableDef
    before: ScanPlan
    since: list[Segment] | None
    """Segments that were committed after the last try; None if the log lacks some, or there was none."""
    kept: KeptFiles
    """Kept deletes."""
    expired: int
    """Newest epoch whose deletes are no longer known."""


def _read_state(handle: Handle, view: ReadTxn, change: TableChange, tried: Prepared, epoch: int | None) -> _State:
    table = get_table(view, change.table_id, change.name)
    before = plan_scan(view, table, None)
    if epoch is None:
        epoch = max(Counters.read(view).last_epoch + 1, from_unix_ms(handle.catalog.now_ms()))
    kept = kept_deletes(view, table.id) if table.schema.sequence_by is not None else ()
    expired = expired_epoch(epoch, table.options.tombstone_retention)
    return _State(table, before, _segments_since(view, tried), kept, expired)


def _decided(
    handle: Handle, state: _State, prepared: Prepared, tried: Prepared, epochs: Sequence[Sequence[Segment]]
) -> Prepared:
    """Return the change with only the rows that take effect by the table's sequence, and with the deletes to keep."""
    schema, intent = state.table.schema, _write_intent(handle, prepared, prepared.segments[0])

    def new_path() -> str:
        return f"{handle.table_folder(prepared.change.table_id)}/{file_name(intent, SEGMENT_ENDING)}"

    judge = Judge(
        handle.files,
        prepared.change.table_id,
        state.before,
        state.kept,
        state.expired,
        new_path,
        prepared.change.sequence == "replace",
    )
    earlier = tried.verdict
    if earlier is not None and state.since is not None and _continues(earlier, state):
        verdict = judge.judge(epochs, earlier, _touched_since(handle, state, earlier, state.since))
    else:
        verdict = judge.judge(epochs)
    reusable = {original.path: (earlier, replacement) for original, replacement in tried.rewrites} if earlier else {}
    rewrites: list[tuple[Segment, Segment | None]] = []
    try:
        for segment in prepared.segments:
            mask = verdict.masks[segment.path]
            if mask.all():
                continue
            before = reusable.get(segment.path)
            if before is not None and (before[0].masks[segment.path] == mask).all():
                rewrites.append((segment, before[1]))
            else:
                rewrites.append((segment, rewrite_segment(handle.files, schema, segment, mask, lambda _: intent)))
    except BaseException:
        remove_new_files(handle, [replace(prepared, rewrites=tuple(rewrites), verdict=verdict)], keep=[tried])
        raise
    replacements = {original.path: replacement for original, replacement in rewrites}
    segments = (replacements.get(segment.path, segment) for segment in prepared.segments)
    return replace(
        prepared,
        segments=tuple(segment for segment in segments if segment is not None),
        rewrites=tuple(rewrites),
        verdict=verdict,
        base=state.before.epoch,
    )


def _merged(
    handle: Handle, state: _State, prepared: Prepared, tried: Prepared, epochs: Sequence[Sequence[Segment]]
) -> Prepared:
    """Return the change with whole rows in place of updates of some columns, which are merged with the newest rows."""
    if prepared.change.sequence == "replace" or state.table.schema.sequence_by is not None:
        why = "an overwrite" if prepared.change.sequence == "replace" else "a table with a sequence"
        raise InvalidInput(f"table {state.table.name!r}: {why} takes whole rows, no updates of some columns")
    for segment in prepared.segments:
        refuse_old_updates(state.table, segment)
    intent = _write_intent(handle, prepared, prepared.segments[0])

    def new_path() -> str:
        return f"{handle.table_folder(prepared.change.table_id)}/{file_name(intent, SEGMENT_ENDING)}"

    merge = UpdateMerge(handle.files, prepared.change.table_id, state.before, new_path)
    earlier: tuple[Segment, ...] = ()
    touched = None
    if tried.merged and state.since is not None:
        earlier, touched = tried.merged, _keys_of(handle, state, state.since)
    merged = merge.merge(epochs, touched)
    labels = {segment.path: segment.label for segment in prepared.segments}  # those of `epochs` are not final
    new = tuple(
        segment.labelled(labels[epoch[0].path])
        for epoch, segments in zip(epochs, merged, strict=True)
        for segment in segments
    )
    originals = [segment for epoch in epochs if any(part.updates is not None for part in epoch) for segment in epoch]
    paths = {segment.path for segment in originals}
    kept = [segment for segment in prepared.segments if segment.path not in paths]
    return replace(
        prepared,
        segments=(*kept, *earlier, *new),
        merged=(*earlier, *new),
        rewrites=tuple((segment, None) for segment in prepared.segments if segment.path in paths),
        base=state.before.epoch,
    )


def _continues(earlier: Verdict, state: _State) -> bool:
    """Return True unless kept deletes of an earlier verdict have expired, or were merged or replaced by a restore."""
    present = {file.segment.path for file in state.kept}
    return earlier.applies_at(state.expired) and all(file.segment.path in present for file in earlier.kept)


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


def _segments_since(view: ReadTxn, tried: Prepared) -> list[Segment] | None:
    """Return the segments that were committed after the change's pre-images were looked up; None if the log
    lacks some.
    """
    version = get_version(view, tried.change.table_id, tried.change.name)
    if tried.base is None or tried.base < version.log_start:
        return None
    entries = get_entries(view, tried.change.table_id, tried.base, version.max_committed_epoch)
    return [segment for entry in entries for segment in entry.segments]


@dataclass(frozen=True, slots=True)
class _Output:
    """Output before the commit of its job; `before` is None if the change requires nothing."""

    table: TableDef
    change: Prepared
    before: ScanPlan | None


def _read_output(view: ReadTxn, change: TableChange, *, staged: bool) -> _Output:
    table = get_table(view, change.table_id, change.name)
    parts = list_staged(view, table.id) if staged else ()
    required = Requirements.of(table, change, parts)
    before = None if required == NO_REQUIREMENTS else plan_scan(view, table, None)
    base = None if before is None else before.epoch
    prepared = Prepared(change, (*parts, *change.segments), base, required, staged=parts)
    require_intents(view, change.name, (segment.path for segment in prepared.written))
    check_unused(view, prepared)  # vacuum may have deleted the files of a used or discarded segment
    return _Output(table, prepared, before)


def _output(handle: Handle, output: _Output) -> Prepared:
    prepared, before = output.change, output.before
    if before is None:
        return prepared
    try:
        if prepared.requirements.changed_only:
            prepared = _without_unchanged(handle, prepared, before)
        if prepared.requirements.images and prepared.segments:
            return _with_pre_images(handle, output.table, prepared, before, [prepared.segments])
    except BaseException as error:
        remove_new_files(handle, [prepared])
        _require_own(prepared.change, error)
        raise
    return prepared


def _require_own(change: TableChange, error: BaseException) -> None:
    """Raise SegmentUnknown if the error is that a segment of the change is missing: no later plan would have it."""
    if isinstance(error, FileMissing) and error.path in {segment.path for segment in change.segments}:
        raise SegmentUnknown(f"segment {error.path} of table {change.name!r} is gone; write its rows again") from error


def _without_unchanged(handle: Handle, prepared: Prepared, before: ScanPlan) -> Prepared:
    rewrites = without_unchanged(
        handle.files, before, prepared.segments, lambda segment: _write_intent(handle, prepared, segment)
    )
    replacements = {original.path: replacement for original, replacement in rewrites}
    segments = (replacements.get(segment.path, segment) for segment in prepared.segments)
    return replace(prepared, segments=tuple(segment for segment in segments if segment is not None), rewrites=rewrites)


def _with_pre_images(
    handle: Handle, table: TableDef, prepared: Prepared, before: ScanPlan, epochs: Sequence[Sequence[Segment]]
) -> Prepared:
    intent = _write_intent(handle, prepared, epochs[0][0])
    return replace(prepared, images=write_images(handle, table, before, epochs, intent), base=before.epoch)


def _write_intent(handle: Handle, prepared: Prepared, segment: Segment) -> str:
    """Return the write intent for a file made from a segment: the segment's, or this process's if the segment is
    staged.
    """
    is_staged = segment.path in {staged.path for staged in prepared.staged}  # the writer's intent may have ended
    return handle.intents.store_intent() if is_staged else intent_of(segment.path)
