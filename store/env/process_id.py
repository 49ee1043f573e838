"""Identity of a process. Another process of this machine detects by it at once that the process has died."""

from __future__ import annotations

import os
from pathlib import Path

_PROC = Path("/proc")


def identity() -> str:
    """Return this process's identity: boot id and pid namespace, pid, and start time in clock ticks."""
    return f"{_machine()} {os.getpid()} {_start_ticks(os.getpid())}"


def has_died(identity: str) -> bool:
    """Return True if the process ran on this machine and has ended; False for a process of another machine."""
    machine, _, pid = identity.rpartition(" ")[0].rpartition(" ")
    start = identity.rpartition(" ")[2]
    return bool(machine) and machine == _machine() and pid.isdecimal() and _start_ticks(int(pid)) != start


def is_this(identity_: str) -> bool:
    """Return True if the identity is that of this process; False if the system hides the boot id."""
    return bool(_machine()) and identity_ == identity()


def _machine() -> str:
    """Return the boot id and the pid namespace; "" if the system hides them. No process counts as dead then."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.stat(_PROC / 'self/ns/pid').st_ino}"
    except OSError:
        return ""


def _start_ticks(pid: int) -> str:
    """Return the start time of a process, in clock ticks since boot; "" for a missing process or a zombie."""
    try:
        state, *fields = (_PROC / str(pid) / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        return "" if state in "ZX" else fields[18]
    except (OSError, IndexError):
        return ""
