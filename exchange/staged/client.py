"""`ExchangeClient`, the client of a staged exchange for producers and consumers."""

from __future__ import annotations

import threading
import uuid
import zlib
from collections.abc import Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from datetime import timedelta
from typing import Any

from epochlog.errors import CallTimedOut, EpochlogError, InvalidInput, LimitExceeded
from epochlog.exchange.transport.duplex import ClientStream, Pem, check_destination, connect, read_pem, run_action
from epochlog.exchange.transport.message_fields import MAX_NUMBER
from epochlog.store.env.clock import Deadline, seconds
from epochlog.store.env.closeable import Closeable

from . import messages
from .batch_file import as_batch, encode_batch
from .pull_client import WINDOW, StageReader
from .push_client import BACKOFF, RETRIED, Pusher
from .state import MAX_CHANNELS, MAX_SEQ, ChannelProgress, Cursor, check_name

TIMEOUT_S = 60.0
ATTEMPT_S = 10.0
"""Timeout of one call, after which it is repeated over a new connection."""
WAIT_S = 5.0
"""Time that one call waits at the server for a stage, at most ATTEMPT_S less the time of an answer."""


class ExchangeClient(Closeable):
    """Client that pushes batches to the channels of a query, and consumes them in stage order. Several clients may
    attach to one query; threads may share one. Close it, or use it in a `with` block.

        with ExchangeClient(location, token=token, query="q1") as ex:
            ex.declare(consumer="join-0", stages={-1: ["build"], 0: ["probe"]})
            ex.push("build", -1, 0, batch)
            ex.end("build", 0)
            for channel, seq, batch in ex.consume("join-0", incarnation=0):
                ...

    The client repeats a call after a restart of the server or a lost answer, until the timeout. Query, channels and
    consumers are named by 1 to 63 letters, digits, _ . : or -. Sequences of a channel rise from 0 without a gap;
    attempts and incarnations are ints from 0.
    """

    def __init__(
        self,
        location: str,
        *,
        query: str,
        token: str | None = None,
        tls_roots: Pem | None = None,
        timeout: float | timedelta = TIMEOUT_S,
        insecure: bool = False,
    ) -> None:
        """Create a client of one query; the first call connects.

        tls_roots: PEM, or the path of a PEM file. timeout: the default of every call, and the time that a consumer
        waits for an unreachable server. insecure: send the token to another host without TLS. Raises InvalidInput,
        InsecureServer.
        """
        check_destination(location, token, insecure=insecure)
        self.location = location
        self.query = check_name("a query", query)
        self._token = token
        self._roots = None if tls_roots is None else read_pem(tls_roots)
        self._timeout_s = seconds(timeout, "timeout")
        self._lock = threading.Lock()
        self._client: Any = None
        self._pushers: dict[str, Pusher] = {}
        self._readers: list[StageReader] = []
        self._closed = threading.Event()
        self._ended: Future[None] = Future()  # done when the client is closed

    # ---- declaring -----------------------------------------------------------------------------------------------

    def declare(
        self,
        consumer: str,
        stages: Mapping[int, Iterable[str]],
        *,
        lease: float | timedelta | None = None,
        budget: int | None = None,
        timeout: float | timedelta | None = None,
    ) -> None:
        """Declare the channels that a consumer needs: {stage: channels}. Declare all consumers of a query before the
        first push; a repeat extends the lease and changes nothing else.

        lease: time until an unused query ends, a day by default; budget: bytes of its batches on disk, 64 GiB by
        default. Both count in the query's first declaration. Raises InvalidInput when the consumer was declared with
        other channels, or a channel with another stage; SequenceReleased when batches of a channel were deleted
        already.
        """
        stages_field = messages.stages_to_field(stages)
        lease_ms = None if lease is None else max(1, round(seconds(lease, "lease") * 1000))
        if budget is not None and (type(budget) is not int or not 1 <= budget <= MAX_NUMBER):
            raise InvalidInput(f"budget is bytes, an int from 1 to {MAX_NUMBER}, not {budget!r}")
        body = messages.pack(
            query=self.query,
            consumer=check_name("a consumer", consumer),
            stages=stages_field,
            lease_ms=lease_ms,
            budget=budget,
        )
        self._run_action("staged.declare", body, timeout)

    def drop(self, *, timeout: float | timedelta | None = None) -> None:
        """Drop the query and delete its batches. Later calls of all its clients raise QueryNotFound."""
        self._run_action("staged.drop", messages.pack(query=self.query), timeout)

    # ---- producers -----------------------------------------------------------------------------------------------

    def push(
        self,
        channel: str,
        stage: int,
        seq: int,
        batch: Any,
        attempt: int = 0,
        *,
        wait: bool = True,
        timeout: float | timedelta | None = None,
    ) -> None:
        """Push a batch (a RecordBatch, or any input of `pyarrow.table`) as a sequence of a channel.

        Durable on return. With wait=False the call returns before that, and `flush` waits until the batch is durable:
        many small batches then share a sync. A repeat with equal content changes nothing. Raises ChannelUnknown, Fenced
        (a higher attempt has pushed), ContentMismatch, EndMarkMismatch, InvalidInput, LimitExceeded (more than 64 MiB),
        BudgetExceeded, ServerUnavailable. The next push or flush of the channel raises the refusal of a push with
        wait=False.
        """
        data = encode_batch(as_batch(batch))
        timeout_s = self._seconds(timeout)
        fields = {
            "channel": check_name("a channel", channel),
            "stage": _checked_stage(stage),
            "seq": _checked_int("seq", seq, 0, MAX_SEQ),
            "attempt": _checked_int("attempt", attempt, 0),
            "crc32": zlib.crc32(data),
            "wait_ms": round(timeout_s * 800),  # the refusal arrives before the timeout
        }
        pusher = self._pusher(channel)
        pusher.push(
            lambda number: messages.pack(id=number, **fields),
            messages.rows_from_file(data),
            Deadline.after(timeout_s),
            wait=wait,
        )

    def flush(self, channel: str | None = None, *, timeout: float | timedelta | None = None) -> None:
        """Wait until this client's batches of one channel, or of all, are durable. Raises the errors of `push`."""
        deadline = Deadline.after(self._seconds(timeout))
        if channel is not None:
            check_name("a channel", channel)
        with self._lock:
            pushers = [pusher for name, pusher in self._pushers.items() if channel in (None, name)]
        for pusher in pushers:
            pusher.flush(deadline)

    def end(
        self,
        channel: str,
        last_seq: int,
        attempt: int = 0,
        rows: int | None = None,
        *,
        timeout: float | timedelta | None = None,
    ) -> None:
        """Set the end mark of a channel: its last sequence, -1 for none, and its number of rows.

        Durable on return. Flushes this client's pushes of the channel first; other clients may push missing sequences
        later. Raises the errors of `push`, and EndMarkMismatch for a different end mark, a later pushed sequence or
        another number of rows.
        """
        self.flush(channel, timeout=timeout)
        body = messages.pack(
            query=self.query,
            channel=check_name("a channel", channel),
            last=_checked_int("last_seq", last_seq, -1, MAX_SEQ),
            attempt=_checked_int("attempt", attempt, 0),
            rows=None if rows is None else _checked_int("rows", rows, 0),
        )
        self._run_action("staged.end", body, timeout)

    @property
    def stage(self) -> int:
        """Return the stage counter: the lowest stage with a channel that was not pushed to its end mark; the highest
        stage plus one when all channels were. Use it to decide which producers may start.
        """
        answer = self._run_action("staged.stage", messages.pack(query=self.query), None)
        return messages.unpack(answer, messages.STAGE)["stage"]

    def wait_stage(self, stage: int, *, timeout: float | timedelta | None = None) -> int:
        """Wait until the stage counter is `stage` or higher, and return it. The server waits, and answers as soon as a
        channel has passed through it; a channel that passes through another server is seen within a second.

        timeout: the longest wait for the stage. Raises CallTimedOut after it, QueryNotFound when the query is dropped,
        ServerUnavailable when the server cannot be reached for the default timeout, LimitExceeded when the server has
        too many waits until the timeout, InvalidInput as soon as this client is closed.
        """
        deadline, refusals = Deadline.after(self._seconds(timeout)), 0
        wanted = _checked_stage(stage)
        while True:
            wait_s = min(deadline.remaining_s, WAIT_S)
            body = messages.pack(query=self.query, stage=wanted, wait_ms=round(wait_s * 1000))
            patience_s = min(self._timeout_s, deadline.remaining_s + ATTEMPT_S - WAIT_S)
            try:
                now = messages.unpack(self._run_until_closed("staged.wait", body, patience_s), messages.STAGE)["stage"]
            except LimitExceeded:  # the server has no place for this wait, or has given it to another connection
                if deadline.passed:
                    raise
                refusals += 1
                self._closed.wait(min(BACKOFF.delay_s(refusals), deadline.remaining_s))
                continue
            if now >= wanted:
                return now
            if deadline.passed:
                raise CallTimedOut(
                    f"query {self.query!r} has not reached stage {wanted} in time: its stage counter is {now}. See "
                    "`progress` for the channels that have not passed, and wait again"
                )

    @property
    def progress(self) -> dict[str, ChannelProgress]:
        """Return the progress of each channel of the query: {channel: ChannelProgress}."""
        answer = self._run_action("staged.progress", messages.pack(query=self.query), None)
        return messages.unpack(answer, messages.PROGRESS)["channels"]

    # ---- consumers -----------------------------------------------------------------------------------------------

    def consume(
        self, consumer: str, incarnation: int, cursor: Cursor | None = None, *, timeout: float | timedelta | None = None
    ) -> StageReader:
        """Begin, or continue, as an incarnation of a consumer; a higher incarnation fences the lower ones.

        cursor: {channel: next sequence} of the consumer's durable state; None begins at the acknowledged cursor. Raises
        Fenced for a lower incarnation, InvalidInput for an undeclared consumer, QueryNotFound, ChannelUnknown,
        SequenceReleased when a needed batch was acknowledged by all consumers and deleted, ServerUnavailable.
        """
        return self._open_reader(consumer, _checked_int("incarnation", incarnation, 0), cursor, timeout)

    def claim(self, consumers: Iterable[str], *, timeout: float | timedelta | None = None) -> dict[str, int]:
        """Claim the next incarnation of each consumer, all or none, and return {consumer: incarnation}: the server
        gives the numbers, and the lower ones are fenced. Use it where one process acknowledges for readers without a
        claim. Raises QueryNotFound, InvalidInput for an undeclared consumer.
        """
        if isinstance(consumers, str) or not isinstance(consumers, Iterable):
            raise InvalidInput(f"consumers is a list of names, such as ['join-0'], not {consumers!r}")
        names = [check_name("a consumer", consumer) for consumer in consumers]
        if not 0 < len(names) <= MAX_CHANNELS or len(set(names)) != len(names):
            raise InvalidInput(f"consumers names 1 to {MAX_CHANNELS} consumers, each once, not {names}")
        claimant = uuid.uuid4().hex  # by which the server knows a repeated call
        body = messages.pack(query=self.query, consumers=names, claimant=claimant)
        return messages.unpack(self._run_action("staged.claim", body, timeout), messages.CLAIMED)["incarnations"]

    def read(
        self, consumer: str, cursor: Cursor | None = None, *, timeout: float | timedelta | None = None
    ) -> StageReader:
        """Read the batches of a consumer in stage order, without a claim: any number of readers may do so at once, and
        each gets all batches. Nobody is fenced, and such a reader cannot acknowledge.

        cursor: {channel: next sequence}; None begins at the acknowledged cursor. Raises the errors of `consume`.
        """
        return self._open_reader(consumer, None, cursor, timeout)

    def _open_reader(
        self, consumer: str, incarnation: int | None, cursor: Cursor | None, timeout: float | timedelta | None
    ) -> StageReader:
        name = check_name("a consumer", consumer)
        if cursor is not None:
            cursor = _checked_cursor(cursor)

        def acknowledge(durable: Cursor) -> None:
            if incarnation is None:
                raise InvalidInput(
                    f"a reader without a claim of consumer {name!r} acknowledges nothing; use `consume` with an "
                    "incarnation, or `acknowledge`"
                )
            self.acknowledge(name, incarnation, durable)

        hello = {"query": self.query, "consumer": name, "incarnation": incarnation, "cursor": cursor, "window": WINDOW}
        reader = StageReader(lambda: self._open_stream(messages.PULL), acknowledge, hello, self._seconds(timeout))
        try:
            reader.begin()
        except BaseException:
            reader.close()
            raise
        with self._lock:
            self._readers.append(reader)
        return reader

    def acknowledge(
        self, consumer: str, incarnation: int, cursor: Cursor, *, timeout: float | timedelta | None = None
    ) -> None:
        """Acknowledge a cursor, as `StageReader.ack` does, from another process or after the reader was closed.

        cursor: {channel: next sequence}. Raises Fenced unless this incarnation is the newest.
        """
        body = messages.pack(
            query=self.query,
            consumer=check_name("a consumer", consumer),
            incarnation=_checked_int("incarnation", incarnation, 0),
            cursor=_checked_cursor(cursor),
        )
        self._run_action("staged.ack", body, timeout)

    # ---- this object ---------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close its streams, and end its waits and the iterations of its readers; a second call does nothing."""
        with self._lock:
            if not self._closed.is_set():
                self._closed.set()
                self._ended.set_result(None)
            pushers, readers = list(self._pushers.values()), list(self._readers)
            client, self._client = self._client, None
        for endpoint in (*readers, *pushers):
            endpoint.close()
        if client is not None:
            client.close()

    def __repr__(self) -> str:
        return f"<epochlog.ExchangeClient of query {self.query!r} at {self.location}>"

    def _seconds(self, timeout: float | timedelta | None) -> float:
        return self._timeout_s if timeout is None else seconds(timeout, "timeout")

    def _open_stream(self, name: bytes) -> ClientStream:
        return ClientStream(
            self.location, name, token=self._token, tls_roots=self._roots, limit=messages.MAX_MESSAGE_BYTES
        )

    def _pusher(self, channel: str) -> Pusher:
        with self._lock:
            if self._closed.is_set():
                raise _closed_error()
            pusher = self._pushers.get(channel)
            if pusher is None:
                pusher = Pusher(lambda: self._open_stream(messages.PUSH), self.query, self.location)
                self._pushers[channel] = pusher
            return pusher

    def _run_until_closed(self, action: str, body: bytes, timeout: float) -> bytes:
        """Run one action in a thread of its own, for Flight cannot cancel it. Raises InvalidInput as soon as this
        client is closed; the thread ends with the current call.
        """
        thread = ThreadPoolExecutor(1, thread_name_prefix="epochlog-exchange-wait")
        call = thread.submit(self._run_action, action, body, timeout)
        thread.shutdown(wait=False)
        either: list[Future[Any]] = [call, self._ended]
        wait(either, return_when=FIRST_COMPLETED)
        if not call.done():
            raise _closed_error()
        return call.result()

    def _run_action(self, action: str, body: bytes, timeout: float | timedelta | None) -> bytes:
        """Run one action, and repeat it while the server is unreachable. Every action is idempotent."""
        deadline, failures = Deadline.after(self._seconds(timeout)), 0
        while True:
            if self._closed.is_set():
                raise _closed_error()
            with self._lock:
                if self._client is None:
                    self._client = connect(self.location, self._roots)
                client = self._client
            try:
                timeout_s = max(0.001, min(ATTEMPT_S, deadline.remaining_s))
                return run_action(client, self.location, action, body, token=self._token, timeout_s=timeout_s)
            except EpochlogError as error:
                if type(error).__name__ not in RETRIED or deadline.passed:
                    raise
                with self._lock:
                    if self._client is client:
                        self._client = None
                with suppress(Exception):
                    client.close()
            failures += 1
            self._closed.wait(min(BACKOFF.delay_s(failures), deadline.remaining_s))


def _closed_error() -> InvalidInput:
    return InvalidInput("this client is closed; open another one")


def _checked_int(name: str, value: object, least: int, most: int = MAX_NUMBER) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InvalidInput(f"{name} is an int from {least} to {most}, not {value!r}")
    return value


def _checked_stage(stage: object) -> int:
    return _checked_int("stage", stage, -messages.MAX_STAGE, messages.MAX_STAGE)


def _checked_cursor(cursor: object) -> dict[str, int]:
    if not isinstance(cursor, Mapping) or len(cursor) > MAX_CHANNELS:
        raise InvalidInput(f"cursor is {{channel: next sequence}} of at most {MAX_CHANNELS} channels, not {cursor!r}")
    return {check_name("a channel", name): _checked_int("cursor", seq, 0, MAX_SEQ) for name, seq in cursor.items()}
