"""Ports of metrics and page under a flood: the process keeps files and threads for its writes, and who has signed in is
answered.
"""

from __future__ import annotations

import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode

import pyarrow as pa
import pytest

import epochlog as el
from endpoints import ROWS, TOKEN
from epochlog.serving import StoreServer
from http_flood import flooding, get, open_files, opened, rest_of
from wait_until import WAIT_LIMIT_S, wait_until

pytestmark = [pytest.mark.local_only, pytest.mark.medium]


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
            form = urlencode({"token": TOKEN})
            head = f"POST /sign-in HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(form)}\r\n\r\n"
            signed_in = rest_of(opened(page, (head + form).encode()))
            cookie = signed_in.partition(b"Set-Cookie: ")[2].partition(b";")[0].decode()
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
