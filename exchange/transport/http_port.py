"""HTTP port of bounded connections, threads and times, whose methods are limited and whose `Host` is checked.

The metrics and the page of a store are served by it; Flight cannot serve either.
"""

from __future__ import annotations

import ipaddress
import os
import select
import socket
import ssl
from collections.abc import Callable, Hashable, Iterator
from http.server import BaseHTTPRequestHandler
from itertools import chain, islice
from typing import ClassVar
from urllib.parse import urlsplit

from epochlog.errors import InvalidInput, WriteFailed
from epochlog.store.env.log_events import DEFECT
from epochlog.store.env.whole_number import whole_number

from . import http_listener
from .duplex import is_loopback
from .http_listener import HttpConnection, HttpListener
from .shared_answers import SharedAnswers


class HttpPort:
    """HTTP port whose requests are answered by a class of handlers, until `close`."""

    def __init__(
        self,
        address: str,
        handler: type[HttpHandler],
        purpose: str,
        certificate: tuple[bytes, bytes] | None = None,
        is_known: Callable[[bytes], bool] = lambda head: False,
    ) -> None:
        """Listen at `address`: host:port, port 0 for a free one. purpose: what is served, for messages and the name of
        the thread. certificate: chain and key, PEM, for TLS. is_known: returns True for the head of a request that goes
        before others; over TLS, hosts that `HttpConnection.note_known` names do. Raises InvalidInput, WriteFailed.
        """
        host, port = host_and_port(address, purpose)
        bound_handler = type(handler.__name__, (handler,), {"purpose": purpose, "bound_host": host})

        def respond(connection: HttpConnection) -> None:
            if context is not None:
                connection.start_tls(context)
            bound_handler(connection)

        try:
            context = None if certificate is None else _tls_context(*certificate)
            self.listener = HttpListener(host, port, respond, purpose, tls=context is not None, is_known=is_known)
        except (OSError, ssl.SSLError) as error:
            pem = "" if certificate is None else ", and check that certificate and key are PEM and belong together"
            message = f"{purpose} cannot be served at {address}: {error}; choose another port{pem}"
            raise WriteFailed(message) from None
        scheme = "http" if certificate is None else "https"
        bracketed_host = f"[{host}]" if ":" in host else host
        self.port = self.listener.port
        self.origin = f"{scheme}://{bracketed_host}:{self.port}"

    def close(self) -> None:
        """Stop listening and end all connections; a second call does nothing."""
        self.listener.close()


def host_and_port(address: object, purpose: str) -> tuple[str, int]:
    """Return host and port of an address, such as 127.0.0.1:0. Raises InvalidInput."""
    host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    number = whole_number(port)
    if not host or number is None or number > 65535:
        raise InvalidInput(f"{purpose} must be like 127.0.0.1:0, not {address!r}")
    return host.strip("[]"), number


