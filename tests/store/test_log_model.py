"""changes() of both changelogs against plain dicts: random commits of labels, deletes, compactions, truncations."""

from __future__ import annotations

import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import epochlog as el
from log_model import GONE, KEYS, ChangelogPair, tiny

VALUES = st.sampled_from([None, float("nan"), 0.0, 1.0, 2.0, GONE, GONE])
LABEL = st.lists(st.tuples(st.integers(0, KEYS - 1), VALUES), max_size=9)
STEPS = st.one_of(
    st.tuples(st.just("commit"), st.lists(LABEL, min_size=1, max_size=3)),
    st.tuples(st.just("commit"), st.lists(LABEL, min_size=1, max_size=3)),
    st.tuples(st.just("transaction"), LABEL),
    st.tuples(st.just("compact"), st.booleans()),
    st.tuples(st.just("truncate"), st.integers(0, 20)),
    st.tuples(st.just("tick"), st.sampled_from([1, 50, 5000])),
    st.tuples(st.just("reopen"), st.none()),
)


def act(world: ChangelogPair, step: str, what: Any) -> None:
    if step == "commit":
        world.commit(what)
    elif step == "transaction":
        world.commit([what], sealed=False)
    elif step == "compact":
        world.store.compact(full=what)
    elif step == "truncate":
        marks = [mark for mark in world.marks() if mark <= max(world.model.entries, default=0)]
        world.truncate(marks[what % len(marks)])
    elif step == "tick":
        world.now_ms += what
    else:
        world.reopen()


def play(root: Path, steps: list[tuple[str, Any]], retention_ms: int, low: int, *, most: int = 40) -> None:
    """most: ranges of epochs that are looked at in the end."""
    options = el.TableOptions(history_retention=timedelta(milliseconds=retention_ms), compact_segments=2)
    with pytest.MonkeyPatch.context() as patch:
        tiny(patch)
        world = ChangelogPair(root, options)
        try:
            for step, what in steps:
                act(world, step, what)
            world.check_all(low, low + 5, most)
        finally:
            world.close()


@pytest.mark.rule("4.1", "4.2")
@pytest.mark.medium
@pytest.mark.local_only
@given(st.lists(STEPS, min_size=1, max_size=7), st.sampled_from([0, 20, 3_600_000]), st.integers(0, 8))
@settings(max_examples=8)
def test_changes_are_those_of_the_oracle(steps: list[tuple[str, Any]], retention_ms: int, low: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        play(Path(folder) / "s", steps, retention_ms, low, most=6)


@pytest.mark.long
@pytest.mark.local_only
@given(st.lists(STEPS, min_size=3, max_size=9), st.sampled_from([0, 20, 3_600_000]), st.integers(0, 8))
@settings(max_examples=4)
def test_changes_are_those_of_the_oracle_in_many_ranges(
    steps: list[tuple[str, Any]], retention_ms: int, low: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        play(Path(folder) / "s", steps, retention_ms, low)


@pytest.mark.campaign
@given(st.lists(STEPS, min_size=6, max_size=16), st.sampled_from([0, 20, 3_600_000]), st.integers(0, 8))
@settings(max_examples=60)
def test_changes_are_those_of_the_oracle_for_long(steps: list[tuple[str, Any]], retention_ms: int, low: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        play(Path(folder) / "s", steps, retention_ms, low)
