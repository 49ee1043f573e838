"""Deciding commits: boundaries become barriers, jobs commit their outputs at them, and a restart goes on from there.

Its public names are loaded when they are first used, as those of the package itself.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the same names as in _HOMES, for readers and type checkers
    from .decisions import JobSettings, JobStatus, Report
    from .manager import CheckpointManager
    from .outbox import Outbox
    from .plan import CheckpointPlan, Edge, TaskState, Vertex, check_restore, plan_checkpoint

_HOMES: dict[str, tuple[str, ...]] = {
    "manager": ("CheckpointManager",),
    "outbox": ("Outbox",),
    "decisions": ("JobSettings", "JobStatus", "Report"),
    "plan": ("CheckpointPlan", "Edge", "TaskState", "Vertex", "check_restore", "plan_checkpoint"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "CheckpointManager",
    "JobSettings",
    "JobStatus",
    "Report",
    "Outbox",
    "CheckpointPlan",
    "Edge",
    "TaskState",
    "Vertex",
    "check_restore",
    "plan_checkpoint",
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME_OF})
