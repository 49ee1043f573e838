"""Commits of root tables: upserts, deletes and the checkpoints of loads, each in one catalog transaction.

A commit gets its epoch inside the transaction, so it lands above every epoch issued or sealed before. Rules:
docs/SEMANTICS.md, 1.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from epochlog.errors import EpochRegressed, InvalidInput, NotWritable
from epochlog.store.catalog.protocol import Txn, View
from epochlog.store.compaction.write_stall import apply_backpressure
from epochlog.store.env.failpoints import hit
from epochlog.store.metadata.counters import move_counters
from epochlog.store.metadata.definitions import Counters, TableDef
from epochlog.store.metadata.lookups import get_table, get_version
from epochlog.store.metadata.version import TableVersion, require_open
from epochlog.store.session.write_intents import end_intents
from epochlog.store.sst.segment_writer import remove_segments
from epochlog.store.types.epoch import as_epoch, from_unix_ms, show_epoch

from .boundaries import check_skew
from .edits import CommitConflict, ImagesMissing, TableEdit, append_entry, check_segments, sealed_labels
from .failures import DEFINITE_FAILURES
from .idempotency import TxnPair, check_pair, find_committed_epoch, record_outcome, resolve_outcome
from .loads import LoadCommit, advance_load
from .preparation import remove_prepared, with_images

if TYPE_CHECKING:
    from epochlog.store.session.handle import Handle


def commit_root(
    handle: Handle,
    edits: Sequence[TableEdit],
    *,
    epoch: int | None = None,
    txn: TxnPair | None = None,
    ending: Collection[str] = (),
    load: LoadCommit | None = None,
) -> int:
    """Commit to root tables at one epoch (given, or the catalog's next).

    The same `txn` again returns the first outcome. `ending`: writer intents that end with this commit, also when it
    had landed before. `load`: a load whose checkpoint this is; its fence is checked and its parts' states are written
    in the same transaction.
    """
    return _commit_root(handle, edits, epoch, txn, ending, load)[0]


def commit_or_delete(
    handle: Handle, edits: Sequence[TableEdit], *, epoch: int | None = None, txn: TxnPair | None = None
) -> int:
    """Run `commit_root` for segments that only the caller knows: if it is refused, or landed before, delete their
    files.
    """
    own = [segment for edit in edits for segment in edit.segments]
    try:
        at, fresh = _commit_root(handle, edits, epoch, txn)
    except DEFINITE_FAILURES:
        remove_segments(handle.files, own)
        raise
    if not fresh:
        remove_segments(handle.files, own)
    return at


def _commit_root(
    handle: Handle,
    edits: Sequence[TableEdit],
    epoch: int | None,
    txn: TxnPair | None,
    ending: Collection[str] = (),
    load: LoadCommit | None = None,
) -> tuple[int, bool]:
    """Return the commit's epoch, and True if it landed now, False if earlier under its `txn`."""
    check_pair(txn)
    if epoch is not None and (epoch := as_epoch("epoch", epoch)) < 1:
        raise InvalidInput("epoch must be at least 1; leave it out to be given the next")
    tables = sorted(edit.table_id for edit in edits)
    done = find_committed_epoch(handle, txn, tables)
    if done is not None:
        handle.intents.end(ending)
        return done, False
    for edit in edits:
        check_segments(handle, edit)

    attempt = edits
    while True:
        try:
            done = _transact_root(handle, attempt, epoch, txn, ending, load)
        except (CommitConflict, ImagesMissing):  # each round again means that somebody else has landed a commit
            attempt = with_images(handle, edits, attempt, epoch)
        except DEFINITE_FAILURES:
            remove_prepared(handle, attempt)
            raise
        else:
            if not done[1]:
                remove_prepared(handle, attempt)
            return done


def _transact_root(
    handle: Handle,
    edits: Sequence[TableEdit],
    epoch: int | None,
    txn: TxnPair | None,
    ending: Collection[str],
    load: LoadCommit | None,
) -> tuple[int, bool]:
    """Run a root commit's transaction; return its epoch, and True if it landed now."""
    tables = sorted(edit.table_id for edit in edits)
    written: list[tuple[TableDef, TableVersion]] = []

    def body(tx: Txn) -> tuple[int, bool]:
        done = resolve_outcome(tx, txn, tables)
        if done is not None:
            end_intents(tx, ending)
            return done, False
        if load is not None:
            advance_load(tx, load)
        written.clear()
        targets = [get_table(tx, edit.table_id, edit.name) for edit in edits]
        for table in targets:
            refuse_unwritable(tx, table)
        counters, now_ms = Counters.read(tx), handle.catalog.now_ms()
        at, labels = _choose_epochs(edits, epoch, counters.last_epoch, now_ms)
        for table, edit in zip(targets, edits, strict=True):
            written.append((table, append_entry(tx, table, edit, at, labels, now_ms, txn=txn, job=None)))
        move_counters(tx, counters, at)
        if txn is not None:
            record_outcome(tx, txn, tables, at, now_ms)
        end_intents(tx, ending)
        return at, True

    hit("commit:segments-written")
    done = handle.intents.checked(lambda: handle.catalog.transact(body))
    hit("commit:after-transaction")
    apply_backpressure(handle, written)
    return done


def refuse_unwritable(view: View, table: TableDef) -> None:
    """Refuse a write before any file is made, where the catalog tells already: TableDropped, NotWritable,
    TableFinished.
    """
    found = get_table(view, table.id, table.name)
    if found.derived:
        raise NotWritable(f"table {found.name!r} is the output of a job and is written by that job alone")
    require_open(found.name, get_version(view, found.id, found.name))


def _choose_epochs(
    edits: Sequence[TableEdit], epoch: int | None, last_epoch: int, now_ms: int
) -> tuple[int, Mapping[int, int]]:
    """Return the commit's epoch, and the final epoch of each label given at sealing."""
    sealed = sealed_labels(edits)
    if epoch is None:  # labels are handed out anew, in order; the last one is the commit's own epoch
        first = max(from_unix_ms(now_ms), last_epoch + 1)
        at = first + max(len(sealed) - 1, 0)
        labels = {label: first + place for place, label in enumerate(sealed)}
    else:
        at, labels = epoch, {label: label for label in sealed}
        low = min([epoch, *sealed])
        if low <= last_epoch:
            what = f"epoch {show_epoch(epoch)}" if low == epoch else f"label {show_epoch(low)}"
            raise EpochRegressed(
                f"{what} must exceed {show_epoch(last_epoch)}, the newest epoch issued or sealed; leave epoch out to "
                "be given "
                "the next"
            )
        if sealed and sealed[-1] > epoch:
            raise EpochRegressed(
                f"label {show_epoch(sealed[-1])} lies above the commit's epoch {show_epoch(epoch)}; "
                "labels must not exceed it"
            )
    check_skew(at, now_ms)
    return at, labels
