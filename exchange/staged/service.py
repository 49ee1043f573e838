"""The served side of the staged exchange: what is asked of it in one call, its lines, and its upkeep.

Batches come in by `intake`, and go out by `mailbox`. What changes the catalog goes through one group commit; who waits
for news of a query is told after each.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pyarrow as pa

from ...errors import EpochlogError
from ...store.catalog import Txn
from ...store.clock import Deadline
from ...store.definitions import Counters, move_counters
from ...store.exchanges import FILES, end_expired, end_query, purge
from ...store.garbage import let_go
from ...store.handle import Handle
from ...store.paths import SEGMENT_ENDING
from ...store.shipping import ship
from ..line import Line
from ..server import Action, Exchange, Role
from . import keeping, wire
from .commits import GroupCommit
from .intake import Held, Intake, Memory
from .mailbox import Mailbox
from .marks import Marks
from .state import Consumer, Cursor, Query
from .uses import Uses

LEASE_MS = 86_400_000
"""How long a query that nobody uses stays, unless it was declared with another time."""
BUDGET = 64 << 30
"""Bytes of a query's batches on disk, unless it was declared with others."""
WRITERS = 8
"""Files that are written and synced at the same time."""
LOOK_AGAIN_S = 5.0
_log = logging.getLogger("epochlog")


