"""Plan of a checkpoint in which some tasks have finished, and the check of finished states before a restore.

Pure functions over a graph of vertices, each of parallel tasks; the rules are those of Flink's FLIP-147:

- every task that has not finished must report; a task is triggered when it has not finished and all it reads from has
  (so sources always, and whoever became one); the rest get the barrier from those;
- only FINISHED is finished: a task that is ENDING still owes its last report;
- a vertex is fully finished when all its tasks are.

The tasks of an edge are never paired up: one running producer of an "all" edge holds every consumer back, and a
pointwise consumer reads a range of producers. The work is linear in tasks and edges.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum, unique
from itertools import accumulate, compress, count, repeat
from typing import Literal, get_args

from epochlog.errors import CheckpointRejected, InvalidInput, RestoreRejected

Pattern = Literal["all", "pointwise"]
VertexStatus = Literal["running", "partially", "fully"]
"""How much of a vertex (or of one operator in it) had finished: no task, some, all."""

Task = tuple[str, int]
"""(vertex name, subtask index)."""

_NAMED = 3  # how many tasks a message names


@unique
class TaskState(StrEnum):
    """State of a task's life cycle."""

    INITIALIZING = "initializing"
    RUNNING = "running"
    ENDING = "ending"  # its data has ended, and the commit that takes the last of it has not come yet
    FINISHED = "finished"
    FAILED = "failed"
    CANCELED = "canceled"


@dataclass(frozen=True, slots=True)
class Vertex:
    """The parallel tasks of one step of a job; `states` has one state for each, by subtask index.

    Raises InvalidInput for a vertex without tasks.
    """

    name: str
    states: Sequence[TaskState]

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise InvalidInput(f"a vertex needs a name, not {self.name!r}")
        states = () if isinstance(self.states, str) else tuple(self.states)
        object.__setattr__(self, "states", states)
        if not states:
            raise InvalidInput(f"vertex {self.name!r} has no tasks; give one TaskState for each of its subtasks")
        wrong = next((state for state in states if not isinstance(state, TaskState)), None)
        if wrong is not None:
            raise InvalidInput(f"vertex {self.name!r} has a task in state {wrong!r}; states are those of TaskState")


@dataclass(frozen=True, slots=True)
class Edge:
    """`consumer` reads what `producer` makes: each of its tasks all of it ("all"), or a share ("pointwise").

    With M producers and N consumers, pointwise consumer i reads the producers [i*M//N, (i+1)*M//N) when M >= N, else
    producer i*M//N. Raises InvalidInput for another pattern.
    """

    producer: str
    consumer: str
    pattern: Pattern

    def __post_init__(self) -> None:
        if self.pattern not in get_args(Pattern):
            raise InvalidInput(
                f'the edge {self.producer!r} to {self.consumer!r} is {self.pattern!r}; edges are "all" or "pointwise"'
            )


@dataclass(frozen=True, slots=True)
class CheckpointPlan:
    """Tasks as (vertex name, subtask index): whom to trigger, whose report to wait for, who has finished."""

    trigger: frozenset[Task]
    wait: frozenset[Task]
    finished: frozenset[Task]
    fully_finished: frozenset[str]  # vertices


def plan_checkpoint(
    vertices: Iterable[Vertex], edges: Iterable[Edge] = (), *, allow_finished: bool = True
) -> CheckpointPlan:
    """Plan the next checkpoint of a job with tasks in these states; the order of vertices and edges does not matter.

    Raises CheckpointRejected(reason) when a task has failed or was canceled, or does not run yet; when a task has
    finished and allow_finished is False; when all have finished, since the job is done then and nobody is left to
    report. Raises InvalidInput for names used twice, edges to unknown vertices, and cycles.
    """
    graph = _by_name(vertices)
    edges = tuple(edges)
    _check_graph(graph, edges)
    _check_states(graph.values(), allow_finished=allow_finished)
    unfinished = {name: [state is not TaskState.FINISHED for state in vertex.states] for name, vertex in graph.items()}
    held_back = _held_back(unfinished, edges)
    wait = _tasks_where(unfinished)
    if not wait:
        raise CheckpointRejected("every task has finished: the job is done, there is nothing left to commit")
    trigger = frozenset(task for task in wait if not held_back[task[0]][task[1]])
    assert trigger, "a graph without cycles has a first task that has not finished"
    finished = _tasks_where({name: [not flag for flag in flags] for name, flags in unfinished.items()})
    return CheckpointPlan(
        trigger, wait, finished, frozenset(name for name, flags in unfinished.items() if not any(flags))
    )


