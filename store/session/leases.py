"""Keeps the leases of this process alive: renewed while their holders live, so that they end only by a close or a
crash. A lease is a catalog record with `expires_ms`: a hold, a writer's intent, or a consumer. Holds may share one
lease of the open store instead, which is renewed once for them all; so do the runners of jobs, by a shorter one.
"""

from __future__ import annotations

import logging
import os
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from epochlog.errors import EpochlogError
from epochlog.store.catalog.keys import lease_key
from epochlog.store.catalog.protocol import Catalog, Txn, View
from epochlog.store.catalog.records import Record

LEASE_MS = 600_000
RUNNER_MS = 10_000
"""How long who runs a job counts as alive without being heard, unless its process is known to have died."""
_log = logging.getLogger("epochlog")


def _always() -> bool:
    return True


_alive: dict[str, Callable[[], bool]] = {}
"""The holders that live in this process, whichever open store keeps their leases, and how to ask whether they still
do.
"""
os.register_at_fork(after_in_child=_alive.clear)


AtEnd = Literal["remove", "leave", "mark", "vacate"]
"""What becomes of a lease when its holder goes: it is removed, left to run out, its end is set to that moment, or the
job record that names the holder as its `runner` names nobody any more.
"""


@dataclass(frozen=True, slots=True)
class _Kept:
    """Records of one holder. A record that names another `holder` was taken over, and is left alone."""

    holder: str
    keys: tuple[bytes, ...]
    length_ms: int
    at_end: AtEnd
    shared: bool = False  # they live by the open store's own lease

    def records(self, view: View) -> Iterator[tuple[bytes, Record]]:
        """Yield the records that are still the holder's."""
        for key in self.keys:
            record = view.get(key)
            if record is not None and record.get("holder", self.holder) == self.holder:
                yield key, record


