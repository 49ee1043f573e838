"""Group commit: what arrives while a catalog transaction is under way shares the next one."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from ...errors import Corrupt, EpochlogError, Fenced, InvalidInput, SegmentUnknown, SequenceReleased, StoreClosed
from ...store.catalog import Catalog, Txn

MOST = 256
"""Bodies of one transaction."""
REFUSALS = (InvalidInput, Fenced, SequenceReleased, SegmentUnknown)
"""What a body may raise, before it writes anything, without ending the transaction of all."""
_log = logging.getLogger("epochlog")

Body = Callable[[Txn], Any]


@dataclass(frozen=True, slots=True)
class _Waiting:
    body: Body
    done: Future[Any] = field(default_factory=Future)


class GroupCommit:
    """Runs bodies that refuse, by a typed error, before they write anything; so one's refusal is no other's."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._changed = threading.Condition()
        self._waiting: deque[_Waiting] = deque()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="epochlog-exchange-commits", daemon=True)
        self._thread.start()

    def submit(self, body: Body) -> Future[Any]:
        """What the body returns or refuses, once it is durable. When the catalog fails, its error is everybody's."""
        one = _Waiting(body)
        with self._changed:
            if self._closed:
                one.done.set_exception(StoreClosed("this server is being shut down; ask it when it is up again"))
                return one.done
            self._waiting.append(one)
            self._changed.notify()
        return one.done

    def close(self) -> None:
        """Refuse what comes from now on, and end once all that came before is done."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                some = [self._waiting.popleft() for _ in range(min(MOST, len(self._waiting)))]
            self._commit(some)

    def _commit(self, some: list[_Waiting]) -> None:
        def together(tx: Txn) -> list[Any]:
            return [_outcome(one.body, tx) for one in some]

        try:
            outcomes = self._catalog.transact(together)
        except Exception as error:  # noqa: BLE001 (whoever waits is told, and the thread goes on)
            if len(some) > 1 and (isinstance(error, Corrupt) or not isinstance(error, EpochlogError)):
                for one in some:  # it is the fault of one of them: a damaged record of its query
                    self._commit([one])
                return
            if not isinstance(error, EpochlogError):
                _log.exception("a transaction of the exchange failed")
            for one in some:
                one.done.set_exception(error)
            return
        for one, outcome in zip(some, outcomes, strict=True):
            if isinstance(outcome, REFUSALS):
                one.done.set_exception(outcome)
            else:
                one.done.set_result(outcome)


def _outcome(body: Body, tx: Txn) -> Any:
    try:
        return body(tx)
    except REFUSALS as refusal:
        return refusal
