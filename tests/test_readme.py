"""Order of the README: name, sentence, picture, commands, a view; and the example runs as it is printed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text("utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def test_the_name_a_sentence_a_picture_and_the_commands_come_first() -> None:
    name, sentence, picture, commands = README.split("\n\n")[:4]
    assert name == "# epochlog"
    assert re.fullmatch(r"[^.\n]+\.", sentence)
    (image,) = re.findall(r"^!\[[^\]]+\]\((.+)\)$", picture)
    assert (ROOT / image).is_file()
    assert [line.strip() for line in commands.splitlines()] == ["make demo", "make test"]


def test_the_view_has_at_most_fifteen_lines_and_stands_before_all_headings() -> None:
    (example,) = EXAMPLES
    assert sum(bool(line.strip()) for line in example.splitlines()) <= 15
    assert README.index(example) < README.index("\n## ")


@pytest.mark.medium
def test_the_example_runs_as_printed(tmp_path: Path) -> None:
    (example,) = EXAMPLES
    check = "    print('SUMS', dict(zip(*moment['revenue'].to_arrow().to_pydict().values())))\n"
    done = subprocess.run(
        [sys.executable, "-c", example + check], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "SUMS {'mon': 500, 'tue': 700}" in done.stdout


def test_every_make_command_it_names_exists() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for text in (README, (ROOT / "CONTRIBUTING.md").read_text("utf-8")):
        for target in re.findall(r"(?:`|    )make ([a-z-]+)", text):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
