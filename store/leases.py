"""Keeps the leases of this process alive: renewed while their holders live, so that they end only by a close or a
crash.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from dataclasses import replace

from ..errors import EpochlogError
from .catalog import Catalog, Txn
from .holds import Hold, put_holds, release_holds
from .records import hold_key

LEASE_MS = 600_000
_RENEW_S = LEASE_MS / 1000 / 3
_log = logging.getLogger("epochlog")


class Leases:
    """The leases that one open store holds.

    A jump of the clock ends none of them: `live` tells whom to count regardless.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._lock = threading.Lock()
        self._held: dict[str, tuple[int, ...]] = {}
        self._pid = os.getpid()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def live(self) -> frozenset[str]:
        """Holders that live in this process."""
        self._leave_to_parent()
        with self._lock:
            return frozenset(self._held)

    def take(self, tx: Txn, holds: Sequence[Hold]) -> None:
        """Write leases (all of one holder) as part of a transaction; call `keep` once it has gone through."""
        expires_ms = self._catalog.now_ms() + LEASE_MS
        put_holds(tx, [replace(hold, expires_ms=expires_ms) for hold in holds])

    def keep(self, holder: str, table_ids: Sequence[int]) -> None:
        """Renew the holder's leases from now on, until `release`."""
        self._leave_to_parent()
        with self._lock:
            self._held[holder] = tuple(table_ids)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="epochlog-leases", daemon=True)
                self._thread.start()

    def release(self, holder: str) -> None:
        """Give the holder's leases back; a second call does nothing."""
        self._leave_to_parent()
        with self._lock:
            tables = self._held.pop(holder, None)
        if tables:
            self._catalog.transact(lambda tx: release_holds(tx, holder, tables))

    def renew(self) -> None:
        """Push back the end of every lease of this process that is still there."""
        with self._lock:
            held = dict(self._held)

        def body(tx: Txn) -> None:
            expires_ms = self._catalog.now_ms() + LEASE_MS
            for holder, tables in held.items():
                for table_id in tables:
                    record = tx.get(hold_key(table_id, holder))
                    if record is not None:
                        tx.put(hold_key(table_id, holder), {**record, "expires_ms": expires_ms})

        if held:
            self._catalog.transact(body)

    def close(self) -> None:
        """Give back all leases and end the renewing thread."""
        self._leave_to_parent()
        self._closed.set()
        for holder in self.live:
            self.release(holder)
        if self._thread is not None:
            self._thread.join()

    def _leave_to_parent(self) -> None:
        """In a forked child: the leases so far are its parent's to renew and to give back."""
        if self._pid != os.getpid():
            self._pid, self._lock, self._held, self._thread = os.getpid(), threading.Lock(), {}, None

    def _run(self) -> None:
        while not self._closed.wait(_RENEW_S):
            try:
                self.renew()
            except EpochlogError as error:  # tried again at the next turn, long before a lease ends
                _log.warning("leases could not be renewed: %s", error)
