"""Claims of an Arrow IPC file about its content, read and compared with its bytes before any of it is decoded (pure).

A decoder takes memory as a file tells it to: a compressed buffer begins with its size after decompression, and thirty
kilobytes of zeros become a gigabyte. So the sizes are summed up first. Layout: Arrow's columnar format, "IPC File
Format", and its Message.fbs, Schema.fbs and File.fbs, of which only the numbers needed are read here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

MAGIC = b"ARROW1"
MAX_FOOTER = 4 << 20
"""Bytes of a footer: the schema, and where each record batch lies."""
MAX_METADATA = 4 << 20
"""Bytes that describe one record batch."""
MAX_BLOCKS = 65_536
MAX_VALUES = (1 << 31) - 1
"""Values of one array, nested ones too."""

_DICTIONARY, _BATCH = 2, 3
_CONTINUES = 0xFFFFFFFF
_BLOCK = struct.Struct("<qi4xq")
_PAIR = struct.Struct("<qq")


class WrongClaim(ValueError):
    """Claim of an IPC file about itself that cannot be true."""


@dataclass(frozen=True, slots=True)
class Claims:
    """Claims of a file: sums over all record batches; `decoded` is their bytes in memory, dictionaries included."""

    batches: int
    rows: int
    decoded: int


def file_claims(data: memoryview) -> Claims:
    """Read the claims of an IPC file. Raises WrongClaim for bytes that are no IPC file, or one whose parts do not lie
    in it.
    """
    try:
        return _file_claims(data)
    except (struct.error, IndexError, OverflowError) as error:
        raise WrongClaim("its metadata leads out of it") from error


def _file_claims(data: memoryview) -> Claims:
    if len(data) < 24 or data[:6] != MAGIC or data[-6:] != MAGIC:
        raise WrongClaim("it does not begin and end as an Arrow IPC file does")
    (size,) = struct.unpack_from("<i", data, len(data) - 10)
    start = len(data) - 10 - size
    if not 8 <= size <= MAX_FOOTER or start < 8:
        raise WrongClaim(f"a footer of {size} bytes is none, or more than {MAX_FOOTER}")
    footer = _root(data[start : start + size])
    dictionaries, batches = (list(footer.structs(place, _BLOCK)) for place in (2, 3))
    if len(dictionaries) + len(batches) > MAX_BLOCKS:
        raise WrongClaim(f"it has {len(dictionaries) + len(batches)} record batches; {MAX_BLOCKS} are the most")
    found = [_block(data[:start], block, _DICTIONARY) for block in dictionaries]
    decoded = sum(size for _, size in found)
    found = [_block(data[:start], block, _BATCH) for block in batches]
    return Claims(len(batches), sum(rows for rows, _ in found), decoded + sum(size for _, size in found))


def _block(data: memoryview, block: tuple[int, ...], wanted: int) -> tuple[int, int]:
    """Return rows and decoded bytes of the one message that a block of the footer points to. Raises WrongClaim."""
    offset, head, body = block
    if offset < 8 or not 16 <= head <= MAX_METADATA or body < 0 or offset + head + body > len(data):
        raise WrongClaim(f"no record batch of {head} and {body} bytes lies at {offset}")
    mark, size = struct.unpack_from("<Ii", data, offset)
    if mark != _CONTINUES or not 8 <= size <= head - 8:
        raise WrongClaim(f"no message begins at {offset}")
    message = _root(data[offset + 8 : offset + 8 + size])
    if message.number(1, "<B") != wanted or message.number(3, "<q") != body:
        raise WrongClaim(f"the message at {offset} is another than the footer says")
    batch = message.table(2)
    if wanted == _DICTIONARY:
        batch = batch.table(1)
    return _batch(batch, data[offset + head : offset + head + body])


def _batch(batch: _Table, body: memoryview) -> tuple[int, int]:
    rows = batch.number(0, "<q")
    for length, nulls in [(rows, 0), *batch.structs(1, _PAIR)]:
        if not 0 <= nulls <= length <= MAX_VALUES:
            raise WrongClaim(f"an array of {length} values with {nulls} nulls cannot be, or has more than {MAX_VALUES}")
    compressed = batch.there(3)
    decoded = 0
    for offset, length in batch.structs(2, _PAIR):
        if offset < 0 or length < 0 or offset + length > len(body):
            raise WrongClaim(f"a buffer of {length} bytes does not lie at {offset} of {len(body)}")
        decoded += _unpacked(body[offset : offset + length]) if compressed and length else length
    return rows, decoded


def _unpacked(buffer: memoryview) -> int:
    """Return the bytes of a compressed buffer after decompression; a buffer that begins with -1 is not compressed."""
    (size,) = struct.unpack_from("<q", buffer)
    if size < -1:
        raise WrongClaim(f"a buffer cannot have {size} bytes")
    return len(buffer) - 8 if size == -1 else size


def _root(data: memoryview) -> _Table:
    return _Table(data, struct.unpack_from("<I", data)[0])


class _Table:
    """Table of a flatbuffer: numbers, tables and vectors by their place in its schema."""

    def __init__(self, data: memoryview, at: int) -> None:
        self._data = data
        self._at = at
        self._fields = at - struct.unpack_from("<i", data, _inside(at))[0]
        (self._size,) = struct.unpack_from("<H", data, _inside(self._fields))

    def there(self, place: int) -> bool:
        return self._where(place) is not None

    def number(self, place: int, kind: str) -> int:
        at = self._where(place)
        return 0 if at is None else struct.unpack_from(kind, self._data, at)[0]

    def table(self, place: int) -> _Table:
        at = self._where(place)
        if at is None:
            raise WrongClaim("a part of its metadata is missing")
        return _Table(self._data, self._follow(at))

    def structs(self, place: int, kind: struct.Struct) -> Iterator[tuple[int, ...]]:
        at = self._where(place)
        if at is None:
            return iter(())
        at = self._follow(at)
        (count,) = struct.unpack_from("<I", self._data, at)
        end = at + 4 + count * kind.size
        if end > len(self._data):
            raise WrongClaim(f"a list of {count} does not lie in its metadata")
        return kind.iter_unpack(self._data[at + 4 : end])

    def _where(self, place: int) -> int | None:
        """Return the offset of a field's value; None for a field that is left out."""
        slot = 4 + 2 * place
        if slot + 2 > self._size:
            return None
        (offset,) = struct.unpack_from("<H", self._data, _inside(self._fields + slot))
        return self._at + offset if offset else None

    def _follow(self, at: int) -> int:
        return at + struct.unpack_from("<I", self._data, at)[0]


def _inside(at: int) -> int:
    """Return the offset unless it is negative, which `struct` would count from the end. Raises WrongClaim."""
    if at < 0:
        raise WrongClaim("its metadata leads out of it")
    return at
