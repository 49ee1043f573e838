"""Access tokens of a server: their least strength, and the private files that they are read from."""

from __future__ import annotations

import os
import stat

from epochlog.errors import InsecureServer, InvalidInput, ReadFailed

LEAST_BYTES = 16
LEAST_VARIETY = 8
"""Different characters of a token: "aaaaaaaaaaaaaaaaaaaa" is long, and no secret."""
MOST_BYTES = 4096
MAKE = "umask 077; python3 -c 'import secrets; print(secrets.token_urlsafe(32))' > token"
"""What to type for a good token in a file of one's own."""


def check_strength(token: str, what: str) -> None:
    """Raise InsecureServer for a token that can be guessed. what: names it in the message, which does not show it."""
    if len(token) < LEAST_BYTES or len(set(token)) < LEAST_VARIETY:
        raise InsecureServer(
            f"{what} can be guessed: a token has at least {LEAST_BYTES} characters, {LEAST_VARIETY} of them different. "
            f"Type: {MAKE}"
        )


def load_token(path: str) -> str:
    """Read the token in a file (or a pipe) of this user that nobody else may read. Raises InsecureServer for another
    user's file, one that others may read, and a weak token; InvalidInput, ReadFailed.
    """
    try:
        found = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            about = os.fstat(found)
            _check_private(path, about)
            text = _read(found)
        finally:
            os.close(found)
    except OSError as error:
        raise ReadFailed(f"{path} cannot be read: {error.strerror or error}") from error
    token = text.decode("ascii", "replace").strip()
    if len(text) > MOST_BYTES or not token.isascii() or (token and not token.isprintable()):
        raise InvalidInput(f"{path} holds no token: one line of printable ASCII is wanted. Type: {MAKE}")
    check_strength(token, f"the token in {path}")
    return token


def _read(file: int) -> bytes:
    """Read up to one byte more than a token's file may have."""
    text = b""
    while len(text) <= MOST_BYTES and (some := os.read(file, MOST_BYTES + 1 - len(text))):
        text += some
    return text


def _check_private(path: str, about: os.stat_result) -> None:
    if about.st_uid not in (os.geteuid(), 0):
        raise InsecureServer(
            f"{path} is the file of another user (id {about.st_uid}), who can change it. Make one of your own: {MAKE}"
        )
    if stat.S_IMODE(about.st_mode) & 0o077:
        raise InsecureServer(
            f"others can read or write {path} (mode {stat.S_IMODE(about.st_mode):04o}). Type: chmod 600 {path}; if "
            f"somebody may have read it, make another: {MAKE}"
        )