def check_restore(statuses: Mapping[str, VertexStatus | Sequence[VertexStatus]], edges: Iterable[Edge] = ()) -> None:
    """Check that recorded states fit together in this graph: a finished task has no running producer.

    A vertex's status is one of "running", "partially", "fully", or a list with the status of each of its operators.
    Raises RestoreRejected, naming the vertices, when the operators of one vertex differ; when a fully finished vertex
    reads from one that is not; when a partially finished vertex reads "all" of one that is not fully finished, or
    pointwise from one of which nothing has finished. Raises InvalidInput for bad statuses and graphs.
    """
    edges = tuple(edges)
    one = {name: _status(name, given) for name, given in statuses.items()}
    _check_graph(one, edges)
    for edge in edges:
        before, after = one[edge.producer], one[edge.consumer]
        names = f"vertex {edge.consumer!r} has {_SAID[after]}, and {edge.producer!r}, which it reads from"
        if after == "fully" and before != "fully":
            raise RestoreRejected(f"{names}, has not fully finished: it would get data that nobody takes in")
        if after == "partially" and edge.pattern == "all" and before != "fully":
            raise RestoreRejected(f"{names} through an all-to-all edge, has not fully finished")
        if after == "partially" and before == "running":
            raise RestoreRejected(f"{names}, runs in all its tasks: finished tasks would get data")


def components(vertices: Iterable[Vertex], edges: Iterable[Edge]) -> list[frozenset[Task]]:
    """Return the tasks that hang together through edges, directly or through others: those that roll back together."""
    graph = _by_name(vertices)
    edges = tuple(edges)
    _check_graph(graph, edges)
    start_of, tasks = {}, []  # tasks are numbered, vertex after vertex
    for name, vertex in graph.items():
        start_of[name] = len(tasks)
        tasks += [(name, index) for index in range(len(vertex.states))]
    leader = list(range(len(tasks)))
    for edge in edges:
        producers, consumers = len(graph[edge.producer].states), len(graph[edge.consumer].states)
        reads = _reads(producers, consumers)
        if edge.pattern == "all":
            reads = [(0, producers)] + [(0, 1)] * (consumers - 1)  # enough to tie them all together
        first, reader = start_of[edge.producer], start_of[edge.consumer]
        for start, stop in reads:
            for producer in range(first + start, first + stop):
                leader[_leader(leader, producer)] = _leader(leader, reader)
            reader += 1
    groups: dict[int, list[Task]] = {}
    for number, task in enumerate(tasks):
        groups.setdefault(_leader(leader, number), []).append(task)
    return [frozenset(group) for group in groups.values()]


# ---- the rules ---------------------------------------------------------------------------------------------------


def _tasks_where(flags: Mapping[str, Sequence[bool]]) -> frozenset[Task]:
    """Return the tasks whose flag is set."""
    return frozenset(task for name, some in flags.items() for task in compress(zip(repeat(name), count()), some))


def _held_back(unfinished: Mapping[str, list[bool]], edges: Collection[Edge]) -> dict[str, list[bool]]:
    """Return by vertex a bool for each task: True if something it reads from has not finished."""
    held = {name: [False] * len(flags) for name, flags in unfinished.items()}
    for edge in edges:
        producers, consumers = unfinished[edge.producer], held[edge.consumer]
        if edge.pattern == "all":
            if any(producers):
                held[edge.consumer] = [True] * len(consumers)
            continue
        before = [0, *accumulate(producers)]  # how many of the first n producers have not finished
        for index, (start, stop) in enumerate(_reads(len(producers), len(consumers))):
            consumers[index] |= before[stop] > before[start]
    return held


