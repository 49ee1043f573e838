"""Write intents: leases under which writers make files. Vacuum spares the files of a live intent; a commit requires it.

An intent is registered before its first file is written, and every file has the intent in its name:
`<folder>/<intent>-<unique>.<ending>`. A commit requires, in its transaction, that the intents of its segments exist.
Vacuum revokes an expired intent by deleting it, in a transaction too. So exactly one of the two succeeds.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from epochlog.errors import SegmentUnknown, StoreClosed
from epochlog.store.catalog.keys import INTENT_PREFIX, intent_key
from epochlog.store.catalog.protocol import Catalog, ReadTxn, Txn, scan_prefix
from epochlog.store.catalog.records import Record
from epochlog.store.env.failpoints import hit
from epochlog.store.env.paths import intent_of

from .leases import LEASE_MS, Leases

SEALED_MS = 86_400_000
"""Time for which sealed segments can be committed after their store was closed, or its process died."""


@dataclass(frozen=True, slots=True)
class Intent:
    """Record of a write intent. Times are Unix milliseconds."""

    id: str
    kind: str
    """Kind of the writer: "store" for the writers of an open store, "spark" for a batch of Spark."""
    since_ms: int
    expires_ms: int
    by: str = ""
    """Process that registered it, as `1234 on host`."""

    def to_record(self) -> Record:
        return asdict(self)


def all_intents(view: ReadTxn) -> list[Intent]:
    return [Intent(**record) for _, record in scan_prefix(view, INTENT_PREFIX)]


def find_revoked_intent(view: ReadTxn, paths: Iterable[str]) -> str | None:
    """Return an intent of these files that vacuum has revoked, so that its files may be deleted at any time; None if
    there is none.
    """
    intents = dict.fromkeys(intent_of(path) for path in paths)
    return next((intent or "?" for intent in intents if view.get(intent_key(intent)) is None), None)


def require_intents(view: ReadTxn, table: str, paths: Iterable[str]) -> None:
    """Raise SegmentUnknown if vacuum has revoked the intent of one of these segments."""
    intent = find_revoked_intent(view, paths)
    if intent is not None:
        raise SegmentUnknown(
            f"table {table!r}: the write intent {intent} of its segments has ended or was revoked; write the rows "
            "again, then commit them"
        )


def end_intents(tx: Txn, intents: Iterable[str]) -> None:
    """Delete the intents. Commits then refuse their files, and vacuum deletes them. Call inside a transaction."""
    for intent in intents:
        tx.delete(intent_key(intent))


class Intents:
    """Write intents of one open store: one for all its own writers, and one for each batch of Spark."""

    def __init__(self, catalog: Catalog, leases: Leases) -> None:
        self._catalog = catalog
        self._leases = leases
        self._lock = threading.Lock()
        self._store_intent: str | None = None
        self._sealed = False
        self._pid = os.getpid()

    def store_intent(self, *, sealed: bool = False) -> str:
        """Return the intent of this open store; register it at the first call.

        sealed: for segments that the user commits later, perhaps in another process: the intent outlives the open store
        by SEALED_MS.
        """
        if self._pid != os.getpid():  # a forked child: its parent ends the intent so far
            self._pid, self._lock, self._store_intent, self._sealed = os.getpid(), threading.Lock(), None, False
        with self._lock:
            if (
                self._store_intent is None
                or not self._leases.holds(self._store_intent)
                or (sealed and not self._sealed)
            ):
                self._sealed = self._sealed or sealed
                self._store_intent = self.register("store", SEALED_MS if self._sealed else LEASE_MS)
            return self._store_intent

    def register(self, kind: str, length_ms: int = LEASE_MS) -> str:
        """Register a new intent. It is renewed until `release`, the close of the store or the end of the process."""
        intent, by = uuid.uuid4().hex, f"{os.getpid()} on {os.uname().nodename}"
        at_end = "leave" if length_ms > LEASE_MS else "remove"

        def body(tx: Txn) -> None:
            now_ms = self._catalog.now_ms()
            ends_ms = (self._leases.latest_ms(tx) if at_end == "leave" else now_ms) + length_ms
            tx.put(intent_key(intent), Intent(intent, kind, now_ms, ends_ms, by).to_record())

        self._catalog.transact(body)
        hit("intent:registered")
        self._leases.keep(intent, [intent_key(intent)], length_ms, at_end=at_end)
        return intent

    def release(self, intent: str) -> None:
        """Release an intent after the end of its writers. Vacuum deletes their uncommitted files."""
        self._leases.release(intent)

    def end(self, intents: Collection[str]) -> None:
        """End intents that another process has registered."""
        if intents:
            self._catalog.transact(lambda tx: end_intents(tx, intents))

    @contextmanager
    def required(self) -> Iterator[None]:
        """Run a commit that requires intents of this store, as a context manager.

        After SegmentUnknown, which an intent revoked during a long suspension causes, it renews all leases, so that
        later writers register a new intent, and raises the error again. It raises StoreClosed if the store was closed.
        """
        try:
            yield
        except SegmentUnknown as error:
            if self._leases.closing:  # another thread has closed the store, which ended its intents
                raise StoreClosed("this store was closed; open it again with epochlog.open") from error
            self._leases.renew()
            raise
