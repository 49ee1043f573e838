"""HTTP port for metrics, which Flight cannot serve: one page of text at /metrics, on a loopback address only."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ClassVar

from epochlog.errors import InsecureServer

from .duplex import is_loopback
from .http_port import HttpHandler, HttpPort, host_and_port
from .shared_answers import SharedAnswers, in_chunks

PLAIN = "text/plain; version=0.0.4; charset=utf-8"


class MetricsPort:
    """HTTP server of the text whose lines `render` yields, until `close`. One text answers all requests within a
    second, and leaves as it is made.
    """

    def __init__(self, address: str, render: Callable[[], Iterable[str]]) -> None:
        """Listen at `address`: host:port, port 0 for a free one. Raises InsecureServer, InvalidInput, WriteFailed."""
        host, _ = host_and_port(address, "metrics")
        if not is_loopback(host):
            raise InsecureServer(f"metrics are plain HTTP without a token: bind them to 127.0.0.1, not {host}")

        class Handler(_Handler):
            render_page = staticmethod(render)
            texts = SharedAnswers(makers=1)

        self._port = HttpPort(address, Handler, "metrics")
        self.location = f"{self._port.origin}/metrics"

    def close(self) -> None:
        """Stop listening; a second call does nothing."""
        self._port.close()


class _Handler(HttpHandler):
    render_page: ClassVar[Callable[..., Iterable[str]]]
    texts: ClassVar[SharedAnswers]

    def answer(self, path: str, query: str) -> None:
        if path != "/metrics":
            self.send_error(404)
        else:
            render = type(self).render_page
            chunks = self.shared_answer(self.texts, path, lambda: in_chunks(f"{line}\n".encode() for line in render()))
            self.send_chunks(chunks, PLAIN)
