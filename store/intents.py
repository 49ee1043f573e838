"""Writer intents: who may be writing files, so that vacuum never takes one for garbage and no commit takes one for data
that vacuum has let go.

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

from ..errors import SegmentUnknown, StoreClosed
from .catalog import Catalog, Txn, View
from .failpoints import reached
from .leases import LEASE_MS, Leases
from .paths import intent_of
from .records import Record, after_prefix, intent_key

T = TypeVar("T")

SEALED_MS = 86_400_000
"""How long sealed segments may still be committed after the store that wrote them was closed, or its process died."""


@dataclass(frozen=True, slots=True)
class Intent:
    """kind: "store" for what an open store writes by itself, "spark" for a batch of Spark. Times are Unix milliseconds.
    by: the process that registered it, as `1234 on host`.
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
    """An intent that vacuum has revoked and one of these was written under: it may be gone, or go any moment."""
    found = dict.fromkeys(intent_of(path) for path in paths)
    return next((intent or "?" for intent in found if view.get(intent_key(intent)) is None), None)


def require_intents(view: View, table: str, paths: Iterable[str]) -> None:
    """SegmentUnknown if vacuum has revoked what a segment was written under."""
    intent = revoked(view, paths)
    if intent is not None:
        raise SegmentUnknown(
            f"table {table!r}: the intent {intent} under which its segments were written has ended or was revoked; "
            "write the rows again, then commit them"
        )


def end_intents(tx: Txn, intents: Iterable[str]) -> None:
    """No commit takes what was written under them any more; vacuum does."""
    for intent in intents:
        tx.delete(intent_key(intent))


class Intents:
    """The intents of one open store: one that all its own writers share, and one for each batch of Spark."""

    def __init__(self, catalog: Catalog, leases: Leases) -> None:
        self._catalog = catalog
        self._leases = leases
        self._lock = threading.Lock()
        self._own: str | None = None
        self._sealed = False
        self._pid = os.getpid()

    def own(self, *, sealed: bool = False) -> str:
        """The intent of this open store, registered at the first call.

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
        """A new intent, kept alive until `release`, the close of the store or the end of the process."""
        intent, now_ms = uuid.uuid4().hex, self._catalog.now_ms()
        by = f"{os.getpid()} on {os.uname().nodename}"
        record = Intent(intent, kind, now_ms, now_ms + length_ms, by).to_record()
        self._catalog.transact(lambda tx: tx.put(intent_key(intent), record))
        reached("intent:registered")
        at_end = "leave" if length_ms > LEASE_MS else "remove"
        self._leases.keep(intent, [intent_key(intent)], length_ms, at_end=at_end)
        return intent

    def release(self, intent: str) -> None:
        """Its writers have ended: what they wrote and nobody committed is vacuum's."""
        self._leases.release(intent)

    def end(self, intents: Collection[str]) -> None:
        """Writers that another process registered have ended."""
        if intents:
            self._catalog.transact(lambda tx: end_intents(tx, intents))

    def checked(self, commit: Callable[[], T]) -> T:
        """What `commit` gives. When it is refused because an intent was revoked, as after a long suspension, those who
        write from now on get a new one.
        """
        try:
            return commit()
        except SegmentUnknown as error:
            if self._leases.closing:  # another thread has closed the store meanwhile, and its intents with it
                raise StoreClosed("this store was closed; open it again with epochlog.open") from error
            self._leases.renew()
            raise
