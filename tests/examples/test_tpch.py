"""The example of TPC-H runs as it is printed: views by hand and in SQL both equal DuckDB's answers."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "tpch.py"


@pytest.mark.spark
@pytest.mark.long
def test_it_runs_as_printed(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    command = [sys.executable, EXAMPLE, "--refreshes", "1", "--seed", str(seed)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    printed = re.findall(r"^(loaded|refresh 1 of 1): .*q3 10, q5 5,.*; equal to DuckDB's$", done.stdout, re.MULTILINE)
    assert printed == ["loaded", "refresh 1 of 1"], done.stdout
    assert len(re.findall(r"^ *\d+ +\d+ +\d+\.\d{4} +199\d-\d\d-\d\d +0$", done.stdout, re.MULTILINE)) == 10
