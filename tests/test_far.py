"""List of the tests that run again on S3 and Redis: its tests, rules, promises and places are there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
from shown import COLLECTED, is_whole

import far

pytestmark = [pytest.mark.local_only, pytest.mark.medium]

Chosen = dict[str, list[str]]


def test_the_list_is_that_of_the_tests_and_the_library(request: pytest.FixtureRequest) -> None:
    """A run of all tests has collected them already; any other one collects them in a process of its own."""
    items = request.config.stash[COLLECTED]
    if is_whole(items):
        assert not [*far.complaints(items, far.read())]
    else:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(
            [sys.executable, far.__file__], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def a_test_is_gone(chosen: Chosen) -> None:
    chosen["tests/store/test_gone.py::test_gone[1-a]"] = []


def a_function_is_gone(chosen: Chosen) -> None:
    chosen[far.NOBODY] = ["read store/session/handle.py:no_such_function api.py:open"]


@pytest.mark.planted
@pytest.mark.parametrize(("spoil", "complaint"), [
    (a_test_is_gone, "tests/store/test_gone.py::test_gone[1-a] is not there"),
    (a_function_is_gone, "the library has no store/session/handle.py:no_such_function"),
])  # fmt: skip
def test_a_stale_list_is_found(spoil: Callable[[Chosen], None], complaint: str) -> None:
    chosen: Chosen = {}
    spoil(chosen)
    assert [*far.complaints([], chosen)] == [complaint]


@pytest.mark.planted
def test_a_rule_that_is_not_shown_again_is_found(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(far, "shown_by", lambda items: {"rule 1.2", "rule 1.3"})
    chosen = {far.NOBODY: ["rule 1.3"]}
    assert [*far.complaints([request.node], chosen)] == ["no test of rule 1.2 runs again"]
