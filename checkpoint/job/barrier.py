"""Choice of a job's next barrier: a pure function of one EpochView, the job's position and the forced boundaries.

The job walks the sealed boundaries past its position. It stops at the first where an upstream is incomplete, passes
over those where an upstream is complete but not valid (that upstream merged them away), and takes the first at
which an upstream has changed. What is complete, and what has changed by when, only grows along the boundaries, so
the walk comes down to: the boundaries within the upstreams' common valid intervals, from the first change on. An
idle week has 600,000 boundaries and no interval but one; nothing here counts boundaries one by one.

A job far behind merges: of those boundaries it takes the newest whose index, counted in the job's own interval, is
a multiple of the largest power of two <= its lag. Jobs that are equally late thus meet at the same stops, and a
reader finds epochs at which all of them are valid. Forced boundaries have no index: they are stops like others, but
none to merge to.

A job that is to be drained at an epoch ends with its first stop there or past it, whether or not anything changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from epochlog.store.epochs.view import EpochView
from epochlog.store.types.epoch import newest_index, width
from epochlog.store.types.epoch_set import FAR, Intervals, Ints, clip, ints

BarrierKind = Literal["initial", "checkpoint"]


@dataclass(frozen=True, slots=True)
class Barrier:
    """Commit point of a job: at `curr` it commits the changes of (prev, curr]; its first barrier is `initial`."""

    prev: int
    curr: int
    kind: BarrierKind


@dataclass(frozen=True, slots=True)
class Stops:
    """The sealed boundaries of one job at which it may commit: those within `where`, regular or forced."""

    where: Intervals
    forced: Ints
    interval_ms: int  # the job's own

    def first(self) -> int | None:
        """Return the oldest stop."""
        regular = self._regular_from_starts()
        forced = self._forced_within()
        found = [int(stops[0]) for stops in (regular, forced) if len(stops)]
        return min(found, default=None)

    def newest(self) -> int | None:
        """Return the newest stop."""
        regular, forced = self.newest_multiple(1), self._forced_within()
        found = [stop for stop in (regular, int(forced[-1]) if len(forced) else None) if stop is not None]
        return max(found, default=None)

    def newest_multiple(self, stride: int) -> int | None:
        """Return the newest regular stop whose index is a multiple of `stride`."""
        step = width(self.interval_ms) * stride
        stops = (self.where[1] + 1) // step * step - 1
        stops = stops[stops >= self.where[0]]
        return int(stops[-1]) if len(stops) else None

    def within(self, low: int, high: int) -> Stops:
        """Return the stops in [low, high]."""
        return replace(self, where=clip(self.where, low, high))

    def lag(self, stop: int, last_epoch: int) -> int:
        """Count the regular boundaries that have been sealed past the epoch `stop`."""
        return newest_index(last_epoch, self.interval_ms) - newest_index(stop, self.interval_ms)

    def _regular_from_starts(self) -> Ints:
        """Return the first regular boundary of each interval that has one."""
        step = width(self.interval_ms)
        stops = -(-(self.where[0] + 1) // step) * step - 1
        return stops[stops <= self.where[1]]

    def _forced_within(self) -> Ints:
        """Return the forced boundaries in `where`."""
        starts, ends = self.where
        if not len(starts) or not len(self.forced):
            return self.forced[:0]
        at = starts.searchsorted(self.forced, "right") - 1
        return self.forced[(at >= 0) & (self.forced <= ends[at])]


def next_barrier(
    view: EpochView,
    upstreams: Sequence[int],
    after: int,
    *,
    interval_ms: int,
    job_interval: int = 1,
    forced: Sequence[int] = (),
    max_lag: int,
    first: bool,
    snapshot: bool,
    logs_from: int = 0,
    drain: int | None = None,
    states: bool = True,
) -> Barrier | None:
    """Return the next barrier of a job whose newest commit is `after` (0: none); None when there is nothing to do yet.

    interval_ms is the store's, job_interval the job's in store boundaries, max_lag in the job's own boundaries;
    `forced` are the forced boundaries, ascending. With `first` the barrier comes even without a change, then at the
    newest stop; with `snapshot` too, it is the newest stop whatever changed. No stop lies below an upstream's first
    commit or safe epoch, nor below `logs_from`, where the upstreams' logs begin: the job goes on by the logs. Without
    `states`, who asks reads the logs alone, and may stop below safe epochs.
    `drain`: everything through that epoch is to be taken in, and the barrier that does it is the last one.
    """
    kind: BarrierKind = "initial" if first else "checkpoint"
    floor = max(logs_from, view.floor(upstreams) if states else 0)
    clean = _stops(view, upstreams, after, interval_ms * job_interval, forced, floor)
    last = None if drain is None else clean.within(drain, int(FAR)).first()
    if last is not None:
        clean = clean.within(0, last)
    if first and snapshot:
        curr = clean.newest()
        return None if curr is None else Barrier(after, curr, kind)
    usable = _past_first_change(view, upstreams, after, clean)
    curr = usable.first()
    if curr is None:
        curr = clean.newest() if first or last is not None else None
        return None if curr is None else Barrier(after, curr, kind)
    lag = usable.lag(curr, view.last_epoch)
    if lag > max(max_lag, 0):
        merged = usable.newest_multiple(1 << (lag.bit_length() - 1))
        curr = curr if merged is None else merged
    return Barrier(after, curr, kind)


def lag_in_boundaries(
    view: EpochView,
    upstreams: Sequence[int],
    after: int,
    *,
    interval_ms: int,
    job_interval: int = 1,
    forced: Sequence[int] = (),
) -> int:
    """Count the sealed boundaries, in the job's own interval, past the first usable one of a job at epoch `after`."""
    clean = _stops(view, upstreams, after, interval_ms * job_interval, forced, view.floor(upstreams))
    first = _past_first_change(view, upstreams, after, clean).first()
    return 0 if first is None else clean.lag(first, view.last_epoch)


def _stops(
    view: EpochView, upstreams: Sequence[int], after: int, interval_ms: int, forced: Sequence[int], floor: int
) -> Stops:
    """Return all stops past `after`, none below `floor`: every upstream is complete and valid there."""
    complete = min((view.complete_through(up) for up in upstreams), default=view.last_epoch)
    where = view.common_valid(upstreams, max(after + 1, floor), complete)
    return Stops(where, ints(forced), interval_ms)


def _past_first_change(view: EpochView, upstreams: Sequence[int], after: int, stops: Stops) -> Stops:
    """Return the stops by which an upstream has changed since `after`."""
    change = min((view.table(up).first_change(after) for up in upstreams), default=int(FAR))
    return stops.within(change, int(FAR))
