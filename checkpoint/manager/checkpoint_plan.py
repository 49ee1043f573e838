"""Plan of a checkpoint in which some tasks have finished, and the check of finished states before a restore.

Pure functions over a graph of vertices, each of parallel tasks; the rules are those of Flink's FLIP-147:

- Every unfinished task must report. An unfinished task whose producers have all finished is triggered, so every source
  is. Other tasks get the barrier from their producers.
- Only FINISHED is finished: a task that is ENDING still owes its last report.
- A vertex is fully finished if all its tasks are.

One running producer of an "all" edge holds back every consumer; a pointwise consumer reads a range of producers. So
the work is linear in tasks and edges.
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
"""Finished tasks of a vertex, or of one operator in it: none, some or all."""

Task = tuple[str, int]
"""(vertex name, subtask index)."""

_MOST_NAMED = 3  # tasks that a message names


@unique
class TaskState(StrEnum):
    """State of a task's life cycle."""

    INITIALIZING = "initializing"
    RUNNING = "running"
    ENDING = "ending"  # its data has ended, but its last report is not committed
    FINISHED = "finished"
    FAILED = "failed"
    CANCELED = "canceled"


@dataclass(frozen=True, slots=True)
class Vertex:
    """Vertex of a job graph with its parallel tasks; `states` has the state of each task, by subtask index.

    Raises InvalidInput for a vertex without tasks.
    """

    name: str
    states: Sequence[TaskState]

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise InvalidInput(f"a vertex name is a string that is not empty, not {self.name!r}")
        states = () if isinstance(self.states, str) else tuple(self.states)
        object.__setattr__(self, "states", states)
        if not states:
            raise InvalidInput(f"vertex {self.name!r} has no tasks; give one TaskState for each of its subtasks")
        wrong = next((state for state in states if not isinstance(state, TaskState)), None)
        if wrong is not None:
            raise InvalidInput(f"vertex {self.name!r} has a task in state {wrong!r}; states are those of TaskState")


