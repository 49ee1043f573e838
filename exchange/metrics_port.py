"""A second port for what Flight cannot speak: one page of text over HTTP, at /metrics, for this machine alone."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from ..errors import InsecureServer, InvalidInput, WriteFailed

_log = logging.getLogger("epochlog")

PLAIN = "text/plain; version=0.0.4; charset=utf-8"
REQUEST_S = 5.0
"""How long a client may take to ask."""


class MetricsPort:
    """Serves the text that `text` gives, at each request anew, until `close`."""

    def __init__(self, address: str, text: Callable[[], str]) -> None:
        """address: host:port, port 0 for a free one. Raises InsecureServer, InvalidInput, WriteFailed."""
        from .server import is_loopback

        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        if not host or not port.isdigit() or int(port) > 65535:
            raise InvalidInput(f"metrics must be like 127.0.0.1:0, not {address!r}")
        if not is_loopback(host):
            raise InsecureServer(f"metrics are plain HTTP without a token: bind them to 127.0.0.1, not {host}")

        class Handler(_Handler):
            tell = staticmethod(text)

        try:
            self._server = ThreadingHTTPServer((host, int(port)), Handler)
        except OSError as error:
            raise WriteFailed(f"metrics cannot be served at {address}: {error}; choose another port") from None
        self._server.daemon_threads = True
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


class _Handler(BaseHTTPRequestHandler):
    tell: Callable[[], str]
    timeout = REQUEST_S

    def do_GET(self) -> None:
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
        """A request each few seconds is no news."""
