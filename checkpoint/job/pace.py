"""Interval and permitted lag of a job: given as times or as boundaries, kept as boundaries.

An interval is counted in boundaries of the store, a permitted lag in boundaries of the job's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from epochlog.errors import InvalidInput

DEFAULT_MAX_LAG = 30
"""In the job's own boundaries: 30 s at the default interval."""
MOST_BOUNDARIES = 1 << 53

Interval = int | timedelta
MaxLag = float | timedelta


@dataclass(frozen=True, slots=True)
class Pace:
    """interval: in store boundaries; max_lag: in the job's own. max_lag_ms: the time that max_lag was given as, or None
    when it was given as a number: an interval that is altered later keeps what was given.
    """

    interval: int
    max_lag: int
    max_lag_ms: int | None = None


def make_pace(
    job: str, interval: Interval | None, max_lag: MaxLag | None, store_ms: int, now: Pace | None = None
) -> Pace:
    """Check a pace; None keeps the value of `now`, or takes the default. InvalidInput names the job.

    store_ms: the time between two boundaries of the store.
    """
    every = _interval(job, interval, store_ms) if interval is not None else now.interval if now else 1
    if max_lag is not None:
        return _with_max_lag(job, every, max_lag, store_ms)
    if now is None:
        return Pace(every, DEFAULT_MAX_LAG)
    if now.max_lag_ms is None:
        return Pace(every, now.max_lag)
    return Pace(every, now.max_lag_ms // (every * store_ms), now.max_lag_ms)


def _interval(job: str, interval: Interval, store_ms: int) -> int:
    if isinstance(interval, timedelta):
        count, rest = divmod(interval, timedelta(milliseconds=store_ms))
        if count < 1 or rest:
            near = " or ".join(f"{boundaries_text(near, store_ms)}" for near in (count, count + 1) if near >= 1)
            raise InvalidInput(
                f"job {job!r}: an interval of {interval.total_seconds():,g} s is no whole number of this store's "
                f"boundaries, which lie {store_ms / 1000:,g} s apart; take {near}"
            )
        return count
    if not isinstance(interval, int) or isinstance(interval, bool) or not 1 <= interval <= MOST_BOUNDARIES:
        raise InvalidInput(
            f"job {job!r}: interval is a whole number of store boundaries >= 1 or a timedelta, not {interval!r}"
        )
    return interval


def _with_max_lag(job: str, every: int, max_lag: MaxLag, store_ms: int) -> Pace:
    span = isinstance(max_lag, timedelta)
    count = max_lag / timedelta(milliseconds=every * store_ms) if isinstance(max_lag, timedelta) else max_lag
    if isinstance(count, bool) or not isinstance(count, int | float) or not 0 <= count <= MOST_BOUNDARIES:
        raise InvalidInput(f"job {job!r}: max_lag is a number of boundaries >= 0 or a timedelta, not {max_lag!r}")
    return Pace(every, int(count), max_lag // timedelta(milliseconds=1) if span else None)


def boundaries_text(count: int, boundary_ms: int) -> str:
    """Describe a number of boundaries with its time: '5 boundaries (5 s)'."""
    return f"{count:,} {'boundary' if count == 1 else 'boundaries'} ({count * boundary_ms / 1000:,g} s)"
