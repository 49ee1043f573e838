"""Connections that say nothing, half of something, or come by the hundred: they are bounded, and they end."""

from __future__ import annotations

import socket
import ssl
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import flight

import epochlog as el
import plain_flight as plain
from certificates import make_certificate
from epochlog.errors import LimitExceeded
from epochlog.exchange.server import Certificate, Server
from epochlog.exchange.transport import connections, http_listener
from epochlog.exchange.transport.connections import Callers, ConnectionLimits, choose_excess, most_connections
from epochlog.exchange.transport.duplex import ClientStream, connect
from epochlog.exchange.transport.metrics_http import MetricsPort
from epochlog.exchange.transport.services import Action, Exchange
from epochlog.exchange.transport.sockets import Connection, accepted_connections
from logged_events import logged
from open_files import no_open_files
from wait_until import wait_until

pytestmark = pytest.mark.local_only

ACTIONS = {"echo": Action(lambda body: body)}


def port_of(server: Server) -> int:
    return int(server.location.rpartition(":")[2])


def dialled(stack: ExitStack, port: int, count: int) -> list[socket.socket]:
    return [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(count)]


def ended(connection: socket.socket) -> bool:
    """Return True once the peer has closed the connection; discard all bytes it sent before."""
    connection.settimeout(30)
    with suppress(ConnectionResetError):
        while connection.recv(4_096):
            pass
    return True


def echoed(server: Server, roots: bytes | None = None) -> bool:
    client = connect(server.location, roots)
    try:
        return [result.body.to_pybytes() for result in client.do_action(("echo", b"x"))] == [b"x"]
    finally:
        client.close()


QUICK = ConnectionLimits(hello_s=0.3)


