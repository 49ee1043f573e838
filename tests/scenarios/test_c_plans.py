"""Checkpoints after tasks finished, as FLIP-147 has them: plans and restores, scenarios by their numbers."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import epochlog as el
from epochlog.checkpoint import CheckpointPlan, Edge, TaskState, Vertex, check_restore, plan_checkpoint
from epochlog.checkpoint.manager.checkpoint_plan import components

RUNNING, FINISHED = TaskState.RUNNING, TaskState.FINISHED


def vertex(name: str, count: int, *finished: int) -> Vertex:
    """`count` tasks, of which these have finished and the others run."""
    return Vertex(name, [FINISHED if index in finished else RUNNING for index in range(count)])


def tasks(name: str, *indexes: int) -> set[tuple[str, int]]:
    return {(name, index) for index in indexes}


def plan_of(vertices: list[Vertex], edges: list[Edge]) -> CheckpointPlan:
    """The plan, which is the same for every order of what is given."""
    plans = {plan_checkpoint(some, list(reversed(edges))) for some in permutations(vertices)}
    plans |= {plan_checkpoint(vertices, some) for some in permutations(edges)}
    assert len(plans) == 1
    return plans.pop()


# ---- plans -------------------------------------------------------------------------------------------------------


@pytest.mark.rule("5.23")
def test_c1_sources_are_triggered_and_all_report() -> None:
    plan = plan_of(
        [vertex("V0", 3), vertex("V1", 4), vertex("V2", 5), vertex("V3", 6)],
        [Edge("V0", "V2", "all"), Edge("V1", "V2", "pointwise"), Edge("V2", "V3", "all")],
    )
    assert plan.trigger == tasks("V0", 0, 1, 2) | tasks("V1", 0, 1, 2, 3)
    assert len(plan.wait) == 18 and plan.trigger <= plan.wait
    assert plan.finished == set() and plan.fully_finished == set()


def test_c2_behind_an_all_edge_one_running_producer_holds_everyone_back() -> None:
    plan = plan_of([vertex("V0", 3, 0, 1), vertex("V1", 4)], [Edge("V0", "V1", "all")])
    assert plan.trigger == tasks("V0", 2)
    assert plan.wait == tasks("V0", 2) | tasks("V1", 0, 1, 2, 3)
    assert plan.finished == tasks("V0", 0, 1) and plan.fully_finished == set()


def test_c3_a_pointwise_consumer_is_triggered_once_its_own_producer_has_finished() -> None:
    plan = plan_of([vertex("V0", 4, 0, 1), vertex("V1", 4)], [Edge("V0", "V1", "pointwise")])
    assert plan.trigger == tasks("V0", 2, 3) | tasks("V1", 0, 1)
    assert len(plan.wait) == 6


def test_c4_a_finished_consumer_takes_no_part() -> None:
    plan = plan_of([vertex("V0", 4, 0, 1), vertex("V1", 4, 0)], [Edge("V0", "V1", "pointwise")])
    assert plan.trigger == tasks("V0", 2, 3) | tasks("V1", 1)
    assert len(plan.wait) == 5 and plan.finished == tasks("V0", 0, 1) | tasks("V1", 0)


def test_c5_a_bounded_and_an_unbounded_input() -> None:
    graph = [vertex("B", 2, 0, 1), vertex("U", 3), vertex("J", 4)]
    plan = plan_of(graph, [Edge("B", "J", "all"), Edge("U", "J", "all")])
    assert plan.trigger == tasks("U", 0, 1, 2)
    assert len(plan.wait) == 7 and plan.fully_finished == {"B"}


@pytest.mark.parametrize("state", [TaskState.CANCELED, TaskState.FAILED, TaskState.INITIALIZING])
@pytest.mark.parametrize("where", ["V0", "V1"])
def test_c6_a_task_that_does_not_run_rejects_the_plan(state: TaskState, where: str) -> None:
    states = {"V0": [RUNNING, RUNNING], "V1": [RUNNING, RUNNING, FINISHED]}
    states[where][1] = state
    with pytest.raises(el.CheckpointRejected) as refused:
        plan_checkpoint([Vertex(name, some) for name, some in states.items()], [Edge("V0", "V1", "all")])
    assert refused.value.reason.startswith(f"{where}[1] ")


def test_c6_finished_tasks_that_are_not_allowed_reject_the_plan() -> None:
    graph = [vertex("V0", 6, 0, 2, 3, 5), vertex("V1", 1)]
    with pytest.raises(el.CheckpointRejected, match=r"V0\[0\], V0\[2\], V0\[3\] and 1 more.*allow_finished"):
        plan_checkpoint(graph, [], allow_finished=False)
    ending = [Vertex("V0", [TaskState.ENDING, RUNNING])]
    assert plan_checkpoint(ending, [], allow_finished=False).wait == tasks("V0", 0, 1)


def test_c7_when_everything_has_finished_there_is_no_plan() -> None:
    with pytest.raises(el.CheckpointRejected, match="done"):
        plan_checkpoint([vertex("V0", 2, 0, 1), vertex("V1", 1, 0)], [Edge("V0", "V1", "all")])


def test_c8_the_plan_after_a_task_finished_leaves_it_out() -> None:
    """The abort of the checkpoint under way is the manager's; the next plan is this one."""
    edges = [Edge("V0", "V1", "pointwise")]
    before = plan_checkpoint([Vertex("V0", [RUNNING, TaskState.ENDING]), vertex("V1", 2)], edges)
    after = plan_checkpoint([Vertex("V0", [RUNNING, FINISHED]), vertex("V1", 2)], edges)
    assert ("V0", 1) in before.trigger and ("V0", 1) in before.wait and before.finished == set()
    assert after.trigger == tasks("V0", 0) | tasks("V1", 1)
    assert after.wait == before.wait - tasks("V0", 1) and after.finished == tasks("V0", 1)


