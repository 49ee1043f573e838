"""Client's side of a subscription: record batches in order, each once, over any number of connections.

A thread reads the connection and puts each batch through a StageGate; the user's thread takes it out, and tells the
server how many bytes it took. After a cut the thread connects again and resumes at its position, in the middle of an
epoch too.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from types import TracebackType
from typing import Self

import pyarrow as pa

from epochlog.errors import CatalogUnavailable, EpochlogError, InvalidInput, OutcomeUnknown, ServerUnavailable
from epochlog.exchange.stage_gate import StageGate
from epochlog.exchange.transport.duplex import ClientLine
from epochlog.store.env.backoff import Backoff
from epochlog.store.env.clock import Deadline, monotonic_s
from epochlog.store.types.epoch import as_epoch, show_epoch

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
    decode_news,
    encode,
)

BACKOFF = Backoff(first_s=0.05, limit_s=1.0)
"""Delays before another connection is made."""
_LOOK_S = 1.0
"""How often a waiting caller looks again while there is no connection."""
SILENT_BEATS = 5
"""Beats of the server that may be missing before the connection counts as cut."""
RENEW_GATE = 4_096
"""Deliveries after which the gate is made anew at its own cursor: it remembers each."""
PASSING = (ServerUnavailable, CatalogUnavailable, OutcomeUnknown)
"""Troubles of a server that may be over when it is asked again."""

Dial = Callable[[bytes], ClientLine]


@dataclass(frozen=True, slots=True)
class _Item:
    """Item that the gate releases: a batch, or with None the news that all changes through an epoch have come. size:
    bytes.
    """

    rows: pa.RecordBatch | None
    epoch: int
    last: bool
    size: int


class Subscription:
    """Iterator of a table's record batches: its columns, then `_change_type`, `_commit_version` and
    `_commit_timestamp`.

    First come the table's rows as of one epoch, as inserts; a subscription that begins with them has no `epoch` yet,
    and its user begins with an empty state. Then come each later epoch's changes (upsert, delete) in key order, then
    what is new, as it is committed. A batch is of one epoch; a large epoch comes in several. `epoch` tells through
    which epoch all was given out. The iteration ends when the table's data has ended, or with `close`.

    After a cut it goes on by itself; each change is given out once. Raises ServerUnavailable when the server has not
    come back in `reconnect` seconds, ReaderTooSlow, LogTruncated, SnapshotExpired, TableDropped, AccessDenied; an error
    comes after all that was received before it, and stays. Close it, or use it in a `with` block; `close` and `ack` may
    come from other threads.
    """

    def __init__(self, dial: Dial, location: str, request: Request, timeout_s: float, reconnect_s: float) -> None:
        """Open a subscription and wait until the server has begun; users call `Client.subscribe`."""
        self._dial = dial
        self._location = location
        self._request = request
        self._timeout_s = timeout_s
        self._reconnect_s = reconnect_s
        self._changed = threading.Condition()
        self._gate = StageGate(STAGES)
        self._ends: dict[str, int] = {}
        self._given = 0  # by the gate, since it was made
        self._box: deque[_Item] = deque()
        self._held = self._untold = 0  # bytes in the box; bytes taken and not told
        self._welcome: SubscriptionWelcome | None = None
        self._place = FeedPosition()  # through where all was received
        self._epoch: int | None = None
        self._wanted = self._acked = -1
        self._line: ClientLine | None = None
        self._heard_s = monotonic_s()
        self._lost_s: float | None = self._heard_s  # since when there is no connection that works
        self._error: EpochlogError | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._read, name="epochlog-subscriber", daemon=True)
        self._thread.start()
        try:
            if not self._wait(lambda: self._welcome is not None, Deadline.after(timeout_s)):
                raise ServerUnavailable(f"{location} did not begin to answer in {timeout_s:g} s")
        except BaseException:
            self.close()
            raise

    @property
    def epoch(self) -> int | None:
        """Return the epoch through which all changes were given out, by this subscription or before it began; None
        while the table's rows are not complete yet.
        """
        return self._epoch

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> pa.RecordBatch:
        found = self.poll(None)
        if found is None:
            raise StopIteration
        return found

    def poll(self, timeout: float | timedelta | None = 0) -> pa.RecordBatch | None:
        """Return the next batch; None when none has come in time, or after the end or `close`.

        timeout: seconds or a timedelta; None waits for as long as the server answers. `epoch` may have moved though no
        batch came.
        """
        deadline = None if timeout is None else Deadline.after(timeout)
        while True:
            item = self._taken(deadline)
            if item is None:
                return None
            if item.last:
                self._epoch = item.epoch
            if item.rows is not None:
                return item.rows

    def ack(self, epoch: int | None = None, *, timeout: float | timedelta | None = None) -> None:
        """Acknowledge that your durable state covers all changes through `epoch`: the next subscription under this
        consumer's name, after a crash too, begins past it. Durable when it returns; an epoch at or below an earlier one
        changes nothing. None: the last epoch that was given out whole; nothing, while the table's rows are not
        complete.

        timeout: seconds or a timedelta to wait for the answer, None for the client's. Raises InvalidInput for an epoch
        that was not given out whole, Fenced when another subscription has claimed the consumer, and ServerUnavailable
        when no answer came: then it may be acknowledged or not; acknowledge it again.
        """
        if self._request.consumer is None:
            raise InvalidInput("a subscription acknowledges under the name of a consumer: subscribe with consumer=")
        epoch = self._epoch if epoch is None else as_epoch("epoch", epoch)
        if epoch is None:
            return
        if self._epoch is None or epoch > self._epoch:
            raise InvalidInput(
                f"epoch {show_epoch(epoch)} of {self._request.table!r} was not given out whole yet; `epoch` "
                f"({show_epoch(self._epoch)}) says "
                "through which all was"
            )
        deadline = Deadline.after(self._timeout_s if timeout is None else timeout)
        with self._changed:
            self._wanted = max(self._wanted, epoch)
            line = self._line
        if line is not None and self._acked < epoch:
            line.send(encode(Answer("ack", epoch)))
        done = self._wait(lambda: self._acked >= epoch or self._closed, deadline)
        if not done or self._acked < epoch:
            raise ServerUnavailable(
                f"{self._location} has not answered whether {show_epoch(epoch)} is acknowledged; acknowledge it again"
            )

    @property
    def ended(self) -> bool:
        """Return True if the table's data has ended and all of it was given out."""
        with self._changed:
            return self._gate.done and not self._box

    def close(self) -> None:
        """End the subscription, in any thread that waits for it; a second call does nothing."""
        with self._changed:
            self._closed = True
            line = self._line
            self._changed.notify_all()
        if line is not None:
            line.abort()
        if threading.current_thread() is not self._thread:
            self._thread.join(self._timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<epochlog subscription to {self._request.table} at {self._location}, {state}, through {self._epoch}>"

    # ---- the user's threads --------------------------------------------------------------------------------------

    def _taken(self, deadline: Deadline | None) -> _Item | None:
        """Return the next item; None when the deadline has passed, or there is none to come."""
        with self._changed:
            self._wait(lambda: self._box or self._closed or self._gate.done, deadline)
            if self._closed or not self._box:
                return None
            item = self._box.popleft()
            self._held -= item.size
            self._untold += item.size
        if not self._box or self._untold >= self._held:
            self._tell()
        return item

    def _tell(self) -> None:
        """Tell the server how many bytes were taken, so that it sends more."""
        with self._changed:
            line, told = self._line, self._untold
            if line is None or self._welcome is None or not told:
                return
            self._untold = 0
        line.send(encode(Answer("took", told)))

    def _wait(self, until: Callable[[], object], deadline: Deadline | None) -> bool:
        """Wait for a condition that a message brings about, and return False after the deadline; meanwhile cut a
        connection that is silent. Raises the subscription's error.
        """
        with self._changed:
            while not until():
                if self._error is not None:
                    raise self._error
                if deadline is not None and deadline.passed:
                    return False
                wait_s = _LOOK_S if self._line is None else self._silent_s()
                if self._line is not None and wait_s <= 0:
                    self._heard_s, wait_s = monotonic_s(), _LOOK_S
                    self._line.abort()
                self._changed.wait(min(wait_s, wait_s if deadline is None else deadline.left_s))
            return True

    def _silent_s(self) -> float:
        """Return the seconds until the connection counts as cut."""
        patience_s = self._timeout_s if self._welcome is None else self._welcome.beat_s * SILENT_BEATS
        return self._heard_s + patience_s - monotonic_s()

    # ---- the reading thread --------------------------------------------------------------------------------------

    def _read(self) -> None:
        failures = 0
        while True:
            reason: EpochlogError
            try:
                reason = self._connection()
            except EpochlogError as error:
                reason = error
            except Exception as error:  # noqa: BLE001 (a defect; who waits must learn of it)
                reason = EpochlogError(f"this subscription failed: {error!r}")
                reason.__cause__ = error
            with self._changed:
                line, self._line = self._line, None
                if self._lost_s is None:
                    failures, self._lost_s = 0, monotonic_s()
                self._error = self._fatal(reason)
                self._changed.notify_all()
            if line is not None:
                line.close()
            failures += 1
            with self._changed:
                if self._changed.wait_for(self._over, BACKOFF.delay_s(failures)):
                    return

    def _over(self) -> bool:
        """Return True if no other connection is needed; a consumer may acknowledge after the end of the data."""
        ended = self._gate.done and self._request.consumer is None
        return self._closed or self._error is not None or ended

    def _connection(self) -> EpochlogError:
        """Read one connection until it ends; return the error that ended it."""
        line = self._dial(SUBSCRIBE + b":" + encode(self._resumed()))
        with self._changed:
            self._line, self._heard_s = line, monotonic_s()
            if self._closed:
                line.abort()
        while (parcel := line.read_frame()) is not None:
            with self._changed:
                self._heard_s = monotonic_s()
                answers = self._take(line, decode_news(parcel.message or b""), parcel.rows)
                self._changed.notify_all()
            for answer in answers:
                line.send(encode(answer))
        reason = line.reason
        return (
            reason if isinstance(reason, EpochlogError) else ServerUnavailable(f"{self._location} ended the connection")
        )

    def _fatal(self, reason: EpochlogError) -> EpochlogError | None:
        """Return the error that ends the subscription; None when it may go on over another connection."""
        assert self._lost_s is not None
        if self._closed:
            return None
        passing = isinstance(reason, PASSING) or type(reason) is EpochlogError
        if not passing or self._welcome is None:
            return reason
        lost_s = monotonic_s() - self._lost_s
        if lost_s < self._reconnect_s:
            return None
        found = ServerUnavailable(
            f"{self._location} has not come back in {lost_s:.0f} s; all through epoch {show_epoch(self._epoch)} was "
            "given out: "
            f"subscribe anew from there when the server runs. {reason}"
        )
        found.__cause__ = reason
        return found

    def _resumed(self) -> Request:
        """Build the request for the next connection: the first one, or one that resumes at the position reached."""
        with self._changed:
            welcome, self._untold = self._welcome, 0  # the server counts anew, from what lies in the box
            if welcome is None:
                return self._request
            cursor = self._gate.cursor
            seqs = cursor[SNAPSHOT], cursor[CHANGES]
            resume = Resume(welcome.store, welcome.table, self._place, seqs, self._held, welcome.incarnation)
        return replace(self._request, resume=resume)

    def _take(
        self, line: ClientLine, news: SubscriptionWelcome | Mark | Notice, rows: pa.RecordBatch | None
    ) -> list[Answer]:
        """Take in one message; return the answers to it."""
        if isinstance(news, SubscriptionWelcome):
            self._begin(news)
            told, self._untold = self._untold, 0  # what was taken while there was no connection
            again = [Answer("ack", self._wanted)] if self._wanted > self._acked else []
            return again + ([Answer("took", told)] if told else [])
        if isinstance(news, Mark):
            self._marked(news, rows)
        elif news.kind == "over":
            line.end()
        else:
            self._lost_s = None
            if news.kind == "acked":
                self._acked = max(self._acked, news.epoch)
        return [Answer("here")] if isinstance(news, Notice) and news.kind == "beat" else []

    def _begin(self, welcome: SubscriptionWelcome) -> None:
        if self._welcome is None:
            self._place = welcome.place
            if welcome.place.snapshot is None:
                self._epoch = welcome.place.after
        self._welcome = welcome
        self._acked = max(self._acked, -1 if welcome.acked is None else welcome.acked)

    def _marked(self, mark: Mark, rows: pa.RecordBatch | None) -> None:
        """Put a mark and its rows through the gate, and the items that it releases into the box."""
        if mark.kind == "end":
            self._gate.end(mark.channel, mark.seq - 1)
            self._ends[mark.channel] = mark.seq - 1
        else:
            self._lost_s = None
            item = _Item(rows if mark.kind == "rows" else None, mark.epoch, mark.last, mark.size)
            self._gate.offer(mark.channel, mark.seq, item, digest=(mark.epoch, mark.last, mark.size))
        for _, _, item in self._gate.take():
            self._place = _moved(self._place, item)
            self._box.append(item)
            self._held += item.size
            self._given += 1
        if self._given >= RENEW_GATE:
            self._gate, self._given = StageGate(STAGES, self._gate.cursor), 0
            for channel, last in self._ends.items():
                self._gate.end(channel, last)


def _moved(place: FeedPosition, item: _Item) -> FeedPosition:
    """Return the position after an item: all of its epoch, or so many rows more."""
    if item.rows is None or item.last:
        return FeedPosition(after=item.epoch)
    return replace(place, rows=place.rows + item.rows.num_rows)
