"""Redis copy of a store's end marks and stage counters: the marks come from the catalog, a script on Redis counts them.

The mark of a channel is copied once the channel has passed: all up to its end was pushed.
The catalog's end marks are the truth, and every producer's end is there before anything here hears of it. The counter
is a function of them: it says who may start, and is advice, so it may lag and must never be ahead. What Redis holds is
a copy for those who ask it: each answer of it is compared with what was written last, and a copy that is gone, went
back, or was changed is made again from the catalog, never from nothing. While Redis is away the catalog answers.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgpack

from epochlog.errors import Corrupt, EpochlogError, QueryNotFound
from epochlog.exchange.stage_gate import stage_counter
from epochlog.store.catalog.protocol import Catalog, Txn, View
from epochlog.store.catalog.redis.client import Cut, NotSent, RedisServer
from epochlog.store.env.backoff import Backoff
from epochlog.store.env.clock import Deadline
from epochlog.store.session.handle import Handle

from .stage_counter_scripts import CHANGED, EARLIER, KEPT, LATE, LOST, MISCOUNTED, NEWER, Writing, keep
from .transactions import find_channel, find_query

_log = logging.getLogger("epochlog")

SERVER_KEY = b"meta/exchange"
"""The catalog's record of the newest server that keeps marks in a coordinator."""
ANSWER_S = 2.0
"""How long one call waits for Redis, unless the URL says otherwise."""
BACKOFF = Backoff(first_s=0.5, limit_s=10.0)
"""Delays after which a Redis server that failed is called again."""
_MOST_CUTS = 8
_NOTICED = {
    LOST: "it holds nothing",
    EARLIER: "it went back to what was written before",
    CHANGED: "it holds other marks than were written last",
    MISCOUNTED: "its counter is not what its marks give",
    LATE: "it holds what was never written",
    NEWER: "it names a newer server, and there is none",
}


@dataclass(frozen=True, slots=True)
class EndMark:
    """End of a channel that has passed: the attempt, the last sequence (-1: the channel is empty), and the number of
    rows.
    """

    attempt: int
    last: int
    rows: int | None = None

    def packed(self) -> list[int]:
        return [1, self.attempt, self.last, -1 if self.rows is None else self.rows]


_OPEN = [0, -1, -1, -1]


@dataclass(frozen=True, slots=True)
class EndMarks:
    """End marks of one query from one state of the catalog: the channels of each stage, and those of them that have
    passed.
    """

    stages: Mapping[int, tuple[str, ...]]
    passed: Mapping[str, EndMark] = field(default_factory=dict)

    @property
    def stage(self) -> int:
        """Return the stage counter. Raises InvalidInput when no channel is declared."""
        return stage_counter(self.stages, self.passed)

    def packed(self) -> bytes:
        """Encode the marks; equal marks give equal bytes, and no declared channel gives b""."""
        marks = [
            [stage, *(self.passed[channel].packed() if channel in self.passed else _OPEN), channel]
            for stage in sorted(self.stages)
            for channel in sorted(self.stages[stage])
        ]
        packed = msgpack.packb(marks, use_bin_type=False) if marks else b""
        assert isinstance(packed, bytes)
        return packed


Truth = Callable[[str], EndMarks]
"""Reads a query's end marks from the catalog, or raises QueryNotFound."""


def end_marks(view: View, name: str) -> EndMarks:
    """Read the end marks of a query's channels that have passed from the catalog. Raises QueryNotFound."""
    query = find_query(view, name)
    passed = [find_channel(view, query, channel) for channel in query.passed]
    marks = {one.name: EndMark(one.attempt, one.last, one.rows_told) for one in passed if one.last is not None}
    return EndMarks(query.stages, marks)


def coordinated(url: str, handle: Handle) -> RedisMarks:
    """Return a copy of the store's end marks on the Redis server at `url`. Raises InvalidInput."""
    catalog = handle.catalog
    return RedisMarks(url, handle.store_id, catalog, lambda query: catalog.read(lambda view: end_marks(view, query)))


