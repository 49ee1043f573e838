"""Leases of staged queries: a server renews those of the queries in use by way of it, and lets the others run out."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from epochlog.store.catalog.protocol import Txn
from epochlog.store.env.clock import monotonic_s
from epochlog.store.metadata.exchange_records import query_holder, query_key
from epochlog.store.session.handle import Handle

from .state import StagedQuery


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
    """Registry of the queries used by way of one server. A lease begins anew with each use, and lasts while a line is
    open.
    """

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._lock = threading.Lock()
        self._found: dict[str, _Use] = {}

    def touch(self, query: StagedQuery) -> None:
        """Record a use of the query, and keep its lease."""
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
    def open(self, query: StagedQuery) -> Iterator[None]:
        """Count a line of the query as open inside of the block."""
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
        """Drop a query from the registry: it was dropped, or nobody uses it."""
        with self._lock:
            self._found.pop(query, None)
        self._handle.leases.forget(query_holder(query))

    @property
    def period_s(self) -> float:
        """Return the longest time, in seconds, that may lie between two calls of `renew`."""
        with self._lock:
            return min((use.lease_ms / 4_000 for use in self._found.values()), default=60.0)

    def renew(self) -> None:
        """Write the new ends of the leases to the catalog; queries unused for half of their lease are forgotten and run
        out.
        """
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
