"""Transaction of a reader of a store that was opened read-only: it drops the holds that the reader writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from .protocol import ReadTxn, Txn
from .records import Record

T = TypeVar("T")


class DroppedWrites:
    """Txn over one state of the catalog, without its writes."""

    def __init__(self, view: ReadTxn) -> None:
        self._view = view

    @property
    def version(self) -> int:
        return self._view.version

    def get(self, key: bytes) -> Record | None:
        return self._view.get(key)

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, Record]]:
        return self._view.scan(start, stop, reverse=reverse)

    def get_packed(self, key: bytes) -> bytes | None:
        return self._view.get_packed(key)

    def scan_packed(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        return self._view.scan_packed(start, stop, reverse=reverse)

    def put(self, key: bytes, record: Record) -> None:
        pass

    def delete(self, key: bytes) -> None:
        pass


def without_writes(body: Callable[[Txn], T]) -> Callable[[ReadTxn], T]:
    """Return the body of a reader's transaction as one of a read: its writes are dropped."""
    return lambda view: body(DroppedWrites(view))