class RedisMarks:
    """Copy of the end marks on a Redis server, which computes the stage counter.

    Only a call of `stage` waits for Redis, for `ANSWER_S` at the most: the other writes are the work of one thread,
    which retries those that failed.
    """

    def __init__(self, url: str, store_id: str, catalog: Catalog, truth: Truth) -> None:
        """Begin a copy under a new incarnation. Raises InvalidInput for an invalid URL; Redis is first called later."""
        self._server = RedisServer(url, role="coordinator", timeout_s=ANSWER_S)
        self._store_id = store_id
        self._catalog = catalog
        self._truth = truth
        self._incarnation = catalog.transact(_next_incarnation)
        self._generation, self._turn, self._anew, self._fenced = 0, 0, True, False
        self._held: dict[str, tuple[str, ...]] = {}  # query -> SHA-1 of each of the marks that Redis may hold of it
        self._rest, self._failures = Deadline.after(0), 0
        self._turns = threading.Lock()
        self._changed = threading.Condition()
        self._owed: dict[str, None] = {}
        self._closing = False
        self.losses = 0
        """How often something was noticed to be lost or changed, and made again."""
        self._thread = threading.Thread(target=self._keep_up, name="epochlog-marks", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"<RedisMarks {self._server.name} incarnation {self._incarnation}, {self.losses} losses>"

    def declare(self, query: str, stages: Mapping[int, tuple[str, ...]]) -> None:
        self._owe([query])

    def end(self, query: str) -> None:
        self._owe([query])

    def drop(self, query: str) -> None:
        self._owe([query])

    def stage(self, query: str) -> int:
        with self._turns:
            known = self._truth(query)
            counted = self._settle(query, known) if self._rest.passed else None
        if counted is not None and counted != known.stage:
            _log.error("coordinator %s counted %d where the marks give %d", self._server.name, counted, known.stage)
        return known.stage

    def close(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._server.close()
        self._thread.join(2 * ANSWER_S)

    # ---- the thread --------------------------------------------------------------------------------------------------

    def _owe(self, queries: list[str]) -> None:
        if self._fenced:  # a newer server keeps them
            return
        with self._changed:
            self._owed.update(dict.fromkeys(queries))
            self._changed.notify()

    def _keep_up(self) -> None:
        while True:
            with self._changed:
                while not self._closing and (not self._owed or not self._rest.passed):
                    self._changed.wait(self._rest.left_s if self._owed else None)
                if self._closing:
                    return
                owed, self._owed = list(self._owed), {}
            for query in owed:
                self._pay(query)

    def _pay(self, query: str) -> None:
        """Write the catalog's marks of a query to Redis; on failure queue the query again."""
        try:
            with self._turns:
                paid = self._settle(query, self._known(query)) if self._rest.passed else None
        except EpochlogError as error:  # of the catalog: it may be better later
            if not self._closing:
                _log.warning("the marks of query %s were not read: %s", query, error)
            self._put_off()
            paid = None
        if paid is None:
            self._owe([query])

    def _known(self, query: str) -> EndMarks | None:
        """Read a query's end marks; None once it was dropped, or its lease has ended."""
        try:
            return self._truth(query)
        except QueryNotFound:
            return None

    # ---- one writing, under `_turns` ---------------------------------------------------------------------------------

    def _settle(self, query: str, known: EndMarks | None) -> int | None:
        """Write these marks to Redis and return the counter computed there; None if Redis could not be asked, or a
        newer server keeps the marks.
        """
        marks = b"" if known is None else known.packed()
        try:
            found, counted = self._write(query, marks)
            newest = self._incarnation if found == KEPT else self._catalog.read(_newest_incarnation)
            if found != KEPT and newest == self._incarnation:
                self._notice(found)
                found, counted = self._write(query, marks, force=found in (NEWER, LATE))
        except (NotSent, Cut, EpochlogError) as error:
            self._away(error)
            return None
        if found != KEPT:
            self._fenced = newest != self._incarnation
            self._put_off()
            return None
        self._failures = 0
        return counted

    def _write(self, query: str, marks: bytes, *, force: bool = False) -> tuple[int, int]:
        """Run the script once. After a cut it may have run or not: Redis then holds these marks, or those from
        before.
        """
        self._turn += 1
        before = self._held.get(query, ("",))
        wanted = hashlib.sha1(marks, usedforsecurity=False).hexdigest() if marks else ""
        writing = Writing(self._incarnation, self._generation, self._turn, query, marks, before, self._anew, force)
        self._held[query] = tuple(dict.fromkeys((*before[-_MOST_CUTS:], wanted)))
        found, counted = keep(self._server, self._store_id, writing)
        if found == KEPT:
            self._held[query], self._anew = (wanted,), False
            if not marks:
                del self._held[query]
        return found, counted

    def _notice(self, found: int) -> None:
        """Begin a new generation and queue every query to be written again, because Redis does not hold the marks
        written last.
        """
        self.losses += 1
        _log.warning(
            "coordinator %s: %s; its marks are made again from the catalog", self._server.name, _NOTICED[found]
        )
        self._owe(list(self._held))
        self._held.clear()
        self._generation, self._anew = self._generation + 1, True

    def _away(self, error: Exception) -> None:
        if not self._failures and not self._closing:
            _log.warning("coordinator %s is away, the catalog answers: %s", self._server.name, error)
        self._put_off()

    def _put_off(self) -> None:
        self._failures += 1
        self._rest = Deadline.after(BACKOFF.delay_s(self._failures))


def _newest_incarnation(view: View) -> int:
    record = view.get(SERVER_KEY)
    found = 0 if record is None else record.get("incarnation")
    if type(found) is not int or not 0 <= found < 1 << 52:
        raise Corrupt(f"catalog record {SERVER_KEY!r}", f"its incarnation is {found!r:.100}")
    return found


def _next_incarnation(tx: Txn) -> int:
    found = _newest_incarnation(tx) + 1
    tx.put(SERVER_KEY, {"incarnation": found})
    return found
