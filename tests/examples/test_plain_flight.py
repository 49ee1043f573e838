"""The example of a plain Flight client runs as it is printed, and says what its text says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "plain_flight.py"
SAYS = """\
table orders ['id', 'cents']
a retry returns the first epoch: True
now [{'id': 1, 'cents': 500}, {'id': 3, 'cents': 900}]
[('upsert', 1, 500), ('upsert', 2, 700), ('upsert', 3, 900), ('delete', 2, None)]
[('delete', 2, 700)]
"""


@pytest.mark.medium
def test_it_runs_as_printed(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, EXAMPLE], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == SAYS


def test_its_client_knows_nothing_of_epochlog() -> None:
    client = EXAMPLE.read_text().partition("# ---- the client")[2].partition("\n# ------")[0]
    assert "def use" in client and "el." not in client and "epochlog" not in client
