"""Protocol of a catalog: an ordered map of records with atomic reads and atomic transactions.

Every rule about epochs, commits and holds is written once, above this protocol, as a body that reads and writes
through a transaction. A body runs again after a conflict, so it may have effects only through `Txn`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

from .keys import after_prefix
from .records import Decodable, Record, decode, unpack

T = TypeVar("T")


class ReadTxn(Protocol):
    """Consistent state of the catalog, valid while the body runs."""

    @property
    def version(self) -> int:
        """Return the version of this state. States of equal version have equal records."""
        ...

    def get(self, key: bytes) -> Record | None: ...

    def get_packed(self, key: bytes) -> bytes | None:
        """Return a record as it is stored, for `records.decode`."""
        ...

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, Record]]:
        """Yield the records with start <= key < stop, in key order (or in reverse)."""
        ...

    def scan_packed(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Yield the records of `scan` as they are stored, for `records.decode`."""
        ...


class PackedReads(ABC):
    """ReadTxn whose records are unpacked from stored bytes."""

    @abstractmethod
    def get_packed(self, key: bytes) -> bytes | None: ...

    @abstractmethod
    def scan_packed(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]: ...

    def get(self, key: bytes) -> Record | None:
        value = self.get_packed(key)
        return None if value is None else unpack(key, value)

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, Record]]:
        return ((key, unpack(key, value)) for key, value in self.scan_packed(start, stop, reverse=reverse))


def scan_prefix(view: ReadTxn, prefix: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, Record]]:
    """Yield the records with keys that begin with the prefix, in key order (or in reverse)."""
    return view.scan(prefix, after_prefix(prefix), reverse=reverse)


def scan_values(
    view: ReadTxn, kind: type[Decodable], prefix: bytes, *, reverse: bool = False
) -> Iterator[tuple[bytes, Decodable]]:
    """Yield the values of all records of `scan_prefix`, without keeping them decoded."""
    for key, value in view.scan_packed(prefix, after_prefix(prefix), reverse=reverse):
        yield key, decode(kind, key, value, keep=False)


class Txn(ReadTxn, Protocol):
    """ReadTxn that also takes writes. They become visible together after the body returns, or not at all."""

    def put(self, key: bytes, record: Record) -> None: ...

    def delete(self, key: bytes) -> None: ...


class Catalog(Protocol):
    """Transactional store of the records of tables, versions, jobs, holds and transaction outcomes. Thread-safe."""

    on_commit: Callable[[], None]
    """Called after each transaction of this object that may have written. It must not block."""

    def read(self, body: Callable[[ReadTxn], T]) -> T: ...

    def transact(self, body: Callable[[Txn], T]) -> T: ...

    def now_ms(self) -> int:
        """Return the Unix milliseconds of the clock that drives epochs, boundaries and leases."""
        ...

    def verify_storage(self) -> None:
        """Read all of the catalog's own storage; raise Corrupt for damage beneath the records."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class RecordChanges:
    """Packed records written after some version, as of `version`; None for a deleted record."""

    version: int
    records: dict[bytes, bytes | None]


@runtime_checkable
class ChangeTracking(Catalog, Protocol):
    """Catalog outside of the root that lists its changes since a version, for the incremental backup in the root."""

    generation: str

    def version(self) -> int:
        """Return the newest version. Every transaction that writes increases it."""
        ...

    def changes_since(self, version: int, *, without_deletions: bool = False) -> RecordChanges | None:
        """Return the records changed after `version`; None if the catalog has forgotten deletions since then.

        without_deletions: list no deletions, and so never return None.
        """
        ...

    def forget_deleted(self, version: int) -> None:
        """Forget the deletions up to this version, which are in the backup."""
        ...
