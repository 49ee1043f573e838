"""Deciding commits: boundaries become barriers, jobs commit their outputs at them, and a restart goes on from there.

Its public names are loaded when they are first used, as those of the package itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from epochlog.lazy import lazily

if TYPE_CHECKING:  # the same names as in _HOMES, for readers and type checkers
    from .manager.checkpoint_plan import CheckpointPlan, Edge, TaskState, Vertex, check_restore, plan_checkpoint
    from .manager.commands import CheckpointStatus, JobSettings, Report
    from .manager.manager import CheckpointManager
    from .manager.unacked_reports import Outbox

_HOMES: dict[str, tuple[str, ...]] = {
    "manager.manager": ("CheckpointManager",),
    "manager.unacked_reports": ("Outbox",),
    "manager.commands": ("JobSettings", "CheckpointStatus", "Report"),
    "manager.checkpoint_plan": ("CheckpointPlan", "Edge", "TaskState", "Vertex", "check_restore", "plan_checkpoint"),
}

__all__ = [
    "CheckpointManager",
    "JobSettings",
    "CheckpointStatus",
    "Report",
    "Outbox",
    "CheckpointPlan",
    "Edge",
    "TaskState",
    "Vertex",
    "check_restore",
    "plan_checkpoint",
]

__getattr__, __dir__ = lazily(globals(), _HOMES)
