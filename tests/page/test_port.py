"""HTTP port of the page: what it serves, to whom, and what hostile requests get."""

from __future__ import annotations

import http.client
import json
import re
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest

import epochlog as el
from certificates import make_certificate
from epochlog.exchange.transport import http_listener
from epochlog.page import feed, port
from epochlog.page.changes import apply
from epochlog.page.port import PagePort
from epochlog.store.env.clock import monotonic_s
from page_store import HOSTILE, PageStore, break_views, make_page_store
from wait_until import WAIT_LIMIT_S, wait_until

pytestmark = [pytest.mark.local_only, pytest.mark.medium]
TOKEN = "a-token-of-22-letters!"
READ_TOKEN = "another-token-of-letters"


def ask(
    location: str, path: str, method: str = "GET", body: str | None = None, **headers: str
) -> tuple[http.client.HTTPResponse, bytes]:
    target = urlsplit(location)
    context = ssl._create_unverified_context() if target.scheme == "https" else None
    connection: http.client.HTTPConnection = (
        http.client.HTTPConnection(str(target.hostname), target.port, timeout=WAIT_LIMIT_S)
        if context is None
        else http.client.HTTPSConnection(str(target.hostname), target.port, timeout=WAIT_LIMIT_S, context=context)
    )
    with closing(connection):
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer, answer.read()


def document(location: str, path: str = "/status.json") -> Any:
    answer, body = ask(location, path)
    assert answer.status == 200, body
    return json.loads(body)


def raw(location: str, request: bytes) -> bytes:
    """Send bytes, and return all that comes back."""
    with socket.create_connection(("127.0.0.1", urlsplit(location).port or 0), timeout=WAIT_LIMIT_S) as connection:
        answer = b""
        with suppress(OSError):
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
        with suppress(OSError):
            while chunk := connection.recv(1 << 16):
                answer += chunk
        return answer


class Events:
    """Events of a page, read from a socket."""

    def __init__(self, location: str) -> None:
        target = urlsplit(location)
        self._socket = socket.create_connection((str(target.hostname), target.port), timeout=WAIT_LIMIT_S)
        self._socket.sendall(b"GET /events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        self._file = self._socket.makefile("rb")
        head = b""
        while not head.endswith(b"\r\n\r\n") and (line := self._file.readline()):
            head += line
        self.status = int(head.split()[1]) if head else 0

    def next(self) -> tuple[str, Any] | None:
        """Return the next event; None at the end of the stream."""
        kind, data = "", ""
        while line := self._file.readline():
            text = line.decode().rstrip("\n")
            if text.startswith("event: "):
                kind = text.removeprefix("event: ")
            elif text.startswith("data: "):
                data = text.removeprefix("data: ")
            elif not text and kind:
                return kind, json.loads(data)
        return None

    def close(self) -> None:
        self._file.close()
        self._socket.close()


@pytest.fixture(scope="module")
def still(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PagePort]:
    """A page of a store that no test changes."""
    store = make_page_store(tmp_path_factory.mktemp("still") / "lake").store
    with store, closing(PagePort(store._handle, "127.0.0.1:0")) as page:
        yield page


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PagePort]:
    """A page of such a store that needs a token."""
    store = make_page_store(tmp_path_factory.mktemp("private") / "lake").store
    with store, closing(PagePort(store._handle, "127.0.0.1:0", tokens=[TOKEN, READ_TOKEN])) as page:
        yield page


# ---- what is served ------------------------------------------------------------------------------------------------


def test_the_documents_are_served(page: PagePort, lake: PageStore) -> None:
    break_views(lake)
    status = document(page.location)
    assert status["last_epoch"] == lake.store.last_epoch
    assert document(page.location, "/table.json?table=by_day")["name"] == "by_day"
    assert document(page.location, "/agreement.json?table=by_day&table=slow")["why_not"]
    assert document(page.location, "/lanes.json?table=by_day&table=slow")["stretches"]
    assert document(page.location, "/curves.json")["kept_s"] == 900
    for path, code in {
        "/table.json": 400,
        "/table.json?table=a&table=b": 400,
        "/table.json?table=nowhere": 404,
        f"/table.json?{urlencode({'table': HOSTILE})}": 404,
        "/agreement.json": 400,
        "/lanes.json?" + "&".join(f"table=t{n}" for n in range(17)): 400,
        "/lanes.json?" + "&".join("table=t" for _ in range(100)): 400,
        "/nowhere": 404,
        "/static/page.js": 404,
        "/../pyproject.toml": 404,
        "/%2e%2e/pyproject.toml": 404,
    }.items():
        answer, body = ask(page.location, path)
        assert answer.status == code, (path, body)


