"""pytest plugin that records which tests of stores use the file system and the catalog in which ways.

    EPOCHLOG_TEST_STORE=s3 python -m pytest -p far_calls tests/store tests/model tests/scenarios tests/law \\
        -m "not spark and not slow and not medium and not long and not campaign"

writes tests/support/far.tsv anew: the tests that `make test` runs again with files on S3 and the catalog in Redis. A
place is a call of the file system or the catalog, with the two functions of the library that lead to it, and the error
if it fails. The list has, for each place, rule and promise that these tests come to or show, a test that does so; few
and cheap ones. `make long` runs all of them there.
"""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from types import FrameType
from typing import Any

import pytest
from cpu_time import tree_cpu

import far
from epochlog.store.catalog.redis.catalog import RedisCatalog
from epochlog.store.env.arrow_files import ArrowFiles

CATALOG = ("read", "transact", "check", "changes_since", "forget_deleted", "expect_version")
HOME = "/src/epochlog/"
BELOW = ("store/env/", "store/catalog/")

_now: set[str] = set()
_seconds: dict[str, float] = {}
_places: dict[str, set[str]] = defaultdict(set)


def _callers(frame: FrameType | None) -> str:
    """Return the two nearest functions of the library above the file system and the catalog."""
    names: list[str] = []
    while frame is not None and len(names) < 2:
        path = frame.f_code.co_filename.partition(HOME)[2]
        if path and not path.startswith(BELOW) and not frame.f_code.co_name.startswith("<"):
            names.append(f"{path}:{frame.f_code.co_name}")
        frame = frame.f_back
    return " ".join(names)


def _noted(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        place = f"{name} {_callers(sys._getframe(1))}"
        try:
            result = original(*arguments, **options)
        except Exception as error:
            _now.add(f"{place} {type(error).__name__}")
            raise
        _now.add(place)
        return result

    return call


def pytest_configure() -> None:
    for kind, names in ((ArrowFiles, far.FILES), (RedisCatalog, CATALOG)):
        for name in names:
            setattr(kind, name, _noted(name, getattr(kind, name)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    _now.clear()
    before = tree_cpu(os.getpid())
    outcome = yield
    _seconds[item.nodeid] = (tree_cpu(os.getpid()) - before).total
    _places[item.nodeid] |= _now
    return outcome


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if exitstatus == pytest.ExitCode.OK:
        far.write(choose(session.items, _places, _seconds))


def choose(
    items: Sequence[pytest.Item], places: Mapping[str, set[str]], seconds: Mapping[str, float]
) -> dict[str, set[str]]:
    """Choose tests: the one with most that is new for its time, until nothing is new."""
    comes_to = {item.nodeid: places[item.nodeid] | far.shown_by([item]) for item in items if places.get(item.nodeid)}
    chosen, left = dict[str, set[str]](), set[str]().union(*comes_to.values())
    rest = far.shown_by(items) - left
    while left:
        best = max(comes_to, key=lambda test: len(comes_to[test] & left) / (0.1 + seconds[test]))
        chosen[best] = comes_to[best] & left
        left -= chosen[best]
    return {**chosen, far.NOBODY: rest} if rest else chosen
