"""LRU cache bounded by bytes, for values that are costly to read or decode."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
CacheKey = tuple[object, ...]


class LRUCache(Generic[T]):
    """Thread-safe LRU cache bounded by bytes. It lives as long as the process; a forked child starts with an empty one.

    A key must identify the content of its value. size_of: returns the bytes of a value. A spare entry is evicted before
    any entry that is not spare.
    """

    def __init__(self, limit_bytes: int, size_of: Callable[[T], int]) -> None:
        self._limit = limit_bytes
        self._size_of = size_of
        self._reset()
        os.register_at_fork(after_in_child=self._reset)  # another thread may have held the lock at the fork

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._entries: OrderedDict[CacheKey, tuple[T, int]] = OrderedDict()
        self._spare: OrderedDict[CacheKey, tuple[T, int]] = OrderedDict()
        self._bytes = 0

    @property
    def bytes(self) -> int:
        return self._bytes

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

    def _evict(self) -> None:
        while self._bytes > self._limit:
            self._bytes -= (self._spare or self._entries).popitem(last=False)[1][1]
