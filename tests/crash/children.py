"""Starts this library in processes of its own, to be killed; they say on standard output what they have done."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


@contextmanager
def child(program: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A module of this folder run with arguments; killed at the end if it still lives."""
    command = [sys.executable, "-u", "-m", f"crash.{program}", *map(str, arguments)]
    process = subprocess.Popen(command, cwd=TESTS, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def lines(process: subprocess.Popen[str], count: int) -> list[str]:
    """The next lines that the process says; fewer when it ends."""
    assert process.stdout is not None
    return [line.strip() for line in (process.stdout.readline() for _ in range(count)) if line]
