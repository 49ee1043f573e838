"""Leases of staged queries: a server renews the leases of the queries in use through it; other leases expire."""

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
    streams: int = 0
    used_s: float = field(default_factory=monotonic_s)
    renewed_s: float = field(default_factory=monotonic_s)

    @property
    def idle_s(self) -> float:
        return 0.0 if self.streams else monotonic_s() - self.used_s


class QueryLeases:
    """Leases of the queries in use through one server. Each use restarts the lease of its query; an open stream is a
    lasting use.
    """

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._lock = threading.Lock()
        self._uses: dict[str, _Use] = {}

    def touch(self, query: StagedQuery) -> None:
        """Record a use of the query, and begin to renew its lease."""
        with self._lock:
            use = self._uses.get(query.name)
            if use is not None:
                use.used_s = monotonic_s()
                return
            self._uses[query.name] = _Use(query.lease_ms)
        # this process counts the lease as live, so that a jump of the clock cannot end it
        holder, key = query_holder(query.name), query_key(query.name)
        self._handle.leases.keep(holder, [key], query.lease_ms, at_end="leave")

    @contextmanager
    def open(self, query: StagedQuery) -> Iterator[None]:
        """Count a stream of the query as open inside of the block."""
        self.touch(query)
        with self._lock:
            use = self._uses[query.name]
            use.streams += 1
        try:
            yield
        finally:
            with self._lock:
                use.streams -= 1
                use.used_s = monotonic_s()

    def forget(self, query: str) -> None:
        """Remove a query that was dropped or is unused from the registry."""
        with self._lock:
            self._uses.pop(query, None)
        self._handle.leases.forget(query_holder(query))

    @property
    def period_s(self) -> float:
        """Return the longest interval between two calls of `renew`, in seconds."""
        with self._lock:
            return min((use.lease_ms / 4_000 for use in self._uses.values()), default=60.0)

    def renew(self) -> None:
        """Renew the leases in the catalog, and forget queries that were unused for half of their lease: these leases
        expire.
        """
        now_s = monotonic_s()
        with self._lock:
            due = {name: use for name, use in self._uses.items() if now_s - use.renewed_s >= use.lease_ms / 5_000}
            unused = [name for name, use in due.items() if use.idle_s > use.lease_ms / 2_000]
        if not due:
            return

        def body(tx: Txn) -> list[str]:
            dropped = []
            for name, use in due.items():
                record = tx.get(query_key(name))
                if record is None or record["dropped"]:
                    dropped.append(name)
                    continue
                expires_ms = self._handle.catalog.now_ms() + use.lease_ms - round(use.idle_s * 1000)
                tx.put(query_key(name), {**record, "expires_ms": expires_ms})
            return dropped

        dropped = self._handle.catalog.transact(body)
        for use in due.values():
            use.renewed_s = now_s
        for name in {*unused, *dropped}:
            self.forget(name)

    def close(self) -> None:
        for name in list(self._uses):
            self.forget(name)
