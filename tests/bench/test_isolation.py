"""Windows of the bench of isolation, on a machine that is too slow for a boundary in each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from bench_isolation import Kind, windows


class SlowCrowd:
    """Jobs whose every other window passes without a commit."""

    interval_ms = 1

    def __init__(self) -> None:
        self.asked = 0

    @contextmanager
    def window(self, names: Sequence[str]) -> Iterator[None]:
        yield

    def all_past(self, end: float, names: Sequence[str]) -> bool:
        return True

    def since(self, start: float, end: float, names: Sequence[str]) -> list[float]:
        self.asked += 1
        return [] if self.asked % 2 else [float(self.asked)]


def test_a_window_without_a_commit_is_repeated() -> None:
    crowd, acts = SlowCrowd(), []
    samples = windows(crowd, ["j"], {"quiet": Kind(acts.append)}, 0.01)
    assert samples == {"quiet": [4.0]}  # the first round is not measured
    assert len(acts) == 4
