"""Stage senders: the served side of a consumer's line, which sends batches as the stage gate releases them and the
consumer has room.

The batches are looked up in the catalog, a few of a channel at a time and only of stages that are open, so a replay
holds no more in memory than a live run. The files go out as they lie on disk; the consumer compares checksums.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from epochlog.errors import Fenced
from epochlog.exchange.stage_gate import StageGate
from epochlog.exchange.transport.duplex import DuplexStream

from . import messages, transactions
from .push_handler import LineServices
from .state import Pushed

if TYPE_CHECKING:
    from epochlog.store.catalog.protocol import Txn

    from .state import StageConsumer

_log = logging.getLogger("epochlog")

MOST = 16
"""Batches of a channel that are looked up at a time."""
ALIVE_S = 1.0
"""How often a consumer that gets nothing hears that the server is alive."""
PARTING_S = 5.0
"""How long a consumer that was told all may take to end its line."""


class StageSender:
    """Sender that serves one line of a consumer until all batches were given out, or the line ends."""

    def __init__(self, service: LineServices, line: DuplexStream, hello: messages.Fields) -> None:
        """Claim the incarnation. Raises the errors of `transactions.claim`."""
        self._service = service
        self._line = line
        self._mail, self._number = hello["mail"], hello["line"]
        self._query, self._consumer, self._incarnation = hello["query"], hello["consumer"], hello["incarnation"]
        self.key = (self._query, self._consumer)
        self._claimed = 0

        def claim(tx: Txn) -> StageConsumer:
            self._claimed = next(service.claims)
            return transactions.claim(tx, self._query, self._consumer, self._incarnation, hello["cursor"])

        consumer = service.transact(self._query, claim)
        self._stages = consumer.stages
        start = {name: consumer.start.get(name, 0) for name in consumer.channels}
        self._gate = StageGate(consumer.stages, start)
        self._ends: dict[str, int] = {}
        self._credit = hello["window"]
        self._replaced = False

    def is_late(self, other: StageSender) -> bool:
        """Return True if this line is older than that of `other`: an earlier line of the same reader, or one that
        claimed the consumer earlier.
        """
        if other._mail == self._mail:
            return other._number > self._number
        return other._claimed > self._claimed

    def replaced(self) -> None:
        """End this sender with Fenced, because another line has come for its consumer."""
        with self._service.changed:
            self._replaced = True
            self._service.changed.notify_all()

    def serve(self) -> None:
        """Read the consumer's messages here, and send from another thread: a handler must not end while a line of its
        is read.
        """
        query = self._service.handle.catalog.read(lambda view: transactions.find_query(view, self._query))
        with self._service.uses.open(query):
            self._serve()

    def _serve(self) -> None:
        giving = threading.Thread(target=self._give_all, name="epochlog-exchange-mail", daemon=True)
        giving.start()
        try:
            while (message := self._line.read()) is not None:
                taken = messages.unpack(message, messages.CREDIT)["bytes"]
                with self._service.changed:
                    self._credit += taken
                    self._service.changed.notify_all()
        finally:
            self._line.abort()
            with self._service.changed:
                self._service.changed.notify_all()
            giving.join()

    def _give_all(self) -> None:
        """Send until all batches were given out, an error or a newer line ends the sender, or the line ends; then wait
        for the consumer to end the line.
        """
        try:
            self._begin()
            while not self._gate.done and not self._over:
                news = self._service.news(self._query)
                if not self._give() and not self._gate.done:
                    self._wait(lambda news=news: self._service.news(self._query) != news)
            if self._replaced:
                raise Fenced(
                    f"consumer {self._consumer!r}: incarnation {self._incarnation} was replaced: it or a higher one "
                    "has come on another line; end this one"
                )
        except Exception as error:  # noqa: BLE001 (the consumer is told)
            name, text = messages.error_to_fields(error)
            self._send(messages.pack(kind="refused", error=name, text=text))
        if not self._line.closed.wait(PARTING_S):
            self._line.abort()

    def _begin(self) -> None:
        self._line.begin(messages.FILE_SCHEMA)
        stages = [[stage, list(names)] for stage, names in self._stages.items()]
        self._send(messages.pack(kind="started", cursor=self._gate.cursor, stages=stages))

    @property
    def _over(self) -> bool:
        return self._replaced or self._line.closed.is_set() or self._service.closing.is_set()

    def _give(self) -> bool:
        """Send the batches that have become deliverable; return False if there were none, and no new end mark
        either.
        """
        found = self._service.handle.catalog.read(
            lambda view: transactions.read_backlog(
                view, self._query, self._consumer, self._gate.cursor, self._open(), MOST
            )
        )
        if found.incarnation != self._incarnation:
            raise Fenced(
                f"consumer {self._consumer!r}: incarnation {self._incarnation} was replaced by {found.incarnation}"
            )
        fresh = {name: last for name, last in found.ends.items() if name not in self._ends}
        for name, last in fresh.items():
            self._gate.end(name, last)
            self._ends[name] = last
            self._send(messages.pack(kind="ended", channel=name, last=last))
        for name, seq, pushed in found.pushed:
            self._gate.offer(name, seq, pushed, digest=pushed.crc32)
        taken = self._gate.take()
        for name, seq, pushed in taken:
            if not self._send_batch(name, seq, pushed):
                break
        return bool(fresh or taken)

    def _open(self) -> list[str]:
        """Return the channels of the lowest stage that this incarnation has not passed."""
        cursor = self._gate.cursor
        for names in self._stages.values():
            wanted = [name for name in names if not (name in self._ends and cursor[name] > self._ends[name])]
            if wanted:
                return wanted
        return []

    def _send_batch(self, name: str, seq: int, pushed: Pushed) -> bool:
        """Send one batch when the consumer has room for it; return False when the line is over."""
        self._wait(lambda: self._credit > 0, for_ever=True)
        if self._over:
            return False
        batch = f"sequence {seq} of channel {name!r}"  # where its file lies is none of the consumer's business
        try:
            data = self._service.handle.files.read(pushed.path)
        except FileNotFoundError:
            _log.error("query %s: %s of channel %s lies in %s, which is gone", self._query, seq, name, pushed.path)
            return self._send(messages.pack(kind="damaged", path=batch, what="the file is gone"))
        item = {"channel": name, "seq": seq, "crc32": pushed.crc32, "path": batch}
        with self._service.changed:
            self._credit -= data.size
        return self._line.send_rows(
            messages.rows_from_file(data), messages.pack_aligned(data.size, kind="item", **item)
        )

    def _send(self, message: bytes) -> bool:
        return self._line.send(message)

    def _wait(self, until: Any, *, for_ever: bool = False) -> None:
        """Wait for a condition, or the end; the consumer hears meanwhile that the server is alive."""
        while True:
            with self._service.changed:
                if self._service.changed.wait_for(lambda: self._over or until(), ALIVE_S):
                    return
            self._send(messages.pack(kind="alive"))
            if not for_ever:
                return  # look again: another server of the store may have committed something
