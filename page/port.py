"""HTTP port of the page: static files, documents as JSON, and server-sent events; read only.

Without a token it listens on loopback addresses alone. With a token a browser signs in once by a form, and a cookie
names its session from then on.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from contextlib import suppress
from importlib.resources import files
from itertools import chain
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

from epochlog.errors import EpochlogError, InsecureServer, InvalidInput, TableNotFound
from epochlog.exchange.transport.duplex import check_token, is_loopback
from epochlog.exchange.transport.http_port import HttpHandler, HttpPort, host_and_port
from epochlog.exchange.transport.refusals import Refusals
from epochlog.exchange.transport.shared_answers import SharedAnswers, in_chunks
from epochlog.exchange.transport.tokens import check_strength
from epochlog.store.env.whole_number import whole_number
from epochlog.store.session.handle import Handle

from .changes import Document, difference
from .document import ServerFacts, agreement_document, error_facts, lanes_document, table_document
from .feed import Feed, Seen
from .private_paths import PrivatePaths, without_details
from .sessions import SignedIn

POLICY = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"
HEADERS = {
    **HttpHandler.headers_of_all,
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}
MAX_LISTENERS = 32
"""Open streams of events of one port."""
MAX_READING = 2
"""Documents that are made at a time; further requests wait. One document serves all who ask for it within a second."""
BEAT_S = 5.0
"""Time after which a stream without a change sends a comment, so that a closed connection is noticed."""
BATCH = 100
"""Items of a list that are encoded at a time."""
MAX_FORM = 1024
"""Bytes of the form to sign in."""
JSON = "application/json; charset=utf-8"
DOCUMENTS = ("/status.json", "/curves.json", "/table.json", "/agreement.json", "/lanes.json")
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}


class PagePort:
    """Page of an open store at an address, until `close`."""

    def __init__(
        self,
        handle: Handle,
        address: str,
        *,
        tokens: Collection[str] = (),
        certificate: tuple[bytes, bytes] | None = None,
        server: ServerFacts | None = None,
        refusals: Refusals | None = None,
    ) -> None:
        """Listen at `address`: host:port, port 0 for a free one. tokens: each permits to sign in; without one, every
        user of this machine may read the page. certificate: chain and key, PEM, for an address that other hosts can
        reach; a loopback address is served without TLS. server: the workers of a coordinator in this process.
        refusals: the record of refused calls, shared with other ports; None: one of the page alone.

        Raises InsecureServer for an address that other hosts can reach without certificate and token; InvalidInput,
        WriteFailed.
        """
        host, _ = host_and_port(address, "the page")
        tokens = [token for token in tokens if token is not None]
        for token in tokens:
            check_token(token)
        if is_loopback(host):
            certificate = None
        elif certificate is None or not tokens:
            raise InsecureServer(
                f"other hosts can reach {host}: give the page TLS (a certificate and its key) and a token, or bind it "
                "to 127.0.0.1"
            )
        else:
            for token in tokens:
                check_strength(token, f"other hosts can reach {host}, and the token")
        site = _Site(handle, Feed(handle, server), refusals or Refusals(handle))

        class Handler(_PageHandler):
            pass

        Handler.site = site
        self._site, self._feed = site, site.feed
        try:
            self._port = HttpPort(address, Handler, "the page", certificate, site.knows)
        except BaseException:
            self._feed.close()
            raise
        site.sessions = SignedIn(tokens, self._port.port, secure=certificate is not None) if tokens else None
        site.ready.set()
        self.location = f"{self._port.origin}/"

    def close(self) -> None:
        """Stop listening and end all streams; a second call does nothing."""
        self._feed.close()
        self._port.close()


class _Site:
    """Content of the page, shared by all requests."""

    def __init__(self, handle: Handle, feed: Feed, refusals: Refusals) -> None:
        self.handle = handle
        self.feed = feed
        self.refusals = refusals
        self.sessions: SignedIn | None = None
        self.ready = threading.Event()
        self.listeners = threading.BoundedSemaphore(MAX_LISTENERS)
        self.answers = SharedAnswers(MAX_READING)
        self.events = SharedAnswers(MAX_READING)  # by the numbers of the documents before and after
        self.static = _static_files()
        self.paths = PrivatePaths(handle)

    def knows(self, head: bytes) -> bool:
        """Return True if the head of a request has a session."""
        return self.sessions is not None and self.sessions.is_named_in(head)

    def encoded(self, document: Any) -> bytes:
        """Encode a document; browsers that had to sign in see no paths of the server in it."""
        return b"".join(self.chunks(document))

    def chunks(self, document: Any) -> Iterator[bytes]:
        """Yield the chunks of an encoded document. No text of it is in two of them."""
        chunks = in_chunks(encoded_parts(document))
        return chunks if self.sessions is None else map(self.paths.hidden, chunks)

    def error(self, error: Document) -> Document:
        """Return an error as browsers may see it."""
        return error if self.sessions is None else without_details(error)

    def document_key(self, path: str, query: Mapping[str, list[str]]) -> Hashable:
        """Return a key that changes with the catalog and the samples, so that no document hides a commit."""
        version = self.handle.catalog.read(lambda view: view.version)
        return path, tuple(query.get("table", [])), version, self.feed.curves.version

    def document(self, path: str, query: Mapping[str, list[str]]) -> Any:
        """Return the document of a path."""
        names = query.get("table", [])
        match path:
            case "/status.json":
                return self.feed.document()
            case "/curves.json":
                return self.feed.curves.document()
            case "/table.json":
                if len(names) != 1:
                    raise InvalidInput("/table.json takes one table: ?table=NAME")
                return table_document(self.handle, names[0])
            case "/agreement.json":
                return agreement_document(self.handle, names)
            case _:  # /lanes.json
                return lanes_document(self.handle, names)


def _static_files() -> dict[str, tuple[bytes, str]]:
    """Return the content and kind of each static file by its path."""
    found_files: dict[str, tuple[bytes, str]] = {}
    for entry in files(str(__package__)).joinpath("static").iterdir():
        ending = entry.name[entry.name.rfind(".") :]
        if ending in KINDS:
            found_files[f"/{entry.name}"] = entry.read_bytes(), KINDS[ending]
    found_files["/"] = found_files.pop("/index.html")
    return found_files


class _PageHandler(HttpHandler):
    site: ClassVar[_Site]
    headers_of_all = HEADERS

    def answer(self, path: str, query: str) -> None:
        self.site.ready.wait()
        if path in ("/sign-in", "/page.css") or self._signed_in():
            self._answer(path, query)
        elif path == "/":
            self.send_page(b"", "text/plain; charset=utf-8", 303, {"Location": "/sign-in"})
        else:
            self._note_refused("session")
            self.send_error(401)

    def _answer(self, path: str, query: str) -> None:
        if path == "/sign-in":
            self._send_form(200)
        elif path == "/events":
            self._send_events()
        elif path in self.site.static:
            self.send_page(*self.site.static[path])
        elif path in DOCUMENTS:
            self._send_document(path, query)
        else:
            self.send_error(404)

    def _send_document(self, path: str, query: str) -> None:
        site = self.site
        try:
            names = parse_qs(query, max_num_fields=64)
            key = site.document_key(path, names)
            chunks = self.shared_answer(site.answers, key, lambda: site.chunks(site.document(path, names)))
        except TableNotFound as error:
            self._send_json({"error": self.site.error(error_facts(error))}, 404)
        except (InvalidInput, ValueError) as error:
            text = str(error) if isinstance(error, InvalidInput) else "this query cannot be read"
            self._send_json({"error": {"type": "InvalidInput", "text": text}}, 400)
        except EpochlogError as error:
            self._send_json({"error": self.site.error(error_facts(error))}, 503)
        else:
            self.send_chunks(chunks, JSON)

    def _send_json(self, document: Any, status: int) -> None:
        self.send_page(self.site.encoded(document), JSON, status)

    # ---- events ----------------------------------------------------------------------------------------------------

    def _send_events(self) -> None:
        """Send the document, then what differs in each further one, until the client leaves or the port closes."""
        if self.command == "HEAD":
            self.send_page(b"", "text/event-stream")
            return
        if not self.site.listeners.acquire(blocking=False):
            self.send_error(503)
            return
        try:
            self.accepted.release()
            self.send_head("text/event-stream")
            self.site.feed.listen()
            try:
                self._follow()
            finally:
                self.site.feed.leave()
        finally:
            self.site.listeners.release()

    def _follow(self) -> None:
        feed = self.site.feed
        seen = Seen(samples=feed.curves.version)
        with suppress(EpochlogError):  # the feed's thread finds it too, and shows it
            feed.document()
        while not feed.closed:
            newest = feed.wait(seen, BEAT_S)
            is_silent = True
            for chunk in self._events(seen, newest):
                self.wfile.write(chunk)
                is_silent = False
            if is_silent:
                self.wfile.write(b":\n\n")
            self.wfile.flush()
            seen = newest

    def _events(self, seen: Seen, newest: Seen) -> Iterator[bytes]:
        """Yield the events for a listener that has seen one state: `trouble`, `status` or `change`, `sample`."""
        site = self.site
        if newest.trouble != seen.trouble:
            yield from self._event("trouble", newest.trouble and site.error(newest.trouble))
        if newest.number != seen.number:
            states = seen.number, newest.number
            yield from site.events.get(
                states, lambda: self._document_event(seen.document, newest.document), lambda: False
            )
        if newest.samples != seen.samples:
            yield from self._event("sample", site.feed.curves.newest())

    def _document_event(self, before: Document, after: Document) -> Iterator[bytes]:
        """Return the event that turns a document into another: `status`, then `change`; none if both are equal."""
        event = difference(before, after) if before else after
        return self._event("change" if before else "status", event) if event else iter(())

    def _event(self, kind: str, data: Any) -> Iterator[bytes]:
        return chain((b"event: " + kind.encode() + b"\ndata: ",), self.site.chunks(data), (b"\n\n",))

    # ---- sessions --------------------------------------------------------------------------------------------------

    def _signed_in(self) -> bool:
        sessions = self.site.sessions
        if sessions is None:
            return True
        known = sessions.knows(self.headers.get("Cookie"))
        if known:
            self.accepted.note_known()
        return known

    def do_POST(self) -> None:  # noqa: N802 (the name that the base class calls)
        self._guarded(self._sign_in)

    def _sign_in(self) -> None:
        """Begin a session for the token of the form."""
        self.site.ready.wait()
        length = self.headers.get("Content-Length", "")
        if self._target()[0] != "/sign-in" or self.site.sessions is None:
            self.send_error(405)
            return
        if not self._is_same_origin():
            self.send_error(403)
            return
        if not (length.isascii() and length.isdigit()) or "Transfer-Encoding" in self.headers:
            self.send_error(411)
            return
        size = whole_number(length)
        if size is None or size > MAX_FORM:
            self.send_error(413)
            return
        form = self.rfile.read(size).decode("ascii", "replace")
        self.accepted.await_client(None)
        token = dict.get(_fields(form), "token", "")
        cookie = self.site.sessions.sign_in(token, str(self.accepted.address[0]))
        if cookie is None:
            self._note_refused("token")
            self._send_form(403, "This is not the token of the server.")
        else:
            self.accepted.note_known()
            self.send_page(b"", "text/plain; charset=utf-8", 303, {"Location": "/", "Set-Cookie": cookie})

    def _note_refused(self, reason: str) -> None:
        self.site.refusals.note("page", reason, str(self.accepted.address[0]))

    def _is_same_origin(self) -> bool:
        """Return True unless the form was sent by another site."""
        origin = self.headers.get("Origin")
        return origin is None or urlsplit(origin).netloc == self.headers.get("Host")

    def _send_form(self, status: int, message: str = "") -> None:
        self.send_page(SIGN_IN.replace("{message}", message).encode(), KINDS[".html"], status)


def _fields(form: str) -> dict[str, str]:
    try:
        return {name: values[0] for name, values in parse_qs(form, max_num_fields=4).items()}
    except ValueError:
        return {}


def encoded(document: Any) -> bytes:
    """Encode a document as JSON in one line of ASCII, in which no character of a name ends an event or a line."""
    return json.dumps(document, separators=(",", ":"), default=_as_plain).encode("ascii")


def encoded_parts(value: Any, depth: int = 2) -> Iterator[bytes]:
    """Yield the parts of an encoded document: its entries, and BATCH items of a list at a time."""
    if depth and isinstance(value, dict):
        for number, (key, item) in enumerate(value.items()):
            yield (b"," if number else b"{") + encoded(str(key)) + b":"
            yield from encoded_parts(item, depth - 1)
        yield b"}" if value else b"{}"
    elif depth and isinstance(value, list) and len(value) > BATCH:
        for begin in range(0, len(value), BATCH):
            yield (b"," if begin else b"[") + encoded(value[begin : begin + BATCH])[1:-1]
        yield b"]"
    else:
        yield encoded(value)


def _as_plain(value: Any) -> Any:
    """Return a number of numpy as one of Python."""
    item: Callable[[], Any] | None = getattr(value, "item", None)
    if item is None:
        raise TypeError(f"{type(value).__name__} has no form in JSON")
    return item()


SIGN_IN = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>epochlog: sign in</title><link rel="stylesheet" href="page.css">
<main class="sign-in"><h1>epochlog</h1>
<form method="post" action="sign-in"><p role="alert">{message}</p>
<label>Token <input name="token" type="password" autocomplete="current-password" required autofocus></label>
<button>Sign in</button></form></main></html>
"""
