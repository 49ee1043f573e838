"""Restore of a root table: one commit that gives the table the rows of an earlier epoch.

Rules: docs/SEMANTICS.md, 1.9. The commit contains only the rows that differ. When another commit lands first, only the
keys that it changed are compared again, so a large restore succeeds however many small commits land meanwhile.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from epochlog.store.catalog.protocol import ReadTxn, Txn
from epochlog.store.changelog.log_plan import Columns, LogPlan, plan_changes
from epochlog.store.env.failpoints import hit
from epochlog.store.env.log_events import TABLE_RESTORED
from epochlog.store.epochs.epoch_errors import require_begun
from epochlog.store.epochs.view_reader import read_epoch_view
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.metadata.lookups import get_table, get_version
from epochlog.store.retention.holds import Hold, put_holds
from epochlog.store.retention.stale_reads import stale_reads_translated
from epochlog.store.scan.scan_plan import ScanPlan, plan_scan, require_complete
from epochlog.store.session.leases import LEASE_MS
from epochlog.store.sst.segment_writer import remove_segments
from epochlog.store.types.epoch import as_epoch

from .change import CommitConflict, TableChange
from .difference import difference, difference_of_keys
from .idempotency import TxnPair, check_pair, find_committed_epoch
from .root_commit import RootCommit, refuse_unwritable
from .transaction import commit_changes

if TYPE_CHECKING:
    from epochlog.store.session.handle import Handle


def restore_rows(handle: Handle, table: TableDef, epoch: int, txn: TxnPair | None = None) -> int:
    """Commit the difference between a root table's rows and its rows at an earlier epoch; return the commit's epoch.

    Holds the earlier epoch meanwhile. Raises EpochExpired, EpochNotCommitted, NotWritable, TableFinished, TableDropped.
    """
    check_pair(txn)
    epoch = as_epoch("epoch", epoch)
    committed = find_committed_epoch(handle, txn, [table.id])
    if committed is not None:
        return committed
    holder = handle.new_holder("restore")
    target, hold_keys = handle.catalog.transact(lambda tx: _hold_target(handle, tx, table, epoch, holder))
    handle.leases.share(holder, hold_keys)
    try:
        restored = _commit_difference(handle, table, target, txn)
    finally:
        handle.leases.release(holder)
    handle.log(TABLE_RESTORED, table=table.name, to_epoch=epoch, epoch=restored)
    return restored


def _hold_target(handle: Handle, tx: Txn, table: TableDef, epoch: int, holder: str) -> tuple[ScanPlan, list[bytes]]:
    """Return the plan of the rows to restore, and the keys of a hold of these rows and of the log after them, as far as
    it is kept.
    """
    refuse_unwritable(tx, table)
    now_ms, lease = handle.catalog.now_ms(), handle.leases.store_lease(tx)
    epochs = read_epoch_view(tx, handle.memory, now_ms, above=[table.id])
    require_complete(table.name, epoch, epochs.complete_through(table.id))
    require_begun(epochs.table(table.id), epoch)
    target = plan_scan(tx, get_table(tx, table.id, table.name), epoch)
    log_epoch = max(epoch, get_version(tx, table.id, table.name).log_start)
    return target, put_holds(tx, [Hold(holder, table.id, log_epoch, epoch, now_ms, now_ms + LEASE_MS, lease=lease)])


def _commit_difference(handle: Handle, table: TableDef, target: ScanPlan, txn: TxnPair | None) -> int:
    change = TableChange(table, operation="restore", base=target.epoch, sequence="given", base_deletes=target.epoch)
    while True:
        try:
            with stale_reads_translated(handle):
                change = _with_difference(handle, target, change)
        except BaseException:
            remove_segments(handle.files, change.segments)
            raise
        hit("restore:before-commit")
        try:
            return commit_changes(handle, [change], RootCommit(txn=txn), delete_refused=True).epoch
        except CommitConflict:
            continue


def _with_difference(handle: Handle, target: ScanPlan, change: TableChange) -> TableChange:
    """Return the change, based on the newest commit, with more segments, so that it results in the target's rows.

    The segments that it has already contain rows of the target, so they stay. Only rows of keys in the log after its
    base can differ. All keys are compared where the log does not reach back to it, or is longer than the table.
    """
    base, table = change.base, change.table
    assert base is not None
    newest, log, current = handle.catalog.read(lambda view: _plan_since(view, table, base))
    write_target, target = handle.write_target(current), replace(target, table=current.schema)
    if any(segment.schema_version != current.schema.version for segment in change.segments):
        remove_segments(handle.files, change.segments)  # the table was altered meanwhile
        change, log = replace(change, segments=()), None
    if log is None or log.rows > newest.rows_at_most:
        segments = difference(write_target, newest, target)
    else:
        segments = difference_of_keys(write_target, newest, target, log)
    return replace(change, table=current, segments=(*change.segments, *segments), base=newest.epoch)


def _plan_since(view: ReadTxn, table: TableDef, base: int) -> tuple[ScanPlan, LogPlan | None, TableDef]:
    """Plan the newest rows and the changes of the commits after `base`; None where the log does not reach back. Return
    the table too, as it is now.
    """
    current = get_table(view, table.id, table.name)
    newest = plan_scan(view, current, None)
    reaches = base >= get_version(view, table.id, table.name).log_start
    if not reaches:
        return newest, None, current
    return newest, plan_changes(view, current, base, by_commit=True, columns=Columns(whole=True)), current
