"""Checks of messages from untrusted peers: what each of them refuses, and that no field of a message has none."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Annotated, Any

import pytest

from epochlog.checkpoint import control_messages
from epochlog.errors import BadMessage
from epochlog.exchange.staged import messages as staged
from epochlog.exchange.subscription import messages as subscription
from epochlog.exchange.transport.message_fields import (
    MAX_NUMBER,
    MAX_TEXT,
    Number,
    Text,
    built,
    checks_of,
    exactly,
    flag,
    from_msgpack,
    items,
    number,
    one_of,
    optional,
    seconds,
    text,
    up_to,
)

CHECKS = {
    number: ([0, MAX_NUMBER], [-1, MAX_NUMBER + 1, True, 1.0, "1", None, [1]]),
    text: (["", "x" * MAX_TEXT], ["x" * (MAX_TEXT + 1), b"x", 1, None]),
    flag: ([True, False], [0, 1, "true", None]),
    seconds: ([0, 1.5, 1e18], [-0.1, math.inf, math.nan, True, "1", None, 10**400]),
    up_to(9, "an epoch"): ([0, 9], [10, -1, "1"]),
    one_of("a", "b"): (["a", "b"], ["c", "", None, ["a"], {"a": 1}]),
    optional(number): ([None, 3], ["3", -1]),
    items(number, 2, 1): ([[1], [1, 2]], [[], [1, 2, 3], (1,), ["1"], {"1": 1}, "12", None]),
}
CASES = [(check, good, bad) for check, (good, bad) in CHECKS.items()]


@pytest.mark.parametrize(("check", "good", "bad"), CASES)
def test_a_check_takes_what_it_names(check: Any, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        expected = tuple(value) if isinstance(value, list) else value
        assert check(value) == expected
    for value in bad:
        with pytest.raises(BadMessage):
            check(value)


@dataclass(frozen=True)
class Inner:
    epoch: Number


@dataclass(frozen=True)
class Outer:
    name: Text
    inner: Annotated[Inner | None, optional(built(Inner))] = None


def test_a_message_has_its_fields_and_no_others() -> None:
    assert built(Outer)({"name": "x"}) == Outer("x")
    assert built(Outer)({"name": "x", "inner": {"epoch": 3}}) == Outer("x", Inner(3))
    wrong = {
        "'name' is missing": {},
        "there is no field 'nam'; the fields are name, inner": {"nam": "x"},
        "'name': a text is not a string": {"name": 1},
        "'inner': 'epoch': a number is not": {"name": "x", "inner": {"epoch": -1}},
        "'inner': 'epoch' is missing": {"name": "x", "inner": {}},
        "a Inner is not a map": {"name": "x", "inner": 3},
        "there is no field '1'": {"name": "x", 1: 2},
    }
    for message, members in wrong.items():
        with pytest.raises(BadMessage) as refused:
            built(Outer)(members)
        assert message in str(refused.value), members
    for members in ({}, {"a": 1, "b": 2}, {"a": "x"}):
        with pytest.raises(BadMessage):
            exactly(members, {"a": number})
    for data in (b"", b"\xc1", b"\x81\x01\x02"):
        with pytest.raises(BadMessage, match="not msgpack"):
            from_msgpack(data)


def messages() -> Iterator[type]:
    """All dataclasses of the protocols that build their messages of them."""
    for module in (control_messages, subscription):
        for value in vars(module).values():
            if (
                isinstance(value, type)
                and value.__module__ == module.__name__
                and hasattr(value, "__dataclass_fields__")
            ):
                yield value


@pytest.mark.parametrize("message_type", list(messages()))
def test_each_field_of_a_message_has_a_check(message_type: type) -> None:
    assert [*checks_of(message_type)] == [field.name for field in fields(message_type)]


def test_a_field_without_a_check_is_found() -> None:
    @dataclass
    class Unchecked:
        epoch: int

    with pytest.raises(TypeError, match="Unchecked: no check of epoch"):
        checks_of(Unchecked)
    assert all(callable(check) for checks in staged.READER_MESSAGES.values() for check in checks.values())
