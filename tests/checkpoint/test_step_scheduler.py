"""Step scheduling of a pipeline's jobs: backoff, giving up, ends, and rest of all jobs. Pure functions of values."""

from __future__ import annotations

from dataclasses import replace

import pytest

import epochlog as el
from epochlog.checkpoint.job.job_looks import next_look_ms
from epochlog.checkpoint.job.step_scheduler import (
    ENDED,
    JobStep,
    backoff_ms,
    failed,
    notified,
    quiescent,
    started,
    succeeded,
)
from epochlog.checkpoint.manager.job_graph import JobGraph, JobVertex

pytestmark = pytest.mark.local_only

NEW = JobStep()
TROUBLE = ZeroDivisionError("no rows")


def test_a_commit_runs_on_and_nothing_to_do_waits_a_moment() -> None:
    assert succeeded(NEW, 7, 1000, finished=False) == JobStep("running", 1000)
    assert succeeded(NEW, 0, 1000, finished=False) == JobStep("running", 1000)  # a piece of a snapshot
    assert succeeded(NEW, None, 1000, finished=False) == JobStep("idle", 1100)
    assert succeeded(NEW, None, 1000, finished=True).state == "finished"


def test_idle_jobs_are_due_together_and_when_a_boundary_passes() -> None:
    assert [next_look_ms(now_ms, None) for now_ms in (0, 1, 99, 100)] == [100, 100, 100, 200]
    assert [next_look_ms(now_ms, 165) for now_ms in (0, 99, 100, 164, 165, 166)] == [100, 100, 165, 165, 200, 200]
    assert next_look_ms(100, 200) == 200 and next_look_ms(199, 201) == 200
    assert succeeded(NEW, None, 130, finished=False, boundary_ms=165).due_ms == 165


def test_back_off_doubles_up_to_half_a_minute() -> None:
    pauses = [backoff_ms(failures) for failures in range(1, 12)]
    assert pauses[:9] == [100 << n for n in range(9)]
    assert pauses[9:] == [30_000, 30_000] and backoff_ms(10_000) == 30_000


def test_failures_are_counted_in_a_row() -> None:
    member = NEW
    for failures in (1, 2, 3):
        member = failed(started(member), TROUBLE, 1000, None)
        assert (member.state, member.failures, member.restarts) == ("backing off", failures, failures - 1)
        assert (member.due_ms, member.last_error) == (1000 + backoff_ms(failures), "ZeroDivisionError: no rows")
    member = succeeded(started(member), 7, 2000, finished=False)
    assert (member.state, member.failures, member.restarts) == ("running", 0, 3)
    assert member.last_error == "ZeroDivisionError: no rows"
    assert failed(member, TROUBLE, 3000, None).due_ms == 3100


def test_tries_are_bounded_where_somebody_waits() -> None:
    member = NEW
    for _ in range(4):
        member = failed(member, TROUBLE, 0, tries=5)
        assert member.state == "backing off"
    assert failed(member, TROUBLE, 0, tries=5).state == "given up"
    assert failed(member, TROUBLE, 0, tries=None).state == "backing off"


@pytest.mark.parametrize(
    "error, state",
    [
        (el.Fenced("x"), "fenced"),
        (el.JobParked("x"), "parked"),
        (el.JobNotFound("x"), "dropped"),
        (el.StoreClosed("x"), "given up"),
        (el.SparkLost("x"), "given up"),
        (el.CatalogUnavailable("x"), "backing off"),
        (el.OutcomeUnknown("x"), "backing off"),
        (SystemExit(), "backing off"),
    ],
)
def test_what_another_try_cannot_mend_ends_a_job_at_once(error: BaseException, state: str) -> None:
    member = failed(NEW, error, 0, None)
    assert member.state == state and member.ended == (state in ENDED)
    assert type(error).__name__ in (member.last_error or "")


def test_a_wake_is_for_idle_jobs_alone() -> None:
    idle, backing = JobStep("idle", 1100), JobStep("backing off", 1100)
    assert notified(idle, 1010).due_ms == 1010 and notified(backing, 1010) == backing


IDLE, DONE = JobStep("idle"), JobStep("idle", settled=True)


@pytest.mark.parametrize(
    "jobs, at_rest",
    [
        ({}, True),
        ({1: DONE}, True),
        ({1: IDLE}, False),
        ({1: DONE, 2: NEW}, False),
        ({1: replace(DONE, state="running")}, True),  # more than what is waited for is being written
        ({1: JobStep("backing off")}, False),
        ({1: JobStep("given up")}, True),
        ({1: JobStep("given up"), 2: IDLE}, False),
        ({1: JobStep("given up"), 2: replace(IDLE, missing=frozenset({1}))}, True),
        ({1: JobStep("given up"), 2: replace(NEW, missing=frozenset({1}))}, False),  # not looked since
        ({1: JobStep("backing off"), 2: replace(IDLE, missing=frozenset({1}))}, False),
        (
            {1: replace(DONE, state="fenced"), 2: replace(IDLE, missing=frozenset({1}))},
            False,
        ),  # it will see it is there
        ({2: replace(IDLE, missing=frozenset({1}))}, True),  # nobody here runs that one
        ({2: replace(IDLE, missing=frozenset({1})), 3: replace(IDLE, missing=frozenset({2}))}, True),
        ({1: NEW, 2: replace(IDLE, missing=frozenset({1})), 3: replace(IDLE, missing=frozenset({2}))}, False),
    ],
)
def test_at_rest(jobs: dict[int, JobStep], at_rest: bool) -> None:
    """Job n writes table n, and reads those of the jobs that it misses."""
    graph = JobGraph(
        JobVertex(job, f"job {job}", frozenset(step.missing), frozenset({job})) for job, step in jobs.items()
    )
    assert quiescent(graph, jobs) == at_rest
