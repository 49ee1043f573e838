"""HTTP port for metrics, which Flight cannot serve: one page of text at /metrics, on a loopback address only."""

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
"""Seconds within which a client sends its request and reads the answer."""
MAX_CONNECTIONS = 64
"""Open connections of the port."""


class MetricsPort:
    """HTTP server of the text that `render` returns for each request, until `close`."""

    def __init__(self, address: str, render: Callable[[], str]) -> None:
        """Listen at `address`: host:port, port 0 for a free one. Raises InsecureServer, InvalidInput, WriteFailed."""
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        if not host or not port.isdigit() or int(port) > 65535:
            raise InvalidInput(f"metrics must be like 127.0.0.1:0, not {address!r}")
        if not is_loopback(host):
            raise InsecureServer(f"metrics are plain HTTP without a token: bind them to 127.0.0.1, not {host}")

        class Handler(_Handler):
            render_page = staticmethod(render)

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
    """Listener with at most MAX_CONNECTIONS connections, each for at most REQUEST_S. A further connection aborts the
    oldest one.
    """

    daemon_threads = True
    request_queue_size = MAX_CONNECTIONS

    def __init__(self, *arguments: Any) -> None:
        self._deadlines: dict[socket.socket, float] = {}  # oldest first
        self._lock = threading.Lock()
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._deadlines[request] = monotonic_s() + REQUEST_S
            oldest = next(iter(self._deadlines)) if len(self._deadlines) > MAX_CONNECTIONS else None
        if oldest is not None:
            self._abort(oldest)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._deadlines.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Abort connections past their deadline; the base class calls this at each of its polls."""
        now = monotonic_s()
        with self._lock:
            late = [request for request, deadline in self._deadlines.items() if deadline <= now]
        for request in late:
            self._abort(request)

    def _abort(self, request: socket.socket) -> None:
        with self._lock:
            self._deadlines.pop(request, None)
        with suppress(OSError):  # the thread that reads the connection fails then, and closes it
            request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log an error unless its client has disconnected or was aborted."""
        if not isinstance(sys.exc_info()[1], OSError):
            _log.exception("a request for metrics failed")


class _Handler(BaseHTTPRequestHandler):
    render_page: Callable[[], str]
    timeout = REQUEST_S

    def do_GET(self) -> None:
        if not _is_local(self.headers.get("Host")):
            self.send_error(421)
            return
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404)
            return
        try:
            body = self.render_page().encode()
        except Exception:  # noqa: BLE001 (a defect; it is logged)
            _log.exception("the metrics could not be rendered")
            self.send_error(500)
            return
        self.send_response(200)
        self.send_header("Content-Type", PLAIN)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Skip the log line of each request: they come every few seconds."""


def _is_local(host: str | None) -> bool:
    """Return True if the request's Host header names this machine. A browser sends the name of the page's site there:
    without this check, a site whose name resolves to this machine could read the metrics.
    """
    if host is None:
        return True
    try:
        return is_loopback(urlsplit(f"//{host}").hostname or "")
    except ValueError:
        return False
