"""The catalog's face: an ordered map of records with atomic reads and atomic transactions.

Every rule about epochs, commits and holds is written once, above this protocol, as a body that reads and writes
through a transaction. A body may be run again (after a conflict), so it must have no effect but through `Txn`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

from .records import Record

T = TypeVar("T")


class View(Protocol):
    """One consistent state of the catalog, for the length of a body."""

    @property
    def version(self) -> int:
        """Two bodies of `Catalog.read` that see the same version see the same records."""
        ...

    def get(self, key: bytes) -> Record | None: ...

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, Record]]:
        """Records with start <= key < stop, in key order (or against it)."""
        ...


class Txn(View, Protocol):
    """A view that also takes writes; they become visible together when the body returns, or not at all."""

    def put(self, key: bytes, record: Record) -> None: ...

    def delete(self, key: bytes) -> None: ...


class Catalog(Protocol):
    """Where tables, versions, jobs, holds and outcomes are kept. Safe to use from several threads.

    landed: called after each transaction of this object that may have written; it must not wait for anything.
    """

    landed: Callable[[], None]

    def read(self, body: Callable[[View], T]) -> T: ...

    def transact(self, body: Callable[[Txn], T]) -> T: ...

    def now_ms(self) -> int:
        """The clock that drives epochs, boundaries and leases: Unix milliseconds."""
        ...

    def check(self) -> None:
        """Look at all of the catalog's own storage; Corrupt where it is damaged beneath the records."""
        ...

    def close(self) -> None: ...
