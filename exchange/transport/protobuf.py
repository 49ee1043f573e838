"""Codec of the one protobuf shape that Flight's own actions need here: a message whose first field is a message
(pure).
"""

from __future__ import annotations

from epochlog.errors import BadMessage

_FIRST_FIELD = b"\x0a"
"""How it begins, before the length of the field."""


def as_first_field(message: bytes) -> bytes:
    """Encode a message whose first and only field is the given one."""
    return _FIRST_FIELD + _varint(len(message)) + message


def first_field(body: bytes) -> bytes:
    """Return the message that is the first field of a protobuf message; later fields are ignored. Raises BadMessage."""
    size, place = 0, 1
    for shift in range(0, 35, 7):  # the length: seven bits a byte, the lowest first
        if place >= len(body):
            break
        size |= (body[place] & 0x7F) << shift
        place += 1
        if body[place - 1] < 0x80:
            if body[:1] == _FIRST_FIELD and place + size <= len(body):
                return body[place : place + size]
            break
    raise BadMessage("this is not the protobuf message that the action takes in Arrow Flight")


def _varint(number: int) -> bytes:
    """Encode a number as protobuf does: seven bits a byte, the lowest first."""
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)
