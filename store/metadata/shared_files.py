"""Shared files: files that a table and its clones reach. A file is unreachable when none of them reaches it any more.

A file lies in the folder of the table that wrote it, its owner, also when that table is dropped. Each shared file has a
record, with the tables that reach it and those that did: a reader of any of these may have it open.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from epochlog.store.catalog.keys import SHARE_PREFIX, share_key, table_key
from epochlog.store.catalog.protocol import ReadTxn, Txn, scan_prefix
from epochlog.store.catalog.records import Record, checked
from epochlog.store.env.paths import table_of

from .definitions import TableDef


@dataclass(frozen=True, slots=True)
class SharedFile:
    """Record of a shared file."""

    path: str
    tables: tuple[int, ...]
    """Ids of the tables that reach it."""
    left: tuple[int, ...] = ()
    """Ids of tables that reached it and no longer do."""

    def without(self, table_id: int) -> SharedFile:
        """Return the record after a table has let the file go."""
        tables = tuple(table for table in self.tables if table != table_id)
        return replace(self, tables=tables, left=(*self.left, table_id))

    def to_record(self) -> Record:
        return {"path": self.path, "tables": list(self.tables), "left": list(self.left)}

    @classmethod
    @checked
    def from_record(cls, record: Record) -> SharedFile:
        return cls(record["path"], tuple(record["tables"]), tuple(record["left"]))


def owner_of(path: str, table_id: int) -> int:
    """Return the id of the table in whose folder a file lies; `table_id` for a file in no table's folder."""
    owner = table_of(path.partition("/")[0], path)
    return table_id if owner is None else owner


def share_files(tx: Txn, source: int, clone: int, paths: Iterable[str]) -> None:
    """Record that a clone reaches these files of its source, too. Call inside the transaction that makes the clone."""
    for path in paths:
        key = share_key(owner_of(path, source), path)
        record = tx.get(key)
        shared = SharedFile(path, (source,)) if record is None else SharedFile.from_record(record)
        tx.put(key, replace(shared, tables=(*shared.tables, clone)).to_record())


def release_files(tx: Txn, table_id: int, paths: Iterable[str]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Record that a table reaches these files no more. Yield those that no table reaches now, each with the tables that
    did.
    """
    record = tx.get(table_key(table_id))
    shares = record is not None and TableDef.from_record(record).shares
    for path in paths:
        key = share_key(owner_of(path, table_id), path) if shares else b""
        shared = tx.get(key) if shares else None
        if shared is None:
            yield path, (table_id,)
            continue
        after = SharedFile.from_record(shared).without(table_id)
        if after.tables:
            tx.put(key, after.to_record())
        else:
            tx.delete(key)
            yield path, after.left


def is_shared(view: ReadTxn, table_id: int, path: str) -> bool:
    """Return True if a table reaches a file of this table's folder, and more than one did."""
    return view.get(share_key(table_id, path)) is not None


def list_shared(view: ReadTxn) -> list[SharedFile]:
    """Return the records of all shared files."""
    return [SharedFile.from_record(record) for _, record in scan_prefix(view, SHARE_PREFIX)]
