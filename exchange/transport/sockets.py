"""Shutdown of a server's accepted sockets, which ends reads that wait for a silent peer. gRPC offers no such call."""

from __future__ import annotations

import errno
import resource
import socket
import struct
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

_OPEN_FILES = Path("/proc/self/fd")
_TCP_INFO = struct.Struct("8x9I3I")
"""Linux's tcp_info, up to the milliseconds since data was sent, an acknowledgement was sent, and data was received."""


@dataclass(frozen=True, slots=True)
class Connection:
    """Accepted connection. peer: `host:port`; idle_s: seconds since it last sent or received data."""

    peer: str
    idle_s: float


def accepted_connections(port: int) -> list[Connection]:
    """List the connections accepted at the port."""
    connections = []
    for descriptor in _open_descriptors():
        with suppress(OSError), _borrowed_socket(descriptor, port) as accepted:
            peer = _format_address(accepted.getpeername())
            info = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
            sent_ms, _, received_ms = _TCP_INFO.unpack(info)[-3:]
            connections.append(Connection(peer, min(sent_ms, received_ms) / 1000))
    return connections


def open_files() -> int:
    """Return an upper bound of the number of files that this process has open."""
    return len(_open_descriptors())


def abort_connections(port: int, peers: Collection[str] | None = None) -> int:
    """Shut down the accepted TCP connections of a server at this port, of these peers (`host:port`) or all; return
    their number.

    Readers and writers that wait on such a connection fail at once, at both ends.
    """
    aborted = 0
    for descriptor in _open_descriptors():
        with suppress(OSError), _borrowed_socket(descriptor, port) as accepted:  # it may have ended meanwhile
            peer = _format_address(accepted.getpeername())  # fails for a listener, which has no peer
            if peers is None or peer in peers:
                accepted.shutdown(socket.SHUT_RDWR)
                aborted += 1
    return aborted


def peer_address(grpc_peer: str) -> str:
    """Return `host:port` of a peer in gRPC's notation: ipv4:127.0.0.1:5005, or ipv6:%5B::1%5D:5005."""
    host, _, port = unquote(grpc_peer.partition(":")[2]).rpartition(":")
    return f"{_plain_host(host.strip('[]'))}:{port}"


def _open_descriptors() -> Sequence[int]:
    """List the file descriptors of this process. Return the range of all possible descriptors when the process has
    reached its limit, because the listing itself opens one.
    """
    try:
        return [int(entry.name) for entry in _OPEN_FILES.iterdir()]
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return range(1 << 20 if limit == resource.RLIM_INFINITY else limit)


@contextmanager
def _borrowed_socket(descriptor: int, port: int) -> Iterator[socket.socket]:
    """Open the descriptor as a socket inside of the block, if it is a TCP socket bound to the port; gRPC keeps it open.
    Raises OSError.

    The descriptor is not duplicated. A duplicate counts against the limit of open files, and closing a duplicate of
    another file releases the locks that this process has on that file: LMDB's readers and writers in other processes
    would no longer see those of this process.
    """
    borrowed = socket.socket(fileno=descriptor)
    try:
        if borrowed.family not in (socket.AF_INET, socket.AF_INET6) or borrowed.getsockname()[1] != port:
            raise OSError(errno.ENOTSOCK, "no connection of this port")
        yield borrowed
    finally:
        borrowed.detach()


def _format_address(address: tuple[object, ...]) -> str:
    return f"{_plain_host(str(address[0]))}:{address[1]}"


def _plain_host(host: str) -> str:
    """Return the host without the zone of a link-local address, and an IPv4-mapped IPv6 address as IPv4."""
    return host.partition("%")[0].removeprefix("::ffff:")
