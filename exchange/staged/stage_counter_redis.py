"""Redis copy of a store's end marks and stage counters, written from the catalog and counted by a script on Redis.

The mark of a channel is copied after the channel has passed: all sequences up to its end mark were pushed. The catalog
has every end mark before Redis does, and is authoritative. The counter is a function of the marks. It is advice for
starting producers, so it may lag and is never ahead. Each answer of Redis is compared with the last write; a copy that
is lost, older, or changed is rewritten from the catalog. While Redis is unreachable, the catalog answers.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgpack

from epochlog.errors import Corrupt, EpochlogError, QueryNotFound
from epochlog.exchange.stage_gate import stage_counter
from epochlog.store.catalog.protocol import Catalog, ReadTxn, Txn
from epochlog.store.catalog.redis.client import Cut, NotSent, RedisServer
from epochlog.store.env.backoff import Backoff
from epochlog.store.env.clock import Deadline
from epochlog.store.env.log_events import RETRY, STAGE_COUNTER_LOST, STAGE_COUNTER_RESET, STAGE_MISMATCH
from epochlog.store.session.handle import Handle

from .stage_counter_scripts import CHANGED, EARLIER, KEPT, LATE, LOST, MISCOUNTED, NEWER, MarksWrite, write_marks
from .transactions import find_channel, find_query

SERVER_KEY = b"meta/exchange"
"""Catalog record of the newest server that writes marks to the Redis server."""
ANSWER_S = 2.0
"""Default timeout of one call of Redis; the URL can set another."""
BACKOFF = Backoff(first_s=0.5, limit_s=10.0)
"""Delays after failures of Redis before the next call."""
_MAX_CANDIDATES = 8
"""Digests of marks that Redis may hold after lost answers."""
_DEVIATIONS = {
    LOST: "it has lost the marks",
    EARLIER: "it holds an earlier state",
    CHANGED: "it holds marks that differ from the last write",
    MISCOUNTED: "its counter differs from its marks",
    LATE: "it holds a write that this server did not make",
    NEWER: "it names a newer server than the catalog does",
}


@dataclass(frozen=True, slots=True)
class EndMark:
    """End mark of a channel that has passed: its attempt, its last sequence (-1: the channel is empty), and its number
    of rows.
    """

    attempt: int
    last: int
    rows: int | None = None

    def packed(self) -> list[int]:
        return [1, self.attempt, self.last, -1 if self.rows is None else self.rows]


_OPEN = [0, -1, -1, -1]


@dataclass(frozen=True, slots=True)
class EndMarks:
    """End marks of one query from one state of the catalog."""

    stages: Mapping[int, tuple[str, ...]]
    """Channels of each stage."""
    passed: Mapping[str, EndMark] = field(default_factory=dict)
    """End marks of the channels that have passed."""

    @property
    def stage(self) -> int:
        """Return the stage counter. Raises InvalidInput when no channel is declared."""
        return stage_counter(self.stages, self.passed)

    def packed(self) -> bytes:
        """Encode the marks; equal marks give equal bytes, and a query without channels gives b""."""
        marks = [
            [stage, *(self.passed[channel].packed() if channel in self.passed else _OPEN), channel]
            for stage in sorted(self.stages)
            for channel in sorted(self.stages[stage])
        ]
        packed = msgpack.packb(marks, use_bin_type=False) if marks else b""
        assert isinstance(packed, bytes)
        return packed


ReadMarks = Callable[[str], EndMarks]
"""Function that reads a query's end marks from the catalog, or raises QueryNotFound."""


def end_marks(view: ReadTxn, name: str) -> EndMarks:
    """Read from the catalog the end marks of a query's channels that have passed. Raises QueryNotFound."""
    query = find_query(view, name)
    channels = [find_channel(view, query, passed) for passed in query.passed]
    marks = {
        channel.name: EndMark(channel.attempt, channel.last, channel.rows_told)
        for channel in channels
        if channel.last is not None
    }
    return EndMarks(query.stages, marks)


def open_stage_counter(url: str, handle: Handle) -> RedisStageCounter:
    """Return a copy of the store's end marks on the Redis server at `url`. Raises InvalidInput."""
    catalog = handle.catalog
    return RedisStageCounter(
        url, handle.store_id, catalog, lambda query: catalog.read(lambda view: end_marks(view, query))
    )


