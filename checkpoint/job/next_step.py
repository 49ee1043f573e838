"""Next step of a job: one pure decision for each of its runners, from one EpochView, its record and the boundaries.

Single steps, queries, pipelines and coordinators all act on `next_step`. So do looks and the reasons for waits, which
ask what a runner would do after sealing the boundaries that the clock has passed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from epochlog.errors import Fenced, JobNotFound, JobParked
from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.epochs.view import EpochView
from epochlog.store.epochs.view_reader import forced_boundaries
from epochlog.store.metadata.definitions import JobRecord
from epochlog.store.metadata.lookups import get_version
from epochlog.store.metadata.step_times import StepTimes, read_step_times
from epochlog.store.session.handle import Handle
from epochlog.store.types.epoch import boundary, boundary_index, from_unix_ms, newest_index
from epochlog.store.types.epoch_set import FAR, Ints, first_after, ints

from .claims import inputs_of
from .next_barrier import Barrier, InputPosition, due_barrier, input_position, is_caught_up

StepKind = Literal["over", "parked", "repeat", "barrier", "caught_up", "idle"]
ENDINGS = {Fenced: "fenced", JobNotFound: "dropped", JobParked: "parked"}
"""Errors of a step or commit after which this runner never runs the job again, with the job's state for the runner."""


@dataclass(frozen=True, slots=True)
class NextStep:
    """Next step of a job's runner.

    over: the job has finished. parked: the step raises JobParked. repeat: it refreshes the barrier that is recorded.
    barrier: it records `barrier` and refreshes it. caught_up: it commits no rows, but ends the job's creation, or lets
    its outputs take part in `global` again. idle: nothing is to be done until the catalog changes or a boundary is
    sealed.
    """

    kind: StepKind
    barrier: Barrier | None = None

    @property
    def refreshes(self) -> bool:
        return self.kind in ("repeat", "barrier")

    @property
    def acts(self) -> bool:
        """Return True if the step commits, changes the job's record, or raises."""
        return self.kind not in ("over", "idle")


@dataclass(frozen=True, slots=True, eq=False)
class Clockwork:
    """Boundaries of a store: interval, forced boundaries (epochs, ascending), first log epochs by table id, and the
    times of the newest steps by job id.
    """

    interval_ms: int
    forced: Ints = field(default_factory=lambda: ints(()))
    log_starts: Mapping[int, int] | None = None
    step_times: Mapping[int, StepTimes] | None = None

    def position_of(self, job: JobRecord) -> InputPosition:
        """Return the `input_position` of a job."""
        starts = self.log_starts or {}
        return input_position(
            job, self.interval_ms, self.forced_past(job.position), [starts.get(up, 0) for up in job.upstreams]
        )

    def stride_of(self, job: JobRecord) -> int:
        """Return the boundaries that a step of the job takes at once; 1 unless it is a slow view."""
        times = (self.step_times or {}).get(job.id)
        return 1 if times is None else times.stride(self.interval_ms * job.interval)

    def forced_past(self, epoch: int) -> Ints:
        """Return the forced boundaries past the epoch, ascending."""
        return self.forced[self.forced.searchsorted(epoch, "right") :]

    def is_commit_boundary(self, epoch: int, job: JobRecord) -> bool:
        """Return True if the job may commit at that epoch, so that its runner seals no boundary before."""
        if epoch <= 0:
            return False
        is_forced = first_after(self.forced, epoch - 1) == epoch
        return is_forced or boundary_index(epoch, self.interval_ms * job.interval) is not None


def next_step(view: EpochView, job: JobRecord, clockwork: Clockwork) -> NextStep:
    """Return the next step of a runner of the job."""
    if job.state == "finished":
        return NextStep("over")
    if job.state == "parked":
        return NextStep("parked")
    if job.barrier is not None:
        return NextStep("repeat")
    barrier = due_barrier(view, job, clockwork.position_of(job), stride=clockwork.stride_of(job))
    if barrier is not None:
        return NextStep("barrier", barrier)
    joins = may_join(job) and has_caught_up(view, job, clockwork, job.position)
    return NextStep("caught_up" if joins else "idle")


