"""Check of an LMDB file's pages. LMDB trusts every page: a damaged or missing one ends the process.

Format of LMDB 0.9 (64 bit, little-endian): of the meta pages 0 and 1 the one with the higher transaction id is valid.
A page begins with its number u64, pad u16, flags u16, then lower and upper u16 or, for overflow pages, their count u32.
Node offsets follow, u16 each. A node: three u16 that make up a child's page number, or the value's size and flags in
leaves; key size u16; key; value, or the number of its first overflow page.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path

from epochlog.errors import Corrupt

PAGE = 4096
_META = struct.Struct(
    "<4xH34xQ4xH34xQQQ"
)  # of the trees (free pages, records) flags and root; last page; transaction id
_META_BEGIN = 16  # after the page's header
_META_AT = _META_BEGIN + 24  # after the page's header, magic, version, address and map size
_MAGIC = bytes.fromhex("dec0efbe 01000000")  # and the version of the format
_HEADER = struct.Struct("<QHHHH")
_NODE = struct.Struct("<HHHH")
_BRANCH, _LEAF, _OVERFLOW = 1, 2, 4
_BIG_VALUE = 1
_INTEGER_KEY = 8
_FLAGS_IN_MEMORY = 0xC010  # LMDB sets these flags on pages that it is writing
_NO_ROOT = (1 << 64) - 1
_MAX_DEPTH = 32


@dataclass(frozen=True, slots=True)
class Meta:
    """Meta page of a committed state: its place in the file, its bytes, and the root of the records' tree."""

    offset: int
    raw: bytes
    root: int
    txn_id: int


class _Damaged(Exception):
    """Error: a page is missing or invalid."""


class _LimitReached(Exception):
    """Signal: the wanted number of pages has been checked."""


def check_metas(data: Path, map_size: int) -> None:
    """Raise Corrupt for a file without two meta pages that LMDB can map.

    LMDB reads these pages first, and maps as many pages as they count. It would report too large a count as a lack of
    memory, and an unknown format as an error without a class of its own.
    """
    size = data.stat().st_size
    if size < 2 * PAGE:
        raise Corrupt(str(data), f"it has {size} bytes, fewer than its two meta pages")
    head = _read_metas(data)
    if not _are_metas(head):
        raise Corrupt(str(data), "its meta pages are not of LMDB's data format 1")
    for offset in (_META_AT, PAGE + _META_AT):
        page_size, last_page = int.from_bytes(head[offset : offset + 4], "little"), _META.unpack_from(head, offset)[-2]
        if page_size != PAGE or (last_page + 1) * PAGE > map_size:
            counts = f"{last_page + 1} pages of {page_size} bytes"
            raise Corrupt(str(data), f"a meta page counts {counts}, more than any catalog has")


def is_unfinished(data: Path) -> bool:
    """Return True for a file whose creation lost power: its first two pages are not whole, and no transaction ended."""
    head = _read_metas(data)
    if data.stat().st_size > 2 * PAGE or (len(head) == 2 * PAGE and _are_metas(head)):
        return False
    if not _are_metas(head):
        return True
    whole = head.ljust(2 * PAGE, b"\0")
    return all(_META.unpack_from(whole, page * PAGE + _META_AT)[-1] == 0 for page in range(2))


def read_meta(file: int, path: str) -> Meta:
    """Return the meta page of the newest state, read while no writer was writing it. Raises Corrupt."""
    head = os.pread(file, 2 * PAGE, 0)
    while head != (again := os.pread(file, 2 * PAGE, 0)):
        head = again
    if len(head) < 2 * PAGE or not _are_metas(head):
        raise Corrupt(path, "its meta pages are not of LMDB's data format 1")
    fields = [_META.unpack_from(head, page * PAGE + _META_AT) for page in range(2)]
    page = int(fields[1][-1] > fields[0][-1])
    begin, end = page * PAGE + _META_BEGIN, page * PAGE + _META_AT + _META.size
    return Meta(begin, head[begin:end], fields[page][3], fields[page][-1])


def _read_metas(data: Path) -> bytes:
    """Read the two meta pages."""
    with data.open("rb") as stream:
        return stream.read(2 * PAGE)


def _are_metas(head: bytes) -> bool:
    return all(head[offset : offset + len(_MAGIC)] == _MAGIC for offset in (16, PAGE + 16))


