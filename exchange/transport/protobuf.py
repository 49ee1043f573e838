"""Codec of the one protobuf shape that Flight's own actions need here: a message whose first field is a message
(pure).
"""

from __future__ import annotations

from epochlog.errors import BadMessage

_FIRST_FIELD = b"\x0a"
"""Tag of the field, before its length."""


def as_first_field(message: bytes) -> bytes:
    """Encode a message whose only field is the given message."""
    return _FIRST_FIELD + _varint(len(message)) + message


def first_field(body: bytes) -> bytes:
    """Return the message that is the first field of a protobuf message; later fields are ignored. Raises BadMessage."""
    size, offset = 0, 1
    for shift in range(0, 35, 7):  # the length: seven bits a byte, the lowest first
        if offset >= len(body):
            break
        size |= (body[offset] & 0x7F) << shift
        offset += 1
        if body[offset - 1] < 0x80:
            if body[:1] == _FIRST_FIELD and offset + size <= len(body):
                return body[offset : offset + size]
            break
    raise BadMessage("the body is not the protobuf message that Arrow Flight defines for this action")


def _varint(number: int) -> bytes:
    """Encode a number as a protobuf varint: seven bits a byte, the lowest first."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
