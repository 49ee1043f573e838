"""Work of the last steps of jobs that this process has run: what each took in, computed and wrote."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Self

from epochlog.store.env.clock import monotonic_s
from epochlog.store.sst.segment import Segment

from .refresh_plan import RefreshPlan

KEPT, MOST_JOBS = 20, 4096
"""Steps of a job that the process remembers, and jobs; with one more it forgets the job whose step is the oldest."""


@dataclass(frozen=True, slots=True)
class BlockWork:
    """Work of a step on the state of one block of a view's query."""

    table: str
    """State table of the block's groups."""
    rows: int
    """Rows that the block has taken in, gained and lost."""
    groups: int
    """Groups of these rows."""
    recomputed: int
    """Groups of which the least or greatest value was computed of all their rows."""
    bytes: int
    """Bytes of the files of the state that the step has written."""
    took_ms: float


@dataclass(frozen=True, slots=True)
class StepWork:
    """Work of the refresh of a view."""

    by: str = ""
    """How it was computed: by `state`, `rows`, `groups`, `chunk` or `all rows`; "" for a job with a refresh of
    the user's own.
    """
    blocks: tuple[BlockWork, ...] = ()
    """Work on the state; none without one."""


NO_WORK = StepWork()


@dataclass(frozen=True, slots=True)
class CommittedStep:
    """Step of a job that has committed."""

    job: str
    epoch: int
    """Epoch of the commit; 0 for a chunk of a backfill."""
    rows: int
    """Rows that the step has written, deletes included."""
    engine: str
    operation: str
    """Name of the commit in the history of the job's outputs."""
    took_ms: int
    job_id: int = 0
    changes: int = 0
    """Rows of the upstreams' logs that it took in; 0 in a backfill, which reads no log."""
    bytes: int = 0
    """Bytes of the files of the outputs that it has written."""
    work: StepWork = NO_WORK

    @classmethod
    def of(
        cls,
        plan: RefreshPlan,
        epoch: int,
        outputs: Mapping[str, Sequence[Segment]],
        operation: str,
        work: StepWork = NO_WORK,
    ) -> Self:
        """Return the step of a plan. outputs: what it has written."""
        written = [segment for segments in outputs.values() for segment in segments]
        return cls(
            plan.job.name,
            epoch,
            sum(segment.rows for segment in written),
            plan.engine,
            operation,
            round((monotonic_s() - plan.began_s) * 1000),
            plan.job.id,
            sum(upstream.changes.rows for upstream in plan.upstreams.values()),
            sum(segment.bytes for segment in written),
            work,
        )


_lock = Lock()
_steps: dict[tuple[str, int], deque[CommittedStep]] = {}
"""Last steps by place of the store and id of the job, the job that has stepped last at the end."""


def remember_step(place: str, step: CommittedStep) -> None:
    """Remember a step that has committed. place: that of the store's files."""
    with _lock:
        steps = _steps.pop((place, step.job_id), None) or deque(maxlen=KEPT)
        steps.append(step)
        _steps[place, step.job_id] = steps
        if len(_steps) > MOST_JOBS:
            del _steps[next(iter(_steps))]


def last_steps(place: str, job_id: int) -> tuple[CommittedStep, ...]:
    """Return the last steps of a job that this process has run, oldest first."""
    with _lock:
        return tuple(_steps.get((place, job_id), ()))
