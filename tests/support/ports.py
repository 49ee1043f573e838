"""Ports for servers that are stopped and started again at one address."""

from __future__ import annotations

import random
import socket

_PORTS = range(10_000, 32_768)  # below those that the system gives to outgoing connections
_choice = random.SystemRandom()


def free_port() -> int:
    """Return a port on which nobody listens, and that no connection gets while the server is away."""
    while True:
        port = _choice.choice(_PORTS)
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def fixed_location() -> str:
    return f"grpc://127.0.0.1:{free_port()}"
