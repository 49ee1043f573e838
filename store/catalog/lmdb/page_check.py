"""Check of an LMDB file's own pages. LMDB trusts every page: a damaged or missing one would end the process.

Format of LMDB 0.9 (64 bit, little-endian): of the meta pages 0 and 1 the one with the higher transaction id counts.
A page begins with its number u64, pad u16, flags u16, then lower and upper u16 or, for overflow pages, their count u32.
Node offsets follow, u16 each. A node: three u16 that make up a child's page number, or the value's size and flags in
leaves; key size u16; key; value, or the number of its first overflow page.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

from epochlog.errors import Corrupt

PAGE = 4096
_META = struct.Struct(
    "<4xH34xQ4xH34xQQQ"
)  # of the trees (free pages, records) flags and root; last page; transaction id
_META_AT = 16 + 24  # past the page's header, magic, version, address and map size
_MAGIC = bytes.fromhex("dec0efbe 01000000")  # and the version of the format
_HEADER = struct.Struct("<QHHHH")
_NODE = struct.Struct("<HHHH")
_BRANCH, _LEAF, _OVERFLOW = 1, 2, 4
_BIG = 1
_INTEGER_KEY = 8
_FLAGS_IN_MEMORY = 0xC010  # what LMDB marks pages with while it works on them
_NO_ROOT = (1 << 64) - 1
_DEEPEST = 32


class _Damaged(Exception):
    """Error: a page is missing or invalid."""


class _Enough(Exception):
    """Signal: the wanted number of pages has been checked."""


def check_metas(data: Path, map_size: int) -> None:
    """Raise Corrupt for a file without two meta pages that LMDB can map: it looks at those at once, maps as many bytes
    as they count, and tells of a count past all memory as if memory were short.
    """
    size = data.stat().st_size
    if size < 2 * PAGE:
        raise Corrupt(str(data), f"it has {size} bytes, fewer than its two meta pages")
    head = _head(data)
    if not _are_metas(head):
        return  # LMDB says so itself
    for place in (_META_AT, PAGE + _META_AT):
        page_size, last_page = int.from_bytes(head[place : place + 4], "little"), _META.unpack_from(head, place)[-2]
        if page_size != PAGE or (last_page + 1) * PAGE > map_size:
            counts = f"{last_page + 1} pages of {page_size} bytes"
            raise Corrupt(str(data), f"a meta page counts {counts}, which no catalog has")


def has_metas(data: Path) -> bool:
    """Tell whether both meta pages begin as LMDB's do."""
    return _are_metas(_head(data))


def _head(data: Path) -> bytes:
    """Read the two meta pages."""
    with data.open("rb") as stream:
        return stream.read(2 * PAGE)


def _are_metas(head: bytes) -> bool:
    return all(head[at : at + len(_MAGIC)] == _MAGIC for at in (16, PAGE + 16))


def check_pages(data: Path, txn_id: int, most: int | None = None) -> bool:
    """Raise Corrupt unless every page that the transaction's two trees reach is there and is what it should be.

    With `most` the walk ends after so many pages, unless the file is shorter than the pages that it counts.

    To be called while a read transaction of that id is open: then nobody overwrites these pages. They are read from
    the file, not through the map. Free pages may be damaged, or missing where LMDB has not written them yet. False when
    others have committed since and overwritten the meta page: begin another transaction and ask again.
    """
    with data.open("rb") as stream:
        file = stream.fileno()
        head = os.pread(file, 2 * PAGE, 0)
        metas = [_META.unpack_from(head, page * PAGE + _META_AT) for page in range(2)]
        ids = [meta[-1] for meta in metas]
        if ids != [0, 0] and not (abs(ids[0] - ids[1]) == 1 and ids[0] % 2 == 0):
            raise Corrupt(str(data), f"its two meta pages are of the transactions {ids}, which are no pair")
        if txn_id not in [meta[-1] for meta in metas] and txn_id < max(meta[-1] for meta in metas):
            return False
        found = [meta for meta in metas if meta[-1] == txn_id][-1:]
        short = bool(found) and os.fstat(file).st_size < (found[0][-2] + 1) * PAGE
        try:
            _check_trees(file, found, None if short else most)
        except (_Damaged, struct.error) as error:
            raise Corrupt(str(data), f"it has {error} (and {os.fstat(file).st_size} bytes)") from error
    return True


def _check_trees(file: int, found: list[tuple[int, ...]], most: int | None) -> None:
    if not found:
        raise _Damaged("no meta page of the transaction that is read")
    free_flags, free, flags, records, _, _ = found[0]
    if free_flags != _INTEGER_KEY or flags != 0:
        raise _Damaged("trees of another kind")
    seen: set[int] = set()
    try:
        for root in (records, free):
            if root != _NO_ROOT:
                _walk(file, root, seen, 0, most)
    except _Enough:
        return


def _walk(file: int, number: int, seen: set[int], depth: int, most: int | None) -> None:
    """Check one page and all below it; no page may occur twice."""
    if most is not None and len(seen) >= most:
        raise _Enough
    page = _page(file, number, seen)
    _, _, flags, lower, upper = _HEADER.unpack_from(page)
    flags &= ~_FLAGS_IN_MEMORY
    if flags not in (_BRANCH, _LEAF) or not 16 <= lower <= upper <= PAGE or depth > _DEEPEST:
        raise _Damaged(f"a page {number} that is none of its tree")
    for at in struct.unpack_from(f"<{(lower - 16) // 2}H", page, 16):
        if not upper <= at <= PAGE - _NODE.size:
            raise _Damaged(f"a page {number} with a node outside itself")
        low, high, third, key_size = _NODE.unpack_from(page, at)
        end, size = at + _NODE.size + key_size, low | high << 16
        if flags == _LEAF:
            end += 8 if third == _BIG else size
        if end > PAGE or (flags == _LEAF and third not in (0, _BIG)):
            raise _Damaged(f"a page {number} with a node that does not end in it")
        if flags == _BRANCH:
            _walk(file, size | third << 32, seen, depth + 1, most)
        elif third == _BIG:
            _overflow(file, int.from_bytes(page[end - 8 : end], "little"), size, seen)


def _overflow(file: int, first: int, size: int, seen: set[int]) -> None:
    """Check a value too large for a leaf, in consecutive pages of which the first has a header."""
    _, _, flags, low, high = _HEADER.unpack_from(_page(file, first, seen))
    count = low | high << 16
    if flags & ~_FLAGS_IN_MEMORY != _OVERFLOW or not 16 + size <= count * PAGE:
        raise _Damaged(f"a page {first} that does not hold the value it should")
    _page(file, first + count - 1, seen, first=False)


def _page(file: int, number: int, seen: set[int], *, first: bool = True) -> bytes:
    page = os.pread(file, PAGE, number * PAGE) if number < 1 << 48 else b""
    if len(page) < PAGE:
        raise _Damaged(f"no page {number}")
    if first and (number in seen or _HEADER.unpack_from(page)[0] != number):
        raise _Damaged(f"another page where {number} belongs")
    seen.add(number)
    return page
