"""Identity of a process. Another process of this machine detects by it at once that the process has died."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

_PROC = Path("/proc")


def identity() -> str:
    """Return this process's identity: boot id and pid namespace, pid, and start time in clock ticks.

    It begins with a space if the system hides one of these, or cannot tell it now; nobody takes that process for dead.
    """
    try:
        return _own_identity()
    except OSError:
        return f" {os.getpid()} "


@cache
def _own_identity() -> str:
    """Return the identity of this process, which never changes. Raises OSError."""
    return f"{_read_machine()} {os.getpid()} {_read_start_ticks(os.getpid())}"


os.register_at_fork(after_in_child=_own_identity.cache_clear)


def has_died(identity: str) -> bool:
    """Return True if the process ran on this machine and has ended; False for a process of another machine, and if the
    system cannot tell.
    """
    machine, _, pid = identity.rpartition(" ")[0].rpartition(" ")
    start = identity.rpartition(" ")[2]
    try:
        return bool(machine) and machine == _read_machine() and pid.isdecimal() and _read_start_ticks(int(pid)) != start
    except OSError:
        return False


def is_this(identity_: str) -> bool:
    """Return True if the identity is that of this process; False if the system hides the boot id."""
    return identity_ == identity() and not identity_.startswith(" ")


def _read_machine() -> str:
    """Return the boot id and the pid namespace. Raises OSError if the system hides them."""
    boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{os.stat(_PROC / 'self/ns/pid').st_ino}"


def _read_start_ticks(pid: int) -> str:
    """Return the start time of a process, in clock ticks since boot; "" for a missing process or a zombie. Raises
    OSError if the system cannot tell, as for a caller that has no descriptor left.
    """
    try:
        state, *fields = (_PROC / str(pid) / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return "" if state in "ZX" else fields[18]
