"""Reader of an LMDB file without its lock table: for a user who may not write to the lock file.

LMDB gives pages that a transaction frees to writers as soon as no reader in the lock table needs them. A reader that is
not in that table may so meet pages of a later transaction. The writer of transaction N takes pages that were freed by
transaction N - 2 or before, so it overwrites pages of the states up to N - 3 and of no later one. The pages of state S
are therefore intact until the commit of S + 2, after which the writer of S + 3 may begin. That commit overwrites the
meta page of S. So a page of S is used only if the meta page of S is unchanged after the page was read (`PageReader`).
Pages are read by system calls into memory of this process: a shorter file is an error, and no SIGBUS.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from typing import TypeVar

from epochlog.errors import Corrupt

from .page_check import PAGE, Meta, read_meta

T = TypeVar("T")
_HEADER = struct.Struct("<QHHHH")
_NODE = struct.Struct("<HHHH")
_BRANCH, _LEAF, _OVERFLOW = 1, 2, 4
_BIG_VALUE = 1
_NO_ROOT = (1 << 64) - 1
_MAX_DEPTH = 32
_FLAGS_IN_MEMORY = 0xC010  # LMDB sets these flags on pages that it is writing


class Overtaken(BaseException):
    """Signal that ends a read whose state later commits have begun to overwrite. Not an Exception, so that no body
    catches it.
    """

    def __init__(self, touched: dict[bytes, bool]) -> None:
        super().__init__()
        self.touched = touched


class _Page:
    """B-tree page, copied: its kind, and its nodes by number."""

    __slots__ = ("count", "data", "is_leaf", "offsets")

    def __init__(self, data: bytes, number: int) -> None:
        own_number, _, flags, lower, upper = _HEADER.unpack_from(data)
        flags &= ~_FLAGS_IN_MEMORY
        if own_number != number or flags not in (_BRANCH, _LEAF) or not 16 <= lower <= upper <= PAGE:
            raise ValueError(f"another page in the place of page {number}")
        self.data, self.is_leaf, self.count = data, flags == _LEAF, (lower - 16) // 2
        self.offsets = struct.unpack_from(f"<{self.count}H", data, 16)

    def key(self, node: int) -> bytes:
        if node == 0 and not self.is_leaf:
            return b""  # below the first child are all smaller keys too
        begin = self.offsets[node] + _NODE.size
        return self.data[begin : begin + _NODE.unpack_from(self.data, begin - _NODE.size)[3]]

    def child(self, node: int) -> int:
        low, middle, high, _ = _NODE.unpack_from(self.data, self.offsets[node])
        return low | middle << 16 | high << 32

    def value(self, node: int) -> bytes | tuple[int, int]:
        """Return the value; of one too large for the page, its first overflow page and its size."""
        low, high, flags, key_size = _NODE.unpack_from(self.data, self.offsets[node])
        begin, size = self.offsets[node] + _NODE.size + key_size, low | high << 16
        if flags == _BIG_VALUE:
            return int.from_bytes(self.data[begin : begin + 8], "little"), size
        if flags or begin + size > PAGE:
            raise ValueError("a node that does not end in its page")
        return self.data[begin : begin + size]

    def find(self, key: bytes) -> int:
        """Return the number of the first node whose key is not below `key`."""
        return bisect_left(range(self.count), key, key=self.key)

    def below(self, key: bytes) -> int:
        """Return the number of the node under which `key` belongs."""
        return max(bisect_right(range(self.count), key, key=self.key) - 1, 0)


class PageReader:
    """Records of one committed state, the newest one when it is made. Its calls raise Overtaken, or Corrupt for damage.

    touched: keys of leaves that an overtaken read of an earlier state has come to, and of those ahead of it; True with
    their large values. They are fetched first, before any record is decoded, so that each attempt comes further.
    """

    def __init__(self, file: int, path: str, touched: dict[bytes, bool]) -> None:
        self._file, self._path = file, path
        self._touched = dict(touched)
        self._pages: dict[int, _Page] = {}
        self._values: dict[int, bytes] = {}
        self._meta: Meta = read_meta(file, path)
        for key, with_values in sorted(touched.items()):
            self._prefetch(key, with_values)

    @property
    def version(self) -> int:
        return self._meta.txn_id

    def get(self, key: bytes) -> bytes | None:
        return next((value for _, value in self.scan(key, key + b"\0")), None)

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Yield the records with start <= key < stop, in key order or in reverse."""
        self._touched.setdefault(start, False)
        if start < stop and self._meta.root != _NO_ROOT:
            yield from self._scan(self._meta.root, start, stop, reverse, 0)

    def require_current(self) -> None:
        """Raise Overtaken unless all pages of the state were intact until now."""
        if os.pread(self._file, len(self._meta.raw), self._meta.offset) != self._meta.raw:
            raise Overtaken(self._touched)

    def _scan(self, number: int, start: bytes, stop: bytes, reverse: bool, depth: int) -> Iterator[tuple[bytes, bytes]]:
        page = self._page(number, depth)
        if not page.is_leaf:
            nodes = range(page.below(start), page.find(stop))
            nodes = nodes[::-1] if reverse else nodes
            for place, node in enumerate(nodes):
                self._touched.setdefault(max(page.key(node), start), False)
                try:
                    yield from self._scan(self._of(number, page.child, node), start, stop, reverse, depth + 1)
                except Overtaken as overtaken:  # the next attempt fetches as many leaves again as this one came to
                    ahead = nodes[place + 1 : place + 1 + len(overtaken.touched)]
                    for later in ahead:
                        overtaken.touched.setdefault(page.key(later), False)
                    raise
            return
        nodes = range(page.find(start), page.find(stop))
        for node in reversed(nodes) if reverse else nodes:
            yield page.key(node), self._value(number, page, node)

    def _prefetch(self, key: bytes, with_values: bool) -> None:
        """Fetch the leaf of a key, and its large values."""
        number, depth = self._meta.root, 0
        if number == _NO_ROOT:
            return
        while not (page := self._page(number, depth)).is_leaf:
            number, depth = self._of(number, page.child, page.below(key)), depth + 1
        if with_values:
            for node in range(page.count):
                self._value(number, page, node)

    def _page(self, number: int, depth: int) -> _Page:
        page = self._pages.get(number)
        if page is None:
            data = self._read(number * PAGE, PAGE)
            page = self._pages[number] = self._of(number, _Page, data, number)
        if depth > _MAX_DEPTH:
            raise Corrupt(self._path, f"its page {number} lies below itself")
        return page

    def _value(self, leaf: int, page: _Page, node: int) -> bytes:
        value = self._of(leaf, page.value, node)
        if isinstance(value, bytes):
            return value
        first, size = value
        if first not in self._values:
            self._touched[page.key(0)] = True
            data = self._read(first * PAGE, 16 + size)
            number, _, flags, _, _ = _HEADER.unpack_from(data)
            if number != first or flags & ~_FLAGS_IN_MEMORY != _OVERFLOW:
                raise Corrupt(self._path, f"it has another page in the place of page {first}")
            self._values[first] = data[16:]
        return self._values[first]

    def _read(self, offset: int, size: int) -> bytes:
        """Read bytes of the state."""
        data = os.pread(self._file, size, offset) if offset < 1 << 60 else b""
        self.require_current()
        if len(data) < size:
            raise Corrupt(self._path, f"it has no page {offset // PAGE}")
        return data

    def _of(self, number: int, part: Callable[..., T], *arguments: object) -> T:
        """Return a part of a page; raise Corrupt if the page has none, for the page is one of the state."""
        try:
            return part(*arguments)
        except (struct.error, ValueError, IndexError) as error:
            raise Corrupt(self._path, f"its page {number} is no valid B-tree page ({error})") from error