@pytest.mark.parametrize(
    "producers,consumers,index,read",
    [(4, 2, 1, {2, 3}), (5, 3, 0, {0}), (5, 3, 1, {1, 2}), (5, 3, 2, {3, 4}), (2, 5, 2, {0}), (2, 5, 3, {1})],
)
def test_a_pointwise_consumer_reads_its_share(producers: int, consumers: int, index: int, read: set[int]) -> None:
    """A consumer is triggered exactly when those it reads have all finished: each of them alone holds it back."""
    edges = [Edge("P", "C", "pointwise")]
    for running in range(producers):
        others = [at for at in range(producers) if at != running]
        plan = plan_checkpoint([vertex("P", producers, *others), vertex("C", consumers)], edges)
        assert (("C", index) in plan.trigger) == (running not in read)


def test_all_of_several_edges_must_have_finished() -> None:
    """Two edges between the same vertices both count, and so does each of a task's inputs."""
    graph = [vertex("A", 2, 0), vertex("B", 2, 1), vertex("C", 2)]
    both = [Edge("A", "C", "pointwise"), Edge("B", "C", "pointwise")]
    assert plan_of(graph, both).trigger == tasks("A", 1) | tasks("B", 0)
    assert plan_of(graph, both[:1]).trigger == tasks("A", 1) | tasks("B", 0) | tasks("C", 0)
    assert plan_of(graph, [*both[:1], Edge("A", "C", "all")]).trigger == tasks("A", 1) | tasks("B", 0)


# ---- restores ----------------------------------------------------------------------------------------------------

NOT, PART, FULLY = "running", "partially", "fully"
RESTORES = {  # (status above, pattern) -> statuses that may stand below it
    (NOT, "all"): {NOT},
    (NOT, "pointwise"): {NOT},
    (PART, "all"): {NOT},
    (PART, "pointwise"): {NOT, PART},
    (FULLY, "all"): {NOT, PART, FULLY},
    (FULLY, "pointwise"): {NOT, PART, FULLY},
}


@pytest.mark.parametrize("below", [NOT, PART, FULLY])
@pytest.mark.parametrize("above,pattern", RESTORES)
def test_c9_what_may_be_restored_below_what(above: str, pattern: str, below: str) -> None:
    states = {"free": NOT, "up": above, "down": below}
    edges = [Edge("up", "down", pattern), Edge("down", "free", "all")]
    if below in RESTORES[above, pattern]:
        check_restore(states, edges)
        check_restore({"down": below, "up": above, "free": NOT}, reversed(edges))
    else:
        with pytest.raises(el.RestoreRejected, match="'down'.*'up'"):
            check_restore(states, edges)


