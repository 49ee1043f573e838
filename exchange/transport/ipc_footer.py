"""Claims of an Arrow IPC file about its content, compared with its bytes before any of it is decoded (pure).

A decoder allocates the memory that a file claims: a compressed buffer begins with its size after decompression, and
thirty kilobytes of zeros become a gigabyte. So the sizes are summed up first. Layout: Arrow's columnar format, "IPC
File Format", and its Message.fbs, Schema.fbs and File.fbs, of which only the needed numbers are read here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

MAGIC = b"ARROW1"
MAX_FOOTER = 4 << 20
"""Bytes of a footer: the schema, and the position of each record batch."""
MAX_METADATA = 4 << 20
"""Bytes of the metadata of one record batch."""
MAX_BLOCKS = 65_536
MAX_VALUES = (1 << 31) - 1
"""Values of one array at any level."""

_DICTIONARY, _BATCH = 2, 3
_CONTINUATION = 0xFFFFFFFF
_BLOCK = struct.Struct("<qi4xq")
_PAIR = struct.Struct("<qq")


class WrongClaim(ValueError):
    """Claim of an IPC file that its bytes contradict."""


@dataclass(frozen=True, slots=True)
class Claims:
    """Claims of a file, as sums over all record batches. `decoded` is their bytes in memory, dictionaries included."""

    batches: int
    rows: int
    decoded: int


def file_claims(data: memoryview) -> Claims:
    """Read the claims of an IPC file. Raises WrongClaim for bytes that are not an IPC file, and for offsets outside of
    the file.
    """
    try:
        return _file_claims(data)
    except (struct.error, IndexError, OverflowError) as error:
        raise WrongClaim("an offset in its metadata points outside of it") from error


def _file_claims(data: memoryview) -> Claims:
    if len(data) < 24 or data[:6] != MAGIC or data[-6:] != MAGIC:
        raise WrongClaim("it lacks the magic bytes at its beginning or end")
    (size,) = struct.unpack_from("<i", data, len(data) - 10)
    start = len(data) - 10 - size
    if not 8 <= size <= MAX_FOOTER or start < 8:
        raise WrongClaim(f"its footer claims {size} bytes; 8 to {MAX_FOOTER}, within the file, are valid")
    footer = _root(data[start : start + size])
    dictionaries, batches = (list(footer.structs(field, _BLOCK)) for field in (2, 3))
    if len(dictionaries) + len(batches) > MAX_BLOCKS:
        raise WrongClaim(f"it has {len(dictionaries) + len(batches)} record batches, more than {MAX_BLOCKS}")
    dictionary_claims = [_read_block(data[:start], block, _DICTIONARY) for block in dictionaries]
    batch_claims = [_read_block(data[:start], block, _BATCH) for block in batches]
    decoded = sum(size for _, size in (*dictionary_claims, *batch_claims))
    return Claims(len(batches), sum(rows for rows, _ in batch_claims), decoded)


def _read_block(data: memoryview, block: tuple[int, ...], message_type: int) -> tuple[int, int]:
    """Return rows and decoded bytes of the message that a block of the footer points to. Raises WrongClaim."""
    offset, head, body = block
    if offset < 8 or not 16 <= head <= MAX_METADATA or body < 0 or offset + head + body > len(data):
        raise WrongClaim(f"no record batch with {head} bytes of metadata and {body} of body fits at offset {offset}")
    marker, size = struct.unpack_from("<Ii", data, offset)
    if marker != _CONTINUATION or not 8 <= size <= head - 8:
        raise WrongClaim(f"no message begins at offset {offset}")
    message = _root(data[offset + 8 : offset + 8 + size])
    if message.number(1, "<B") != message_type or message.number(3, "<q") != body:
        raise WrongClaim(f"the message at offset {offset} differs from its entry in the footer")
    batch = message.table(2)
    if message_type == _DICTIONARY:
        batch = batch.table(1)
    return _read_batch(batch, data[offset + head : offset + head + body])


def _read_batch(batch: _Table, body: memoryview) -> tuple[int, int]:
    rows = batch.number(0, "<q")
    for length, nulls in [(rows, 0), *batch.structs(1, _PAIR)]:
        if not 0 <= nulls <= length <= MAX_VALUES:
            raise WrongClaim(f"an array claims {length} values with {nulls} nulls; {MAX_VALUES} values are the limit")
    compressed = batch.has(3)
    decoded = 0
    for offset, length in batch.structs(2, _PAIR):
        if offset < 0 or length < 0 or offset + length > len(body):
            raise WrongClaim(f"a buffer of {length} bytes does not fit at offset {offset} of {len(body)} bytes")
        decoded += _decompressed_bytes(body[offset : offset + length]) if compressed and length else length
    return rows, decoded


def _decompressed_bytes(buffer: memoryview) -> int:
    """Return the size of a compressed buffer after decompression; a buffer that begins with -1 is not compressed."""
    (size,) = struct.unpack_from("<q", buffer)
    if size < -1:
        raise WrongClaim(f"a buffer claims {size} bytes after decompression")
    return len(buffer) - 8 if size == -1 else size


def _root(data: memoryview) -> _Table:
    return _Table(data, struct.unpack_from("<I", data)[0])


class _Table:
    """Table of a flatbuffer: its numbers, tables and vectors by the index of their field in the schema."""

    def __init__(self, data: memoryview, start: int) -> None:
        self._data = data
        self._start = start
        self._vtable = start - struct.unpack_from("<i", data, _checked_offset(start))[0]
        (self._vtable_bytes,) = struct.unpack_from("<H", data, _checked_offset(self._vtable))

    def has(self, field: int) -> bool:
        return self._value_offset(field) is not None

    def number(self, field: int, layout: str) -> int:
        offset = self._value_offset(field)
        return 0 if offset is None else struct.unpack_from(layout, self._data, offset)[0]

    def table(self, field: int) -> _Table:
        offset = self._value_offset(field)
        if offset is None:
            raise WrongClaim("a table of its metadata is missing")
        return _Table(self._data, self._follow(offset))

    def structs(self, field: int, layout: struct.Struct) -> Iterator[tuple[int, ...]]:
        offset = self._value_offset(field)
        if offset is None:
            return iter(())
        offset = self._follow(offset)
        (count,) = struct.unpack_from("<I", self._data, offset)
        end = offset + 4 + count * layout.size
        if end > len(self._data):
            raise WrongClaim(f"a vector of {count} structs does not fit into its metadata")
        return layout.iter_unpack(self._data[offset + 4 : end])

    def _value_offset(self, field: int) -> int | None:
        """Return the offset of a field's value; None for an omitted field."""
        slot = 4 + 2 * field
        if slot + 2 > self._vtable_bytes:
            return None
        (offset,) = struct.unpack_from("<H", self._data, _checked_offset(self._vtable + slot))
        return self._start + offset if offset else None

    def _follow(self, offset: int) -> int:
        return offset + struct.unpack_from("<I", self._data, offset)[0]


def _checked_offset(offset: int) -> int:
    """Return the offset unless it is negative, which `struct` counts from the end. Raises WrongClaim."""
    if offset < 0:
        raise WrongClaim("an offset in its metadata points outside of it")
    return offset
