"""Files that nothing reaches any more: who lets go of one says so in the transaction that does, and vacuum deletes it
when nobody can be reading it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from epochlog.store.catalog.keys import after_prefix, gone_key
from epochlog.store.catalog.protocol import Txn, View
from epochlog.store.catalog.records import Record

from .definitions import Counters


@dataclass(frozen=True, slots=True)
class UnreachableFile:
    """A file of a table, unreachable since `at_ms` (Unix ms), when the store's version was `version`.

    A hold taken at an earlier version may still read it.
    """

    path: str
    table_id: int
    bytes: int
    at_ms: int
    version: int

    def to_record(self) -> Record:
        return asdict(self)


def mark_unreachable(txn: Txn, table_id: int, files: Iterable[tuple[str, int]], now_ms: int) -> None:
    """Note that no record refers to these files (path, bytes) after this transaction, of which it is a part."""
    version = Counters.read(txn).version + 1  # of this transaction, which moves the counters
    for path, size in files:
        txn.put(gone_key(table_id, path), UnreachableFile(path, table_id, size, now_ms, version).to_record())


def list_unreachable(view: View) -> list[UnreachableFile]:
    return [UnreachableFile(**record) for _, record in view.scan(b"gone/", after_prefix(b"gone/"))]
