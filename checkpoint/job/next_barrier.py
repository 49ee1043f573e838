"""Choice of a job's next barrier: a pure function of one EpochView, the job's position and the forced boundaries.

The job walks the sealed boundaries past its position. It ends the walk at the first boundary at which an upstream is
incomplete. It skips boundaries at which an upstream is complete but not valid, because that upstream merged them. It
takes the first boundary at which an upstream has changed. Both conditions are monotonic, so the walk is a search in
the upstreams' common valid intervals from the first change on. The code never iterates over boundaries: an idle week
has 600,000 of them, in one interval.

A job far behind merges: it takes the newest boundary whose index, counted in the job's interval, is a multiple of the
largest power of two <= its lag. So jobs that are equally late meet at common boundaries, and a reader finds epochs at
which all of them are valid. Forced boundaries have no index: a job may commit there, but does not merge to them.

A view whose steps take longer than its interval has a stride, a power of two: it takes the newest boundary whose index
is a multiple of it, or of the larger power of two of its lag; where there is none, the newest boundary. So it never
waits, and slow views meet at common boundaries too.

A view whose newest attempt failed takes the newest boundary: its query may have no valid rows at the ones before.

A drained job ends with its first boundary at or past the drain epoch, even without a change.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from epochlog.store.epochs.view import EpochView
from epochlog.store.metadata.definitions import JobRecord
from epochlog.store.types.epoch import newest_index, width
from epochlog.store.types.epoch_set import FAR, Intervals, Ints, clip, ints, next_after

BarrierKind = Literal["initial", "checkpoint"]
BARRIER_PHASES = ("decision", "collection", "commit")
"""Phases of a barrier: it is decided and recorded, its writes are collected, all outputs are committed."""


@dataclass(frozen=True, slots=True)
class Barrier:
    """Commit point of a job: it commits the changes of (prev, curr] at `curr`. Its first barrier is `initial`."""

    prev: int
    curr: int
    kind: BarrierKind


@dataclass(frozen=True, slots=True)
class CommitBoundaries:
    """Sealed boundaries at which one job may commit: the regular and forced ones within `intervals`."""

    intervals: Intervals
    forced: Ints
    interval_ms: int  # the job's own

    def first(self) -> int | None:
        """Return the oldest boundary."""
        first = int(self.first_from(ints([0]))[0])
        return None if first == FAR else first

    def first_from(self, epochs: Ints) -> Ints:
        """Return for each epoch the first boundary at or above it; FAR if there is none."""
        starts, ends = (np.append(side, FAR) for side in self.intervals)
        at, step = ends[:-1].searchsorted(epochs), width(self.interval_ms)
        within = (np.maximum(starts[at], epochs) // step + 1) * step - 1
        first = np.where((at < len(ends) - 1) & (within <= ends[at]), within, FAR)
        for boundaries in (self._regular_from_starts(), self._forced_within()):
            first = np.minimum(first, next_after(boundaries, epochs - 1))
        return first

    def newest(self) -> int | None:
        """Return the newest boundary."""
        regular, forced = self.newest_multiple(1), self._forced_within()
        candidates = [epoch for epoch in (regular, int(forced[-1]) if len(forced) else None) if epoch is not None]
        return max(candidates, default=None)

    def newest_multiple(self, stride: int) -> int | None:
        """Return the newest regular boundary whose index is a multiple of `stride`."""
        step = width(self.interval_ms) * stride
        newest = (self.intervals[1] + 1) // step * step - 1
        newest = newest[newest >= self.intervals[0]]
        return int(newest[-1]) if len(newest) else None

    def within(self, low: int, high: int) -> CommitBoundaries:
        """Return the boundaries in [low, high]."""
        return replace(self, intervals=clip(self.intervals, low, high))

    def lag(self, epoch: int, last_epoch: int) -> int:
        """Count the regular boundaries that have been sealed past the epoch."""
        return newest_index(last_epoch, self.interval_ms) - newest_index(epoch, self.interval_ms)

    def _regular_from_starts(self) -> Ints:
        """Return the first regular boundary of each interval that has one."""
        step = width(self.interval_ms)
        first = -(-(self.intervals[0] + 1) // step) * step - 1
        return first[first <= self.intervals[1]]

    def _forced_within(self) -> Ints:
        """Return the forced boundaries within the intervals."""
        starts, ends = self.intervals
        if not len(starts) or not len(self.forced):
            return self.forced[:0]
        at = starts.searchsorted(self.forced, "right") - 1
        return self.forced[(at >= 0) & (self.forced <= ends[at])]


@dataclass(frozen=True, slots=True)
class InputPosition:
    """Position of a job or a log source in its upstreams, and the limits of its next boundaries.

    after: its newest commit, 0 if it has none. interval_ms: its own, a multiple of the store's. forced: the forced
    boundaries, ascending. logs_from: the epoch from which all upstream logs exist. The job commits at no boundary below
    it, nor below an upstream's first commit or safe epoch. reads_states=False: it reads only logs, so safe epochs do
    not limit it.
    """

    upstreams: Sequence[int]
    after: int
    interval_ms: int
    forced: Sequence[int] | Ints = ()
    logs_from: int = 0
    reads_states: bool = True

    def boundaries(self, view: EpochView) -> CommitBoundaries:
        """Return all boundaries past the position at which every upstream is complete and valid."""
        lowest = max(self.logs_from, view.safe_epoch_of(self.upstreams) if self.reads_states else 0)
        complete = min((view.complete_through(up) for up in self.upstreams), default=view.last_epoch)
        intervals = view.common_valid(self.upstreams, max(self.after + 1, lowest), complete)
        return CommitBoundaries(intervals, ints(self.forced), self.interval_ms)

    def first_change(self, view: EpochView) -> int:
        """Return the first epoch past the position at which an upstream may have changed; FAR for none."""
        return min((view.table(up).first_change(self.after) for up in self.upstreams), default=int(FAR))


def next_barrier(
    view: EpochView,
    position: InputPosition,
    *,
    max_lag: int,
    first: bool,
    snapshot: bool,
    oldest: bool = False,
    newest: bool = False,
    drain: int | None = None,
    stride: int = 1,
) -> Barrier | None:
    """Return the next barrier of a job at a position; None if there is nothing to do yet.

    max_lag: in boundaries of the position's interval. first: return a barrier even without a change, at the newest
    boundary. snapshot, with first: take the newest boundary, or the oldest one if `oldest`. newest: merge all
    boundaries. drain: take in everything through that epoch, with a last barrier. stride: a power of two, above 1 for
    a slow view.
    """
    kind: BarrierKind = "initial" if first else "checkpoint"
    after, first_change = position.after, position.first_change(view)
    if first_change == FAR and not first and drain is None:
        return None  # at a cost that does not grow with the number of ancestors
    valid = position.boundaries(view)
    last = None if drain is None else valid.within(drain, int(FAR)).first()
    if last is not None:
        valid = valid.within(0, last)
    if first and snapshot:
        curr = valid.first() if oldest else valid.newest()
        return None if curr is None else Barrier(after, curr, kind)
    changed = valid.within(first_change, int(FAR))
    curr = changed.first()
    if curr is None:
        curr = valid.newest() if first or last is not None else None
        return None if curr is None else Barrier(after, curr, kind)
    if newest:
        return Barrier(after, changed.newest() or curr, kind)
    lag = changed.lag(curr, view.last_epoch)
    merging = max(1 << (lag.bit_length() - 1) if lag > max(max_lag, 0) else 1, stride)
    shared = changed.newest_multiple(merging) if merging > 1 else None
    if shared is None and stride > 1:
        shared = changed.newest()
    return Barrier(after, curr if shared is None else shared, kind)


def input_position(
    job: JobRecord, store_interval_ms: int, forced: Ints, log_starts: Iterable[int] = ()
) -> InputPosition:
    """Return the position of a job in its upstreams. forced: the forced boundaries past the job's position, ascending.
    log_starts: the first epochs of the upstreams' logs.
    """
    logs_from = max(job.rebuild or 0, max(log_starts, default=0))
    return InputPosition(job.upstreams, job.position, store_interval_ms * job.interval, forced, logs_from)


def due_barrier(
    view: EpochView, job: JobRecord, position: InputPosition, *, max_lag: int | None = None, stride: int = 1
) -> Barrier | None:
    """Return `next_barrier` of a job at its `input_position`. max_lag: replaces the job's own."""
    failed = job.view is not None and job.last_error is not None
    return next_barrier(
        view,
        position,
        max_lag=job.max_lag if max_lag is None else max_lag,
        first=job.reads_all_rows or job.position == 0,
        snapshot=job.reads_all_rows,
        oldest=job.view is not None and job.rebuilding and not failed,  # views replaced together change at one epoch
        newest=failed,
        drain=job.drain,
        stride=stride,
    )


def is_caught_up(view: EpochView, job: JobRecord, store_interval_ms: int, position: int, forced: Ints) -> bool:
    """Return True if no upstream is creating, and the job's lag at epoch `position` is within its `max_lag`.

    forced: the forced boundaries past that epoch, ascending.
    """
    behind = lag_in_boundaries(view, InputPosition(job.upstreams, position, store_interval_ms * job.interval, forced))
    return behind <= job.max_lag and all(view.table(up).state != "creating" for up in job.upstreams)


def lag_in_boundaries(view: EpochView, position: InputPosition) -> int:
    """Count the sealed boundaries, in the position's own interval, past the first usable one."""
    first_change = position.first_change(view)
    if first_change == FAR:
        return 0
    boundaries = position.boundaries(view)
    first = boundaries.within(first_change, int(FAR)).first()
    return 0 if first is None else boundaries.lag(first, view.last_epoch)
