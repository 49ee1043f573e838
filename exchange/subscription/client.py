"""Client side of a subscription: record batches in order, each once, over any number of connections.

A thread reads the connection and passes each batch through a StageGate into a queue. The user's thread takes batches
out and reports the bytes taken to the server. After a lost connection the thread reconnects and resumes at its
position, also in the middle of an epoch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta

import pyarrow as pa

from epochlog.errors import (
    BadMessage,
    CatalogUnavailable,
    EpochlogError,
    InvalidInput,
    OutcomeUnknown,
    SchemaChanged,
    ServerUnavailable,
)
from epochlog.exchange.stage_gate import StageGate
from epochlog.exchange.transport.duplex import ClientStream, Frame
from epochlog.exchange.transport.reconnecting_stream import ReconnectingStream
from epochlog.store.changelog.change_rows import each_epoch
from epochlog.store.env.backoff import Backoff
from epochlog.store.env.clock import Deadline, monotonic_s
from epochlog.store.env.closeable import PollIterator
from epochlog.store.types.epoch import as_epoch, show_epoch
from epochlog.store.types.time_zones import batch_in_common_zones

from .messages import (
    CHANGES,
    SNAPSHOT,
    STAGES,
    SUBSCRIBE,
    Answer,
    FeedPosition,
    Mark,
    Notice,
    Request,
    Resume,
    SubscriptionWelcome,
    decode_server_message,
    encode,
)

BACKOFF = Backoff(first_s=0.05, limit_s=1.0)
"""Delays between attempts to connect."""
_POLL_S = 1.0
"""Poll interval of a waiting caller while there is no connection."""
MISSED_BEATS = 5
"""Number of missed beats of the server after which the connection counts as lost."""
OPEN_S = 3.0
"""Shortest time within which the server may answer on a new connection, however often its beats come."""
DELIVERIES_PER_GATE = 4_096
"""Number of deliveries after which the gate, which remembers each one, is replaced by a new one at its cursor."""
UNKNOWN_TOGETHER = "there is no field 'together'"
"""Part of the refusal of a server that sends each epoch by itself only, as an earlier one does."""
TRANSIENT = (ServerUnavailable, CatalogUnavailable, OutcomeUnknown)
"""Errors after which the client connects again."""

OpenStream = Callable[[bytes], ClientStream]


@dataclass(frozen=True, slots=True)
class _Item:
    """Item that the gate releases: a batch, or None for the notice that all changes through an epoch have arrived."""

    rows: pa.RecordBatch | None
    epoch: int
    last: bool
    size: int
    """Bytes."""


class Subscription(PollIterator[pa.RecordBatch]):
    """Iterator of a table's record batches: its columns, then `_change_type`, `_commit_version` and
    `_commit_timestamp`.

    First come the table's rows at one epoch, as inserts; a subscription that begins with them has no `epoch` yet, and
    its user begins with an empty state. Then come each later epoch's changes (upsert, delete) in key order, and new
    commits as they land. A batch has rows of one epoch; a large epoch comes in several batches. `epoch` is the epoch
    through which all changes were returned. The iteration ends when the table's data has ended, or with `close`.

    After a lost connection the subscription reconnects and resumes; it returns each change once. Raises
    ServerUnavailable when the server does not answer for `reconnect` seconds, ReaderTooSlow, LogTruncated,
    SnapshotExpired, TableDropped, AccessDenied, and SchemaChanged after the changes before an alter that drops, renames
    or widens a column; columns that were added are left out until a new subscription. An error is raised after all
    batches received before it, and by every later call; but `ack` acknowledges what came before an alter. Close the
    subscription, or use it in a `with` block; `close` and `ack` may be called from other threads.
    """

    def __init__(
        self, open_stream: OpenStream, location: str, request: Request, timeout_s: float, reconnect_s: float
    ) -> None:
        """Open a subscription and wait for the server's welcome; users call `Client.subscribe`."""
        self._open_stream = open_stream
        self._location = location
        self._request = request
        self._timeout_s = timeout_s
        self._reconnect_s = reconnect_s
        self._link = ReconnectingStream(
            "epochlog-subscriber", BACKOFF, self._connect, self._handle_frame, self._handle_loss,
            wanted=lambda: not self._ended_by_alter or self._requested_ack > self._acked,
        )  # fmt: skip
        self._changed = self._link.changed
        self._gate = StageGate(STAGES)
        self._end_marks: dict[str, int] = {}
        self._gate_deliveries = 0  # of the present gate
        self._queue: deque[_Item] = deque()
        self._queued_bytes = self._unreported_bytes = 0  # unreported: taken, and not yet reported to the server
        self._welcome: SubscriptionWelcome | None = None
        self._position = FeedPosition()  # up to which all items were received
        self._epoch: int | None = None
        self._requested_ack = self._acked = -1
        self._disconnected_since_s: float | None = monotonic_s()  # None while connected
        self._error: EpochlogError | None = None
        self._link.start()
        try:
            if not self._wait(lambda: self._welcome is not None, Deadline.after(timeout_s)):
                raise ServerUnavailable(f"{location} did not answer the subscription in {timeout_s:g} s; try again")
        except BaseException:
            self.close()
            raise

    @property
    def epoch(self) -> int | None:
        """Return the epoch through which all changes were returned, by this subscription or before it began; None
        until all of the table's rows were returned.
        """
        return self._epoch

    def poll(self, timeout: float | timedelta | None = 0) -> pa.RecordBatch | None:
        """Return the next batch; None if none arrives in time, or after the end or `close`.

        timeout: seconds or a timedelta; None waits for as long as the server answers. `epoch` can advance without a
        batch.
        """
        deadline = None if timeout is None else Deadline.after(timeout)
        while True:
            item = self._pop_item(deadline)
            if item is None:
                return None
            if item.last:
                self._epoch = item.epoch
            if item.rows is not None:
                return item.rows

    def ack(self, epoch: int | None = None, *, timeout: float | timedelta | None = None) -> None:
        """Acknowledge that your durable state covers all changes through `epoch`: the next subscription of this
        consumer, also after a crash, begins past it. The acknowledgement is durable when this returns; an epoch at or
        below an earlier one has no effect. None acknowledges the last epoch that was returned completely, and nothing
        until all of the table's rows were returned.

        timeout: seconds or a timedelta to wait for the answer, None for the client's. Raises InvalidInput for an epoch
        that was not returned completely, Fenced when another subscription has claimed the consumer, and
        ServerUnavailable when no answer arrives. The outcome is then unknown; acknowledge the epoch again.
        """
        if self._request.consumer is None:
            raise InvalidInput(
                f"this subscription to {self._request.table!r} has no consumer, so it cannot acknowledge; subscribe "
                "with consumer="
            )
        epoch = self._epoch if epoch is None else as_epoch("epoch", epoch)
        if epoch is None:
            return
        if self._epoch is None or epoch > self._epoch:
            raise InvalidInput(
                f"epoch {show_epoch(epoch)} of {self._request.table!r} was not returned completely yet; acknowledge at "
                f"most `epoch`, which is {show_epoch(self._epoch)}"
            )
        deadline = Deadline.after(self._timeout_s if timeout is None else timeout)
        with self._changed:
            self._requested_ack = max(self._requested_ack, epoch)
            self._changed.notify_all()
            stream = self._link.stream
        if stream is not None and self._acked < epoch:
            stream.send(encode(Answer("ack", epoch)))
        done = self._wait(lambda: self._acked >= epoch or self._link.closed, deadline, acknowledging=True)
        if not done or self._acked < epoch:
            raise ServerUnavailable(
                f"{self._location} has not confirmed the acknowledgement of epoch {show_epoch(epoch)}; acknowledge it "
                "again"
            )

    @property
    def ended(self) -> bool:
        """Return True if the table's data has ended and all of it was returned."""
        with self._changed:
            return self._gate.done and not self._queue

    def close(self) -> None:
        """End the subscription and the wait of any thread in it; a second call does nothing."""
        self._link.close(self._timeout_s)

    def __repr__(self) -> str:
        state = "closed" if self._link.closed else "open"
        return f"<epochlog subscription to {self._request.table} at {self._location}, {state}, through {self._epoch}>"

    # ---- the user's threads --------------------------------------------------------------------------------------

    def _pop_item(self, deadline: Deadline | None) -> _Item | None:
        """Remove and return the next item; None after the deadline, the end or `close`."""
        with self._changed:
            self._wait(lambda: self._queue or self._link.closed or self._gate.done, deadline)
            if self._link.closed or not self._queue:
                return None
            item = self._queue.popleft()
            self._queued_bytes -= item.size
            self._unreported_bytes += item.size
        if not self._queue or self._unreported_bytes >= self._queued_bytes:
            self._report_taken()
        return item

    def _report_taken(self) -> None:
        """Report the bytes taken to the server, which then sends more."""
        with self._changed:
            stream, taken_bytes = self._link.stream, self._unreported_bytes
            if stream is None or self._welcome is None or not taken_bytes:
                return
            self._unreported_bytes = 0
        stream.send(encode(Answer("took", taken_bytes)))

    def _wait(self, condition: Callable[[], object], deadline: Deadline | None, *, acknowledging: bool = False) -> bool:
        """Wait for a condition and return False after the deadline; meanwhile abort a silent connection. Raises the
        subscription's error. acknowledging: wait although an alter has ended the feed.
        """
        with self._changed:
            while not condition():
                if self._error is not None and not (acknowledging and self._ended_by_alter):
                    raise self._error
                if deadline is not None and deadline.passed:
                    return False
                limit_s = self._silence_limit_s()
                self._link.abort_if_silent(limit_s)
                wait_s = _POLL_S if self._link.stream is None else min(_POLL_S, limit_s)
                self._changed.wait(wait_s if deadline is None else min(wait_s, deadline.remaining_s))
            return True

    def _silence_limit_s(self) -> float:
        """Return the seconds after which a silent connection counts as lost."""
        if self._welcome is None:
            return self._timeout_s
        limit_s = self._welcome.beat_s * MISSED_BEATS
        # on a new connection the server has not answered yet
        return limit_s if self._disconnected_since_s is None else max(limit_s, OPEN_S)

    # ---- the reading thread --------------------------------------------------------------------------------------

    def _connect(self) -> ClientStream:
        return self._open_stream(SUBSCRIBE + b":" + encode(self._next_request()))

    def _handle_frame(self, stream: ClientStream, frame: Frame) -> bool:
        with self._changed:
            answers = self._handle_message(stream, decode_server_message(frame.message or b""), frame.rows)
            self._changed.notify_all()
        for answer in answers:
            stream.send(encode(answer))
        return self._disconnected_since_s is None

    def _handle_loss(self, reason: EpochlogError) -> bool:
        """Return True if no further connection is needed. A consumer needs one after the end of the data, to
        acknowledge.
        """
        if self._disconnected_since_s is None:
            self._disconnected_since_s = monotonic_s()
        self._error = self._fatal_error(reason) or (self._error if self._ended_by_alter else None)
        ended = self._gate.done and self._request.consumer is None
        return (self._error is not None and not self._ended_by_alter) or ended

    @property
    def _ended_by_alter(self) -> bool:
        """Return True if an alter has ended the feed of a consumer, which can still acknowledge what came before."""
        return isinstance(self._error, SchemaChanged) and self._request.consumer is not None

    def _fatal_error(self, reason: EpochlogError) -> EpochlogError | None:
        """Return the error that ends the subscription; None if it can resume over another connection."""
        assert self._disconnected_since_s is not None
        if self._link.closed:
            return None
        if self._request.together and isinstance(reason, InvalidInput) and UNKNOWN_TOGETHER in str(reason):
            self._request = replace(self._request, together=False)
            return None
        transient = isinstance(reason, TRANSIENT) or type(reason) is EpochlogError
        if not transient or self._welcome is None:
            return reason
        disconnected_s = monotonic_s() - self._disconnected_since_s
        if disconnected_s < self._reconnect_s:
            return None
        unavailable = ServerUnavailable(
            f"{self._location} has been unavailable for {disconnected_s:.0f} s; all changes through epoch "
            f"{show_epoch(self._epoch)} were returned: subscribe anew after it when the server runs. {reason}"
        )
        unavailable.__cause__ = reason
        return unavailable

    def _next_request(self) -> Request:
        """Build the request of the next connection: the user's request, or one that resumes at the position reached."""
        with self._changed:
            welcome, self._unreported_bytes = self._welcome, 0  # The server counts from the queued bytes.
            if welcome is None:
                return self._request
            cursor = self._gate.cursor
            seqs = cursor[SNAPSHOT], cursor[CHANGES]
            resume = Resume(
                welcome.store,
                welcome.table,
                self._position,
                seqs,
                self._queued_bytes,
                welcome.incarnation,
                welcome.schema,
            )
        return replace(self._request, resume=resume)

    def _handle_message(
        self, stream: ClientStream, message: SubscriptionWelcome | Mark | Notice, rows: pa.RecordBatch | None
    ) -> list[Answer]:
        """Handle one message of the server; return the answers to it."""
        if isinstance(message, SubscriptionWelcome):
            self._handle_welcome(message)
            taken_bytes, self._unreported_bytes = self._unreported_bytes, 0  # taken while disconnected
            acks = [Answer("ack", self._requested_ack)] if self._requested_ack > self._acked else []
            return acks + ([Answer("took", taken_bytes)] if taken_bytes else [])
        if isinstance(message, Mark):
            self._handle_mark(message, rows)
        elif message.kind == "over":
            stream.end()
        else:
            self._disconnected_since_s = None
            if message.kind == "acked":
                self._acked = max(self._acked, message.epoch)
        return [Answer("here")] if isinstance(message, Notice) and message.kind == "beat" else []

    def _handle_welcome(self, welcome: SubscriptionWelcome) -> None:
        if self._welcome is None:
            self._position = welcome.place
            if welcome.place.snapshot is None:
                self._epoch = welcome.place.after
        self._welcome = welcome
        self._acked = max(self._acked, -1 if welcome.acked is None else welcome.acked)

    def _handle_mark(self, mark: Mark, rows: pa.RecordBatch | None) -> None:
        """Pass a mark and its rows through the gate, and queue the items that the gate releases."""
        if mark.kind == "end":
            self._gate.end(mark.channel, mark.seq - 1)
            self._end_marks[mark.channel] = mark.seq - 1
        else:
            self._disconnected_since_s = None
            items = _items(mark, rows)
            self._gate.offer(mark.channel, mark.seq, items, digest=(mark.epoch, mark.last, mark.size))
        for _, _, items in self._gate.take():
            for item in items:
                self._position = _advance(self._position, item)
                self._queue.append(item)
                self._queued_bytes += item.size
            self._gate_deliveries += 1
        if self._gate_deliveries >= DELIVERIES_PER_GATE:
            self._gate, self._gate_deliveries = StageGate(STAGES, self._gate.cursor), 0
            for channel, last_seq in self._end_marks.items():
                self._gate.end(channel, last_seq)


def _items(mark: Mark, rows: pa.RecordBatch | None) -> list[_Item]:
    """Return the items of a message, each of one epoch. The last one counts all bytes of the message."""
    if rows is None or mark.kind == "passed":
        return [_Item(None, mark.epoch, mark.last, mark.size)]
    batch = batch_in_common_zones(rows)
    if mark.kind == "rows":
        return [_Item(batch, mark.epoch, mark.last, mark.size)]
    if not batch.num_rows:
        raise BadMessage("a mark of several epochs comes without rows")
    *earlier, (newest, data) = each_epoch(batch)
    if newest != mark.epoch:
        raise BadMessage(f"rows through epoch {show_epoch(newest)} have a mark of epoch {show_epoch(mark.epoch)}")
    return [*(_Item(part, epoch, True, 0) for epoch, part in earlier), _Item(data, newest, True, mark.size)]


def _advance(position: FeedPosition, item: _Item) -> FeedPosition:
    """Return the position after an item: the end of its epoch, or its number of rows further."""
    if item.rows is None or item.last:
        return FeedPosition(after=item.epoch)
    return replace(position, rows=position.rows + item.rows.num_rows)
