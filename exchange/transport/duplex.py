"""Duplex streams: long-lived Flight exchanges that carry messages both ways, of bytes or with rows; the ends of client
and server.

One thread may read while another sends. A waiting read ends when either side aborts the stream.
"""

from __future__ import annotations

import ipaddress
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import flight

from epochlog.errors import BadMessage, EpochlogError, InsecureServer, InvalidInput

from .errors import CALL_ERRORS, as_epochlog_error

Pem = bytes | str | Path
"""PEM, or the path of a file with it."""
MAX_MESSAGE = 32 << 20
"""Bytes of one message. A larger message is neither sent nor decoded."""
FIRST_MESSAGE_S = 30.0
"""Seconds within which a client sends the first message of a stream that it has opened."""
CONNECT_MS = 2_000
"""How long a client waits for a server to accept the connection."""


@dataclass(frozen=True, slots=True)
class Frame:
    """Content of one message of a stream that carries rows: rows, bytes, or both."""

    rows: pa.RecordBatch | None
    message: bytes | None

    def without_rows(self) -> bytes:
        """Return the message of a stream that carries no rows. Raises BadMessage."""
        if self.rows is not None or self.message is None:
            raise BadMessage("this stream carries messages without rows, and the peer has sent rows")
        return self.message


class DuplexStream:
    """Duplex stream of messages to and from one peer. `closed` is set after the last read, or by `abort`."""

    def __init__(
        self,
        reader: Any,
        writer: Any,
        abort_connection: Callable[[], None],
        peer: str,
        limit: int = MAX_MESSAGE,
        *,
        may_write: bool = True,
    ) -> None:
        """Take over the two ends of an exchange. may_write: at a server, True if the client's token may write."""
        self.may_write = may_write
        self._reader, self._writer = reader, writer
        self._abort_connection = abort_connection
        self._limit = limit
        self._send_lock = threading.Lock()
        self.peer = peer
        self.closed = threading.Event()

    def read(self) -> bytes | None:
        """Return the next message; None when the peer has ended the stream, or it was aborted. Raises BadMessage."""
        frame = self.read_frame()
        return None if frame is None else frame.without_rows()

    def read_first(self) -> bytes | None:
        """Return the first message of the stream, as `read` does. Abort the stream after FIRST_MESSAGE_S without it."""
        timer = threading.Timer(FIRST_MESSAGE_S, self.abort)
        timer.daemon = True
        timer.start()
        try:
            return self.read()
        finally:
            timer.cancel()

    def read_frame(self) -> Frame | None:
        """Return the next message of a stream whose peer may send rows too; None at the end. The rows are neither
        checked nor aligned.
        """
        try:
            chunk = self._reader.read_chunk()
        except (StopIteration, *CALL_ERRORS):
            self.closed.set()
            return None
        size = 0 if chunk.app_metadata is None else chunk.app_metadata.size
        if size > self._limit:
            raise BadMessage(f"a message has {size} bytes; at most {self._limit} are accepted")
        return Frame(chunk.data, None if chunk.app_metadata is None else chunk.app_metadata.to_pybytes())

    def begin(self, schema: pa.Schema) -> bool:
        """Announce the columns of the rows that this side will send; call it once, before the first rows."""
        return self._try_write(lambda: self._writer.begin(schema))

    def send_rows(self, rows: pa.RecordBatch, message: bytes = b"") -> bool:
        """Send a message with rows of the columns that `begin` announced; return False when the stream has ended."""
        self._check_size(message)
        return self._try_write(lambda: self._writer.write_with_metadata(rows, message))

    def send(self, message: bytes) -> bool:
        """Send a message; return False when the stream has ended. Blocks until the peer reads earlier messages."""
        self._check_size(message)
        return self._try_write(lambda: self._writer.write_metadata(message))

    def _check_size(self, message: bytes) -> None:
        if len(message) > self._limit:
            raise BadMessage(f"a message has {len(message)} bytes; at most {self._limit} are sent")

    def _try_write(self, write: Callable[[], None]) -> bool:
        """Run one write under the lock of senders; return False when the stream has ended."""
        try:
            with self._send_lock:
                write()
        except (StopIteration, *CALL_ERRORS):
            return False
        return True

    def abort(self) -> None:
        """Abort the stream's connection; waiting readers and senders return."""
        self.closed.set()
        self._abort_connection()