def _tls_context(chain: bytes, key: bytes) -> ssl.SSLContext:
    """Return a server's context. The standard library reads certificates from files only; the file is in memory."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    descriptor = os.memfd_create("epochlog-certificate", os.MFD_CLOEXEC)
    try:
        content = key.strip() + b"\n" + chain
        while content:
            content = content[os.write(descriptor, content) :]
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
    return context


class HttpHandler(BaseHTTPRequestHandler):
    """Handler of one request, after which the connection ends. A subclass answers GET in `answer`; HEAD is a GET whose
    body is not sent. Other methods are refused.
    """

    purpose: ClassVar[str] = ""
    bound_host: ClassVar[str] = ""
    headers_of_all: ClassVar[dict[str, str]] = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
    protocol_version = "HTTP/1.1"

    def __init__(self, accepted: HttpConnection) -> None:
        self.accepted = accepted
        super().__init__(accepted.socket, accepted.address, None)  # pyright: ignore[reportArgumentType]: it has no server

    def setup(self) -> None:
        self.request.settimeout(http_listener.REQUEST_S)
        super().setup()

    def answer(self, path: str, query: str) -> None:
        """Answer a GET or HEAD request for a path."""
        raise NotImplementedError

    def do_GET(self) -> None:
        self.accepted.await_client(None)
        self._guarded(lambda: self.answer(*self._target()))

    def do_HEAD(self) -> None:
        self.do_GET()

    def _target(self) -> tuple[str, str]:
        path, _, query = self.path.partition("?")
        return path, query

    def _guarded(self, respond: Callable[[], None]) -> None:
        """Check the request's Host, then respond; a defect is logged and answered without its text."""
        self.close_connection = True
        if not self.is_own_host(self.headers.get("Host")):
            self.send_error(421)
            return
        try:
            respond()
        except OSError:
            raise
        except Exception as error:  # noqa: BLE001 (a defect; it is logged)
            DEFECT.log(what=f"serving {self.purpose}", error=error)
            self.send_error(500)

    def shared_answer(
        self, answers: SharedAnswers, key: Hashable, make: Callable[[], Iterator[bytes]]
    ) -> Iterator[bytes]:
        """Return the chunks of the shared answer of the key; the first one is made."""
        return answers.get(key, make, self.accepted.has_hung_up)

    def send_chunks(self, chunks: Iterator[bytes], kind: str) -> None:
        """Send an answer whose chunks are made on the way; as a whole if it has one chunk, or goes to a client of
        HTTP 1.0. If a chunk cannot be made, the answer lacks the empty chunk that ends a whole one.
        """
        begun = list(islice(chunks, 2))
        if len(begun) < 2 or self.request_version < "HTTP/1.1":
            self.send_page(b"".join([*begun, *chunks]), kind)
            return
        self.send_head(kind, headers={"Transfer-Encoding": "chunked"})
        if self.command == "HEAD":
            return
        try:
            for chunk in chain(begun, chunks):
                self.accepted.await_client(select.POLLOUT)
                self.wfile.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
                self.accepted.await_client(None)
        except OSError:
            raise
        except Exception as error:  # a defect; the client sees that the answer is not whole
            DEFECT.log(what=f"serving {self.purpose}", error=error)
            raise ConnectionAbortedError("the rest of the answer cannot be made") from error
        self.accepted.await_client(select.POLLOUT)
        self.wfile.write(b"0\r\n\r\n")

    def send_page(self, body: bytes, kind: str, status: int = 200, headers: dict[str, str] | None = None) -> None:
        """Send a whole answer."""
        self.send_head(kind, status, {"Content-Length": str(len(body)), **(headers or {})})
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_head(self, kind: str, status: int = 200, headers: dict[str, str] | None = None) -> None:
        """Send the head of an answer. The connection ends after its body."""
        self.accepted.await_client(select.POLLOUT)
        self.close_connection = True
        self.send_response(status)
        for name, value in {**self.headers_of_all, "Content-Type": kind, **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Connection", "close")
        self.end_headers()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Send an error as a line of text; it repeats nothing of the request."""
        self.close_connection = True
        if not hasattr(self, "command") or self.command is None:
            self.command = "GET"
        self.request_version = self.protocol_version  # also for a line that is no request, which has another or none
        if code == 501:  # a method that no HttpHandler has
            code = 405
        reason = self.responses.get(code, ("error", ""))[0]
        allow = {"Allow": "GET, HEAD"} if code == 405 else {}
        self.send_page(f"{code} {reason}\n".encode(), "text/plain; charset=utf-8", code, allow)

    def is_own_host(self, host: str | None) -> bool:
        """Return True if the request's Host header names this server. A browser sends the name of the page's site
        there: without this check, a site whose name resolves to this machine could read what is served.

        At a loopback address only loopback names are accepted. Elsewhere an address in digits, the name that the port
        is bound to, and the names of this machine are; no such name can be a stranger's site.
        """
        if host is None:
            return True
        try:
            name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
        except ValueError:
            return False
        if is_loopback(self.bound_host):
            return is_loopback(name)
        return name in {self.bound_host, socket.gethostname().lower(), "localhost"} or _is_address(name)

    def version_string(self) -> str:
        return "epochlog"

    def log_message(self, format: str, *args: object) -> None:
        """Skip the log line of each request: they come every few seconds."""


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
