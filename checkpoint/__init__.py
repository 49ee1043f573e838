"""Jobs, barriers and checkpoints: decisions about commits, and recovery from the catalog.

The public names are loaded at first use, like those of the package `epochlog`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from epochlog.lazy import lazily

if TYPE_CHECKING:  # repeats the names of _HOMES for type checkers
    from .manager.commands import CheckpointStatus, JobSettings, Report
    from .manager.job_graph import JobGraph, JobPlan, JobVertex
    from .manager.manager import CheckpointManager
    from .manager.task_registry import TaskState
    from .manager.unacked_reports import Outbox

_HOMES: dict[str, tuple[str, ...]] = {
    "manager.manager": ("CheckpointManager",),
    "manager.unacked_reports": ("Outbox",),
    "manager.commands": ("JobSettings", "CheckpointStatus", "Report"),
    "manager.job_graph": ("JobGraph", "JobPlan", "JobVertex"),
    "manager.task_registry": ("TaskState",),
}

__all__ = [
    "CheckpointManager",
    "JobSettings",
    "CheckpointStatus",
    "Report",
    "Outbox",
    "JobGraph",
    "JobPlan",
    "JobVertex",
    "TaskState",
]

__getattr__, __dir__ = lazily(globals(), _HOMES)
