"""The actors of one job: who is attached, at work, ended or finished, and who starts and rolls back with whom."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from epochlog.errors import CheckpointRejected, InvalidInput

from .checkpoint_plan import Edge, TaskState, Vertex, components, plan_checkpoint
from .commands import Actor, Start


@dataclass(slots=True)
class RegisteredTask:
    """An actor as of now. incarnation 0: nobody is attached. flagged: a commit says that it has finished."""

    state: TaskState = TaskState.INITIALIZING
    incarnation: int = 0
    waiting: bool = False  # attached, and not told to start yet
    flagged: bool = False
    taken: int = 0  # the newest barrier of which this incarnation's report was taken
    ended: int = 0  # the newest incarnation that has ended

    @property
    def at_work(self) -> bool:
        return self.incarnation > 0 and not self.waiting and not self.flagged

    @property
    def newest(self) -> int:
        """Return the newest incarnation there was; 0: none."""
        return self.incarnation or self.ended


class TaskRegistry:
    """The actors of one job. `renew` makes it usable."""

    def __init__(self, job: str, vertices: Mapping[str, int], edges: Sequence[Edge], *, allow_finished: bool) -> None:
        self.job = job
        self.vertices = dict(vertices)
        self.edges = tuple(edges)
        self.allow_finished = allow_finished
        self.incarnation = 0
        self._attaches = 0
        self.tasks = {(vertex, index): RegisteredTask() for vertex, count in vertices.items() for index in range(count)}
        self._component = {actor: group for group in components(self._shape(), self.edges) for actor in group}

    def renew(self, incarnation: int, finished: Collection[Actor]) -> dict[Actor, int]:
        """Begin a new incarnation of the job for all actors; return the incarnations that ended, by actor."""
        if incarnation <= self.incarnation:
            raise InvalidInput(
                f"job {self.job!r}: incarnation {incarnation} is not newer than {self.incarnation}; claim one first"
            )
        for actor in finished:
            self.require(actor)
        fenced = {actor: task.newest for actor, task in self.tasks.items() if actor not in finished}
        if not self.incarnation:
            fenced = {}
        self.incarnation, self._attaches = incarnation, 0
        for actor in self.tasks:
            over = actor in finished
            state = TaskState.FINISHED if over else TaskState.INITIALIZING
            self.tasks[actor] = RegisteredTask(state, flagged=over, ended=self.tasks[actor].newest)
        return fenced

    def close(self, state: TaskState) -> None:
        """Fences everyone who has not finished."""
        for actor, task in self.tasks.items():
            if not task.flagged:
                self.tasks[actor] = RegisteredTask(state, ended=task.newest)

    def require(self, actor: Actor) -> RegisteredTask:
        """Raises InvalidInput for an actor that the job does not have."""
        task = self.tasks.get(actor)
        if task is None:
            raise InvalidInput(f"job {self.job!r} has no actor {actor}; its vertices are {self.vertices}")
        return task

    def current(self, actor: Actor, incarnation: int) -> RegisteredTask | None:
        """Return the task, if that is its incarnation."""
        task = self.tasks.get(actor)
        return task if task is not None and incarnation and task.incarnation == incarnation else None

    def still(self, actors: Mapping[Actor, int]) -> dict[Actor, int]:
        """Select the incarnations that have not ended."""
        return {actor: number for actor, number in actors.items() if self.current(actor, number) is not None}

    def in_state(self, *states: TaskState) -> frozenset[Actor]:
        return frozenset(actor for actor, task in self.tasks.items() if task.state in states)

    # ---- coming and going ----------------------------------------------------------------------------------------

    def attach(self, actor: Actor) -> int:
        """Make a new incarnation of the actor, which waits for its start."""
        self._attaches += 1
        task = self.require(actor)
        task.incarnation, task.waiting, task.taken = self.fresh(self._attaches), True, 0
        return task.incarnation

    def fresh(self, count: int) -> int:
        """Return a number that no earlier incarnation of the job can have given; numbers rise."""
        return (self.incarnation << 32) + count

    def fence(self, lost: Collection[Actor]) -> dict[Actor, int]:
        """Ends the incarnations of these actors and of all at work that are connected to them; returns those."""
        connected = sorted(set().union(*(self._component[actor] for actor in lost)))
        hit = {
            actor: self.tasks[actor].incarnation
            for actor in connected
            if self.tasks[actor].at_work
            or (actor in lost and self.tasks[actor].waiting and not self.tasks[actor].flagged)
        }
        self.tasks.update({actor: RegisteredTask(ended=number) for actor, number in hit.items()})
        return hit

    def starts(self) -> list[Start]:
        """List a Start for each actor that may start: the actors of a component together, when all are attached."""
        out: list[Start] = []
        for actor, task in self.tasks.items():
            if not task.waiting:
                continue
            if task.flagged:
                task.waiting = False
                out.append(Start(self.job, actor, task.incarnation, finished=True))
                continue
            mates = [mate for mate in sorted(self._component[actor]) if not self.tasks[mate].flagged]
            peers = {mate: self.tasks[mate].incarnation for mate in mates}
            if all(peers.values()):
                for mate in mates:
                    self.tasks[mate].waiting, self.tasks[mate].state = False, TaskState.RUNNING
                out += [Start(self.job, mate, number, peers=peers) for mate, number in peers.items()]
        return out

    # ---- finishing and planning ----------------------------------------------------------------------------------

    def flag(self, actors: Iterable[Actor]) -> frozenset[Actor]:
        """Mark these actors as finished by a commit; return those that were not marked before."""
        newly = frozenset(actor for actor in actors if not self.tasks[actor].flagged)
        for actor in newly:
            self.tasks[actor].state, self.tasks[actor].flagged = TaskState.FINISHED, True
        return newly

    def whole_vertices(self, actors: Collection[Actor]) -> frozenset[str]:
        """Return the vertices of which all subtasks are among these."""
        return frozenset(
            vertex for vertex, count in self.vertices.items() if all((vertex, i) in actors for i in range(count))
        )

    @property
    def over(self) -> bool:
        """Return True if all actors have finished, and a commit has recorded it."""
        return all(task.flagged for task in self.tasks.values())

    def plan(self) -> tuple[Collection[Actor], Collection[Actor]]:
        """Return the actors that are triggered and those that must report; raise CheckpointRejected.

        Both are empty when all actors have finished and a commit has yet to take what they left.
        """
        if not self.over and all(task.state is TaskState.FINISHED for task in self.tasks.values()):
            return (), ()
        plan = plan_checkpoint(self._shape(), self.edges, allow_finished=self.allow_finished)
        return plan.trigger, plan.wait

    def hindrance(self) -> str | None:
        """Return the reason that rules out a checkpoint now, or None."""
        try:
            self.plan()
        except CheckpointRejected as error:
            return error.reason
        return None

    def _shape(self) -> list[Vertex]:
        return [
            Vertex(vertex, [self.tasks[vertex, index].state for index in range(count)])
            for vertex, count in self.vertices.items()
        ]
