"""Edits of one table by a commit, and their part of its transaction: segments become a log entry."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

from epochlog.errors import EpochlogError, InvalidInput, SchemaChanged, SegmentUnknown
from epochlog.store.catalog.keys import gone_key, head_key, hist_key, log_key, used_key
from epochlog.store.catalog.protocol import ReadTxn, Txn
from epochlog.store.changelog.pre_images import Images
from epochlog.store.env.clock import monotonic_s
from epochlog.store.env.failpoints import hit
from epochlog.store.env.log_events import COMMIT
from epochlog.store.env.metrics import COMMIT_SECONDS, COMMITS, COMMITTED_ROWS
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.metadata.kept_deletes import KeptFile, expired_epoch, kept_deletes, put_kept
from epochlog.store.metadata.lookups import get_version
from epochlog.store.metadata.unreachable_files import mark_unreachable
from epochlog.store.metadata.version import Commit, LabelGroup, LogEntry, TableVersion, apply_commit
from epochlog.store.session.write_intents import require_intents
from epochlog.store.sst.file_columns import file_schema
from epochlog.store.sst.segment import Segment
from epochlog.store.types.epoch import show_epoch
from epochlog.store.types.widening import loses_dates

from .failures import TtlAltered
from .idempotency import TxnPair
from .unchanged_rows import Rewrites
from .verdict import Verdict

if TYPE_CHECKING:
    from epochlog.store.session.handle import Handle


@dataclass(frozen=True, slots=True)
class TableEdit:
    """Changes of a commit to one table: segments, of which later ones win, or its end of data.

    base: the table's newest commit when the edit was prepared; it must still be the newest. images: pre-images for each
    log epoch of the edit as of `base`, for changelog="full". staged: segments that the catalog reaches already (see
    store/metadata/staged_segments.py). rewrites: segments that were replaced by ones with fewer rows. sequence: for a
    table with a sequence: "compare" lets a change take effect only over smaller sequences; "replace" compares the
    changes of the commit among themselves only; "given" takes them as they are, and the kept deletes of the epoch
    `base_deletes`. verdict: the decision by sequence, without which the first two cannot be committed.
    merged: segments of whole rows that were made of segments of updates. checks: those that the rows have passed.
    expiry: the table's ttl and its column's field id, by which the edit was decided; they must still be these.
    """

    table_id: int
    name: str
    segments: tuple[Segment, ...] = ()
    operation: str = "upsert"
    end: bool = False
    base: int | None = None
    images: Images | None = None
    staged: tuple[Segment, ...] = ()
    rewrites: Rewrites = ()
    sequence: Literal["compare", "replace", "given"] = "compare"
    verdict: Verdict | None = None
    base_deletes: int | None = None
    merged: tuple[Segment, ...] = ()
    checks: tuple[tuple[str, str], ...] = ()
    expiry: tuple[timedelta, int] | None = None

    @property
    def written(self) -> list[Segment]:
        """Return the files of the edit's writers: the catalog does not reach them before the commit."""
        known = {segment.path for segment in (*self.staged, *self.prepared)}
        segments = (*self.segments, *(original for original, _ in self.rewrites))
        return [segment for segment in segments if segment.path not in known]

    @property
    def prepared(self) -> list[Segment]:
        """Return the files that were written while the edit was prepared."""
        images = [file for files in self.images or () for file in files]
        deletes = () if self.verdict is None else self.verdict.deletes
        return [
            *images,
            *deletes,
            *self.merged,
            *(replacement for _, replacement in self.rewrites if replacement is not None),
        ]


class CommitConflict(EpochlogError):
    """Commit conflict: another commit of the table landed after the edit was prepared."""


class Unprepared(EpochlogError):
    """Missing preparation: pre-images for a table with changelog="full", or the verdict for one with a sequence."""


def sealed_labels(edits: Sequence[TableEdit]) -> list[int]:
    """Return the labels that were assigned at sealing, in rising order."""
    return sorted({segment.label for edit in edits for segment in edit.segments if segment.label is not None})