def may_join(job: JobRecord) -> bool:
    """Return True if the job is creating or outside of `global`, so that a step without a barrier may end that."""
    is_apart = job.state == "creating" or job.outside_ms is not None
    return is_apart and job.position > 0 and not job.rebuilding


def has_caught_up(view: EpochView, job: JobRecord, clockwork: Clockwork, position: int) -> bool:
    """Return True if no upstream is creating, and the job's lag at epoch `position` is within its `max_lag`."""
    return is_caught_up(view, job, clockwork.interval_ms, position, clockwork.forced_past(position))


def depends_on_time(view: EpochView, job: JobRecord) -> bool:
    """Return True if the job may get a barrier once another boundary is sealed.

    That needs an upstream change that the job does not reflect, or a due first commit, rebuild or drain.
    """
    if not job.position or job.rebuilding or job.drain is not None:
        return True
    return any(view.table(up).first_change(job.position) < FAR for up in job.upstreams)


def after_sealing(view: EpochView, clockwork: Clockwork) -> tuple[EpochView, Clockwork]:
    """Return the view and boundaries after a runner has sealed through the newest boundary in the past."""
    now, interval_ms = from_unix_ms(view.clock_ms), clockwork.interval_ms
    passed = boundary(newest_index(now - 1, interval_ms), interval_ms)
    if view.last_epoch > now + (interval_ms << 12):  # the clock was set back, so the next runner forces a boundary
        clockwork = replace(clockwork, forced=np.append(clockwork.forced, view.last_epoch))
    return replace(view, last_epoch=max(view.last_epoch, passed)), clockwork


def seen_by_runner(view: EpochView, sealed: EpochView, job: JobRecord, clockwork: Clockwork) -> EpochView:
    """Return the view from which a runner decides: `sealed`, which is `after_sealing`, unless it would seal nothing."""
    return view if clockwork.is_commit_boundary(view.last_epoch, job) else sealed


# ---- reading -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class JobState:
    """State of a job in one state of the catalog: all that its runner decides from."""

    job: JobRecord
    epochs: EpochView
    """Epochs of the tables that the job reads, of those that its newest commit was computed from, and of their
    ancestors.
    """
    clockwork: Clockwork

    @property
    def next(self) -> NextStep:
        """Return the next step at the boundaries that are sealed now."""
        return next_step(self.epochs, self.job, self.clockwork)

    def sealed(self) -> NextStep:
        """Return the next step after the runner has sealed the boundaries in the past."""
        sealed, clockwork = after_sealing(self.epochs, self.clockwork)
        return next_step(seen_by_runner(self.epochs, sealed, self.job, clockwork), self.job, clockwork)

    def has_caught_up(self, position: int) -> bool:
        """Return True if the job, at this position, has no upstream that is creating, and a lag within `max_lag`."""
        return has_caught_up(self.epochs, self.job, self.clockwork, position)


def read_job_state(view: ReadTxn, handle: Handle, job: JobRecord) -> JobState:
    """Read what the runner of a job decides from."""
    epochs = inputs_of(view, handle, job)
    return JobState(job, epochs, read_clockwork(view, handle, epochs, [job]))


def read_clockwork(view: ReadTxn, handle: Handle, epochs: EpochView, jobs: Sequence[JobRecord]) -> Clockwork:
    """Read the boundaries past the jobs' positions, the starts of their upstreams' logs, and the times of steps."""
    position = min((job.position for job in jobs if job.state != "finished"), default=epochs.last_epoch)
    upstreams = {up for job in jobs for up in job.upstreams}
    return Clockwork(
        handle.interval_ms,
        forced_boundaries(view, position, epochs.last_epoch),
        {up: get_version(view, up, epochs.table(up).name).log_start for up in upstreams},
        {job.id: times for job in jobs if job.view is not None and (times := read_step_times(view, job.id))},
    )
