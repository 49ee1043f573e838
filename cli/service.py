"""The command that serves a store until it is told to end."""

from __future__ import annotations

import argparse
import signal
import threading
from pathlib import Path

from ..checkpoint.decisions import JobSettings
from ..checkpoint.running import CoordinatorSettings
from ..errors import InvalidInput, ReadFailed
from ..exchange.connections import allow_open_files
from ..exchange.tokens import token_from
from ..serving import serve as serve_store
from .session import Session

SHUTDOWN_S = 10.0


def serve(session: Session) -> None:
    """Serve until SIGINT or SIGTERM, then end within SHUTDOWN_S."""
    options = session.options
    if (options.tls_cert is None) != (options.tls_key is None):
        raise InvalidInput("--tls-cert and --tls-key belong together")
    token = None if options.token_file is None else token_from(options.token_file)
    read_token = None if options.read_token_file is None else token_from(options.read_token_file)
    tls = None if options.tls_cert is None else (_read(options.tls_cert), _read(options.tls_key))
    scheme = "grpc" if tls is None else "grpc+tls"
    times = _times(options)
    told = threading.Event()
    before = {number: signal.signal(number, lambda *_: told.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    place = f"{scheme}://{options.bind}"
    allow_open_files()
    given = {"coordinator": options.coordinator, "control": times, "metrics": options.metrics}
    server = serve_store(session.store, place, token=token, read_token=read_token, tls=tls, **given)
    try:
        place = session.handle.files.place
        if session.out.as_json:
            facts = {"root": place, "location": server.location, "metrics": server.metrics_location}
            session.out.document(facts, on_one_line=True)
        else:
            metrics = f", metrics at {server.metrics_location}" if server.metrics_location else ""
            session.out.show(f"{place} is served at {server.location}{metrics}")
        session.out.waiting.end()
        session.out.flush()
        told.wait()
    finally:
        server.shutdown(SHUTDOWN_S)
        for number, handler in before.items():
            signal.signal(number, handler)


def _times(options: argparse.Namespace) -> CoordinatorSettings:
    """What the options say of checkpoints, the rest as it is by default. Raises InvalidInput."""
    given = {
        "interval_ms": None if options.interval is None else round(options.interval * 1000),
        "timeout_ms": None if options.timeout is None else round(options.timeout * 1000),
        "tolerable_failures": options.tolerable_failures,
    }
    known = {name: value for name, value in given.items() if value is not None}
    return CoordinatorSettings(checkpoints=JobSettings(**known))


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ReadFailed(f"{path} cannot be read: {error.strerror or error}") from error
