"""The example of refreshes written by hand runs as it is printed, and its views equal their queries."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "python_refreshes.py"


@pytest.mark.long
def test_it_runs_as_printed(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, EXAMPLE], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [line[:2] for line in lines[1:5]] == [
        ["1", "route_delays"], ["1", "worst_routes"], ["1", "weather_impact"], ["1", "carrier_scoreboard"],
    ]  # fmt: skip
    assert len(lines) == 13 and {line[3] for line in lines[1:]} == {"yes"}
