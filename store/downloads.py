"""Files that were downloaded and found whole, kept in memory within a bound: ranges of one file cost one download."""

from __future__ import annotations

import threading
from collections import OrderedDict

import pyarrow as pa

LIMIT_BYTES = 256 << 20

Name = tuple[object, ...]


class Downloads:
    """The files used last, by a name that says what is in them. Safe to use from several threads."""

    def __init__(self, limit: int = LIMIT_BYTES) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._kept: OrderedDict[Name, pa.Buffer] = OrderedDict()
        self._bytes = 0

    def get(self, name: Name) -> pa.Buffer | None:
        with self._lock:
            data = self._kept.get(name)
            if data is not None:
                self._kept.move_to_end(name)
            return data

    def put(self, name: Name, data: pa.Buffer) -> None:
        """Keep it, and let go of those that were not used for longest; one above the limit is not kept at all."""
        if data.size > self._limit:
            return
        with self._lock:
            old = self._kept.pop(name, None)
            self._bytes += data.size - (old.size if old is not None else 0)
            self._kept[name] = data
            while self._bytes > self._limit:
                self._bytes -= self._kept.popitem(last=False)[1].size


downloads = Downloads()
