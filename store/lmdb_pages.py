"""Looks at an LMDB file's own pages before it is mapped: touching one that the file lacks would kill the process.

Format of LMDB 0.9 (64 bit, little-endian): of the meta pages 0 and 1 the one with the higher transaction id counts.
A page begins with its number u64, pad u16, flags u16, then lower and upper u16 or, for overflow pages, their count u32.
Node offsets follow, u16 each. A node: three u16 that make up a child's page number, or the value's size and flags in
leaves; key size u16; key; value, or the number of its first overflow page.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

from ..errors import Corrupt

PAGE = 4096
_META = struct.Struct("<40xQ40xQQQ")  # of the two trees (free pages, records) their roots; last page; transaction id
_META_AT = 16 + 24  # past the page's header, magic, version, address and map size
_HEADER = struct.Struct("<QHHHH")
_NODE = struct.Struct("<HHHH")
_BRANCH, _LEAF, _OVERFLOW = 1, 2, 4
_BIG = 1
_NO_ROOT = (1 << 64) - 1
_DEEPEST = 32


class _Damaged(Exception):
    """A page is missing or makes no sense."""


def check_length(data: Path) -> None:
    """Raise Corrupt for a file that lacks pages in use; LMDB may leave free ones at its end unwritten."""
    with data.open("rb") as stream:
        file, seen = stream.fileno(), -1
        while True:
            free, records, last_page, txn = _meta(data, file)
            size, whole = os.fstat(file).st_size, (last_page + 1) * PAGE
            if size >= whole:
                return
            try:
                for root in (free, records):
                    for _ in _pages(file, root):
                        pass
                return
            except _Damaged as error:
                if (
                    txn == seen
                ):  # else another process may have committed over the pages while they were read: look again
                    raise Corrupt(
                        str(data), f"it has {size} bytes of {whole}, and {error}: it was cut short"
                    ) from error
                seen = txn


def _meta(data: Path, file: int) -> tuple[int, int, int, int]:
    head = os.pread(file, 2 * PAGE, 0)
    if len(head) < 2 * PAGE:
        raise Corrupt(str(data), f"it has {len(head)} bytes, fewer than its two meta pages")
    metas = (_META.unpack_from(head, page * PAGE + _META_AT) for page in range(2))
    free, records, last_page, txn = max(metas, key=lambda meta: meta[3])
    return free, records, last_page, txn


def _pages(file: int, root: int, depth: int = 0) -> Iterator[int]:
    """The numbers of all pages of a tree; _Damaged for one that the file does not hold whole."""
    if root == _NO_ROOT:
        return
    if depth > _DEEPEST:
        raise _Damaged("its tree has no end")
    page = _read(file, root)
    number, _, flags, lower, _ = _HEADER.unpack_from(page)
    if number != root or flags & ~0x10 not in (_BRANCH, _LEAF):
        raise _Damaged(f"page {root} is none of its tree")
    yield root
    for at in struct.unpack_from(f"<{max(0, (min(lower, PAGE) - 16) // 2)}H", page, 16):
        if at + _NODE.size > PAGE:
            raise _Damaged(f"page {root} has a node outside itself")
        low, high, third, key_size = _NODE.unpack_from(page, at)
        if flags & _BRANCH:
            yield from _pages(file, low | high << 16 | third << 32, depth + 1)
        elif third & _BIG:
            if at + _NODE.size + key_size + 8 > PAGE:
                raise _Damaged(f"page {root} has a node outside itself")
            yield from _overflow(file, int.from_bytes(page[at + 8 + key_size : at + 16 + key_size], "little"))


def _overflow(file: int, first: int) -> Iterator[int]:
    number, _, flags, low, high = _HEADER.unpack_from(_read(file, first))
    count = low | high << 16
    if number != first or flags & ~0x10 != _OVERFLOW or not count:
        raise _Damaged(f"page {first} does not hold the value that it should")
    _read(file, first + count - 1)
    yield from range(first, first + count)


def _read(file: int, number: int) -> bytes:
    page = os.pread(file, PAGE, number * PAGE) if number < 1 << 48 else b""
    if len(page) < PAGE:
        raise _Damaged(f"lacks page {number}")
    return page
