"""The README keeps its word: the two commands come first, and the example runs as it is printed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text("utf-8")


def test_the_first_lines_are_the_two_commands() -> None:
    assert [line.strip() for line in README.splitlines()[:2]] == ["make demo", "make test"]


def test_the_example_runs_as_printed(tmp_path: Path) -> None:
    (example,) = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    check = "    print('SUMS', dict(zip(*moment['revenue'].to_arrow().to_pydict().values())))\n"
    done = subprocess.run(
        [sys.executable, "-c", example + check], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "SUMS {'mon': 500, 'tue': 700}" in done.stdout


def test_every_make_command_it_names_exists() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for text in (README, (ROOT / "CONTRIBUTING.md").read_text("utf-8")):
        for target in re.findall(r"(?:`|    )make ([a-z]+)", text):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
