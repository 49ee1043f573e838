"""The example of a live view runs as it is printed, and says what its text says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "live_view.py"


@pytest.mark.spark
@pytest.mark.long
def test_it_runs_as_printed(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, EXAMPLE], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("the screen's frame is the view: True\n")
    committed = [int(epoch) for epoch in re.findall(r"^spark committed the view at (\d+): ", done.stdout, re.MULTILINE)]
    seen = re.findall(r"^  screen at (\d+), after 1 x (\S+): (.*)$|^  screen at (\d+), ", done.stdout, re.MULTILINE)
    epochs = [int(first or last) for first, _, _, last in seen]
    assert len(committed) == 5 and epochs == committed[-len(epochs) :], "each commit from the one it began with"
    assert seen[-1][1:3] == ("upsert", "tue 14.00 (3), wed 25.00 (1)")
