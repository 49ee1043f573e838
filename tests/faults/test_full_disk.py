"""A full disk: the write fails and says why, nothing is lost or half there, reads go on, and so do writes with room."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mounts import APART, can_mount

TESTS = Path(__file__).resolve().parents[1]

pytestmark = pytest.mark.local_only


def run(folder: Path, how: str, before: list[str]) -> None:
    """In a process apart, whose mounts end with it."""
    command = [*before, sys.executable, "-m", "faults.full_disk", str(folder), how]
    ended = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.slow
def test_a_small_disk_that_is_full(tmp_path: Path) -> None:
    if can_mount():
        run(tmp_path, "mount", APART)
    else:
        print("nothing can be mounted here: files of limited size stand in for a small disk")
        run(tmp_path, "limit", [])


@pytest.mark.medium
def test_files_that_may_grow_no_further(tmp_path: Path) -> None:
    run(tmp_path, "limit", [])
