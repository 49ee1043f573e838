"""Cutting off connections of this process that gRPC cannot be told to end: a read that waits for a silent peer ends."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_OPEN_FILES = Path("/proc/self/fd")


def hang_up(port: int, peer: str | None = None) -> int:
    """Shut down the accepted TCP connections of a server at this port: of one peer (`host:port`), or all of them.

    How many that were. Whoever reads or writes such a connection, here or at the other end, is told at once.
    """
    cut = 0
    for connection in _connections(port):
        with connection, suppress(OSError):  # it may have ended by itself
            if peer is None or _text(connection.getpeername()) == peer:
                connection.shutdown(socket.SHUT_RDWR)
                cut += 1
    return cut


def peer_address(grpc_peer: str) -> str:
    """`host:port` of a peer as gRPC names it: ipv4:127.0.0.1:5005, or ipv6:%5B::1%5D:5005."""
    text = grpc_peer.partition(":")[2].replace("%5B", "[").replace("%5D", "]")
    host, _, port = text.rpartition(":")
    return f"{_plain(host.strip('[]'))}:{port}"


def _connections(port: int) -> Iterator[socket.socket]:
    """Copies of the connections accepted at the port, for the caller to close.

    Nothing but sockets is copied: to close a copy of a file ends the locks that this process has on the file, and
    LMDB's readers in other processes, and its writers, would no longer know of those here.
    """
    for entry in _OPEN_FILES.iterdir():
        with suppress(OSError, ValueError):  # closed meanwhile
            if not os.readlink(entry).startswith("socket:"):
                continue
            copy = os.dup(int(entry.name))
            try:
                found = socket.socket(fileno=copy)
            except OSError:  # a file by now: its copy stays open
                continue
            try:
                mine = found.family in (socket.AF_INET, socket.AF_INET6) and found.getsockname()[1] == port
                found.getpeername()  # a listener has none
            except OSError:
                mine = False
            if mine:
                yield found
            else:
                found.close()


def _text(address: tuple[object, ...]) -> str:
    return f"{_plain(str(address[0]))}:{address[1]}"


def _plain(host: str) -> str:
    """An IPv4 address inside an IPv6 one as IPv4."""
    return host.removeprefix("::ffff:")
