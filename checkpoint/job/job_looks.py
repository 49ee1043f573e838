"""Looks at jobs: one read of the catalog decides for many jobs which of them have work for their runners.

A look finds work exactly when a step of the job would commit, change the job's record, or raise. So a job without work
needs no step, and a thousand idle jobs cost one read of the catalog.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from epochlog.checkpoint.manager.job_graph import JobVertex, vertex_of
from epochlog.errors import Corrupt, JobNotFound, UnsupportedFormat
from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.epochs.view import EpochView
from epochlog.store.epochs.view_reader import read_epoch_view
from epochlog.store.metadata.definitions import Counters, JobRecord
from epochlog.store.metadata.lookups import get_job
from epochlog.store.session.handle import Handle
from epochlog.store.session.job_runners import live_runner
from epochlog.store.types.epoch import boundary, from_unix_ms, newest_index

from .claims import RunnerLease
from .next_step import (
    Clockwork,
    after_sealing,
    depends_on_time,
    next_step,
    read_clockwork,
    seen_by_runner,
)

LOOK_MS = 100
"""Time between two looks at idle jobs. All jobs of a process are looked at together."""


@dataclass(frozen=True, slots=True)
class LookRequest:
    """Job to look at. lease: the lease under which the caller runs it. led: a coordinator decides its barriers."""

    job_id: int
    name: str
    lease: RunnerLease
    led: bool = False


@dataclass(frozen=True, slots=True)
class CatalogState:
    """State of the catalog at a look that found no work for a job. A further look can find some only when the state has
    changed.
    """

    version: int
    """Version of the catalog."""
    sealable: int | None
    """Newest boundary that a runner could seal: the job may have work once another one can be sealed. None for a job
    that needs a change of the catalog first, such as a commit of an upstream.
    """


@dataclass(frozen=True, slots=True)
class WorkLook:
    """Result of a look at one job."""

    has_work: bool
    """True if a step would commit, change the job's record, or raise."""
    vertex: JobVertex | None = None
    """Job in the graph of jobs; None if it was dropped, or cannot be read."""
    finished: bool = False
    """True if the data of the job has ended."""
    blocked: bool = False
    """True if another runner of the job is alive."""
    creating: bool = False
    """True if the job has not caught up for the first time."""
    reached: bool = False
    """True if the outputs are complete through the target epoch, and no rebuild is requested. Only a run that ends when
    its jobs are idle has a target.
    """
    missing: frozenset[int] = frozenset()
    """Ids of the jobs of its upstreams whose outputs are not complete through the target epoch."""
    state: CatalogState | None = None
    """State of the catalog in which the look found no work; None if the job has work or is blocked, so that each look
    must read it again. A job whose barriers a coordinator decides always has a state: its work comes from there.
    """

    def settled(self, *, idle: bool) -> bool:
        """Return True if the job has taken in everything through the target. An idle step ends the creation."""
        return self.reached and (idle or not self.creating)


@dataclass(frozen=True, slots=True)
class WorkLooks:
    """Result of one read of the catalog: the look at each job, by job id.

    boundary_in_ms: the time from the read until the next boundary passes.
    """

    by_job: Mapping[int, WorkLook]
    boundary_in_ms: int


UNKNOWN_JOB = WorkLook(has_work=True)
"""Look at a job that was dropped, or cannot be read: its own step raises the error."""