def test_every_answer_forbids_what_a_browser_might_do_with_it(still: PagePort) -> None:
    for path in ("/", "/page.css", "/status.json", "/nowhere", "/sign-in", "/table.json?table=x"):
        answer, body = ask(still.location, path)
        assert answer.headers["Content-Security-Policy"].startswith("default-src 'self';")
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Referrer-Policy"] == "same-origin"
        assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["Server"] == "epochlog" and "Access-Control-Allow-Origin" not in answer.headers
        assert ask(still.location, path, "HEAD")[1] == b"" and (body or answer.status == 303)


def test_the_page_needs_nothing_but_itself(still: PagePort) -> None:
    """The HTML loads nothing from elsewhere, and no script or style is within the HTML, which the policy forbids."""
    html = ask(still.location, "/")[1].decode()
    assert not re.search(r"(?i)https?://|\bon\w+\s*=|\bstyle\s*=|<style|javascript:", html)
    assert all("src=" in script for script in re.findall(r"<script[^>]*>", html))
    for name in re.findall(r"(?:src|href)=\"([^\"#]+)\"", html):
        assert ask(still.location, f"/{name}")[0].status == 200, name


# ---- events --------------------------------------------------------------------------------------------------------


def test_events_follow_a_commit_within_two_seconds(page: PagePort, lake: PageStore) -> None:
    with closing(Events(page.location)) as events:
        first = events.next()
        assert first is not None and first[0] == "status"
        shown = first[1]
        epoch = lake.put(20)
        before_s = monotonic_s()
        while next(table for table in shown["tables"] if table["name"] == "orders")["max_committed_epoch"] != epoch:
            event = events.next()
            assert event is not None
            shown = apply(shown, event[1]) if event[0] == "change" else shown
        assert monotonic_s() - before_s < 2


def test_listeners_are_bounded_and_end_with_the_port(lake: PageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_listener, "MAX_HANDLERS", 4)
    monkeypatch.setattr(http_listener, "REQUEST_S", 1.0)
    monkeypatch.setattr(port, "BEAT_S", 3600.0)
    page = PagePort(lake.store._handle, "127.0.0.1:0")
    with ExitStack() as stack:
        stack.callback(page.close)
        open_events = [stack.enter_context(closing(Events(page.location))) for _ in range(port.MAX_LISTENERS)]
        assert {events.status for events in open_events} == {200}
        with closing(Events(page.location)) as refused:
            assert refused.status == 503
        assert document(page.location)["tables"], "listeners are not counted as connections"
        open_events[0].close()
        with ExitStack() as tries:

            def accepted() -> bool:
                return tries.enter_context(closing(Events(page.location))).status == 200

            wait_until(accepted)
        assert {first[0] for events in open_events[1:] if (first := events.next())} == {"status"}
        threads = threading.active_count()
        page.close()
        for events in open_events[1:]:
            while events.next():
                pass
        wait_until(lambda: threading.active_count() <= threads - port.MAX_LISTENERS)


def test_the_port_ends_with_its_idle_connections(lake: PageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_listener, "REQUEST_S", 3600.0)
    page = PagePort(lake.store._handle, "127.0.0.1:0")
    address = "127.0.0.1", urlsplit(page.location).port or 0
    with socket.create_connection(address, timeout=WAIT_LIMIT_S) as silent:
        wait_until(lambda: page._port.listener._arriving)
        page.close()
        assert silent.recv(1) == b""


