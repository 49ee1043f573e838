"""Memory that this process may still take, as the system and its control group tell."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

MEMINFO = Path("/proc/meminfo")
GROUP = Path("/sys/fs/cgroup")


def available_bytes(meminfo: Path = MEMINFO, group: Path = GROUP) -> int | None:
    """Return the bytes that the system has available, at most those that the control group (v2) leaves; None if neither
    is known.
    """
    known: list[int] = []
    with suppress(OSError, ValueError, StopIteration):
        line = next(line for line in meminfo.read_text().splitlines() if line.startswith("MemAvailable:"))
        known.append(int(line.split()[1]) * 1024)
    with suppress(OSError, ValueError):  # "max": no limit
        limit = int((group / "memory.max").read_text())
        known.append(max(0, limit - int((group / "memory.current").read_text())))
    return min(known, default=None)
