"""LRU cache bounded by bytes, for values that are costly to read or decode.

Unused entries are dropped before the bound needs their room: most are of files that compaction has replaced. That takes
no thread: after SWEEP_S, the next `put` of any cache or the next round of maintenance sweeps all caches.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from .clock import monotonic_s

T = TypeVar("T")
CacheKey = tuple[object, ...]

SWEEP_S = 450.0
"""Time between two sweeps, half of vacuum's grace: an entry that is not used goes within that grace."""
_SWEPT: CacheKey = (object(),)
"""Key of the mark between the entries that were used since the last sweep and those that were not."""


class LRUCache(Generic[T]):
    """Thread-safe LRU cache bounded by bytes. It lives as long as the process; a forked child starts with an empty one.

    A key must identify the content of its value. size_of: returns the bytes of a value. A spare entry is evicted before
    any entry that is not spare. name: that of a cache of the whole process, which is swept and shown in metrics.
    """

    def __init__(self, limit_bytes: int, size_of: Callable[[T], int], *, name: str | None = None) -> None:
        self._limit = limit_bytes
        self._size_of = size_of
        self._reset()
        os.register_at_fork(after_in_child=self._reset)  # another thread may have held the lock at the fork
        if name is not None:
            _caches[name] = self

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._entries: OrderedDict[CacheKey, tuple[T | None, int]] = OrderedDict()
        self._spare: OrderedDict[CacheKey, tuple[T | None, int]] = OrderedDict()
        self._bytes = 0

    @property
    def bytes(self) -> int:
        return self._bytes

    @property
    def limit_bytes(self) -> int:
        return self._limit

    def __len__(self) -> int:
        """Return the number of entries."""
        return sum(len(entries) - (_SWEPT in entries) for entries in (self._entries, self._spare))

    def resize(self, limit_bytes: int) -> int:
        """Set the bound, evict what is above it, and return the bound before."""
        with self._lock:
            before, self._limit = self._limit, limit_bytes
            self._evict()
        return before

    def get(self, key: CacheKey) -> T | None:
        with self._lock:
            for entries in (self._entries, self._spare):
                entry = entries.get(key)
                if entry is not None:
                    entries.move_to_end(key)
                    return entry[0]
            return None

    def clear(self) -> None:
        """Remove all entries."""
        with self._lock:
            self._entries.clear()
            self._spare.clear()
            self._bytes = 0

    def put(self, key: CacheKey, value: T, *, spare: bool = False) -> None:
        """Add an entry and evict the least recently used ones above the bound, spare ones first. Do not add a value
        above the bound, nor a spare one that does not fit beside the entries that are not spare.
        """
        drop_idle()
        size = self._size_of(value)
        with self._lock:
            for entries in (self._entries, self._spare):
                if key in entries:
                    self._bytes -= entries.pop(key)[1]
            taken = self._bytes - sum(size for _, size in self._spare.values()) if spare else 0
            if taken + size > self._limit:
                return
            (self._spare if spare else self._entries)[key] = value, size
            self._bytes += size
            self._evict()

    def sweep(self) -> None:
        """Drop the entries that were not used since the sweep before."""
        with self._lock:
            for entries in (self._entries, self._spare):
                while _SWEPT in entries:
                    self._bytes -= entries.popitem(last=False)[1][1]
                entries[_SWEPT] = None, 0

    def _evict(self) -> None:
        while self._bytes > self._limit:
            self._bytes -= (self._spare or self._entries).popitem(last=False)[1][1]


_caches: dict[str, LRUCache[Any]] = {}


def process_caches() -> Iterator[tuple[str, LRUCache[Any]]]:
    """Yield the caches of this process with their names, by name."""
    yield from sorted(_caches.items())


class _Sweeps:
    """Time of the last sweep of all caches."""

    def __init__(self) -> None:
        self.reset()
        os.register_at_fork(after_in_child=self.reset)

    def reset(self) -> None:
        self._lock = threading.Lock()
        self._swept_s = monotonic_s()

    def are_due(self) -> bool:
        """Return True to one caller in each SWEEP_S, which sweeps."""
        if monotonic_s() - self._swept_s < SWEEP_S:
            return False
        with self._lock:
            now_s = monotonic_s()
            due = now_s - self._swept_s >= SWEEP_S
            self._swept_s = now_s if due else self._swept_s
        return due


_sweeps = _Sweeps()


def drop_idle() -> None:
    """Drop the unused entries of all caches of this process, if SWEEP_S have passed since the last time."""
    if _sweeps.are_due():
        for _, cache in process_caches():
            cache.sweep()