def test_nobody_looks_at_the_store_for_a_listener_who_has_left(page: PagePort) -> None:
    with closing(Events(page.location)) as events:
        events.next()
        assert page._feed._listeners == 1
    wait_until(lambda: page._feed._listeners == 0)


def test_trouble_with_the_store_is_shown_and_ends(
    lake: PageStore, page: PagePort, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Events(page.location)) as events:
        assert events.next()
        with monkeypatch.context() as patch:

            def fail(handle: object) -> None:
                raise el.CatalogUnavailable(f"no catalog {HOSTILE}")

            patch.setattr(feed, "look_at_store", fail)
            while (event := events.next()) and event[0] != "trouble":
                pass
            assert event == ("trouble", {"type": "CatalogUnavailable", "text": f"no catalog {HOSTILE}"})
            answer, body = ask(page.location, "/status.json")
            assert answer.status == 503 and json.loads(body)["error"]["type"] == "CatalogUnavailable"
        while (event := events.next()) and event[0] != "trouble":
            pass
        assert event == ("trouble", None)


def test_a_store_that_is_closed_is_trouble_and_ends_no_thread(lake: PageStore, caplog: Any) -> None:
    with closing(PagePort(lake.store._handle, "127.0.0.1:0")) as page, closing(Events(page.location)) as events:
        assert events.next()
        lake.store.close()
        while (event := events.next()) and event[0] != "trouble":
            pass
        assert event is not None and event[1]["text"]
        assert ask(page.location, "/status.json")[0].status in (500, 503) and ask(page.location, "/")[0].status == 200
        assert page._feed._thread.is_alive()


def test_a_defect_is_no_answer(page: PagePort, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    monkeypatch.setattr(page._feed, "document", lambda: 1 // 0)
    answer, body = ask(page.location, "/status.json")
    assert (answer.status, body) == (500, b"500 Internal Server Error\n")
    assert "ZeroDivisionError" in caplog.text


# ---- strangers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "[", "192.168.1.1", ""])
def test_names_of_other_sites_are_refused(still: PagePort, host: str) -> None:
    for path in ("/", "/status.json", "/events", "/sign-in"):
        assert ask(still.location, path, Host=host)[0].status == 421
    assert ask(still.location, "/sign-in", "POST", "token=x", Host=host)[0].status == 421
    assert ask(still.location, "/", Host="localhost:1")[0].status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "get", "X" * 40])
def test_nothing_but_reading_is_possible(still: PagePort, method: str) -> None:
    before = document(still.location)["last_epoch"]
    answer, _ = ask(still.location, "/status.json", method)
    assert answer.status == 405 and answer.headers["Allow"] == "GET, HEAD"
    assert document(still.location)["last_epoch"] == before


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"",
        b"\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 200,
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"x: y\r\n" * 200 + b"\r\n",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"a" * 70_000 + b"\r\n\r\n",
        b"GET /%00%0d%0aSet-Cookie:x HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        b"POST /sign-in HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\ntoken\r\n0\r\n\r\n",
        b"POST /sign-in HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -1\r\n\r\n",
        "GET /\u202e HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode(),
    ],
)  # fmt: skip
def test_garbage_gets_an_error_or_nothing(still: PagePort, request_bytes: bytes, caplog: Any) -> None:
    answer = raw(still.location, request_bytes)
    assert not answer or re.match(rb"HTTP/1.1 (4|5)\d\d ", answer), answer[:200]
    assert b"Set-Cookie" not in answer and b"evil" not in answer and b"Traceback" not in answer
    assert not caplog.records and document(still.location)["tables"]


