"""The benchmarks of the store run, at a tiny size, and write their report; no figure is judged here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run_bench(*options: str) -> subprocess.CompletedProcess[str]:
    on_spark = ("bench_spark", "bench_tpch")
    files = sorted(str(path) for path in (ROOT / "bench").glob("bench_*.py") if not path.stem.startswith(on_spark))
    command = [sys.executable, "-m", "pytest", "-q", *files, "-p", "no:xdist", "-p", "no:cacheprovider"]
    # in a worker of xdist the benchmark plugin would take this run for one of its own and keep no samples
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    return subprocess.run(
        [*command, "-o", "python_files=bench_*.py", "--scale=0.001", *options],
        cwd=ROOT, capture_output=True, text=True, check=False, env=env,
    )  # fmt: skip


@pytest.mark.slow
def test_every_contender_returns_the_same_rows_and_the_report_is_written_between_its_markers(tmp_path: Path) -> None:
    report = tmp_path / "PERFORMANCE.md"
    report.write_text("before\n<!-- figures: begin -->\nold\n<!-- figures: end -->\nafter\n")
    done = run_bench(
        f"--report={report}", f"--results={tmp_path / 'figures.json'}", f"--benchmark-json={tmp_path / 'samples.json'}"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    text = report.read_text()
    assert text.startswith("before\n<!-- figures: begin -->\n| |") and text.endswith("<!-- figures: end -->\nafter\n")
    assert "old" not in text and "no figures of record" in text
    assert all(f"| P{figure} |" in text for figure in (1, 2, 3, 4, 5, 8, 9, 10, 11, 12, 13, 14, 15, 16))
    assert '"test_store[durable commit of 20,000 upserts-epochlog]"' in (tmp_path / "samples.json").read_text()
