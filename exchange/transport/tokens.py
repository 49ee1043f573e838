"""Access tokens of a server: the check of their strength, and the loading of their private files."""

from __future__ import annotations

import os
import stat

from epochlog.errors import InsecureServer, InvalidInput, ReadFailed

MIN_LENGTH = 16
MIN_DISTINCT = 8
"""Distinct characters of a token: "aaaaaaaaaaaaaaaaaaaa" is long, but no secret."""
MAX_FILE_BYTES = 4096
SHELL_COMMAND = "umask 077; python3 -c 'import secrets; print(secrets.token_urlsafe(32))' > token"
"""Shell command that writes a strong token to a private file."""


def check_strength(token: str, description: str) -> None:
    """Raise InsecureServer for a token that can be guessed. description: names the token in the message, which does not
    show its text.
    """
    if len(token) < MIN_LENGTH or len(set(token)) < MIN_DISTINCT:
        raise InsecureServer(
            f"{description} can be guessed: a token has at least {MIN_LENGTH} characters, {MIN_DISTINCT} of them "
            f"different. Type: {SHELL_COMMAND}"
        )


def load_token(path: str) -> str:
    """Read the token from a private file (or a pipe) of this user.

    Raises InsecureServer for another user's file, a file that others may read, and a weak token; InvalidInput,
    ReadFailed.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _check_private(path, os.fstat(descriptor))
            text = _read(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise ReadFailed(f"{path} cannot be read: {error.strerror or error}") from error
    token = text.decode("ascii", "replace").strip()
    if len(text) > MAX_FILE_BYTES or not token.isascii() or (token and not token.isprintable()):
        raise InvalidInput(f"{path} holds no token: it must have one line of printable ASCII. Type: {SHELL_COMMAND}")
    check_strength(token, f"the token in {path}")
    return token


def _read(descriptor: int) -> bytes:
    """Read a token's file, up to one byte more than MAX_FILE_BYTES."""
    text = b""
    while len(text) <= MAX_FILE_BYTES and (chunk := os.read(descriptor, MAX_FILE_BYTES + 1 - len(text))):
        text += chunk
    return text


def _check_private(path: str, status: os.stat_result) -> None:
    if status.st_uid not in (os.geteuid(), 0):
        raise InsecureServer(
            f"{path} is the file of another user (id {status.st_uid}), who can change it. Make one of your own: "
            f"{SHELL_COMMAND}"
        )
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise InsecureServer(
            f"others can read or write {path} (mode {stat.S_IMODE(status.st_mode):04o}). Type: chmod 600 {path}; if "
            f"somebody may have read it, make another: {SHELL_COMMAND}"
        )