class StagedExchange:
    """The staged exchanges of one open store, while it is served. `exchanges` and `actions` are for its server."""

    def __init__(self, handle: Handle, marks: Marks | None = None) -> None:
        self.handle = handle
        self.changed = threading.Condition()
        self.closing = threading.Event()
        self._marks = marks
        self._news: dict[str, int] = {}
        self.claims = itertools.count(1)  # numbers claims of consumers in the order in which they are committed
        self._mailboxes: dict[tuple[str, str], Mailbox] = {}
        self._commits = GroupCommit(handle.catalog)
        self._writers = ThreadPoolExecutor(WRITERS, thread_name_prefix="epochlog-exchange-writes")
        self._freed: list[str] = []
        self._held: list[Held] = []
        self._room: dict[str, int] = {}
        self._woken = False  # whether upkeep has something to do
        self.uses = Uses(handle)
        self.memory = Memory()
        self._upkeep = threading.Thread(target=self._look_after, name="epochlog-exchange-upkeep", daemon=True)
        self._upkeep.start()

    @property
    def exchanges(self) -> dict[bytes, Exchange]:
        return {
            wire.PUSH: Exchange(self._push_line, Role.WRITE, wire.MAX_FIELDS),
            wire.MAIL: Exchange(self._mail_line, Role.WRITE, wire.MAX_FIELDS),
        }

    @property
    def actions(self) -> dict[str, Action]:
        about = "staged exchange: "
        return {
            "staged.declare": Action(self._declare, about=about + "declare a consumer"),
            "staged.end": Action(self._end, about=about + "the end mark of a channel"),
            "staged.drop": Action(self._drop, about=about + "drop a query"),
            "staged.stage": Action(self._stage, Role.READ, about=about + "the stage counter"),
            "staged.ack": Action(self._ack, about=about + "acknowledge what is durable"),
        }

    def stop(self) -> None:
        """Let the lines end; `close` once they have."""
        with self.changed:
            self.closing.set()
            self.changed.notify_all()

    def close(self) -> None:
        """End the threads. What was pushed and has no answer may be durable or not."""
        self.stop()
        self._writers.shutdown(wait=True)
        self._commits.close()
        self._upkeep.join()
        self.uses.close()
        if self._marks is not None:
            self._marks.close()

    # ---- for lines -----------------------------------------------------------------------------------------------

    def submit(self, body: Callable[[Txn], Any]) -> Future[Any]:
        """What a body returns, once it is durable; `tell` those who wait for it then."""
        return self._commits.submit(body)

    def transact(self, query: str, body: Callable[[Txn], Any]) -> Any:
        """The same, waited for and told."""
        found = self._commits.submit(body).result()
        self.tell(query)
        return found

    def tell(self, query: str) -> None:
        """Something of the query was committed: those who wait look again."""
        with self.changed:
            self._news[query] = self._news.get(query, 0) + 1
            self.changed.notify_all()

    def news(self, query: str) -> int:
        """Another number whenever something of the query was committed here."""
        with self.changed:
            return self._news.get(query, 0)

    def work(self, what: Callable[[], None]) -> None:
        """Have one of the threads do this that write files."""
        self._writers.submit(what)

    def write(self, data: pa.Buffer) -> str:
        """A new durable file of an exchange; its path."""
        path = self.handle.new_path(FILES, SEGMENT_ENDING)
        self.handle.files.write(path, data)
        return path

    def free(self, paths: Iterable[str]) -> None:
        """Nothing reaches these files any more: they are deleted soon."""
        with self.changed:
            self._freed += paths
            self._woken = True
            self.changed.notify_all()

    def wake(self) -> None:
        """Have upkeep look at once."""
        with self.changed:
            self._woken = True
            self.changed.notify_all()

    def room(self, query: str) -> int:
        """Another number whenever batches of the query may have room that had none."""
        with self.changed:
            return self._room.get(query, 0)

    def hold(self, held: Held) -> None:
        """Keep a push that found no room until there may be some, or it gives up."""
        with self.changed:
            self._held.append(held)
            self._woken = True
            self.changed.notify_all()

    def passed(self, query: str) -> None:
        """A channel of the query may have passed: pushes to later stages may have room, and the marks are copied."""
        self._make_room(query)
        if self._marks is not None:
            self._marks.end(query)

    def _make_room(self, query: str) -> None:
        with self.changed:
            self._room[query] = self._room.get(query, 0) + 1
            self._woken = True
            self.changed.notify_all()

    # ---- actions -------------------------------------------------------------------------------------------------

    def _declare(self, body: bytes) -> bytes:
        asked = wire.unpack(body, wire.DECLARE)
        lease_ms = asked["lease_ms"] or LEASE_MS
        expires_ms = self.handle.catalog.now_ms() + lease_ms
        new = Query(asked["query"], {}, frozenset(), lease_ms, expires_ms, asked["budget"] or BUDGET)
        consumer = Consumer(asked["consumer"], asked["stages"])
        query = self.transact(new.name, lambda tx: keeping.declare(tx, new, consumer))
        self.uses.touch(query)
        if self._marks is not None:
            self._marks.declare(query.name, query.stages)
        return b""

    def _end(self, body: bytes) -> bytes:
        asked = wire.unpack(body, wire.END)
        name, channel, last = asked["query"], asked["channel"], asked["last"]
        attempt, rows = asked["attempt"], asked["rows"]
        self.uses.touch(self.transact(name, lambda tx: keeping.end(tx, name, channel, last, attempt, rows)))
        self.passed(name)
        return b""

    def _stage(self, body: bytes) -> bytes:
        name = wire.unpack(body, wire.QUERY)["query"]
        query = self.handle.catalog.read(lambda view: keeping.find_query(view, name))
        return wire.pack(stage=query.stage if self._marks is None else self._marks.stage(name))

    def _drop(self, body: bytes) -> bytes:
        name = wire.unpack(body, wire.QUERY)["query"]
        self.transact(name, lambda tx: end_query(tx, name))
        self.uses.forget(name)
        self.free(purge(self.handle, name))
        self._make_room(name)
        if self._marks is not None:
            self._marks.drop(name)
        return b""

    def _ack(self, body: bytes) -> bytes:
        asked = wire.unpack(body, wire.ACK)
        self._acknowledge(asked["query"], asked["consumer"], asked["incarnation"], asked["cursor"])
        return b""

    def _acknowledge(self, query: str, consumer: str, incarnation: int, cursor: Cursor) -> None:
        """Durable when this returns; the files of what all consumers have acknowledged go after that."""
        freed = self.transact(query, lambda tx: keeping.acknowledge(tx, query, consumer, incarnation, cursor))
        self.free(freed)
        while len(freed) >= keeping.RELEASED:
            freed = self.transact(query, lambda tx: keeping.release(tx, query, cursor))
            self.free(freed)
        self._make_room(query)

    # ---- lines ---------------------------------------------------------------------------------------------------

    def _push_line(self, line: Line, rest: bytes) -> None:
        hello = line.first()
        if hello is not None:
            Intake(self, line, wire.unpack(hello, wire.PUSH_HELLO)["query"]).serve()

    def _mail_line(self, line: Line, rest: bytes) -> None:
        hello = line.first()
        if hello is None:
            return
        mailbox = Mailbox(self, line, wire.unpack(hello, wire.MAIL_HELLO))
        with self.changed:
            before = self._mailboxes.get(mailbox.key)
            if before is not None and mailbox.is_late(before):
                return
            self._mailboxes[mailbox.key] = mailbox
        if before is not None:
            before.replaced()
        try:
            mailbox.serve()
        finally:
            with self.changed:
                if self._mailboxes.get(mailbox.key) is mailbox:
                    del self._mailboxes[mailbox.key]

    # ---- upkeep --------------------------------------------------------------------------------------------------

    def _look_after(self) -> None:
        """Deletes files as they are let go of, has pushes tried again that found no room, and ends queries whose lease
        has run out.
        """
        look = Deadline.after(LOOK_AGAIN_S)
        while not self.closing.is_set():
            with self.changed:
                soonest = min([look.left_s, self.uses.period_s, *(held.until.left_s for held in self._held)])
                self.changed.wait_for(lambda: self._woken or self.closing.is_set(), soonest)
                self._woken = False
                paths, self._freed = self._freed, []
                due = self._due() if not look.passed else self._held  # another server may have made room
                self._held = [held for held in self._held if held not in due]
            for held in due:
                if held.until.passed or held.over():
                    held.give_up()
                else:
                    held.again()
            try:
                self._delete(paths)
                self.uses.renew()
                if look.passed:
                    look = Deadline.after(LOOK_AGAIN_S)
                    end_expired(self.handle)
            except EpochlogError as error:
                _log.warning("the upkeep of exchanges failed: %s", error)

    def _due(self) -> list[Held]:
        return [
            held
            for held in self._held
            if held.until.passed or held.over() or self._room.get(held.query, 0) != held.room
        ]

    def _delete(self, paths: list[str]) -> None:
        """Delete files; what resists is left to vacuum."""
        left = list(paths)
        try:
            if left:
                ship(self.handle)  # so that no copy of the catalog is left that reaches what goes now
            while left:
                self.handle.files.delete(left[-1])
                left.pop()
        finally:
            if left:
                self.handle.catalog.transact(lambda tx: self._note(tx, left))

    def _note(self, tx: Txn, paths: list[str]) -> None:
        let_go(tx, FILES, [(path, 0) for path in paths], self.handle.catalog.now_ms())
        move_counters(tx, Counters.read(tx))