def grouped(edit: TableEdit, epoch: int, labels: Mapping[int, int]) -> dict[int, list[Segment]]:
    """Group the edit's segments by log epoch. labels: the final epoch of each label assigned at sealing."""
    groups: dict[int, list[Segment]] = {}
    for segment in edit.segments:
        label = epoch if segment.label is None else labels[segment.label]
        groups.setdefault(label, []).append(replace(segment, label=label))
    return groups


def log_epochs(edits: Sequence[TableEdit], edit: TableEdit, epoch: int | None) -> list[list[Segment]]:
    """Return the segments of each log epoch that the edit will have, oldest first. The epochs themselves need not be
    known.
    """
    sealed = sealed_labels(edits)
    if epoch is None:
        last_label, labels = max(len(sealed) - 1, 0), {label: index for index, label in enumerate(sealed)}
    else:
        last_label, labels = epoch, {label: label for label in sealed}
    groups = grouped(edit, last_label, labels)
    return [groups[label] for label in sorted(groups)]


def check_segments(handle: Handle, edit: TableEdit) -> None:
    """Check an edit's segments before its transaction.

    Raises InvalidInput for an object that is not a segment, and SegmentUnknown for a segment of another store or table,
    a repeated one, or a sealed one whose file is missing.
    """
    folder, paths = handle.table_folder(edit.table_id), set[str]()
    for segment in edit.segments:
        if not isinstance(segment, Segment):
            raise InvalidInput(f"table {edit.name!r}: a commit takes segments returned by seal(), not {segment!r}")
        if segment.path in paths:
            raise SegmentUnknown(f"segment {segment.path} of table {edit.name!r} occurs twice in one commit")
        paths.add(segment.path)
        if segment.table_id != edit.table_id or not segment.path.startswith(folder + "/"):
            raise SegmentUnknown(f"segment {segment.path} was not written for table {edit.name!r} of this store")
        if segment.label is not None and not handle.files.exists(segment.path):  # vacuum may have deleted it since
            raise SegmentUnknown(f"segment {segment.path} of table {edit.name!r} is gone; write its rows again")


def use_up(tx: Txn, edit: TableEdit) -> None:
    """Require live write intents for the edit's files, and mark sealed segments as used: a repeated commit of them
    fails.
    """
    require_intents(tx, edit.name, (file.path for file in (*edit.written, *edit.prepared)))
    check_unused(tx, edit)
    for segment in edit.written:
        if segment.label is not None:
            tx.put(used_key(segment.table_id, segment.path), {})


def check_unused(view: ReadTxn, edit: TableEdit) -> None:
    """Raise SegmentUnknown for a segment that was released, or sealed and committed already."""
    for segment in edit.written:
        if view.get(gone_key(segment.table_id, segment.path)) is not None:
            raise SegmentUnknown(f"segment {segment.path} of table {edit.name!r} was discarded; write its rows again")
        if segment.label is not None and view.get(used_key(segment.table_id, segment.path)) is not None:
            raise SegmentUnknown(
                f"segment {segment.path} of table {edit.name!r} has been committed already; "
                "pass txn=(application, id) to commit, so that a repeated commit returns the first outcome"
            )


def require_writable_columns(table: TableDef, segments: Iterable[Segment]) -> None:
    """Raise SchemaChanged unless the table still takes all that segments of an older schema have to say.

    Columns that were added since have their defaults, or null, in their rows; renamed and widened ones are found by
    their ids.
    """
    for segment in segments:
        _require_columns(table, segment)


def refuse_old_updates(table: TableDef, segment: Segment) -> None:
    """Raise SchemaChanged for updates of some columns that were written before the table was altered."""
    if segment.updates is not None and segment.schema_version != table.schema.version:
        raise SchemaChanged(
            f"table {table.name!r} was altered at epoch {table.schema.version}, after these updates of some columns "
            "were written; retry: get the table again with store.table(name), and write the updates again"
        )


