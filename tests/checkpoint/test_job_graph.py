"""Graph of jobs: its rules over random graphs, and what a pipeline, a coordinator, a claim and the lists ask it."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Collection
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import epochlog as el
from attached_fixture import add_orders, make_chain, make_store
from control_fixture import TOKEN, open_worker, settings
from epochlog.__main__ import main
from epochlog.checkpoint import JobGraph, JobSettings, JobVertex
from epochlog.checkpoint.control_messages import Attach, PartName
from epochlog.checkpoint.coordinator.job_looker import JobLooker
from epochlog.checkpoint.coordinator.managed_jobs import JobTask
from epochlog.checkpoint.coordinator.state import Running
from epochlog.errors import JobNotFound
from epochlog.store.catalog.keys import head_key, job_key
from epochlog.store.metadata.lookups import find_job, find_table, get_version
from lab import INTERVAL_MS, Lab, mirror, refuse
from ports import fixed_location
from virtual_time import VirtualTime
from wait_until import wait_until


def job(number: int, reads: Collection[int], writes: Collection[int] | None = None, **options: Any) -> JobVertex:
    """Job n, which writes table n unless others are given."""
    return JobVertex(
        number, f"j{number}", frozenset(reads), frozenset({number} if writes is None else writes), **options
    )


# ---- rules, case by case -----------------------------------------------------------------------------------------


@pytest.mark.rule("5.41")
def test_a_job_that_reads_root_tables_is_triggered_and_the_others_wait_for_those_that_they_read() -> None:
    """1 and 2 read root tables 90 and 91; 3 reads both, 4 reads 3 and a root table; 5 is alone."""
    graph = JobGraph([job(1, [90]), job(2, [91]), job(3, [1, 2]), job(4, [3, 90]), job(5, [90])])
    plan = graph.plan()
    assert plan.triggered == {1, 2, 5} and plan.waiting == {3: {1, 2}, 4: {3}} and plan.finished == set()
    assert graph.components() == [{1, 2, 3, 4}, {5}]
    plan = graph.plan(behind=[2, 3, 4])  # job 1 has nothing to commit
    assert plan.triggered == {2} and plan.waiting == {3: {2}, 4: {3}}
    assert graph.plan(behind=[]).triggered == set() == set(graph.plan(behind=[]).waiting)


@pytest.mark.rule("5.41")
def test_who_reads_finished_jobs_is_triggered_and_finished_jobs_take_no_part() -> None:
    graph = JobGraph([job(1, [90]), job(2, [91]), job(3, [1, 2])])
    assert graph.finished(1) == {3} and graph.plan().waiting == {3: {2}}
    assert graph.finished(2) == {3}
    plan = graph.plan()
    assert plan.triggered == {3} and plan.finished == {1, 2} and plan.waiting == {}
    assert graph.finished(3) == set() and graph.plan().triggered == set()


@pytest.mark.rule("5.41")
def test_a_parked_job_is_not_triggered_and_its_readers_wait_for_it() -> None:
    graph = JobGraph([job(1, [90]), job(2, [1]), job(3, [1])])
    graph.parked(1)
    plan = graph.plan()
    assert plan.triggered == set() and plan.waiting == {2: {1}, 3: {1}}
    graph.parked(2)
    assert graph.committed(1) == {3}  # a parked reader has nothing to look at
    graph.created(job(1, [90]))
    assert graph.plan().triggered == {1}


def test_a_replaced_job_has_the_edges_of_its_new_query() -> None:
    graph = JobGraph([job(1, [90]), job(2, [90]), job(3, [1])])
    graph.created(job(3, [2]))
    assert graph.committed(1) == set() and graph.committed(2) == {3} and graph.upstreams(3) == {2}
    assert graph.components() == [{1}, {2, 3}]
    graph.dropped(2)
    assert graph.upstreams(3) == set() and graph.plan().triggered == {1, 3} and 2 not in graph
    graph.dropped(2)  # again
    with pytest.raises(JobNotFound, match="job 2"):
        graph.committed(2)


def test_a_job_that_adopted_a_table_is_its_writer() -> None:
    """The graph may hear of the adoption before it hears that the table's first job was dropped."""
    graph = JobGraph([job(1, [90]), job(3, [1])])
    graph.created(job(4, [91], writes=[1]))
    graph.dropped(1)
    assert graph.committed(4) == {3} and graph.upstreams(3) == {4}


def test_views_that_change_places_read_each_other_until_both_are_known() -> None:
    graph = JobGraph([job(1, [90]), job(2, [1])])
    graph.created(job(1, [2]))
    assert graph.components() == [{1, 2}] and graph.plan().waiting == {1: {2}, 2: {1}}
    graph.created(job(2, [90]))
    assert graph.plan().triggered == {2}