class ClientStream(DuplexStream):
    """Duplex stream to a server, over a connection of its own. `reason` is the error that ended it."""

    def __init__(
        self, location: str, name: bytes, *, token: str | None, tls_roots: bytes | None, limit: int = MAX_MESSAGE
    ) -> None:
        """Connect and open the stream. Raises AccessDenied, ServerUnavailable."""
        options = call_options(token)
        self._client = connect(location, tls_roots)
        self.reason: EpochlogError | None = None
        try:
            writer, reader = self._client.do_exchange(flight.FlightDescriptor.for_command(name), options)
        except CALL_ERRORS as error:
            self._client.close()
            raise as_epochlog_error(error, location) from None
        super().__init__(_LastError(reader, self), writer, reader.cancel, location, limit)

    def end(self) -> None:
        """Tell the server that nothing more will be sent."""
        with suppress(*CALL_ERRORS), self._send_lock:
            self._writer.done_writing()

    def finish(self, timeout_s: float) -> None:
        """End the sending side, and wait up to `timeout_s` until the server has read all and ended the stream."""
        self.end()
        self.closed.wait(timeout_s)

    def close(self) -> None:
        """Abort the stream and close its connection; a second call does nothing."""
        with suppress(*CALL_ERRORS):
            self.abort()
        with suppress(*CALL_ERRORS), self._send_lock:
            self._writer.close()
        self._client.close()


class _LastError:
    """Reader that records the error of its last read as the stream's `reason`."""

    def __init__(self, reader: Any, stream: ClientStream) -> None:
        self._reader = reader
        self._stream = stream

    def read_chunk(self) -> Any:
        try:
            return self._reader.read_chunk()
        except CALL_ERRORS as error:
            self._stream.reason = as_epochlog_error(error, self._stream.peer)
            raise


def parse_location(location: object) -> tuple[str, str, int]:
    """Return scheme, host and port of grpc://host:port, grpc+tcp:// or grpc+tls://. Raises InvalidInput."""
    try:
        parts = urlsplit(location) if isinstance(location, str) else urlsplit("")
        host, port = parts.hostname or "", parts.port
    except ValueError:
        host, port, parts = "", None, urlsplit("")
    if parts.scheme not in ("grpc", "grpc+tcp", "grpc+tls") or not host or port is None or parts.path not in ("", "/"):
        raise InvalidInput(f"location must be like grpc://127.0.0.1:5005, not {location!r}")
    return parts.scheme, host, port


def is_loopback(host: str) -> bool:
    """Return True if only this machine can reach the host; False for every name but localhost, without a lookup."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_destination(location: object, token: object, *, insecure: bool = False) -> None:
    """Check that a client may send this token to this location. Raises InvalidInput, and InsecureServer when the token
    would travel without TLS to another host, unless `insecure` allows it.
    """
    scheme, host, _ = parse_location(location)
    check_token(token)
    if token is not None and scheme != "grpc+tls" and not is_loopback(host) and not insecure:
        raise InsecureServer(
            f"{location} is another host, and the token would travel there in clear: connect to grpc+tls://…, with "
            "tls_roots= for a certificate of your own, or pass insecure=True if a tunnel encrypts the connection"
        )


def read_pem(pem: Pem) -> bytes:
    """Return the bytes of a PEM, read from its file if it is a path."""
    return pem if isinstance(pem, bytes) else Path(pem).read_bytes()


def connect(location: str, tls_roots: bytes | None = None) -> flight.FlightClient:
    """Open a client with a connection of its own: by default gRPC lets all clients of a process share one.

    Calls to this machine bypass the proxy of the environment (http_proxy), which could read the token.
    """
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.min_reconnect_backoff_ms", CONNECT_MS)]
    scheme, host, _ = parse_location(location)
    if scheme != "grpc+tls" and is_loopback(host):
        options.append(("grpc.enable_http_proxy", 0))
    roots = {} if tls_roots is None else {"tls_root_certs": tls_roots}
    return flight.connect(location, generic_options=options, **roots)


def call_options(token: str | None, timeout_s: float | None = None) -> flight.FlightCallOptions:
    """Build the options of a call: its token, and its deadline in seconds. Raises InvalidInput for an invalid token."""
    check_token(token)
    headers = [] if token is None else [(b"authorization", f"Bearer {token}".encode())]
    return flight.FlightCallOptions(timeout=timeout_s, headers=headers)


def check_token(token: object) -> None:
    """Raise InvalidInput unless the token is None or printable ASCII, as a header needs it."""
    if token is not None and not (isinstance(token, str) and token and token.isascii() and token.isprintable()):
        raise InvalidInput("the token must be printable ASCII and not empty")


def run_action(
    client: flight.FlightClient, location: str, kind: str, body: bytes, *, token: str | None, timeout_s: float
) -> bytes:
    """Run one action and return the bytes of its answer. Raises the server's typed errors."""
    try:
        results = client.do_action(flight.Action(kind, body), call_options(token, timeout_s))
        return b"".join(result.body.to_pybytes() for result in results)
    except CALL_ERRORS as error:
        raise as_epochlog_error(error, location) from None
