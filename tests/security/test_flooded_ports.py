"""Ports of metrics and page under a flood: the process keeps files and threads for its writes, and who has signed in is
answered.
"""

from __future__ import annotations

import resource
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import urlencode

import pyarrow as pa
import pytest

import epochlog as el
from certificates import make_certificate
from endpoints import ROWS, TOKEN
from epochlog.page import port
from epochlog.page.port import PagePort
from epochlog.serving import StoreServer
from http_flood import TlsClient, flooding, get, open_files, opened, rest_of
from wait_until import WAIT_LIMIT_S, wait_until

pytestmark = [pytest.mark.local_only, pytest.mark.medium]
FORM = urlencode({"token": TOKEN})
SIGN_IN = f"POST /sign-in HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(FORM)}\r\n\r\n{FORM}".encode()


def cookie_of(answer: bytes) -> str:
    """Return the cookie of the answer to a sign-in."""
    return answer.partition(b"Set-Cookie: ")[2].partition(b";")[0].decode()


@contextmanager
def most_files(further: int) -> Iterator[None]:
    """Inside, this process may open so many further files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_files() + further, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_writes_and_signed_in_readers_go_on_beside_a_flood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A closed loop of requests for a text that takes long; each request kept a thread and a file until its end, and
    every write of the process failed.
    """
    text_is_made = threading.Event()

    def slow_text(server: StoreServer) -> str:
        assert text_is_made.wait(WAIT_LIMIT_S)
        return metrics(server)

    metrics = StoreServer.metrics
    monkeypatch.setattr(StoreServer, "metrics", slow_text)
    with el.open(tmp_path / "s", durability="os") as store:
        table = store.create_table("orders", pa.schema([("id", pa.int64()), ("v", pa.string())]), ["id"])
        with el.serve(store, token=TOKEN, metrics="127.0.0.1:0", ui="127.0.0.1:0") as server:
            page, texts = str(server.ui_location), str(server.metrics_location)
            cookie = cookie_of(rest_of(opened(page, SIGN_IN)))
            table.upsert(ROWS)
            assert rest_of(opened(page, get("/status.json", cookie)))
            threads, files = threading.active_count(), open_files()
            with most_files(250), flooding(texts, f"{page}status.json") as flood:
                for asked in range(300, 2_100, 300):
                    wait_until(lambda asked=asked: flood.asked > asked)
                    table.upsert(ROWS)
                    before = flood.asked
                    answer = rest_of(opened(page, get("/status.json", cookie)))
                    assert answer.startswith(b"HTTP/1.1 200 ") and b'"orders"' in answer
                    wait_until(lambda before=before: flood.asked > before)
                text_is_made.set()
                answer = rest_of(opened(texts, get("/metrics")))
                assert b'epochlog_table_committed_epoch{table="orders"}' in answer
            assert flood.most_threads - threads <= 2 + 2 * 16, "threads"
            assert flood.most_files - files <= 2 + 2 * (16 + 32 + 32), "files"
            wait_until(lambda: threading.active_count() <= threads + 2 and open_files() <= files + 2)
        assert table.history().num_rows == 7


def test_a_signed_in_reader_is_answered_beside_floods_from_another_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over TLS. Clients with half of a handshake took all threads, and four of five requests of the reader failed."""
    monkeypatch.setattr(port, "is_loopback", lambda host: False)  # the page is served with TLS to other hosts alone
    folder = make_certificate(tmp_path)
    certificate = (folder / "cert.pem").read_bytes(), (folder / "key.pem").read_bytes()
    with el.open(tmp_path / "s", durability="os") as store:
        store.create_table("orders", pa.schema([("id", pa.int64()), ("v", pa.string())]), ["id"])
        page = PagePort(store._handle, "127.0.0.1:0", tokens=[TOKEN], certificate=certificate)
        with closing(page):
            number = int(page.location.rstrip("/").rpartition(":")[2])
            reader, strangers = (TlsClient(number, folder / "cert.pem", host) for host in ("127.0.0.1", "127.0.0.2"))
            cookie = cookie_of(rest_of(reader.opened(SIGN_IN)))
            threads, files, hello = threading.active_count(), open_files(), strangers.hello()
            for sent in (b"", hello[:6], hello, b"noise"):
                with strangers.crowding(sent) as crowd:
                    for asked in range(200, 1_000, 200):
                        wait_until(lambda asked=asked, crowd=crowd: crowd.asked > asked)
                        answer = rest_of(reader.opened(get("/status.json", cookie)))
                        assert answer.startswith(b"HTTP/1.1 200 ") and b'"orders"' in answer, sent
                    held = sum(len(kept) for kept in crowd.kept)
                    assert threading.active_count() - threads <= 16 + len(crowd.kept), "threads"
                    assert open_files() - files <= 16 + 4 * 32 + held + len(crowd.kept), "files"
