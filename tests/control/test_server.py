"""The Flight server: who may call, what an error tells, what is refused unread, and that it ends in bounded time."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import flight

import epochlog as el
from epochlog.errors import AccessDenied, BadMessage, EpochlogError, InsecureServer, InvalidInput, JobNotFound
from epochlog.exchange.server import Certificate, Server
from epochlog.exchange.staged.messages import PULL, PUSH
from epochlog.exchange.transport import duplex as lines
from epochlog.exchange.transport.duplex import ClientStream, DuplexStream, Frame, call_options, connect, run_action
from epochlog.exchange.transport.services import Action, Exchange, Role
from wait_until import WAIT_LIMIT_S

TOKEN = "s3cret-of-the-test"


def echo(line: DuplexStream, command: bytes) -> None:
    while (message := line.read()) is not None:
        line.send(command + message)


def broken(_: bytes) -> bytes:
    raise ZeroDivisionError("inside of the server")


def missing(_: bytes) -> bytes:
    raise JobNotFound("there is no job 'x'; the store's jobs: none")


@pytest.fixture
def server() -> Iterator[Server]:
    actions = {"reverse": Action(lambda body: body[::-1]), "broken": Action(broken), "missing": Action(missing)}
    server = Server("grpc://127.0.0.1:0", token=TOKEN, exchanges={b"echo": Exchange(echo)}, actions=actions)
    yield server
    server.shutdown(5)


def call(server: Server, kind: str, body: bytes = b"", token: str | None = TOKEN) -> bytes:
    client = connect(server.location)
    try:
        return run_action(client, server.location, kind, body, token=token, timeout_s=WAIT_LIMIT_S)
    finally:
        client.close()


def test_actions_and_lines_by_name(server: Server) -> None:
    assert call(server, "reverse", b"abc") == b"cba"
    line = ClientStream(server.location, b"echo:>", token=TOKEN, tls_roots=None)
    assert line.send(b"one") and line.read() == b">one"
    assert line.send(b"two") and line.read() == b">two"
    line.close()
    assert not line.send(b"three")


def open_line(server: Server, token: str | None) -> None:
    """A line that is refused is told so at its opening or at its first read."""
    line = ClientStream(server.location, b"echo:", token=token, tls_roots=None)
    line.send(b"x")
    assert line.read() is None
    line.close()
    assert line.reason is not None
    raise line.reason


@pytest.mark.parametrize("token", [None, "wrong", TOKEN + "x", TOKEN[:-1], TOKEN.upper()])
def test_nobody_without_the_token(server: Server, token: str | None, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(AccessDenied):
        call(server, "reverse", token=token)
    with pytest.raises(AccessDenied):
        open_line(server, token)
    assert TOKEN not in caplog.text


def test_every_call_of_flight_asks_for_the_token_and_tells_no_traceback(server: Server) -> None:
    for token, wanted in ((None, "token"), (TOKEN, "this server")):
        for name, made in calls(server, token).items():
            with pytest.raises((flight.FlightError, pa.ArrowException, OSError)) as error:
                made()
            text = str(error.value)
            assert wanted in text, name
            assert "Traceback" not in text and "File " not in text, name


def calls(server: Server, token: str | None) -> dict[str, Callable[[], Any]]:
    client, options = connect(server.location), call_options(token, 5)
    about = flight.FlightDescriptor.for_command(b"x")
    return {
        "get": lambda: client.do_get(flight.Ticket(b"x"), options).read_all(),
        "info": lambda: client.get_flight_info(about, options),
        "schema": lambda: client.get_schema(about, options),
        "put": lambda: client.do_put(about, pa.schema([]), options)[1].read(),  # noqa: PLW0108
        "exchange": lambda: client.do_exchange(about, options)[1].read_chunk(),  # noqa: PLW0108
        "action": lambda: list(client.do_action(("x", b""), options)),
    }


def test_errors_keep_their_type_and_tell_nothing_of_the_inside(server: Server) -> None:
    with pytest.raises(JobNotFound, match=r"^there is no job 'x'; the store's jobs: none$"):
        call(server, "missing")
    with pytest.raises(EpochlogError, match="own log") as error:
        call(server, "broken")
    assert "inside" not in str(error.value) and "Zero" not in str(error.value)
    with pytest.raises(InvalidInput, match="no action"):
        call(server, "unheard")
    with pytest.raises(InvalidInput, match="at most"):
        call(server, "reverse", bytes((1 << 20) + 1))


def test_the_read_token_reads_and_does_not_write() -> None:
    actions = {"look": Action(lambda body: b"seen", Role.READ), "change": Action(lambda body: b"changed")}
    exchanges = {b"look": Exchange(echo, Role.READ), b"change": Exchange(echo)}
    server = Server("grpc://127.0.0.1:0", token=TOKEN, read_token="r3ad", exchanges=exchanges, actions=actions)
    assert call(server, "look", token="r3ad") == call(server, "look") == b"seen"
    assert call(server, "change") == b"changed"
    with pytest.raises(AccessDenied, match="may write"):
        call(server, "change", token="r3ad")
    with pytest.raises(AccessDenied):
        call(server, "look", token="r3ad" + "x")
    for name, token, let_in in ((b"look:", "r3ad", True), (b"change:", "r3ad", False), (b"change:", TOKEN, True)):
        line = ClientStream(server.location, name, token=token, tls_roots=None)
        line.send(b"x")
        assert line.read() == (b"x" if let_in else None)
        assert let_in or isinstance(line.reason, AccessDenied)
        line.close()
    client, about = connect(server.location), flight.FlightDescriptor.for_path("t")
    with pytest.raises(flight.FlightError, match="AccessDenied"):
        client.do_put(about, pa.schema([]), call_options("r3ad", 5))[1].read()
    client.close()
    server.shutdown(5)


@pytest.mark.parametrize(("token", "read_token"), [(None, "r"), (TOKEN, TOKEN), (TOKEN, ""), (TOKEN, "a\nb")])
def test_which_read_tokens_are_refused(token: str | None, read_token: str) -> None:
    with pytest.raises(InvalidInput):
        Server("grpc://127.0.0.1:0", token=token, read_token=read_token)


def test_rows_travel_on_a_line_that_takes_them() -> None:
    def doubled(line: DuplexStream, command: bytes) -> None:
        began = False
        while (parcel := line.read_frame()) is not None:
            if parcel.rows is not None:
                began = began or line.begin(parcel.rows.schema)
                line.send_rows(pa.record_batch({"a": pc.multiply(parcel.rows["a"], 2)}), parcel.message or b"")
            else:
                line.send(b"only " + (parcel.message or b""))

    server = Server("grpc://127.0.0.1:0", token=None, exchanges={b"double": Exchange(doubled)})
    line = ClientStream(server.location, b"double:", token=None, tls_roots=None)
    rows = pa.record_batch({"a": [1, 2]})
    assert line.begin(rows.schema)
    assert line.send_rows(rows, b"m")
    assert line.read_frame() == Frame(pa.record_batch({"a": [2, 4]}), b"m")
    assert line.send(b"words") and line.read_frame() == Frame(None, b"only words")
    assert line.send_rows(rows) and line.read_frame() == Frame(pa.record_batch({"a": [2, 4]}), None)
    line.close()
    server.shutdown(5)


def rows(writer: Any) -> None:
    writer.begin(pa.schema([("a", pa.int64())]))
    writer.write_batch(pa.record_batch({"a": [1]}))


@pytest.mark.parametrize("spoil", [rows, lambda writer: writer.write_metadata(bytes((32 << 20) + 1))])
def test_rows_and_large_messages_are_refused(server: Server, spoil: Callable[[Any], None]) -> None:
    client = connect(server.location)
    writer, reader = client.do_exchange(flight.FlightDescriptor.for_command(b"echo:"), call_options(TOKEN))
    spoil(writer)
    with pytest.raises(flight.FlightError, match="BadMessage"):
        reader.read_chunk()
    client.close()
    line = ClientStream(server.location, b"echo:", token=TOKEN, tls_roots=None)
    with pytest.raises(BadMessage):
        line.send(bytes((32 << 20) + 1))
    line.close()


@pytest.mark.parametrize(
    "location", ["grpc://0.0.0.0:0", "grpc://192.0.2.1:0", "grpc://[::]:0", "grpc://example.org:0"]
)
def test_an_address_that_others_reach_needs_both(location: str) -> None:
    certificate = Certificate(b"chain", b"key")
    for token, shown in ((None, None), (TOKEN, None), (None, certificate)):
        with pytest.raises(InsecureServer):
            Server(location, token=token, certificate=shown)


@pytest.mark.parametrize(
    "location",
    ["", "127.0.0.1:0", "http://127.0.0.1:0", "grpc://127.0.0.1", "grpc://:0", "grpc://127.0.0.1:99999", None],
)
def test_what_is_no_location(location: Any) -> None:
    with pytest.raises(InvalidInput):
        Server(location, token=TOKEN)


@pytest.mark.parametrize("token", ["", "a\nb", "é", 5])
def test_what_is_no_token(token: Any) -> None:
    with pytest.raises(InvalidInput):
        Server("grpc://127.0.0.1:0", token=token)
    with pytest.raises(InvalidInput):
        call_options(token)


@pytest.mark.medium
def test_a_shutdown_is_bounded_though_lines_are_open_and_a_call_waits(server: Server) -> None:
    entered, release = threading.Event(), threading.Event()

    def stuck(line: DuplexStream, command: bytes) -> None:
        line.closed.clear()
        entered.set()
        line.read()
        release.wait(WAIT_LIMIT_S)

    other = Server("grpc://127.0.0.1:0", token=None, exchanges={b"echo": Exchange(echo), b"stuck": Exchange(stuck)})
    lines = [ClientStream(other.location, name, token=None, tls_roots=None) for name in (b"echo:", b"stuck:")]
    lines[0].send(b"x")
    assert lines[0].read() == b"x"
    assert entered.wait(WAIT_LIMIT_S)
    ended = threading.Thread(target=other.shutdown, args=(0.5,))
    ended.start()
    assert lines[0].read() is None and lines[1].read() is None  # though their client did nothing
    ended.join(WAIT_LIMIT_S)
    assert not ended.is_alive()
    release.set()
    for line in lines:
        line.close()


FROZEN = """
import sys
from epochlog.exchange.transport.duplex import ClientStream
line = ClientStream(sys.argv[1], b"echo:", token=None, tls_roots=None)
line.send(b"x"); line.read(); print("up", flush=True); line.read(); print("cut", flush=True)
line.close()
"""


@pytest.mark.medium
def test_a_shutdown_waits_for_no_frozen_client() -> None:
    import signal

    server = Server("grpc://127.0.0.1:0", token=None, exchanges={b"echo": Exchange(echo)})
    child = subprocess.Popen([sys.executable, "-c", FROZEN, server.location], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline() == "up\n"
    child.send_signal(signal.SIGSTOP)
    ended = threading.Thread(target=server.shutdown, args=(5,))
    ended.start()
    ended.join(WAIT_LIMIT_S)
    assert not ended.is_alive()
    child.send_signal(signal.SIGCONT)
    assert child.stdout.readline() == "cut\n"
    assert child.wait(WAIT_LIMIT_S) == 0


def test_a_port_that_is_taken_and_settings_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    with el.open(tmp_path / "s", durability="os") as store, el.serve(store) as server:
        with pytest.raises(el.WriteFailed, match="choose another port"):
            el.serve(store, server.location)
        for wrong in ("redis://127.0.0.1:6379", 5, {"heartbeat_ms": 1}):
            with pytest.raises(el.InvalidInput, match="CoordinatorSettings"):
                el.serve(store, control=wrong)  # pyright: ignore[reportArgumentType]
        with pytest.raises(el.InvalidInput, match="control="):
            el.serve(store, stage_counter=el.CoordinatorSettings())  # pyright: ignore[reportArgumentType]
        for heartbeat, timeout in ((0, 10), (-1, 10), (20, 10), (True, 10), (1, "x")):
            with pytest.raises(el.InvalidInput, match="heartbeat_ms"):
                el.CoordinatorSettings(heartbeat_ms=heartbeat, timeout_ms=timeout)  # pyright: ignore[reportArgumentType]


def test_what_a_worker_is_given_is_checked_before_it_waits(tmp_path: Path) -> None:
    with el.open(tmp_path / "s", durability="os") as store, el.serve(store) as server:
        for wrong in ("nowhere", "http://127.0.0.1:5", "grpc://:5", "grpc://127.0.0.1", "grpc://127.0.0.1:x", None):
            with pytest.raises(el.InvalidInput, match="location"):
                el.Worker(wrong, store)  # pyright: ignore[reportArgumentType]
        with el.Worker(server.location, store) as worker:
            with pytest.raises(el.InvalidInput, match="load name"):
                worker.attach("Not a name", index=0, of=1, tables=["t"])
            for index, of in ((True, 2), (0, True), (2, 2), (-1, 2), (0, 0)):
                with pytest.raises(el.InvalidInput, match="index"):
                    worker.attach("ld", index=index, of=of, tables=["t"])


@pytest.mark.parametrize("name", [b"control", PUSH, PULL])
def test_a_line_that_is_opened_and_says_nothing_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: bytes
) -> None:
    monkeypatch.setattr(lines, "FIRST_MESSAGE_S", 0.2)
    with el.open(tmp_path / "store", durability="os") as store, el.serve(store, token=TOKEN) as server:
        silent = ClientStream(server.location, name + b":", token=TOKEN, tls_roots=None)
        assert silent.read() is None  # else it would wait for ever
        silent.close()
