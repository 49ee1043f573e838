"""Deciding commits: boundaries become barriers, jobs commit their outputs at them, and a restart goes on from there.

Its public names are loaded when they are first used, as those of the package itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazily

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

__getattr__, __dir__ = lazily(globals(), _HOMES)
