"""Decision about a supervised job after each step: go on, look again later, try again, or end; pure functions.

Each job is judged by its own steps alone, so one that fails or hangs changes nothing for the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from epochlog.errors import Fenced, JobNotFound, JobParked, SparkLost, StoreClosed
from epochlog.store.env.backoff import Backoff

LOOK_MS = 100
"""How long an idle job waits before it looks for a barrier again."""
BACKOFF = Backoff(first_s=0.1, limit_s=30.0)
"""Delays before a step that failed is tried again."""
WAIT_MS = 500
"""How long who waits for another runner of the job waits before looking whether that one is still alive."""
TRIES = 5
"""Failures in a row after which a job is given up, where somebody waits for all jobs to be idle."""

HOPELESS = {
    Fenced: "fenced",
    JobParked: "parked",
    JobNotFound: "dropped",
    StoreClosed: "given up",
    SparkLost: "given up",
}
"""What another try cannot mend, and the state it leaves."""

ENDED = frozenset({"given up", "parked", "finished", "fenced", "dropped", "stopped"})
"""States in which a job is not stepped any more."""


@dataclass(frozen=True, slots=True)
class JobStep:
    """One job: its state, and when (`due_ms`, monotonic) it is stepped next.

    state: running | idle | backing off | waiting (for another runner to end), or one of ENDED. restarts: how often it
    was run again after a failure. settled: everything through the epoch that is waited for is in. missing: the upstream
    jobs (by id) that were not through that epoch when it last looked.
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


def started(one: JobStep) -> JobStep:
    """Return the job as its step begins."""
    return replace(one, state="running", restarts=one.restarts + (one.state == "backing off"))


def succeeded(one: JobStep, epoch: int | None, now_ms: int, *, finished: bool) -> JobStep:
    """Judge a step that committed at `epoch`, made a piece of a snapshot (0), or had nothing to do (None)."""
    if finished:
        return replace(one, state="finished", failures=0)
    if epoch is None:
        return replace(one, state="idle", due_ms=now_ms + LOOK_MS, failures=0)
    return replace(one, state="running", due_ms=now_ms, failures=0)


def failed(one: JobStep, error: BaseException, now_ms: int, tries: int | None) -> JobStep:
    """Judge a step that raised; `tries` failures in a row are the most (None: any number)."""
    one = replace(one, failures=one.failures + 1, last_error=f"{type(error).__name__}: {error}")
    for kind, state in HOPELESS.items():
        if isinstance(error, kind):
            return replace(one, state=state)
    if tries is not None and one.failures >= tries:
        return replace(one, state="given up")
    return replace(one, state="backing off", due_ms=now_ms + backoff_ms(one.failures))


def waiting(one: JobStep, now_ms: int) -> JobStep:
    """Make the job wait for another runner of it that is alive and is not fenced."""
    return replace(one, state="waiting", due_ms=now_ms + WAIT_MS)


def notified(one: JobStep, now_ms: int) -> JobStep:
    """Wake an idle job whose upstream has committed; one that backs off stays at that."""
    return replace(one, due_ms=now_ms) if one.state == "idle" else one


def backoff_ms(failures: int) -> int:
    """Return the milliseconds to wait after so many failures in a row."""
    return round(1000 * BACKOFF.delay_s(failures))


def quiescent(jobs: Mapping[int, JobStep]) -> bool:
    """Return True if no job (by id) can come closer to the target.

    Each job has reached it, has ended, or waits for a job that will not reach it.
    """

    def stuck(job_id: int) -> bool:
        one = jobs.get(job_id)
        if one is None:  # run by somebody else, or by nobody
            return True
        waits = one.ended or (one.state == "idle" and any(stuck(up) for up in one.missing))
        return waits and not one.settled

    return all(one.settled or stuck(job_id) for job_id, one in jobs.items())
