"""Common arguments of every command: the store's root, its catalog, and --json."""

from __future__ import annotations

import argparse

CATALOG_VARIABLE = "EPOCHLOG_CATALOG"


def add_command(
    commands: argparse._SubParsersAction,
    name: str,
    help: str,
    details: str = "",
    before_root: tuple[str, str, str] | None = None,
) -> argparse.ArgumentParser:
    """Add a command. `help` is its line in the list of commands; `details` follows in the command's own help.
    before_root: name, metavar and help of an argument that stands before the store's root.
    """
    parser = commands.add_parser(name, help=help, description=f"{help[0].upper()}{help[1:]}. {details}")
    if before_root is not None:
        argument, metavar, text = before_root
        parser.add_argument(argument, metavar=metavar, help=text)
    parser.add_argument("root", metavar="ROOT", help="the store's folder, or its URI (s3://…)")
    parser.add_argument(
        "--catalog",
        metavar="URL",
        help="redis://host:port/db, for a catalog in Redis (or set "
        f"{CATALOG_VARIABLE}, which keeps a password out of the list of processes)",
    )
    parser.add_argument(
        "--read-only",
        action="store_true",
        help="write nothing, not even a lease; without it commands do so where the store can only be read",
    )
    parser.add_argument("--volatile", action="store_true", help="accept a Redis that can lose acknowledged writes")
    parser.add_argument("--json", action="store_true", help="print JSON (epochlog --help lists the form of values)")
    parser.set_defaults(usage_error=lambda options: None)
    return parser


def engine_option(command: argparse.ArgumentParser, help: str) -> None:
    """Add the option that names the engine of a command for views."""
    command.add_argument(
        "--engine",
        choices=("duckdb", "spark"),
        default="duckdb",
        help=f"{help} (default: duckdb, which has not all functions of Spark)",
    )
