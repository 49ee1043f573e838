"""Service of the staged exchange: its actions, its lines and its upkeep.

Batches come in by push handlers (`push_handler`) and go out by stage senders (`pull_handler`). Every change of the
catalog goes through one group commit, and the waiters for news of a query are told after each.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pyarrow as pa

from epochlog.errors import EpochlogError
from epochlog.exchange.transport.duplex import DuplexStream
from epochlog.exchange.transport.services import Action, Exchange, Role
from epochlog.store.backup.incremental import ship
from epochlog.store.catalog.protocol import Txn
from epochlog.store.env.clock import Deadline
from epochlog.store.env.paths import SEGMENT_ENDING
from epochlog.store.metadata.counters import move_counters
from epochlog.store.metadata.definitions import Counters
from epochlog.store.metadata.exchange_records import FILES, end_expired, end_query, purge
from epochlog.store.metadata.unreachable_files import mark_unreachable
from epochlog.store.session.handle import Handle

from . import messages, transactions
from .group_commit import GroupCommit
from .pull_handler import StageSender
from .push_handler import HeldPush, Memory, PushHandler
from .query_leases import Uses
from .stage_counter import Marks
from .state import Cursor, StageConsumer, StagedQuery

LEASE_MS = 86_400_000
"""How long a query that nobody uses stays, unless it was declared with another time."""
BUDGET = 64 << 30
"""Bytes of a query's batches on disk, unless it was declared with others."""
WRITERS = 8
"""Files that are written and synced at the same time."""
LOOK_AGAIN_S = 5.0
_log = logging.getLogger("epochlog")


