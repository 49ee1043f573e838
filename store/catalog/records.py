"""Format of catalog records: msgpack with a CRC-32 of its own, for LMDB does not checksum its pages."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from functools import lru_cache, wraps
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_type_hints

import msgpack

from epochlog.errors import Corrupt

Record = dict[str, Any]

_CRC = struct.Struct("<I")
_PLAIN = {int, float, str, bytes, bool, NoneType}

T = TypeVar("T")


def pack(key: bytes, record: Record) -> bytes:
    """Encode a record; its checksum covers the key that it lies under too."""
    body = msgpack.packb(record, use_bin_type=True)
    assert isinstance(body, bytes)
    return _CRC.pack(zlib.crc32(body, zlib.crc32(key))) + body


def unpack(key: bytes, value: bytes) -> Record:
    """Decode a record, or raise Corrupt naming its key."""
    where = f"catalog record {key!r}"
    if len(value) < _CRC.size or _CRC.unpack_from(value)[0] != zlib.crc32(value[_CRC.size :], zlib.crc32(key)):
        raise Corrupt(where, "its checksum does not match")
    try:
        record = msgpack.unpackb(value[_CRC.size :], raw=False, strict_map_key=False)
    except (ValueError, TypeError, msgpack.UnpackException, RecursionError) as error:
        raise Corrupt(where, f"it is no msgpack ({error})") from None
    if not isinstance(record, dict):
        raise Corrupt(where, "it is not a map")
    return record


def checked(make: Callable[[type[T], Record], T]) -> Callable[[type[T], Record], T]:
    """Decorate a `from_record`: a record with a right checksum that this library never wrote raises Corrupt.

    Who can write to the catalog's server can make such ones. Plain fields must have the types that they are declared
    with; what is inside of others is checked where it is made.
    """

    @wraps(make)
    def from_record(cls: type[T], record: Record) -> T:
        try:
            found = make(cls, record)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
            raise Corrupt(f"a catalog record of {cls.__name__}", f"{type(error).__name__}: {error}") from None
        for name, kinds in _plain_fields(cls):
            value = getattr(found, name)
            if type(value) not in kinds:
                raise Corrupt(f"a catalog record of {cls.__name__}", f"its {name} is {value!r:.100}")
        return found

    return from_record


@lru_cache(maxsize=100)
def _plain_fields(cls: type) -> tuple[tuple[str, frozenset[type]], ...]:
    """Return the fields that hold only numbers, text, bytes, booleans or None, with their types."""
    hints = get_type_hints(cls).items()
    found = [(name, frozenset(get_args(kind) if isinstance(kind, UnionType) else (kind,))) for name, kind in hints]
    return tuple((name, kinds) for name, kinds in found if kinds <= _PLAIN)
