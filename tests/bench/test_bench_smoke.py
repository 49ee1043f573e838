"""`make bench-quick`, as it is: every contender returns the right rows and every table is made; no figure is judged."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from report import whole

ROOT = Path(__file__).parents[2]


def command() -> list[str]:
    """Return the Makefile's command for `bench-quick`, run by this interpreter."""
    printed = subprocess.run(["make", "-n", "bench-quick"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    (line,) = (line for line in printed.splitlines() if "--quick" in line)
    return [sys.executable, *shlex.split(line)[1:]]


@pytest.mark.spark
@pytest.mark.long
def test_a_quick_run_makes_every_row_of_every_table_and_its_report(tmp_path: Path) -> None:
    report, results = tmp_path / "PERFORMANCE.md", tmp_path / "figures.json"
    # in a worker of xdist the benchmark plugin would take this run for one of its own and keep no samples
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    done = subprocess.run(
        [*command(), f"--report={report}", f"--results={results}", "-p", "no:cacheprovider"],
        cwd=ROOT, capture_output=True, text=True, check=False, env=env,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    results_json, text = json.loads(results.read_text()), report.read_text()
    assert results_json["missing"] == [] and results_json["failures"] == {}
    kinds = {(figure["shape"], figure["id"]) for figure in results_json["figures"]}
    assert kinds == whole(0.1).keys()
    assert "no figures of record" in text and "`make bench-quick`" in text
    for plot in ("growth", "amplification"):
        assert (
            f"(performance/{plot}.png)" in text and (tmp_path / "performance" / f"{plot}.png").stat().st_size < 60_000
        )
