"""Sieve of encoded keys: a hash table of single marks that tells most of the keys which a set does not hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from .arrays import to_numpy

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # 2**64 divided by the golden ratio: Knuth's multiplicative hashing
_MARKS_A_KEY = 8


@dataclass(frozen=True, slots=True)
class Sieve:
    """Set of hashes of keys."""

    marked: np.ndarray
    """Bool for each hash, cut to its highest bits; their number is a power of two."""

    @classmethod
    def of(cls, keys: Sequence[pa.Array]) -> Sieve:
        """Make the sieve of the keys of all parts, of a type that `hashed` takes."""
        bits = max(1, (_MARKS_A_KEY * sum(map(len, keys)) - 1).bit_length())
        sieve = cls(np.zeros(1 << bits, np.bool_))
        for part in keys:
            hashes = hashed(part)
            assert hashes is not None
            sieve.marked[sieve._places(hashes)] = True
        return sieve

    def may_hold(self, hashes: np.ndarray) -> np.ndarray:
        """Return bool[hashes]: False where the set has no key of this hash, True for all of its keys and one in eight
        others, at most.
        """
        return self.marked[self._places(hashes)]

    def _places(self, hashes: np.ndarray) -> np.ndarray:
        bits = len(self.marked).bit_length() - 1
        return (hashes >> np.uint64(64 - bits)).view(np.int64)


def hashed(keys: pa.Array) -> np.ndarray | None:
    """Return the uint64 hashes of encoded keys; None for binary keys, for which numpy has none."""
    if pa.types.is_binary(keys.type):
        return None
    mixed = to_numpy(keys).astype(np.int64, copy=False).view(np.uint64) * _MULTIPLIER
    return (mixed ^ (mixed >> np.uint64(32))) * _MULTIPLIER  # twice, for keys at a distance of a power of two
