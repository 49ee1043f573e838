"""Unreachable files: no catalog record refers to them any more.

The transaction that drops the last reference to a file marks it. Vacuum deletes it when no reader can have it open.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from epochlog.store.catalog.keys import UNREACHABLE_PREFIX, unreachable_key
from epochlog.store.catalog.protocol import ReadTxn, Txn, scan_prefix
from epochlog.store.catalog.records import Record, as_record
from epochlog.store.types.epoch import to_unix_ms

from .definitions import Counters
from .shared_files import owner_of, release_files


@dataclass(frozen=True, slots=True)
class UnreachableFile:
    """File of a table that is unreachable since `at_ms` (Unix ms), at the store's version `version`.

    A reader with a hold of an earlier version may still read it.
    """

    path: str
    table_id: int
    bytes: int
    at_ms: int
    version: int
    tables: tuple[int, ...] = ()
    """Of a file that clones shared, the tables that have reached it; empty: only `table_id`, in whose folder it lies.
    """

    @property
    def readers(self) -> tuple[int, ...]:
        """Return the tables whose holds may be of readers of the file."""
        return self.tables or (self.table_id,)

    def to_record(self) -> Record:
        """Return the catalog's record; only a file that was shared has `tables`."""
        record = as_record(self)
        if not self.tables:
            del record["tables"]
        return record

    @classmethod
    def from_record(cls, record: Record) -> UnreachableFile:
        return cls(**{**record, "tables": tuple(record.get("tables", ()))})


def mark_unreachable(txn: Txn, table_id: int, files: Iterable[tuple[str, int]], now_ms: int) -> None:
    """Mark files (path, bytes) as unreachable, but for those that other tables share. Call inside the transaction that
    drops the table's last references to them. Their time is that of the newest epoch if `now_ms` is earlier: the clock
    was set back.
    """
    counters = Counters.read(txn)
    version = counters.version + 1  # the version of this transaction, which moves the counters
    at_ms = max(now_ms, to_unix_ms(counters.last_epoch))
    sizes = dict(files)
    for path, tables in release_files(txn, table_id, sizes):
        owner = owner_of(path, table_id)
        readers = () if tables == (owner,) else tables
        note = UnreachableFile(path, owner, sizes[path], at_ms, version, readers)
        txn.put(unreachable_key(owner, path), note.to_record())


def list_unreachable(view: ReadTxn) -> list[UnreachableFile]:
    return [UnreachableFile.from_record(record) for _, record in scan_prefix(view, UNREACHABLE_PREFIX)]
