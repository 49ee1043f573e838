"""Tickets over the wire: forged, cut, of another server, of an earlier life of this one, and without the token."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import flight

import epochlog as el
from endpoints import READ_TOKEN, ROWS, TOKEN, Stranger, bearer, check_no_internals, error_of
from plain_flight import framed

pytestmark = pytest.mark.local_only


@pytest.fixture
def store(tmp_path: Path) -> Iterator[el.Store]:
    with el.open(tmp_path / "s", durability="os") as store:
        store.create_table("orders", pa.schema([("id", pa.int64()), ("v", pa.string())]), ["id"]).upsert(ROWS)
        yield store


def ticket_of(stranger: Stranger) -> bytes:
    return stranger.info().endpoints[0].ticket.ticket


def rows(stranger: Stranger, ticket: bytes) -> list[dict[str, object]]:
    return stranger.get(ticket).to_pylist()


def refused(stranger: Stranger, ticket: bytes) -> str:
    error = error_of(stranger.get, ticket)
    assert error is not None, "it was served"
    return check_no_internals(error)


def test_a_ticket_is_no_token(store: el.Store) -> None:
    """It says what is read; who may read is asked again."""
    with (
        el.serve(store, token=TOKEN, read_token=READ_TOKEN) as server,
        Stranger(server.location, bearer(TOKEN)) as writer,
        Stranger(server.location, bearer(READ_TOKEN)) as reader,
        Stranger(server.location) as nobody,
    ):
        ticket = ticket_of(writer)
        assert rows(reader, ticket) == rows(writer, ticket) == ROWS.to_pylist()
        assert isinstance(error_of(nobody.get, ticket), flight.FlightUnauthenticatedError)


def test_a_bit_flipped_anywhere(store: el.Store) -> None:
    with el.serve(store) as server, Stranger(server.location) as stranger:
        ticket = ticket_of(stranger)
        rng = random.Random(5)
        for place in [*range(0, 8 * len(ticket), 7), *rng.sample(range(8 * len(ticket)), 60)]:
            forged = bytearray(ticket)
            forged[place // 8] ^= 1 << place % 8
            assert "TicketRefused" in refused(stranger, bytes(forged)), place
        for forged in (ticket[:-1], ticket + b"\0", ticket[::-1], b"", bytes(1024), bytes(1025), bytes(1 << 20)):
            assert "TicketRefused" in refused(stranger, forged)
        assert rows(stranger, ticket) == ROWS.to_pylist()


def test_a_ticket_of_another_server_and_of_an_earlier_life(store: el.Store) -> None:
    with el.serve(store) as first, Stranger(first.location) as stranger:
        ticket, place = ticket_of(stranger), first.location
        with el.serve(store) as second, Stranger(second.location) as other:
            assert "TicketRefused" in refused(other, ticket)
            assert "ask for the flight again" in refused(other, ticket)
    with el.serve(store, place) as again, Stranger(again.location) as stranger:
        assert "TicketRefused" in refused(stranger, ticket)


def test_forged_endpoints_are_neither_renewed_nor_cancelled(store: el.Store) -> None:
    with el.serve(store) as server, Stranger(server.location) as stranger:
        info = stranger.info()
        ticket = info.endpoints[0].ticket.ticket
        forged = bytes([ticket[0] ^ 1]) + ticket[1:]
        endpoint = flight.FlightEndpoint(forged, [])
        wrong = flight.FlightInfo(info.schema, info.descriptor, [endpoint], -1, -1)
        for kind, body in (("RenewFlightEndpoint", endpoint.serialize()), ("CancelFlightInfo", wrong.serialize())):
            error = error_of(stranger.action, kind, framed(body))
            assert "TicketRefused" in check_no_internals(error), kind
        assert rows(stranger, ticket) == ROWS.to_pylist(), "what it names is held still"
