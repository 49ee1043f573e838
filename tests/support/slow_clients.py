"""Clients of an HTTP port that send byte by byte, or read so, with and without TLS; one thread moves all of them."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Manner:
    """Manner of slow clients. sent: bytes in each step of the first half of `request`; drips: bytes in each step of the
    rest, 0 for none; reads: bytes that it reads in each step.
    """

    name: str
    request: bytes
    at_once: int = 0
    drips: int = 1
    reads: int = 0
    tls: bool = False


@dataclass
class SlowCrowd:
    """Slow clients of one manner. came: how many have connected; most_open: open ones at a time; ends: their ends."""

    came: int = 0
    steps: int = 0
    most_open: int = 0
    ends: list[str] = field(default_factory=list)
    error: BaseException | None = None
    ended: threading.Event = field(default_factory=threading.Event)


class _Client:
    def __init__(self, port: int, host: str, manner: Manner, context: ssl.SSLContext | None) -> None:
        self.rest, self.manner = manner.request, manner
        plain = socket.socket()
        if manner.reads:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        plain.bind((host, 0))
        plain.connect(("127.0.0.1", port))
        plain.setblocking(False)
        self.is_open = True
        self.socket = plain
        self.shaken = not manner.tls
        if manner.tls and context is not None:
            self.socket = context.wrap_socket(plain, server_hostname="127.0.0.1", do_handshake_on_connect=False)
        self.at_once = manner.at_once

    def step(self) -> str:
        """Send or read a little; return how the connection has ended, or ""."""
        try:
            if not self.shaken and isinstance(self.socket, ssl.SSLSocket):
                self.socket.do_handshake()
                self.shaken = True
            size, self.at_once = self.at_once or self.manner.drips, 0
            if self.rest and size:
                self.rest = self.rest[self.socket.send(self.rest[:size]) :]
            if self.manner.reads or not self.rest:
                return "" if self.socket.recv(self.manner.reads or 1) else "end"
            if self.socket.recv(1) == b"":
                return "end"
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return ""
        except ConnectionResetError:
            return "reset"
        except OSError as error:
            return type(error).__name__
        return ""


@contextmanager
def slow_clients(
    port: int, manner: Manner, *, host: str = "127.0.0.2", most: int = 200, certificate: Path | None = None
) -> Iterator[SlowCrowd]:
    """Enter a context in which a thread keeps `most` slow clients from `host` connected, and moves them in turns."""
    context = None if certificate is None else ssl.create_default_context(cafile=str(certificate))
    crowd, clients = SlowCrowd(), list[_Client]()

    def run() -> None:
        try:
            while not crowd.ended.is_set():
                for client in list(clients):
                    if end := client.step():
                        crowd.ends.append(end)
                        clients.remove(client)
                        client.socket.close()
                for _ in range(20 if crowd.came < most else 1):
                    if len(clients) < most:
                        with suppress(ConnectionError, TimeoutError):
                            clients.append(_Client(port, host, manner, context))
                            crowd.came += 1
                crowd.steps += 1
                crowd.most_open = max(crowd.most_open, len(clients))
        except BaseException as error:
            crowd.error = error
            raise
        finally:
            for client in clients:
                client.socket.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield crowd
    finally:
        crowd.ended.set()
        thread.join()
        assert crowd.error is None
