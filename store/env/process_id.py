"""Identity of a process, by which another process of this machine can tell at once that it has died."""

from __future__ import annotations

import os
from pathlib import Path

_PROC = Path("/proc")


def identity() -> str:
    """Return this process's identity: boot id and pid namespace, pid, and start time in clock ticks."""
    return f"{_machine()} {os.getpid()} {_began(os.getpid())}"


def has_died(identity: str) -> bool:
    """Return True if the process is known to have ended: it ran on this machine and is gone. For a process of another
    machine return False.
    """
    machine, _, rest = identity.rpartition(" ")[0].rpartition(" ")
    pid, began = rest, identity.rpartition(" ")[2]
    return bool(machine) and machine == _machine() and pid.isdecimal() and _began(int(pid)) != began


def is_this(identity_: str) -> bool:
    """Return True if the identity is this process's; False where the system gives no identity."""
    return bool(_machine()) and identity_ == identity()


def _machine() -> str:
    """Return the boot id and the pid namespace; "" where the system hides them: no process counts as dead then."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.stat(_PROC / 'self/ns/pid').st_ino}"
    except OSError:
        return ""


def _began(pid: int) -> str:
    """Return the start time of a process, in clock ticks since boot; "" if there is none, or if it is a zombie."""
    try:
        state, *rest = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        return "" if state in "ZX" else rest[18]
    except (OSError, IndexError):
        return ""
