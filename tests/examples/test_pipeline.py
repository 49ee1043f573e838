"""The example of a pipeline runs as it is printed, and says what its text says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "pipeline.py"


@pytest.mark.medium
def test_it_runs_as_printed(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, EXAMPLE], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    states = re.findall(r"^(revenue|best) +(idle|finished|running) +0 ms +(\d+)  (.*)$", done.stdout, re.MULTILINE)
    assert [(name, restarts) for name, _, restarts, _ in states] == [
        ("revenue", "0"), ("best", "1"), ("revenue", "0"), ("best", "2"), ("revenue", "0"), ("best", "3"),
    ]  # fmt: skip
    assert [state for _, state, _, _ in states[-2:]] == ["finished", "finished"]
    assert {error for name, _, _, error in states if name == "revenue"} == {"-"}
    assert "{'day': 'mon', 'cents': 1200}, {'day': 'tue', 'cents': 1400}" in done.stdout
    assert "best [{'rank': 1, 'day': 'tue', 'cents': 1400}]" in done.stdout
