"""Push handlers: the served side of a producer's line, which checks batches, makes them durable and answers, many of
them at once.

The line's thread checks the bytes, a few threads write and sync files, and one commits what is ready together; the
answer goes out after that. A batch for which the disk budget has no room waits, as a file, until there is some.
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
from .query_leases import Uses
from .transactions import Push, PushResult

LINE_BYTES = 128 << 20
"""Bytes that one line may have pushed without an answer: then it is read no further."""
MOST_ANSWERS = 10_000
"""Answers that may wait for a producer that does not read them: then it is read no further, too."""
MEMORY_BYTES = 256 << 20
"""Bytes of all lines that are in memory at once, waiting to be written; a line may hold one message more."""
ALIVE_S = 1.0
PARTING_S = 2.0
LONGEST_WAIT_MS = 600_000


@dataclass(frozen=True, slots=True)
class _Job:
    """Push on its way. number: the producer's, for the answer. until: the deadline up to which it may wait for room."""

    number: int
    push: Push
    until: Deadline


@dataclass(frozen=True, slots=True, eq=False)
class HeldPush:
    """Push for which there was no room when the query's counter of room stood at `room`."""

    query: str
    room: int
    until: Deadline
    over: Callable[[], bool]
    again: Callable[[], None]
    give_up: Callable[[], None]


