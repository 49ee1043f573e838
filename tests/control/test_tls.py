"""Servers over TLS, with a certificate made for the test: who knows its root is served, and nobody else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import flight

import epochlog as el
import plain_flight as plain
from certificates import make_certificate

TOKEN, READ_TOKEN = "write-Token-4711", "read-Token-08151"
SCHEMA = pa.schema([("id", pa.int64())])


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The root of somebody else."""
    return (make_certificate(tmp_path_factory.mktemp("other")) / "cert.pem").read_bytes()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[el.Store]:
    with el.open(tmp_path / "s", durability="os") as store:
        store.create_table("t", SCHEMA, ["id"]).upsert(pa.table({"id": [1, 2]}))
        yield store


@pytest.fixture
def server(store: el.Store, certificate: Path) -> Iterator[el.StoreServer]:
    """Open to other machines."""
    tls = (certificate / "cert.pem", certificate / "key.pem")
    with el.serve(store, "grpc+tls://0.0.0.0:0", token=TOKEN, read_token=READ_TOKEN, tls=tls) as server:
        yield server


def localhost_location(server: el.StoreServer) -> str:
    assert server.location.startswith("grpc+tls://")
    return f"grpc+tls://127.0.0.1:{server.location.rpartition(':')[2]}"


def test_who_knows_the_root_and_a_token_is_served(server: el.StoreServer, certificate: Path) -> None:
    roots = (certificate / "cert.pem").read_bytes()
    for token in (TOKEN, READ_TOKEN):
        with plain.connected(localhost_location(server), token, roots) as (client, options):
            info = client.get_flight_info(plain.path("t"), options)
            assert client.do_get(info.endpoints[0].ticket, options).read_all().num_rows == 2
    nobody = plain.connected(localhost_location(server), None, roots)
    with nobody as (client, options), pytest.raises(flight.FlightUnauthenticatedError):
        client.get_flight_info(plain.path("t"), options)


def test_the_read_token_puts_no_rows(store: el.Store, server: el.StoreServer, certificate: Path) -> None:
    roots = (certificate / "cert.pem").read_bytes()
    for token, taken in ((READ_TOKEN, False), (TOKEN, True)):
        with plain.connected(localhost_location(server), token, roots) as (client, options):
            writer, answers = client.do_put(plain.path("t"), SCHEMA, options)
            if taken:
                writer.write_table(pa.table({"id": [3]}))
                writer.done_writing()
                assert answers.read() is not None
                writer.close()
            else:
                with pytest.raises(flight.FlightError, match="AccessDenied"):
                    writer.close()
        assert store.table("t").count() == 2 + taken


def test_another_root_and_no_tls_are_refused(server: el.StoreServer, stranger: bytes) -> None:
    ports = localhost_location(server).rpartition(":")[2]
    for location, roots in ((localhost_location(server), stranger), (f"grpc://127.0.0.1:{ports}", None)):
        with plain.connected(location, TOKEN, roots) as (client, options), pytest.raises(flight.FlightUnavailableError):
            client.get_flight_info(plain.path("t"), options)


@pytest.mark.medium
def test_the_control_stream_travels_over_tls(
    store: el.Store, server: el.StoreServer, certificate: Path, stranger: bytes
) -> None:
    with el.Worker(localhost_location(server), store, token=TOKEN, tls_roots=certificate / "cert.pem") as worker:
        part = worker.attach("load", index=0, of=1, tables=["t"])
        part.writer("t").upsert(pa.table({"id": [7]}))
        part.finish(state=b"")
    assert store.table("t").count() == 3
    misled = el.Worker(localhost_location(server), store, token=TOKEN, tls_roots=stranger)
    with misled as worker, pytest.raises(el.ServerUnavailable):
        worker.attach("load2", index=0, of=1, tables=["t"], timeout=0.5)
