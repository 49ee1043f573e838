"""State of a coordinator: its running loads and jobs, and the workers that own their parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from epochlog.checkpoint import control_messages as wire
from epochlog.checkpoint.control_messages import PartName
from epochlog.checkpoint.manager import commands
from epochlog.errors import InvalidInput
from epochlog.store.env.log_events import DEFECT

from .managed_jobs import LookedAt, ManagedJob
from .worker_connection import WorkerConnection


@dataclass(frozen=True, slots=True)
class CoordinatorSettings:
    """Settings of a coordinator; times in ms."""

    heartbeat_ms: int = 1_000
    """Longest time between two messages of either side."""
    timeout_ms: int = 10_000
    """Time after which a silent worker is lost, and also a worker that was disconnected and has not reconnected."""
    checkpoints: commands.JobSettings = field(default_factory=commands.JobSettings)

    def __post_init__(self) -> None:
        times = (self.heartbeat_ms, self.timeout_ms)
        if not all(type(time) is int for time in times) or not 1 <= self.heartbeat_ms <= self.timeout_ms:
            raise InvalidInput(
                "heartbeat_ms and timeout_ms are whole numbers, 1 <= heartbeat_ms <= timeout_ms, not "
                f"{self.heartbeat_ms!r} and {self.timeout_ms!r}"
            )


@dataclass(slots=True)
class Owner:
    """Owner of a part: a worker under an incarnation.

    started, committed, aborted: the newest message of each kind that was sent to it; a disconnection may lose them.
    """

    worker: str
    incarnation: int
    connection: WorkerConnection | None
    lost_s: float | None = None
    """Monotonic time of its disconnection in seconds, or None."""
    started: wire.Started | None = None
    committed: wire.Committed | None = None
    aborted: wire.Aborted | None = None


@dataclass(slots=True)
class Running:
    """Load or job that is registered at the manager."""

    managed_job: ManagedJob
    parts: int
    kind: wire.Kind
    name: str
    has_changes: bool = False
    """True if a part may have something to commit."""
    inject: commands.Inject | None = None
    """Newest barrier that was sent to the parts."""
    unresolved: int = 0
    """Failed attempts to resolve a commit's outcome since the last successful commit."""
    commit_error: Exception | None = None
    """Error of the newest commit whose outcome was unknown."""

    @property
    def key(self) -> str:
        """Return its name at the manager."""
        return f"{self.kind}:{self.name}"

    @property
    def looked_at(self) -> LookedAt | None:
        """Return how to look at the job; None for a load."""
        return self.managed_job.looked_at

    def part(self, actor: commands.Actor) -> PartName:
        return PartName(self.kind, self.name, actor[1])


def key_of(part: PartName) -> str:
    """Return the name of the part's load or job at the manager."""
    return f"{part.kind}:{part.name}"


def actor_of(part: PartName) -> commands.Actor:
    """Return the manager's name of the part."""
    return (part.name, part.number)


def injected_message(inject: commands.Inject, actor: commands.Actor, part: PartName) -> wire.Injected:
    """Build the message that asks one target of an Inject to report for its barrier."""
    barrier, incarnation, taken = inject.barrier, inject.targets[actor], inject.taken.get(actor, 0)
    return wire.Injected(
        part, incarnation, inject.barrier_id, barrier.prev, barrier.curr, barrier.kind, taken, inject.drain
    )


def run_logged(function: Callable[..., Any], *args: Any) -> None:
    """Call the function; log an exception, so that the thread continues."""
    try:
        function(*args)
    except Exception as error:  # noqa: BLE001 (a defect; the thread continues)
        DEFECT.log(what=f"{getattr(function, '__name__', function)} of the coordinator", error=error)
