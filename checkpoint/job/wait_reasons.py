"""Reasons that keep jobs from their next commits: a pure function of one EpochView and the jobs' records.

It takes the `next_step` of a runner that has sealed the past boundaries. A job that waits for an upstream waits for
the upstream's job, which may wait in turn. The chain ends at the job that is the cause: it has failed, or waits for a
boundary or a runner.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from epochlog.checkpoint.manager.job_graph import JobGraph
from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.epochs.lag import oldest_unreflected
from epochlog.store.epochs.view import EpochView
from epochlog.store.metadata.definitions import JobRecord
from epochlog.store.session.handle import Handle
from epochlog.store.types.epoch import (
    boundary,
    first_index_at_or_above,
    to_unix_ms,
)
from epochlog.store.types.epoch_set import FAR, Ints, first_after

from .next_barrier import due_barrier
from .next_step import Clockwork, after_sealing, next_step, read_clockwork, seen_by_runner

MOST_BOUNDARIES = 1 << 60
"""Value of max_lag with which no job merges boundaries."""
WaitKind = Literal["nothing", "boundary", "upstream", "runner", "failed", "rebuild", "over"]


@dataclass(frozen=True, slots=True)
class Wait:
    """Reason for which a job waits.

    nothing: the job reflects every change. boundary: the boundary `epoch`, at which it may commit next, is not past
    yet. upstream: `upstream`, written by job `writer`, is complete only through `through`, and the job's next
    commit is at `epoch` or later (None before the upstream's first commit); `cause` is the job at the end of that
    chain, which does not wait for an upstream. runner: a barrier at `epoch` is recorded or due, and a runner must
    step the job. failed: the newest attempt, at `epoch`, failed, and a runner must try again. rebuild: the job is
    parked. over: its data has ended. since_ms: for runner, the time since which the barrier is due (Unix ms).
    """

    kind: WaitKind
    epoch: int | None = None
    upstream: str | None = None
    writer: str | None = None
    through: int | None = None
    cause: str | None = None
    since_ms: int | None = None
    jobs: tuple[str, ...] = ()
    """All jobs that it reads and that have something to commit before it, by name."""


def waits_of(view: EpochView, jobs: Collection[JobRecord], graph: JobGraph, clockwork: Clockwork) -> dict[str, Wait]:
    """Return the reason for which each job waits, by the job's name. graph: of these jobs."""
    sealed_view, clockwork = after_sealing(view, clockwork)
    waits = {job.id: _wait(seen_by_runner(view, sealed_view, job, clockwork), job, clockwork) for job in jobs}
    writers = {
        job: writer.id
        for job, wait in waits.items()
        if wait.upstream is not None and (writer := graph.writer(sealed_view.ids[wait.upstream])) is not None
    }
    plan = graph.plan([job for job, wait in waits.items() if wait.kind not in ("nothing", "over")])
    for job, ups in plan.waiting.items():
        waits[job] = replace(waits[job], jobs=tuple(sorted(graph.vertex(up).name for up in ups)))
    causes: dict[int, int] = {}
    for job, writer in writers.items():
        chain = {job}
        while writer in writers and writer not in causes and writer not in chain:
            chain.add(writer)
            writer = writers[writer]
        causes |= dict.fromkeys(chain, causes.get(writer, writer))
    for job, writer in writers.items():
        waits[job] = replace(waits[job], writer=graph.vertex(writer).name, cause=graph.vertex(causes[job]).name)
    return {graph.vertex(job).name: wait for job, wait in waits.items()}


def read_waits(
    view: ReadTxn, handle: Handle, epochs: EpochView, jobs: Sequence[JobRecord], graph: JobGraph
) -> dict[str, Wait]:
    """Read the boundaries, and return `waits_of`. `epochs` and `jobs` were read from this state of the catalog."""
    return waits_of(epochs, jobs, graph, read_clockwork(view, handle, epochs, jobs))


def _wait(view: EpochView, job: JobRecord, clockwork: Clockwork) -> Wait:
    step, position = next_step(view, job, clockwork), clockwork.position_of(job)
    if step.kind == "over":
        return Wait("over")
    if step.kind == "parked":
        return Wait("rebuild")
    if job.last_error is not None:
        return Wait("failed", job.barrier[1] if job.barrier else None)
    if job.barrier is not None:
        return Wait("runner", job.barrier[1], since_ms=_due_since(job, job.barrier[1]))
    if step.barrier is not None:
        unmerged = due_barrier(view, job, position, max_lag=MOST_BOUNDARIES) or step.barrier
        return Wait("runner", step.barrier.curr, since_ms=_due_since(job, unmerged.curr))
    return _explain_no_barrier(view, job, position.interval_ms, clockwork.forced_past(job.position))


def _due_since(job: JobRecord, changed: int) -> int:
    """Return the time (Unix ms) since which the job has been due to commit.

    A first commit is due since the job's creation, a rebuild since its request, any other commit since `changed`,
    the job's first boundary with a change.
    """
    if job.rebuild is not None:
        return to_unix_ms(job.rebuild)
    if not job.position and job.created_ms:
        return job.created_ms
    return to_unix_ms(changed)


def _explain_no_barrier(view: EpochView, job: JobRecord, interval_ms: int, forced: Ints) -> Wait:
    """Explain the absence of a barrier: no change, a boundary to come, or the upstream that is least complete."""
    wanted = _next_wanted_epoch(view, job)
    late = min(job.upstreams, key=lambda up: (view.complete_through(up), view.table(up).name))
    through = view.complete_through(late)
    if wanted is None:
        behind = [up for up in job.upstreams if oldest_unreflected(view, view.table(up), None) is not None]
        if not behind:
            return Wait("nothing")
        late = min(behind, key=lambda up: (view.complete_through(up), view.table(up).name))
        through = view.complete_through(late)
        return Wait("upstream", None, view.table(late).name, None, through)
    first = _boundary_from(wanted, interval_ms, forced)
    due = first if first > through else _boundary_from(max(wanted, through + 1), interval_ms, forced)
    if due > view.last_epoch:
        return Wait("boundary", due)
    return Wait("upstream", due if through else None, view.table(late).name, None, through)


def _next_wanted_epoch(view: EpochView, job: JobRecord) -> int | None:
    """Return the lowest epoch at which the job has a reason to commit, or None."""
    if job.rebuild is not None:
        return max(job.rebuild, job.position + 1)
    change = min(view.table(up).first_change(job.position) for up in job.upstreams)
    if change != FAR:
        return change
    if job.drain is not None:
        return max(job.drain, job.position + 1)
    return 1 if job.position == 0 else None


def _boundary_from(epoch: int, interval_ms: int, forced: Ints) -> int:
    """Return the job's first boundary at or above the epoch."""
    regular = boundary(first_index_at_or_above(epoch, interval_ms), interval_ms)
    return min(regular, first_after(forced, epoch - 1))