class StagedExchange:
    """Staged exchanges of one open store, while it is served. `exchanges` and `actions` are for its server."""

    def __init__(self, handle: Handle, marks: Marks | None = None) -> None:
        self.handle = handle
        self.changed = threading.Condition()
        self.closing = threading.Event()
        self._marks = marks
        self._news: dict[str, int] = {}
        self.claims: Iterator[int] = itertools.count(
            1
        )  # numbers claims of consumers in the order in which they are committed
        self._mailboxes: dict[tuple[str, str], StageSender] = {}
        self._commits = GroupCommit(handle.catalog)
        self._writers = ThreadPoolExecutor(WRITERS, thread_name_prefix="epochlog-exchange-writes")
        self._freed: list[str] = []
        self._held: list[HeldPush] = []
        self._room: dict[str, int] = {}
        self._woken = False  # whether upkeep has something to do
        self.uses = Uses(handle)
        self.memory = Memory()
        self._upkeep = threading.Thread(target=self._look_after, name="epochlog-exchange-upkeep", daemon=True)
        self._upkeep.start()

    @property
    def exchanges(self) -> dict[bytes, Exchange]:
        return {
            messages.PUSH: Exchange(self._push_line, Role.WRITE, messages.MAX_MESSAGE_BYTES),
            messages.PULL: Exchange(self._mail_line, Role.WRITE, messages.MAX_MESSAGE_BYTES),
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
        """Tell the lines to end; call `close` once they have."""
        with self.changed:
            self.closing.set()
            self.changed.notify_all()

    def close(self) -> None:
        """End the threads. A push that has no answer may be durable or not."""
        self.stop()
        self._writers.shutdown(wait=True)
        self._commits.close()
        self._upkeep.join()
        self.uses.close()
        if self._marks is not None:
            self._marks.close()

    # ---- for lines -----------------------------------------------------------------------------------------------

    def submit(self, body: Callable[[Txn], Any]) -> Future[Any]:
        """Queue a body for the group commit and return a future of its result, set once it is durable; call `tell` for
        its waiters then.
        """
        return self._commits.submit(body)

    def transact(self, query: str, body: Callable[[Txn], Any]) -> Any:
        """Commit a body for a query, wait until it is durable, tell the query's waiters, and return its result."""
        found = self._commits.submit(body).result()
        self.tell(query)
        return found

    def tell(self, query: str) -> None:
        """Wake the waiters for news of a query: something of it was committed."""
        with self.changed:
            self._news[query] = self._news.get(query, 0) + 1
            self.changed.notify_all()

    def news(self, query: str) -> int:
        """Return a number that changes with every commit to the query in this process."""
        with self.changed:
            return self._news.get(query, 0)

    def work(self, what: Callable[[], None]) -> None:
        """Run a function in one of the threads that write files."""
        self._writers.submit(what)

    def write(self, data: pa.Buffer) -> str:
        """Write a new durable file of an exchange; return its path."""
        path = self.handle.new_path(FILES, SEGMENT_ENDING)
        self.handle.files.write(path, data)
        return path

    def free(self, paths: Iterable[str]) -> None:
        """Hand unreachable files over to upkeep, which deletes them soon."""
        with self.changed:
            self._freed += paths
            self._woken = True
            self.changed.notify_all()

    def wake(self) -> None:
        """Wake upkeep at once."""
        with self.changed:
            self._woken = True
            self.changed.notify_all()

    def room(self, query: str) -> int:
        """Return a number that changes whenever room for batches of the query may have come."""
        with self.changed:
            return self._room.get(query, 0)

    def hold(self, held: HeldPush) -> None:
        """Keep a push that found no room until room may have come, or the push gives up."""
        with self.changed:
            self._held.append(held)
            self._woken = True
            self.changed.notify_all()

    def passed(self, query: str) -> None:
        """Retry held pushes to later stages and copy the marks: a channel of the query may have passed."""
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
        asked = messages.unpack(body, messages.DECLARE)
        lease_ms = asked["lease_ms"] or LEASE_MS
        expires_ms = self.handle.catalog.now_ms() + lease_ms
        new = StagedQuery(asked["query"], {}, frozenset(), lease_ms, expires_ms, asked["budget"] or BUDGET)
        consumer = StageConsumer(asked["consumer"], asked["stages"])
        query = self.transact(new.name, lambda tx: transactions.declare(tx, new, consumer))
        self.uses.touch(query)
        if self._marks is not None:
            self._marks.declare(query.name, query.stages)
        return b""

    def _end(self, body: bytes) -> bytes:
        asked = messages.unpack(body, messages.END)
        name, channel, last = asked["query"], asked["channel"], asked["last"]
        attempt, rows = asked["attempt"], asked["rows"]
        self.uses.touch(self.transact(name, lambda tx: transactions.end(tx, name, channel, last, attempt, rows)))
        self.passed(name)
        return b""

    def _stage(self, body: bytes) -> bytes:
        name = messages.unpack(body, messages.QUERY)["query"]
        query = self.handle.catalog.read(lambda view: transactions.find_query(view, name))
        return messages.pack(stage=query.stage if self._marks is None else self._marks.stage(name))

    def _drop(self, body: bytes) -> bytes:
        name = messages.unpack(body, messages.QUERY)["query"]
        self.transact(name, lambda tx: end_query(tx, name))
        self.uses.forget(name)
        self.free(purge(self.handle.catalog, name))
        self._make_room(name)
        if self._marks is not None:
            self._marks.drop(name)
        return b""

    def _ack(self, body: bytes) -> bytes:
        asked = messages.unpack(body, messages.ACK)
        self._acknowledge(asked["query"], asked["consumer"], asked["incarnation"], asked["cursor"])
        return b""

    def _acknowledge(self, query: str, consumer: str, incarnation: int, cursor: Cursor) -> None:
        """Commit an acknowledgement; durable on return. The files of batches that all consumers have acknowledged are
        deleted after that.
        """
        freed = self.transact(query, lambda tx: transactions.acknowledge(tx, query, consumer, incarnation, cursor))
        self.free(freed)
        while len(freed) >= transactions.MAX_RELEASED:
            freed = self.transact(query, lambda tx: transactions.release(tx, query, cursor))
            self.free(freed)
        self._make_room(query)

    # ---- lines ---------------------------------------------------------------------------------------------------

    def _push_line(self, line: DuplexStream, rest: bytes) -> None:
        hello = line.read_first()
        if hello is not None:
            PushHandler(self, line, messages.unpack(hello, messages.PUSH_HELLO)["query"]).serve()

    def _mail_line(self, line: DuplexStream, rest: bytes) -> None:
        hello = line.read_first()
        if hello is None:
            return
        mailbox = StageSender(self, line, messages.unpack(hello, messages.PULL_HELLO))
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
        """Delete released files, retry held pushes, and end queries whose lease has run out, until the service
        closes.
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
                    end_expired(self.handle.catalog, self.handle.leases.live)
            except EpochlogError as error:
                _log.warning("the upkeep of exchanges failed: %s", error)

    def _due(self) -> list[HeldPush]:
        return [
            held
            for held in self._held
            if held.until.passed or held.over() or self._room.get(held.query, 0) != held.room
        ]

    def _delete(self, paths: list[str]) -> None:
        """Delete files; note those that cannot be deleted as unreachable, for vacuum."""
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
        mark_unreachable(tx, FILES, [(path, 0) for path in paths], self.handle.catalog.now_ms())
        move_counters(tx, Counters.read(tx))
