"""Which queries are in use here: their leases are renewed as long as they are, and run out after."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ...store.catalog import Txn
from ...store.clock import monotonic_s
from ...store.exchanges import query_holder, query_key
from ...store.handle import Handle
from .state import Query


@dataclass(slots=True)
class _Use:
    lease_ms: int
    lines: int = 0
    used_s: float = field(default_factory=monotonic_s)
    renewed_s: float = field(default_factory=monotonic_s)

    @property
    def idle_s(self) -> float:
        return 0.0 if self.lines else monotonic_s() - self.used_s


class Uses:
    """Queries used by way of one server. A lease begins anew with each use, and lasts while a line is open."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._lock = threading.Lock()
        self._found: dict[str, _Use] = {}

    def touch(self, query: Query) -> None:
        """Somebody has used the query."""
        with self._lock:
            use = self._found.get(query.name)
            if use is not None:
                use.used_s = monotonic_s()
                return
            self._found[query.name] = _Use(query.lease_ms)
        # counts as alive in this process, so that no jump of the clock ends it
        holder, key = query_holder(query.name), query_key(query.name)
        self._handle.leases.keep(holder, [key], query.lease_ms, at_end="leave")

    @contextmanager
    def open(self, query: Query) -> Iterator[None]:
        """A line of the query is open meanwhile."""
        self.touch(query)
        with self._lock:
            use = self._found[query.name]
            use.lines += 1
        try:
            yield
        finally:
            with self._lock:
                use.lines -= 1
                use.used_s = monotonic_s()

    def forget(self, query: str) -> None:
        """The query was dropped."""
        with self._lock:
            self._found.pop(query, None)
        self._handle.leases.forget(query_holder(query))

    @property
    def period_s(self) -> float:
        """How often `renew` must be called at the least."""
        with self._lock:
            return min((use.lease_ms / 4_000 for use in self._found.values()), default=60.0)

    def renew(self) -> None:
        """Write down how long the leases last; those of queries that nobody has used for half of theirs are left."""
        now_s = monotonic_s()
        with self._lock:
            due = {name: use for name, use in self._found.items() if now_s - use.renewed_s >= use.lease_ms / 5_000}
            left = [name for name, use in due.items() if use.idle_s > use.lease_ms / 2_000]
        if not due:
            return

        def body(tx: Txn) -> list[str]:
            gone = []
            for name, use in due.items():
                record = tx.get(query_key(name))
                if record is None or record["dropped"]:
                    gone.append(name)
                    continue
                expires_ms = self._handle.catalog.now_ms() + use.lease_ms - round(use.idle_s * 1000)
                tx.put(query_key(name), {**record, "expires_ms": expires_ms})
            return gone

        gone = self._handle.catalog.transact(body)
        for use in due.values():
            use.renewed_s = now_s
        for name in {*left, *gone}:
            self.forget(name)

    def close(self) -> None:
        for name in list(self._found):
            self.forget(name)
