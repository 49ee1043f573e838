"""Histograms of durations, with the bounds and sums that Prometheus expects."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


@dataclass(slots=True)
class Histogram:
    """Histogram of seconds."""

    counts: list[int] = field(default_factory=lambda: [0] * len(BOUNDS_S))
    """For each bound, the number of durations up to it."""
    total: int = 0
    sum_s: float = 0.0

    def observe(self, seconds: float) -> None:
        self.total += 1
        self.sum_s += seconds
        for place, bound in enumerate(BOUNDS_S):
            self.counts[place] += seconds <= bound


class Histograms:
    """Histograms by labels. Safe for several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._histograms: dict[tuple[str, ...], Histogram] = {}

    def observe(self, labels: tuple[str, ...], seconds: float) -> None:
        with self._lock:
            self._histograms.setdefault(labels, Histogram()).observe(seconds)

    def items(self) -> Iterator[tuple[tuple[str, ...], Histogram]]:
        """Yield a copy of each histogram with its labels, sorted by them."""
        with self._lock:
            copies = {labels: Histogram([*h.counts], h.total, h.sum_s) for labels, h in self._histograms.items()}
        yield from sorted(copies.items())
