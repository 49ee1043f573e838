"""docs/formats/flight.md names every service, action, message and field that there is."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path

import pytest

import epochlog as el
from endpoints import methods, services
from epochlog.checkpoint import control_messages
from epochlog.exchange.flight import descriptors
from epochlog.exchange.staged import messages as staged
from epochlog.exchange.subscription import messages

pytestmark = pytest.mark.local_only

PAGE = (Path(__file__).parents[2] / "docs" / "formats" / "flight.md").read_text()
WORDS = set(re.findall(r"[A-Za-z_][A-Za-z0-9_.]*", PAGE))


def names() -> Iterator[str]:
    yield from methods()
    for what, keys in descriptors._KEYS.items():
        yield from (what, *keys)
    for cls in control_messages._KINDS.values():
        yield from (cls.__name__, *(field.name for field in fields(cls)))
    for cls in ("Request", "Resume", "FeedPosition", "SubscriptionWelcome", "Mark", "Notice", "Answer"):
        yield from (field.name for field in fields(getattr(messages, cls)))
    for name, checks in vars(staged).items():
        if name.isupper() and isinstance(checks, Mapping):
            yield from checks


def test_every_field_is_on_the_page() -> None:
    words = set(names())
    assert len(words) > 60
    assert not words - WORDS


def test_every_service_is_on_the_page(tmp_path: Path) -> None:
    with el.open(tmp_path / "s", durability="os") as store, el.serve(store) as server:
        exchanges, actions = services(server)
    for name in exchanges:
        assert f"## Exchange `{name.decode()}:`" in PAGE
    for kind in actions:
        assert f"`{kind}`" in PAGE


def test_numbers_of_control_messages_are_on_the_page() -> None:
    for tag, cls in control_messages._KINDS.items():
        assert f"{tag} {cls.__name__}" in PAGE
