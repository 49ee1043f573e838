"""Grammar of the commands for views in SQL: apply and run."""

from __future__ import annotations

import argparse

from .common import add_command, engine_option
from .values import positive


def _apply(commands: argparse._SubParsersAction) -> None:
    command = add_command(
        commands,
        "apply",
        "make the store's views those of a folder of .sql files",
        "Each file NAME.sql is a view: a line `-- primary_key: column, …`, perhaps `-- refresh: auto`, then its query "
        "in Spark's dialect. Views without a file are dropped, and changed ones are replaced together: each is rebuilt "
        "at one epoch, and its old rows stay readable until then. JSON: applied, epoch (of the replaced views), and "
        "changes: name, action (create, replace, alter, drop, unchanged), plan, and advice on its key.",
        before_root=("folder", "FOLDER", "the folder with the .sql files"),
    )
    engine_option(command, "the engine that plans the queries")
    command.add_argument("--dry-run", action="store_true", help="show the changes and the plans, change nothing")
    command.add_argument("--yes", action="store_true", help="do not ask for confirmation; required without a terminal")


def _run(commands: argparse._SubParsersAction) -> None:
    command = add_command(
        commands,
        "run",
        "keep all views of the store up to date, until SIGINT or SIGTERM",
        "Views that are created, replaced or dropped meanwhile are taken in. JSON: one object for each change of a "
        "view's state: name, state, committed_epoch, lag_ms, restarts, last_error.",
    )
    engine_option(command, "the engine that refreshes the views")
    command.add_argument(
        "--maintain", action="store_true", help="also apply retention, expire rows, compact all tables and vacuum"
    )
    command.add_argument("--threads", type=positive, metavar="N", help="views that are refreshed at a time")


VIEW_COMMANDS = (_apply, _run)
