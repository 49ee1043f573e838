"""Push handlers: the server's side of a producer's stream. They check batches, make many durable at once, and answer.

The stream's thread reads the batches, a few threads check, write and sync their files, and one thread commits the
written batches together; the answer follows the commit. A batch that does not fit into the disk budget waits, as a
file, until it fits.
"""

from __future__ import annotations

import queue
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Protocol

import pyarrow as pa

from epochlog.errors import BadMessage, BudgetExceeded, InvalidInput, SegmentUnknown
from epochlog.exchange.transport.duplex import DuplexStream, Frame
from epochlog.exchange.transport.validation import check_batch, check_file, decoding
from epochlog.store.catalog.protocol import Txn
from epochlog.store.env.clock import Deadline
from epochlog.store.session.handle import Handle

from . import messages, transactions
from .batch_file import decode_batch
from .group_commit import DEFINITE_FAILURES
from .query_leases import QueryLeases
from .transactions import Push, PushResult

STREAM_BYTES = 128 << 20
"""Bytes of unanswered pushes of one stream above which the stream is not read."""
MAX_ANSWERS = 10_000
"""Answers unread by the producer above which its stream is not read."""
MEMORY_BYTES = 256 << 20
"""Bytes in memory that wait to be written, over all streams; each stream may hold one message more."""
HEARTBEAT_S = 1.0
CLOSE_S = 2.0
"""Seconds that a producer gets to read its answers at the end of a stream."""
LONGEST_WAIT_MS = 600_000


@dataclass(frozen=True, slots=True)
class _PendingPush:
    """Push without an answer."""

    number: int
    """Producer's, for the answer."""
    push: Push
    deadline: Deadline
    """End of its wait for budget."""


@dataclass(frozen=True, slots=True, eq=False)
class HeldPush:
    """Push that waits for disk budget. retry, give_up: continue or refuse the push."""

    query: str
    budget_version: int
    """Query's budget version at its last attempt."""
    deadline: Deadline
    is_abandoned: Callable[[], bool]
    """Returns True after the end of the producer's stream."""
    retry: Callable[[], None]
    give_up: Callable[[], None]


