"""Stacks of all threads of a test and of its JVMs, for a wait that found no end."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from pathlib import Path


def dump_stacks() -> None:
    """Print the stacks of all threads of this process to its stderr, and let its JVMs print theirs to their stdout."""
    faulthandler.dump_traceback(sys.__stderr__ or 2, all_threads=True)
    for jvm in _jvms():
        os.kill(jvm, signal.SIGQUIT)  # a JVM prints its threads, and goes on


def _jvms() -> list[int]:
    """Return the ids of the JVMs among the children of this process."""
    children = (task.read_text().split() for task in Path("/proc/self/task").glob("*/children"))
    return [int(child) for ids in children for child in ids if _command(int(child)) == "java"]


def _command(process: int) -> str:
    try:
        return Path(f"/proc/{process}/comm").read_text().strip()
    except OSError:  # it has ended
        return ""
