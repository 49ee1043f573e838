"""Write intents: leases under which writers make files. Vacuum spares the files of a live intent; a commit requires it.

An intent is registered before its first file is made, and every file bears the name of its writer's intent:
`<folder>/<intent>-<unique>.<ending>`. A commit requires, in its own transaction, that the intents of its segments are
still there; vacuum revokes an intent that has run out by removing it, in a transaction too. So one of them is first.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Collection, Iterable
from dataclasses import asdict, dataclass
from typing import TypeVar

from epochlog.errors import SegmentUnknown, StoreClosed
from epochlog.store.catalog.keys import after_prefix, intent_key
from epochlog.store.catalog.protocol import Catalog, Txn, View
from epochlog.store.catalog.records import Record
from epochlog.store.env.failpoints import hit
from epochlog.store.env.paths import intent_of

from .leases import LEASE_MS, Leases

T = TypeVar("T")

SEALED_MS = 86_400_000
"""How long sealed segments may still be committed after the store that wrote them was closed, or its process died."""


@dataclass(frozen=True, slots=True)
class Intent:
    """Write intent. kind: "store" for the writers of an open store, "spark" for a batch of Spark. Times are Unix
    milliseconds. by: the process that registered it, as `1234 on host`.
    """

    id: str
    kind: str
    since_ms: int
    expires_ms: int
    by: str = ""

    def to_record(self) -> Record:
        return asdict(self)


def all_intents(view: View) -> list[Intent]:
    return [Intent(**record) for _, record in view.scan(b"intent/", after_prefix(b"intent/"))]


def revoked(view: View, paths: Iterable[str]) -> str | None:
    """Find an intent, of those that these files were written under, that vacuum has revoked: its files may be deleted
    at any moment.
    """
    found = dict.fromkeys(intent_of(path) for path in paths)
    return next((intent or "?" for intent in found if view.get(intent_key(intent)) is None), None)


def require_intents(view: View, table: str, paths: Iterable[str]) -> None:
    """Raise SegmentUnknown if vacuum has revoked the intent of one of these segments."""
    intent = revoked(view, paths)
    if intent is not None:
        raise SegmentUnknown(
            f"table {table!r}: the intent {intent} under which its segments were written has ended or was revoked; "
            "write the rows again, then commit them"
        )


def end_intents(tx: Txn, intents: Iterable[str]) -> None:
    """Delete the intents: no commit takes their files any more, and vacuum deletes them."""
    for intent in intents:
        tx.delete(intent_key(intent))


class Intents:
    """Write intents of one open store: one that all its own writers share, and one for each batch of Spark."""

    def __init__(self, catalog: Catalog, leases: Leases) -> None:
        self._catalog = catalog
        self._leases = leases
        self._lock = threading.Lock()
        self._own: str | None = None
        self._sealed = False
        self._pid = os.getpid()

    def own(self, *, sealed: bool = False) -> str:
        """Return the intent of this open store, registered at the first call.

        sealed: for segments that the user commits later, perhaps elsewhere: it then outlives the store by SEALED_MS.
        """
        if self._pid != os.getpid():  # a forked child: the intent so far is its parent's to end
            self._pid, self._lock, self._own, self._sealed = os.getpid(), threading.Lock(), None, False
        with self._lock:
            if self._own is None or not self._leases.keeps(self._own) or (sealed and not self._sealed):
                self._sealed = self._sealed or sealed
                self._own = self.register("store", SEALED_MS if self._sealed else LEASE_MS)
            return self._own

    def register(self, kind: str, length_ms: int = LEASE_MS) -> str:
        """Register a new intent, kept alive until `release`, the close of the store or the end of the process."""
        intent, now_ms = uuid.uuid4().hex, self._catalog.now_ms()
        by = f"{os.getpid()} on {os.uname().nodename}"
        record = Intent(intent, kind, now_ms, now_ms + length_ms, by).to_record()
        self._catalog.transact(lambda tx: tx.put(intent_key(intent), record))
        hit("intent:registered")
        at_end = "leave" if length_ms > LEASE_MS else "remove"
        self._leases.keep(intent, [intent_key(intent)], length_ms, at_end=at_end)
        return intent

    def release(self, intent: str) -> None:
        """Release an intent whose writers have ended: their uncommitted files are left to vacuum."""
        self._leases.release(intent)

    def end(self, intents: Collection[str]) -> None:
        """End the intents of writers that another process registered."""
        if intents:
            self._catalog.transact(lambda tx: end_intents(tx, intents))

    def checked(self, commit: Callable[[], T]) -> T:
        """Run `commit` and return its result. SegmentUnknown, as for an intent revoked during a long suspension, is
        raised again after a renewal: later writers register a new intent. Raise StoreClosed if the store is closed by
        then.
        """
        try:
            return commit()
        except SegmentUnknown as error:
            if self._leases.closing:  # another thread has closed the store meanwhile, and its intents with it
                raise StoreClosed("this store was closed; open it again with epochlog.open") from error
            self._leases.renew()
            raise
