"""Tickets of endpoints: small, signed by their server, and valid for a while; a client hands one in for an endpoint's
data.

A ticket is HMAC-SHA256 over msgpack, then that msgpack: [version, flight, part, end]. Nothing of it is parsed before
its size and signature are found right. Every server makes a new key: a ticket does not outlive its server.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from dataclasses import dataclass

import msgpack

from epochlog.errors import InvalidInput, TicketExpired, TicketRefused
from epochlog.store.env.clock import Clock

MAX_TICKET = 1024
"""Bytes of a ticket at most; a longer one is refused unread."""
KEY_BYTES = 32
FLIGHT_BYTES = 16
_SIGNATURE = hashlib.sha256().digest_size
_VERSION = 1
_ADVICE = "ask for the flight again (get_flight_info)"


@dataclass(frozen=True, slots=True)
class Ticket:
    """Ticket of one part of one flight, until `expires_ms` (Unix milliseconds)."""

    flight: bytes
    part: int
    expires_ms: int


@dataclass(frozen=True, slots=True)
class Tickets:
    """Signer of tickets, which tells its own from others. `now_ms` gives Unix milliseconds."""

    key: bytes
    now_ms: Clock

    def __post_init__(self) -> None:
        if len(self.key) < KEY_BYTES:
            raise InvalidInput(f"tickets are signed with a key of {KEY_BYTES} bytes or more")

    def __repr__(self) -> str:
        return "<Tickets>"  # without the key

    def signed(self, ticket: Ticket) -> bytes:
        """Return the ticket's signed bytes, which clients get and hand in."""
        body = msgpack.packb([_VERSION, ticket.flight, ticket.part, ticket.expires_ms])
        assert isinstance(body, bytes) and _SIGNATURE + len(body) <= MAX_TICKET
        return self._signature(body) + body

    def read(self, data: bytes) -> Ticket:
        """Verify these bytes and decode their ticket. Raises TicketRefused, TicketExpired."""
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
    """Make a random signing key of KEY_BYTES bytes."""
    return os.urandom(KEY_BYTES)


def new_flight() -> bytes:
    """Make a random name of FLIGHT_BYTES bytes for a flight."""
    return os.urandom(FLIGHT_BYTES)