@pytest.mark.parametrize("data", [b"", b"P", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/1.1\r\n"])
def test_a_connection_that_makes_no_call_is_ended(data: bytes) -> None:
    server = Server("grpc://127.0.0.1:0", token=None, actions=ACTIONS, limits=QUICK)
    with ExitStack() as stack:
        for connection in dialled(stack, port_of(server), 3):
            connection.sendall(data)
            assert ended(connection)
        wait_until(lambda: accepted_connections(port_of(server)) == [])
        assert echoed(server)
    server.shutdown(5)


@pytest.mark.medium
def test_silent_connections_end_also_while_no_file_can_be_opened() -> None:
    """A flood that is faster than the looks at it takes all files; to list a process's files, or to copy one, takes
    another.
    """
    server = Server("grpc://127.0.0.1:0", token=None, actions=ACTIONS, limits=QUICK)
    with ExitStack() as stack:
        silent = dialled(stack, port_of(server), 3)
        wait_until(lambda: len(accepted_connections(port_of(server))) == 3)
        with no_open_files():
            assert all(ended(connection) for connection in silent)
        wait_until(lambda: accepted_connections(port_of(server)) == [])
        (later,) = dialled(stack, port_of(server), 1)
        assert ended(later) and echoed(server)
    server.shutdown(5)


@pytest.mark.medium
@pytest.mark.parametrize("error", [OSError(13, "refused"), RuntimeError("a defect")])
def test_who_looks_at_connections_goes_on_after_a_failure(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failures = [error] * 3

    def failing(port: int, host: str) -> list[Connection]:
        if failures:
            raise failures.pop()
        return accepted_connections(port, host)

    monkeypatch.setattr(connections, "accepted_connections", failing)
    server = Server("grpc://127.0.0.1:0", token=None, actions=ACTIONS, limits=QUICK)
    with ExitStack() as stack:
        assert ended(*dialled(stack, port_of(server), 1))
    server.shutdown(5)
    assert not failures and "the connections" in logged(caplog, "defect")[0]["what"]


@pytest.mark.medium
def test_half_a_handshake_is_ended(tmp_path: Path) -> None:
    """Send no bytes, half a TLS hello, or a hello without the rest of the handshake."""
    make_certificate(tmp_path)
    chain, key = ((tmp_path / f"{name}.pem").read_bytes() for name in ("cert", "key"))
    server = Server(
        "grpc://127.0.0.1:0", token=None, certificate=Certificate(chain, key), actions=ACTIONS, limits=QUICK
    )
    hello = ssl.MemoryBIO()
    context = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), hello, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        context.do_handshake()
    client_hello = hello.read()
    with ExitStack() as stack:
        for text in (b"", client_hello[:20], client_hello):
            (connection,) = dialled(stack, port_of(server), 1)
            connection.sendall(text)
            assert ended(connection)
        assert echoed(server, chain)
    server.shutdown(5)


def test_a_token_that_is_unknown_is_no_call() -> None:
    server = Server("grpc://127.0.0.1:0", token="the-token-of-4711", actions=ACTIONS, limits=QUICK)
    with plain.connected(server.location, "another-token-4711") as (client, options):
        with pytest.raises(flight.FlightUnauthenticatedError):
            list(client.do_action(("echo", b"x"), options))
        wait_until(lambda: accepted_connections(port_of(server)) == [])
    server.shutdown(5)


@pytest.mark.medium
def test_an_idle_client_is_cut_off_and_does_not_notice() -> None:
    server = Server("grpc://127.0.0.1:0", token=None, actions=ACTIONS, limits=ConnectionLimits(idle_s=0.3))
    with plain.connected(server.location) as (client, _):
        for _ in range(2):
            assert len(list(client.do_action(("echo", b"x")))) == 1
            wait_until(lambda: accepted_connections(port_of(server)) == [])
    server.shutdown(5)


@pytest.mark.medium
def test_hundreds_of_connections_are_bounded_and_those_who_call_go_on(tmp_path: Path) -> None:
    """They leave open files for the store; a line that is open is not cut for them."""
    with el.open(tmp_path / "s", durability="os") as store:
        table = store.create_table("t", pa.schema([("id", pa.int64())]), ["id"])

        def echo(line: object) -> None:
            while (message := line.read()) is not None:  # pyright: ignore[reportAttributeAccessIssue]
                line.send(message)  # pyright: ignore[reportAttributeAccessIssue]

        exchanges = {b"echo": Exchange(lambda line, _: echo(line))}
        limits = ConnectionLimits(most=20, hello_s=60)
        server = Server("grpc://127.0.0.1:0", token=None, actions=ACTIONS, exchanges=exchanges, limits=limits)
        line = ClientStream(server.location, b"echo:", token=None, tls_roots=None)
        assert line.send(b"one") and line.read() == b"one"
        with ExitStack() as stack:
            dialled(stack, port_of(server), 300)
            wait_until(lambda: 0 < len(accepted_connections(port_of(server))) <= 20)
            table.upsert(pa.table({"id": [1]}))
            assert table.count() == 1 and echoed(server)
            assert line.send(b"two") and line.read() == b"two"
        line.close()
        server.shutdown(5)
    assert 0 < most_connections() <= 4_096


def test_who_is_cut_when_there_are_too_many() -> None:
    """Those that have made no call, the oldest first; then readers on whose connection nothing moves; no writer."""
    connections = [
        Connection(peer, idle_s) for peer, idle_s in (("new", 0), ("old", 0), ("r1", 5), ("r2", 9), ("w", 99))
    ]
    ages = {"new": 1.0, "old": 2.0, "r1": 50.0, "r2": 50.0, "w": 50.0}
    rank = {"r1": 1, "r2": 1, "w": 2}.get

    def cut(most: int, **limits: float) -> set[str]:
        return choose_excess(connections, ages, lambda peer: rank(peer) or 0, most, ConnectionLimits(**limits))  # pyright: ignore[reportArgumentType]

    assert [cut(most) for most in (5, 4, 3, 2, 1)] == [
        set(), {"old"}, {"old", "new"}, {"old", "new", "r2"}, {"old", "new", "r1", "r2"}
    ]  # fmt: skip
    assert cut(0) == {"old", "new", "r1", "r2"}
    assert cut(5, hello_s=2.0) == {"old"} and cut(5, idle_s=9.0) == {"r2", "w"}


def test_calls_are_bounded_by_who_may_write_and_by_connection() -> None:
    callers = Callers(ConnectionLimits(calls=3, calls_of_one=2))
    with ExitStack() as stack:
        for peer in ("a", "a", "b"):
            stack.enter_context(callers.calling(peer, may_write=False))
        for peer, may_write in (("a", True), ("c", False)):
            with pytest.raises(LimitExceeded, match="calls under way"), callers.calling(peer, may_write):
                pass
        with callers.calling("c", may_write=True):
            assert callers.rank("c") == 2
        callers.forget_all_but(set())
        assert [callers.rank(peer) for peer in "abc"] == [1, 1, 0], "those who call are known"
    with callers.calling("a", may_write=False):
        callers.forget_all_but(set())
    callers.forget_all_but(set())
    assert callers.rank("a") == 0


# ---- the port of the metrics ---------------------------------------------------------------------------------------


@pytest.fixture
def metrics(monkeypatch: pytest.MonkeyPatch) -> Iterator[MetricsPort]:
    monkeypatch.setattr(http_listener, "REQUEST_S", 0.5)
    port = MetricsPort("127.0.0.1:0", lambda: ["x 1"])
    yield port
    port.close()


@pytest.mark.medium
def test_requests_for_metrics_end_however_slowly_they_come(
    metrics: MetricsPort, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Single bytes now and then do not extend the time limit of a request."""
    port = int(metrics.location.split(":")[2].partition("/")[0])
    with ExitStack() as stack:
        silent, half, slow = dialled(stack, port, 3)
        half.sendall(b"GET /metrics HTTP/1.1\r\nHost: 127")
        with suppress(OSError):
            while True:
                slow.sendall(b"G")
                slow.settimeout(0.05)
                with suppress(TimeoutError):
                    if not slow.recv(1):
                        break
        assert ended(silent) and ended(half)
        monkeypatch.setattr(http_listener, "REQUEST_S", 60.0)
        assert urllib.request.urlopen(metrics.location).read() == b"x 1\n"


@pytest.mark.medium
def test_connections_to_the_metrics_are_bounded(metrics: MetricsPort, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_listener, "MAX_ARRIVING", 5)
    monkeypatch.setattr(http_listener, "REQUEST_S", 60.0)
    port = int(metrics.location.split(":")[2].partition("/")[0])
    with ExitStack() as stack:
        silent = dialled(stack, port, 100)
        for _ in range(3):
            assert urllib.request.urlopen(metrics.location).read() == b"x 1\n"
        assert all(map(ended, silent[:90])), "the oldest are ended"
        assert len(metrics._port.listener._arriving) <= 5