@dataclass(frozen=True, slots=True)
class Edge:
    """Edge from `producer` to `consumer`. Each consumer task reads all producer tasks ("all"), or some ("pointwise").

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
    """Tasks of one checkpoint: those to trigger, those that must report, and those that have finished."""

    trigger: frozenset[Task]
    wait: frozenset[Task]
    finished: frozenset[Task]
    fully_finished: frozenset[str]  # vertices


def plan_checkpoint(
    vertices: Iterable[Vertex], edges: Iterable[Edge] = (), *, allow_finished: bool = True
) -> CheckpointPlan:
    """Plan the next checkpoint of a job with tasks in these states; the order of vertices and edges does not matter.

    Raises CheckpointRejected(reason) if a task has failed, was canceled or does not run yet; if a task has finished
    and allow_finished is False; and if all tasks have finished, because no task is left to report. Raises InvalidInput
    for names used twice, edges to unknown vertices, and cycles.
    """
    graph = _by_name(vertices)
    edges = tuple(edges)
    _check_graph(graph, edges)
    _check_states(graph.values(), allow_finished=allow_finished)
    unfinished = {name: [state is not TaskState.FINISHED for state in vertex.states] for name, vertex in graph.items()}
    held_back = _held_back(unfinished, edges)
    wait = _tasks_where(unfinished)
    if not wait:
        raise CheckpointRejected("every task has finished: the job is done and has nothing left to commit")
    trigger = frozenset(task for task in wait if not held_back[task[0]][task[1]])
    assert trigger, "a graph without cycles has a first task that has not finished"
    finished = _tasks_where({name: [not flag for flag in flags] for name, flags in unfinished.items()})
    return CheckpointPlan(
        trigger, wait, finished, frozenset(name for name, flags in unfinished.items() if not any(flags))
    )


def check_restore(statuses: Mapping[str, VertexStatus | Sequence[VertexStatus]], edges: Iterable[Edge] = ()) -> None:
    """Check that recorded states are consistent in this graph: a finished task has no running producer.

    A vertex's status is one of "running", "partially", "fully", or a list with the status of each of its operators.
    Raises RestoreRejected, naming the vertices, if the operators of one vertex differ; if a fully finished vertex reads
    from one that is not; if a partially finished vertex reads "all" of one that is not fully finished, or pointwise
    from one without finished tasks. Raises InvalidInput for bad statuses and graphs.
    """
    edges = tuple(edges)
    vertex_statuses = {name: _status(name, status) for name, status in statuses.items()}
    _check_graph(vertex_statuses, edges)
    for edge in edges:
        before, after = vertex_statuses[edge.producer], vertex_statuses[edge.consumer]
        names = f"vertex {edge.consumer!r} has {_STATUS_TEXT[after]}, and {edge.producer!r}, which it reads from"
        if after == "fully" and before != "fully":
            raise RestoreRejected(f"{names}, has not fully finished: its data would be lost")
        if after == "partially" and edge.pattern == "all" and before != "fully":
            raise RestoreRejected(f"{names} through an all-to-all edge, has not fully finished")
        if after == "partially" and before == "running":
            raise RestoreRejected(f"{names}, has no finished task: finished tasks would get data")


def components(vertices: Iterable[Vertex], edges: Iterable[Edge]) -> list[frozenset[Task]]:
    """Return the connected components of the task graph: sets of tasks that roll back together."""
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
        ranges = _producer_ranges(producers, consumers)
        if edge.pattern == "all":
            ranges = [(0, producers)] + [(0, 1)] * (consumers - 1)  # enough edges to connect all of them
        first, reader = start_of[edge.producer], start_of[edge.consumer]
        for start, stop in ranges:
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
    return frozenset(
        task for name, vertex_flags in flags.items() for task in compress(zip(repeat(name), count()), vertex_flags)
    )


def _held_back(unfinished: Mapping[str, list[bool]], edges: Collection[Edge]) -> dict[str, list[bool]]:
    """Return by vertex a bool for each task: True if one of its producers has not finished."""
    held_back = {name: [False] * len(flags) for name, flags in unfinished.items()}
    for edge in edges:
        producers, consumers = unfinished[edge.producer], held_back[edge.consumer]
        if edge.pattern == "all":
            if any(producers):
                held_back[edge.consumer] = [True] * len(consumers)
            continue
        unfinished_before = [0, *accumulate(producers)]  # prefix sums of the unfinished producers
        for index, (start, stop) in enumerate(_producer_ranges(len(producers), len(consumers))):
            consumers[index] |= unfinished_before[stop] > unfinished_before[start]
    return held_back


def _producer_ranges(producers: int, consumers: int) -> list[tuple[int, int]]:
    """Return for each pointwise consumer the half-open range of the producers that it reads."""
    if producers >= consumers:
        return [(index * producers // consumers, (index + 1) * producers // consumers) for index in range(consumers)]
    return [(index * producers // consumers, index * producers // consumers + 1) for index in range(consumers)]


def _check_states(vertices: Collection[Vertex], *, allow_finished: bool) -> None:
    def refuse(state: TaskState, reason: str) -> None:
        if not any(state in vertex.states for vertex in vertices):
            return
        tasks = sorted(
            (vertex.name, index)
            for vertex in vertices
            for index, task_state in enumerate(vertex.states)
            if task_state is state
        )
        named = ", ".join(f"{name}[{index}]" for name, index in tasks[:_MOST_NAMED])
        remainder = f" and {len(tasks) - _MOST_NAMED:,} more" if len(tasks) > _MOST_NAMED else ""
        raise CheckpointRejected(f"{named}{remainder} {reason}")

    refuse(TaskState.FAILED, "failed: no checkpoint is taken until the job has recovered")
    refuse(TaskState.CANCELED, "was canceled: no checkpoint is taken until the job has recovered")
    refuse(TaskState.INITIALIZING, "does not run yet: a checkpoint needs every task")
    if not allow_finished:
        refuse(TaskState.FINISHED, "has finished, and allow_finished is False")


# ---- the graph ---------------------------------------------------------------------------------------------------

_STATUS_TEXT = {"running": "not finished", "partially": "partially finished", "fully": "fully finished"}


def _status(name: str, status: object) -> VertexStatus:
    operator_statuses = [status] if isinstance(status, str) else status if isinstance(status, Sequence) else []
    distinct_statuses: list[VertexStatus] = [
        vertex_status for vertex_status in get_args(VertexStatus) if vertex_status in operator_statuses
    ]
    if not distinct_statuses or any(vertex_status not in distinct_statuses for vertex_status in operator_statuses):
        raise InvalidInput(
            f"vertex {name!r} has the status {status!r}; "
            f"give one of {', '.join(get_args(VertexStatus))}, or a list with one for each of its operators"
        )
    if len(distinct_statuses) > 1:
        raise RestoreRejected(
            f"the operators of vertex {name!r} differ ({', '.join(operator_statuses)}); "
            "a chain of operators finishes together, so these states belong to another graph"
        )
    return distinct_statuses[0]


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
    unvisited = dict.fromkeys(vertices, 0)
    for edge in edges:
        for end in (edge.producer, edge.consumer):
            if end not in readers:
                raise InvalidInput(
                    f"the edge {edge.producer!r} to {edge.consumer!r} is invalid: the job has no vertex {end!r}"
                )
        readers[edge.producer].append(edge.consumer)
        unvisited[edge.consumer] += 1
    ready = [name for name, count in unvisited.items() if not count]
    while ready:
        for reader in readers[ready.pop()]:
            unvisited[reader] -= 1
            if not unvisited[reader]:
                ready.append(reader)
    stuck = sorted(name for name, count in unvisited.items() if count)
    if stuck:
        raise InvalidInput(f"the graph has a cycle; these vertices are on it or behind it: {', '.join(stuck)}")


def _leader(leader: list[int], task: int) -> int:
    while leader[task] != task:
        leader[task] = leader[leader[task]]
        task = leader[task]
    return task
