"""Exponential backoff: the delays between attempts, or looks, that follow one another."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays in seconds: the first one, then each `factor` times the one before it, never more than `limit_s`."""

    first_s: float
    limit_s: float
    factor: float = 2.0

    def delay_s(self, count: int) -> float:
        """Return the seconds to wait after `count` attempts in a row have failed, or `count` looks have found nothing.

        count: 1 or more.
        """
        if count < 1:
            raise ValueError(f"count is 1 or more, not {count}")
        try:
            return min(self.first_s * self.factor ** (count - 1), self.limit_s)
        except OverflowError:
            return self.limit_s
