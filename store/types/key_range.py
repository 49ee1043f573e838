"""Key ranges: half-open intervals of encoded keys, of files, of reads and of other work."""

from __future__ import annotations

from typing import NamedTuple

from .key_codec import Key


class KeyRange(NamedTuple):
    """Half-open range of encoded keys: [low, high). None is unbounded."""

    low: Key | None = None
    high: Key | None = None

    def overlaps(self, least: Key, greatest: Key) -> bool:
        """Return True if the range may hold a key of a file whose keys lie in [least, greatest]."""
        return (self.low is None or greatest >= self.low) and (self.high is None or least < self.high)

    def intersection(self, other: KeyRange) -> KeyRange | None:
        """Return the keys that both ranges hold; None if there are none."""
        lows = [low for low in (self.low, other.low) if low is not None]
        highs = [high for high in (self.high, other.high) if high is not None]
        low, high = max(lows, default=None), min(highs, default=None)
        return None if low is not None and high is not None and low >= high else KeyRange(low, high)


ALL_KEYS = KeyRange()
