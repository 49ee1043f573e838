"""Files that nothing reaches any more: who lets go of one says so in the transaction that does, and vacuum deletes it
when nobody can be reading it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from .catalog import Txn, View
from .definitions import Counters
from .records import Record, after_prefix, gone_key


@dataclass(frozen=True, slots=True)
class Gone:
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


def let_go(txn: Txn, table_id: int, files: Iterable[tuple[str, int]], now_ms: int) -> None:
    """Part of a transaction after which nothing reaches these files (path, bytes) any more."""
    version = Counters.read(txn).version + 1  # of this transaction, which moves the counters
    for path, size in files:
        txn.put(gone_key(table_id, path), Gone(path, table_id, size, now_ms, version).to_record())


def all_gone(view: View) -> list[Gone]:
    return [Gone(**record) for _, record in view.scan(b"gone/", after_prefix(b"gone/"))]