class RedisStageCounter:
    """Copy of the end marks on a Redis server, which computes the stage counter.

    Only `stage` waits for Redis, for at most `ANSWER_S`. One thread does all other writes, and repeats failed ones.
    """

    def __init__(self, url: str, store_id: str, catalog: Catalog, read_marks: ReadMarks) -> None:
        """Begin a copy under a new incarnation; call Redis later. Raises InvalidInput for an invalid URL."""
        self._server = RedisServer(url, role="stage counter", timeout_s=ANSWER_S)
        self._store_id = store_id
        self._catalog = catalog
        self._read_marks = read_marks
        self._incarnation = catalog.transact(_next_incarnation)
        self._generation, self._turn, self._clear_first, self._fenced = 0, 0, True, False
        self._candidates: dict[str, tuple[str, ...]] = {}  # query -> SHA-1 of each of the marks that Redis may hold
        self._retry_after, self._failures = Deadline.after(0), 0
        self._write_lock = threading.Lock()
        self._changed = threading.Condition()
        self._pending: dict[str, None] = {}  # queries to write, in order
        self._closing = False
        self.losses = 0
        """Times that Redis had lost or changed the marks, and they were rewritten."""
        self._thread = threading.Thread(target=self._write_pending, name="epochlog-marks", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"<RedisStageCounter {self._server.name} incarnation {self._incarnation}, {self.losses} losses>"

    def declare(self, query: str, stages: Mapping[int, tuple[str, ...]]) -> None:
        self._enqueue([query])

    def end(self, query: str) -> None:
        self._enqueue([query])

    def drop(self, query: str) -> None:
        self._enqueue([query])

    def stage(self, query: str) -> int:
        with self._write_lock:
            marks = self._read_marks(query)
            counted = self._write_checked(query, marks) if self._retry_after.passed else None
        if counted is not None and counted != marks.stage:
            STAGE_MISMATCH.log(server=self._server.name, query=query, counted=counted, stage=marks.stage)
        return marks.stage

    def close(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._server.close()
        self._thread.join(2 * ANSWER_S)

    # ---- the thread --------------------------------------------------------------------------------------------------

    def _enqueue(self, queries: list[str]) -> None:
        if self._fenced:  # a newer server writes the marks
            return
        with self._changed:
            self._pending.update(dict.fromkeys(queries))
            self._changed.notify()

    def _write_pending(self) -> None:
        while True:
            with self._changed:
                while not self._closing and (not self._pending or not self._retry_after.passed):
                    self._changed.wait(self._retry_after.remaining_s if self._pending else None)
                if self._closing:
                    return
                pending, self._pending = list(self._pending), {}
            for query in pending:
                self._write_or_requeue(query)

    def _write_or_requeue(self, query: str) -> None:
        """Write the catalog's marks of a query to Redis; on failure queue the query again."""
        try:
            with self._write_lock:
                counted = self._write_checked(query, self._marks_or_none(query)) if self._retry_after.passed else None
        except EpochlogError as error:  # of the catalog, and perhaps temporary
            if not self._closing:
                RETRY.log(what=f"reading the end marks of query {query}", error=error)
            self._back_off()
            counted = None
        if counted is None:
            self._enqueue([query])

    def _marks_or_none(self, query: str) -> EndMarks | None:
        """Read a query's end marks; None after it was dropped, or its lease has ended."""
        try:
            return self._read_marks(query)
        except QueryNotFound:
            return None

    # ---- one write, under `_write_lock` ------------------------------------------------------------------------------

    def _write_checked(self, query: str, marks: EndMarks | None) -> int | None:
        """Write marks to Redis and return its counter; None if Redis failed or a newer server writes them."""
        packed = b"" if marks is None else marks.packed()
        try:
            outcome, counted = self._write(query, packed)
            newest = self._incarnation if outcome == KEPT else self._catalog.read(_newest_incarnation)
            if outcome != KEPT and newest == self._incarnation:
                self._begin_generation(outcome)
                outcome, counted = self._write(query, packed, force=outcome in (NEWER, LATE))
        except (NotSent, Cut, EpochlogError) as error:
            self._handle_failure(error)
            return None
        if outcome != KEPT:
            self._fenced = newest != self._incarnation
            self._back_off()
            return None
        self._failures = 0
        return counted

    def _write(self, query: str, marks: bytes, *, force: bool = False) -> tuple[int, int]:
        """Run the script once. If the answer is lost, Redis holds either these marks or one of the earlier
        candidates.
        """
        self._turn += 1
        before = self._candidates.get(query, ("",))
        digest = hashlib.sha1(marks, usedforsecurity=False).hexdigest() if marks else ""
        write = MarksWrite(
            self._incarnation, self._generation, self._turn, query, marks, before, self._clear_first, force
        )
        self._candidates[query] = tuple(dict.fromkeys((*before[-_MAX_CANDIDATES:], digest)))
        outcome, counted = write_marks(self._server, self._store_id, write)
        if outcome == KEPT:
            self._candidates[query], self._clear_first = (digest,), False
            if not marks:
                del self._candidates[query]
        return outcome, counted

    def _begin_generation(self, outcome: int) -> None:
        """Begin a new generation and queue every query for a rewrite, because Redis lacks the last written marks."""
        self.losses += 1
        STAGE_COUNTER_RESET.log(server=self._server.name, reason=_DEVIATIONS[outcome])
        self._enqueue(list(self._candidates))
        self._candidates.clear()
        self._generation, self._clear_first = self._generation + 1, True

    def _handle_failure(self, error: Exception) -> None:
        if not self._failures and not self._closing:
            STAGE_COUNTER_LOST.log(server=self._server.name, error=error)
        self._back_off()

    def _back_off(self) -> None:
        self._failures += 1
        self._retry_after = Deadline.after(BACKOFF.delay_s(self._failures))


def _newest_incarnation(view: ReadTxn) -> int:
    record = view.get(SERVER_KEY)
    incarnation = 0 if record is None else record.get("incarnation")
    if type(incarnation) is not int or not 0 <= incarnation < 1 << 52:
        raise Corrupt(f"catalog record {SERVER_KEY!r}", f"its incarnation is {incarnation!r:.100}")
    return incarnation


def _next_incarnation(tx: Txn) -> int:
    incarnation = _newest_incarnation(tx) + 1
    tx.put(SERVER_KEY, {"incarnation": incarnation})
    return incarnation
