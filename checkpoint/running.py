"""What a coordinator keeps of the loads and jobs that run at it, and of who is a part of them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..errors import InvalidInput
from . import control as wire
from . import decisions as to
from .control import Part
from .session import Session
from .tasks import Task

_log = logging.getLogger("epochlog")


@dataclass(frozen=True, slots=True)
class CoordinatorSettings:
    """Times in ms. heartbeat_ms: how often each side is heard; timeout_ms: after how long a silent worker is lost, and
    one whose line was cut and that did not come back.
    """

    heartbeat_ms: int = 1_000
    timeout_ms: int = 10_000
    checkpoints: to.JobSettings = field(default_factory=to.JobSettings)

    def __post_init__(self) -> None:
        times = (self.heartbeat_ms, self.timeout_ms)
        if not all(type(time) is int for time in times) or not 1 <= self.heartbeat_ms <= self.timeout_ms:
            raise InvalidInput(
                "heartbeat_ms and timeout_ms are whole numbers, 1 <= heartbeat_ms <= timeout_ms, not "
                f"{self.heartbeat_ms!r} and {self.timeout_ms!r}"
            )


@dataclass(slots=True)
class Owner:
    """Who is a part: a worker, under an incarnation. lost_s: since when it has no line, None while it has one.

    started, committed, aborted: the newest of each that it was to be told; a line that was cut may have lost them.
    """

    worker: str
    incarnation: int
    session: Session | None
    lost_s: float | None = None
    started: wire.Started | None = None
    committed: wire.Committed | None = None
    aborted: wire.Aborted | None = None


@dataclass(slots=True)
class Running:
    """A load or job that the manager knows.

    unresolved: how often the outcome of a commit could not be found out since the last commit that landed.
    """

    task: Task
    parts: int
    kind: wire.Kind
    name: str
    news: bool = False
    inject: to.Inject | None = None
    unresolved: int = 0

    def part(self, actor: to.Actor) -> Part:
        return Part(self.kind, self.name, actor[1])


def key_of(part: Part) -> str:
    """The manager's name of the load or job."""
    return f"{part.kind}:{part.name}"


def actor_of(part: Part) -> to.Actor:
    return (part.name, part.number)


def injected(inject: to.Inject, actor: to.Actor, part: Part) -> wire.Injected:
    """What one of its targets is told of a barrier."""
    barrier, incarnation, taken = inject.barrier, inject.targets[actor], inject.taken.get(actor, 0)
    return wire.Injected(
        part, incarnation, inject.barrier_id, barrier.prev, barrier.curr, barrier.kind, taken, inject.drain
    )


def logged(work: Callable[..., Any], *given: Any) -> None:
    """Do it; what it raises is a defect, and goes to the log: the thread has more to do."""
    try:
        work(*given)
    except Exception:  # noqa: BLE001 (a defect; the thread goes on)
        _log.exception("the coordinator failed at %s", getattr(work, "__name__", work))
