"""Task registry: the actors of one job with their states, incarnations and connected components."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from epochlog.errors import CheckpointRejected, InvalidInput

from .checkpoint_plan import Edge, TaskState, Vertex, VertexStatus, check_restore, components, plan_checkpoint
from .commands import Actor, Start


@dataclass(slots=True)
class RegisteredTask:
    """Current state of an actor. incarnation 0: not attached."""

    state: TaskState = TaskState.INITIALIZING
    incarnation: int = 0
    waiting: bool = False  # attached, but not started yet
    finish_committed: bool = False
    """True if a commit records the actor as finished."""
    taken: int = 0  # the newest barrier id whose report of this incarnation was accepted
    ended: int = 0  # the newest incarnation that has ended

    @property
    def at_work(self) -> bool:
        return self.incarnation > 0 and not self.waiting and not self.finish_committed

    @property
    def newest_incarnation(self) -> int:
        """Return the newest incarnation, live or ended; 0 for none."""
        return self.incarnation or self.ended


class TaskRegistry:
    """Registry of the actors of one job. Call `renew` before any other method."""

    def __init__(self, job: str, vertices: Mapping[str, int], edges: Sequence[Edge], *, allow_finished: bool) -> None:
        self.job = job
        self.vertices = dict(vertices)
        self.edges = tuple(edges)
        self.allow_finished = allow_finished
        self.incarnation = 0
        self._attaches = 0
        self.tasks = {(vertex, index): RegisteredTask() for vertex, count in vertices.items() for index in range(count)}
        self._component = {actor: group for group in components(self._vertex_states(), self.edges) for actor in group}

    def renew(self, incarnation: int, finished: Collection[Actor]) -> dict[Actor, int]:
        """Begin a new incarnation of the job for all actors; return the incarnations that ended, by actor.

        Raises RestoreRejected if the finished actors contradict the edges, InvalidInput.
        """
        if incarnation <= self.incarnation:
            raise InvalidInput(
                f"job {self.job!r}: incarnation {incarnation} is not newer than {self.incarnation}; claim one first"
            )
        for actor in finished:
            self.require(actor)
        check_restore({vertex: self._status(vertex, frozenset(finished)) for vertex in self.vertices}, self.edges)
        attached = self.tasks.items() if self.incarnation else ()
        fenced = {actor: task.newest_incarnation for actor, task in attached if actor not in finished}
        self.incarnation, self._attaches = incarnation, 0
        for actor in self.tasks:
            has_finished = actor in finished
            state = TaskState.FINISHED if has_finished else TaskState.INITIALIZING
            self.tasks[actor] = RegisteredTask(
                state, finish_committed=has_finished, ended=self.tasks[actor].newest_incarnation
            )
        return fenced

    def close(self, state: TaskState) -> None:
        """Fence all actors that have not finished."""
        for actor, task in self.tasks.items():
            if not task.finish_committed:
                self.tasks[actor] = RegisteredTask(state, ended=task.newest_incarnation)

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

    def fence(self, lost: Collection[Actor]) -> dict[Actor, int]:
        """End the incarnations of these actors and of all running actors connected to them; return the ended ones."""
        connected = sorted(set().union(*(self._component[actor] for actor in lost)))
        ended = {
            actor: self.tasks[actor].incarnation
            for actor in connected
            if self.tasks[actor].at_work
            or (actor in lost and self.tasks[actor].waiting and not self.tasks[actor].finish_committed)
        }
        self.tasks.update({actor: RegisteredTask(ended=number) for actor, number in ended.items()})
        return ended

    def list_starts(self) -> list[Start]:
        """List a Start for each actor that may start: all actors of a component, once all are attached."""
        starts: list[Start] = []
        for actor, task in self.tasks.items():
            if not task.waiting:
                continue
            if task.finish_committed:
                task.waiting = False
                starts.append(Start(self.job, actor, task.incarnation, finished=True))
                continue
            unfinished = [peer for peer in sorted(self._component[actor]) if not self.tasks[peer].finish_committed]
            peers = {peer: self.tasks[peer].incarnation for peer in unfinished}
            if all(peers.values()):
                for peer in unfinished:
                    self.tasks[peer].waiting, self.tasks[peer].state = False, TaskState.RUNNING
                starts += [Start(self.job, peer, number, peers=peers) for peer, number in peers.items()]
        return starts

    # ---- finishing and planning ----------------------------------------------------------------------------------

    def mark_finished(self, actors: Iterable[Actor]) -> frozenset[Actor]:
        """Mark these actors as finished by a commit; return those that were not marked before."""
        newly = frozenset(actor for actor in actors if not self.tasks[actor].finish_committed)
        for actor in newly:
            self.tasks[actor].state, self.tasks[actor].finish_committed = TaskState.FINISHED, True
        return newly

    def whole_vertices(self, actors: Collection[Actor]) -> frozenset[str]:
        """Return the vertices whose subtasks are all among these actors."""
        return frozenset(
            vertex for vertex, count in self.vertices.items() if all((vertex, i) in actors for i in range(count))
        )

    @property
    def all_finished(self) -> bool:
        """Return True if a commit has recorded all actors as finished."""
        return all(task.finish_committed for task in self.tasks.values())

    def plan(self) -> tuple[Collection[Actor], Collection[Actor]]:
        """Return the actors to trigger and those that must report; raise CheckpointRejected.

        Both are empty if all actors have finished and their last segments are not committed yet.
        """
        if not self.all_finished and all(task.state is TaskState.FINISHED for task in self.tasks.values()):
            return (), ()
        plan = plan_checkpoint(self._vertex_states(), self.edges, allow_finished=self.allow_finished)
        return plan.trigger, plan.wait

    def rejection_reason(self) -> str | None:
        """Return the reason for which a checkpoint is rejected now, or None."""
        try:
            self.plan()
        except CheckpointRejected as error:
            return error.reason
        return None

    def _status(self, vertex: str, finished: Collection[Actor]) -> VertexStatus:
        ended = sum((vertex, index) in finished for index in range(self.vertices[vertex]))
        return "running" if not ended else "fully" if ended == self.vertices[vertex] else "partially"

    def _vertex_states(self) -> list[Vertex]:
        return [
            Vertex(vertex, [self.tasks[vertex, index].state for index in range(count)])
            for vertex, count in self.vertices.items()
        ]
