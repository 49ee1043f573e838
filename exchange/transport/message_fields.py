"""Checks of the fields of messages from untrusted peers, for all protocols and encodings (pure).

A check takes a decoded value and returns it, possibly converted, or raises BadMessage. A message is a dict of checks by
field, or a dataclass whose fields carry their checks: `epoch: Annotated[int, number]`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from functools import cache
from typing import Annotated, Any, TypeVar, get_type_hints

import msgpack

from epochlog.errors import BadMessage

MAX_NUMBER = (1 << 63) - 1
MAX_TEXT = 4_000

Check = Callable[[Any], Any]
T = TypeVar("T")


# ---- checks of one value -------------------------------------------------------------------------------------------


def number(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MAX_NUMBER:
        raise BadMessage(f"a number is not an integer from 0 to {MAX_NUMBER}")
    return value


def text(value: Any) -> str:
    if type(value) is not str or len(value) > MAX_TEXT:
        raise BadMessage(f"a text is not a string of at most {MAX_TEXT} characters")
    return value


def flag(value: Any) -> bool:
    if type(value) is not bool:
        raise BadMessage("a flag is neither true nor false")
    return value


def seconds(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value <= MAX_NUMBER:
        raise BadMessage("a time is not a number of seconds")
    return value


def up_to(limit: int, what: str) -> Check:
    """Return the check of a number with a limit of its own. what: the value in the error, such as "an epoch"."""

    def check(value: Any) -> int:
        if number(value) > limit:
            raise BadMessage(f"{what} is above {limit}")
        return value

    return check


def one_of(*words: str) -> Check:
    """Return the check of a text that is one of these."""

    def check(value: Any) -> str:
        if type(value) is not str or value not in words:
            raise BadMessage(f"it is none of {', '.join(words)}")
        return value

    return check


def optional(check: Check) -> Check:
    """Return a check that accepts None, and any value that `check` accepts."""
    return lambda value: None if value is None else check(value)


def items(check: Check, most: int, least: int = 0) -> Check:
    """Return the check of a list of `least` to `most` values; it returns a tuple."""

    def check_items(value: Any) -> tuple[Any, ...]:
        if type(value) is not list or not least <= len(value) <= most:
            raise BadMessage(f"it is not a list of {least} to {most} values")
        return tuple(map(check, value))

    return check_items


# Annotations of fields with their checks.
Number = Annotated[int, number]
Text = Annotated[str, text]
Flag = Annotated[bool, flag]


# ---- messages ------------------------------------------------------------------------------------------------------


@cache
def checks_of(message_type: type) -> Mapping[str, Check]:
    """Return the checks of a dataclass's fields, in their order. Raises TypeError for a field without one."""
    annotations = get_type_hints(message_type, include_extras=True)
    unchecked = [field.name for field in fields(message_type) if not hasattr(annotations[field.name], "__metadata__")]
    if unchecked:
        raise TypeError(f"{message_type.__name__}: no check of {', '.join(unchecked)}")
    return {field.name: annotations[field.name].__metadata__[0] for field in fields(message_type)}


def built(message_type: type[T]) -> Check:
    """Return the check of a map that has only fields of the dataclass, and all that have no default; it returns the
    message.
    """

    def build(members: Any) -> T:
        if type(members) is not dict:
            raise BadMessage(f"a {message_type.__name__} is not a map of its fields")
        checks: Mapping[str, Check] = checks_of(message_type)
        if unknown := sorted(str(name) for name in members.keys() - checks.keys()):
            raise BadMessage(f"there is no field {unknown[0][:40]!r}; the fields are {', '.join(checks)}")
        required = (field.name for field in fields(message_type) if field.default is MISSING)  # pyright: ignore[reportArgumentType]
        if missing := [name for name in required if name not in members]:
            raise BadMessage(f"{missing[0]!r} is missing")
        return message_type(**{name: _checked(name, checks[name], value) for name, value in members.items()})

    return build


def exactly(members: Mapping[str, Any], checks: Mapping[str, Check]) -> dict[str, Any]:
    """Check a map that has exactly these fields. Raises BadMessage."""
    if members.keys() != checks.keys():
        raise BadMessage("a message lacks a field, or has an unknown field")
    return {name: _checked(name, check, members[name]) for name, check in checks.items()}


def _checked(name: str, check: Check, value: Any) -> Any:
    try:
        return check(value)
    except BadMessage as error:
        raise BadMessage(f"{name!r}: {error}") from None


def from_msgpack(data: bytes | memoryview, **limits: int) -> Any:
    """Decode msgpack of an untrusted peer, whose caller has limited its size. Raises BadMessage only."""
    try:
        return msgpack.unpackb(data, raw=False, strict_map_key=True, max_ext_len=0, **limits)
    except Exception:  # noqa: BLE001 (the decoder raises many types for invalid bytes)
        raise BadMessage("a message is not msgpack within the limits") from None
