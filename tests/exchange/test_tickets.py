"""Tickets: what was signed is read again, and nothing else ever is."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochlog.errors import InvalidInput, TicketExpired, TicketRefused
from epochlog.exchange.flight.tickets import KEY_BYTES, MAX_TICKET, Ticket, Tickets, new_flight, new_key

KEY = bytes(range(KEY_BYTES))


def tickets(now_ms: int = 1_000, key: bytes = KEY) -> Tickets:
    return Tickets(key, lambda: now_ms)


@given(st.binary(min_size=16, max_size=16), st.integers(0, 1 << 20), st.integers(1_001, 1 << 50))
def test_what_was_signed_is_read_again(flight: bytes, part: int, expires_ms: int) -> None:
    ticket = Ticket(flight, part, expires_ms)
    data = tickets().signed(ticket)
    assert len(data) <= MAX_TICKET
    assert tickets().read(data) == ticket


def test_it_expires_at_its_end_and_not_before() -> None:
    data = tickets().signed(Ticket(b"f" * 16, 0, 2_000))
    assert tickets(1_999).read(data).part == 0
    for now_ms in (2_000, 1 << 60):
        with pytest.raises(TicketExpired, match="get_flight_info"):
            tickets(now_ms).read(data)


def test_a_change_of_any_bit_a_cut_and_an_addition_are_refused() -> None:
    data = tickets().signed(Ticket(b"f" * 16, 3, 2_000))
    for place in range(8 * len(data)):
        changed = bytearray(data)
        changed[place // 8] ^= 1 << place % 8
        with pytest.raises(TicketRefused):
            tickets().read(bytes(changed))
    for size in range(len(data)):
        with pytest.raises(TicketRefused):
            tickets().read(data[:size])
    for more in (b"\0", data, bytes(MAX_TICKET)):
        with pytest.raises(TicketRefused):
            tickets().read(data + more)


@given(st.binary(max_size=2 * MAX_TICKET))
def test_bytes_of_strangers_are_refused(data: bytes) -> None:
    with pytest.raises(TicketRefused):
        tickets().read(data)


def test_another_key_and_none_at_all_are_refused() -> None:
    data = tickets().signed(Ticket(b"f" * 16, 0, 2_000))
    with pytest.raises(TicketRefused):
        tickets(key=new_key()).read(data)
    body = msgpack.packb([1, b"f" * 16, 0, 2_000])
    assert isinstance(body, bytes)
    with pytest.raises(TicketRefused):
        tickets().read(bytes(32) + body)
    with pytest.raises(InvalidInput):
        Tickets(b"short", lambda: 0)


def test_nothing_is_parsed_before_size_and_signature_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(msgpack, "unpackb", None)
    for data in (b"", bytes(40), bytes(1 << 20)):
        with pytest.raises(TicketRefused):
            tickets().read(data)


def test_keys_and_flights_are_never_the_same_and_no_key_is_shown() -> None:
    assert len({new_key() for _ in range(50)} | {new_flight() for _ in range(50)}) == 100
    assert repr(tickets()) == "<Tickets>"
