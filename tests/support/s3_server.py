"""A real S3 server on loopback for tests: moto's, in a process of its own that ends with the one that started it.

As a program (`python s3_server.py`) it is the server: it says its port, counts requests, fails them when told to, and
ends when its standard input does.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable
from typing import Any
from uuid import uuid4

import pyarrow.fs as pafs

USER, SECRET = "tester", "not/so+secret"
REQUESTS, FAIL, REFUSE, DELAY, AUTH = "/-requests", "/-fail", "/-refuse", "/-delay", "/moto-api/reset-auth"


class S3Server:
    """The server's process, started with this object; `stop` ends it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline() or "0")
        assert self.port, "the server did not start; what it printed tells why"

    def uri(self, path: str, user: str = USER, secret: str = SECRET) -> str:
        """The address of bucket/path, with everything that is needed to reach it."""
        quoted = secret.replace("/", "%2F").replace("+", "%2B")
        return (
            f"s3://{user}:{quoted}@{path}?endpoint_override=127.0.0.1%3A{self.port}&scheme=http&region=us-east-1"
            "&allow_bucket_creation=true"
        )

    def new_bucket(self) -> str:
        name = f"bucket-{uuid4().hex}"
        pafs.FileSystem.from_uri(self.uri(name))[0].create_dir(name)
        return name

    def requests(self) -> list[str]:
        """Method and path of all requests since the last time this was asked."""
        return json.loads(self._ask(REQUESTS))

    def fail(self, count: int, method: str = "") -> None:
        """Answer the next `count` requests (of the method) with 503, as S3 does when it is asked too often."""
        self._ask(FAIL, json.dumps([count, method]))

    def refuse_writes(self, refused: bool) -> None:
        """Answer 403 to each request that writes or deletes, as S3 does for a user who may only read."""
        self._ask(REFUSE, json.dumps(refused))

    def delay(self, seconds: float) -> None:
        """Let each request take so much longer, as a server far away does."""
        self._ask(DELAY, json.dumps(seconds))

    def ask_for_keys(self, wanted: bool) -> None:
        """Refuse calls without known credentials if `wanted`; the server knows no user."""
        self._ask(AUTH, "0" if wanted else "inf")

    def stop(self) -> None:
        """End the process; a second call does nothing."""
        self._process.kill()
        self._process.communicate()

    def _ask(self, path: str, body: str | None = None) -> str:
        plain = {"Content-Type": "text/plain"}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", body and body.encode(), plain)
        with urllib.request.urlopen(request) as answer:
            return answer.read().decode()


class Front:
    """A WSGI application before moto's: it counts requests, and fails those that it was told to fail."""

    def __init__(self, inner: Callable[..., Iterable[bytes]]) -> None:
        self._inner = inner
        self._lock = threading.Lock()
        self._seen: list[str] = []
        self._fail = (0, "")
        self._read_only = False
        self._delay_s = 0.0

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path, method = environ["PATH_INFO"], environ["REQUEST_METHOD"]
        if path == REQUESTS:
            with self._lock:
                seen, self._seen = self._seen, []
            return _answer(start_response, "200 OK", json.dumps(seen))
        if path == FAIL:
            count, kind = json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
            with self._lock:
                self._fail = (count, kind)
            return _answer(start_response, "200 OK", "")
        if path == REFUSE:
            self._read_only = json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
            return _answer(start_response, "200 OK", "")
        if path == DELAY:
            self._delay_s = json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
            return _answer(start_response, "200 OK", "")
        if path == AUTH:
            return self._inner(environ, start_response)
        time.sleep(self._delay_s)
        with self._lock:
            query = environ.get("QUERY_STRING", "")
            self._seen.append(f"{method} {path}{'?' if query else ''}{query}")
            count, kind = self._fail
            failing = count > 0 and method.startswith(kind)
            self._fail = (count - failing, kind)
        if failing:
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            return _answer(start_response, "503 Slow Down", "<Error><Code>SlowDown</Code></Error>")
        if self._read_only and method not in ("GET", "HEAD"):
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            return _answer(start_response, "403 Forbidden", "<Error><Code>AccessDenied</Code></Error>")
        return self._inner(environ, start_response)


def _answer(start_response: Callable[..., Any], status: str, text: str) -> list[bytes]:
    start_response(status, [("Content-Type", "text/plain"), ("Content-Length", str(len(text)))])
    return [text.encode()]


def main() -> None:
    """Serve until standard input ends."""
    import logging

    from moto.server import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    front = Front(DomainDispatcherApplication(create_backend_app))
    MotoRequestHandler.protocol_version = "HTTP/1.1"  # connections are kept
    server = make_server("127.0.0.1", 0, front, threaded=True, request_handler=MotoRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
