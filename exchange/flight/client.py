"""Reader of a flight as one stream: endpoints in order, a few batches read ahead, and a timeout on every wait."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Self

import pyarrow as pa
from pyarrow import flight

from epochlog.errors import EpochlogError, ServerUnavailable
from epochlog.exchange.transport.duplex import call_options, connect
from epochlog.exchange.transport.errors import CALL_ERRORS, as_epochlog_error
from epochlog.exchange.transport.protobuf import as_first_field
from epochlog.store.env.clock import monotonic_s

AHEAD = 2
"""Number of batches that are read ahead."""
RENEW_S = 60.0
CALL_S = 3600.0
"""Time limit of reading one endpoint."""


class FlightReader:
    """Reader of one flight's rows over a separate connection. Iterate `batches` once, to its end or until `close`."""

    def __init__(
        self,
        location: str,
        command: bytes,
        *,
        token: str | None,
        tls_roots: bytes | None,
        timeout_s: float,
        extra_wait_s: float = 0.0,
    ) -> None:
        """Plan the flight on the server. timeout_s: the longest wait for the server's next message; extra_wait_s: the
        additional time that its first answer may take. Raises the server's typed errors, and ServerUnavailable.
        """
        self._location = location
        self._token = token
        self._timeout_s = timeout_s
        self._changed = threading.Condition()
        self._read_ahead: deque[pa.RecordBatch] = deque()
        self._ended = self._closed = False
        self._error: EpochlogError | None = None
        self._cancel: Callable[[], object] = lambda: None
        self._client: Any = connect(location, tls_roots)
        try:
            descriptor = flight.FlightDescriptor.for_command(command)
            self._info = self._client.get_flight_info(descriptor, call_options(token, timeout_s + extra_wait_s))
        except CALL_ERRORS as error:
            self._client.close()
            raise as_epochlog_error(error, location) from None
        self.schema: pa.Schema = self._info.schema
        self._renewed_s = monotonic_s()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Start reading and return an iterator of the batches; an iterator that is garbage-collected closes the reader.

        The iterator raises ServerUnavailable when the server sends nothing for `timeout_s`, and the typed error with
        which the server ended the read.
        """
        threading.Thread(target=self._read, name="epochlog-flight", daemon=True).start()
        return _Batches(self)

    def next(self) -> pa.RecordBatch | None:
        """Return the next batch; None at the end."""
        with self._changed:
            in_time = self._changed.wait_for(lambda: self._read_ahead or self._ended, self._timeout_s)
            if not in_time:
                raise ServerUnavailable(
                    f"{self._location} has sent nothing for {self._timeout_s:g} s during a read; read again"
                )
            if not self._read_ahead:
                if self._error is not None:
                    raise self._error
                return None
            batch = self._read_ahead.popleft()
            self._changed.notify_all()
            return batch

    def close(self) -> None:
        """Stop reading and cancel the flight, so that the server releases its holds. A second call does nothing."""
        with self._changed:
            first, self._closed = not self._closed, True
            ended, cancel = self._ended, self._cancel
            self._changed.notify_all()
        if first and not ended:
            with suppress(*CALL_ERRORS):
                cancel()

    # ---- the reading thread --------------------------------------------------------------------------------------

    def _read(self) -> None:
        error: EpochlogError | None = None
        try:
            for endpoint in self._info.endpoints:
                self._renew_if_due(endpoint)
                self._read_endpoint(endpoint)
        except CALL_ERRORS as cause:
            error = as_epochlog_error(cause, self._location)
        except Exception as cause:  # noqa: BLE001 (a defect; the waiting caller must get it)
            error = EpochlogError(f"reading a flight failed: {cause!r}")
        finally:
            with self._changed:
                self._error, self._ended = error, True
                self._changed.notify_all()
            with suppress(*CALL_ERRORS):
                self._run_action("CancelFlightInfo", self._info.serialize())
            self._client.close()

    def _read_endpoint(self, endpoint: Any) -> None:
        with self._changed:
            if self._closed:
                return
        reader = self._client.do_get(endpoint.ticket, call_options(self._token, CALL_S))
        with self._changed:
            self._cancel = reader.cancel
        while self._wait_for_space():
            try:
                batch = reader.read_chunk().data
            except StopIteration:
                return
            self._renew_if_due(endpoint)
            with self._changed:
                self._read_ahead.append(batch)
                self._changed.notify_all()
        reader.cancel()

    def _wait_for_space(self) -> bool:
        """Wait until fewer than AHEAD batches are read ahead; return False once the reader is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._read_ahead) < AHEAD)
            return not self._closed

    def _renew_if_due(self, endpoint: Any) -> None:
        """Renew the flight's lease if RENEW_S have passed; one lease holds all endpoints of the flight."""
        if monotonic_s() - self._renewed_s > RENEW_S:
            self._run_action("RenewFlightEndpoint", endpoint.serialize())
            self._renewed_s = monotonic_s()

    def _run_action(self, kind: str, message: bytes) -> None:
        """Run a standard Flight action; its request has the message as its first field."""
        action = flight.Action(kind, as_first_field(message))
        for _ in self._client.do_action(action, call_options(self._token, self._timeout_s)):
            pass


class _Batches:
    """Iterator of a flight's batches that closes the reader when it is garbage-collected. A generator that was never
    started would not close it.
    """

    def __init__(self, reader: FlightReader) -> None:
        self._reader = reader

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> pa.RecordBatch:
        try:
            batch = self._reader.next()
        except BaseException:
            self._reader.close()
            raise
        if batch is None:
            self._reader.close()
            raise StopIteration
        return batch

    def __del__(self) -> None:
        self._reader.close()