@pytest.mark.rule("5.29")
@pytest.mark.parametrize(
    ("finished", "drained", "ended", "wrong"),
    [
        ([], [], [], []),
        ([1], [], [90], []),
        ([1], [], [], [(1, 90)]),  # a root table that users still write
        ([2], [], [90], [(2, 1)]),  # the job that it reads has not finished
        ([2], [2], [90], []),  # it was drained
        ([1, 2], [], [90], []),
        ([2, 3], [], [90, 91], [(2, 1), (3, 1)]),
        ([1, 3], [], [90], [(3, 91)]),
    ],
)
def test_a_finished_job_has_finished_upstreams(
    finished: list[int], drained: list[int], ended: list[int], wrong: list[tuple[int, int]]
) -> None:
    reads = {1: [90], 2: [1], 3: [1, 91]}
    graph = JobGraph([job(number, tables, drained=number in drained) for number, tables in reads.items()], ended=ended)
    for number in finished:
        graph.finished(number)
    assert [(vertex.id, table) for vertex, table in graph.check_restore()] == wrong


def test_the_jobs_that_end_with_a_table_are_those_with_no_other_upstream_that_goes_on() -> None:
    """1 and 2 read root 90, 2 also root 91; 3 reads 1, 4 reads 1 and 2; 5 has finished, and 6 reads it and 90."""
    jobs = [
        job(1, [90]),
        job(2, [90, 91]),
        job(3, [1]),
        job(4, [1, 2]),
        job(5, [92], state="finished"),
        job(6, [5, 90]),
    ]
    assert [vertex.id for vertex in JobGraph(jobs).ending_with(90)] == [1, 6, 3]
    assert [vertex.id for vertex in JobGraph(jobs, ended=[91]).ending_with(90)] == [1, 2, 6, 3, 4]
    assert JobGraph(jobs).ending_with(92) == [] and JobGraph(jobs).ending_with(7) == []


# ---- random graphs, against a model of their tables --------------------------------------------------------------

ROOTS = 3


@st.composite
def graphs(draw: st.DrawFn) -> list[JobVertex]:
    """Jobs in any order; a job reads roots (ids from 100) and tables of jobs with lower ids, and writes one or two."""
    jobs: list[JobVertex] = []
    tables = list(range(100, 100 + ROOTS))
    for number in range(draw(st.integers(1, 9))):
        reads = draw(st.sets(st.sampled_from(tables), min_size=1, max_size=3))
        writes = [10 * number + place for place in range(draw(st.integers(1, 2)))]
        state: Any = draw(st.sampled_from(["running", "running", "parked", "finished"]))
        jobs.append(job(number, reads, writes, state=state, drained=draw(st.booleans())))
        tables += writes
    return draw(st.permutations(jobs))


@pytest.mark.rule("5.41")
@given(graphs(), st.sets(st.integers(0, 9)))
def test_plans_components_and_restarts_are_those_of_the_tables(jobs: list[JobVertex], behind: set[int]) -> None:
    graph = JobGraph(jobs)
    by_id = {vertex.id: vertex for vertex in jobs}
    edges = {(a.id, b.id) for a, b in product(jobs, jobs) if a.writes & b.reads}
    due = {n for n in behind & by_id.keys() if by_id[n].state != "finished"}
    waits = {n: {a for a, b in edges if b == n and a in due} for n in due}
    plan = graph.plan(behind)
    assert plan.waiting == {n: ups for n, ups in waits.items() if ups}
    assert plan.triggered == {n for n in due if not waits[n] and by_id[n].state == "running"}
    assert plan.finished == {n for n, vertex in by_id.items() if vertex.state == "finished"}
    near = {n: {n} for n in by_id}
    for _ in by_id:  # the transitive closure, without directions
        near = {n: near[n].union(*(near[b if a in near[n] else a] for a, b in edges if {a, b} & near[n])) for n in near}
    assert {frozenset(group) for group in near.values()} == set(graph.components())
    assert sorted(map(min, graph.components())) == list(map(min, graph.components()))
    for n in by_id:
        assert graph.committed(n) == {b for a, b in edges if a == n and by_id[b].state == "running"}
    finished = {table for vertex in jobs if vertex.state == "finished" for table in vertex.writes}
    assert {(vertex.id, table) for vertex, table in graph.check_restore()} == {
        (n, table)
        for n, vertex in by_id.items()
        if vertex.state == "finished" and not vertex.drained
        for table in vertex.reads - finished
    }


