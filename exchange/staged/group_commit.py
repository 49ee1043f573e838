"""Group commit: transaction bodies that arrive during a catalog transaction share the next one."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from epochlog.errors import Corrupt, EpochlogError, Fenced, InvalidInput, SegmentUnknown, SequenceReleased, StoreClosed
from epochlog.store.catalog.protocol import Catalog, Txn
from epochlog.store.env.log_events import DEFECT

MAX_BODIES = 256
"""Bodies of one transaction."""
DEFINITE_FAILURES = (InvalidInput, Fenced, SequenceReleased, SegmentUnknown)
"""Errors that a body may raise before it writes, without failing the other bodies of its transaction."""

Body = Callable[[Txn], Any]


@dataclass(frozen=True, slots=True)
class _Submission:
    body: Body
    result: Future[Any] = field(default_factory=Future)


class GroupCommit:
    """Group commit of transaction bodies. A body raises a refusal, a typed error, before it writes, so it does not
    affect the other bodies.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._changed = threading.Condition()
        self._waiting: deque[_Submission] = deque()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="epochlog-exchange-commits", daemon=True)
        self._thread.start()

    def submit(self, body: Body) -> Future[Any]:
        """Queue a body for the next transaction and return a future of its result or refusal, which is set when the
        transaction is durable. If the transaction fails, every body gets its error.
        """
        submission = _Submission(body)
        with self._changed:
            if self._closed:
                submission.result.set_exception(StoreClosed("this server is shutting down; call again when it is back"))
                return submission.result
            self._waiting.append(submission)
            self._changed.notify()
        return submission.result

    def close(self) -> None:
        """Refuse new bodies, and end the thread after all earlier ones are committed."""
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
                group = [self._waiting.popleft() for _ in range(min(MAX_BODIES, len(self._waiting)))]
            self._commit(group)

    def _commit(self, group: list[_Submission]) -> None:
        def run_all(tx: Txn) -> list[Any]:
            return [_result_or_refusal(submission.body, tx) for submission in group]

        try:
            outcomes = self._catalog.transact(run_all)
        except Exception as error:  # noqa: BLE001 (raised by the futures; the thread goes on)
            if len(group) > 1 and (isinstance(error, Corrupt) or not isinstance(error, EpochlogError)):
                for submission in group:  # one body caused it, by a damaged record of its query
                    self._commit([submission])
                return
            if not isinstance(error, EpochlogError):
                DEFECT.log(what="a transaction of the exchange", error=error)
            for submission in group:
                submission.result.set_exception(error)
            return
        for submission, outcome in zip(group, outcomes, strict=True):
            if isinstance(outcome, DEFINITE_FAILURES):
                submission.result.set_exception(outcome)
            else:
                submission.result.set_result(outcome)


def _result_or_refusal(body: Body, tx: Txn) -> Any:
    try:
        return body(tx)
    except DEFINITE_FAILURES as refusal:
        return refusal
