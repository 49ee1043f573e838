"""The example of TPC-H runs as it is printed, and says what its text says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "tpch.py"


@pytest.mark.spark
@pytest.mark.long
def test_it_runs_as_printed(tmp_path: Path) -> None:
    command = [sys.executable, EXAMPLE, "--refreshes", "2", "--seed", "5"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    printed = re.findall(
        r"^(loaded|refresh 1 of 2|refresh 2 of 2): .*q3 10, q5 5,.*; equal to DuckDB's$", done.stdout, re.MULTILINE
    )
    assert printed == ["loaded", "refresh 1 of 2", "refresh 2 of 2"], done.stdout
    assert len(re.findall(r"^ *\d+ +\d+ +\d+\.\d{4} +199\d-\d\d-\d\d +0$", done.stdout, re.MULTILINE)) == 10
