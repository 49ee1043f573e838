"""Format of catalog records: msgpack with a CRC-32, because LMDB does not checksum its pages."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from copy import deepcopy
from dataclasses import fields, is_dataclass
from functools import lru_cache, wraps
from types import NoneType, UnionType
from typing import Any, Protocol, Self, TypeVar, get_args, get_type_hints

import msgpack

from epochlog.errors import Corrupt
from epochlog.store.env.lru_cache import LRUCache

Record = dict[str, Any]

_CRC = struct.Struct("<I")
_PLAIN = {int, float, str, bytes, bool, NoneType}

T = TypeVar("T")


class _FromRecord(Protocol):
    """Class of values that are decoded from records."""

    @classmethod
    def from_record(cls, record: Record, /) -> Self: ...


Decodable = TypeVar("Decodable", bound=_FromRecord)

DECODED_BYTES = 32 << 20
"""Bound of the values that are kept decoded, for all stores of the process."""
DECODED: LRUCache[tuple[Any, int]] = LRUCache(DECODED_BYTES, lambda entry: 512 + 8 * entry[1], name="records")
"""Values of records, with the size of their packed bytes, by class, key and packed record."""


class UnpackedRecord(Record):
    """Record that came from a catalog, with the bytes that it was unpacked from: they identify its content and key."""

    key: bytes = b""
    packed: bytes = b""


def as_record(value: Any) -> Record:
    """Return the fields of a frozen dataclass by name, in which other dataclasses are records too.

    It returns what `dataclasses.asdict` does of dataclasses in tuples and dicts, without copies of immutable members.
    """
    return {name: _as_member(getattr(value, name)) for name in _names_of(type(value))}


def _as_member(value: Any) -> Any:
    if type(value) in _PLAIN:
        return value
    if type(value) is tuple:
        return tuple(map(_as_member, value))
    if type(value) is dict:
        return {key: _as_member(member) for key, member in value.items()}
    return as_record(value) if is_dataclass(value) else deepcopy(value)


@lru_cache(maxsize=100)
def _names_of(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def pack(key: bytes, record: Record) -> bytes:
    """Encode a record. Its checksum covers its key too."""
    body = msgpack.packb(record, use_bin_type=True)
    assert isinstance(body, bytes)
    return _CRC.pack(zlib.crc32(body, zlib.crc32(key))) + body


def require_checksum(key: bytes, value: bytes) -> None:
    """Raise Corrupt for a packed record whose checksum is wrong."""
    if len(value) < _CRC.size or _CRC.unpack_from(value)[0] != zlib.crc32(value[_CRC.size :], zlib.crc32(key)):
        raise Corrupt(f"catalog record {key!r}", "its checksum does not match")


def has_first_field(value: bytes, name: bytes) -> bool:
    """Return True if the first field of a packed record has this name, itself packed. It decodes nothing."""
    return value.startswith(name, _CRC.size + 1)  # behind the checksum and the size of the map


def unpack(key: bytes, value: bytes) -> Record:
    """Decode a record, or raise Corrupt naming its key."""
    require_checksum(key, value)
    record_name = f"catalog record {key!r}"
    try:
        record = msgpack.unpackb(value[_CRC.size :], raw=False, strict_map_key=False)
    except (ValueError, TypeError, msgpack.UnpackException, RecursionError) as error:
        raise Corrupt(record_name, f"it is no msgpack ({error})") from None
    if not isinstance(record, dict):
        raise Corrupt(record_name, "it is not a map")
    unpacked = UnpackedRecord(record)
    unpacked.key, unpacked.packed = key, value
    return unpacked


def decode(kind: type[Decodable], key: bytes, value: bytes, *, keep: bool = True) -> Decodable:
    """Return the value of a packed record. One that was decoded before from equal bytes is not unpacked again.

    keep: False for a scan of many records, which would evict those that steps and reads decode, or count as their use.
    """
    if not keep:
        return kind.from_record(dict(unpack(key, value)))
    known = DECODED.get((kind, key, value))
    return kind.from_record(unpack(key, value)) if known is None else known[0]


_SPOILT = (
    *(KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError),
    *(OSError, NotImplementedError, msgpack.UnpackException),  # of packed columns
)


def checked(make: Callable[[type[T], Record], T]) -> Callable[[type[T], Record], T]:
    """Decorate a `from_record`: it raises Corrupt for a record with a valid checksum that this library never wrote.

    Anyone with write access to the catalog's server can write such a record. Plain fields must have their declared
    types; the constructors of other fields check these. Values must be immutable: that of a record that was decoded
    before is the same object.
    """

    @wraps(make)
    def from_record(cls: type[T], record: Record) -> T:
        identity = (cls, record.key, record.packed) if isinstance(record, UnpackedRecord) else None
        if identity is not None and (known := DECODED.get(identity)) is not None:
            return known[0]
        try:
            instance = make(cls, record)
        except _SPOILT as error:
            raise Corrupt(f"a catalog record of {cls.__name__}", f"{type(error).__name__}: {error}") from None
        for name, kinds in _plain_fields(cls):
            value = getattr(instance, name)
            if type(value) not in kinds:
                raise Corrupt(f"a catalog record of {cls.__name__}", f"its {name} is {value!r:.100}")
        if identity is not None:
            DECODED.put(identity, (instance, len(identity[2])))
        return instance

    return from_record


@lru_cache(maxsize=100)
def _plain_fields(cls: type) -> tuple[tuple[str, frozenset[type]], ...]:
    """Return the fields that may only be numbers, text, bytes, booleans or None, with their types."""
    hints = get_type_hints(cls).items()
    fields = [(name, frozenset(get_args(kind) if isinstance(kind, UnionType) else (kind,))) for name, kind in hints]
    return tuple((name, kinds) for name, kinds in fields if kinds <= _PLAIN)
