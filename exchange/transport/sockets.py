"""Sockets of this process that gRPC cannot be told to end: cutting them ends a read that waits for a silent peer."""

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
"""Linux's tcp_info up to the milliseconds since data was sent, an acknowledgement was, and data came."""


@dataclass(frozen=True, slots=True)
class Connection:
    """Accepted connection. peer: `host:port`; still_s: seconds since anything came or went over it."""

    peer: str
    still_s: float


def accepted_connections(port: int) -> list[Connection]:
    """List the connections accepted at the port."""
    found = []
    for number in _open_numbers():
        with suppress(OSError), _borrowed(number, port) as connection:
            peer = _text(connection.getpeername())
            told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
            sent_ms, _, heard_ms = _TCP_INFO.unpack(told)[-3:]
            found.append(Connection(peer, min(sent_ms, heard_ms) / 1000))
    return found


def open_files() -> int:
    """Return an upper bound of the number of files that this process has open."""
    return len(_open_numbers())


def abort_connections(port: int, peers: Collection[str] | None = None) -> int:
    """Shut down the accepted TCP connections of a server at this port, of these peers (`host:port`) or all; return
    their number.

    Waiting readers and writers of such a connection, here and at the other end, are told at once.
    """
    cut = 0
    for number in _open_numbers():
        with suppress(OSError), _borrowed(number, port) as connection:  # it may have ended by itself
            peer = _text(connection.getpeername())  # a listener has none
            if peers is None or peer in peers:
                connection.shutdown(socket.SHUT_RDWR)
                cut += 1
    return cut


def peer_address(grpc_peer: str) -> str:
    """Return `host:port` of a peer as gRPC names it: ipv4:127.0.0.1:5005, or ipv6:%5B::1%5D:5005."""
    host, _, port = unquote(grpc_peer.partition(":")[2]).rpartition(":")
    return f"{_plain(host.strip('[]'))}:{port}"


def _open_numbers() -> Sequence[int]:
    """List the numbers of this process's open files; all possible numbers if no more can be opened, because listing
    takes one.
    """
    try:
        return [int(entry.name) for entry in _OPEN_FILES.iterdir()]
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return range(1 << 20 if most == resource.RLIM_INFINITY else most)


@contextmanager
def _borrowed(number: int, port: int) -> Iterator[socket.socket]:
    """Borrow the file of this number as a socket, if it is a TCP socket bound to the port; gRPC keeps it, open. Raises
    OSError.

    Nothing is copied: that takes a file more, and to close a copy of a file ends the locks that this process has on the
    file, and LMDB's readers in other processes, and its writers, would no longer know of those here.
    """
    here = socket.socket(fileno=number)
    try:
        if here.family not in (socket.AF_INET, socket.AF_INET6) or here.getsockname()[1] != port:
            raise OSError(errno.ENOTSOCK, "no connection of this port")
        yield here
    finally:
        here.detach()


def _text(address: tuple[object, ...]) -> str:
    return f"{_plain(str(address[0]))}:{address[1]}"


def _plain(host: str) -> str:
    """Return the host without its zone (of a link-local address), and an IPv4 address inside an IPv6 one as IPv4."""
    return host.partition("%")[0].removeprefix("::ffff:")