def _reads(producers: int, consumers: int) -> list[tuple[int, int]]:
    """Return for each pointwise consumer the half-open range of the producers that it reads."""
    if producers >= consumers:
        return [(at * producers // consumers, (at + 1) * producers // consumers) for at in range(consumers)]
    return [(at * producers // consumers, at * producers // consumers + 1) for at in range(consumers)]


def _check_states(vertices: Collection[Vertex], *, allow_finished: bool) -> None:
    def refuse(state: TaskState, why: str) -> None:
        if not any(state in vertex.states for vertex in vertices):
            return
        found = sorted((vertex.name, at) for vertex in vertices for at, one in enumerate(vertex.states) if one is state)
        named = ", ".join(f"{name}[{at}]" for name, at in found[:_NAMED])
        more = f" and {len(found) - _NAMED:,} more" if len(found) > _NAMED else ""
        raise CheckpointRejected(f"{named}{more} {why}")

    refuse(TaskState.FAILED, "failed: no checkpoint is taken until the job has recovered")
    refuse(TaskState.CANCELED, "was canceled: no checkpoint is taken until the job has recovered")
    refuse(TaskState.INITIALIZING, "does not run yet: a checkpoint needs every task")
    if not allow_finished:
        refuse(TaskState.FINISHED, "has finished, and allow_finished is False")


# ---- the graph ---------------------------------------------------------------------------------------------------

_SAID = {"running": "not finished", "partially": "partially finished", "fully": "fully finished"}


def _status(name: str, given: object) -> VertexStatus:
    several = [given] if isinstance(given, str) else given if isinstance(given, Sequence) else []
    found: list[VertexStatus] = [status for status in get_args(VertexStatus) if status in several]
    if not found or any(status not in found for status in several):
        raise InvalidInput(
            f"vertex {name!r} has the status {given!r}; "
            f"give one of {', '.join(get_args(VertexStatus))}, or a list with one for each of its operators"
        )
    if len(found) > 1:
        raise RestoreRejected(
            f"the operators of vertex {name!r} differ ({', '.join(several)}); "
            "a chain of operators finishes as one, so these states are of another graph"
        )
    return found[0]


def _by_name(vertices: Iterable[Vertex]) -> dict[str, Vertex]:
    graph: dict[str, Vertex] = {}
    for vertex in vertices:
        if vertex.name in graph:
            raise InvalidInput(f"two vertices are named {vertex.name!r}; give each a name of its own")
        graph[vertex.name] = vertex
    if not graph:
        raise InvalidInput("a job has at least one vertex")
    return graph


def _check_graph(vertices: Collection[str], edges: Collection[Edge]) -> None:
    """Raise InvalidInput for edges of unknown vertices, and for cycles."""
    readers: dict[str, list[str]] = {name: [] for name in vertices}
    unread = dict.fromkeys(vertices, 0)
    for edge in edges:
        for end in (edge.producer, edge.consumer):
            if end not in readers:
                raise InvalidInput(f"the edge {edge.producer!r} to {edge.consumer!r} names no vertex {end!r}")
        readers[edge.producer].append(edge.consumer)
        unread[edge.consumer] += 1
    ready = [name for name, count in unread.items() if not count]
    while ready:
        for reader in readers[ready.pop()]:
            unread[reader] -= 1
            if not unread[reader]:
                ready.append(reader)
    stuck = sorted(name for name, count in unread.items() if count)
    if stuck:
        raise InvalidInput(f"the graph has a cycle; these read what they make, or lie behind it: {', '.join(stuck)}")


def _leader(leader: list[int], task: int) -> int:
    while leader[task] != task:
        leader[task] = leader[leader[task]]
        task = leader[task]
    return task
