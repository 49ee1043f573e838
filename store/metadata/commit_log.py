"""The log and the remembered commits of tables: all reads and writes of the records `log/` and `hist/`.

A table's log has an entry for each commit that is not truncated, and for those that reads still need. Remembered
commits outlive their entries, or are forgotten before them. Ranges of epochs are (after, until]; they compare the
epochs of commits, unless a function says that it compares log epochs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

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

_PACK_AT, _PACK = 5, b"\xa4pack"
"""Place and bytes of the first field of a pack's record, behind its checksum and the size of the map."""


# ---- the log -----------------------------------------------------------------------------------------------------


def get_entries(view: ReadTxn, table_id: int, after: int, until: int) -> list[LogEntry]:
    """Return the log entries in (after, until], oldest first, with these commits alone of a pack; they stay decoded for
    later reads.
    """
    entries = list[LogEntry]()
    for key, value in view.scan_packed(log_key(table_id, after + 1), after_prefix(table_prefix(LOG_PREFIX, table_id))):
        is_past = key_epoch(key) > until
        if is_past and not is_pack(value):
            break
        entry = decode(LogEntry, key, value).cut(after, until)
        if entry is not None:
            entries.append(entry)
        if is_past:
            break
    return entries


def scan_entries(view: ReadTxn, table_id: int | None = None) -> Iterator[LogEntry]:
    """Yield all log entries of a table, oldest first; None: those of all tables, also of one whose definition is
    lost.
    """
    prefix = LOG_PREFIX if table_id is None else table_prefix(LOG_PREFIX, table_id)
    return (entry for _, entry in scan_values(view, LogEntry, prefix))


class LogRecord(NamedTuple):
    """Record of a log entry as it is stored."""

    key: bytes
    value: bytes
    entry: LogEntry


def log_records(view: ReadTxn, table_id: int, after: int, until: int, *, reverse: bool = False) -> Iterator[LogRecord]:
    """Yield the records whose last commit is in (after, until], oldest or (reverse) newest first."""
    for key, value in view.scan_packed(log_key(table_id, after + 1), log_key(table_id, until + 1), reverse=reverse):
        yield LogRecord(key, value, decode(LogEntry, key, value, keep=False))


def whole_entries(view: ReadTxn, table_id: int, after: int, until: int) -> Iterator[LogEntry]:
    """Yield the log entries whose last commit is in (after, until], oldest first, with all commits of a pack."""
    return (record.entry for record in log_records(view, table_id, after, until))


def entries_of_log_epochs(view: ReadTxn, table_id: int, after: int, until: int = MAX_EPOCH) -> Iterator[LogEntry]:
    """Yield the entries of the commits in (after, until], and the one past `until` if log epochs of it are within. Of a
    pack only these commits are yielded.
    """
    records = view.scan_packed(log_key(table_id, after + 1), after_prefix(table_prefix(LOG_PREFIX, table_id)))
    for number, (key, value) in enumerate(records):
        entry = decode(LogEntry, key, value, keep=number < KEPT_ENTRIES)
        if entry.epoch > until and (not entry.groups or entry.groups[0].first > until):
            return
        if entry.packed is None:
            yield entry
        elif (part := entry.cut(after, until)) is not None:
            yield part


def entry_epochs(
    view: ReadTxn, table_id: int, after: int = -1, until: int = MAX_EPOCH, *, reverse: bool = False
) -> Iterator[int]:
    """Yield the epochs of the log entries in (after, until], oldest or (reverse) newest first; of a pack the last one.
    Decode none.
    """
    return _epochs(view, log_key(table_id, after + 1), log_key(table_id, until + 1), reverse=reverse)


def newest_logged(view: ReadTxn, table_id: int, after: int, until: int) -> int:
    """Return the epoch of the log's newest commit in (after, until], also of one in a pack; `after` without one."""
    newest = next(entry_epochs(view, table_id, after, until, reverse=True), after)
    stop = after_prefix(table_prefix(LOG_PREFIX, table_id))
    for key, value in view.scan_packed(log_key(table_id, until + 1), stop):
        part = decode(LogEntry, key, value, keep=False).cut(newest, until) if is_pack(value) else None
        return newest if part is None else part.epoch
    return newest


def nth_logged(view: ReadTxn, table_id: int, after: int, until: int, number: int) -> int:
    """Return the epoch of the log's commit that is so many commits past `after`, at most `until`."""
    for entry in entries_of_log_epochs(view, table_id, after, until):
        if entry.commits >= number:
            epoch = entry.epoch if entry.packed is None else int(entry.packed.epochs[number - 1])
            return min(epoch, until)
        number -= entry.commits
    return until


def put_entry(tx: Txn, table_id: int, entry: LogEntry) -> None:
    tx.put(log_key(table_id, entry.epoch), entry.to_record())


def delete_entry(tx: Txn, table_id: int, epoch: int) -> None:
    tx.delete(log_key(table_id, epoch))


def is_pack(value: bytes) -> bool:
    """Return True for the packed record of a pack. It decodes nothing."""
    return value[_PACK_AT : _PACK_AT + len(_PACK)] == _PACK


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