def next_look_ms(now_ms: int, boundary_ms: int | None) -> int:
    """Return the monotonic time of an idle job's next look: the next multiple of LOOK_MS, or the boundary before it.

    So all idle jobs are due together, and a job gets its barrier when the boundary passes.
    """
    tick_ms = (now_ms // LOOK_MS + 1) * LOOK_MS
    return boundary_ms if boundary_ms is not None and now_ms < boundary_ms < tick_ms else tick_ms


def look_at(
    handle: Handle,
    requests: Collection[LookRequest],
    target: int | None,
    unchanged: Mapping[int, CatalogState],
) -> WorkLooks:
    """Read the catalog once, and return the look at each job.

    target: the epoch through which a run waits for its jobs to be complete; None: the run does not end. unchanged: the
    states at which jobs (by id) had no work; a job whose state is still that one is left out.
    """

    def body(view: ReadTxn) -> WorkLooks:
        sealable = _sealable(view, handle)
        current = (CatalogState(view.version, sealable), CatalogState(view.version, None))
        asked = [request for request in requests if unchanged.get(request.job_id) not in current]
        looks = _look(view, handle, asked, target, sealable) if asked else {}
        return WorkLooks(looks, handle.interval_ms - handle.catalog.now_ms() % handle.interval_ms)

    return handle.catalog.read(body)


def _look(
    view: ReadTxn, handle: Handle, asked: Collection[LookRequest], target: int | None, sealable: int
) -> dict[int, WorkLook]:
    looks: dict[int, WorkLook] = {}
    jobs: dict[int, tuple[JobRecord, LookRequest]] = {}
    for request in asked:
        try:
            jobs[request.job_id] = get_job(view, request.job_id, request.name), request
        except (JobNotFound, Corrupt, UnsupportedFormat):
            looks[request.job_id] = UNKNOWN_JOB
    records = [job for job, _ in jobs.values()]
    tables = {table for job in records for table in (*job.upstreams, *(job.outputs if target is not None else ()))}
    epochs = read_epoch_view(view, handle.memory, handle.catalog.now_ms(), above=tables)
    clockwork = read_clockwork(view, handle, epochs, records)
    sealed_epochs, clockwork = after_sealing(epochs, clockwork)
    for job, request in jobs.values():
        lease = request.lease
        seen = seen_by_runner(epochs, sealed_epochs, job, clockwork)
        missing: list[int] = []
        if target is not None:
            missing = [up for up in job.upstreams if not epochs.complete(up, target)]
        has_work = _has_work(seen, job, lease, clockwork)
        blocked = not request.led and _is_blocked(view, handle, job, lease)
        if request.led:  # its next work comes from the coordinator
            state = CatalogState(view.version, None)
        elif has_work or blocked:  # the other runner may end without a change of the catalog
            state = None
        else:
            state = CatalogState(view.version, sealable if depends_on_time(epochs, job) else None)
        looks[job.id] = WorkLook(
            has_work=has_work,
            vertex=vertex_of(job),
            finished=job.state == "finished" and not has_work,
            blocked=blocked,
            creating=job.state == "creating",
            reached=target is not None
            and not (job.rebuilding or job.is_outdated)
            and all(epochs.complete(output, target) for output in job.outputs),
            missing=frozenset(writer for up in missing if (writer := epochs.table(up).job_id) is not None),
            state=state,
        )
    return looks


def _sealable(view: ReadTxn, handle: Handle) -> int:
    """Return the newest boundary in the past; 0 while the newest epoch leads the clock, which was set back."""
    now, last_epoch = from_unix_ms(handle.catalog.now_ms()), Counters.read(view).last_epoch
    leads = last_epoch > now + (handle.interval_ms << 12)
    return 0 if leads else boundary(newest_index(now - 1, handle.interval_ms), handle.interval_ms)


def _has_work(view: EpochView, job: JobRecord, lease: RunnerLease, clockwork: Clockwork) -> bool:
    """Return True if a step of the job under this lease would commit, change the job's record, or raise."""
    is_fenced = lease.incarnation not in (None, job.incarnation)
    return is_fenced or job.is_outdated or next_step(view, job, clockwork).acts


def _is_blocked(view: ReadTxn, handle: Handle, job: JobRecord, lease: RunnerLease) -> bool:
    """Return True if another runner of the job is alive, and the lease may wait for its end."""
    if lease.incarnation not in (None, job.incarnation):
        return False
    if job.runner is None or job.runner.holder == lease.holder or handle.runners.has_died(job.runner.holder):
        return False
    return live_runner(view, handle, job) is not None
