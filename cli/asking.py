"""Confirmation before a command destroys something: asked on a terminal, or skipped where --yes was given."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from epochlog.errors import EpochlogError

if TYPE_CHECKING:
    from .session import CommandSession


class NotAsked(EpochlogError):
    """Refusal of a command that destroys something: there is no terminal to ask on, and --yes was not given."""


def ask(session: CommandSession, question: str, lost: Iterable[str]) -> None:
    """Ask the question; return when the answer is yes, or --yes was given. Raises NotAsked, or EpochlogError for
    another answer.

    lost: lines that tell what will be gone.
    """
    if session.options.yes:
        return
    session.out.waiting.end()
    if session.out.as_json or not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise NotAsked(f"{question} Nothing was done: there is no terminal to ask on; add --yes to go ahead")
    for line in lost:
        print(line, file=sys.stderr)
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise EpochlogError("nothing was done: the answer was not yes")
