"""What a coordinator keeps of the loads and jobs that run at it, and of who is a part of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from . import control as wire
from . import decisions as to
from .control import Part
from .session import Session
from .tasks import Task


@dataclass(frozen=True, slots=True)
class CoordinatorSettings:
    """Times in ms. heartbeat_ms: how often each side is heard; timeout_ms: after how long a silent worker is lost, and
    one whose line was cut and that did not come back.
    """

    heartbeat_ms: int = 1_000
    timeout_ms: int = 10_000
    checkpoints: to.JobSettings = field(default_factory=to.JobSettings)


@dataclass(slots=True)
class Owner:
    """Who is a part: a worker, under an incarnation. lost_s: since when it has no line, None while it has one."""

    worker: str
    incarnation: int
    session: Session | None
    lost_s: float | None = None
    started: wire.Started | None = None


@dataclass(slots=True)
class Running:
    """A load or job that the manager knows."""

    task: Task
    parts: int
    kind: wire.Kind
    name: str
    news: bool = False
    inject: to.Inject | None = None
    retry_s: float = 0.1

    def part(self, actor: to.Actor) -> Part:
        return Part(self.kind, self.name, actor[1])


def key_of(part: Part) -> str:
    """The manager's name of the load or job."""
    return f"{part.kind}:{part.name}"


def actor_of(part: Part) -> to.Actor:
    return (part.name, part.number)
