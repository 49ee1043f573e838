"""The log and the remembered commits of tables: all reads and writes of the records `log/` and `hist/`.

A table's log has an entry for each commit that is not truncated, and for those that reads still need. Remembered
commits outlive their entries, or are forgotten before them. Ranges of epochs are (after, until]; they compare the
epochs of commits, unless a function says that it compares log epochs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
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
from epochlog.store.catalog.records import decode, has_first_field
from epochlog.store.types.epoch import MAX_EPOCH

from .chapter import Chapter, is_chapter
from .version import Commit, LogEntry, has_changed

KEPT_ENTRIES = 64
"""Entries of a scan by log epochs, at most, that stay decoded for later ones: a step reads few, a replay many."""


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


def newest_pack(view: ReadTxn, table_id: int) -> int:
    """Return the epoch of the last commit of the newest pack; -1 without one. Decode no record."""
    return _newest(view, table_prefix(LOG_PREFIX, table_id), is_pack)


def put_entry(tx: Txn, table_id: int, entry: LogEntry) -> None:
    tx.put(log_key(table_id, entry.epoch), entry.to_record())


def delete_entry(tx: Txn, table_id: int, epoch: int) -> None:
    tx.delete(log_key(table_id, epoch))


def is_pack(value: bytes) -> bool:
    """Return True for the packed record of a pack. It decodes nothing."""
    return has_first_field(value, b"\xa4pack")


def entry_of_record(key: bytes, value: bytes) -> LogEntry | None:
    """Return the log entry of a packed record; None for a record of another kind."""
    return decode(LogEntry, key, value, keep=False) if key.startswith(LOG_PREFIX) else None


# ---- remembered commits ------------------------------------------------------------------------------------------


def commit_at(view: ReadTxn, table_id: int, epoch: int) -> Commit | None:
    """Return the commit of a table at an epoch; None if there was none, or it is forgotten."""
    for key, value in _records_with(view, table_id, epoch - 1, epoch):
        if not is_chapter(value):
            return decode(Commit, key, value)
        chapter = decode(Chapter, key, value)
        return next(iter(chapter.commits(chapter.span(epoch - 1, epoch))), None)
    return None


def newest_commits(view: ReadTxn, table_id: int, after: int = -1) -> Iterator[Commit]:
    """Yield the remembered commits past `after`, newest first."""
    stop = after_prefix(table_prefix(HIST_PREFIX, table_id))
    for key, value in view.scan_packed(hist_key(table_id, after + 1), stop, reverse=True):
        if is_chapter(value):
            chapter = decode(Chapter, key, value, keep=False)
            yield from chapter.commits(reversed(chapter.span(after, chapter.epoch)))
        else:
            yield decode(Commit, key, value, keep=False)


def commits_by_key(view: ReadTxn, table_id: int) -> Iterator[tuple[int, Commit]]:
    """Yield all remembered commits, in the order of their records, each with its epoch by the key of its record."""
    for record in history_records(view, table_id):
        *inner, last = record.commits
        yield from ((commit.epoch, commit) for commit in inner)
        yield record.epoch, last


def commit_epochs(
    view: ReadTxn, table_id: int, after: int = -1, until: int = MAX_EPOCH, *, reverse: bool = False
) -> Iterator[int]:
    """Yield the epochs of the remembered commits in (after, until], oldest or (reverse) newest first."""
    for key, value in _records_with(view, table_id, after, until, reverse=reverse):
        if not is_chapter(value):
            yield key_epoch(key)
            continue
        chapter = decode(Chapter, key, value)
        places = chapter.span(after, until)
        yield from (int(chapter.epochs[place]) for place in (reversed(places) if reverse else places))


def commit_arrays(view: ReadTxn, table_id: int, after: int, until: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the epochs of the remembered commits in (after, until], int64, rising, and bool for each: has it changed
    the table (`Commit.changed`)?
    """
    parts = [(np.empty(0, np.int64), np.empty(0, np.bool_))]
    epochs, changed = bytearray(), bytearray()

    def end_of_single() -> None:
        """Move the commits with records of their own into the parts."""
        numbers = np.frombuffer(bytes.fromhex(epochs.decode()), ">i8").astype(np.int64)
        parts.append((numbers, np.frombuffer(bytes(changed), np.bool_)))
        epochs.clear()
        changed.clear()

    for key, value in _records_with(view, table_id, after, until):
        if is_chapter(value):
            end_of_single()
            chapter = decode(Chapter, key, value, keep=False)
            places = chapter.span(after, until)
            parts.append((chapter.epochs[places.start : places.stop], chapter.changed[places.start : places.stop]))
        else:
            changed.append(has_changed(key, value))
            epochs += key[-16:]
    end_of_single()
    all_epochs, all_changed = zip(*parts, strict=True)
    return np.concatenate(all_epochs), np.concatenate(all_changed)


