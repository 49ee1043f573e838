"""Services of a server: exchanges and actions with the roles that they require, and calls in progress."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import IntEnum

from .duplex import MAX_MESSAGE, DuplexStream


class Role(IntEnum):
    """Role that a token grants; a higher role includes the lower ones."""

    READ = 1
    WRITE = 2


@dataclass(frozen=True, slots=True)
class Exchange:
    """Service of duplex streams. `serve` runs until the stream ends; its second argument is the command after the
    service's name.

    limit: bytes of a message.
    """

    serve: Callable[[DuplexStream, bytes], None]
    role: Role = Role.WRITE
    limit: int = MAX_MESSAGE


@dataclass(frozen=True, slots=True)
class Action:
    """Service of an action: `serve` returns the answer to a body. `about` is the description in `list_actions`."""

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
