"""Stage senders: the server's side of a consumer's stream. They send batches that the stage gate releases, within the
consumer's window.

A sender reads a few batches per channel from the catalog at a time, and only of open stages, so a replay holds no more
in memory than a live run. The files are sent as they are on disk; the consumer compares checksums.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from epochlog.errors import Fenced
from epochlog.exchange.stage_gate import StageGate
from epochlog.exchange.transport.duplex import DuplexStream
from epochlog.store.env.log_events import EXCHANGE_FILE_MISSING

from . import messages, transactions
from .push_handler import ExchangeServices
from .state import Pushed

if TYPE_CHECKING:
    from epochlog.store.catalog.protocol import Txn

    from .state import StageConsumer


LOOKAHEAD = 16
"""Batches of a channel that one read of the catalog returns."""
HEARTBEAT_S = 1.0
"""Seconds without a batch after which a consumer gets a heartbeat."""
CLOSE_S = 5.0
"""Seconds that a consumer gets to end its stream after the last message."""


class StageSender:
    """Sender to one stream of a consumer, until all batches are sent or the stream ends."""

    def __init__(self, service: ExchangeServices, stream: DuplexStream, hello: messages.Fields) -> None:
        """Claim the incarnation, if there is one. Raises the errors of `transactions.claim`."""
        self._service = service
        self._stream = stream
        self._reader_id, self._stream_number = hello["mail"], hello["line"]
        self._query, self._consumer, self._incarnation = hello["query"], hello["consumer"], hello["incarnation"]
        self.key: tuple[str, ...] = (self._query, self._consumer)
        self._claim_number = 0

        def claim(tx: Txn) -> StageConsumer:
            self._claim_number = next(service.claim_numbers)
            return transactions.claim(tx, self._query, self._consumer, self._incarnation, hello["cursor"])

        if self._incarnation is None:  # any number of readers without a claim, beside the claimed incarnation
            self.key = (*self.key, self._reader_id)
            consumer = service.handle.catalog.read(
                lambda view: transactions.begin_read(view, self._query, self._consumer, hello["cursor"])
            )
        else:
            consumer = service.transact(self._query, claim)
        self._stages = consumer.stages
        start = {name: consumer.start.get(name, 0) for name in consumer.channels}
        self._gate = StageGate(consumer.stages, start)
        self._ends: dict[str, int] = {}
        self._credit = hello["window"]
        self._replaced = False

    def is_older_than(self, other: StageSender) -> bool:
        """Return True if this stream is an earlier stream of the other's reader, or claimed the consumer earlier."""
        if other._reader_id == self._reader_id:
            return other._stream_number > self._stream_number
        return other._claim_number > self._claim_number

    def replace(self) -> None:
        """End this sender with Fenced, because a newer stream has claimed its consumer."""
        with self._service.changed:
            self._replaced = True
            self._service.changed.notify_all()

    def serve(self) -> None:
        """Read the consumer's messages in this thread and send from another, until the stream ends.

        The handler of a Flight call must not return while another thread reads its stream.
        """
        query = self._service.handle.catalog.read(lambda view: transactions.find_query(view, self._query))
        with self._service.query_leases.open(query):
            self._serve()

    def _serve(self) -> None:
        sending = threading.Thread(target=self._send_all, name="epochlog-exchange-sends", daemon=True)
        sending.start()
        try:
            while (message := self._stream.read()) is not None:
                credit = messages.unpack(message, messages.CREDIT)["bytes"]
                with self._service.changed:
                    self._credit += credit
                    self._service.changed.notify_all()
        finally:
            self._stream.abort()
            with self._service.changed:
                self._service.changed.notify_all()
            sending.join()

    def _send_all(self) -> None:
        """Send until all batches are sent, an error or a newer stream ends the sender, or the stream ends; then wait
        until the consumer ends the stream.
        """
        try:
            self._send_start()
            while not self._gate.done and not self._ended:
                commits = self._service.commit_count(self._query)
                if not self._send_backlog() and not self._gate.done:
                    self._wait(lambda commits=commits: self._service.commit_count(self._query) != commits)
            if self._replaced:
                raise Fenced(
                    f"consumer {self._consumer!r}: incarnation {self._incarnation} was replaced, because it or a "
                    "higher incarnation has opened another stream; end this one"
                )
        except Exception as error:  # noqa: BLE001 (sent to the consumer)
            name, text = messages.error_to_fields(error)
            self._send(messages.pack(kind="refused", error=name, text=text))
        if not self._stream.closed.wait(CLOSE_S):
            self._stream.abort()

    def _send_start(self) -> None:
        self._stream.begin(messages.FILE_SCHEMA)
        stages = [[stage, list(names)] for stage, names in self._stages.items()]
        self._send(messages.pack(kind="started", cursor=self._gate.cursor, stages=stages))

    @property
    def _ended(self) -> bool:
        return self._replaced or self._stream.closed.is_set() or self._service.closing.is_set()

    def _send_backlog(self) -> bool:
        """Send the new end marks and the batches that the gate releases; return False if there were none."""
        cursor, names = self._gate.cursor, self._open_channels()
        backlog = self._service.handle.catalog.read(
            lambda view: transactions.read_backlog(view, self._query, self._consumer, cursor, names, LOOKAHEAD)
        )
        if self._incarnation is not None and backlog.incarnation != self._incarnation:
            raise Fenced(
                f"consumer {self._consumer!r}: incarnation {self._incarnation} was replaced by {backlog.incarnation}; "
                "end it"
            )
        new_ends = {name: last for name, last in backlog.ends.items() if name not in self._ends}
        for name, last in new_ends.items():
            self._gate.end(name, last)
            self._ends[name] = last
            self._send(messages.pack(kind="ended", channel=name, last=last))
        for name, seq, pushed in backlog.pushed:
            self._gate.offer(name, seq, pushed, digest=pushed.crc32)
        released = self._gate.take()
        for name, seq, pushed in released:
            if not self._send_batch(name, seq, pushed):
                break
        return bool(new_ends or released)

    def _open_channels(self) -> list[str]:
        """Return the open channels of the lowest stage that this incarnation has not passed."""
        cursor = self._gate.cursor
        for names in self._stages.values():
            open_names = [name for name in names if not (name in self._ends and cursor[name] > self._ends[name])]
            if open_names:
                return open_names
        return []

    def _send_batch(self, name: str, seq: int, pushed: Pushed) -> bool:
        """Send one batch when the consumer's window has room; return False when the sender has ended."""
        self._wait(lambda: self._credit > 0, keep_waiting=True)
        if self._ended:
            return False
        batch = f"sequence {seq} of channel {name!r}"  # in place of the server's path
        try:
            data = self._service.handle.files.read(pushed.path)
        except FileNotFoundError:
            EXCHANGE_FILE_MISSING.log(query=self._query, channel=name, seq=seq, path=pushed.path)
            return self._send(messages.pack(kind="damaged", path=batch, what="the file is missing"))
        item = {"channel": name, "seq": seq, "crc32": pushed.crc32, "path": batch}
        with self._service.changed:
            self._credit -= data.size
        message = messages.pack_aligned(data.size, kind="item", **item)
        return self._stream.send_rows(messages.rows_from_file(data), message)

    def _send(self, message: bytes) -> bool:
        return self._stream.send(message)

    def _wait(self, until: Any, *, keep_waiting: bool = False) -> None:
        """Wait for a condition, or the end of the sender, and send heartbeats. Return after the first heartbeat unless
        `keep_waiting`.
        """
        while True:
            with self._service.changed:
                if self._service.changed.wait_for(lambda: self._ended or until(), HEARTBEAT_S):
                    return
            self._send(messages.pack(kind="alive"))
            if not keep_waiting:
                return  # another server of the store may have committed; read the catalog again
