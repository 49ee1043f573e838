"""TCP proxy that loses answers and delays requests on demand. With a certificate it speaks TLS to clients."""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import suppress


class TcpProxy:
    """Proxy on a free port of 127.0.0.1, its `port`, to a server on another port, until `stop`.

    tls: the proxy accepts TLS connections with this context and speaks plain TCP to the server.
    """

    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        self._target = ("127.0.0.1", port)
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(None)  # whatever the process's default is
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._armed: tuple[str, bytes] | None = None
        self._held_request = b""
        self._open: set[socket.socket] = set()
        self._refusing = False
        self._pause_s = 0.0
        self._mute = False
        self.fired = threading.Event()
        """Set when `cut_answer`, `hold` or `swallow` has taken effect."""
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def cut_answer(self, word: bytes) -> None:
        """Deliver the next request that contains `word`, discard its answer and end the client's connection."""
        self._arm("cut", word)

    def hold(self, word: bytes) -> None:
        """Keep the next request that contains `word` for `deliver`, and end the client's connection."""
        self._arm("hold", word)

    def swallow(self, word: bytes) -> None:
        """Discard all data from the next request that contains `word` on; the connection stays open."""
        self._arm("swallow", word)

    def slow(self, seconds: float) -> None:
        """Delay each part of a request by `seconds`; 0 ends the delay."""
        self._pause_s = seconds

    def mute(self, wanted: bool) -> None:
        """Deliver requests, discard answers and keep connections open; `refuse(True)` ends the connections."""
        self._mute = wanted

    def refuse(self, wanted: bool) -> None:
        """End all connections, present and future, until `refuse(False)`."""
        self._refusing = wanted
        if wanted:
            self._close_all()

    def deliver(self) -> bytes:
        """Send the request kept by `hold` to the server now, and return the answer."""
        with socket.create_connection(self._target, timeout=None) as server:
            server.sendall(self._held_request)
            return server.recv(1 << 16)

    def stop(self) -> None:
        """Close the port and all connections."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._close_all()
        self._thread.join()

    def _arm(self, action: str, word: bytes) -> None:
        self.fired.clear()
        with self._lock:
            self._armed = (action, word)

    def _triggered(self, data: bytes) -> str | None:
        with self._lock:
            if self._armed is None or self._armed[1] not in data:
                return None
            action, self._armed = self._armed[0], None
            return action

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
            client.settimeout(None)
            if self._refusing:
                _close(client)
                continue
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        client, server = plain, None
        try:
            client = self._tls.wrap_socket(plain, server_side=True) if self._tls else plain
            server = socket.create_connection(self._target, timeout=None)
            with self._lock:
                self._open |= {client, server}
            drop_answers, drop_all = threading.Event(), threading.Event()
            threading.Thread(
                target=self._forward_answers, args=(server, client, drop_answers, drop_all), daemon=True
            ).start()
            self._forward_requests(client, server, drop_answers, drop_all)
        except OSError:
            pass  # either end has gone
        finally:
            for end in (client, server):
                if end is not None:
                    _close(end)
                    with self._lock:
                        self._open.discard(end)

    def _forward_requests(
        self, client: socket.socket, server: socket.socket, drop_answers: threading.Event, drop_all: threading.Event
    ) -> None:
        while data := client.recv(1 << 16):
            if self._pause_s:
                threading.Event().wait(self._pause_s)
            action = self._triggered(data)
            if action == "swallow":
                drop_all.set()
                self.fired.set()
            if drop_all.is_set():
                continue
            if action == "hold":
                self._held_request = data
                self.fired.set()
                return
            if action == "cut":
                drop_answers.set()
            server.sendall(data)

    def _forward_answers(
        self, server: socket.socket, client: socket.socket, drop_answers: threading.Event, drop_all: threading.Event
    ) -> None:
        try:
            while data := server.recv(1 << 16):
                if drop_answers.is_set():
                    self.fired.set()
                    break
                if not drop_all.is_set() and not self._mute:
                    client.sendall(data)
        except OSError:
            pass  # either end has gone
        _close(client)


def _close(end: socket.socket) -> None:
    with suppress(OSError):  # the peer has closed it already
        end.shutdown(socket.SHUT_RDWR)
    end.close()