class Memory:
    """Bound on the bytes of all lines that wait to be written."""

    def __init__(self, most: int = MEMORY_BYTES) -> None:
        self._most = most
        self._used = 0
        self._changed = threading.Condition()

    def take(self, size: int) -> None:
        """Wait until there is room for `size` bytes, and take it; a batch larger than the bound is let in alone.
        Writers give the bytes back.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._used or self._used + size <= self._most)
            self._used += size

    def give(self, size: int) -> None:
        with self._changed:
            self._used -= size
            self._changed.notify_all()


class LineServices(Protocol):
    """Services of a served exchange for its lines; StagedExchange implements them."""

    handle: Handle
    changed: threading.Condition
    closing: threading.Event
    claims: Iterator[int]
    uses: Uses
    memory: Memory

    def submit(self, body: Callable[[Txn], Any]) -> Future[Any]: ...
    def transact(self, query: str, body: Callable[[Txn], Any]) -> Any: ...
    def tell(self, query: str) -> None: ...
    def news(self, query: str) -> int: ...
    def work(self, what: Callable[[], None]) -> None: ...
    def write(self, data: pa.Buffer) -> str: ...
    def free(self, paths: Iterable[str]) -> None: ...
    def wake(self) -> None: ...
    def room(self, query: str) -> int: ...
    def hold(self, held: HeldPush) -> None: ...
    def passed(self, query: str) -> None: ...


class PushHandler:
    """Handler that serves one line of pushes until it ends."""

    def __init__(self, service: LineServices, line: DuplexStream, query: str) -> None:
        self._service = service
        self._line = line
        self._query = query
        self._changed = threading.Condition()
        self._bytes = 0  # of pushes without an answer
        self._answers: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._deaf = False  # nothing more is sent: the line is at its end

    def serve(self) -> None:
        answering = threading.Thread(target=self._answer_all, name="epochlog-exchange-answers", daemon=True)
        answering.start()
        try:
            while (parcel := self._line.read_frame()) is not None:
                self._take_in(parcel)
        finally:
            self._service.wake()  # what waits for room gives up
            self._wait(lambda: not self._bytes)  # what is on its way is not to be left half done
            self._answers.put(None)
            answering.join(PARTING_S)
            self._line.abort()  # for a producer that reads no answers
            answering.join()

    def _take_in(self, parcel: Frame) -> None:
        asked = messages.unpack(parcel.message or b"", messages.PUSHED)
        data = messages.file_from_rows(parcel.rows)
        self._wait(lambda: self._deaf or self._has_room(data.size))
        with self._changed:
            self._bytes += data.size
        self._service.memory.take(data.size)
        push = Push(
            asked["channel"], asked["stage"], asked["seq"], asked["attempt"], None, data.size, asked["crc32"], 0
        )
        job = _Job(asked["id"], push, Deadline.after(min(asked["wait_ms"], LONGEST_WAIT_MS) / 1000))
        self._service.work(lambda: self._write(job, data))

    def _has_room(self, size: int) -> bool:
        """Return True if the line may be read further: the producer's unanswered bytes and unread answers are within
        their bounds.
        """
        return (not self._bytes or self._bytes + size <= LINE_BYTES) and self._answers.qsize() < MOST_ANSWERS

    def _wait(self, until: Callable[[], bool]) -> None:
        with self._changed:
            while not until() and not self._service.closing.is_set():
                self._changed.wait(0.5)

    # ---- on the way ----------------------------------------------------------------------------------------------

    def _write(self, job: _Job, data: pa.Buffer) -> None:
        """Check the batch and write its file, unless its sequence is there already; then have it committed."""
        try:
            if zlib.crc32(data) != job.push.crc32:
                raise BadMessage("a batch is not what its checksum says")
            push = replace(job.push, rows=_rows(data))
            if not self._is_known(push):
                push = replace(push, path=self._service.write(data))
        except Exception as error:  # noqa: BLE001 (whatever it is, the producer is told)
            self._answer(job, error)
            return
        finally:
            self._service.memory.give(data.size)
        self._commit(replace(job, push=push))

    def _is_known(self, push: Push) -> bool:
        def look(view: Any) -> bool:
            query = transactions.find_query(view, self._query)
            self._service.uses.touch(query)
            return transactions.find_channel(view, query, push.channel).has(push.seq)

        return self._service.handle.catalog.read(look)

    def _commit(self, job: _Job) -> None:
        room = self._service.room(self._query)
        done = self._service.submit(lambda tx: transactions.push(tx, self._query, job.push))
        done.add_done_callback(lambda found: self._committed(job, room, found))

    def _committed(self, job: _Job, room: int, found: Future[PushResult]) -> None:
        error = found.exception()
        path = [] if job.push.path is None else [job.push.path]
        if error is not None:
            if isinstance(error, SegmentUnknown):  # vacuum took this process for dead: it writes under a new intent now
                self._service.handle.leases.renew()
            elif isinstance(error, DEFINITE_FAILURES):  # else it may have landed
                self._service.free(path)
            self._answer(job, error)
            return
        taken = found.result()
        if taken.full:
            over = self._line.closed.is_set
            self._answers.put(_packed(job.number, self._no_room(job), final=False))
            self._service.hold(
                HeldPush(self._query, room, job.until, over, lambda: self._commit(job), lambda: self._give_up(job))
            )
            return
        if not taken.stored:
            self._service.free(path)
        if taken.passed:
            self._service.passed(self._query)
        self._service.tell(self._query)
        self._answer(job, None)

    def _give_up(self, job: _Job) -> None:
        self._service.free([job.push.path] if job.push.path else [])
        self._answer(job, self._no_room(job))

    def _no_room(self, job: _Job) -> BudgetExceeded:
        return BudgetExceeded(
            f"query {self._query!r}: its batches fill its disk budget, and channel {job.push.channel!r} waits in vain "
            "for room; have the consumers acknowledge, or declare the query with a greater budget"
        )

    # ---- answers -------------------------------------------------------------------------------------------------

    def _answer(self, job: _Job, error: BaseException | None) -> None:
        with self._changed:
            self._bytes -= job.push.bytes
            self._changed.notify_all()
        self._answers.put(_packed(job.number, error))

    def _answer_all(self) -> None:
        """Send answers as they come, in a thread of its own: a producer that reads none keeps nobody else waiting."""
        while True:
            try:
                answer = self._answers.get(timeout=ALIVE_S)
            except queue.Empty:
                answer = _packed(0, None)
            if answer is None or not self._line.send(answer):
                self._deaf = True
                return


def _packed(number: int, error: BaseException | None, *, final: bool = True) -> bytes:
    name, text = messages.error_to_fields(error)
    return messages.pack(id=number, error=name, text=text, final=final)


def _rows(data: pa.Buffer) -> int:
    """Count the rows of a batch from a stranger. Raises InvalidInput for a file of none or several batches, and for a
    damaged file BadMessage or LimitExceeded.
    """
    if check_file(data).batches != 1:
        raise InvalidInput("a file of the exchange has one record batch")
    with decoding("a batch"):
        batch = decode_batch(data)
    check_batch(batch)
    return batch.num_rows