@given(graphs(), st.data())
def test_a_graph_that_was_told_of_events_is_the_one_made_anew(jobs: list[JobVertex], data: st.DataObject) -> None:
    graph, present = JobGraph(), dict[int, JobVertex]()
    for vertex in [*jobs, *data.draw(st.lists(st.sampled_from(jobs), max_size=5))]:
        if vertex.id in present and data.draw(st.booleans()):
            graph.dropped(vertex.id)
            del present[vertex.id]
        else:
            reads = vertex.reads if data.draw(st.booleans()) else frozenset({100})
            present[vertex.id] = job(vertex.id, reads, vertex.writes)
            graph.created(present[vertex.id])
    anew = JobGraph(present.values())
    assert graph.components() == anew.components() and graph.plan() == anew.plan()
    assert {n: graph.committed(n) for n in present} == {n: anew.committed(n) for n in present}


# ---- who asks it -------------------------------------------------------------------------------------------------


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    lab = Lab(tmp_path / "store")
    lab.root_table()
    lab.put({1: (0, 10)})
    lab.tick()
    return lab


def check_a_commit_reaches_a_chain_at_once(lab: Lab) -> None:
    """The readers of a job are due with its commit, and not at their next look 100 ms later."""
    time = VirtualTime(lab)
    pipe = el.Pipeline(lab.store, pauses=time)
    names = [f"j{at}" for at in range(4)]
    for at, name in enumerate(names):
        upstream = f"j{at - 1}_out" if at else "r"
        pipe.add(lab.job(name, [upstream]), mirror(upstream, f"{name}_out"))
    thread = threading.Thread(target=pipe.run)
    thread.start()
    try:
        for _ in range(len(names)):  # until all have caught up
            time.advance(INTERVAL_MS, lambda: pipe._pool.busy == 0)
        last = lab.put({2: (0, 20)})
        time.advance(INTERVAL_MS, lambda: pipe._pool.busy == 0)  # one boundary passes, and no other look
        behind = [name for name in names if lab.store.job(name).info.committed_epoch < last]
    finally:
        pipe.stop()
        time.let_go()
        thread.join()
    assert behind == []


def fails(ctx: Any) -> None:
    raise ZeroDivisionError("as it always does")


def check_a_job_below_one_that_fails_is_not_waited_for(lab: Lab) -> None:
    """Found where a run until idle would go on for ever: the scheduler asks the graph whether it has come to rest."""
    asked: list[int] = []

    class Counting:
        def now_ms(self) -> int:
            return sum(asked)

        def wait(self, event: threading.Event, timeout_ms: int) -> bool:
            asked.append(timeout_ms)
            assert len(asked) < 1_000, "the run does not come to rest"
            return event.wait(0.0005)

    pipe = el.Pipeline(lab.store, pauses=Counting())
    pipe.add(lab.job("bad", ["r"]), fails)
    pipe.add(lab.job("below", ["bad_out"]), refuse)
    pipe.run(until="idle")
    assert {row.name: row.state for row in pipe.status()} == {"bad": "given up", "below": "idle"}


def check_a_claim_looks_at_the_upstreams_of_a_finished_job(lab: Lab) -> None:
    for name, upstream in (("a", "r"), ("b", "a_out")):
        lab.job(name, [upstream]).step_local(mirror(upstream, f"{name}_out"))

    def body(tx: Any) -> None:
        record, table = find_job(tx, "b"), find_table(tx, "b_out")
        tx.put(job_key(record.id), replace(record, state="finished").to_record())
        version = get_version(tx, table.id, "b_out")
        tx.put(head_key(table.id), replace(version, end_epoch=version.max_committed_epoch).to_record())

    lab.store._handle.catalog.transact(body)
    with pytest.raises(el.RestoreRejected, match="job 'b'.*a_out"):
        lab.store.job("b").step_local(refuse)
    assert [problem.where for problem in lab.store.verify().problems] == ["job b"]


NO_PLAN = JobGraph().plan()
CHECKS: list[Callable[[Lab], None]] = [
    check_a_commit_reaches_a_chain_at_once,
    check_a_job_below_one_that_fails_is_not_waited_for,
    check_a_claim_looks_at_the_upstreams_of_a_finished_job,
]
DAMAGES = pytest.mark.damages_store


@pytest.mark.rule("5.41")
@pytest.mark.local_only
@pytest.mark.parametrize("check", [*CHECKS[:2], pytest.param(CHECKS[2], marks=DAMAGES)])
def test_what_the_graph_decides(lab: Lab, check: Callable[[Lab], None]) -> None:
    check(lab)


