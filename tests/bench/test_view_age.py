"""The measurement of the age of views: a run of a second, with and without strides."""

from __future__ import annotations

from pathlib import Path

import pytest
import view_age
from view_age import Course, run


@pytest.mark.medium
def test_a_short_run_has_ages_and_steps(tmp_path: Path) -> None:
    """A loaded machine may give each view its first step alone in the first run."""
    runs = (
        run(str(tmp_path / f"lake{turn}"), "duckdb", rate=50, seconds=seconds)
        for turn, seconds in enumerate((1.5, 6.0, 24.0, 96.0))
    )
    result = next(result for result in runs if result["steps"] > len(view_age.VIEWS))
    assert 0 <= result["age"]["q1"] <= result["age"]["median"] <= result["age"]["max"]


def test_ages_are_told_by_minute() -> None:
    course = Course(tuple((float(second), second / 60) for second in range(1, 180)), steps=0)
    assert [minute["max"] for minute in course.by_minute()] == [0.98, 1.98, 2.98]