class MemoryBudget:
    """Budget for the bytes that wait to be written, over all streams."""

    def __init__(self, limit: int = MEMORY_BYTES) -> None:
        self._limit = limit
        self._used = 0
        self._changed = threading.Condition()

    def acquire(self, size: int) -> None:
        """Wait until `size` bytes are free, and acquire them; a batch larger than the limit is admitted alone. The
        writer of the batch releases the bytes.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._used or self._used + size <= self._limit)
            self._used += size

    def release(self, size: int) -> None:
        with self._changed:
            self._used -= size
            self._changed.notify_all()


class ExchangeServices(Protocol):
    """Services of a staged exchange for its streams; StagedExchange implements them."""

    handle: Handle
    changed: threading.Condition
    closing: threading.Event
    claim_numbers: Iterator[int]
    query_leases: QueryLeases
    memory_budget: MemoryBudget

    def submit(self, body: Callable[[Txn], Any]) -> Future[Any]: ...
    def transact(self, query: str, body: Callable[[Txn], Any]) -> Any: ...
    def notify_commit(self, query: str) -> None: ...
    def commit_count(self, query: str) -> int: ...
    def run_in_writer(self, task: Callable[[], None]) -> None: ...
    def write(self, data: pa.Buffer) -> str: ...
    def delete_later(self, paths: Iterable[str]) -> None: ...
    def wake_maintenance(self) -> None: ...
    def budget_version(self, query: str) -> int: ...
    def hold_push(self, held: HeldPush) -> None: ...
    def channel_passed(self, query: str) -> None: ...


class PushHandler:
    """Handler of one stream of pushes, until the stream ends."""

    def __init__(self, service: ExchangeServices, stream: DuplexStream, query: str) -> None:
        self._service = service
        self._stream = stream
        self._query = query
        self._changed = threading.Condition()
        self._unanswered_bytes = 0
        self._answers: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._send_failed = False

    def serve(self) -> None:
        answering = threading.Thread(target=self._send_answers, name="epochlog-exchange-answers", daemon=True)
        answering.start()
        try:
            while (frame := self._stream.read_frame()) is not None:
                self._accept(frame)
        finally:
            self._service.wake_maintenance()  # gives up the held pushes of this stream
            self._wait(lambda: not self._unanswered_bytes)  # lets pending writes and commits finish
            self._answers.put(None)
            answering.join(CLOSE_S)
            self._stream.abort()  # for a producer that reads no answers
            answering.join()

    def _accept(self, frame: Frame) -> None:
        fields = messages.unpack(frame.message or b"", messages.PUSHED)
        data = messages.file_from_rows(frame.rows)
        self._wait(lambda: self._send_failed or self._may_read(data.size))
        with self._changed:
            self._unanswered_bytes += data.size
        self._service.memory_budget.acquire(data.size)
        push = Push(
            fields["channel"], fields["stage"], fields["seq"], fields["attempt"], None, data.size, fields["crc32"], 0
        )
        pending = _PendingPush(fields["id"], push, Deadline.after(min(fields["wait_ms"], LONGEST_WAIT_MS) / 1000))
        self._service.run_in_writer(lambda: self._write(pending, data))

    def _may_read(self, size: int) -> bool:
        """Return True if a batch of `size` bytes keeps the unanswered bytes and answers within their limits."""
        fits = not self._unanswered_bytes or self._unanswered_bytes + size <= STREAM_BYTES
        return fits and self._answers.qsize() < MAX_ANSWERS

    def _wait(self, until: Callable[[], bool]) -> None:
        with self._changed:
            while not until() and not self._service.closing.is_set():
                self._changed.wait(0.5)

    # ---- write and commit ----------------------------------------------------------------------------------------

    def _write(self, pending: _PendingPush, data: pa.Buffer) -> None:
        """Check the batch, write its file unless its sequence was pushed before, and commit it."""
        try:
            if zlib.crc32(data) != pending.push.crc32:
                raise BadMessage("the bytes of a batch do not match their checksum")
            push = replace(pending.push, rows=_count_rows(data))
            if not self._was_pushed(push):
                push = replace(push, path=self._service.write(data))
        except Exception as error:  # noqa: BLE001 (sent to the producer)
            self._answer(pending, error)
            return
        finally:
            self._service.memory_budget.release(data.size)
        self._commit(replace(pending, push=push))

    def _was_pushed(self, push: Push) -> bool:
        def body(view: Any) -> bool:
            query = transactions.find_query(view, self._query)
            self._service.query_leases.touch(query)
            return transactions.find_channel(view, query, push.channel).has(push.seq)

        return self._service.handle.catalog.read(body)

    def _commit(self, pending: _PendingPush) -> None:
        version = self._service.budget_version(self._query)
        result = self._service.submit(lambda tx: transactions.push(tx, self._query, pending.push))
        result.add_done_callback(lambda future: self._finish(pending, version, future))

    def _finish(self, pending: _PendingPush, budget_version: int, future: Future[PushResult]) -> None:
        """Answer a push by the outcome of its commit, or hold it if it does not fit into the budget."""
        error = future.exception()
        paths = [] if pending.push.path is None else [pending.push.path]
        if error is not None:
            if isinstance(error, SegmentUnknown):  # vacuum took this process for dead; writes need a new intent
                self._service.handle.leases.renew()
            elif isinstance(error, DEFINITE_FAILURES):  # after any other error the commit may have landed
                self._service.delete_later(paths)
            self._answer(pending, error)
            return
        outcome = future.result()
        if outcome.full:
            is_abandoned = self._stream.closed.is_set
            self._answers.put(_pack_answer(pending.number, self._budget_error(pending), final=False))
            self._service.hold_push(
                HeldPush(
                    self._query,
                    budget_version,
                    pending.deadline,
                    is_abandoned,
                    lambda: self._commit(pending),
                    lambda: self._give_up(pending),
                )
            )
            return
        if not outcome.stored:
            self._service.delete_later(paths)
        if outcome.passed:
            self._service.channel_passed(self._query)
        self._service.notify_commit(self._query)
        self._answer(pending, None)

    def _give_up(self, pending: _PendingPush) -> None:
        self._service.delete_later([pending.push.path] if pending.push.path else [])
        self._answer(pending, self._budget_error(pending))

    def _budget_error(self, pending: _PendingPush) -> BudgetExceeded:
        return BudgetExceeded(
            f"query {self._query!r}: its batches fill its disk budget, so a batch of channel "
            f"{pending.push.channel!r} cannot be stored; have the consumers acknowledge, or declare the query with a "
            "greater budget"
        )

    # ---- answers -------------------------------------------------------------------------------------------------

    def _answer(self, pending: _PendingPush, error: BaseException | None) -> None:
        with self._changed:
            self._unanswered_bytes -= pending.push.bytes
            self._changed.notify_all()
        self._answers.put(_pack_answer(pending.number, error))

    def _send_answers(self) -> None:
        """Send answers in a thread of their own, so that a producer that reads none blocks no other thread."""
        while True:
            try:
                answer = self._answers.get(timeout=HEARTBEAT_S)
            except queue.Empty:
                answer = _pack_answer(0, None)
            if answer is None or not self._stream.send(answer):
                self._send_failed = True
                return


def _pack_answer(number: int, error: BaseException | None, *, final: bool = True) -> bytes:
    name, text = messages.error_to_fields(error)
    return messages.pack(id=number, error=name, text=text, final=final)


def _count_rows(data: pa.Buffer) -> int:
    """Count the rows of an untrusted producer's batch. Raises InvalidInput for a file without exactly one record batch,
    and BadMessage or LimitExceeded for a damaged file.
    """
    if check_file(data).batches != 1:
        raise InvalidInput("a file of the exchange has one record batch")
    with decoding("a batch"):
        batch = decode_batch(data)
    check_batch(batch)
    return batch.num_rows
