"""Commits of root tables: upserts, deletes and the checkpoints of loads, each in one catalog transaction.

A commit gets its epoch inside the transaction, so it lands above every epoch issued or sealed before. Rules:
docs/SEMANTICS.md, 1.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from epochlog.errors import EpochRegressed, InvalidInput, NotWritable
from epochlog.store.catalog.protocol import ReadTxn, Txn
from epochlog.store.compaction.write_stall import apply_backpressure
from epochlog.store.env.clock import monotonic_s
from epochlog.store.env.failpoints import hit
from epochlog.store.metadata.counters import move_counters
from epochlog.store.metadata.definitions import Counters, TableDef
from epochlog.store.metadata.lookups import get_table, get_version
from epochlog.store.metadata.version import TableVersion, require_open
from epochlog.store.session.write_intents import end_intents
from epochlog.store.sst.segment_writer import remove_segments
from epochlog.store.types.epoch import as_epoch, from_unix_ms, show_epoch

from .boundaries import check_skew
from .edits import CommitConflict, TableEdit, Unprepared, append_entry, check_segments, count_commit, sealed_labels
from .failures import DEFINITE_FAILURES
from .idempotency import CommitTxn, check_pair, find_committed_epoch, pair_of, record_outcome, resolve_outcome
from .kept_merge import merge_kept
from .loads import LoadCommit, advance_load
from .preparation import prepared_edits, remove_prepared, remove_rewritten
from .stream_batches import StreamBatch

if TYPE_CHECKING:
    from epochlog.store.session.handle import Handle


def commit_root(
    handle: Handle,
    edits: Sequence[TableEdit],
    *,
    epoch: int | None = None,
    txn: CommitTxn | None = None,
    ending: Collection[str] = (),
    load: LoadCommit | None = None,
) -> int:
    """Commit to root tables at one epoch: `epoch`, or the next one.

    A repeated `txn` returns the first outcome. ending: writer intents that end with this commit, also if it landed
    before. load: the load that this commit is a checkpoint of; the transaction checks its fence and writes the states
    of its parts.
    """
    handle.require_writable()
    return _commit_root(handle, edits, epoch, txn, ending, load)[0]


def commit_or_delete(
    handle: Handle, edits: Sequence[TableEdit], *, epoch: int | None = None, txn: CommitTxn | None = None
) -> int:
    """Run `commit_root` for segments that only the caller knows. Delete their files if the commit fails or landed
    before.
    """
    segments = [segment for edit in edits for segment in edit.segments]
    try:
        committed, is_new = _commit_root(handle, edits, epoch, txn)
    except DEFINITE_FAILURES:
        remove_segments(handle.files, segments)
        raise
    if not is_new:
        remove_segments(handle.files, segments)
    return committed


def _commit_root(
    handle: Handle,
    edits: Sequence[TableEdit],
    epoch: int | None,
    txn: CommitTxn | None,
    ending: Collection[str] = (),
    load: LoadCommit | None = None,
) -> tuple[int, bool]:
    """Return the commit's epoch, and True if it landed now, False if it landed earlier under its `txn`."""
    check_pair(txn)
    if epoch is not None and (epoch := as_epoch("epoch", epoch)) < 1:
        raise InvalidInput("epoch must be at least 1; leave it out to get the next one")
    tables = sorted(edit.table_id for edit in edits)
    earlier = find_committed_epoch(handle, txn, tables)
    if earlier is not None:
        handle.intents.end(ending)
        return earlier, False
    for edit in edits:
        check_segments(handle, edit)

    attempt, began_s = edits, monotonic_s()
    while True:
        try:
            outcome = _transact_root(handle, attempt, epoch, txn, ending, load)
        except (CommitConflict, Unprepared):  # after a conflict another commit has landed, so the loop makes progress
            attempt = prepared_edits(handle, edits, attempt, epoch)
        except DEFINITE_FAILURES:
            remove_prepared(handle, attempt)
            raise
        else:
            if outcome[1]:
                remove_rewritten(handle, attempt)
                count_commit(handle, attempt, outcome[0], began_s)
            else:
                remove_prepared(handle, attempt)
            return outcome


