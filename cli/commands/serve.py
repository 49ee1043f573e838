"""Command serve: serves a store until a signal ends it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from epochlog.checkpoint.coordinator.state import CoordinatorSettings
from epochlog.checkpoint.manager.commands import JobSettings
from epochlog.cli.session import CommandSession
from epochlog.cli.signals import stop_signals
from epochlog.errors import InvalidInput, ReadFailed
from epochlog.exchange.transport.connections import allow_open_files
from epochlog.exchange.transport.tokens import load_token
from epochlog.serving import NO_STAGE_COUNTER
from epochlog.serving import serve as serve_store

SHUTDOWN_S = 10.0


def serve(session: CommandSession) -> None:
    """Serve until SIGINT or SIGTERM, then end within SHUTDOWN_S."""
    options = session.options
    if (options.tls_cert is None) != (options.tls_key is None):
        raise InvalidInput("--tls-cert and --tls-key need each other: give both, or neither")
    token = None if options.token_file is None else load_token(options.token_file)
    read_token = None if options.read_token_file is None else load_token(options.read_token_file)
    tls = None if options.tls_cert is None else (read_pem_file(options.tls_cert), read_pem_file(options.tls_key))
    scheme = "grpc" if tls is None else "grpc+tls"
    if options.stage_counter is not None:
        print(f"epochlog: {NO_STAGE_COUNTER}: leave --stage-counter out", file=sys.stderr)
    coordinator_settings = _coordinator_settings(options)
    place = f"{scheme}://{options.bind}"
    allow_open_files()
    settings = {
        "control": coordinator_settings,
        "metrics": options.metrics,
        "ui": options.ui,
    }
    with stop_signals() as stopped:
        server = serve_store(session.store, place, token=token, read_token=read_token, tls=tls, **settings)
        try:
            place = session.handle.files.place
            if session.out.as_json:
                addresses = {"location": server.location, "metrics": server.metrics_location, "ui": server.ui_location}
                session.out.document({"root": place, **addresses}, on_one_line=True)
            else:
                metrics = f", metrics at {server.metrics_location}" if server.metrics_location else ""
                page = f", shown at {server.ui_location}" if server.ui_location else ""
                session.out.show(f"{place} is served at {server.location}{metrics}{page}")
            session.out.waiting.end()
            session.out.flush()
            stopped.recv(1)
        finally:
            server.shutdown(SHUTDOWN_S)


def _coordinator_settings(options: argparse.Namespace) -> CoordinatorSettings:
    """Build the coordinator's settings from the checkpoint options. Raises InvalidInput."""
    values = {
        "interval_ms": None if options.interval is None else round(options.interval * 1000),
        "timeout_ms": None if options.timeout is None else round(options.timeout * 1000),
        "tolerable_failures": options.tolerable_failures,
    }
    set_values = {name: value for name, value in values.items() if value is not None}
    return CoordinatorSettings(checkpoints=JobSettings(**set_values))


def read_pem_file(path: str) -> bytes:
    """Return the content of a file that an option names. Raises ReadFailed."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ReadFailed(f"cannot read {path}: {error.strerror or error}") from error
