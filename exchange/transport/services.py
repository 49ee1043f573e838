"""Services of a server: streams and actions under their names, the role that each asks for, and calls in progress."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import IntEnum

from .duplex import MAX_MESSAGE, DuplexStream


class Role(IntEnum):
    """Role that a token gives; the greater includes the lesser."""

    READ = 1
    WRITE = 2


@dataclass(frozen=True, slots=True)
class Exchange:
    """Service of a line: `serve` runs until the line ends, and gets the rest of the command after the service's name.

    limit: bytes of a message.
    """

    serve: Callable[[DuplexStream, bytes], None]
    role: Role = Role.WRITE
    limit: int = MAX_MESSAGE


@dataclass(frozen=True, slots=True)
class Action:
    """Service of an action: `serve` answers its body with bytes. `about` is its description in `list_actions`."""

    serve: Callable[[bytes], bytes]
    role: Role = Role.WRITE
    about: str = ""


@dataclass(frozen=True, slots=True)
class Call:
    """Call in progress. cancelled: returns True if the client has disconnected or the call's deadline has passed;
    abort_connection: shuts down the client's connection. may_write: the call's token has the role WRITE. counted: a
    context manager that counts the call as one of its connection's.
    """

    peer: str
    cancelled: Callable[[], bool]
    abort_connection: Callable[[], None]
    may_write: bool = True
    counted: Callable[[], AbstractContextManager[None]] = nullcontext