def _transact_root(
    handle: Handle,
    edits: Sequence[TableEdit],
    epoch: int | None,
    txn: CommitTxn | None,
    ending: Collection[str],
    load: LoadCommit | None,
) -> tuple[int, bool]:
    """Run a root commit's transaction; return its epoch, and True if it landed now."""
    tables = sorted(edit.table_id for edit in edits)
    written: list[tuple[TableDef, TableVersion]] = []

    def body(tx: Txn) -> tuple[int, bool]:
        pair = pair_of(tx, txn)
        earlier = resolve_outcome(tx, pair, tables)
        if earlier is not None:
            end_intents(tx, ending)
            return earlier, False
        if load is not None:
            advance_load(tx, load)
        written.clear()
        targets = [get_table(tx, edit.table_id, edit.name) for edit in edits]
        for table in targets:
            refuse_unwritable(tx, table)
        counters = Counters.read(tx)
        now_ms = handle.clock_guard.issuing_ms(tx, counters.last_epoch)
        chosen_epoch, labels = _choose_epochs(edits, epoch, counters.last_epoch, now_ms)
        for table, edit in zip(targets, edits, strict=True):
            written.append((table, append_entry(tx, table, edit, chosen_epoch, labels, now_ms, txn=pair, job=None)))
        move_counters(tx, counters, chosen_epoch)
        if pair is not None:
            batch = txn if isinstance(txn, StreamBatch) else None
            record_outcome(tx, pair, tables, chosen_epoch, now_ms, batch=batch)
        end_intents(tx, ending)
        return chosen_epoch, True

    hit("commit:segments-written")
    outcome = handle.intents.run_commit(lambda: handle.catalog.transact(body))
    hit("commit:after-transaction")
    apply_backpressure(handle, written)
    for table, _ in written:
        if table.schema.sequence_by is not None:
            merge_kept(handle, table)
    return outcome


def refuse_unwritable(view: ReadTxn, table: TableDef) -> TableDef:
    """Return the table as it is now: it may have been altered. Raise TableDropped, NotWritable or TableFinished if the
    catalog shows that no commit of the table can succeed.
    """
    current = get_table(view, table.id, table.name)
    if current.derived:
        raise NotWritable(f"table {current.name!r} is the output of a job; only that job writes it")
    require_open(current.name, get_version(view, current.id, current.name))
    return current


def _choose_epochs(
    edits: Sequence[TableEdit], epoch: int | None, last_epoch: int, now_ms: int
) -> tuple[int, Mapping[int, int]]:
    """Return the commit's epoch, and the final epoch of each label assigned at sealing."""
    sealed = sealed_labels(edits)
    if epoch is None:  # labels are reassigned in order; the last one is the commit's epoch
        first = max(from_unix_ms(now_ms), last_epoch + 1)
        chosen_epoch = first + max(len(sealed) - 1, 0)
        labels = {label: first + index for index, label in enumerate(sealed)}
    else:
        chosen_epoch, labels = epoch, {label: label for label in sealed}
        low = min([epoch, *sealed])
        if low <= last_epoch:
            subject = f"epoch {show_epoch(epoch)}" if low == epoch else f"label {show_epoch(low)}"
            raise EpochRegressed(
                f"{subject} must exceed {show_epoch(last_epoch)}, the newest epoch issued or sealed; leave epoch out "
                "to get the next one"
            )
        if sealed and sealed[-1] > epoch:
            raise EpochRegressed(
                f"label {show_epoch(sealed[-1])} exceeds the commit's epoch {show_epoch(epoch)}; seal at or below it, "
                "or commit at a higher epoch"
            )
        check_skew(chosen_epoch, now_ms, last_epoch)
    return chosen_epoch, labels
