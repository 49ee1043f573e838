"""Leases of one open store: catalog records with `expires_ms`, renewed by a thread until a close or a crash.

A lease is a hold, a write intent, or a consumer. Holds may also share one lease of the open store, which is renewed
once for all of them. The runners of jobs share a shorter one.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from epochlog.errors import Corrupt, EpochlogError
from epochlog.store.catalog.keys import lease_key
from epochlog.store.catalog.protocol import Catalog, ReadTxn, Txn
from epochlog.store.catalog.records import Record
from epochlog.store.env.log_events import LEASES_LEFT, RETRY, RUNNER_LEFT

LEASE_MS = 600_000
RUNNER_MS = 10_000
"""Time after its last renewal for which a runner counts as alive, unless its process is known to have died."""


def _always() -> bool:
    return True


_alive_holders: dict[str, Callable[[], bool]] = {}
"""Holders that live in this process, over all open stores, each with a function that returns False once it is dead."""
os.register_at_fork(after_in_child=_alive_holders.clear)


AtEnd = Literal["remove", "leave", "keep", "mark", "vacate"]
"""Effect of a release on the holder's records: delete them, leave them to expire, set their expiry to now (keep: and
clear `holder`; what they hold is kept for a given time from then on), or clear the `runner` of the job record that
names the holder.
"""


@dataclass(frozen=True, slots=True)
class _HeldLease:
    """Lease records of one holder. A record that names another `holder` or `owner` was taken over, and is not
    touched.
    """

    holder: str
    keys: tuple[bytes, ...]
    length_ms: int
    at_end: AtEnd
    shared: bool = False  # they live by the open store's lease

    @property
    def lasts(self) -> bool:
        """Return True if the records count for a given time after the holder's end, so a clock that was set back must
        not shorten it.
        """
        return self.at_end in ("leave", "keep")

    def records(self, view: ReadTxn) -> Iterator[tuple[bytes, Record]]:
        """Yield the records that are still the holder's."""
        for key in self.keys:
            record = view.get(key)
            if record is not None and record.get("holder", record.get("owner", self.holder)) == self.holder:
                yield key, record


