"""File systems that a test mounts in a process of its own, whose mounts end with it."""

from __future__ import annotations

import os
import subprocess

APART = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--mount"]


def can_mount() -> bool:
    """Return True if this user may mount a file system in a process of its own."""
    try:
        command = [*APART, "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", "/tmp"]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False
