"""Server side of subscriptions: sends a table's rows, then its changes, then new commits, with flow control.

Each subscriber has one exchange. The thread of the call reads the subscriber's messages; a second thread sends. The
sender keeps at most a window of unread bytes in flight. Decoded rows count against the memory of the subscriber's lane
(`exchange.transport.admission`). If the window is full while other calls wait for memory, the sender drops its decoded
rows and decodes them again later. The server disconnects a subscriber that takes nothing for too long. All
subscriptions share one poll of the catalog.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa

from epochlog.errors import EpochlogError, InvalidInput, LimitExceeded, ReaderTooSlow, TableDropped
from epochlog.exchange.transport.admission import AdmissionController, CallSlot
from epochlog.exchange.transport.duplex import DuplexStream
from epochlog.exchange.transport.services import Call
from epochlog.store.catalog.keys import head_key
from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.changelog.change_rows import COMMIT_VERSION
from epochlog.store.changelog.consumer import Consumer
from epochlog.store.changelog.consumers import open_consumer
from epochlog.store.changelog.footprint import Footprint
from epochlog.store.env.clock import monotonic_s
from epochlog.store.epochs.view_reader import read_epoch_view
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.scan.scan_plan import require_complete
from epochlog.store.session.handle import Handle
from epochlog.store.types.epoch import show_epoch

from .messages import (
    CHANGES,
    SNAPSHOT,
    Answer,
    FeedPosition,
    Mark,
    Notice,
    Request,
    SubscriptionWelcome,
    decode_answer,
    decode_request,
    encode,
)
from .table_feed import Slice, TableFeed, find_subscribed_table

ADVICE = "Subscribe without `after` to begin with the table's rows"
PARTING_S = 2.0
"""Time for a subscriber to end its side of the stream after the notice "over"."""


@dataclass(frozen=True, slots=True)
class SubscriptionLimits:
    """Limits of subscriptions."""

    window: int = 8 << 20
    """Bytes sent and not yet taken."""
    slow_s: float = 60.0
    """Longest time that a reader may take nothing while bytes wait for it; after twice that without any message the
    server disconnects it.
    """
    beat_s: float = 2.0
    """Longest time without a message of the server."""
    max_subscriptions: int = 1_000
    """Open at a time; clients that may only read get three quarters of them."""


class Subscriptions:
    """Subscription service of one open store."""

    def __init__(
        self, handle: Handle, admission: AdmissionController, limits: SubscriptionLimits | None = None
    ) -> None:
        """Serve the tables of `handle`. admission: the controller from which each subscription acquires memory for
        decoded rows; its owner closes it.
        """
        self._handle = handle
        self._limits = limits or SubscriptionLimits()
        self._admission = admission
        self._lock = threading.Lock()
        self._open_count = self._reader_count = 0

    def serve(self, stream: DuplexStream, encoded_request: bytes) -> None:
        """Serve one subscription until its client ends it or the connection is aborted. The client gets the errors that
        this raises.
        """
        request = decode_request(encoded_request)
        self._count_subscription(stream.may_write)
        try:
            call = Call(stream.peer, stream.closed.is_set, stream.abort, stream.may_write)
            with self._admission.admit(call, lasting=True) as slot:
                _Subscription(self._handle, self._limits, stream, request, slot).run()
        finally:
            with self._lock:
                self._open_count -= 1
                self._reader_count -= not stream.may_write

    def _count_subscription(self, may_write: bool) -> None:
        with self._lock:
            max_subscriptions = self._limits.max_subscriptions
            max_readers = max(1, max_subscriptions * 3 // 4)
            if self._open_count >= max_subscriptions or (not may_write and self._reader_count >= max_readers):
                raise LimitExceeded(
                    f"this server has {self._open_count} open subscriptions; close some, or try again later"
                )
            self._open_count += 1
            self._reader_count += not may_write


class _Over(Exception):
    """Subscription whose client disconnected while its rows waited for memory."""


class _Subscription:
    """Subscription of one client: the rows sent to it, and the bytes that it has taken."""

    def __init__(
        self, handle: Handle, limits: SubscriptionLimits, stream: DuplexStream, request: Request, slot: CallSlot
    ) -> None:
        self._slot = slot
        self._watcher = handle.watcher
        self._limits = limits
        self._stream = stream
        resume = request.resume
        if resume is not None and resume.store != handle.store_id:
            raise TableDropped(
                f"this server serves another store than the one in which the subscription to {request.table!r} began; "
                "subscribe anew"
            )
        table_id = None if resume is None else resume.table
        table = handle.catalog.read(lambda view: find_subscribed_table(view, request.table, table_id))
        self.watched_key = head_key(table.id)
        self._name = table.name
        self._consumer = (
            None
            if request.consumer is None
            else _open_request_consumer(handle, request, request.consumer, stream.may_write)
        )
        position = _start_position(handle, table, request, self._consumer)
        try:
            version = None if resume is None else resume.schema
            self._feed = TableFeed(
                handle, table, request.columns, position, ADVICE, self._reserve_memory, version,
                together=request.together,
            )  # fmt: skip
        except BaseException:
            self._release_consumer()
            raise
        self._sent_epoch = self._feed.position.after  # the epoch through which all changes were sent
        snapshot, changes = (0, 0) if resume is None else resume.seqs
        self._seqs = {SNAPSHOT: snapshot, CHANGES: changes}
        consumer = self._consumer
        self._welcome = SubscriptionWelcome(
            handle.store_id,
            table.id,
            self._feed.position,
            limits.beat_s,
            limits.slow_s,
            consumer.incarnation if consumer else None,
            consumer.position if consumer else None,
            self._feed.version,
        )
        self._changed = threading.Condition()
        self._outstanding = 0 if resume is None else resume.held
        self._has_news = self._closed = False
        self._last_message_s = self._last_taken_s = monotonic_s()
        self._write_began_s: float | None = None
        self._last_sent_s = 0.0
        self._error: Exception | None = None

    def run(self) -> None:
        sender = threading.Thread(target=self._send_feed, name="epochlog-subscription", daemon=True)
        self._watcher.add(self)
        sender.start()
        try:
            while (message := self._stream.read()) is not None:
                self._handle_answer(decode_answer(message))
        finally:
            self._close()
            sender.join()
            self._watcher.remove(self)
            self._release_consumer()
            self._feed.close()
        if self._error is not None:
            raise self._error

    # ---- the watcher's thread ------------------------------------------------------------------------------------

    def on_change(self) -> None:
        with self._changed:
            self._has_news = True
            self._changed.notify_all()

    def on_poll(self, now_s: float) -> None:
        """Abort the connection of a client that has stopped reading it, or has sent nothing for too long."""
        write_began_s = self._write_began_s
        stuck = write_began_s is not None and now_s - write_began_s > self._limits.slow_s
        if stuck or now_s - self._last_message_s > 2 * self._limits.slow_s:
            self._close()
            self._stream.abort()

    # ---- the subscriber's messages -------------------------------------------------------------------------------

    def _handle_answer(self, answer: Answer) -> None:
        with self._changed:
            self._last_message_s = monotonic_s()
            if answer.kind == "took":
                self._outstanding = max(0, self._outstanding - answer.number)
                self._last_taken_s = self._last_message_s
                self._changed.notify_all()
        if answer.kind == "ack":
            self._acknowledge(answer.number)

    def _acknowledge(self, epoch: int) -> None:
        if self._consumer is None:
            raise InvalidInput(
                f"this subscription to {self._name!r} has no consumer, so it cannot acknowledge; subscribe with "
                "consumer="
            )
        if epoch > self._sent_epoch:
            raise InvalidInput(
                f"epoch {show_epoch(epoch)} of {self._name!r} was not delivered completely; acknowledge at most epoch "
                f"{show_epoch(self._sent_epoch)}"
            )
        self._consumer.ack(epoch)
        self._send(encode(Notice("acked", epoch)))

    def _release_consumer(self) -> None:
        if self._consumer is not None:
            with suppress(EpochlogError):  # Its lease expires if this fails.
                self._consumer.close()

    def _close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # ---- sending -------------------------------------------------------------------------------------------------

    def _send_feed(self) -> None:
        try:
            self._stream.begin(self._feed.schema)
            self._send(encode(self._welcome))
            if self._feed.position.snapshot is None:
                self._send_end(SNAPSHOT)
            while not self._closed:
                self._has_news = False
                self._check()
                self._send_pending()
                if self._feed.ended:
                    self._send_end(CHANGES)
                self._wait(lambda: self._has_news and not self._feed.ended)
        except _Over:
            return
        except Exception as error:  # noqa: BLE001 (the call's thread raises it, and the client gets it)
            self._error = error
            self._send(encode(Notice("over")))
            with self._changed:
                closed = self._changed.wait_for(lambda: self._closed, PARTING_S)
            if not closed:
                self._stream.abort()

    def _send_pending(self) -> None:
        """Send all new items of the feed. While the window is full, keep no item, and drop decoded rows if other calls
        wait for memory.
        """
        items = self._feed.read_new()
        try:
            while not self._closed:
                if self._outstanding >= self._limits.window and not self._wait_for_window():
                    self._has_news = True  # Read again from the position reached, without waiting for a commit.
                    return
                item = next(items, None)
                if item is None:
                    return
                self._send_slice(item)
                del item
        finally:
            items.close()

    def _wait_for_window(self) -> bool:
        """Wait until the window has space; return False if the decoded rows must be dropped first."""
        since_s = monotonic_s()
        while not self._closed and self._outstanding >= self._limits.window:
            if self._slot.has_waiters and self._slot.acquired_bytes:
                return False
            self._wait(lambda: self._outstanding < self._limits.window, since_s)
        return True

    def _reserve_memory(self, batches: Iterator[pa.RecordBatch], footprint: Footprint) -> Iterator[pa.RecordBatch]:
        """Yield the feed's batches once there is memory for a batch and its successor. The last slice of a batch waits
        for the next batch, which shows if the epoch has ended.
        """
        size = footprint.making + footprint.kept
        self._slot.acquire(size, on_poll=self._keep_alive)
        try:
            while (batch := next(batches, None)) is not None:
                self._slot.resize(max(size, 2 * batch.get_total_buffer_size()))
                yield batch
                del batch
        finally:
            self._slot.release()

    def _keep_alive(self) -> None:
        """Send a beat if one is due while rows wait for memory. Raises _Over once the client has disconnected."""
        if self._closed:
            raise _Over
        if monotonic_s() - self._last_sent_s > self._limits.beat_s:
            self._send(encode(Notice("beat")))
            self._check()

    def _check(self) -> None:
        """Raise Fenced if another subscription has claimed the consumer, on any server of the store."""
        if self._consumer is not None:
            self._consumer.check()

    def _send_slice(self, item: Slice) -> None:
        size, channel = 0 if item.data is None else item.data.nbytes, SNAPSHOT if item.snapshot else CHANGES
        with self._changed:
            if self._closed:
                return
            self._outstanding += size
            if item.last:
                self._sent_epoch = item.epoch
        kind = "passed" if item.data is None else "epochs" if _has_several_epochs(item.data) else "rows"
        self._send(encode(Mark(kind, channel, self._next_seq(channel), item.epoch, item.last, size)), item.data)
        if item.data is None and item.snapshot:
            self._send_end(SNAPSHOT)

    def _send_end(self, channel: str) -> None:
        self._send(encode(Mark("end", channel, self._seqs[channel])))

    def _next_seq(self, channel: str) -> int:
        seq, self._seqs[channel] = self._seqs[channel], self._seqs[channel] + 1
        return seq

    def _send(self, message: bytes, rows: pa.RecordBatch | None = None) -> None:
        self._write_began_s = self._last_sent_s = monotonic_s()
        sent = self._stream.send(message) if rows is None else self._stream.send_rows(rows, message)
        self._write_began_s = None
        if not sent:
            self._close()

    def _wait(self, condition: Callable[[], bool], blocked_since_s: float | None = None) -> None:
        """Wait until a condition holds or the client disconnects, sending beats meanwhile. blocked_since_s: the
        monotonic time since which the window is full; with it, wait for one beat at most. Raises ReaderTooSlow.
        """
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: self._closed or condition(), self._limits.beat_s):
                    return
            idle_s = 0.0 if blocked_since_s is None else monotonic_s() - max(blocked_since_s, self._last_taken_s)
            if idle_s > self._limits.slow_s:
                raise ReaderTooSlow(
                    f"the subscriber to {self._name!r} took nothing for {self._limits.slow_s:g} s while "
                    f"{self._outstanding} bytes waited; subscribe anew after the last epoch that you processed, and "
                    "take batches faster"
                )
            self._send(encode(Notice("beat")))
            self._check()
            if blocked_since_s is not None:
                return


def _has_several_epochs(rows: pa.RecordBatch) -> bool:
    epochs = rows.column(COMMIT_VERSION)
    return rows.num_rows > 0 and epochs[0] != epochs[rows.num_rows - 1]


def _open_request_consumer(handle: Handle, request: Request, name: str, may_write: bool) -> Consumer:
    incarnation = None if request.resume is None else request.resume.incarnation
    tables, too_old, keep = [request.table], request.too_old, request.keep_s
    return open_consumer(handle, name, tables, too_old=too_old, keep=keep, incarnation=incarnation, may_write=may_write)


def _start_position(
    handle: Handle, table: TableDef, request: Request, consumer: Consumer | None
) -> FeedPosition | None:
    """Return the position at which the feed begins; None begins with the table's rows."""
    if request.resume is not None:
        return request.resume.place
    if consumer is not None:
        return None if consumer.position is None else FeedPosition(after=consumer.position)
    if request.after is None:
        return None
    after = request.after

    def check(view: ReadTxn) -> None:
        epochs = read_epoch_view(view, handle.memory, handle.catalog.now_ms(), above=[table.id])
        require_complete(table.name, after, epochs.complete_through(table.id))

    handle.catalog.read(check)
    return FeedPosition(after=after)
