"""HTTP port for metrics, which Flight cannot serve: one page of text at /metrics, for this machine alone."""

from __future__ import annotations

import logging
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from epochlog.errors import InsecureServer, InvalidInput, WriteFailed
from epochlog.store.env.clock import monotonic_s

from .duplex import is_loopback

_log = logging.getLogger("epochlog")

PLAIN = "text/plain; version=0.0.4; charset=utf-8"
REQUEST_S = 5.0
"""How long a client may take to ask and to read the answer."""
MOST = 64
"""Connections at a time."""


class MetricsPort:
    """HTTP server of the text that `text` gives, at each request anew, until `close`."""

    def __init__(self, address: str, text: Callable[[], str]) -> None:
        """Listen at `address`: host:port, port 0 for a free one. Raises InsecureServer, InvalidInput, WriteFailed."""
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        if not host or not port.isdigit() or int(port) > 65535:
            raise InvalidInput(f"metrics must be like 127.0.0.1:0, not {address!r}")
        if not is_loopback(host):
            raise InsecureServer(f"metrics are plain HTTP without a token: bind them to 127.0.0.1, not {host}")

        class Handler(_Handler):
            tell = staticmethod(text)

        try:
            self._server = _Listener((host, int(port)), Handler)
        except OSError as error:
            raise WriteFailed(f"metrics cannot be served at {address}: {error}; choose another port") from None
        self.location = f"http://{host}:{self._server.server_address[1]}/metrics"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="epochlog-metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop listening; a second call does nothing."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Listener(ThreadingHTTPServer):
    """Listener with at most MOST connections, each for at most REQUEST_S; a new connection ends the oldest one above
    that.
    """

    daemon_threads = True
    request_queue_size = MOST

    def __init__(self, *given: Any) -> None:
        self._ends: dict[socket.socket, float] = {}  # oldest first
        self._lock = threading.Lock()
        super().__init__(*given)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._ends[request] = monotonic_s() + REQUEST_S
            oldest = next(iter(self._ends)) if len(self._ends) > MOST else None
        if oldest is not None:
            self._cut(oldest)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._ends.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Cut connections past their time; called each time that the listener has looked for connections."""
        now = monotonic_s()
        with self._lock:
            late = [request for request, ends in self._ends.items() if ends <= now]
        for request in late:
            self._cut(request)

    def _cut(self, request: socket.socket) -> None:
        with self._lock:
            self._ends.pop(request, None)
        with suppress(OSError):  # whoever reads it is told; that thread closes it
            request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log an error unless its client has gone or was cut off."""
        if not isinstance(sys.exc_info()[1], OSError):
            _log.exception("a request for metrics failed")


class _Handler(BaseHTTPRequestHandler):
    tell: Callable[[], str]
    timeout = REQUEST_S

    def do_GET(self) -> None:
        if not _is_ours(self.headers.get("Host")):
            self.send_error(421)
            return
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404)
            return
        try:
            body = self.tell().encode()
        except Exception:  # noqa: BLE001 (a defect; it is logged)
            _log.exception("the metrics could not be told")
            self.send_error(500)
            return
        self.send_response(200)
        self.send_header("Content-Type", PLAIN)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: requests come every few seconds."""


def _is_ours(host: str | None) -> bool:
    """Return True if the request's Host header names this machine. A browser sends the name of the page's site: if its
    owner points that name at this machine, the page could read the metrics.
    """
    if host is None:
        return True
    try:
        return is_loopback(urlsplit(f"//{host}").hostname or "")
    except ValueError:
        return False
