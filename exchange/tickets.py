"""Tickets: what a client hands in for the data of one endpoint. Small, signed by their server, and good for a while.

A ticket is HMAC-SHA256 over msgpack, then that msgpack: [version, flight, part, end]. Nothing of it is parsed before
its size and signature are found right. The key is made anew by every server: a ticket outlives none.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from dataclasses import dataclass

import msgpack

from ..errors import InvalidInput, TicketExpired, TicketRefused
from ..store.clock import Clock

MAX_TICKET = 1024
"""Bytes of a ticket at most; a longer one is refused unread."""
KEY_BYTES = 32
FLIGHT_BYTES = 16
_SIGNATURE = hashlib.sha256().digest_size
_VERSION = 1
_ADVICE = "ask for the flight again (get_flight_info)"


@dataclass(frozen=True, slots=True)
class Ticket:
    """One part of one flight, until `expires_ms` (Unix milliseconds)."""

    flight: bytes
    part: int
    expires_ms: int


@dataclass(frozen=True, slots=True)
class Tickets:
    """Signs tickets and tells its own from others. `now_ms` gives Unix milliseconds."""

    key: bytes
    now_ms: Clock

    def __post_init__(self) -> None:
        if len(self.key) < KEY_BYTES:
            raise InvalidInput(f"tickets are signed with a key of {KEY_BYTES} bytes or more")

    def __repr__(self) -> str:
        return "<Tickets>"  # without the key

    def signed(self, ticket: Ticket) -> bytes:
        """The ticket as it travels."""
        body = msgpack.packb([_VERSION, ticket.flight, ticket.part, ticket.expires_ms])
        assert isinstance(body, bytes) and _SIGNATURE + len(body) <= MAX_TICKET
        return self._signature(body) + body

    def read(self, data: bytes) -> Ticket:
        """The ticket that these bytes are. Raises TicketRefused, TicketExpired."""
        if not _SIGNATURE < len(data) <= MAX_TICKET:
            raise TicketRefused(f"a ticket of {len(data)} bytes is none of this server; {_ADVICE}")
        signature, body = data[:_SIGNATURE], data[_SIGNATURE:]
        if not hmac.compare_digest(signature, self._signature(body)):
            raise TicketRefused(f"this ticket is none that this server has given since it was started; {_ADVICE}")
        version, flight, part, expires_ms = msgpack.unpackb(body)  # by its signature our own work
        assert version == _VERSION
        if self.now_ms() >= expires_ms:
            raise TicketExpired(f"this ticket has expired; {_ADVICE}, and renew an endpoint that is needed for longer")
        return Ticket(flight, part, expires_ms)

    def _signature(self, body: bytes) -> bytes:
        return hmac.digest(self.key, body, "sha256")


def new_key() -> bytes:
    """A key that nobody can guess."""
    return os.urandom(KEY_BYTES)


def new_flight() -> bytes:
    """A name that no other flight has."""
    return os.urandom(FLIGHT_BYTES)
