"""HTTP port under clients who go, wait, say nothing or come in crowds: threads, files and work are bounded."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest

import wait_until as wait_until_module
from certificates import make_certificate
from epochlog.exchange.transport import http_listener, shared_answers
from epochlog.exchange.transport.http_listener import HttpConnection, HttpListener
from epochlog.exchange.transport.http_port import HttpHandler, HttpPort
from epochlog.exchange.transport.metrics_http import MetricsPort
from epochlog.exchange.transport.shared_answers import SharedAnswers
from epochlog.store.env.clock import monotonic_s
from http_flood import TlsClient, address_of, ask_and_go, body_of, get, open_files, opened, rest_of
from logged_events import logged
from wait_until import WAIT_LIMIT_S, wait_until

pytestmark = pytest.mark.local_only
METRICS = get("/metrics")


class Gate:
    """Text that takes as long to make as the test wants."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.made = 0

    def render(self) -> list[str]:
        self.made += 1
        assert self.open.wait(WAIT_LIMIT_S)
        return ["x 1"]


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open.set()


@pytest.fixture
def metrics(gate: Gate) -> Iterator[MetricsPort]:
    with closing(MetricsPort("127.0.0.1:0", gate.render)) as port:
        yield port


def wait_until_all_came(metrics: MetricsPort) -> None:
    """Wait until the listener has accepted a new connection, and so all before it: the system keeps their order."""
    with socket.create_connection(address_of(metrics.location), WAIT_LIMIT_S) as last:
        arriving = metrics._port.listener._arriving
        wait_until(lambda: any(each.address == last.getsockname() for each in list(arriving.values())))


def check_gone_requests(gate: Gate, metrics: MetricsPort) -> None:
    threads, files = threading.active_count(), open_files()
    for _ in range(300):
        ask_and_go(metrics.location, METRICS)
    wait_until_all_came(metrics)
    assert threading.active_count() - threads <= 16, "threads"
    assert open_files() - files <= 16 + 32 + 32, "files"
    wait_until(lambda: threading.active_count() - threads <= 1)  # it makes the text that all share
    wait_until(lambda: open_files() - files <= 1)
    gate.open.set()
    wait_until(lambda: threading.active_count() <= threads and open_files() <= files)


@pytest.mark.medium
def test_requests_whose_clients_have_gone_keep_neither_threads_nor_files(gate: Gate, metrics: MetricsPort) -> None:
    """Each kept both until its text was made: 28 s of a closed loop took all files of the process."""
    check_gone_requests(gate, metrics)


@pytest.mark.planted
def test_unnoticed_ends_of_clients_are_found(gate: Gate, metrics: MetricsPort, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HttpConnection, "has_hung_up", lambda connection: False)
    monkeypatch.setattr(http_listener, "REQUEST_S", 3600.0)
    monkeypatch.setattr(wait_until_module, "WAIT_LIMIT_S", 0.5)
    with pytest.raises(AssertionError):
        check_gone_requests(gate, metrics)


def test_one_text_serves_all_who_wait_and_the_rest_are_told_to_come_later(gate: Gate, metrics: MetricsPort) -> None:
    wait_for_answer = [opened(metrics.location, METRICS) for _ in range(http_listener.MAX_HANDLERS)]
    wait_until(lambda: len(metrics._port.listener._handled) == len(wait_for_answer))
    wait_for_thread = [opened(metrics.location, METRICS) for _ in range(http_listener.MAX_WAITING)]
    wait_until(lambda: len(metrics._port.listener._waiting[False]) == len(wait_for_thread))
    refused = [rest_of(opened(metrics.location, METRICS)) for _ in range(5)]
    assert all(answer.startswith(b"HTTP/1.1 503 ") and b"\r\nRetry-After: 1\r\n" in answer for answer in refused)
    gate.open.set()
    for connection in wait_for_answer + wait_for_thread:
        assert rest_of(connection).endswith(b"x 1\n")
    assert gate.made == 1


