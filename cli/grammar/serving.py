"""Grammar of the commands that run until a signal ends them: serve and ui."""

from __future__ import annotations

import argparse

from .common import add_command
from .values import positive, seconds


def _serve(commands: argparse._SubParsersAction) -> None:
    command = add_command(
        commands,
        "serve",
        "serve the store to clients and workers until SIGINT or SIGTERM",
        "The server coordinates the loads and jobs that workers (epochlog.Worker) run in parts.",
    )
    command.add_argument(
        "--bind",
        metavar="HOST:PORT",
        default="127.0.0.1:5005",
        help="default: 127.0.0.1:5005; port 0 takes a free port. An address that other hosts reach needs TLS and a "
        "token",
    )
    access = command.add_mutually_exclusive_group()
    access.add_argument(
        "--token-file", metavar="FILE", help="a file, readable for you alone, with the token that clients must send"
    )
    access.add_argument("--no-token", action="store_true", help="let every user of this machine read and write")
    command.add_argument(
        "--read-token-file", metavar="FILE", help="a file with a second token, which permits reads alone"
    )
    command.add_argument("--tls-cert", metavar="FILE", help="the server's certificate chain, PEM")
    command.add_argument("--tls-key", metavar="FILE", help="the key of the certificate, PEM")
    command.add_argument("--metrics", metavar="HOST:PORT", help="serve Prometheus text over HTTP at this local address")
    command.add_argument(
        "--ui",
        metavar="HOST:PORT",
        help="show the store on a page at this address; browsers sign in with one of the tokens",
    )
    command.add_argument(
        "--stage-counter",
        "--coordinator",
        metavar="URL",
        help="deprecated, without an effect: end marks and stage counters are in the store's catalog",
    )
    checkpoints = command.add_argument_group("checkpoints of loads and jobs")
    checkpoints.add_argument(
        "--interval", type=seconds, metavar="S", help="time between the checkpoints of a load (default: 1)"
    )
    checkpoints.add_argument(
        "--timeout", type=seconds, metavar="S", help="time after which a checkpoint is tried again (default: 60)"
    )
    checkpoints.add_argument(
        "--tolerable-failures",
        type=positive,
        metavar="N",
        help="end a load or job on this server after more than N failed checkpoints in a row (default: never)",
    )
    command.set_defaults(usage_error=_serve_usage_error)


def _serve_usage_error(options: argparse.Namespace) -> str | None:
    if options.token_file is None and not options.no_token:
        return (
            "serve: name the permitted clients: --token-file FILE for clients with that token, or --no-token for all "
            "users of this machine, with read and write access. To make a token, run: "
            "umask 077; python3 -c 'import secrets; print(secrets.token_urlsafe(32))' > token"
        )
    if options.no_token and options.read_token_file is not None:
        return "serve: --read-token-file needs --token-file; with --no-token every client may write"
    return None


def _ui(commands: argparse._SubParsersAction) -> None:
    command = add_command(
        commands,
        "ui",
        "show the store on a page for browsers until SIGINT or SIGTERM",
        "The page shows what can be read as of which epoch and what holds it back, the graph of tables, their commits, "
        "consumers, snapshots and errors. It changes nothing. JSON: root, ui (the address).",
    )
    command.add_argument(
        "--bind",
        metavar="HOST:PORT",
        default="127.0.0.1:8321",
        help="default: 127.0.0.1:8321; port 0 takes a free port. An address that other hosts reach needs TLS and a "
        "token",
    )
    command.add_argument(
        "--token-file", metavar="FILE", help="a file, readable for you alone, with the token to sign in with"
    )
    command.add_argument("--tls-cert", metavar="FILE", help="the certificate chain, PEM")
    command.add_argument("--tls-key", metavar="FILE", help="the key of the certificate, PEM")


SERVING_COMMANDS = (_serve, _ui)
