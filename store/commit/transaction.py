"""Transaction of a commit: prepared changes become log entries of their tables, at the epoch and under the fence of the
commit's target. If a table has changed meanwhile, what depends on it is prepared again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from epochlog.errors import SchemaChanged, SegmentUnknown
from epochlog.store.catalog.keys import head_key, unreachable_key, used_key
from epochlog.store.catalog.protocol import ReadTxn, Txn
from epochlog.store.compaction.write_stall import apply_backpressure
from epochlog.store.env.clock import monotonic_s
from epochlog.store.env.failpoints import hit
from epochlog.store.env.log_events import COMMIT
from epochlog.store.env.metrics import COMMIT_SECONDS, COMMITS, COMMITTED_ROWS
from epochlog.store.metadata.commit_log import put_commit, put_entry
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.metadata.kept_deletes import KeptFile, expired_epoch, kept_deletes, put_kept
from epochlog.store.metadata.lookups import get_version
from epochlog.store.metadata.unreachable_files import mark_unreachable
from epochlog.store.metadata.version import Commit, LabelGroup, LogEntry, TableVersion, apply_commit
from epochlog.store.session.write_intents import require_intents
from epochlog.store.sst.file_columns import file_schema
from epochlog.store.sst.segment import Segment
from epochlog.store.sst.segment_writer import remove_segments
from epochlog.store.types.epoch import show_epoch
from epochlog.store.types.widening import loses_dates

from .change import CommitConflict, TableChange, check_segments, grouped
from .failures import TtlAltered
from .idempotency import TxnPair
from .kept_merge import merge_kept
from .prepared import Prepared, Requirements, remove_new_files, remove_rewritten

if TYPE_CHECKING:
    from epochlog.store.session.handle import Handle

Written = tuple[TableDef, TableVersion]
"""Table and its version after a commit."""


@dataclass(frozen=True, slots=True)
class CommitResult:
    """Result of a commit."""

    epoch: int
    is_new: bool
    """False if it had landed before."""
    changes: tuple[Prepared, ...]
    """The changes as they were committed."""


class CommitTarget(Protocol):
    """Kind of a commit: it decides the epoch and the fence, and records what belongs to the commit beside tables."""

    failures: ClassVar[tuple[type[BaseException], ...]]
    """Errors after which the commit has certainly not landed."""

    def prepare(
        self, handle: Handle, changes: Sequence[TableChange], tried: Sequence[Prepared] | None
    ) -> Sequence[Prepared]:
        """Return the changes as they can be committed now. tried: the preparations of the last attempt; None at the
        first. On an error it deletes the files that it has written, and those of `tried`.
        """
        ...

    def before_transaction(self) -> None:
        """Reach the failpoint before the transaction."""

    def record(self, handle: Handle, tx: Txn, changes: Sequence[Prepared]) -> tuple[int, list[Written] | None]:
        """Record the commit in a transaction; return its epoch, and the tables. None: it had landed before."""
        ...

    def after_transaction(self) -> None:
        """Reach the failpoint after the transaction."""


def commit_changes(
    handle: Handle, changes: Sequence[TableChange], target: CommitTarget, *, delete_refused: bool = False
) -> CommitResult:
    """Commit changes of several tables in one transaction. Raises CommitConflict if another commit has landed since the
    `base` of a change.

    delete_refused: delete the files of the changes, which only the caller knows, if the commit certainly does not land
    with them; but not after CommitConflict, so that the caller can try again.
    """
    handle.require_writable()
    began_s, segments = monotonic_s(), [segment for change in changes for segment in change.segments]
    attempt: Sequence[Prepared] = ()
    try:
        for change in changes:
            check_segments(handle, change)
        attempt = target.prepare(handle, changes, None)
        while True:
            target.before_transaction()
            try:
                with handle.intents.required():
                    epoch, written = handle.catalog.transact(
                        lambda tx, attempt=attempt: target.record(handle, tx, attempt)
                    )
                break
            except CommitConflict:  # another commit or alter has landed, so the loop makes progress
                tried, attempt = attempt, ()
                attempt = target.prepare(handle, changes, tried)
    except target.failures:
        remove_new_files(handle, attempt)
        if delete_refused:
            remove_segments(handle.files, segments)
        raise
    target.after_transaction()
    if written is None:
        remove_new_files(handle, attempt)
        if delete_refused:
            remove_segments(handle.files, segments)
    else:
        apply_backpressure(handle, written)
        for table, _ in written:
            if table.schema.sequence_by is not None:
                merge_kept(handle, table)
        remove_rewritten(handle, attempt)
        _count(handle, attempt, epoch, began_s)
    return CommitResult(epoch, written is not None, tuple(attempt))


def use_up(tx: Txn, prepared: Prepared) -> None:
    """Require live write intents for the files of a prepared change, and mark sealed segments as used: a repeated
    commit of them fails.
    """
    require_intents(tx, prepared.change.name, (file.path for file in (*prepared.written, *prepared.new_files)))
    check_unused(tx, prepared)
    for segment in prepared.written:
        if segment.label is not None:
            tx.put(used_key(segment.table_id, segment.path), {})


def check_unused(view: ReadTxn, prepared: Prepared) -> None:
    """Raise SegmentUnknown for a segment that was released, or sealed and committed already."""
    name = prepared.change.name
    for segment in prepared.written:
        if view.get(unreachable_key(segment.table_id, segment.path)) is not None:
            raise SegmentUnknown(f"segment {segment.path} of table {name!r} was discarded; write its rows again")
        if segment.label is not None and view.get(used_key(segment.table_id, segment.path)) is not None:
            raise SegmentUnknown(
                f"segment {segment.path} of table {name!r} has been committed already; "
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
    prepared: Prepared,
    epoch: int,
    labels: Mapping[int, int],
    now_ms: int,
    *,
    txn: TxnPair | None,
    job: str | None = None,
    end: bool = False,
) -> TableVersion:
    """Add one log entry and one remembered commit to a table; return its new version. Segments that were rewritten
    become unreachable. Raises CommitConflict if the change is to be prepared again.
    """
    change = prepared.change
    use_up(tx, prepared)
    require_writable_columns(table, prepared.written)
    before = get_version(tx, table.id, table.name)
    if prepared.base is not None and prepared.base != before.max_committed_epoch:
        raise newer_commit(table.name, before.max_committed_epoch, prepared.base)
    if Requirements.of(table, change, prepared.staged) != prepared.requirements:
        raise CommitConflict(f"table {table.name!r} was altered while a commit was prepared; retry")
    if table.schema.sequence_by is not None:
        _put_kept_deletes(tx, table, prepared, epoch)
    if change.by_ttl and change.table.expiry != table.expiry:
        raise TtlAltered(f"the ttl of table {table.name!r} was altered while rows were chosen to expire; retry")
    groups = grouped(prepared.segments, epoch, labels)
    images = prepared.images or ((),) * len(groups)
    stored = prepared.images is not None
    label_groups = (
        LabelGroup(at, tuple(groups[at]), old, stored) for at, old in zip(sorted(groups), images, strict=True)
    )
    entry = LogEntry(epoch, tuple(label_groups), end)
    version = apply_commit(table.name, before, entry)
    rows, deletes = sum(s.rows for s in entry.segments), sum(s.deletes for s in entry.segments)
    commit = Commit(
        epoch=epoch,
        at_ms=now_ms,
        operation=change.operation,
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
    put_entry(tx, table.id, entry)
    put_commit(tx, table.id, commit)
    mark_unreachable(tx, table.id, ((original.path, original.bytes) for original, _ in prepared.rewrites), now_ms)
    hit("commit:before-transaction")
    return version


def newer_commit(name: str, newest: int, base: int) -> CommitConflict:
    """Build the error of a change that presumes an earlier commit than the table's newest."""
    return CommitConflict(
        f"table {name!r} has a newer commit at {show_epoch(newest)} than {show_epoch(base)}, on which this one is "
        "based; retry"
    )


