"""Unreachable files: no catalog record refers to them any more.

The transaction that drops the last reference to a file marks it. Vacuum deletes it when no reader can have it open.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from epochlog.store.catalog.keys import GONE_PREFIX, gone_key
from epochlog.store.catalog.protocol import ReadTxn, Txn, scan_prefix
from epochlog.store.catalog.records import Record

from .definitions import Counters


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

    def to_record(self) -> Record:
        return asdict(self)


def mark_unreachable(txn: Txn, table_id: int, files: Iterable[tuple[str, int]], now_ms: int) -> None:
    """Mark files (path, bytes) as unreachable. Call inside the transaction that drops the last references to them."""
    version = Counters.read(txn).version + 1  # the version of this transaction, which moves the counters
    for path, size in files:
        txn.put(gone_key(table_id, path), UnreachableFile(path, table_id, size, now_ms, version).to_record())


def list_unreachable(view: ReadTxn) -> list[UnreachableFile]:
    return [UnreachableFile(**record) for _, record in scan_prefix(view, GONE_PREFIX)]