@pytest.mark.planted
@pytest.mark.local_only
@pytest.mark.parametrize(
    ("name", "planted", "check"),
    [
        ("committed", lambda graph, job: frozenset(), CHECKS[0]),
        ("plan", lambda graph, behind: NO_PLAN, CHECKS[1]),
        pytest.param("check_restore", lambda graph: (), CHECKS[2], marks=DAMAGES),
    ],
    ids=["commits that wake nobody", "a plan without edges", "restarts from anything"],
)
def test_what_the_graph_decides_is_missed_without_it(
    lab: Lab, name: str, planted: Any, check: Callable[[Lab], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(JobGraph, name, planted)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        check(lab)


def readers_at_the_coordinator(folder: Path, monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, tuple[str, ...]]]:
    """Return each job of a tree of five with the jobs that the coordinator looks at after its commit."""
    seen: set[tuple[str, tuple[str, ...]]] = set()
    note = JobLooker._note_commit

    def noted(looker: Any, running: Any, readers: Collection[str]) -> None:
        seen.add((running.key, tuple(readers)))
        note(looker, running, readers)

    monkeypatch.setattr(JobLooker, "_note_commit", noted)
    with (
        make_store(folder) as store,
        el.serve(store, fixed_location(), token=TOKEN, control=settings()) as server,
        open_worker(server, store) as worker,
    ):
        refreshes = make_chain(store, 3)
        pipe = el.Pipeline(store, coordinator=worker)
        for name, refresh in refreshes.items():
            pipe.add(store.job(name), refresh)
        add_orders(store, 0, 20)
        thread = threading.Thread(target=pipe.run)
        thread.start()
        try:
            boundary = store.checkpoint()
            wait_until(lambda: all(store.job(name).info.committed_epoch >= boundary for name in refreshes))
            wait_until(lambda: len({key for key, _ in seen}) == len(refreshes))
        finally:
            pipe.stop()
            thread.join()
    return seen


@pytest.mark.rule("5.37", "5.41")
@pytest.mark.local_only
def test_a_coordinator_looks_at_the_readers_of_what_was_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = readers_at_the_coordinator(tmp_path / "store", monkeypatch)
    copies = {"job:copy0", "job:copy1", "job:copy2"}
    assert {key: set(readers) for key, readers in seen} == {
        "job:revenue": copies, "job:copy0": {"job:again"}, "job:copy1": set(), "job:copy2": set(), "job:again": set(),
    }  # fmt: skip


@pytest.mark.local_only
def test_a_commit_of_a_job_that_was_dropped_meanwhile_wakes_nobody(tmp_path: Path) -> None:
    """Its commit landed, and before that was noted another thread has found that the job was dropped."""
    with make_store(tmp_path / "store") as store, el.serve(store, fixed_location(), token=TOKEN) as server:
        executor = server.coordinator._executor
        make_chain(store)
        request = Attach(PartName("job", "revenue", 0), 1, (), False, 0, False)
        managed = JobTask(store._handle, request, JobSettings())
        running = Running(managed, 1, "job", "revenue")
        assert executor._note_commit(running, finished=False) == []


@pytest.mark.local_only
def test_a_pipeline_learns_that_a_view_was_replaced(lab: Lab) -> None:
    """It kept the edges of the query that the view had when it was added."""
    for name in ("a", "b"):
        lab.job(name, ["r"])
    view = lab.store.create_view("v", "SELECT * FROM a_out", primary_key=["k"])
    pipe = el.Pipeline(lab.store)
    for name in ("a", "b"):
        pipe.add(lab.store.job(name), mirror("r", f"{name}_out"))
    pipe.add(view)
    pipe.run(until="idle")
    lab.store.replace_views({"v": "SELECT * FROM b_out"})
    pipe.run(until="idle")
    number = view._runner.job_id
    assert {pipe._graph.vertex(up).name for up in pipe._graph.upstreams(number)} == {"b"}
    assert pipe._graph.committed(lab.store.job("b")._runner.job_id) == {number}


def test_lists_show_components_and_who_waits_for_whom(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    for name, upstreams in (("a", ["r"]), ("b", ["r"]), ("c", ["a_out"]), ("d", ["b_out", "c_out"]), ("e", ["r"])):
        lab.job(name, upstreams)
    root = str(lab.store.root)
    lab.store.close()
    for command in ("jobs", "status"):
        assert main([command, root, "--json"]) == 0
        jobs = {row["name"]: row for row in json.loads(capsys.readouterr().out)["jobs"]}
        assert {name: row["component"] for name, row in jobs.items()} == {"a": 1, "b": 1, "c": 1, "d": 1, "e": 2}
        assert {name: row["waits_for"]["jobs"] for name, row in jobs.items()} == {
            "a": [], "b": [], "c": ["a"], "d": ["b", "c"], "e": [],
        }  # fmt: skip
        assert main([command, root]) == 0
        assert re.search(r"component", capsys.readouterr().out)
