"""Step scheduling: pure functions that decide the next action for a job after each step: at once, later, again, never.

Each decision depends only on the job's own steps, so a job that fails or hangs does not affect the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from epochlog.checkpoint.manager.job_graph import JobGraph
from epochlog.errors import AccessDenied, Cancelled, SparkLost, StoreClosed
from epochlog.store.env.backoff import Backoff

from .job_looks import next_look_ms
from .next_step import ENDINGS

BACKOFF = Backoff(first_s=0.1, limit_s=30.0)
"""Delays before a failed step is tried again."""
WAIT_MS = 500
"""Time between two checks of another live runner of the job."""
TRIES = 5
"""Failures in a row after which a job is given up, in a run until idle."""

HOPELESS = {
    **ENDINGS,
    AccessDenied: "given up",
    Cancelled: "stopped",
    StoreClosed: "given up",
    SparkLost: "given up",
}
"""Errors that another try cannot resolve, with the job's state after them."""

ENDED = frozenset({"given up", "parked", "finished", "fenced", "dropped", "stopped"})
"""States of a job that takes no more steps."""


@dataclass(frozen=True, slots=True)
class JobStep:
    """Scheduling state of one job. due_ms: monotonic time of its next step.

    state: running (also while queued) | idle | backing off | waiting (for another runner to end), or one of ENDED.
    restarts: number of tries after a failure. settled: the job has taken in everything through the target epoch.
    missing: ids of the upstream jobs that had not reached the target epoch at the last check.
    """

    state: str = "running"
    due_ms: int = 0
    failures: int = 0  # in a row
    restarts: int = 0
    last_error: str | None = None
    settled: bool = False
    missing: frozenset[int] = frozenset()

    @property
    def ended(self) -> bool:
        return self.state in ENDED


def started(step: JobStep) -> JobStep:
    """Return the job as its step begins."""
    return replace(step, state="running", restarts=step.restarts + (step.state == "backing off"))


def succeeded(
    step: JobStep, epoch: int | None, now_ms: int, *, finished: bool, boundary_ms: int | None = None
) -> JobStep:
    """Return the job after a step that committed at `epoch`, took in a chunk (0), or had nothing to do (None).

    boundary_ms: the monotonic time of the next boundary, if it is known.
    """
    if finished:
        return replace(step, state="finished", failures=0)
    if epoch is None:
        return replace(step, state="idle", due_ms=next_look_ms(now_ms, boundary_ms), failures=0)
    return replace(step, state="running", due_ms=now_ms, failures=0)


def failed(step: JobStep, error: BaseException, now_ms: int, tries: int | None) -> JobStep:
    """Return the job after a step that raised. tries: give up after so many failures in a row (None: never)."""
    step = replace(step, failures=step.failures + 1, last_error=f"{type(error).__name__}: {error}")
    for kind, state in HOPELESS.items():
        if isinstance(error, kind):
            return replace(step, state=state)
    if tries is not None and step.failures >= tries:
        return replace(step, state="given up")
    return replace(step, state="backing off", due_ms=now_ms + backoff_ms(step.failures))


def waiting(step: JobStep, now_ms: int) -> JobStep:
    """Return the job waiting for its other, live runner to end."""
    return replace(step, state="waiting", due_ms=now_ms + WAIT_MS)


def notified(step: JobStep, now_ms: int) -> JobStep:
    """Return the job due at once if it is idle, because an upstream has committed. Do not shorten a backoff."""
    return replace(step, due_ms=now_ms) if step.state == "idle" else step


def backoff_ms(failures: int) -> int:
    """Return the delay in ms after so many failures in a row."""
    return round(1000 * BACKOFF.delay_s(failures))


def quiescent(graph: JobGraph, jobs: Mapping[int, JobStep]) -> bool:
    """Return True if no job (by id) can come closer to the target epoch.

    Then each job has reached it, has ended, or waits for a job that will not reach it. graph: has all of these jobs.
    """
    unsettled = {job_id: step for job_id, step in jobs.items() if not step.settled}
    if any(not step.ended and (step.state != "idle" or not step.missing) for step in unsettled.values()):
        return False
    waiting = graph.plan(unsettled).waiting
    # Of the jobs that wait for no unsettled one, each has ended or misses one that is run elsewhere. Else its next look
    # finds that those that it missed have reached the target.
    return all(step.ended or job_id in waiting or not step.missing <= jobs.keys() for job_id, step in unsettled.items())
