"""Task registry: the actors of one job with their states and incarnations."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum, unique

from epochlog.errors import InvalidInput

from .commands import Actor, Start

_MOST_NAMED = 3
"""Most actors that a message names."""


@unique
class TaskState(StrEnum):
    """State of an actor's life cycle."""

    INITIALIZING = "initializing"
    RUNNING = "running"
    ENDING = "ending"
    """Its data has ended, but its last report is not committed."""
    FINISHED = "finished"
    """A commit has recorded its last report."""
    FAILED = "failed"
    CANCELED = "canceled"


@dataclass(slots=True)
class RegisteredTask:
    """Current state of an actor."""

    state: TaskState = TaskState.INITIALIZING
    incarnation: int = 0
    """Its newest incarnation; 0 if none is attached."""
    waiting: bool = False
    """True if it is attached, but not started yet."""
    taken: int = 0
    """Newest barrier id whose report of this incarnation was accepted."""


class TaskRegistry:
    """Registry of the actors of one job."""

    def __init__(self, job: str, vertices: Mapping[str, int], incarnation: int, finished: Collection[Actor]) -> None:
        """Create the registry of an incarnation of the job; `finished` are its finished actors. Raises InvalidInput."""
        if incarnation < 1:
            raise InvalidInput(f"job {job!r}: incarnation {incarnation} is none; claim one in the catalog first")
        self.job = job
        self.vertices = dict(vertices)
        self.incarnation = incarnation
        self._attaches = 0
        self.tasks = {(vertex, index): RegisteredTask() for vertex, count in vertices.items() for index in range(count)}
        for actor in finished:
            self.require(actor).state = TaskState.FINISHED

    def close(self, state: TaskState) -> None:
        """Fence all actors that have not finished."""
        for actor, task in self.tasks.items():
            if task.state is not TaskState.FINISHED:
                self.tasks[actor] = RegisteredTask(state)

    def require(self, actor: Actor) -> RegisteredTask:
        """Return the actor's task; raise InvalidInput if the job has no such actor."""
        task = self.tasks.get(actor)
        if task is None:
            raise InvalidInput(f"job {self.job!r} has no actor {actor}; its vertices are {self.vertices}")
        return task

    def current(self, actor: Actor, incarnation: int) -> RegisteredTask | None:
        """Return the actor's task if it has that incarnation, else None."""
        task = self.tasks.get(actor)
        return task if task is not None and incarnation and task.incarnation == incarnation else None

    def live_incarnations(self, actors: Mapping[Actor, int]) -> dict[Actor, int]:
        """Select the incarnations that have not ended."""
        return {actor: number for actor, number in actors.items() if self.current(actor, number) is not None}

    def in_state(self, *states: TaskState) -> frozenset[Actor]:
        return frozenset(actor for actor, task in self.tasks.items() if task.state in states)

    # ---- incarnations --------------------------------------------------------------------------------------------

    def attach(self, actor: Actor) -> int:
        """Attach a new incarnation of the actor, which waits for its start, and return it."""
        self._attaches += 1
        task = self.require(actor)
        task.incarnation, task.waiting, task.taken = self.unique_number(self._attaches), True, 0
        return task.incarnation

    def unique_number(self, count: int) -> int:
        """Return a number that no earlier incarnation of the job has used. The numbers ascend."""
        return (self.incarnation << 32) + count

    def fence(self, lost: Iterable[Actor]) -> dict[Actor, int]:
        """End the incarnations of those of these actors that have not finished; return the ended ones, by actor."""
        ended = {
            actor: self.tasks[actor].incarnation
            for actor in lost
            if self.tasks[actor].incarnation and self.tasks[actor].state is not TaskState.FINISHED
        }
        self.tasks.update({actor: RegisteredTask() for actor in ended})
        return ended

    def list_starts(self) -> list[Start]:
        """Start each actor that waits for its start; return a Start for each."""
        waiting = [(actor, task) for actor, task in self.tasks.items() if task.waiting]
        for _, task in waiting:
            task.waiting = False
            if task.state is not TaskState.FINISHED:
                task.state = TaskState.RUNNING
        return [Start(self.job, actor, task.incarnation, task.state is TaskState.FINISHED) for actor, task in waiting]

    # ---- finishing and checkpoints -------------------------------------------------------------------------------

    def mark_finished(self, actors: Iterable[Actor]) -> frozenset[Actor]:
        """Mark these actors as finished by a commit; return those that were not marked before."""
        newly = frozenset(actors) - self.in_state(TaskState.FINISHED)
        for actor in newly:
            self.tasks[actor].state = TaskState.FINISHED
        return newly

    @property
    def all_finished(self) -> bool:
        """Return True if a commit has recorded all actors as finished."""
        return all(task.state is TaskState.FINISHED for task in self.tasks.values())

    def rejection_reason(self, *, allow_finished: bool) -> str | None:
        """Return the reason for which a running job takes no checkpoint now, or None.

        A checkpoint needs the report of every actor that has not finished.
        """
        for state, reason in (
            (TaskState.INITIALIZING, "does not run yet: a checkpoint needs every actor"),
            (None if allow_finished else TaskState.FINISHED, "has finished, and allow_finished is False"),
        ):
            actors = sorted(actor for actor, task in self.tasks.items() if task.state is state)
            if actors:
                named = ", ".join(f"{vertex}[{index}]" for vertex, index in actors[:_MOST_NAMED])
                others = f" and {len(actors) - _MOST_NAMED:,} more" if len(actors) > _MOST_NAMED else ""
                return f"{named}{others} {reason}"
        return None
