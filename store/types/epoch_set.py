"""Vectorised algebra of sets of epochs, each as sorted disjoint closed intervals in two int64 arrays."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Intervals = tuple[Ints, Ints]
"""Set of epochs: (starts, ends), both inclusive, int64, sorted, disjoint, of equal length."""

FAR = np.iinfo(np.int64).max
"""Value for a missing epoch: larger than every epoch."""


def ints(values: object) -> Ints:
    """Convert any sequence of ints to an int64 array."""
    return np.asarray(values, dtype=np.int64)


def single(start: int, end: int) -> Intervals:
    """Return the interval [start, end]; the empty set when end < start."""
    values = [(start, end)] if start <= end else []
    pairs = ints(values).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def clip(epochs: Intervals, lo: int, hi: int) -> Intervals:
    """Return the part of a set of epochs within [lo, hi]."""
    starts, ends = epochs
    first, last = int(ends.searchsorted(lo)), int(starts.searchsorted(hi, "right"))
    if last <= first:
        return single(1, 0)
    return np.maximum(starts[first:last], lo), np.minimum(ends[first:last], hi)


def intersect(left: Intervals, right: Intervals) -> Intervals:
    """Return the intersection of two sets of epochs."""
    if len(left[0]) == 1:
        return clip(right, int(left[0][0]), int(left[1][0]))
    if len(right[0]) == 1:
        return clip(left, int(right[0][0]), int(right[1][0]))
    (starts, ends), (other_starts, other_ends) = left, right
    first = other_ends.searchsorted(starts)
    counts = np.maximum(other_starts.searchsorted(ends, "right") - first, 0)
    left_at = np.repeat(np.arange(len(starts)), counts)
    right_at = np.arange(len(left_at)) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(first, counts)
    return np.maximum(starts[left_at], other_starts[right_at]), np.minimum(ends[left_at], other_ends[right_at])


def or_from(epochs: Intervals, start: int) -> Intervals:
    """Add all epochs from `start` on to a set of epochs."""
    starts, ends = clip(epochs, 0, start - 1)
    return np.append(starts, start), np.append(ends, FAR)


def coalesce(epochs: Intervals) -> Intervals:
    """Merge the touching intervals of a set of epochs."""
    starts, ends = epochs
    if len(starts) < 2:
        return epochs
    gap = starts[1:] > ends[:-1] + 1
    return starts[np.concatenate(([True], gap))], ends[np.concatenate((gap, [True]))]


def next_after(events: Ints, epochs: Ints) -> Ints:
    """Return for each epoch the first event after it; FAR if there is none."""
    if not len(events):
        return np.full(len(epochs), FAR)
    index = events.searchsorted(epochs, "right")
    following = events[np.minimum(index, len(events) - 1)]
    return np.where(index < len(events), following, FAR)


def first_after(events: Ints, epoch: int) -> int:
    """Return the first event after `epoch`; FAR if there is none."""
    index = int(events.searchsorted(epoch, "right"))
    return int(events[index]) if index < len(events) else int(FAR)


def newest_at(events: Ints, epoch: int) -> int:
    """Return the newest event at or below `epoch`; 0 if there is none."""
    index = int(events.searchsorted(epoch, "right"))
    return int(events[index - 1]) if index else 0
