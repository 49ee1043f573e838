"""Tokens stay private: one that can be guessed, lies in a file of others, or would travel in clear is refused."""

from __future__ import annotations

import logging
import os
import secrets
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import epochlog as el
from endpoints import READ_TOKEN, TOKEN, Stranger, bearer
from epochlog.exchange import ExchangeClient
from epochlog.exchange.server import Certificate, check_address
from epochlog.exchange.transport import tokens
from epochlog.exchange.transport.duplex import check_destination
from epochlog.testing.tcp_proxy import TcpProxy
from logged_events import logged
from wait_until import WAIT_LIMIT_S

pytestmark = pytest.mark.local_only
Make = Callable[..., object]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[el.Store]:
    with el.open(tmp_path / "s", durability="os") as store:
        yield store


def token_file(folder: Path, text: str = TOKEN, mode: int = 0o600) -> Path:
    file = folder / "token"
    file.write_text(text)
    file.chmod(mode)
    return file


# ---- what a token must be ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("weak", ["", "x", "short", "a" * 64, "ab" * 20, "1234567" * 5, TOKEN[:15]])
def test_a_token_that_can_be_guessed_is_refused_and_not_shown(tmp_path: Path, weak: str) -> None:
    file = token_file(tmp_path, weak)
    with pytest.raises(el.InsecureServer, match="can be guessed") as error:
        tokens.load_token(str(file))
    assert tokens.SHELL_COMMAND in str(error.value) and (
        len(weak) < 3 or weak not in str(error.value).replace(str(file), "")
    )


@pytest.mark.medium
def test_what_the_message_says_to_type_makes_a_file_that_is_taken(tmp_path: Path) -> None:
    subprocess.run(tokens.SHELL_COMMAND, shell=True, cwd=tmp_path, check=True)
    made = (tmp_path / "token").read_text()
    assert tokens.load_token(str(tmp_path / "token")) == made.strip() and len(made) > 40
    for _ in range(200):
        tokens.check_strength(secrets.token_urlsafe(12), "it")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o644, 0o666, 0o610, 0o601])
def test_a_file_that_others_may_read_or_write_is_refused(tmp_path: Path, mode: int) -> None:
    file = token_file(tmp_path, mode=mode)
    with pytest.raises(el.InsecureServer, match=f"chmod 600 {file}") as error:
        tokens.load_token(str(file))
    assert TOKEN not in str(error.value)
    file.chmod(0o600)
    assert tokens.load_token(str(file)) == TOKEN


def test_a_file_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = token_file(tmp_path)
    mine = os.stat(file).st_uid
    about = os.stat_result((0o100600, 0, 0, 1, mine + 1000, 0, len(TOKEN), 0, 0, 0))
    with pytest.raises(el.InsecureServer, match="another user"):
        tokens._check_private(str(file), about)
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1000)
    tokens._check_private(str(file), about)


def test_a_link_is_judged_by_what_it_leads_to_and_no_file_is_read_without_end(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(token_file(tmp_path, mode=0o644))
    with pytest.raises(el.InsecureServer, match="chmod"):
        tokens.load_token(str(tmp_path / "link"))
    token_file(tmp_path, TOKEN * 1000)
    for path, error in ((tmp_path / "token", el.InvalidInput), (tmp_path, el.ReadFailed), ("nothing", el.ReadFailed)):
        with pytest.raises(error):
            tokens.load_token(str(path))
    for text in ("schl\u00fcssel-4711-0815", "two\nlines-of-a-token-4711"):
        with pytest.raises(el.InvalidInput, match="holds no token"):
            tokens.load_token(str(token_file(tmp_path, text)))


def test_a_token_comes_through_a_pipe_too(tmp_path: Path) -> None:
    reads, writes = os.pipe()
    os.write(writes, TOKEN.encode())
    os.close(writes)
    assert tokens.load_token(f"/dev/fd/{reads}") == TOKEN
    os.close(reads)


def test_a_server_that_others_reach_takes_no_weak_token() -> None:
    pem = Certificate(b"", b"")
    for token, read_token in (("weak", None), (TOKEN, "weak")):
        with pytest.raises(el.InsecureServer, match="can be guessed"):
            check_address("grpc+tls://0.0.0.0:0", token, pem, read_token)
    assert check_address("grpc+tls://0.0.0.0:0", TOKEN, pem, READ_TOKEN) == ("0.0.0.0", 0)


@pytest.mark.logs("server_started", "server_stopped", "server_open")
def test_a_server_without_a_token_is_logged(store: el.Store, caplog: pytest.LogCaptureFixture) -> None:
    with el.serve(store) as server:
        (warning,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert warning.__dict__["epochlog"] == logged(caplog, "server_open")[0]
        assert logged(caplog, "server_open")[0]["location"] == server.location
    caplog.clear()
    with el.serve(store, token=TOKEN):
        assert not logged(caplog, "server_open")


# ---- where a client sends it -------------------------------------------------------------------------------------

OTHERS = ["db.example.org", "10.0.0.7", "[2001:db8::7]", "0.0.0.0", "localhost.example.org", "127.1", "8.8.8.8", "host"]
HERE = ["localhost", "LOCALHOST", "127.0.0.1", "127.255.0.3", "[::1]"]


@pytest.mark.parametrize("host", OTHERS)
def test_no_client_is_made_that_would_send_a_token_in_clear(store: el.Store, host: str) -> None:
    for scheme in ("grpc", "grpc+tcp"):
        location = f"{scheme}://{host}:9"
        makers: list[Make] = [
            lambda location=location, **more: el.connect(location, **more),
            lambda location=location, **more: el.Worker(location, store, **more),
            lambda location=location, **more: ExchangeClient(location, query="q", **more),
        ]
        for make in makers:
            with pytest.raises(el.InsecureServer, match=r"grpc\+tls.*insecure=True") as error:
                make(token=TOKEN)
            assert TOKEN not in str(error.value)
        for make in makers[::2]:  # a worker begins to connect by itself
            make(token=TOKEN, insecure=True)
            make()
    el.connect(f"grpc+tls://{host}:9", token=TOKEN)


@pytest.mark.parametrize("host", HERE)
def test_this_machine_is_no_other_host(host: str) -> None:
    check_destination(f"grpc://{host}:9", TOKEN)


def test_a_proxy_that_the_environment_names_is_not_told_what_goes_to_this_machine(
    store: el.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gRPC would ask it to connect to 127.0.0.1 as well, and then tell it the token."""
    with el.serve(store, token=TOKEN) as server:
        port = int(server.location.rpartition(":")[2])
        asked, passed_over = proxies = TcpProxy(port), TcpProxy(port)  # a plain client may ask its own again and again
        try:
            for proxy in proxies:
                proxy.hold(b"CONNECT")
            for name in ("grpc_proxy", "http_proxy"):
                monkeypatch.setenv(name, f"http://127.0.0.1:{asked.port}")
            with Stranger(server.location, bearer(TOKEN), timeout_s=5) as plain, suppress(Exception):
                plain.actions()
            assert asked.fired.wait(WAIT_LIMIT_S), "a plain client asks the proxy"
            for name in ("grpc_proxy", "http_proxy"):
                monkeypatch.setenv(name, f"http://127.0.0.1:{passed_over.port}")
            with el.connect(server.location, token=TOKEN) as ours:
                assert ours.tables() == []
            assert not passed_over.fired.is_set()
        finally:
            for proxy in proxies:
                proxy.stop()