def test_a_text_is_shared_for_a_second_or_for_as_long_as_it_took() -> None:
    now_s, took_s, made = 0.0, 0.0, 0

    def make() -> Iterator[bytes]:
        nonlocal now_s, made
        now_s, made = now_s + took_s, made + 1
        yield b"%d" % made

    def ask(at_s: float, key: str = "a") -> int:
        nonlocal now_s
        now_s = at_s
        return int(b"".join(answers.get(key, make, lambda: False)))

    answers = SharedAnswers(1, lambda: now_s)
    assert [ask(at_s) for at_s in (0.0, 0.9, 1.0, 1.9, 2.0)] == [1, 1, 2, 2, 3]
    assert ask(2.1, "b") == 4 and ask(2.1) == 3
    took_s = 7.0
    assert [ask(at_s) for at_s in (10.0, 17.5, 23.9, 24.0)] == [5, 5, 5, 6]
    assert list(answers._answers) == ["a"], "no key is kept for ever"


def test_an_error_ends_one_request_and_the_next_makes_the_text() -> None:
    answers = SharedAnswers(1)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            answers.get("a", lambda: iter([b"%d" % (1 // 0)]), lambda: False)
    assert list(answers.get("a", lambda: iter([b"x"]), lambda: False)) == [b"x"]


# ---- the listener by itself ----------------------------------------------------------------------------------------


class Echo:
    """Listener whose handlers read to the end of the request, and send its first line. Known requests begin with K."""

    def __init__(self) -> None:
        self.answered: list[bytes] = []
        self.go_on = threading.Event()
        self.go_on.set()
        self.listener = HttpListener("127.0.0.1", 0, self.respond, "an echo", is_known=lambda head: head[:1] == b"K")
        self.location = f"http://127.0.0.1:{self.listener.port}/"

    def respond(self, connection: HttpConnection) -> None:
        connection.socket.settimeout(WAIT_LIMIT_S)
        request = b""
        while b"END" not in request and (chunk := connection.socket.recv(1 << 16)):
            request += chunk
        connection.await_client(None)
        assert self.go_on.wait(WAIT_LIMIT_S)
        self.answered.append(request)
        connection.socket.sendall(request.splitlines()[0])


@pytest.fixture
def echo() -> Iterator[Echo]:
    echo = Echo()
    yield echo
    echo.go_on.set()
    echo.listener.close()


def test_known_clients_go_first_and_are_not_refused(echo: Echo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_listener, "MAX_HANDLERS", 1)
    monkeypatch.setattr(http_listener, "MAX_WAITING", 3)
    echo.go_on.clear()
    strangers = [opened(echo.location, b"S%d\n\nEND" % number) for number in range(1)]
    wait_until(lambda: echo.listener._handled)
    strangers += [opened(echo.location, b"S%d\n\nEND" % number) for number in range(1, 4)]
    wait_until(lambda: len(echo.listener._waiting[False]) == 3)
    assert rest_of(opened(echo.location, b"S4\n\nEND")).startswith(b"HTTP/1.1 503 ")
    known = [opened(echo.location, b"K%d\n\nEND" % number) for number in range(3)]
    wait_until(lambda: len(echo.listener._waiting[True]) == 3)
    echo.go_on.set()
    answers = [rest_of(connection) for connection in strangers + known]
    assert answers == [b"S0", b"S1", b"S2", b"S3", b"K0", b"K1", b"K2"]
    assert [request[:2] for request in echo.answered[:4]] == [b"S0", b"K0", b"K1", b"K2"]


def test_a_client_who_keeps_a_thread_waiting_loses_it_to_others(echo: Echo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_listener, "MAX_HANDLERS", 2)
    monkeypatch.setattr(http_listener, "REQUEST_S", 3600.0)
    slow = [opened(echo.location, b"%s\n\n" % name) for name in (b"S", b"K")]
    wait_until(lambda: len(echo.listener._handled) == 2)
    assert rest_of(opened(echo.location, b"S1\n\nEND")) == b"S1"
    assert rest_of(slow[0]) == b""
    slow[1].sendall(b"END")
    assert rest_of(slow[1]) == b"K", "a known client keeps his"


def test_a_client_who_reads_nothing_loses_the_thread_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_listener, "MAX_HANDLERS", 1)
    monkeypatch.setattr(http_listener, "REQUEST_S", 3600.0)
    line = "x" * 1023
    lines = [line] * (1 << 15)
    with closing(MetricsPort("127.0.0.1:0", lambda: lines)) as port:
        slow = opened(port.location, METRICS)
        assert slow.recv(1) == b"H"
        assert body_of(rest_of(opened(port.location, METRICS))) == f"{line}\n".encode() * len(lines)
        assert len(rest_of(slow)) < len(lines) * 1024


def test_a_handler_that_works_is_not_aborted_however_long(echo: Echo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_listener, "MAX_HANDLERS", 1)
    monkeypatch.setattr(http_listener, "REQUEST_S", 3600.0)
    echo.go_on.clear()
    working = opened(echo.location, b"S1\n\nEND")
    wait_until(lambda: echo.listener._handled)
    waiting = [opened(echo.location, b"S%d\n\nEND" % number) for number in range(2, 5)]
    wait_until(lambda: len(echo.listener._waiting[False]) == 3)
    looks = 0

    def later_s() -> float:
        nonlocal looks
        looks += 1
        return monotonic_s() + 60

    monkeypatch.setattr(http_listener, "monotonic_s", later_s)
    wait_until(lambda: looks > 3)
    echo.go_on.set()
    assert [rest_of(connection) for connection in [working, *waiting]] == [b"S1", b"S2", b"S3", b"S4"]


@pytest.mark.parametrize("sends_later", [False, True])
def test_the_time_in_which_an_answer_is_made_is_not_the_clients(
    sends_later: bool, gate: Gate, metrics: MetricsPort, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text of 10,000 tables took 12 s, and the connection ended after 5."""
    asking = opened(metrics.location, METRICS)
    wait_until(lambda: gate.made)
    late = opened(metrics.location, METRICS) if sends_later else asking
    handled = metrics._port.listener._handled
    wait_until(
        lambda: [each._awaited for each in list(handled)] == [None] * (1 + sends_later)
    )  # both wait for the text
    looks = 0

    def later_s() -> float:
        nonlocal looks
        looks += 1
        return monotonic_s() + 2 * http_listener.REQUEST_S

    monkeypatch.setattr(http_listener, "monotonic_s", later_s)
    wait_until(lambda: looks > 3)
    gate.open.set()
    assert rest_of(asking).endswith(b"x 1\n") and (late is asking or rest_of(late).endswith(b"x 1\n"))


def test_who_says_nothing_takes_no_thread(echo: Echo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_listener, "REQUEST_S", 3600.0)
    monkeypatch.setattr(http_listener, "MAX_ARRIVING", 4)
    silent = [opened(echo.location, b"GET / HTTP/1.1\r\n"[: number % 17]) for number in range(40)]
    assert rest_of(opened(echo.location, b"S\n\nEND")) == b"S"
    assert all(rest_of(connection) == b"" for connection in silent[:30]), "the oldest are ended"
    silent[-1].sendall(b"\n\nEND")
    assert rest_of(silent[-1])


def test_late_requests_end_wherever_they_are(echo: Echo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_listener, "REQUEST_S", 0.2)
    monkeypatch.setattr(http_listener, "ANSWER_S", 0.2)
    monkeypatch.setattr(http_listener, "MAX_HANDLERS", 1)
    echo.go_on.clear()
    handled = opened(echo.location, b"S1\n\nEND")
    wait_until(lambda: echo.listener._handled)
    waiting, arriving = opened(echo.location, b"S2\n\nEND"), opened(echo.location, b"S3")
    assert rest_of(handled) == b"" and rest_of(arriving) == b""
    assert rest_of(waiting).startswith(b"HTTP/1.1 503 ")


@pytest.mark.parametrize("error", [OSError(24, "no file"), RuntimeError("a defect")])
def test_a_listener_goes_on_after_a_failure(
    error: Exception, echo: Echo, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failures = [error] * 2

    def fail(connection: socket.socket) -> bytes | None:
        if failures:
            raise failures.pop()
        return peek(connection)

    peek = http_listener._peek
    monkeypatch.setattr(http_listener, "_peek", fail)
    assert rest_of(opened(echo.location, b"S\n\nEND")) == b""
    assert rest_of(opened(echo.location, b"S\n\nEND")) == b""
    assert rest_of(opened(echo.location, b"S\n\nEND")) == b"S"
    assert "an echo" in logged(caplog, "defect")[0]["what"]


def test_a_listener_goes_on_where_the_system_gives_no_thread(echo: Echo, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:

        def refuse(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        patch.setattr(threading.Thread, "start", refuse)
        assert rest_of(opened(echo.location, b"S\n\nEND")).startswith(b"HTTP/1.1 503 ")
    assert rest_of(opened(echo.location, b"S\n\nEND")) == b"S"


# ---- TLS -----------------------------------------------------------------------------------------------------------


class KnowingHandler(HttpHandler):
    """Handler that knows all who are answered."""

    def answer(self, path: str, query: str) -> None:
        self.accepted.note_known()
        self.send_page(path.encode(), "text/plain")


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[HttpPort]:
    folder = make_certificate(tmp_path)
    certificate = (folder / "cert.pem").read_bytes(), (folder / "key.pem").read_bytes()
    with closing(HttpPort("127.0.0.1:0", KnowingHandler, "a test", certificate)) as port:
        yield port


def test_half_of_a_handshake_takes_no_thread(secure: HttpPort, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first byte took one, so that a few clients shut out all others."""
    monkeypatch.setattr(http_listener, "REQUEST_S", 3600.0)
    client, listener = TlsClient(secure.port, tmp_path / "cert.pem", "127.0.0.1"), secure.listener
    hello = client.hello()
    halves = [client.connect(hello[: len(hello) * part // 20]) for part in range(20)]
    wait_until(lambda: len(listener._arriving) == len(halves))
    assert rest_of(client.opened(get("/a"))).endswith(b"/a")
    assert rest_of(client.connect(b"GET / HTTP/1.1\r\n\r\n")) != b"x", "no handshake: it ends"
    wait_until(lambda: not listener._handled)
    assert len(listener._arriving) == len(halves)
    for half in halves:
        half.close()
    wait_until(lambda: not listener._arriving)


def check_known_host_goes_first(secure: HttpPort, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_listener, "REQUEST_S", 3600.0)
    for name, most in (("MAX_HANDLERS", 1), ("MAX_WAITING", 3), ("MAX_ARRIVING", 4)):
        monkeypatch.setattr(http_listener, name, most)
    known, *strangers = (TlsClient(secure.port, folder / "cert.pem", f"127.0.0.{host}") for host in range(1, 42))
    assert rest_of(known.opened(get("/a"))).endswith(b"/a")
    hello, arriving = known.hello(), known.connect(b"\x16")
    crowd = [stranger.connect(sent) for stranger, sent in zip(strangers, [hello, b""] * 20, strict=True)]
    assert rest_of(known.opened(get("/b"))).endswith(b"/b")
    arriving.sendall(hello[1:])
    assert arriving.recv(1) == hello[:1], "no stranger has ended it"
    for each in crowd:
        each.close()


def test_over_tls_hosts_of_known_clients_go_before_strangers(
    secure: HttpPort, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_known_host_goes_first(secure, tmp_path, monkeypatch)


@pytest.mark.planted
def test_unknown_hosts_of_known_clients_are_found(
    secure: HttpPort, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HttpListener, "note_known", lambda listener, host: None)
    with pytest.raises((AssertionError, OSError)):
        check_known_host_goes_first(secure, tmp_path, monkeypatch)


def test_a_bounded_number_of_hosts_is_known(echo: Echo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_listener, "MAX_KNOWN_HOSTS", 3)
    for host in ("a", "b", "c", "a", "d"):
        echo.listener.note_known(host)
    assert [host for host in "abcde" if echo.listener.knows_host(host)] == ["a", "c", "d"]


# ---- clients of all kinds ------------------------------------------------------------------------------------------

MANNERS = ("asks", "asks and goes", "resets", "half a request", "nothing", "ends its side", "reads nothing", "noise")


class Crowd:
    """Clients of all manners. honest: connections of those who wait for an answer; idle: open ones of the others."""

    def __init__(self, location: str, rng: random.Random) -> None:
        self.location, self.rng = location, rng
        self.honest: list[socket.socket] = []
        self.idle: list[socket.socket] = []

    def meet(self, manner: str) -> None:
        """Behave as one client."""
        noise = self.rng.randbytes(self.rng.randrange(1, 3_000))
        request = {"half a request": METRICS[:20], "nothing": b"", "noise": noise}.get(manner, METRICS)
        connection = opened(self.location, request)
        if manner == "resets":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        if manner in ("ends its side", "noise"):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_WR)
        if manner in ("asks", "ends its side"):
            self.honest.append(connection)
        elif manner in ("asks and goes", "resets") or self.rng.random() < 0.5:
            connection.close()
        else:
            self.idle.append(connection)

    def close(self) -> None:
        for connection in self.honest + self.idle:
            connection.close()


def check_crowd(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let clients of all manners meet a port whose text is made now and then. Check at each step that its threads and
    files are bounded and that one text is made at a time, and at the end that it has let go of all and answers.
    """
    rng = random.Random(seed)
    for name, most in (("MAX_HANDLERS", 3), ("MAX_WAITING", 4), ("MAX_ARRIVING", 5)):
        monkeypatch.setattr(http_listener, name, most)
    monkeypatch.setattr(shared_answers, "FRESH_S", 0.0)
    making = most_making = 0
    go_on, over = threading.Semaphore(0), threading.Event()

    def render() -> list[str]:
        nonlocal making, most_making
        making += 1
        most_making = max(most_making, making)
        while not over.is_set() and not go_on.acquire(timeout=0.05):
            pass
        making -= 1
        return ["x" * 1023] * rng.choice((1, 400))

    seen: set[HttpConnection] = set()
    look_at = HttpListener._look_at

    def look_and_count(listener: HttpListener, connection: HttpConnection) -> None:
        look_at(listener, connection)
        seen.add(connection)

    monkeypatch.setattr(HttpListener, "_look_at", look_and_count)
    threads, files = threading.active_count(), open_files()
    with ExitStack() as stack:
        port = stack.enter_context(closing(MetricsPort("127.0.0.1:0", render)))
        crowd = stack.enter_context(closing(Crowd(port.location, rng)))
        stack.callback(over.set)
        own = open_files() - files
        for met in range(1, 61):
            crowd.meet(rng.choice(MANNERS))
            wait_until(lambda met=met: len(seen) == met)
            if rng.random() < 0.1:
                go_on.release()
            assert threading.active_count() - threads <= 1 + 3, "threads"
            assert open_files() - files - own - len(crowd.honest + crowd.idle) <= 3 + 4 + 5 + 1, "files"
            assert most_making <= 1
        over.set()
        answers = [rest_of(connection) for connection in crowd.honest]
        assert all(not answer or answer.split()[1] in (b"200", b"503") for answer in answers), answers
        crowd.close()
        assert b" 200 " in rest_of(opened(port.location, METRICS))[:20]
        wait_until(lambda: threading.active_count() - threads <= 1 and open_files() - files <= own)
    assert open_files() <= files


@pytest.mark.medium
@pytest.mark.parametrize("seed", range(3))
def test_any_crowd_is_bounded(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    check_crowd(seed, monkeypatch)


def threads_without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    def let_wait(listener: HttpListener, connection: HttpConnection, head: bytes) -> None:
        listener._start(connection)

    monkeypatch.setattr(HttpListener, "_let_wait", let_wait)


def waiting_without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    def let_wait(listener: HttpListener, connection: HttpConnection, head: bytes) -> None:
        listener._waiting[False].append(connection)

    monkeypatch.setattr(HttpListener, "_let_wait", let_wait)


def each_its_own_text(monkeypatch: pytest.MonkeyPatch) -> None:
    def get_alone(answers: SharedAnswers, key: object, make: Any, has_hung_up: object) -> Iterator[bytes]:
        return make()

    monkeypatch.setattr(SharedAnswers, "get", get_alone)


def connections_left_open(monkeypatch: pytest.MonkeyPatch) -> list[HttpConnection]:
    kept: list[HttpConnection] = []

    def close(connection: HttpConnection) -> None:
        kept.append(connection)
        connection.abort()

    monkeypatch.setattr(HttpConnection, "close", close)
    return kept


@pytest.mark.medium
@pytest.mark.planted
@pytest.mark.parametrize(
    "plant", [threads_without_bound, waiting_without_bound, each_its_own_text, connections_left_open]
)
def test_a_crowd_finds_planted_bugs(plant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = plant(monkeypatch)
    with pytest.raises(AssertionError):
        check_crowd(0, monkeypatch)
    monkeypatch.undo()
    del kept  # freed with the planted method, its sockets let Python 3.11 run other threads, which call what is freed