def _put_kept_deletes(tx: Txn, table: TableDef, prepared: Prepared, epoch: int) -> None:
    """Record the deletes that are kept from this commit on. Raise CommitConflict if the change was decided with other
    deletes than those that are known at `epoch`.
    """
    expired = expired_epoch(epoch, table.options.tombstone_retention)
    before = kept_deletes(tx, table.id)
    if prepared.change.sequence == "given":
        known = kept_deletes(tx, table.id, prepared.change.base_deletes)
    elif prepared.verdict is not None:
        if not prepared.verdict.applies_at(expired):
            raise CommitConflict(f"deletes that decided a commit to table {table.name!r} have expired meanwhile; retry")
        known = (*before, *(KeptFile(file, epoch) for file in prepared.verdict.deletes))
    else:
        return
    known = tuple(file for file in known if file.epoch > expired)
    if known != before:
        put_kept(tx, table.id, epoch, known)


def _count(handle: Handle, changes: Sequence[Prepared], epoch: int, began_s: float) -> None:
    """Count and log a commit that has landed. began_s: monotonic time of its begin."""
    took_s = monotonic_s() - began_s
    for prepared in changes:
        name, operation = prepared.change.name, prepared.change.operation.partition(":")[0]
        rows = sum(segment.rows for segment in prepared.segments)
        handle.recorder.add(COMMITS, name)
        handle.recorder.add(COMMITTED_ROWS, name, by=rows)
        if COMMIT.enabled:
            took_ms = round(took_s * 1000, 1)
            handle.log(COMMIT, table=name, epoch=epoch, operation=operation, rows=rows, took_ms=took_ms)
    handle.recorder.observe(COMMIT_SECONDS, seconds=took_s)
