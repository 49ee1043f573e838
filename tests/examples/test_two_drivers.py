"""The example of two drivers under one coordinator runs as it is printed, and its views equal DuckDB's answers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "two_drivers.py"


@pytest.mark.long
def test_it_runs_as_printed(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, EXAMPLE], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines.pop(2) == "round 3: the driver of customers_seen is killed"
    shown = [line.split(": ", 1)[0] for line in lines]
    assert shown == ["round 1", "round 2", "round 3", "round 3", "round 4", "round 5"]
    assert all(line.endswith(": equal to DuckDB") for line in lines)
    assert "customers_seen" not in lines[2] and "revenue, best_day, customers_seen" in lines[3]
