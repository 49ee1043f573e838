"""LRU cache bounded by bytes, for values that are costly to read or decode."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
Name = tuple[object, ...]


class LRUCache(Generic[T]):
    """Thread-safe LRU cache bounded by bytes. A name must identify the content of its value. A forked child starts with
    an empty cache. It lives as long as the process.
    """

    def __init__(self, limit_bytes: int, weigh: Callable[[T], int]) -> None:
        self._limit = limit_bytes
        self._weigh = weigh
        self._start()
        os.register_at_fork(after_in_child=self._start)  # another thread may have been in the middle of a change

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[Name, tuple[T, int]] = OrderedDict()
        self._bytes = 0

    @property
    def bytes(self) -> int:
        return self._bytes

    def get(self, name: Name) -> T | None:
        with self._lock:
            found = self._kept.get(name)
            if found is None:
                return None
            self._kept.move_to_end(name)
            return found[0]

    def drop(self) -> None:
        """Remove all entries."""
        with self._lock:
            self._kept.clear()
            self._bytes = 0

    def put(self, name: Name, thing: T) -> None:
        """Add an entry and evict the least recently used ones above the bound; a value larger than the bound is not
        added.
        """
        size = self._weigh(thing)
        if size > self._limit:
            return
        with self._lock:
            old = self._kept.pop(name, None)
            self._bytes += size - (old[1] if old is not None else 0)
            self._kept[name] = thing, size
            while self._bytes > self._limit:
                self._bytes -= self._kept.popitem(last=False)[1][1]
