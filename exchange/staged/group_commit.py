"""Group commit: bodies that arrive while a catalog transaction is under way share the next one."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from epochlog.errors import Corrupt, EpochlogError, Fenced, InvalidInput, SegmentUnknown, SequenceReleased, StoreClosed
from epochlog.store.catalog.protocol import Catalog, Txn

MOST = 256
"""Bodies of one transaction."""
DEFINITE_FAILURES = (InvalidInput, Fenced, SequenceReleased, SegmentUnknown)
"""What a body may raise, before it writes anything, without ending the transaction of all."""
_log = logging.getLogger("epochlog")

Body = Callable[[Txn], Any]


@dataclass(frozen=True, slots=True)
class _Waiting:
    body: Body
    done: Future[Any] = field(default_factory=Future)


class GroupCommit:
    """Group commit of transaction bodies. A body refuses, by a typed error, before it writes anything; so one body's
    refusal does not affect the others.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._changed = threading.Condition()
        self._waiting: deque[_Waiting] = deque()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="epochlog-exchange-commits", daemon=True)
        self._thread.start()

    def submit(self, body: Body) -> Future[Any]:
        """Queue a body for the next transaction and return a future of its result or refusal, set once it is durable.
        If the catalog fails, every body of the transaction gets its error.
        """
        one = _Waiting(body)
        with self._changed:
            if self._closed:
                one.done.set_exception(StoreClosed("this server is being shut down; ask it when it is up again"))
                return one.done
            self._waiting.append(one)
            self._changed.notify()
        return one.done

    def close(self) -> None:
        """Refuse new bodies, and end the thread once all earlier ones are done."""
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
            if isinstance(outcome, DEFINITE_FAILURES):
                one.done.set_exception(outcome)
            else:
                one.done.set_result(outcome)


def _outcome(body: Body, tx: Txn) -> Any:
    try:
        return body(tx)
    except DEFINITE_FAILURES as refusal:
        return refusal
