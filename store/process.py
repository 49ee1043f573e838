"""Who a process is, so that another one can tell that it has died without waiting for its lease to end."""

from __future__ import annotations

import os
from pathlib import Path

_PROC = Path("/proc")


def identity() -> str:
    """This process: the machine's start, the space of process ids, the id, and when the process began."""
    return f"{_machine()} {os.getpid()} {_began(os.getpid())}"


def has_died(identity: str) -> bool:
    """Whether that process is known to have ended: a process of this machine that is not there any more. Of another
    machine nobody knows.
    """
    machine, _, rest = identity.rpartition(" ")[0].rpartition(" ")
    pid, began = rest, identity.rpartition(" ")[2]
    return bool(machine) and machine == _machine() and pid.isdecimal() and _began(int(pid)) != began


def is_this(identity_: str) -> bool:
    """Whether that is this process; False where the system tells no process apart."""
    return bool(_machine()) and identity_ == identity()


def _machine() -> str:
    """ "" where the system does not tell; then no process is known to have died."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.stat(_PROC / 'self/ns/pid').st_ino}"
    except OSError:
        return ""


def _began(pid: int) -> str:
    """When the process began, in ticks since the machine did; "" if there is none, or its parent has not taken note of
    its end yet.
    """
    try:
        state, *rest = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        return "" if state in "ZX" else rest[18]
    except (OSError, IndexError):
        return ""
