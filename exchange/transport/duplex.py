"""Duplex streams: long-lived exchanges that carry messages both ways, of bytes or with rows, seen from client and
server.

One thread may read while another sends. A read that waits ends when the line is cut, by either side: `abort`.
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

from epochlog.errors import BadMessage, InsecureServer, InvalidInput

from . import log_lines as _log_lines  # noqa: F401 (whoever has peers logs what they say)
from .errors import CALL_ERRORS, as_epochlog_error

Pem = bytes | str | Path
"""PEM, or the path of a file with it."""
MAX_MESSAGE = 32 << 20
"""Bytes of one message; larger ones are refused undecoded, and not sent."""
FIRST_S = 30.0
"""How long a client that has opened a line may take to send the message that it begins with."""
CONNECT_MS = 2_000
"""How long a client waits for a server that does not answer the connection."""


@dataclass(frozen=True, slots=True)
class Frame:
    """Content of one message of a line that carries rows: rows, bytes, or both."""

    rows: pa.RecordBatch | None
    message: bytes | None


class DuplexStream:
    """Duplex stream of messages to and from one peer. `closed` is set once nothing more will be read."""

    def __init__(
        self,
        reader: Any,
        writer: Any,
        cut: Callable[[], None],
        peer: str,
        limit: int = MAX_MESSAGE,
        *,
        may_write: bool = True,
    ) -> None:
        """Take over the two ends of an exchange. may_write: True if the peer's token may write, seen from a server."""
        self.may_write = may_write
        self._reader = reader
        self._writer = writer
        self._cut = cut
        self._limit = limit
        self._sending = threading.Lock()
        self.peer = peer
        self.closed = threading.Event()

    def read(self) -> bytes | None:
        """Return the next message; None when the other side has ended the line, or it was cut. Raises BadMessage."""
        chunk = self._chunk()
        if chunk is None:
            return None
        if chunk.data is not None or chunk.app_metadata is None:
            raise BadMessage("a line carries messages, and no record batches")
        return chunk.app_metadata.to_pybytes()

    def read_first(self) -> bytes | None:
        """Return the message that a line begins with, as `read` does; a client that does not send it within FIRST_S is
        cut off.
        """
        late = threading.Timer(FIRST_S, self.abort)
        late.daemon = True
        late.start()
        try:
            return self.read()
        finally:
            late.cancel()

    def read_frame(self) -> Frame | None:
        """Return the next message of a line whose other side may send rows too; None at the end. Rows are given as they
        came: unchecked and not aligned.
        """
        chunk = self._chunk()
        if chunk is None:
            return None
        return Frame(chunk.data, None if chunk.app_metadata is None else chunk.app_metadata.to_pybytes())

    def _chunk(self) -> Any:
        try:
            chunk = self._reader.read_chunk()
        except (StopIteration, *CALL_ERRORS):
            self.closed.set()
            return None
        size = 0 if chunk.app_metadata is None else chunk.app_metadata.size
        if size > self._limit:
            raise BadMessage(f"a message has {size} bytes; at most {self._limit} are taken")
        return chunk

    def begin(self, schema: pa.Schema) -> bool:
        """Announce the columns of the rows that this side will send; call it once, before the first of them."""
        return self._told(lambda: self._writer.begin(schema))

    def send_rows(self, rows: pa.RecordBatch, message: bytes = b"") -> bool:
        """Send a message with rows of the columns that `begin` announced; return False when the line has ended."""
        self._check_size(message)
        return self._told(lambda: self._writer.write_with_metadata(rows, message))

    def send(self, message: bytes) -> bool:
        """Send a message; return False when the line has ended. Waits while the other side does not read earlier
        messages.
        """
        self._check_size(message)
        return self._told(lambda: self._writer.write_metadata(message))

    def _check_size(self, message: bytes) -> None:
        if len(message) > self._limit:
            raise BadMessage(f"a message has {len(message)} bytes; at most {self._limit} are sent")

    def _told(self, write: Callable[[], None]) -> bool:
        try:
            with self._sending:
                write()
        except (StopIteration, *CALL_ERRORS):
            return False
        return True

    def abort(self) -> None:
        """Cut the line off; waiting readers and senders end."""
        self.closed.set()
        self._cut()


class ClientLine(DuplexStream):
    """Line to a server, over a connection of its own. `reason` is the error that ended it."""

    def __init__(
        self, location: str, name: bytes, *, token: str | None, tls_roots: bytes | None, limit: int = MAX_MESSAGE
    ) -> None:
        """Connect and open the line. Raises AccessDenied, ServerUnavailable."""
        options = call_options(token)
        self._client = connect(location, tls_roots)
        self.reason: Exception | None = None
        try:
            writer, reader = self._client.do_exchange(flight.FlightDescriptor.for_command(name), options)
        except CALL_ERRORS as error:
            self._client.close()
            raise as_epochlog_error(error, location) from None
        super().__init__(_LastError(reader, self), writer, reader.cancel, location, limit)

    def end(self) -> None:
        """Tell the server that nothing more will be sent."""
        with suppress(*CALL_ERRORS), self._sending:
            self._writer.done_writing()

    def finish(self, timeout_s: float) -> None:
        """End the sending side, and wait up to `timeout_s` until the server has read all and ended the line."""
        self.end()
        self.closed.wait(timeout_s)

    def close(self) -> None:
        """Cut the line off and close its connection; a second call does nothing."""
        with suppress(*CALL_ERRORS):
            self.abort()
        with suppress(*CALL_ERRORS), self._sending:
            self._writer.close()
        self._client.close()


class _LastError:
    """Reader that keeps the error that ended it."""

    def __init__(self, reader: Any, line: ClientLine) -> None:
        self._reader = reader
        self._line = line

    def read_chunk(self) -> Any:
        try:
            return self._reader.read_chunk()
        except CALL_ERRORS as error:
            self._line.reason = as_epochlog_error(error, self._line.peer)
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
    """Return True if only this machine can reach the host. Names other than localhost are not looked up, and give
    False.
    """
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
            "tls_roots= for a certificate of your own; insecure=True sends it all the same, as through a tunnel"
        )


def read_pem(given: Pem) -> bytes:
    """Return the PEM, read from the file where a path was given."""
    return given if isinstance(given, bytes) else Path(given).read_bytes()


def connect(location: str, tls_roots: bytes | None = None) -> flight.FlightClient:
    """Open a client with a connection of its own: by default gRPC lets all clients of a process share one. Calls to
    this machine go straight there: a proxy that the environment names (http_proxy) would read the token.
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
    """Raise InvalidInput unless the token is None or can stand in a header."""
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
