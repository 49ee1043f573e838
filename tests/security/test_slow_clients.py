"""Ports of metrics and page under clients that send late or byte by byte, or read so: threads and files are bounded,
and who has signed in is answered meanwhile.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pyarrow as pa
import pytest

import epochlog as el
import http_flood
from certificates import make_certificate
from endpoints import TOKEN
from epochlog.exchange.transport import http_listener
from epochlog.exchange.transport.http_listener import HttpConnection, HttpListener
from epochlog.exchange.transport.metrics_http import MetricsPort
from epochlog.page import port
from epochlog.page.port import PagePort
from http_flood import TlsClient, body_of, get, open_files, opened, rest_of
from security.test_flooded_ports import FORM, SIGN_IN, cookie_of
from slow_clients import Manner, SlowCrowd, slow_clients
from wait_until import wait_until

pytestmark = [pytest.mark.local_only, pytest.mark.medium]
WRONG = SIGN_IN.replace(FORM.encode(), b"x" * len(FORM))
HEAD = len(WRONG) - len(FORM)
FORM_PAGE = get("/sign-in")
LARGE = "x" * (8 << 20)
"""More than the system keeps for a client that does not read."""
MANNERS = [
    Manner("late", b"", drips=0),
    Manner("head by bytes", FORM_PAGE),
    Manner("form by bytes", WRONG, at_once=HEAD),
    Manner("form late", WRONG, at_once=HEAD, drips=0),
    Manner("reads by bytes", FORM_PAGE, at_once=len(FORM_PAGE), reads=1),
]
TLS_MANNERS = [
    Manner("late after the handshake", b"", drips=0, tls=True),
    *(Manner(each.name, each.request, each.at_once, each.drips, each.reads, tls=True) for each in MANNERS[1:]),
]


class Page:
    """Page of a store with a token, and a reader who has signed in, from a host of its own over TLS."""

    def __init__(self, store: el.Store, certificate: Path | None) -> None:
        pem = None if certificate is None else tuple((certificate / f"{name}.pem").read_bytes() for name in PEM)
        self.port = PagePort(store._handle, "127.0.0.1:0", tokens=[TOKEN], certificate=pem)  # pyright: ignore[reportArgumentType]
        self.number = int(self.port.location.rstrip("/").rpartition(":")[2])
        self.certificate = None if certificate is None else certificate / "cert.pem"
        self.cookie = cookie_of(self.asked(SIGN_IN))

    def asked(self, request: bytes, host: str = "127.0.0.3") -> bytes:
        if self.certificate is None:
            return rest_of(opened(self.port.location, request))
        return rest_of(TlsClient(self.number, self.certificate, host).opened(request))

    def close(self) -> None:
        self.port.close()


PEM = ("cert", "key")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[el.Store]:
    with el.open(tmp_path / "s", durability="os") as store:
        store.create_table("orders", pa.schema([("id", pa.int64())]), ["id"])
        yield store


def check_slow_clients(page: Page, manner: Manner, *, clients_sign_in: bool = False) -> SlowCrowd:
    """Let 100 slow clients come, and come again; a reader who has signed in asks five times meanwhile."""
    if clients_sign_in:
        page.asked(SIGN_IN, "127.0.0.2")
    assert page.asked(get("/status.json", page.cookie)).startswith(b"HTTP/1.1 200 ")
    threads, files = threading.active_count(), open_files()
    with slow_clients(page.number, manner, most=100, certificate=page.certificate) as crowd:
        wait_until(lambda: crowd.came >= 100)
        for _ in range(5):
            answer = page.asked(get("/status.json", page.cookie))
            assert answer.startswith(b"HTTP/1.1 200 ") and b'"orders"' in answer
            assert threading.active_count() - threads <= 16 + 1, "threads"
            assert open_files() - files <= 16 + 4 * 32 + crowd.most_open, "files"
            before = crowd.steps
            wait_until(lambda before=before: crowd.steps > before + 2)
    wait_until(lambda: threading.active_count() <= threads)
    return crowd


@pytest.mark.parametrize("manner", MANNERS, ids=lambda manner: manner.name)
def test_a_reader_is_answered_beside_slow_clients(
    store: el.Store, manner: Manner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the reader's own host, as all are at a loopback address."""
    monkeypatch.setattr(port, "SIGN_IN", LARGE)
    with closing(Page(store, None)) as page:
        check_slow_clients(page, manner)


