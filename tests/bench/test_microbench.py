"""`make microbench`: pytest-benchmark times each core operation beside the record, and writes a record of few lines."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from core_operations import OPERATIONS

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "bench" / "of_record" / "micro.json"
BRIEF = ("--benchmark-max-time=0.001", "--benchmark-min-rounds=1", "-p", "no:cacheprovider")


def run(*options: str, make: tuple[str, ...] = ()) -> str:
    """Run the Makefile's command for `microbench` with further options; return its output."""
    dry = ["make", "-n", "microbench", *make]
    printed = subprocess.run(dry, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    (line,) = (line for line in printed.replace("\\\n", " ").splitlines() if "microbench.py" in line)
    # in a worker of xdist the plugin would take this run for one of its own and keep no samples
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    done = subprocess.run(
        [sys.executable, *shlex.split(line)[1:], *BRIEF, *options],
        cwd=ROOT, capture_output=True, text=True, check=False, env=env,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def by_name(record: Path) -> dict[str, dict[str, float]]:
    return {each["param"]: each["stats"] for each in json.loads(record.read_text("utf-8"))["benchmarks"]}


@pytest.mark.local_only
@pytest.mark.slow
def test_each_operation_is_timed_beside_its_record(tmp_path: Path) -> None:
    assert by_name(RECORD).keys() == OPERATIONS.keys()
    new = tmp_path / "micro.json"
    printed = run(f"--benchmark-json={new}")
    for name in OPERATIONS:
        assert f"test_call[{name}] (NOW)" in printed and f"test_call[{name}] (bench/of_record/micro)" in printed
    written = json.loads(new.read_text("utf-8"))
    assert by_name(new).keys() == OPERATIONS.keys() and set(written["commit_info"]) == {"id"}
    assert set(written["machine_info"]) == {"Machine", "Versions"}
    assert all("data" not in stats and stats["rounds"] >= 1 and stats["min"] > 0 for stats in by_name(new).values())


@pytest.mark.local_only
@pytest.mark.slow
def test_a_run_to_keep_writes_the_record(tmp_path: Path) -> None:
    before, new = RECORD.read_bytes(), tmp_path / "micro.json"
    run(f"--benchmark-json={new}", "-k", "get", make=("KEEP=1",))  # the last of two options counts
    assert RECORD.read_bytes() == before and by_name(new).keys() == {"get", "get_1000"}