def check_pages(data: Path, txn_id: int, limit: int | None = None) -> bool:
    """Check every page that the transaction's two trees reach; raise Corrupt for a missing or invalid one.

    limit: number of pages after which the check ends. A file shorter than its own page count is always checked fully.

    Call it while a read transaction of that id is open: then no writer overwrites these pages. The check reads the
    file, not the map. It ignores free pages, which may be damaged or not yet written. It returns False if later commits
    have overwritten the transaction's meta page: begin another transaction and call it again.
    """
    with data.open("rb") as stream:
        file = stream.fileno()
        head = os.pread(file, 2 * PAGE, 0)
        metas = [_META.unpack_from(head, page * PAGE + _META_AT) for page in range(2)]
        ids = [meta[-1] for meta in metas]
        if ids != [0, 0] and not (abs(ids[0] - ids[1]) == 1 and ids[0] % 2 == 0):
            raise Corrupt(str(data), f"its two meta pages are of the transactions {ids}, which are not consecutive")
        if txn_id not in [meta[-1] for meta in metas] and txn_id < max(meta[-1] for meta in metas):
            return False
        current = [meta for meta in metas if meta[-1] == txn_id][-1:]
        short = bool(current) and os.fstat(file).st_size < (current[0][-2] + 1) * PAGE
        try:
            _check_trees(file, current, None if short else limit)
        except (_Damaged, struct.error) as error:
            raise Corrupt(str(data), f"it has {error} (and {os.fstat(file).st_size} bytes)") from error
    return True


def _check_trees(file: int, metas: list[tuple[int, ...]], limit: int | None) -> None:
    if not metas:
        raise _Damaged("no meta page of the open transaction")
    free_flags, free, flags, records, _, _ = metas[0]
    if free_flags != _INTEGER_KEY or flags != 0:
        raise _Damaged("trees of another kind")
    visited: set[int] = set()
    try:
        for root in (records, free):
            if root != _NO_ROOT:
                _walk(file, root, visited, 0, limit)
    except _LimitReached:
        return


def _walk(file: int, number: int, visited: set[int], depth: int, limit: int | None) -> None:
    """Check one page and all pages below it. No page may occur twice."""
    if limit is not None and len(visited) >= limit:
        raise _LimitReached
    page = _page(file, number, visited)
    _, _, flags, lower, upper = _HEADER.unpack_from(page)
    flags &= ~_FLAGS_IN_MEMORY
    if flags not in (_BRANCH, _LEAF) or not 16 <= lower <= upper <= PAGE or depth > _MAX_DEPTH:
        raise _Damaged(f"a page {number} that is not a valid B-tree page")
    for offset in struct.unpack_from(f"<{(lower - 16) // 2}H", page, 16):
        if not upper <= offset <= PAGE - _NODE.size:
            raise _Damaged(f"a page {number} with a node outside of it")
        low, high, third, key_size = _NODE.unpack_from(page, offset)
        end, size = offset + _NODE.size + key_size, low | high << 16
        if flags == _LEAF:
            end += 8 if third == _BIG_VALUE else size
        if end > PAGE or (flags == _LEAF and third not in (0, _BIG_VALUE)):
            raise _Damaged(f"a page {number} with a node that does not end in it")
        if flags == _BRANCH:
            _walk(file, size | third << 32, visited, depth + 1, limit)
        elif third == _BIG_VALUE:
            _overflow(file, int.from_bytes(page[end - 8 : end], "little"), size, visited)


def _overflow(file: int, first: int, size: int, visited: set[int]) -> None:
    """Check a value too large for a leaf, in consecutive pages of which the first has a header."""
    _, _, flags, low, high = _HEADER.unpack_from(_page(file, first, visited))
    count = low | high << 16
    if flags & ~_FLAGS_IN_MEMORY != _OVERFLOW or not 16 + size <= count * PAGE:
        raise _Damaged(f"a page {first} that is not the overflow page of its value")
    _page(file, first + count - 1, visited, first=False)


def _page(file: int, number: int, visited: set[int], *, first: bool = True) -> bytes:
    page = os.pread(file, PAGE, number * PAGE) if number < 1 << 48 else b""
    if len(page) < PAGE:
        raise _Damaged(f"no page {number}")
    if first and (number in visited or _HEADER.unpack_from(page)[0] != number):
        raise _Damaged(f"another page in the place of page {number}")
    visited.add(number)
    return page
