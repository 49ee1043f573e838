"""The example of a staged join runs as it is printed, and its result is DuckDB's, whoever is killed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "staged_join.py"
pytestmark = [
    pytest.mark.local_only, pytest.mark.slow, pytest.mark.redis, pytest.mark.usefixtures("redis_on_path"),
]  # fmt: skip


def run(folder: Path, *options: str) -> str:
    command = [sys.executable, str(EXAMPLE), "--flights", "20000", *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("the result equals DuckDB's\n")
    assert "rows were collected" in done.stdout
    return done.stdout


def test_it_runs_as_printed(tmp_path: Path) -> None:
    printed = run(tmp_path)
    assert "killed: producer 0x, consumer 0x, server 0x, redis 0x" in printed
    assert re.findall(r"^(\S+) +(\d+)x$", printed, re.MULTILINE) == [
        (name, "1") for name in ("airlines", "planes", "airports", "flights", "join-0", "join-1", "join-2", "result")
    ]


def test_it_runs_as_printed_while_processes_are_killed(tmp_path: Path) -> None:
    printed = run(tmp_path, "--chaos", "7")
    counts = re.findall(r"(producer|consumer|server|redis) (\d+)x", printed)
    assert len(counts) == 4 and sum(int(times) for _, times in counts) >= 2, printed
    starts = sum(int(times) for times in re.findall(r"^\S+ +(\d+)x$", printed, re.MULTILINE))
    killed = {kind: int(times) for kind, times in counts}
    assert starts == 8 + killed["producer"] + killed["consumer"]
