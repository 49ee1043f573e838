"""Clients of an HTTP port that send a request and go, in a closed loop, and counts of what the process has open."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
