"""Interval and permitted lag of a job, converted from times to boundaries.

An interval counts boundaries of the store. A permitted lag counts boundaries of the job.
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
class JobIntervals:
    """Interval in store boundaries, and permitted lag in boundaries of the job.

    max_lag_ms: the time that the user gave for max_lag, or None for a number. An altered interval keeps that time, or
    that number.
    """

    interval: int
    max_lag: int
    max_lag_ms: int | None = None


def make_intervals(
    job: str, interval: Interval | None, max_lag: MaxLag | None, store_ms: int, current: JobIntervals | None = None
) -> JobIntervals:
    """Build a job's intervals. None keeps the value of `current`, or takes the default. Raises InvalidInput, which
    names the job.

    store_ms: the time between two boundaries of the store.
    """
    boundaries = _interval(job, interval, store_ms) if interval is not None else current.interval if current else 1
    if max_lag is not None:
        return _with_max_lag(job, boundaries, max_lag, store_ms)
    if current is None:
        return JobIntervals(boundaries, DEFAULT_MAX_LAG)
    if current.max_lag_ms is None:
        return JobIntervals(boundaries, current.max_lag)
    return JobIntervals(boundaries, current.max_lag_ms // (boundaries * store_ms), current.max_lag_ms)


def _interval(job: str, interval: Interval, store_ms: int) -> int:
    if isinstance(interval, timedelta):
        count, remainder = divmod(interval, timedelta(milliseconds=store_ms))
        if count < 1 or remainder:
            suggestions = [boundaries_text(number, store_ms) for number in (count, count + 1) if number >= 1]
            raise InvalidInput(
                f"job {job!r}: an interval of {interval.total_seconds():,g} s is no whole number of this store's "
                f"boundaries, which lie {store_ms / 1000:,g} s apart; take {' or '.join(suggestions)}"
            )
        return count
    if not isinstance(interval, int) or isinstance(interval, bool) or not 1 <= interval <= MOST_BOUNDARIES:
        raise InvalidInput(
            f"job {job!r}: interval is a whole number of store boundaries >= 1 or a timedelta, not {interval!r}"
        )
    return interval


def _with_max_lag(job: str, boundaries: int, max_lag: MaxLag, store_ms: int) -> JobIntervals:
    is_time = isinstance(max_lag, timedelta)
    count = max_lag / timedelta(milliseconds=boundaries * store_ms) if isinstance(max_lag, timedelta) else max_lag
    if isinstance(count, bool) or not isinstance(count, int | float) or not 0 <= count <= MOST_BOUNDARIES:
        raise InvalidInput(f"job {job!r}: max_lag is a number of boundaries >= 0 or a timedelta, not {max_lag!r}")
    return JobIntervals(boundaries, int(count), max_lag // timedelta(milliseconds=1) if is_time else None)


def boundaries_text(count: int, boundary_ms: int) -> str:
    """Describe a number of boundaries with its time: '5 boundaries (5 s)'."""
    return f"{count:,} {'boundary' if count == 1 else 'boundaries'} ({count * boundary_ms / 1000:,g} s)"
