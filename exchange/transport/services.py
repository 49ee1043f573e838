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
    """

    serve: Callable[[DuplexStream, bytes], None]
    role: Role = Role.WRITE
    limit: int = MAX_MESSAGE
    """Bytes of a message."""


@dataclass(frozen=True, slots=True)
class Action:
    """Service of an action: `serve` returns the answer to a body. `about` is the description in `list_actions`."""

    serve: Callable[[bytes], bytes]
    role: Role = Role.WRITE
    about: str = ""


@dataclass(frozen=True, slots=True)
class Call:
    """Call in progress."""

    peer: str
    cancelled: Callable[[], bool]
    """Returns True if the client has disconnected or the call's deadline has passed."""
    abort_connection: Callable[[], None]
    """Shuts down the client's connection."""
    may_write: bool = True
    """True if the call's token has the role WRITE."""
    counted: Callable[[], AbstractContextManager[None]] = nullcontext
    """Context manager that counts the call as one of its connection's."""


@dataclass(frozen=True, slots=True)
class WaitingAction:
    """Service of an action that may wait: `serve` returns the answer to the body of a call, and ends its wait when the
    call ends.
    """

    serve: Callable[[bytes, Call], bytes]
    role: Role = Role.WRITE
    about: str = ""


Wait = Callable[[Call, str], AbstractContextManager[Callable[[], None]]]
"""Function of a call and the name of the thing that it waits for. Its context holds a place for the wait; the function
that it gives is called again and again during the wait, and raises an error to end it.
"""
