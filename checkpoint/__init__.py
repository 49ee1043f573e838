"""Deciding commits: boundaries become barriers, jobs commit their outputs at them, and a restart goes on from there.

Its public names are loaded when they are first used, as those of the package itself.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the same names as in _HOMES, for readers and type checkers
    from .decisions import JobSettings, JobStatus, Report
    from .manager import CheckpointManager

_HOMES = {
    "CheckpointManager": "manager",
    "JobSettings": "decisions",
    "JobStatus": "decisions",
    "Report": "decisions",
}

__all__ = ["CheckpointManager", "JobSettings", "JobStatus", "Report"]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value
