"""Exponential backoff: the delays between consecutive attempts or polls."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays in seconds: the first is `first_s`, each next one is `factor` times longer, up to `limit_s`."""

    first_s: float
    limit_s: float
    factor: float = 2.0

    def delay_s(self, count: int) -> float:
        """Return the seconds to wait after `count` consecutive attempts have failed, or `count` polls were empty.

        count: 1 or more.
        """
        if count < 1:
            raise ValueError(f"count must be 1 or more, not {count}")
        try:
            return min(self.first_s * self.factor ** (count - 1), self.limit_s)
        except OverflowError:
            return self.limit_s