class Leases:
    """The leases that one open store holds, renewed three times in the length of one.

    A jump of the clock ends none of them: `live` tells whom to count regardless, all over this process.
    """

    def __init__(self, catalog: Catalog, length_ms: int = LEASE_MS) -> None:
        self._catalog = catalog
        self._length_ms = length_ms
        self._renew_ms = length_ms // 3
        self._ended: dict[str, _Kept] = {}  # holders that have gone, and whose records could not be told so yet
        self._written = False  # the own lease may be there
        self._lock = threading.Lock()
        self._held: dict[str, _Kept] = {}
        self._own = uuid.uuid4().hex
        self._pid = os.getpid()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def live(self) -> frozenset[str]:
        """Return the holders that live in this process, those of its other open stores among them."""
        return frozenset(_alive)

    def kept(self, kind: str) -> int:
        """Count the holders of a kind whose leases this open store keeps."""
        self._leave_to_parent()
        with self._lock:
            return sum(holder.startswith(f"{kind}:") for holder in self._held)

    def gone(self, holder: str) -> bool:
        """Return True if a holder of this process reports that it is dead; it is not counted as live from then on."""
        asked = _alive.get(holder)
        if asked is None or asked():
            return False
        _alive.pop(holder, None)
        return True

    def keeps(self, holder: str) -> bool:
        """Return True if this open store still keeps the holder's leases, which have not been revoked then."""
        self._leave_to_parent()
        with self._lock:
            return holder in self._held

    @property
    def closing(self) -> bool:
        """Return True if the store is being closed, or is closed."""
        return self._closed.is_set()

    def own(self, tx: Txn) -> str:
        """Return the name of this open store's own lease, by which holds may live; write it if need be. Part of a
        transaction.

        Whoever takes such holds tells `share` of them then.
        """
        self._leave_to_parent()
        key, now_ms = lease_key(self._own), self._catalog.now_ms()
        record = tx.get(key)
        self._written = True
        if record is None or record["expires_ms"] < now_ms + self._length_ms - self._renew_ms:
            tx.put(key, {"expires_ms": now_ms + self._length_ms})
        return self._own

    def share(
        self,
        holder: str,
        keys: Sequence[bytes],
        *,
        at_end: Literal["remove", "vacate"] = "remove",
        alive: Callable[[], bool] = _always,
    ) -> None:
        """Renew the open store's own lease, by which these holds live, from now on, until `release`.

        alive: asked at each turn; once it says no, the holder is released.
        """
        self._keep(_Kept(holder, tuple(keys), self._length_ms, at_end, shared=True), alive)

    def keep(self, holder: str, keys: Sequence[bytes], length_ms: int = LEASE_MS, *, at_end: AtEnd = "remove") -> None:
        """Renew these records (just written, with their `expires_ms`) from now on, until `release`."""
        self._keep(_Kept(holder, tuple(keys), length_ms, at_end))

    def _keep(self, kept: _Kept, alive: Callable[[], bool] = _always) -> None:
        self._leave_to_parent()
        with self._lock:
            self._held[kept.holder] = kept
            _alive[kept.holder] = alive
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="epochlog-leases", daemon=True)
                self._thread.start()

    def release(self, holder: str) -> None:
        """Give the holder's leases back; a second call does nothing."""
        self._leave_to_parent()
        with self._lock:
            kept = self._held.pop(holder, None)
            _alive.pop(holder, None)
            last = kept is not None and kept.shared and not self._sharing()
        if kept is None or kept.at_end == "leave":
            return

        def body(tx: Txn) -> None:
            if last:  # a hold that is being taken just now lives by its own end until the next renewal
                tx.delete(lease_key(self._own))
            self._end(tx, kept)

        try:
            self._catalog.transact(body)
            self._written = self._written and not last
        except EpochlogError:
            if kept.at_end != "vacate":
                raise
            self._ended[holder] = kept  # others would wait for it as long as this store runs anything

    def _end(self, tx: Txn, kept: _Kept) -> None:
        """Remove or change a holder's records after its end. Part of a transaction."""
        if kept.at_end == "remove":
            for key in kept.keys:
                tx.delete(key)
        elif kept.at_end == "mark":
            for key, record in list(kept.records(tx)):
                tx.put(key, {**record, "expires_ms": self._catalog.now_ms()})
        elif kept.at_end == "vacate":
            for key in kept.keys:
                record = tx.get(key)
                if record is not None and (record.get("runner") or {}).get("holder") == kept.holder:
                    tx.put(key, {**record, "runner": None})

    def forget(self, holder: str) -> None:
        """Stop renewing; the records are left as they are."""
        with self._lock:
            self._held.pop(holder, None)
            _alive.pop(holder, None)

    def renew(self) -> None:
        """Push back the end of every lease of this process. A holder whose records are gone was revoked: it ends."""
        with self._lock:
            kept_now = dict(self._held)
        for holder in kept_now:
            if not _alive.get(holder, _always)():
                self.release(holder)
        with self._lock:
            shared, ended = self._sharing(), dict(self._ended)
            idle = self._written and not shared
            held = {holder: kept for holder, kept in self._held.items() if not kept.shared}

        def body(tx: Txn) -> list[str]:
            end_ms = self._catalog.now_ms() + self._length_ms
            if shared:
                tx.put(lease_key(self._own), {"expires_ms": end_ms})
            elif idle:
                tx.delete(lease_key(self._own))
            for kept in ended.values():
                self._end(tx, kept)
            return [holder for holder, kept in held.items() if not self._renewed(tx, kept)]

        if held or shared or idle or ended:
            for holder in self._catalog.transact(body):
                self.forget(holder)
            with self._lock:
                self._written = self._written and not idle
                for holder in ended:
                    self._ended.pop(holder, None)

    def _renewed(self, tx: Txn, kept: _Kept) -> bool:
        """Extend the records of the holder; return True if there are any. Part of a transaction."""
        records = list(kept.records(tx))
        for key, record in records:
            tx.put(key, {**record, "expires_ms": self._catalog.now_ms() + kept.length_ms})
        return bool(records)

    def _sharing(self) -> bool:
        """Return True if any holder lives by the open store's own lease."""
        return any(kept.shared for kept in self._held.values())

    def close(self) -> None:
        """Give back all leases and end the renewing thread. Those that cannot be given back now run out."""
        self._leave_to_parent()
        self._closed.set()
        try:
            if any(kept.at_end == "leave" for kept in self._held.values()):
                self.renew()
            for holder in list(self._held):
                self.release(holder)
            if self._ended or self._written:
                self.renew()
        except EpochlogError as error:
            _log.warning("leases could not be given back, they run out by themselves: %s", error)
        finally:
            for holder in list(self._held):
                self.forget(holder)
        if self._thread is not None:
            self._thread.join()

    def _leave_to_parent(self) -> None:
        """Begin anew in a forked child: the leases so far are its parent's to renew and to give back."""
        if self._pid != os.getpid():
            self._pid, self._lock, self._held, self._thread = os.getpid(), threading.Lock(), {}, None
            self._own, self._ended, self._written = uuid.uuid4().hex, {}, False

    def _run(self) -> None:
        while not self._closed.wait(self._renew_ms / 1000):
            try:
                self.renew()
            except EpochlogError as error:  # tried again at the next turn, long before a lease ends
                _log.warning("leases could not be renewed: %s", error)
