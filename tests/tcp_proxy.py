"""A TCP proxy for tests that loses answers and delays requests on demand; with a certificate it speaks TLS to clients.

`cut_answer(word)`: the next request with the word is delivered, its answer is thrown away, and the client is cut off.
`hold(word)`: the next request with the word is kept, its client is cut off; `deliver()` sends it on and returns the
answer. `refuse(True)`: nobody is let in any more. `swallow(word)`: from the next request with the word on, that
connection stays open and nothing passes it, in either direction. `slow(seconds)`: each piece of a request waits.
`mute(True)`: requests are delivered, answers are thrown away, and connections stay open: then `refuse(True)` cuts them.
"""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import suppress


class TcpProxy:
    """Listens on a free port of 127.0.0.1 until `stop`, and passes bytes to and from `port`."""

    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        self._target = ("127.0.0.1", port)
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._armed: tuple[str, bytes] | None = None
        self._kept = b""
        self._open: set[socket.socket] = set()
        self._refusing = False
        self._pause_s = 0.0
        self._mute = False
        self.fired = threading.Event()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def cut_answer(self, word: bytes) -> None:
        self._arm("cut", word)

    def hold(self, word: bytes) -> None:
        self._arm("hold", word)

    def swallow(self, word: bytes) -> None:
        self._arm("swallow", word)

    def slow(self, seconds: float) -> None:
        self._pause_s = seconds

    def mute(self, wanted: bool) -> None:
        self._mute = wanted

    def refuse(self, wanted: bool) -> None:
        """While it refuses, connections end at once, those that are open too."""
        self._refusing = wanted
        if wanted:
            self._close_all()

    def deliver(self) -> bytes:
        """Send what was held to the server now; its answer."""
        with socket.create_connection(self._target) as server:
            server.sendall(self._kept)
            return server.recv(1 << 16)

    def stop(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._close_all()
        self._thread.join()

    def _arm(self, what: str, word: bytes) -> None:
        self.fired.clear()
        with self._lock:
            self._armed = (what, word)

    def _fires(self, data: bytes) -> str | None:
        with self._lock:
            if self._armed is None or self._armed[1] not in data:
                return None
            what, self._armed = self._armed[0], None
            return what

    def _close_all(self) -> None:
        with self._lock:
            open_now = list(self._open)
        for end in open_now:
            _close(end)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._refusing:
                _close(client)
                continue
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        client, server = plain, None
        try:
            client = self._tls.wrap_socket(plain, server_side=True) if self._tls else plain
            server = socket.create_connection(self._target)
            with self._lock:
                self._open |= {client, server}
            silent, lost = threading.Event(), threading.Event()
            threading.Thread(target=self._answers, args=(server, client, silent, lost), daemon=True).start()
            self._requests(client, server, silent, lost)
        except OSError:
            pass  # either end has gone
        finally:
            for end in (client, server):
                if end is not None:
                    _close(end)
                    with self._lock:
                        self._open.discard(end)

    def _requests(
        self, client: socket.socket, server: socket.socket, silent: threading.Event, lost: threading.Event
    ) -> None:
        while data := client.recv(1 << 16):
            if self._pause_s:
                threading.Event().wait(self._pause_s)
            what = self._fires(data)
            if what == "swallow":
                lost.set()
                self.fired.set()
            if lost.is_set():
                continue
            if what == "hold":
                self._kept = data
                self.fired.set()
                return
            if what == "cut":
                silent.set()
            server.sendall(data)

    def _answers(
        self, server: socket.socket, client: socket.socket, silent: threading.Event, lost: threading.Event
    ) -> None:
        try:
            while data := server.recv(1 << 16):
                if silent.is_set():
                    self.fired.set()
                    break
                if not lost.is_set() and not self._mute:
                    client.sendall(data)
        except OSError:
            pass  # either end has gone
        _close(client)


def _close(end: socket.socket) -> None:
    with suppress(OSError):  # it has gone already
        end.shutdown(socket.SHUT_RDWR)
    end.close()