def test_other_hosts_need_tls_and_a_token(lake: PageStore, tmp_path: Path) -> None:
    handle = lake.store._handle
    folder = make_certificate(tmp_path)
    certificate = (folder / "cert.pem").read_bytes(), (folder / "key.pem").read_bytes()
    for arguments in ({}, {"tokens": [TOKEN]}, {"certificate": certificate}):
        with pytest.raises(el.InsecureServer, match="other hosts can reach"):
            PagePort(handle, "0.0.0.0:0", **arguments)
    with pytest.raises(el.InsecureServer, match="can be guessed"):
        PagePort(handle, "0.0.0.0:0", certificate=certificate, tokens=["short"])
    with pytest.raises(el.WriteFailed, match="PEM"):
        PagePort(handle, "0.0.0.0:0", certificate=(b"no", b"pem"), tokens=[TOKEN])
    for address in ("127.0.0.1", "127.0.0.1:x", ":1", "127.0.0.1:70000", 8321):
        with pytest.raises(el.InvalidInput, match="must be like"):
            PagePort(handle, address)  # pyright: ignore[reportArgumentType]
    with closing(PagePort(handle, "0.0.0.0:0", certificate=certificate, tokens=[TOKEN])) as page:
        local = page.location.replace("0.0.0.0", "127.0.0.1")
        assert local.startswith("https://") and ask(local, "/status.json")[0].status == 401
        assert ask(local, "/sign-in", Host="evil.example")[0].status == 421
        answer, _ = ask(local, "/sign-in", "POST", urlencode({"token": TOKEN}))
        assert answer.headers["Set-Cookie"].endswith("HttpOnly; SameSite=Strict; Secure")
        assert raw(local, b"GET / HTTP/1.1\r\n\r\n")[:4] != b"HTTP", "plain HTTP is not served"
        cookie = answer.headers["Set-Cookie"].split(";")[0]
        context, target = ssl._create_unverified_context(), urlsplit(local)
        with closing(http.client.HTTPSConnection("127.0.0.1", target.port, timeout=WAIT_LIMIT_S, context=context)) as c:
            c.request("GET", "/events", headers={"Cookie": cookie})
            events = c.getresponse()
            assert events.readline() == b"event: status\n" and events.readline().startswith(b'data: {"root":')


def signed_in(page: PagePort, token: str) -> str:
    answer, _ = ask(page.location, "/sign-in", "POST", urlencode({"token": token}))
    assert (answer.status, answer.headers["Location"]) == (303, "/")
    return answer.headers["Set-Cookie"]


@pytest.mark.parametrize("token", [TOKEN, READ_TOKEN])
def test_a_token_signs_in_once(private: PagePort, token: str) -> None:
    assert ask(private.location, "/")[0].headers["Location"] == "/sign-in"
    for path in ("/status.json", "/events", "/curves.json", "/nowhere", "/page.js"):
        assert ask(private.location, path)[0].status == 401
    assert b"<form" in ask(private.location, "/sign-in")[1] and ask(private.location, "/page.css")[0].status == 200
    cookie = signed_in(private, token)
    assert cookie.endswith("; HttpOnly; SameSite=Strict") and "Path=/" in cookie
    assert token not in cookie and cookie.split("=")[0] == f"epochlog-{urlsplit(private.location).port}"
    assert ask(private.location, "/status.json", Cookie=cookie.split(";")[0])[0].status == 200
    name = cookie.split("=")[0]
    for other in (f"{name}=x", f"{name}={token}", "a=b", f"x{cookie.split(';')[0]}", '"', f"{name}"):
        assert ask(private.location, "/status.json", Cookie=other)[0].status == 401, other


@pytest.mark.parametrize("token", ["", "wrong", TOKEN + " ", TOKEN[:-1], "\u00e9" * 22, "x" * 9999, HOSTILE])
def test_a_wrong_token_does_not(private: PagePort, token: str) -> None:
    answer, body = ask(private.location, "/sign-in", "POST", urlencode({"token": token}))
    assert answer.status in (403, 413) and "Set-Cookie" not in answer.headers
    assert HOSTILE.encode() not in body and TOKEN.encode() not in body


def test_a_form_of_another_site_does_not_sign_in(private: PagePort) -> None:
    form = urlencode({"token": TOKEN})
    host = urlsplit(private.location).netloc
    assert ask(private.location, "/sign-in", "POST", form, Origin="http://evil.example")[0].status == 403
    assert ask(private.location, "/sign-in", "POST", form, Origin="null")[0].status == 403
    assert ask(private.location, "/sign-in", "POST", form, Origin=f"http://{host}")[0].status == 303
    assert ask(private.location, "/sign-in", "POST", "x" * 2000)[0].status == 413
    assert ask(private.location, "/sign-in", "POST", "&".join("a=b" for _ in range(99)))[0].status == 403