def test_c9_operators_of_one_vertex_finish_together() -> None:
    check_restore({"V0": [FULLY, FULLY], "V1": [PART]}, [Edge("V0", "V1", "all")])
    for mixed in ([FULLY, NOT], [PART, FULLY], [NOT, PART, NOT]):
        with pytest.raises(el.RestoreRejected, match="'V1'"):
            check_restore({"V0": FULLY, "V1": mixed}, [Edge("V0", "V1", "all")])


def test_c9_every_input_counts_and_of_two_edges_the_stricter_one() -> None:
    check_restore({"A": PART, "B": FULLY, "C": PART}, [Edge("A", "C", "pointwise"), Edge("B", "C", "all")])
    with pytest.raises(el.RestoreRejected, match="'C'.*'B'"):
        check_restore({"A": FULLY, "B": PART, "C": FULLY}, [Edge("A", "C", "all"), Edge("B", "C", "pointwise")])
    both = [Edge("A", "C", "pointwise"), Edge("A", "C", "all")]
    for edges in (both, both[::-1]):
        with pytest.raises(el.RestoreRejected, match="'C'.*'A'"):
            check_restore({"A": PART, "C": PART}, edges)
    with pytest.raises(
        el.RestoreRejected, match="'C'.*'B'"
    ):  # looked at one edge after the other, down the whole graph
        check_restore({"A": FULLY, "B": NOT, "C": FULLY}, [Edge("A", "B", "all"), Edge("B", "C", "all")])


# ---- bad input ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given,says",
    [
        (lambda: plan_checkpoint([]), "at least one vertex"),
        (lambda: Vertex("V0", []), "no tasks"),
        (lambda: Vertex("V0", ["running"]), "'running'"),
        (lambda: Vertex("V0", "running"), "no tasks"),
        (lambda: Vertex("", [RUNNING]), "name"),
        (lambda: Edge("V0", "V1", "broadcast"), "broadcast"),
        (lambda: plan_checkpoint([vertex("V0", 1), vertex("V0", 2)]), "two vertices"),
        (lambda: plan_checkpoint([vertex("V0", 1)], [Edge("V0", "V1", "all")]), "no vertex 'V1'"),
        (lambda: plan_checkpoint([vertex("V1", 1)], [Edge("V0", "V1", "all")]), "no vertex 'V0'"),
        (lambda: plan_checkpoint([vertex("V0", 1)], [Edge("V0", "V0", "all")]), "cycle"),
        (
            lambda: plan_checkpoint(
                [vertex("V0", 1), vertex("V1", 1), vertex("V2", 1)],
                [Edge("V0", "V1", "all"), Edge("V1", "V2", "all"), Edge("V2", "V1", "pointwise")],
            ),
            "cycle.*V1, V2",
        ),
        (lambda: check_restore({"V0": "finished"}), "'finished'"),
        (lambda: check_restore({"V0": []}), "each of its operators"),
        (lambda: check_restore({"V0": ["fully", None]}), "each of its operators"),
        (lambda: check_restore({"V0": None}), "None"),
        (lambda: check_restore({"V0": "fully"}, [Edge("V0", "V1", "all")]), "no vertex 'V1'"),
        (lambda: check_restore({"V0": "fully"}, [Edge("V0", "V0", "all")]), "cycle"),
        (lambda: components([vertex("V0", 1)], [Edge("V0", "V1", "all")]), "no vertex 'V1'"),
    ],
)  # fmt: skip
def test_bad_input_is_refused(given, says: str) -> None:
    with pytest.raises(el.InvalidInput, match=says):
        given()


# ---- against every pair of tasks ---------------------------------------------------------------------------------


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[Vertex], list[Edge]]:
    """Up to six vertices of up to seven tasks in any states, and any edges that point forward in a hidden order."""
    alive = st.sampled_from([FINISHED, FINISHED, RUNNING, TaskState.ENDING])
    any_state = alive if draw(st.integers(0, 4)) else st.sampled_from(TaskState)
    sizes = draw(st.lists(st.integers(1, 7), min_size=1, max_size=6))
    vertices = [Vertex(f"V{at}", [draw(any_state) for _ in range(size)]) for at, size in enumerate(sizes)]
    forward = [(f"V{a}", f"V{b}") for b in range(len(sizes)) for a in range(b)]
    edges = [
        Edge(*ends, pattern)
        for ends in forward
        for pattern in draw(st.sets(st.sampled_from(["all", "pointwise"]), max_size=2))
    ]
    return draw(st.permutations(vertices)), draw(st.permutations(edges))


