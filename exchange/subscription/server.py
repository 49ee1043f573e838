"""Server's side of a subscription: a table's rows, then its changes, then new commits, at the reader's own pace.

One exchange for each subscriber. The thread of the call reads the subscriber's messages; another sends. Nothing is sent
beyond a window of bytes, which opens again as the subscriber takes them. Decoded rows count as room of the subscriber's
lane (`exchange.transport.admission`); while its window is closed and others wait for that room, they are dropped and
decoded anew later. A subscriber that takes nothing for too long is cut off. All subscriptions share one poll of the
catalog.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa

from epochlog.errors import EpochlogError, InvalidInput, LimitExceeded, ReaderTooSlow, TableDropped
from epochlog.exchange.transport.admission import AdmissionController, AdmissionLimits, CallSlot
from epochlog.exchange.transport.duplex import DuplexStream
from epochlog.exchange.transport.services import Call
from epochlog.store.catalog.keys import head_key
from epochlog.store.catalog.protocol import View
from epochlog.store.changelog.consumers import Consumer, open_consumer
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
from .table_feed import Passed, Slice, TableFeed, table_of

ADVICE = "Subscribe without `after`: that begins with the table's rows, and goes on from there"
PARTING_S = 2.0
"""How long a subscriber may take to end its side once it was told that all is over."""


@dataclass(frozen=True, slots=True)
class SubscriptionLimits:
    """Limits of subscriptions. window: bytes sent and not taken. slow_s: the longest time that a reader may take
    nothing while something waits for it; after twice that without any message it is cut off. beat_s: the longest time
    without a message of the server. most: subscriptions at a time, three quarters of them for readers that may only
    read.
    """

    window: int = 8 << 20
    slow_s: float = 60.0
    beat_s: float = 2.0
    most: int = 1_000


class Subscriptions:
    """Service of the subscriptions to the tables of one open store."""

    def __init__(
        self, handle: Handle, bounds: SubscriptionLimits | None = None, admission: AdmissionController | None = None
    ) -> None:
        """Serve the tables of `handle`. admission: the controller from which each subscription acquires memory for
        decoded rows; None: a controller of its own.
        """
        self._handle = handle
        self._bounds = bounds or SubscriptionLimits()
        self._admission = admission or AdmissionController(AdmissionLimits())
        self._lock = threading.Lock()
        self._open = self._of_readers = 0

    def serve(self, line: DuplexStream, rest: bytes) -> None:
        """Serve one subscription until its client ends it or it is cut. Raises errors that the client is to be told."""
        request = decode_request(rest)
        self._enter(line.may_write)
        try:
            call = Call(line.peer, line.closed.is_set, line.abort, line.may_write)
            with self._admission.admit(call, lasting=True) as slot:
                _Subscription(self._handle, self._bounds, line, request, slot).run()
        finally:
            with self._lock:
                self._open -= 1
                self._of_readers -= not line.may_write

    def _enter(self, may_write: bool) -> None:
        with self._lock:
            most = self._bounds.most
            if self._open >= most or (not may_write and self._of_readers >= max(1, most * 3 // 4)):
                raise LimitExceeded(
                    f"this server has {self._open} subscriptions already; close some, or try again later"
                )
            self._open += 1
            self._of_readers += not may_write


class _Over(Exception):
    """End of a subscription because the subscriber has gone while its rows waited for room."""


class _Subscription:
    """Subscription of one subscriber: the rows sent to it, and the bytes that it has taken."""

    def __init__(
        self, handle: Handle, bounds: SubscriptionLimits, line: DuplexStream, request: Request, slot: CallSlot
    ) -> None:
        self._slot = slot
        self._watch = handle.watch
        self._bounds = bounds
        self._line = line
        resume = request.resume
        if resume is not None and resume.store != handle.store_id:
            raise TableDropped(f"{request.table!r} is served from another store than this subscription began with")
        known = None if resume is None else resume.table
        table = handle.catalog.read(lambda view: table_of(view, request.table, known))
        self.watched = head_key(table.id)
        self._name = table.name
        self._consumer = (
            None if request.consumer is None else _opened(handle, request, request.consumer, line.may_write)
        )
        place = _start(handle, table, request, self._consumer)
        try:
            self._feed = TableFeed(handle, table, request.columns, place, ADVICE, self._metered)
        except BaseException:
            self._let_go()
            raise
        self._through = self._feed.at.after  # of what was sent, all of it
        snapshot, changes = (0, 0) if resume is None else resume.seqs
        self._seqs = {SNAPSHOT: snapshot, CHANGES: changes}
        own = self._consumer
        self._welcome = SubscriptionWelcome(
            handle.store_id,
            table.id,
            self._feed.at,
            bounds.beat_s,
            bounds.slow_s,
            own.incarnation if own else None,
            own.position if own else None,
        )
        self._changed = threading.Condition()
        self._outstanding = 0 if resume is None else resume.held
        self._news = self._closed = False
        self._heard_s = self._took_s = monotonic_s()
        self._writing_s: float | None = None
        self._beat_s = 0.0
        self._error: Exception | None = None

    def run(self) -> None:
        giving = threading.Thread(target=self._give, name="epochlog-subscription", daemon=True)
        self._watch.add(self)
        giving.start()
        try:
            while (message := self._line.read()) is not None:
                self._take(decode_answer(message))
        finally:
            self._close()
            giving.join()
            self._watch.remove(self)
            self._let_go()
            self._feed.close()
        if self._error is not None:
            raise self._error

    # ---- the watching thread -------------------------------------------------------------------------------------

    def news(self) -> None:
        with self._changed:
            self._news = True
            self._changed.notify_all()

    def check(self, now_s: float) -> None:
        """Cut off a client that does not read its connection at all: nothing can be told to it."""
        writing_s = self._writing_s
        stuck = writing_s is not None and now_s - writing_s > self._bounds.slow_s
        if stuck or now_s - self._heard_s > 2 * self._bounds.slow_s:
            self._close()
            self._line.abort()

    # ---- what the subscriber says --------------------------------------------------------------------------------

    def _take(self, answer: Answer) -> None:
        with self._changed:
            self._heard_s = monotonic_s()
            if answer.kind == "took":
                self._outstanding = max(0, self._outstanding - answer.number)
                self._took_s = self._heard_s
                self._changed.notify_all()
        if answer.kind == "ack":
            self._acknowledged(answer.number)

    def _acknowledged(self, epoch: int) -> None:
        if self._consumer is None:
            raise InvalidInput("only the subscription of a consumer acknowledges: give it a name with consumer=")
        if epoch > self._through:
            raise InvalidInput(
                f"epoch {show_epoch(epoch)} of {self._name!r} was not given out whole: acknowledge through "
                f"{show_epoch(self._through)} at most"
            )
        self._consumer.ack(epoch)
        self._send(encode(Notice("acked", epoch)))

    def _let_go(self) -> None:
        if self._consumer is not None:
            with suppress(EpochlogError):  # its lease runs out by itself
                self._consumer.close()

    def _close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # ---- giving out ----------------------------------------------------------------------------------------------

    def _give(self) -> None:
        try:
            self._line.begin(self._feed.schema)
            self._send(encode(self._welcome))
            if self._feed.at.snapshot is None:
                self._end(SNAPSHOT)
            while not self._closed:
                self._news = False
                self._check()
                self._give_new()
                if self._feed.ended:
                    self._end(CHANGES)
                self._wait(lambda: self._news and not self._feed.ended)
        except _Over:
            return
        except Exception as error:  # noqa: BLE001 (the call's own thread raises it, and the client is told)
            self._error = error
            self._send(encode(Notice("over")))
            with self._changed:
                ended = self._changed.wait_for(lambda: self._closed, PARTING_S)
            if not ended:
                self._line.abort()

    def _give_new(self) -> None:
        """Send all that is new. While the window is closed nothing is in hand, and decoded rows are dropped if others
        wait for their room.
        """
        items = self._feed.new()
        try:
            while not self._closed:
                if self._outstanding >= self._bounds.window and not self._window_opens():
                    self._news = True  # go on at once, from the place that was reached
                    return
                item = next(items, None)
                if item is None:
                    return
                self._given(item)
                del item
        finally:
            items.close()

    def _window_opens(self) -> bool:
        """Wait until the subscriber has taken enough; return False when its decoded rows are to be dropped first."""
        since_s = monotonic_s()
        while not self._closed and self._outstanding >= self._bounds.window:
            if self._slot.has_waiters and self._slot.acquired_bytes:
                return False
            self._wait(lambda: self._outstanding < self._bounds.window, since_s)
        return True

    def _metered(self, batches: Iterator[pa.RecordBatch], footprint: Footprint) -> Iterator[pa.RecordBatch]:
        """Yield the feed's batches once there is room for them: for a piece, and for the one that is read after it, as
        a slice of the first waits until the next shows that it is the last of its epoch.
        """
        size = footprint.making + footprint.kept
        self._slot.acquire(size, on_poll=self._alive)
        try:
            while (batch := next(batches, None)) is not None:
                self._slot.resize(max(size, 2 * batch.get_total_buffer_size()))
                yield batch
                del batch
        finally:
            self._slot.release()

    def _alive(self) -> None:
        """Send a beat to the subscriber if one is due while its rows wait for room. Raises _Over once it has gone."""
        if self._closed:
            raise _Over
        if monotonic_s() - self._beat_s > self._bounds.beat_s:
            self._send(encode(Notice("beat")))
            self._check()

    def _check(self) -> None:
        """Raise Fenced when another subscription has claimed the consumer, at any server of the store."""
        if self._consumer is not None:
            self._consumer.check()

    def _given(self, item: Slice | Passed) -> None:
        """Send an item of the feed."""
        if isinstance(item, Slice):
            self._rows(item)
            return
        self._through = item.epoch
        channel = SNAPSHOT if item.snapshot else CHANGES
        self._send(encode(Mark("passed", channel, self._next(channel), item.epoch, last=True)))
        if item.snapshot:
            self._end(SNAPSHOT)

    def _rows(self, item: Slice) -> None:
        size, channel = item.data.nbytes, SNAPSHOT if item.snapshot else CHANGES
        with self._changed:
            if self._closed:
                return
            self._outstanding += size
            if item.last:
                self._through = item.epoch
        mark = Mark("rows", channel, self._next(channel), item.epoch, item.last, size)
        self._send(encode(mark), item.data)

    def _end(self, channel: str) -> None:
        self._send(encode(Mark("end", channel, self._seqs[channel])))

    def _next(self, channel: str) -> int:
        seq, self._seqs[channel] = self._seqs[channel], self._seqs[channel] + 1
        return seq

    def _send(self, message: bytes, rows: pa.RecordBatch | None = None) -> None:
        self._writing_s = self._beat_s = monotonic_s()
        sent = self._line.send(message) if rows is None else self._line.send_rows(rows, message)
        self._writing_s = None
        if not sent:
            self._close()

    def _wait(self, until: Callable[[], bool], taking_since_s: float | None = None) -> None:
        """Wait until a condition holds or the subscriber is gone, sending beats meanwhile. taking_since_s: the
        monotonic time since which the subscription waits for the subscriber to take; then it waits for one beat at
        most. Raises ReaderTooSlow.
        """
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: self._closed or until(), self._bounds.beat_s):
                    return
            idle_s = 0.0 if taking_since_s is None else monotonic_s() - max(taking_since_s, self._took_s)
            if idle_s > self._bounds.slow_s:
                raise ReaderTooSlow(
                    f"nothing was taken of {self._name!r} for {self._bounds.slow_s:g} s while {self._outstanding} "
                    "bytes waited; subscribe anew, after the epoch that is done with, and take what comes in time"
                )
            self._send(encode(Notice("beat")))
            self._check()
            if taking_since_s is not None:
                return


def _opened(handle: Handle, request: Request, name: str, may_write: bool) -> Consumer:
    resumed = None if request.resume is None else request.resume.incarnation
    tables, too_old, keep = [request.table], request.too_old, request.keep_s
    return open_consumer(handle, name, tables, too_old=too_old, keep=keep, incarnation=resumed, may_write=may_write)


def _start(handle: Handle, table: TableDef, request: Request, consumer: Consumer | None) -> FeedPosition | None:
    """Return the position to begin at; None begins with the table's rows."""
    if request.resume is not None:
        return request.resume.place
    if consumer is not None:
        return None if consumer.position is None else FeedPosition(after=consumer.position)
    if request.after is None:
        return None
    after = request.after

    def check(view: View) -> None:
        epochs = read_epoch_view(view, handle.memory, handle.catalog.now_ms(), above=[table.id])
        require_complete(table.name, after, epochs.complete_through(table.id))

    handle.catalog.read(check)
    return FeedPosition(after=after)