def test_sessions_end(private: PagePort, monkeypatch: pytest.MonkeyPatch) -> None:
    from epochlog.page import sessions

    assert private._site.sessions is not None
    private._site.sessions._sessions.clear()  # of other tests
    monkeypatch.setattr(sessions, "MOST_SESSIONS", 2)
    cookies = [signed_in(private, TOKEN).split(";")[0] for _ in range(3)]
    assert [ask(private.location, "/status.json", Cookie=cookie)[0].status for cookie in cookies] == [401, 200, 200]
    monkeypatch.setattr(sessions, "monotonic_s", lambda: monotonic_s() + sessions.SESSION_S)
    assert ask(private.location, "/status.json", Cookie=cookies[2])[0].status == 401


# ---- the ways to serve it ------------------------------------------------------------------------------------------


def test_a_server_shows_its_store_and_workers(lake: PageStore) -> None:
    with el.serve(lake.store, token=TOKEN, read_token=READ_TOKEN, ui="127.0.0.1:0") as server:
        location = str(server.ui_location)
        assert ask(location, "/status.json")[0].status == 401
        answer, _ = ask(location, "/sign-in", "POST", urlencode({"token": READ_TOKEN}))
        _, body = ask(location, "/status.json", Cookie=answer.headers["Set-Cookie"].split(";")[0])
        assert json.loads(body)["server"] == {"workers": 0, "running": []}
    with pytest.raises(OSError):
        ask(location, "/")
    with el.serve(lake.store) as server:
        assert server.ui_location is None


@pytest.mark.slow
def test_the_command_serves_it_until_a_signal(lake: PageStore) -> None:
    command = [sys.executable, "-m", "epochlog", "ui", str(lake.root), "--bind", "127.0.0.1:0", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    facts = json.loads(process.stdout.readline())
    assert facts["root"] == lake.store._handle.files.place
    assert document(facts["ui"])["last_epoch"] == lake.store.last_epoch
    process.terminate()
    assert process.wait(WAIT_LIMIT_S) == 0 and process.communicate()[1] == ""


# ---- paths of the server -------------------------------------------------------------------------------------------


def all_texts(location: str, cookie: str) -> str:
    """Return all that the page tells a browser: documents, errors of them, and the first event."""
    paths = ["/status.json", "/curves.json", "/agreement.json?table=orders", "/lanes.json?table=orders"]
    paths += [f"/table.json?table={name}" for name in ("orders", "by_day", "none")]
    texts = [ask(location, path, Cookie=cookie)[1].decode() for path in paths]
    target = urlsplit(location)
    with closing(http.client.HTTPConnection(str(target.hostname), target.port, timeout=WAIT_LIMIT_S)) as connection:
        connection.request("GET", "/events", headers={"Cookie": cookie})
        events = connection.getresponse()
        texts += [events.readline().decode(), events.readline().decode()]
    return "\n".join(texts)


@pytest.mark.parametrize("planted", [False, pytest.param(True, marks=pytest.mark.planted)])
def test_who_signs_in_sees_no_path_of_the_server(
    planted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page told readers the root, and the paths of damaged files that Flight hides."""
    lake = make_page_store(tmp_path / "secret-place" / "lake")
    if planted:
        monkeypatch.setattr("epochlog.page.private_paths.PrivatePaths.hidden", lambda paths, content: content)
    with lake.store as store, closing(PagePort(store._handle, "127.0.0.1:0", tokens=[READ_TOKEN])) as page:
        handle, root = store._handle, str(lake.root)
        inside = f"{handle.store_id}/t0001/a.arrow"
        lake.put(3, 4)
        lake.fail(ValueError(f"cannot read {root}/{inside}, nor {inside}"))
        cookie = signed_in(page, READ_TOKEN).split(";")[0]
        texts = all_texts(page.location, cookie)
        has_paths = "secret-place" in texts or f"{handle.store_id}/" in texts
        assert has_paths is planted
        assert planted or ('"root":"lake"' in texts and "a file of the server" in texts)
