"""Embedded catalog of a store that is opened read-only: it opens the data file alone, for reading."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn, TypeVar

from epochlog.errors import CatalogLost, CatalogUnavailable, Corrupt, StoreClosed
from epochlog.store.catalog.protocol import PackedReads, ReadTxn, Txn
from epochlog.store.env.clock import Deadline
from epochlog.store.env.paths import LMDB_DATA
from epochlog.store.env.read_only import refuse_write

from .page_check import check_pages
from .page_reader import Overtaken, PageReader

T = TypeVar("T")
PATIENCE_S = 10.0
"""Longest time for which a read begins again because commits have overtaken it."""


class _View(PackedReads):
    """ReadTxn of one state."""

    def __init__(self, pages: PageReader) -> None:
        self._pages = pages

    @property
    def version(self) -> int:
        return self._pages.version

    def get_packed(self, key: bytes) -> bytes | None:
        return self._pages.get(key)

    def scan_packed(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        return self._pages.scan(start, stop, reverse=reverse)


class LmdbReader:
    """Catalog in the folder `<root>/catalog`, for reading. It takes no lock and no place in LMDB's table of readers.

    A read that later commits overtake begins again (`PageReader`), for PATIENCE_S; then it raises CatalogUnavailable.
    """

    def __init__(self, root: Path, folder: Path, clock: Callable[[], int]) -> None:
        self.on_commit: Callable[[], None] = lambda: None
        self._root = root
        self._data = folder / LMDB_DATA
        self._clock = clock
        self._file: int | None = None
        try:
            self._file = os.open(self._data, os.O_RDONLY | os.O_CLOEXEC)
            self._inode = _inode(os.fstat(self._file))
        except FileNotFoundError:
            raise self._lost("is gone") from None
        except OSError as error:
            raise self._unavailable(error.strerror or str(error)) from error
        if not os.fstat(self._file).st_size:
            self.close()
            raise self._lost("is empty")

    def read(self, body: Callable[[ReadTxn], T]) -> T:
        return self._repeat(lambda file, touched: body(_View(PageReader(file, str(self._data), touched))))

    def transact(self, body: Callable[[Txn], T]) -> NoReturn:
        refuse_write(str(self._root))

    def now_ms(self) -> int:
        return self._clock()

    def verify_storage(self) -> None:
        """Check every page in use and raise Corrupt for a damaged one."""

        def check(file: int, touched: dict[bytes, bool]) -> None:
            pages = PageReader(file, str(self._data), {})
            try:
                complete = check_pages(self._data, pages.version)
            finally:
                pages.require_current()  # else it was the page of a later state that seemed damaged
            if not complete:
                raise Overtaken({})

        self._repeat(check)

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def _repeat(self, attempt: Callable[[int, dict[bytes, bool]], T]) -> T:
        """Call `attempt` until no commit overtakes it. Its arguments: the file, and the leaves of the last attempt."""
        deadline, touched = Deadline.after(PATIENCE_S), dict[bytes, bool]()
        while True:
            file = self._require_file()
            try:
                return attempt(file, touched)
            except Overtaken as overtaken:
                touched = overtaken.touched
                if deadline.passed:
                    raise self._unavailable(
                        f"commits have overtaken this read for {PATIENCE_S:.0f} s, and a store that is opened "
                        "read-only cannot hold them up. Read less at a time, or open the store for writing"
                    ) from None
            except OSError as error:
                self._require_file()
                raise self._unavailable(error.strerror or str(error)) from error
            except Corrupt:
                self._require_file()  # after a close by another thread the descriptor is of another file
                raise

    def _require_file(self) -> int:
        """Return the open file; raise CatalogLost unless the folder still has it."""
        file = self._file
        if file is None:
            raise StoreClosed("this store was closed; open it again with epochlog.open")
        try:
            inode = _inode(self._data.stat())
        except FileNotFoundError:
            inode = None
        if inode != self._inode:
            raise self._lost("was removed or replaced while this process had it open")
        return file

    def _lost(self, what: str) -> CatalogLost:
        return CatalogLost(f"the catalog {self._data.parent} {what}. Open the store again; if it is gone, restore it")

    def _unavailable(self, reason: str) -> CatalogUnavailable:
        return CatalogUnavailable(
            f"the catalog {self._data.parent} cannot be read now: {reason}. This is no sign of damage, and this call "
            "wrote nothing; fix the cause, then try again"
        )


def _inode(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