def _require_columns(table: TableDef, segment: Segment) -> None:
    refuse_old_updates(table, segment)
    written = file_schema(table.schema, segment)
    if written.version == table.schema.version or segment.deletes == segment.rows:
        return
    present = dict(zip(table.schema.ids, table.schema.schema, strict=True))
    reason = f"the table was altered at epoch {table.schema.version}, after the rows were written; write them again"
    for id_, field in zip(written.ids, written.schema, strict=True):
        if id_ not in present:
            raise SchemaChanged(f"table {table.name!r}: column {field.name!r} of this commit was dropped: {reason}")
        if loses_dates(field.type, present[id_].type):  # its dates have not been tested
            raise SchemaChanged(f"table {table.name!r}: column {field.name!r} was widened to a timestamp: {reason}")
    for id_, field in present.items():
        if not field.nullable and id_ not in written.ids:
            raise SchemaChanged(f"table {table.name!r}: column {field.name!r} of NOT NULL was added: {reason}")


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
    """Add one log entry and one remembered commit to a table; return its new version. Segments that were rewritten
    become unreachable.
    """
    use_up(tx, edit)
    require_writable_columns(table, edit.written)
    before = get_version(tx, table.id, table.name)
    if edit.base is not None and edit.base != before.max_committed_epoch:
        raise CommitConflict(
            f"table {table.name!r} has a newer commit at {show_epoch(before.max_committed_epoch)} than "
            f"{show_epoch(edit.base)}, on which this one is based; retry"
        )
    if any(segment.updates is not None for segment in edit.segments):
        raise Unprepared(f"updates of table {table.name!r} were not merged with its rows")
    if table.checks and edit.segments and edit.checks != table.checks:
        raise Unprepared(f"table {table.name!r} has checks that the rows of this commit have not passed")
    if table.schema.sequence_by is not None:
        _put_kept_deletes(tx, table, edit, epoch)
    if edit.expiry is not None and edit.expiry != table.expiry:
        raise TtlAltered(f"the ttl of table {table.name!r} was altered while rows were chosen to expire; retry")
    if table.changelog == "full" and edit.segments and edit.images is None:
        raise Unprepared(f"table {table.name!r} stores pre-images with each commit, and this one has none")
    groups = grouped(edit, epoch, labels)
    images = edit.images or ((),) * len(groups)
    stored = edit.images is not None
    label_groups = (
        LabelGroup(at, tuple(groups[at]), old, stored) for at, old in zip(sorted(groups), images, strict=True)
    )
    entry = LogEntry(epoch, tuple(label_groups), edit.end)
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


def _put_kept_deletes(tx: Txn, table: TableDef, edit: TableEdit, epoch: int) -> None:
    """Record the deletes that are kept from this commit on. Raise Unprepared or CommitConflict if the edit was not
    decided by sequence, or was decided with other deletes than those that are known at `epoch`.
    """
    expired = expired_epoch(epoch, table.options.tombstone_retention)
    before = kept_deletes(tx, table.id)
    if edit.sequence == "given":
        known = kept_deletes(tx, table.id, edit.base_deletes)
    elif edit.segments or edit.rewrites:
        if edit.verdict is None:
            raise Unprepared(f"table {table.name!r} has a sequence, by which this commit was not decided")
        if not edit.verdict.stands_at(expired):
            raise CommitConflict(f"deletes that decided a commit to table {table.name!r} have expired meanwhile; retry")
        known = (*before, *(KeptFile(file, epoch) for file in edit.verdict.deletes))
    else:
        return
    known = tuple(file for file in known if file.epoch > expired)
    if known != before:
        put_kept(tx, table.id, epoch, known)


def count_commit(handle: Handle, edits: Sequence[TableEdit], epoch: int, began_s: float) -> None:
    """Count and log a commit that has landed. edits: as committed. began_s: monotonic time of its begin."""
    took_s = monotonic_s() - began_s
    for edit in edits:
        rows = sum(segment.rows for segment in edit.segments)
        handle.recorder.add(COMMITS, edit.name)
        handle.recorder.add(COMMITTED_ROWS, edit.name, by=rows)
        if COMMIT.enabled:
            took_ms, operation = round(took_s * 1000, 1), edit.operation
            handle.log(COMMIT, table=edit.name, epoch=epoch, operation=operation, rows=rows, took_ms=took_ms)
    handle.recorder.observe(COMMIT_SECONDS, seconds=took_s)