def pairs(vertices: list[Vertex], edges: list[Edge]) -> list[tuple[tuple[str, int], tuple[str, int]]]:
    """Every (producing task, consuming task): the edges written out."""
    count = {vertex.name: len(vertex.states) for vertex in vertices}
    links = []
    for edge in edges:
        m, n = count[edge.producer], count[edge.consumer]
        for i in range(n):
            if edge.pattern == "all":
                read = range(m)
            else:
                read = range(i * m // n, (i + 1) * m // n) if m >= n else [i * m // n]
            links += [((edge.producer, j), (edge.consumer, i)) for j in read]
    return links


@given(graphs())
@example(([vertex("V1", 3), vertex("V0", 2, 0)], [Edge("V0", "V1", "pointwise")]))
def test_plans_are_those_of_the_graph_of_tasks(graph: tuple[list[Vertex], list[Edge]]) -> None:
    vertices, edges = graph
    states = {(vertex.name, at): state for vertex in vertices for at, state in enumerate(vertex.states)}
    finished = {task for task, state in states.items() if state is FINISHED}
    lost = {task for task, state in states.items() if state not in (RUNNING, FINISHED, TaskState.ENDING)}
    if lost or len(finished) == len(states):
        with pytest.raises(el.CheckpointRejected):
            plan_checkpoint(vertices, edges)
        return
    waits = {task for task in states if task not in finished}
    held = {consumer for producer, consumer in pairs(vertices, edges) if producer in waits}
    fully = {vertex.name for vertex in vertices if set(vertex.states) == {FINISHED}}
    plan = plan_checkpoint(vertices, edges)
    assert (plan.trigger, plan.wait, plan.finished, plan.fully_finished) == (waits - held, waits, finished, fully)


@pytest.mark.medium
@settings(max_examples=50)
@given(graphs())
def test_components_are_those_of_the_graph_of_tasks(graph: tuple[list[Vertex], list[Edge]]) -> None:
    vertices, edges = graph
    group = {(vertex.name, at): {(vertex.name, at)} for vertex in vertices for at in range(len(vertex.states))}
    for producer, consumer in pairs(vertices, edges):
        if group[producer] is not group[consumer]:
            group[producer] |= group[consumer]
            for task in group[consumer]:
                group[task] = group[producer]
    assert set(components(vertices, edges)) == {frozenset(some) for some in group.values()}


@pytest.mark.medium
@settings(max_examples=50)
@given(graphs())
def test_states_in_which_nobody_finished_early_can_be_restored(
    graph: tuple[list[Vertex], list[Edge]],
) -> None:
    """A graph in which nobody finished before what it reads never makes a state that a restore refuses."""
    vertices, edges = graph
    states = {(vertex.name, at): state for vertex in vertices for at, state in enumerate(vertex.states)}
    reads = pairs(vertices, edges)
    runs = {task for task, state in states.items() if state is not FINISHED}
    for _ in vertices:
        runs |= {consumer for producer, consumer in reads if producer in runs}
    statuses = {}
    for vertex in vertices:
        left = sum((vertex.name, at) in runs for at in range(len(vertex.states)))
        statuses[vertex.name] = FULLY if not left else NOT if left == len(vertex.states) else PART
    check_restore(statuses, edges)


@pytest.mark.medium
def test_all_edges_are_never_written_out() -> None:
    """10,000 tasks behind 10,000 others are 100 million pairs: done at once, or not at all."""
    wide = [vertex(f"V{at}", 10_000, 1, 2, 3) for at in range(4)]
    edges = [Edge(f"V{at}", f"V{at + 1}", "all") for at in range(3)] + [Edge("V0", "V3", "pointwise")]
    plan = plan_checkpoint(wide, edges)
    assert len(plan.trigger) == 9_997 and {name for name, _ in plan.trigger} == {"V0"}
    assert len(components(wide, edges)) == 1
