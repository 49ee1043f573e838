"""Tickets of endpoints: signed by their server and valid for a limited time. A client sends one to get an endpoint's
rows.

A ticket is an HMAC-SHA256 signature followed by the signed msgpack array [version, flight, part, expiry]. The server
checks size and signature before it parses the array. Every server makes a new key, so a ticket does not outlive its
server.
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
"""Largest number of bytes of a ticket; a longer one is refused unread."""
KEY_BYTES = 32
FLIGHT_BYTES = 16
_SIGNATURE = hashlib.sha256().digest_size
_VERSION = 1
_ADVICE = "ask for the flight again (get_flight_info)"


@dataclass(frozen=True, slots=True)
class Ticket:
    """Ticket of one part of one flight, valid until `expires_ms` (Unix milliseconds)."""

    flight: bytes
    part: int
    expires_ms: int


@dataclass(frozen=True, slots=True)
class Tickets:
    """Signer and verifier of a server's tickets. `now_ms` returns Unix milliseconds."""

    key: bytes
    now_ms: Clock

    def __post_init__(self) -> None:
        if len(self.key) < KEY_BYTES:
            raise InvalidInput(f"the signing key of tickets needs {KEY_BYTES} bytes or more, not {len(self.key)}")

    def __repr__(self) -> str:
        return "<Tickets>"  # without the key

    def signed(self, ticket: Ticket) -> bytes:
        """Encode and sign a ticket."""
        payload = msgpack.packb([_VERSION, ticket.flight, ticket.part, ticket.expires_ms])
        assert isinstance(payload, bytes) and _SIGNATURE + len(payload) <= MAX_TICKET
        return self._signature(payload) + payload

    def read(self, data: bytes) -> Ticket:
        """Verify these bytes and decode their ticket. Raises TicketRefused, TicketExpired."""
        if not _SIGNATURE < len(data) <= MAX_TICKET:
            raise TicketRefused(f"this server issues no tickets of {len(data)} bytes; {_ADVICE}")
        signature, payload = data[:_SIGNATURE], data[_SIGNATURE:]
        if not hmac.compare_digest(signature, self._signature(payload)):
            raise TicketRefused(f"this ticket was not issued by this server since it started; {_ADVICE}")
        version, flight, part, expires_ms = msgpack.unpackb(payload)  # trusted: the signature is ours
        assert version == _VERSION
        if self.now_ms() >= expires_ms:
            raise TicketExpired(f"this ticket has expired; {_ADVICE}, and renew endpoints that you need for longer")
        return Ticket(flight, part, expires_ms)

    def _signature(self, payload: bytes) -> bytes:
        return hmac.digest(self.key, payload, "sha256")


def new_key() -> bytes:
    """Make a random signing key of KEY_BYTES bytes."""
    return os.urandom(KEY_BYTES)


def new_flight() -> bytes:
    """Make a random name of FLIGHT_BYTES bytes for a flight."""
    return os.urandom(FLIGHT_BYTES)