class HistoryRecord(NamedTuple):
    """Record of remembered commits as it is stored: of one commit, or a chapter."""

    key: bytes
    value: bytes
    chapter: Chapter | None

    @property
    def epoch(self) -> int:
        """Return the epoch of its last commit."""
        return key_epoch(self.key)

    @property
    def commits(self) -> list[Commit]:
        """Return the commits, oldest first."""
        if self.chapter is None:
            return [decode(Commit, self.key, self.value, keep=False)]
        return list(self.chapter.commits(range(len(self.chapter))))


def history_records(
    view: ReadTxn, table_id: int, after: int = -1, until: int = MAX_EPOCH, *, reverse: bool = False
) -> Iterator[HistoryRecord]:
    """Yield the records whose last commit is in (after, until], oldest or (reverse) newest first."""
    for key, value in view.scan_packed(hist_key(table_id, after + 1), hist_key(table_id, until + 1), reverse=reverse):
        yield HistoryRecord(key, value, decode(Chapter, key, value, keep=False) if is_chapter(value) else None)


def are_current(view: ReadTxn, records: Iterable[LogRecord | HistoryRecord]) -> bool:
    """Return True if records of a log or of remembered commits are as they were read."""
    return all(view.get_packed(record.key) == record.value for record in records)


def newest_chapter(view: ReadTxn, table_id: int) -> int:
    """Return the epoch of the last commit of the newest chapter; -1 without one. Decode no record."""
    return _newest(view, table_prefix(HIST_PREFIX, table_id), is_chapter)


def last_epochs(view: ReadTxn, table_id: int, until: int) -> Iterator[int]:
    """Yield the last epoch of each record of remembered commits up to `until`, oldest first. Decode none."""
    return _epochs(view, hist_key(table_id, 0), hist_key(table_id, until + 1), reverse=False)


def put_commit(tx: Txn, table_id: int, commit: Commit | Chapter) -> None:
    tx.put(hist_key(table_id, commit.epoch), commit.to_record())


def delete_commits(tx: Txn, table_id: int, last: int) -> None:
    """Delete the record of remembered commits that ends with the epoch `last`."""
    tx.delete(hist_key(table_id, last))


def _records_with(
    view: ReadTxn, table_id: int, after: int, until: int, *, reverse: bool = False
) -> Iterator[tuple[bytes, bytes]]:
    """Yield the records of remembered commits in (after, until], oldest or (reverse) newest first; the last one may be
    a chapter that begins at or before `until` and ends past it.
    """
    past, end = hist_key(table_id, until + 1), after_prefix(table_prefix(HIST_PREFIX, table_id))
    if reverse:
        beyond = islice(view.scan_packed(past, end), 1)
        yield from (record for record in beyond if is_chapter(record[1]))
        yield from view.scan_packed(hist_key(table_id, after + 1), past, reverse=True)
        return
    for key, value in view.scan_packed(hist_key(table_id, after + 1), end):
        if key < past or is_chapter(value):
            yield key, value
        if key >= past:
            return


def _newest(view: ReadTxn, prefix: bytes, is_one: Callable[[bytes], bool]) -> int:
    records = view.scan_packed(prefix, after_prefix(prefix), reverse=True)
    return next((key_epoch(key) for key, value in records if is_one(value)), -1)


def _epochs(view: ReadTxn, start: bytes, stop: bytes, *, reverse: bool) -> Iterator[int]:
    return (key_epoch(key) for key, _ in view.scan_packed(start, stop, reverse=reverse))
