"""The log and the remembered commits of tables: all reads and writes of the records `log/` and `hist/`.

A table's log has an entry for each commit that is not truncated, and for those that reads still need. Remembered
commits outlive their entries, or are forgotten before them. Ranges of epochs are (after, until]; they compare the
epochs of commits, unless a function says that it compares log epochs.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from epochlog.store.catalog.keys import (
    HIST_PREFIX,
    LOG_PREFIX,
    after_prefix,
    hist_key,
    key_epoch,
    log_key,
    table_prefix,
)
from epochlog.store.catalog.protocol import ReadTxn, Txn, scan_values
from epochlog.store.catalog.records import decode
from epochlog.store.types.epoch import MAX_EPOCH

from .version import Commit, LogEntry, has_changed

KEPT_ENTRIES = 64
"""Entries of a scan by log epochs, at most, that stay decoded for later ones: a step reads few, a replay many."""


# ---- the log -----------------------------------------------------------------------------------------------------


def get_entries(view: ReadTxn, table_id: int, after: int, until: int) -> list[LogEntry]:
    """Return the log entries in (after, until], oldest first; they stay decoded for later reads."""
    records = view.scan_packed(log_key(table_id, after + 1), log_key(table_id, until + 1))
    return [decode(LogEntry, key, value) for key, value in records]


def scan_entries(view: ReadTxn, table_id: int | None = None) -> Iterator[LogEntry]:
    """Yield all log entries of a table, oldest first; None: those of all tables, also of one whose definition is
    lost.
    """
    prefix = LOG_PREFIX if table_id is None else table_prefix(LOG_PREFIX, table_id)
    return (entry for _, entry in scan_values(view, LogEntry, prefix))


def entries_of_commits(view: ReadTxn, table_id: int, after: int, until: int) -> Iterator[LogEntry]:
    """Yield the log entries in (after, until], oldest first."""
    for key, value in view.scan_packed(log_key(table_id, after + 1), log_key(table_id, until + 1)):
        yield decode(LogEntry, key, value, keep=False)


def entries_of_log_epochs(view: ReadTxn, table_id: int, after: int, until: int = MAX_EPOCH) -> Iterator[LogEntry]:
    """Yield the entries of the commits in (after, until], and the one past `until` if log epochs of it are within."""
    records = view.scan_packed(log_key(table_id, after + 1), after_prefix(table_prefix(LOG_PREFIX, table_id)))
    for number, (key, value) in enumerate(records):
        entry = decode(LogEntry, key, value, keep=number < KEPT_ENTRIES)
        if entry.epoch > until and (not entry.groups or entry.groups[0].label > until):
            return
        yield entry


def entry_epochs(
    view: ReadTxn, table_id: int, after: int = -1, until: int = MAX_EPOCH, *, reverse: bool = False
) -> Iterator[int]:
    """Yield the epochs of the log entries in (after, until], oldest or (reverse) newest first; decode none."""
    return _epochs(view, log_key(table_id, after + 1), log_key(table_id, until + 1), reverse=reverse)


def put_entry(tx: Txn, table_id: int, entry: LogEntry) -> None:
    tx.put(log_key(table_id, entry.epoch), entry.to_record())


def delete_entry(tx: Txn, table_id: int, epoch: int) -> None:
    tx.delete(log_key(table_id, epoch))


def entry_of_record(key: bytes, value: bytes) -> LogEntry | None:
    """Return the log entry of a packed record; None for a record of another kind."""
    return decode(LogEntry, key, value, keep=False) if key.startswith(LOG_PREFIX) else None


# ---- remembered commits ------------------------------------------------------------------------------------------


def commit_at(view: ReadTxn, table_id: int, epoch: int) -> Commit | None:
    """Return the commit of a table at an epoch; None if there was none, or it is forgotten."""
    key = hist_key(table_id, epoch)
    value = view.get_packed(key)
    return None if value is None else decode(Commit, key, value)


def newest_commits(view: ReadTxn, table_id: int, after: int = -1) -> Iterator[Commit]:
    """Yield the remembered commits past `after`, newest first."""
    stop = after_prefix(table_prefix(HIST_PREFIX, table_id))
    for key, value in view.scan_packed(hist_key(table_id, after + 1), stop, reverse=True):
        yield decode(Commit, key, value, keep=False)


def commits_by_key(view: ReadTxn, table_id: int) -> Iterator[tuple[int, Commit]]:
    """Yield all remembered commits, oldest first, each with the epoch of its record's key."""
    for key, commit in scan_values(view, Commit, table_prefix(HIST_PREFIX, table_id)):
        yield key_epoch(key), commit


def commit_epochs(
    view: ReadTxn, table_id: int, after: int = -1, until: int = MAX_EPOCH, *, reverse: bool = False
) -> Iterator[int]:
    """Yield the epochs of the remembered commits in (after, until], oldest or (reverse) newest first."""
    return _epochs(view, hist_key(table_id, after + 1), hist_key(table_id, until + 1), reverse=reverse)


def commit_arrays(view: ReadTxn, table_id: int, after: int, until: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the epochs of the remembered commits in (after, until], int64, rising, and bool for each: has it changed
    the table (`Commit.changed`)?
    """
    epochs, changed = bytearray(), bytearray()
    for key, value in view.scan_packed(hist_key(table_id, after + 1), hist_key(table_id, until + 1)):
        changed.append(has_changed(key, value))
        epochs += key[-16:]
    return np.frombuffer(bytes.fromhex(epochs.decode()), ">i8").astype(np.int64), np.frombuffer(changed, np.bool_)


def put_commit(tx: Txn, table_id: int, commit: Commit) -> None:
    tx.put(hist_key(table_id, commit.epoch), commit.to_record())


def delete_commit(tx: Txn, table_id: int, epoch: int) -> None:
    tx.delete(hist_key(table_id, epoch))


def _epochs(view: ReadTxn, start: bytes, stop: bytes, *, reverse: bool) -> Iterator[int]:
    return (key_epoch(key) for key, _ in view.scan_packed(start, stop, reverse=reverse))
