"""Parsers of command-line arguments: each returns the value, or raises ArgumentTypeError."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from contextlib import suppress

from epochlog.errors import InvalidInput
from epochlog.store.env.clock import parse_seconds
from epochlog.store.env.whole_number import whole_number

BEGINNINGS = ("latest", "earliest", "snapshot")
TOKEN_OPTIONS = ("--token", "--show", "--after", "--until", "--from")
LONGEST_OPTION = 40
AUTO = "auto"
"""Value of an option that chooses itself."""
"""Characters: all options are shorter, all tokens longer."""


def epoch(text: str) -> int:
    """Parse an epoch: a whole number from 0."""
    number = whole_number(text)
    if number is None:
        raise argparse.ArgumentTypeError(f"an epoch is a whole number as `epochlog ls` shows it, not {text!r}")
    return number


def beginning(text: str) -> str:
    """Accept a start position: a word of BEGINNINGS, or a text that `moment` accepts."""
    return text if text in BEGINNINGS else moment(text)


def moment(text: str) -> str:
    """Accept an epoch, a snapshot's token, or the name of a tag. The command resolves it in the store."""
    if not re.fullmatch(r"[A-Za-z0-9_-]+", text, re.ASCII) or re.fullmatch(r"-\d+", text):
        raise argparse.ArgumentTypeError(f"an epoch, a snapshot's token or the name of a tag is needed, not {text!r}")
    return text


def join_dashed_tokens(argv: Sequence[str]) -> list[str]:
    """Join a token that begins with a dash to the option before it, because argparse would take it for an option."""
    words: list[str] = []
    for word in argv:
        if words and words[-1] in TOKEN_OPTIONS and word.startswith("-") and len(word) > LONGEST_OPTION:
            words[-1] += f"={word}"
        else:
            words.append(word)
    return words


def positive(text: str) -> int:
    """Parse a whole number of at least 1."""
    number = whole_number(text)
    if not number:
        raise argparse.ArgumentTypeError(f"a whole number from 1 is needed, not {text!r}")
    return number


def seconds(text: str) -> float:
    """Parse a length of time into seconds."""
    try:
        return parse_seconds(text)
    except InvalidInput as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def seconds_or_auto(text: str) -> float | str:
    """Parse a length of time into seconds, or the word auto."""
    return AUTO if text == AUTO else seconds(text)


def names(text: str) -> Sequence[str]:
    """Parse comma-separated names."""
    parsed = [name.strip() for name in text.split(",")]
    if not all(parsed):
        raise argparse.ArgumentTypeError(f"comma-separated names are needed, not {text!r}")
    return parsed


def option(text: str) -> tuple[str, int | float | str]:
    """Parse name=value. The value becomes an int or a float if its text is one."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"name=value is needed, not {text!r}")
    for number in (int, float):
        with suppress(ValueError):
            return name, number(value)
    return name, value
