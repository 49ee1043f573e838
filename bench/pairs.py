"""Measures contenders in turns, so that what else the machine does falls on all; replays that to pytest-benchmark."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

Samples = dict[str, list[float]]
"""Milliseconds of each contender, by its name; the n-th of all of them were measured one right after another."""


class Took(float):
    """Milliseconds of work that a contender in another process has measured itself."""


def measure(
    work: Mapping[str, Callable[[], Any]], rounds: int, *, warm_up: int = 1, rounds_of: Mapping[str, int] | None = None
) -> Samples:
    """Run each contender once in every round, beginning with another one each time. Results are freed off the clock.
    `rounds_of` has the number of rounds of slow contenders, which take part in the first rounds, and do not warm up.
    """
    samples: Samples = {name: [] for name in work}
    slow = rounds_of or {}
    for place in range(-warm_up, rounds):
        for name in turned(list(work), place):
            if name in slow and not 0 <= place < slow[name]:
                continue
            took = timed(work[name])
            if place >= 0:
                samples[name].append(took)
    return samples


def turned(names: Sequence[str], place: int) -> list[str]:
    """The names, beginning with the place-th."""
    start = place % len(names)
    return [*names[start:], *names[:start]]


def timed(work: Callable[[], Any]) -> float:
    """Milliseconds of one call; garbage of earlier ones is collected before."""
    gc.collect()
    start = perf_counter()
    result = work()
    took = (perf_counter() - start) * 1000
    if isinstance(result, Took):
        return float(result)
    del result
    return took


def joined(*parts: Samples) -> Samples:
    return {name: [took for part in parts for took in part[name]] for name in parts[0]}


def ratio(samples: Samples, ours: str, theirs: str) -> float:
    """Return the median over pairs of ours / theirs: drift of the machine cancels out within a pair. One of them may
    have taken part in the first rounds only.
    """
    return statistics.median(a / b for a, b in zip(samples[ours], samples[theirs], strict=False))


class ReplayClock:
    """A timer for pytest-benchmark, which runs one contender after another: it shows the times measured in pairs."""

    def __init__(self) -> None:
        self._now = 0.0

    def __call__(self) -> float:
        return self._now

    def play(self, benchmark: Any, samples_ms: Sequence[float]) -> None:
        """Give these samples to the benchmark whose timer this is."""
        left = iter(samples_ms)

        def advance() -> None:
            self._now += next(left) / 1000

        benchmark.pedantic(advance, rounds=len(samples_ms))
