"""Clients of an HTTP port that send a request and go, in a closed loop, and counts of what the process has open."""

from __future__ import annotations

import os
import socket
import ssl
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from wait_until import WAIT_LIMIT_S


def address_of(location: str) -> tuple[str, int]:
    target = urlsplit(location)
    return str(target.hostname), target.port or 0


def get(path: str, cookie: str = "") -> bytes:
    """Return the bytes of a GET request."""
    named = f"Cookie: {cookie}\r\n" if cookie else ""
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{named}\r\n".encode()


def ask_and_go(location: str, request: bytes) -> None:
    """Send a request and close the connection."""
    with suppress(OSError), socket.create_connection(address_of(location), timeout=WAIT_LIMIT_S) as connection:
        connection.sendall(request)


def opened(location: str, request: bytes) -> socket.socket:
    """Send a request, and return the connection."""
    connection = socket.create_connection(address_of(location), timeout=WAIT_LIMIT_S)
    connection.sendall(request)
    return connection


def rest_of(connection: socket.socket) -> bytes:
    """Return all that comes back; what came before the connection was reset."""
    chunks: list[bytes] = []
    with connection, suppress(ConnectionResetError):
        while chunk := connection.recv(1 << 16):
            chunks.append(chunk)
    return b"".join(chunks)


def body_of(answer: bytes) -> bytes:
    """Return the body of an answer. Raises AssertionError for one in chunks whose last one is missing."""
    head, _, rest = answer.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" not in head.lower():
        return rest
    body = list[bytes]()
    while True:
        size, _, rest = rest.partition(b"\r\n")
        assert size, "the answer ends without its last chunk"
        body.append(rest[: int(size, 16)])
        assert rest[int(size, 16) :][:2] == b"\r\n", "a chunk is cut"
        rest = rest[int(size, 16) + 2 :]
        if size == b"0":
            return b"".join(body)


@dataclass
class Crowd:
    """Clients who come in a closed loop and stay, each thread's up to a number. kept: connections by thread."""

    kept: list[deque[socket.socket]]
    asked: int = 0
    ended: threading.Event = field(default_factory=threading.Event)


class TlsClient:
    """Clients of a TLS port at 127.0.0.1, from the address of a host of this machine (127.0.0.0/8)."""

    def __init__(self, port: int, certificate: Path, host: str) -> None:
        self._to, self._from = ("127.0.0.1", port), (host, 0)
        self._context = ssl.create_default_context(cafile=str(certificate))

    def connect(self, sent: bytes = b"") -> socket.socket:
        """Connect without TLS, and send some bytes."""
        connection = socket.create_connection(self._to, WAIT_LIMIT_S, self._from)
        connection.sendall(sent)
        return connection

    def opened(self, request: bytes) -> socket.socket:
        """Send a request by TLS, and return the connection."""
        connection = self._context.wrap_socket(self.connect(), server_hostname="127.0.0.1")
        connection.sendall(request)
        return connection

    @contextmanager
    def crowding(self, sent: bytes, threads: int = 4, kept: int = 50) -> Iterator[Crowd]:
        """Enter a context in which threads connect and send some bytes; each keeps its last connections."""
        crowd = Crowd([deque() for _ in range(threads)])

        def come(mine: deque[socket.socket]) -> None:
            while not crowd.ended.is_set():
                with suppress(OSError):
                    mine.append(self.connect(sent))
                if len(mine) > kept:
                    mine.popleft().close()
                crowd.asked += 1

        comers = [threading.Thread(target=come, args=(mine,)) for mine in crowd.kept]
        for comer in comers:
            comer.start()
        try:
            yield crowd
        finally:
            crowd.ended.set()
            for comer, mine in zip(comers, crowd.kept, strict=True):
                comer.join()
                for connection in mine:
                    connection.close()

    def hello(self) -> bytes:
        """Return the first message of a handshake."""
        out = ssl.MemoryBIO()
        with suppress(ssl.SSLWantReadError):
            self._context.wrap_bio(ssl.MemoryBIO(), out, server_hostname="127.0.0.1").do_handshake()
        return out.read()


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


class Flood:
    """Closed loop of requests whose clients go at once. asked: number; most_threads, most_files: of the process."""

    def __init__(self) -> None:
        self.asked = self.most_threads = self.most_files = 0
        self.ended = threading.Event()

    def run(self, location: str, request: bytes) -> None:
        while not self.ended.is_set():
            ask_and_go(location, request)
            self.asked += 1
            self.most_threads = max(self.most_threads, threading.active_count())
            with suppress(OSError):
                self.most_files = max(self.most_files, open_files())


@contextmanager
def flooding(*locations: str) -> Iterator[Flood]:
    """Enter a context in which a thread floods each of the URLs."""
    flood = Flood()
    threads = [
        threading.Thread(target=flood.run, args=(location, get(urlsplit(location).path))) for location in locations
    ]
    for thread in threads:
        thread.start()
    try:
        yield flood
    finally:
        flood.ended.set()
        for thread in threads:
            thread.join()