@pytest.fixture
def secure_page(store: el.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    monkeypatch.setattr(port, "SIGN_IN", LARGE)
    monkeypatch.setattr(port, "is_loopback", lambda host: False)  # the page is served with TLS to other hosts alone
    with closing(Page(store, make_certificate(tmp_path))) as page:
        yield page


@pytest.mark.parametrize("manner", TLS_MANNERS, ids=lambda manner: manner.name)
@pytest.mark.parametrize("clients_sign_in", [False, True], ids=["stranger", "known host"])
def test_over_tls_a_reader_is_answered_beside_slow_clients_of_another_host(
    secure_page: Page, manner: Manner, clients_sign_in: bool
) -> None:
    """Those of a host from which somebody has signed in kept all threads and all places: the reader was refused."""
    check_slow_clients(secure_page, manner, clients_sign_in=clients_sign_in)


@pytest.mark.parametrize("part", [0, 1, 2], ids=["nothing", "half", "whole"])
def test_over_tls_a_reader_is_answered_beside_slow_handshakes(secure_page: Page, part: int) -> None:
    hello = TlsClient(secure_page.number, secure_page.certificate or Path(), "127.0.0.2").hello()
    manner = Manner("handshake", hello, at_once=len(hello) * part // 2, drips=1 - part // 2)
    check_slow_clients(secure_page, manner, clients_sign_in=True)


@pytest.mark.parametrize("tls", [False, True])
def test_who_is_beyond_the_bound_gets_503_or_over_tls_a_clean_end(
    tls: bool, store: el.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer over TLS takes a handshake, and a handshake a thread: the connection ends without an answer, and
    without a reset, which it had where the system saw its request unread.
    """
    for name, most in (("REQUEST_S", 3600.0), ("GRACE_S", 3600.0), ("MAX_HANDLERS", 1), ("MAX_WAITING", 3)):
        monkeypatch.setattr(http_listener, name, most)
    monkeypatch.setattr(port, "is_loopback", lambda host: not tls)
    with closing(Page(store, make_certificate(tmp_path) if tls else None)) as page:
        request = WRONG[:HEAD]
        if tls:
            request = TlsClient(page.number, page.certificate or Path(), "127.0.0.2").hello()
        location = f"http://127.0.0.1:{page.number}/"
        listener = page.port._port.listener
        held = [opened(location, request)]
        wait_until(lambda: listener._handled)
        for waiting in range(1, 4):
            held.append(opened(location, request))
            wait_until(lambda waiting=waiting: len(listener._waiting[tls]) + len(listener._waiting[False]) >= waiting)
        for _ in range(20):
            with opened(location, request) as beyond:
                answer = b""
                while chunk := beyond.recv(1 << 16):  # no reset
                    answer += chunk
            assert answer.startswith(b"HTTP/1.1 503 ") if not tls else answer == b""
        for connection in held:
            connection.close()


def test_slow_readers_of_metrics_leave_threads_to_others(store: el.Store) -> None:
    """The text is read in the end, by whom the slow ones let pass."""
    lines = [LARGE[: 1 << 16]] * 128
    whole = "".join(f"{line}\n" for line in lines).encode()

    def is_read() -> bool:
        with suppress(AssertionError):  # an answer that has no last chunk
            return body_of(rest_of(opened(metrics.location, request))) == whole
        return False

    with closing(MetricsPort("127.0.0.1:0", lambda: lines)) as metrics:
        request, number = get("/metrics"), metrics._port.port
        threads, files = threading.active_count(), open_files()
        manner = Manner("reads by bytes", request, at_once=len(request), reads=1)
        with slow_clients(number, manner, most=40) as crowd:
            wait_until(lambda: crowd.came >= 40)
            for _ in range(3):
                wait_until(is_read)
                assert threading.active_count() - threads <= 16 + 1, "threads"
                assert open_files() - files <= 16 + 3 * 32 + crowd.most_open, "files"
        wait_until(lambda: threading.active_count() <= threads)


# ---- planted bugs --------------------------------------------------------------------------------------------------


def known_hosts_keep_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_listener, "KNOWN_HOST_GRACE_S", 3600.0)
    monkeypatch.setattr(http_listener, "REQUEST_S", 3600.0)


def all_hosts_are_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_listener, "Counter", lambda hosts: defaultdict[str, int](int))


def threads_without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    def let_wait(listener: HttpListener, connection: HttpConnection, head: bytes) -> None:
        listener._start(connection)

    monkeypatch.setattr(HttpListener, "_let_wait", let_wait)


@pytest.mark.planted
@pytest.mark.parametrize("plant", [known_hosts_keep_threads, all_hosts_are_equal, threads_without_bound])
def test_slow_clients_find_planted_bugs(
    plant: Callable[[pytest.MonkeyPatch], None], secure_page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    monkeypatch.setattr(http_flood, "WAIT_LIMIT_S", 2.0)
    with pytest.raises((AssertionError, OSError)):
        check_slow_clients(secure_page, TLS_MANNERS[3], clients_sign_in=True)