class Leases:
    """Leases of one open store, renewed three times within the length of a lease.

    A jump of the clock ends none of them: all holders in `live` count as alive in this process. A store that was opened
    read-only has holders without records, so nothing is renewed.
    """

    def __init__(
        self,
        catalog: Catalog,
        latest_ms: Callable[[ReadTxn], int],
        length_ms: int = LEASE_MS,
        *,
        read_only: bool = False,
    ) -> None:
        self._catalog = catalog
        self.latest_ms = latest_ms
        self._read_only = read_only
        self._length_ms = length_ms
        self._renew_ms = length_ms // 3
        self._ended: dict[str, _HeldLease] = {}  # released holders whose records could not be changed yet
        self._written = False  # True if the open store's lease may be in the catalog
        self._lock = threading.Lock()
        self._held: dict[str, _HeldLease] = {}
        self._store_lease = uuid.uuid4().hex
        self._pid = os.getpid()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def live(self) -> frozenset[str]:
        """Return the holders that live in this process, including those of its other open stores."""
        return frozenset(_alive_holders)

    def is_live(self, holder: str) -> bool:
        """Return True if the holder is in `live`, at a cost that does not grow with the number of holders."""
        return holder in _alive_holders

    def count(self, kind: str) -> int:
        """Count the holders of a kind whose leases this open store renews."""
        self._reset_after_fork()
        with self._lock:
            return sum(holder.startswith(f"{kind}:") for holder in self._held)

    def has_died(self, holder: str) -> bool:
        """Return True if a holder of this process reports that it is dead. From then on it is not in `live`."""
        is_alive = _alive_holders.get(holder)
        if is_alive is None or is_alive():
            return False
        _alive_holders.pop(holder, None)
        return True

    def holds(self, holder: str) -> bool:
        """Return True if this open store renews the holder's leases, which are then not known to be revoked."""
        self._reset_after_fork()
        with self._lock:
            return holder in self._held

    @property
    def closing(self) -> bool:
        """Return True once the close of the store has begun."""
        return self._closed.is_set()

    def store_lease(self, tx: Txn) -> str:
        """Return the name of the open store's lease, by which holds may live; write it if necessary. Call inside a
        transaction.

        The caller passes the holds to `share` after the transaction.
        """
        self._reset_after_fork()
        key, now_ms = lease_key(self._store_lease), self._catalog.now_ms()
        record = tx.get(key)
        self._written = not self._read_only
        if record is None or record["expires_ms"] < now_ms + self._length_ms - self._renew_ms:
            tx.put(key, {"expires_ms": now_ms + self._length_ms})
        return self._store_lease

    def share(
        self,
        holder: str,
        keys: Sequence[bytes],
        *,
        at_end: Literal["remove", "vacate"] = "remove",
        alive: Callable[[], bool] = _always,
    ) -> None:
        """Renew the open store's lease, by which these holds live, until `release`.

        alive: called at each renewal; once it returns False, the holder is released.
        """
        self._add(_HeldLease(holder, tuple(keys), self._length_ms, at_end, shared=True), alive)

    def keep(self, holder: str, keys: Sequence[bytes], length_ms: int = LEASE_MS, *, at_end: AtEnd = "remove") -> None:
        """Renew these records, which the caller has just written with their `expires_ms`, until `release`."""
        self._add(_HeldLease(holder, tuple(keys), length_ms, at_end))

    def _add(self, lease: _HeldLease, alive: Callable[[], bool] = _always) -> None:
        self._reset_after_fork()
        with self._lock:
            self._held[lease.holder] = lease
            _alive_holders[lease.holder] = alive
            if self._thread is None and not self._read_only:
                self._thread = threading.Thread(target=self._run, name="epochlog-leases", daemon=True)
                self._thread.start()

    def release(self, holder: str) -> None:
        """End the holder's leases; a second call does nothing."""
        self.release_all([holder])

    def release_all(self, holders: Iterable[str]) -> None:
        """End the leases of several holders, in one transaction. A second call does nothing."""
        self._reset_after_fork()
        with self._lock:
            popped = [(holder, self._held.pop(holder, None)) for holder in holders]
            for holder, _ in popped:
                _alive_holders.pop(holder, None)
            leases = [lease for _, lease in popped if lease is not None]
            last = any(lease.shared for lease in leases) and not self._has_shared()
        ending = [lease for lease in leases if lease.at_end != "leave"]
        if not ending or self._read_only:
            return

        def body(tx: Txn) -> None:
            if last:  # a hold that is just being taken is valid until its own expiry, and renewed before that
                tx.delete(lease_key(self._store_lease))
            for lease in ending:
                self._end_lease(tx, lease)

        try:
            self._catalog.transact(body)
            self._written = self._written and not last
        except EpochlogError:
            # Retried at the renewals: other processes would wait while this store has other runners.
            self._ended.update({lease.holder: lease for lease in ending if lease.at_end == "vacate"})
            if any(lease.at_end != "vacate" for lease in ending):
                raise

    def _end_lease(self, tx: Txn, lease: _HeldLease) -> None:
        """Delete or change the records of a released holder. Call inside a transaction."""
        if lease.at_end == "remove":
            for key in lease.keys:
                tx.delete(key)
        elif lease.at_end in ("mark", "keep"):
            ended = {"holder": ""} if lease.at_end == "keep" else {}
            for key, record in list(lease.records(tx)):
                tx.put(key, {**record, **ended, "expires_ms": self._now_ms(tx, lease)})
        elif lease.at_end == "vacate":
            for key in lease.keys:
                try:
                    record = tx.get(key)
                except Corrupt as error:  # the other leases of this transaction must end all the same
                    RUNNER_LEFT.log(error=error)
                    continue
                if record is not None and (record.get("runner") or {}).get("holder") == lease.holder:
                    tx.put(key, {**record, "runner": None})

    def forget(self, holder: str) -> None:
        """Stop the renewal of a holder's records, without changing them."""
        with self._lock:
            self._held.pop(holder, None)
            _alive_holders.pop(holder, None)

    def renew(self) -> None:
        """Extend every lease of this open store. Forget a holder whose records are gone: vacuum has revoked it."""
        with self._lock:
            held_now = dict(self._held)
        for holder in held_now:
            if not _alive_holders.get(holder, _always)():
                self.release(holder)
        with self._lock:
            shared, ended = self._has_shared(), dict(self._ended)
            idle = self._written and not shared
            held = {holder: lease for holder, lease in self._held.items() if not lease.shared}

        def body(tx: Txn) -> list[str]:
            end_ms = self._catalog.now_ms() + self._length_ms
            if shared:
                tx.put(lease_key(self._store_lease), {"expires_ms": end_ms})
            elif idle:
                tx.delete(lease_key(self._store_lease))
            for lease in ended.values():
                self._end_lease(tx, lease)
            return [holder for holder, lease in held.items() if not self._extend(tx, lease)]

        if held or shared or idle or ended:
            for holder in self._catalog.transact(body):
                self.forget(holder)
            with self._lock:
                self._written = self._written and not idle
                for holder in ended:
                    self._ended.pop(holder, None)

    def _extend(self, tx: Txn, lease: _HeldLease) -> bool:
        """Extend the records of the holder; return True if there are any. Call inside a transaction."""
        records = list(lease.records(tx))
        for key, record in records:
            tx.put(key, {**record, "expires_ms": self._now_ms(tx, lease) + lease.length_ms})
        return bool(records)

    def _now_ms(self, view: ReadTxn, lease: _HeldLease) -> int:
        """Return the time from which on to count the end of a lease."""
        return self.latest_ms(view) if lease.lasts else self._catalog.now_ms()

    def _has_shared(self) -> bool:
        """Return True if any holder lives by the open store's lease."""
        return any(lease.shared for lease in self._held.values())

    def close(self) -> None:
        """End all leases and the renewing thread. Leases that cannot be ended now expire."""
        self._reset_after_fork()
        self._closed.set()
        try:
            if any(lease.at_end == "leave" for lease in self._held.values()):
                self.renew()
            for holder in list(self._held):
                self.release(holder)
            if self._ended or self._written:
                self.renew()
        except EpochlogError as error:
            LEASES_LEFT.log(error=error)
        finally:
            for holder in list(self._held):
                self.forget(holder)
        if self._thread is not None:
            self._thread.join()

    def _reset_after_fork(self) -> None:
        """Reset the state in a forked child: the parent renews and ends the leases so far."""
        if self._pid != os.getpid():
            self._pid, self._lock, self._held, self._thread = os.getpid(), threading.Lock(), {}, None
            self._store_lease, self._ended, self._written = uuid.uuid4().hex, {}, False

    def _run(self) -> None:
        while not self._closed.wait(self._renew_ms / 1000):
            try:
                self.renew()
            except EpochlogError as error:  # the next renewal comes long before a lease expires
                RETRY.log(what="the renewal of leases", error=error)
