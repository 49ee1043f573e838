"""Kept deletes: the sequences of deleted keys, which win over older changes that arrive later.

A commit to a table with a sequence writes the deletes that it takes in into a file beside its log entry, also those of
absent keys. The record `kept/<id>/<epoch>` lists all files from that commit on, oldest first; the newest file that has
a key decides. Records of earlier commits stay while their epochs can be read, because a restore and a clone need them.
Compaction never touches these files.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice

from epochlog.store.catalog.keys import KEPT_PREFIX, after_prefix, kept_key, table_prefix
from epochlog.store.catalog.protocol import ReadTxn, Txn, scan_prefix
from epochlog.store.catalog.records import Record, checked
from epochlog.store.sst.segment import Segment
from epochlog.store.types.epoch import from_unix_ms, to_unix_ms

from .unreachable_files import mark_unreachable
from .version import TableVersion

DELETED_AT = "_epoch"
"""Column of a file of kept deletes: the epoch of the commit that took the delete in; 0: the epoch of the file."""


@dataclass(frozen=True, slots=True)
class KeptFile:
    """File of kept deletes: their keys and sequences."""

    segment: Segment
    epoch: int
    """Epoch of the commit that wrote the file; no delete in it is newer."""

    def to_record(self) -> Record:
        return {"epoch": self.epoch, "file": self.segment.to_record()}

    @classmethod
    @checked
    def from_record(cls, record: Record) -> KeptFile:
        return cls(Segment.from_record(record["file"]), record["epoch"])


KeptFiles = tuple[KeptFile, ...]


def expired_epoch(epoch: int, retention: timedelta) -> int:
    """Return the newest epoch whose deletes a commit at `epoch` no longer knows."""
    return max(0, from_unix_ms(to_unix_ms(epoch) - retention // timedelta(milliseconds=1)))


def kept_deletes(view: ReadTxn, table_id: int, epoch: int | None = None) -> KeptFiles:
    """Return the files of the deletes that are kept at an epoch (None: now), oldest first."""
    prefix = table_prefix(KEPT_PREFIX, table_id)
    end = after_prefix(prefix) if epoch is None else kept_key(table_id, epoch + 1)
    newest = next(iter(view.scan(prefix, end, reverse=True)), None)
    return () if newest is None else _files_of(newest[1])


def kept_records(view: ReadTxn, table_id: int) -> Iterable[tuple[bytes, KeptFiles]]:
    """Return the keys and files of all records of a table, oldest first."""
    return ((key, _files_of(record)) for key, record in scan_prefix(view, table_prefix(KEPT_PREFIX, table_id)))


def put_kept(tx: Txn, table_id: int, epoch: int, files: Sequence[KeptFile]) -> None:
    """Record the files that are kept from a commit on. Call inside a transaction."""
    tx.put(kept_key(table_id, epoch), {"files": [file.to_record() for file in files]})


def replace_kept(tx: Txn, table_id: int, files: KeptFiles, now_ms: int) -> None:
    """Replace the files of the newest record, and mark those as unreachable that no record has any more."""
    *older, (key, before) = kept_records(tx, table_id)
    tx.put(key, {"files": [file.to_record() for file in files]})
    needed = {file.segment.path for _, listed in older for file in listed} | {file.segment.path for file in files}
    _release(tx, table_id, before, needed, now_ms)


def forgettable(view: ReadTxn, table_id: int, version: TableVersion, limit: int) -> list[bytes]:
    """Return the keys of at most `limit` records that no readable epoch needs: no tag's below the safe epoch either."""
    safe = _newest_record(view, table_id, version.safe_epoch)
    if safe is None:
        return []
    tagged = {_newest_record(view, table_id, epoch) for epoch in version.kept}
    below = view.scan(kept_key(table_id, 0), safe)
    return list(islice((key for key, _ in below if key not in tagged), limit))


def _newest_record(view: ReadTxn, table_id: int, epoch: int) -> bytes | None:
    """Return the key of the record with the deletes that are kept at an epoch; None if there are none."""
    at_most = view.scan(kept_key(table_id, 0), kept_key(table_id, epoch + 1), reverse=True)
    return next((key for key, _ in at_most), None)


def forget_kept(tx: Txn, table_id: int, keys: Sequence[bytes], now_ms: int) -> None:
    """Delete records, and mark as unreachable the files that no other record has."""
    dropped = set(keys)
    records = list(kept_records(tx, table_id))
    needed = {file.segment.path for key, files in records if key not in dropped for file in files}
    lost = {file.segment.path: file for key, files in records if key in dropped for file in files}
    for key in keys:
        tx.delete(key)
    _release(tx, table_id, lost.values(), needed, now_ms)


def _release(tx: Txn, table_id: int, files: Iterable[KeptFile], needed: set[str], now_ms: int) -> None:
    lost = [(file.segment.path, file.segment.bytes) for file in files if file.segment.path not in needed]
    mark_unreachable(tx, table_id, lost, now_ms)


def _files_of(record: Record) -> KeptFiles:
    return tuple(KeptFile.from_record(file) for file in record["files"])
