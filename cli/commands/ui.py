"""Command ui: serves the page of a store until a signal ends it."""

from __future__ import annotations

from epochlog.cli.session import CommandSession
from epochlog.cli.signals import stop_signals
from epochlog.errors import InvalidInput
from epochlog.exchange.transport.tokens import load_token
from epochlog.page.port import PagePort

from .serve import read_pem_file


def ui(session: CommandSession) -> None:
    """Serve the page until SIGINT or SIGTERM."""
    options = session.options
    if (options.tls_cert is None) != (options.tls_key is None):
        raise InvalidInput("--tls-cert and --tls-key need each other: give both, or neither")
    tokens = [] if options.token_file is None else [load_token(options.token_file)]
    certificate = None
    if options.tls_cert is not None:
        certificate = read_pem_file(options.tls_cert), read_pem_file(options.tls_key)
    with stop_signals() as stopped:
        page = PagePort(session.handle, options.bind, tokens=tokens, certificate=certificate)
        try:
            place = session.handle.files.place
            if session.out.as_json:
                session.out.document({"root": place, "ui": page.location}, on_one_line=True)
            else:
                session.out.show(f"{place} is shown at {page.location}")
            session.out.waiting.end()
            session.out.flush()
            stopped.recv(1)
        finally:
            page.close()
