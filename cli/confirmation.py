"""Confirmation before a command destroys data: a question on the terminal, skipped with --yes."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from epochlog.errors import EpochlogError

if TYPE_CHECKING:
    from .session import CommandSession


class ConfirmationNeeded(EpochlogError):
    """Error of a destructive command without --yes and without a terminal."""


def confirm(session: CommandSession, question: str, losses: Iterable[str]) -> None:
    """Ask the question on the terminal; return for the answer yes, or at once with --yes.

    losses: lines about the data that the command removes or replaces. Raises ConfirmationNeeded, with them, if there is
    no terminal, and EpochlogError for any other answer.
    """
    if session.options.yes:
        return
    session.out.waiting.end()
    if session.out.as_json or not (sys.stdin.isatty() and sys.stderr.isatty()):
        lost = "; ".join(losses)
        raise ConfirmationNeeded(
            f"{question} {lost}. Nothing was done: there is no terminal to ask on; add --yes to confirm"
        )
    for line in losses:
        print(line, file=sys.stderr)
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise EpochlogError("nothing was done: the answer was not yes")
