"""Clients whose calls wait in threads, and that may go without a word to the server."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from pyarrow import flight

import epochlog as el
from endpoints import ERRORS
from epochlog.testing.tcp_proxy import TcpProxy


class WaitingClient:
    """Connection of its own whose calls wait in threads. ended: the result or the error of each."""

    def __init__(self, location: str) -> None:
        self._proxy = TcpProxy(int(location.rpartition(":")[2]))
        self.client = flight.connect(
            f"grpc://127.0.0.1:{self._proxy.port}", generic_options=[("grpc.use_local_subchannel_pool", 1)]
        )
        self.ended: list[Any] = []
        self.threads: list[threading.Thread] = []

    def run(self, call: Callable[[], Any]) -> None:
        """Make a call in a thread."""

        def run() -> None:
            try:
                self.ended.append(call())
            except ERRORS as error:
                self.ended.append(error)

        self.threads.append(threading.Thread(target=run, daemon=True))
        self.threads[-1].start()

    def close(self) -> None:
        """Go, without a word to the server: a client cannot close its connection while it waits for an answer."""
        self._proxy.stop()
        self.client.close()


def waits_of(server: el.StoreServer) -> int:
    """Return the number of calls that wait at a server, or plan a flight."""
    return len(server._flights.leases._planning)
