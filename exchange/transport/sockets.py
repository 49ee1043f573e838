"""Shutdown of a server's accepted sockets, which ends reads that wait for a silent peer. gRPC offers no such call.

The descriptors of this process are asked by system calls that change nothing. A Python socket would set the process's
default timeout on each descriptor that it is built on, and close it if an error came between.
"""

from __future__ import annotations

import ctypes
import errno
import ipaddress
import os
import resource
import socket
import struct
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

_OPEN_FILES = Path("/proc/self/fd")
_TCP_INFO = struct.Struct("8x9I3I")
"""Linux's tcp_info, up to the milliseconds since data was sent, an acknowledgement was sent, and data was received."""
_LIBC = ctypes.CDLL(None, use_errno=True)
_ADDRESS_BYTES = 128
"""Largest number of bytes of a socket's address."""


@dataclass(frozen=True, slots=True)
class Connection:
    """Accepted connection."""

    peer: str
    """`host:port`."""
    idle_s: float
    """Seconds since it last sent or received data."""


def accepted_connections(port: int, host: str = "") -> list[Connection]:
    """List the connections accepted at the port of `host`; "": of every address of this machine."""
    connections = []
    for descriptor, peer in _accepted(port, host):
        with suppress(OSError):  # it may have ended meanwhile
            info = _option(descriptor, socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
            sent_ms, _, received_ms = _TCP_INFO.unpack(info)[-3:]
            connections.append(Connection(peer, min(sent_ms, received_ms) / 1000))
    return connections


def open_files() -> int:
    """Return an upper bound of the number of files that this process has open."""
    return len(_open_descriptors())


def abort_connections(port: int, peers: Collection[str] | None = None, host: str = "") -> int:
    """Shut down the accepted TCP connections of a server at this port of `host`, of these peers (`host:port`) or all;
    return their number.

    Readers and writers that wait on such a connection fail at once, at both ends.
    """
    aborted = 0
    for descriptor, peer in _accepted(port, host):
        if peers is None or peer in peers:
            with suppress(OSError):  # it may have ended meanwhile
                _checked(_LIBC.shutdown(descriptor, socket.SHUT_RDWR))
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


def _accepted(port: int, host: str) -> Iterator[tuple[int, str]]:
    """Yield descriptor and peer of each TCP connection accepted at the port.

    No descriptor is duplicated. A duplicate counts against the limit of open files, and closing a duplicate of another
    file releases the locks that this process has on that file: LMDB's readers and writers in other processes would no
    longer see those of this process.
    """
    for descriptor in _open_descriptors():
        with suppress(OSError):  # no socket, no IP address, no TCP, or no peer, as a listener
            own_host, own_port = _address(_LIBC.getsockname, descriptor)
            if own_port == port and _is_at(own_host, host) and _is_tcp(descriptor):
                peer_host, peer_port = _address(_LIBC.getpeername, descriptor)
                yield descriptor, f"{peer_host}:{peer_port}"


def _is_at(own_host: str, host: str) -> bool:
    """Return True if a listener at `host` may have accepted a connection at the address `own_host`. Another listener of
    this process can have the port at another address.
    """
    try:
        bound = ipaddress.ip_address(_plain_host(host))
    except ValueError:  # a name, which has any number of addresses
        return True
    return bound.is_unspecified or bound == ipaddress.ip_address(own_host)


def _is_tcp(descriptor: int) -> bool:
    protocol = _option(descriptor, socket.SOL_SOCKET, socket.SO_PROTOCOL, 4)
    return int.from_bytes(protocol, sys.byteorder) == socket.IPPROTO_TCP


def _address(ask: Any, descriptor: int) -> tuple[str, int]:
    """Return host and port that `getsockname` or `getpeername` gives. Raises OSError."""
    buffer, size = ctypes.create_string_buffer(_ADDRESS_BYTES), ctypes.c_uint(_ADDRESS_BYTES)
    _checked(ask(descriptor, buffer, ctypes.byref(size)))
    family, port = int.from_bytes(buffer.raw[:2], sys.byteorder), int.from_bytes(buffer.raw[2:4], "big")
    if family == socket.AF_INET:
        return socket.inet_ntop(family, buffer.raw[4:8]), port
    if family == socket.AF_INET6:
        return _plain_host(socket.inet_ntop(family, buffer.raw[8:24])), port
    raise OSError(errno.EAFNOSUPPORT, "no address of IP")


def _option(descriptor: int, level: int, name: int, most: int) -> bytes:
    """Return the bytes of a socket's option. Raises OSError."""
    buffer, size = ctypes.create_string_buffer(most), ctypes.c_uint(most)
    _checked(_LIBC.getsockopt(descriptor, level, name, buffer, ctypes.byref(size)))
    return buffer.raw


def _checked(result: int) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _plain_host(host: str) -> str:
    """Return the host without the zone of a link-local address, and an IPv4-mapped IPv6 address as IPv4."""
    return host.partition("%")[0].removeprefix("::ffff:")
